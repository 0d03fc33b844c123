// A fleet of decode workers, as real processes: what one of them went through once costs neither
// its share of the load nor a request.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <cstdio>
#include <thread>
#include <utility>

#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "tests/cluster/faults/accounting.h"
#include "tests/cluster/faults/row.h"
#include "tests/cluster/faults/worker_face.h"
#include "tests/testing/metrics_scrape.h"
#include "tests/testing/seed.h"
#include "tests/testing/worker_client.h"

namespace baton::testing {
namespace {

constexpr char kRouter[] = "router", kSlow[] = "decode-1";
constexpr int kBurst = 24;

// One request, past the router, to a decode worker that computes the prompt itself and is stopped
// for so long when its first token is out: in the first of its two decode steps, most likely. Many
// choices of a long prompt make that step long enough to hit. Whether a step took so long.
bool AskAndStop(ProcessCluster& cluster, const std::string& worker, const Case& c,
                absl::Duration stop_for) {
  constexpr int kChoices = 16, kTokens = 3;
  const auto decode = WorkerFace::Of(cluster.channel(worker), cluster.address(worker));
  EXPECT_TRUE(decode.ok()) << decode.status();
  if (!decode.ok()) return false;
  auto request = MakeDecodeRequest(*decode, *decode, c.prompt, c.sampling, kTokens);
  request.clear_prefill();
  request.set_n(kChoices);
  auto stub = internal::v1::DecodeService::NewStub(cluster.channel(worker));
  grpc::ClientContext context;
  context.set_deadline(TestDeadline());
  auto reader = stub->Decode(&context, request);
  internal::v1::DecodeResponse response;
  bool stopped = false;
  while (reader->Read(&response)) {
    if (response.token_ids().empty() || std::exchange(stopped, true)) continue;
    cluster.Signal(worker, SIGSTOP);
    absl::SleepFor(stop_for);  // the fault's own length
    cluster.Signal(worker, SIGCONT);
  }
  const absl::Status status = FromGrpcStatus(reader->Finish());
  EXPECT_TRUE(status.ok()) << status;
  const double in_steps =
      MetricSum(cluster.metrics_address(worker), "baton_decode_step_duration_seconds_sum");
  return absl::Seconds(in_steps) >= stop_for;
}

double EndedAt(const ProcessCluster& cluster, const std::string& worker) {
  return MetricSum(cluster.metrics_address(worker), "baton_decode_requests_total");
}

TEST(DecodeFleetTest, AWorkerWhoseFirstRequestWasSlowGetsItsShare) {
  constexpr absl::Duration kStop = absl::Milliseconds(800);
  const absl::Time patience = absl::Now() + absl::Minutes(4);
  Oracle oracle("models/demo", {.thread_count = 1});
  ClusterOptions options;
  options.prefill_workers = 1;
  options.seed = TestSeed();
  auto started = ProcessCluster::Start(options);
  ASSERT_TRUE(started.ok()) << started.status();
  ProcessCluster& cluster = **started;
  const std::vector<Case> cases = MakeCases(oracle, kBurst, {32, 200, 60, 60}, options.seed);
  const std::vector<Case> first = MakeCases(oracle, 1, {500, 500, 1, 1}, options.seed + 1);
  // The stop may miss the step, which takes a millisecond or two.
  int attempt = 1;
  while (!AskAndStop(cluster, kSlow, first[0], kStop) && !HasFailure()) {
    ASSERT_LT(absl::Now(), patience) << "the worker was never stopped in a step";
    ++attempt;
    ASSERT_TRUE(cluster.Restart(kSlow).ok());
  }
  // The router has heard of it, and not of the process before it only, whose last report it keeps
  // until the worker is connected again.
  const absl::Status heard = cluster.AwaitState(kRouter, kSlow, [](const auto& w) {
    return w.state == "ready" && w.indexed_blocks > 0 && w.running == 0;
  });
  ASSERT_TRUE(heard.ok()) << heard;

  std::printf("stopped in a step at attempt %d\n", attempt);
  // A step that the machine holds up makes a worker slower than the other one for a while, and the
  // router gives it less: one burst may be as uneven as that. A worker that is avoided gets next to
  // nothing.
  constexpr int kBursts = 3;
  Tally tally;
  double all_0 = 0, all_1 = 0;
  for (int round = 0; round < kBursts; ++round) {
    const double before_0 = EndedAt(cluster, "decode-0"), before_1 = EndedAt(cluster, "decode-1");
    std::vector<std::thread> clients;
    for (const Case& c : cases) {
      clients.emplace_back([&] {
        ClientCall::Options call;
        call.cache_salt = NewSalt();
        ClientCall client;
        tally.Count(c, client.Run(cluster.channel(kRouter), c, call));
      });
    }
    for (std::thread& client : clients) client.join();
    const Accounting freed = AwaitFree(cluster, cluster.workers(), absl::Now());
    EXPECT_EQ(freed.leaked, 0) << freed.detail;
    const double at_0 = EndedAt(cluster, "decode-0") - before_0;
    const double at_1 = EndedAt(cluster, "decode-1") - before_1;
    std::printf("burst %d: %.0f and %.0f requests\n", round, at_0, at_1);
    EXPECT_EQ(at_0 + at_1, kBurst);
    EXPECT_GE(at_0, kBurst / 6) << "burst " << round;
    EXPECT_GE(at_1, kBurst / 6) << "burst " << round;
    all_0 += at_0;
    all_1 += at_1;
  }
  EXPECT_GE(all_0, kBursts * kBurst / 3);
  EXPECT_GE(all_1, kBursts * kBurst / 3);
  EXPECT_EQ(tally.right(), kBursts * kBurst) << tally.ErrorsByReason();
  EXPECT_TRUE(cluster.Crashes().empty());
  if (HasFailure()) cluster.KeepLogs();
}

// Four times, the decode worker that holds most of 24 streams is killed and started again.
TEST(DecodeFleetTest, ADeathCostsNoRequest) {
  constexpr int kDeaths = 4, kVictims = 30;  // of the row at scale 1
  const std::vector<Row> rows = AllRows();
  const auto row = std::find_if(rows.begin(), rows.end(),
                                [](const Row& r) { return r.name == "storm_decode_24"; });
  ASSERT_NE(row, rows.end());
  Oracle oracle("models/demo", {.thread_count = 1});
  CampaignOptions options;
  options.scale = static_cast<double>(kDeaths) / kVictims;
  options.seed = TestSeed();
  options.judge_times = false;
  const RowResult result = RunRow(*row, options, oracle);
  EXPECT_TRUE(result.passed()) << absl::StrJoin(result.failures, "; ");
  EXPECT_EQ(result.count, kDeaths);
  EXPECT_GE(result.requests, kBurst);
  EXPECT_EQ(result.client_errors, 0) << result.MeasuredText();
  EXPECT_EQ(result.wrong, 0);
  EXPECT_EQ(result.leaked_blocks, 0);
}

}  // namespace
}  // namespace baton::testing
