// Rows: too much of everything.
#include <algorithm>
#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/cluster/faults/row.h"
#include "tests/testing/metrics_scrape.h"

namespace baton::testing {
namespace {

// Tokens of whole answers a second, over `window`.
double Throughput(const BackgroundLoad& load, absl::Duration window) {
  const int64_t before = load.generated_tokens();
  const absl::Time begin = absl::Now();
  absl::SleepFor(window);  // what is measured is a rate
  return static_cast<double>(load.generated_tokens() - before) /
         absl::ToDoubleSeconds(absl::Now() - begin);
}

// Nine of ten requests are cancelled somewhere on their way; then all is as before.
void AbortStorm(RowRun& run) {
  ProcessCluster* cluster = run.StartCluster();
  if (cluster == nullptr) return;
  const std::vector<Case> cases = run.Cases(60, {20, 400, 10, 60});
  const int count = run.Count(5, 1);
  const absl::Duration storm = run.Scaled(absl::Minutes(5), absl::Seconds(3));
  const absl::Duration window = run.Scaled(absl::Seconds(10), absl::Seconds(2));
  double worst_share = 1e9;
  absl::Duration worst_recovery;
  for (int i = 0; i < count; ++i) {
    BackgroundLoad::Options calm;
    calm.clients = 6;
    calm.seed = run.seed() * 1000 + i;
    double before;
    {
      BackgroundLoad load(cluster->channel("router"), cases, calm, run.tally());
      Throughput(load, window / 4);  // until it runs evenly
      before = Throughput(load, window);
    }
    {
      BackgroundLoad::Options stormy = calm;
      stormy.clients = 32;
      stormy.abort_share = 0.9;
      BackgroundLoad load(cluster->channel("router"), cases, stormy, run.tally());
      absl::SleepFor(storm);  // the fault's own length
      run.Injected();
    }
    const absl::Time over = absl::Now();
    BackgroundLoad load(cluster->channel("router"), cases, calm, run.tally());
    double share = 0;
    absl::Duration took;
    do {
      share = std::max(share, Throughput(load, window) / before);
      took = absl::Now() - over;
    } while (share < 0.95 && took < absl::Seconds(run.times_judged() ? 30 : 3));
    load.Stop();
    worst_share = std::min(worst_share, share);
    worst_recovery = std::max(worst_recovery, took);
    run.AwaitFreed(absl::Now());
  }
  run.MeasureSeconds("storm", storm);
  run.Measure(
      {"throughput after it", Measured::Of::kSmallest, worst_share * 100, 0, " % of before"});
  run.Measure("reached within", worst_recovery);
  run.RequireTime(worst_share >= 0.95, "less than 95 % of the throughput came back within 30 s");
  run.Judge();
}

// Twelve requests at once, any three of which fill the pool.
void PoolExhausted(RowRun& run) {
  ClusterOptions options;
  options.prefill_workers = options.decode_workers = 1;
  options.worker_flags = {"--num-blocks", "40"};
  ProcessCluster* cluster = run.StartCluster(options);
  if (cluster == nullptr) return;
  const std::vector<Case> cases = run.Cases(72, {60, 200, 60, 160});
  const int count = run.Count(50, 1);
  absl::Duration slowest;
  for (int i = 0; i < count; ++i) {
    absl::Mutex mutex;
    std::vector<std::thread> clients;
    for (int k = 0; k < 12; ++k) {
      const Case& c = cases[(i * 12 + k) % cases.size()];
      clients.emplace_back([&, k] {
        ClientCall::Options call;
        if (k % 3 != 0) call.cache_salt = NewSalt();  // the others may find their prefix cached
        ClientCall client;
        const Answer answer = client.Run(cluster->channel("router"), c, call);
        run.tally().Count(c, answer);
        absl::MutexLock lock(&mutex);
        slowest = std::max(slowest, answer.end - answer.begin);
      });
    }
    for (std::thread& client : clients) client.join();
    run.AwaitFreed(absl::Now());
    run.Injected();
  }
  run.Measure("slowest request", slowest);
  const double preempted =
      MetricSum(cluster->metrics_address("decode-0"), "baton_preemptions_total");
  run.MeasureCount("preemptions", static_cast<int64_t>(preempted));
  run.Judge();
}

}  // namespace

std::vector<Row> LoadRows() {
  return {
      {"abort_storm", "90 % abort storm, 5 min", "5", "≥ 95 % of throughput within 30 s after",
       AbortStorm},
      {"pool_exhausted", "KV pool exhausted", "50",
       "the oldest progresses; no deadlock; preempted output equals the oracle's", PoolExhausted},
  };
}

}  // namespace baton::testing
