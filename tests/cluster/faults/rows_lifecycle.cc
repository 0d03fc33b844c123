// Rows: routers that die, processes that are replaced one after another.
#include <signal.h>

#include <algorithm>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/cluster/faults/row.h"

namespace baton::testing {
namespace {

constexpr absl::Duration kAtOnce = absl::Seconds(1);

// Two routers over the same workers; one dies with its streams open.
void KillRouter(RowRun& run) {
  ClusterOptions options;
  options.routers = 2;
  ProcessCluster* cluster = run.StartCluster(options);
  if (cluster == nullptr) return;
  run.tally().AllowLostRouter();
  const std::vector<Case> cases = run.Cases(40, {50, 300, 100, 150});
  const int count = run.Count(50, 1);
  absl::Duration worst_served;
  int64_t lost = 0;
  for (int i = 0; i < count; ++i) {
    // Its streams are decoding when it dies.
    constexpr int kStreams = 4;
    std::atomic<int> streaming{0};
    const auto one_more = [&streaming] {
      ++streaming;
      streaming.notify_all();
    };
    std::vector<std::thread> clients;
    for (int k = 0; k < kStreams; ++k) {
      const Case& c = cases[(i * kStreams + k) % cases.size()];
      clients.emplace_back([&] {
        bool first = true;
        ClientCall::Options call;
        call.cache_salt = NewSalt();
        call.on_tokens = [&](int) {
          if (std::exchange(first, false)) one_more();
        };
        ClientCall client;
        const Answer answer = client.Run(cluster->channel("router"), c, call);
        run.tally().Count(c, answer);
        if (first) one_more();  // ended without a token: nothing to wait for
      });
    }
    for (int seen; (seen = streaming) < kStreams / 2;) streaming.wait(seen);
    const absl::Time killed_at = absl::Now();
    cluster->Signal("router", SIGKILL);
    run.Injected();
    ClientCall client;
    ClientCall::Options call;
    call.cache_salt = NewSalt();
    const Case& c = cases[i % cases.size()];
    const Answer answer = client.Run(cluster->channel("router-1"), c, call);
    const bool served = run.tally().Count(c, answer) == Tally::Verdict::kRight;
    run.Require(served, absl::StrCat("the other router: ", answer.status.ToString()));
    worst_served = std::max(worst_served, answer.first_token - answer.begin);
    for (std::thread& thread : clients) thread.join();
    run.AwaitFreed(std::max(killed_at, answer.end));
    const absl::Status restarted = cluster->Restart("router");
    run.Require(restarted.ok(), restarted.ToString());
    const absl::Status ready = cluster->AwaitReady("router");
    run.Require(ready.ok(), ready.ToString());
  }
  lost = run.tally().errors();
  run.MeasureCount("streams cut with their router", lost);
  run.Measure("first token of the other router after", worst_served);
  run.RequireTime(worst_served <= kAtOnce, "the other router did not serve at once");
  run.Judge(/*allowed_errors=*/lost);  // each was cut by the kill itself
}

// Drains and replaces one process after the other while half of what fits is running.
void RollingRestart(RowRun& run) {
  ClusterOptions options;
  options.routers = 2;
  options.worker_flags = {"--drain-grace-ms", "20000"};
  ProcessCluster* cluster = run.StartCluster(options);
  if (cluster == nullptr) return;
  const std::vector<Case> cases = run.Cases(60, {20, 300, 10, 60});
  const int count = run.Count(20, 1);
  absl::Duration slowest_end, slowest_met;
  const auto note_met = [&](const std::string& name, absl::Time listening) {
    for (const std::string router : {"router", "router-1"}) {
      if (name == router) continue;
      const absl::Status ready = cluster->AwaitReady(router);
      run.Require(ready.ok(), ready.ToString());
    }
    slowest_met = std::max(slowest_met, absl::Now() - listening);
  };
  for (int i = 0; i < count && run.result().passed(); ++i) {
    for (const std::string& name : cluster->workers()) {
      BackgroundLoad::Options half;
      half.clients = 3;
      half.seed = run.seed() * 1000 + i;
      BackgroundLoad load(cluster->channel("router"), cases, half, run.tally());
      load.AwaitRight(3);
      const absl::Time told_at = absl::Now();
      cluster->Signal(name, SIGTERM);
      cli::ChildProcess& process = cluster->process(name);
      const bool ended = process.AwaitEnd(absl::Seconds(40));
      run.Require(ended && process.ended_well(),
                  absl::StrCat(name, " after SIGTERM ", ended ? process.end() : "still runs"));
      slowest_end = std::max(slowest_end, absl::Now() - told_at);
      const absl::Status restarted = cluster->Restart(name);
      run.Require(restarted.ok(), restarted.ToString());
      note_met(name, absl::Now());
      load.Stop();
      run.Injected();
    }
    // Routers, one of which always serves.
    for (const auto& [name, other] :
         {std::pair<std::string, std::string>("router", "router-1"), {"router-1", "router"}}) {
      BackgroundLoad::Options half;
      half.clients = 3;
      half.seed = run.seed() * 1000 + i;
      BackgroundLoad load(cluster->channel(other), cases, half, run.tally());
      cluster->Signal(name, SIGTERM);
      cli::ChildProcess& process = cluster->process(name);
      const bool ended = process.AwaitEnd(absl::Seconds(40));
      run.Require(ended && process.ended_well(),
                  absl::StrCat(name, " after SIGTERM ", ended ? process.end() : "still runs"));
      const absl::Status restarted = cluster->Restart(name);
      run.Require(restarted.ok(), restarted.ToString());
      const absl::Status ready = cluster->AwaitReady(name);
      run.Require(ready.ok(), ready.ToString());
      load.Stop();
      run.Injected();
    }
    run.AwaitFreed(absl::Now());
  }
  run.Measure("drained and ended after", slowest_end);
  run.Measure("replacement ready after", slowest_met);
  run.RequireTime(slowest_met <= absl::Seconds(2), "a replacement was not used within 2 s");

  // A worker of another revision: its KV blocks have another shape.
  const absl::Status restarted = cluster->Restart("decode-1", {"--block-size", "32"});
  run.Require(restarted.ok(), restarted.ToString());
  const absl::Status refused = cluster->AwaitState(
      "router", "decode-1", [](const auto& worker) { return worker.state == "refused"; });
  run.Require(refused.ok(), absl::StrCat("another KV layout is not refused: ", refused.ToString()));
  BackgroundLoad::Options half;
  half.clients = 3;
  BackgroundLoad load(cluster->channel("router"), cases, half, run.tally());
  load.AwaitRight(10);
  load.Stop();
  run.AwaitFreed(absl::Now());
  run.Judge();
}

}  // namespace

std::vector<Row> LifecycleRows() {
  return {
      {"router_killed", "router killed", "50",
       "another replica serves at once; orphaned work cancelled ≤ 1 s", KillRouter},
      {"rolling_restart", "rolling restart of each role at 50 % load", "20",
       "0 failures; mixed revisions refused", RollingRestart},
  };
}

}  // namespace baton::testing
