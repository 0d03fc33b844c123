// Rows: a request cancelled at each of nine points of its life.
#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "baton/internal/v1/worker.grpc.pb.h"
#include "tests/cluster/faults/row.h"

namespace baton::testing {
namespace {

using Way = Flow::Way;

const Flow kRequestToPrefill = {"decode-*", "prefill-*", Way::kToTarget};
const Flow kKvToDecode = {"decode-*", "prefill-*", Way::kToOpener};

// One request that is cancelled when its moment comes.
class CancelledRequest {
 public:
  CancelledRequest(RowRun& run, ProcessCluster& cluster, const Case& c)
      : run_(run), cluster_(cluster), case_(c) {}

  // The next byte of `flow` behind `after_bytes` is the moment. `end`: what becomes of the flow
  // until the request has ended.
  void CancelAt(const Flow& flow, int64_t after_bytes, TripEnd end) {
    cluster_.proxy().Arm(flow, after_bytes, [this, end](const std::string&, const std::string&) {
      Cancel();
      return end;
    });
  }
  void CancelAtToken(int k) {
    options_.on_tokens = [this, k](int tokens) {
      if (tokens >= k) Cancel();
    };
  }
  void Cancel() {
    if (cancelled_.HasBeenNotified()) return;
    cancelled_at_ = absl::Now();
    call_.Cancel();
    cancelled_.Notify();
  }
  // Blocks until it has ended.
  void Run() {
    options_.cache_salt = NewSalt();
    const Answer answer = call_.Run(cluster_.channel("router"), case_, options_);
    verdict_ = run_.tally().Count(case_, answer, /*expect_cancel=*/true);
    ended_at_ = answer.end;
  }
  bool cancelled() const { return verdict_ == Tally::Verdict::kCancelled; }
  // An answer that was faster than its cancel is free when it has ended.
  absl::Time over_at() const { return cancelled() ? cancelled_at_ : ended_at_; }

 private:
  RowRun& run_;
  ProcessCluster& cluster_;
  const Case& case_;
  ClientCall call_;
  ClientCall::Options options_;
  absl::Notification cancelled_;
  absl::Time cancelled_at_, ended_at_;
  Tally::Verdict verdict_ = Tally::Verdict::kError;
};

using Aim = void (*)(RowRun&, const Case&, CancelledRequest&);

// What the nine rows share: `aim` sets the moment, all else is the same.
void CancelEach(RowRun& run, const CaseShape& shape, Aim aim) {
  ClusterOptions options;
  options.prefill_workers = options.decode_workers = 1;
  options.prefill_flags = {"--max-num-batched-tokens", "128"};  // a prompt takes several steps
  ProcessCluster* cluster = run.StartCluster(options);
  if (cluster == nullptr) return;
  const std::vector<Case> cases = run.Cases(50, shape);
  const int count = run.Count(1000, 3);
  int faster = 0;
  for (int i = 0; i < count && run.result().passed(); ++i) {
    const Case& c = cases[i % cases.size()];
    CancelledRequest request(run, *cluster, c);
    aim(run, c, request);
    request.Run();
    cluster->proxy().Heal();
    faster += !request.cancelled();
    run.AwaitFreed(request.over_at());
    run.Injected();
  }
  run.MeasureCount("ended before the cancel", faster);
  run.Require(faster * 2 <= count, "most requests ended before their cancel");
  run.Judge();
}

void AtOnce(RowRun& run) {
  CancelEach(run, {100, 400, 50, 60},
             [](RowRun& run, const Case&, CancelledRequest& request) { request.Cancel(); });
}

void OnTheWire(RowRun& run) {
  CancelEach(run, {300, 500, 5, 10}, [](RowRun&, const Case&, CancelledRequest& request) {
    request.CancelAt(kRequestToPrefill, 250, TripEnd::kHold);
  });
}

void WhileComputing(RowRun& run) {
  CancelEach(run, {400, 500, 5, 10}, [](RowRun&, const Case& c, CancelledRequest& request) {
    // Nearly all of the request, two bytes a token, has reached the prefill worker.
    const int64_t most = static_cast<int64_t>(c.prompt.size()) * 3 / 2 + 150;
    request.CancelAt(kRequestToPrefill, most, TripEnd::kGoOn);
  });
}

template <int kPercent>
void InTransfer(RowRun& run) {
  CancelEach(run, {300, 500, 5, 10}, [](RowRun& run, const Case& c, CancelledRequest& request) {
    request.CancelAt(kKvToDecode, 400 + (KvBytes(run, c) - 400) * kPercent / 100, TripEnd::kHold);
  });
}

void AtFirstToken(RowRun& run) {
  CancelEach(run, {100, 500, 100, 120},
             [](RowRun&, const Case&, CancelledRequest& request) { request.CancelAtToken(1); });
}

void WhileDecoding(RowRun& run) {
  CancelEach(run, {20, 300, 100, 120}, [](RowRun& run, const Case& c, CancelledRequest& request) {
    request.CancelAtToken(2 + static_cast<int>(run.random()() % (c.expected.size() / 2)));
  });
}

// Waits, through the decode worker's reports, until something is queued there.
bool AwaitQueued(ProcessCluster& cluster) {
  const auto stub = internal::v1::WorkerService::NewStub(cluster.channel("decode-0"));
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(20)));
  internal::v1::WatchRequest watch;
  watch.set_watcher("fault campaign");
  auto reader = stub->Watch(&context, watch);
  internal::v1::WatchResponse event;
  bool queued = false;
  while (!queued && reader->Read(&event)) queued = event.load().queued() > 0;
  context.TryCancel();
  while (reader->Read(&event)) {
  }
  (void)reader->Finish();
  return queued;
}

// The decode worker runs one sequence; its transfer is held, so that a second request must wait.
void InTheQueue(RowRun& run) {
  ClusterOptions options;
  options.prefill_workers = options.decode_workers = 1;
  options.decode_flags = {"--max-num-seqs", "1"};
  ProcessCluster* cluster = run.StartCluster(options);
  if (cluster == nullptr) return;
  const std::vector<Case> cases = run.Cases(50, {200, 400, 5, 10});
  const int count = run.Count(1000, 3);
  for (int i = 0; i < count && run.result().passed(); ++i) {
    absl::Notification held;
    cluster->proxy().Arm(kKvToDecode, 2'000, [&](const std::string&, const std::string&) {
      held.Notify();
      return TripEnd::kHold;
    });
    CancelledRequest first(run, *cluster, cases[i % cases.size()]);
    std::thread first_client([&] { first.Run(); });
    if (!held.WaitForNotificationWithTimeout(absl::Seconds(20))) run.Fail("nothing was held");
    CancelledRequest second(run, *cluster, cases[(i + 1) % cases.size()]);
    std::thread second_client([&] { second.Run(); });
    if (!AwaitQueued(*cluster)) run.Fail("the second request did not wait");
    second.Cancel();
    second_client.join();
    first.Cancel();
    first_client.join();
    cluster->proxy().Heal();
    run.AwaitFreed(std::max(first.over_at(), second.over_at()));
    run.Injected();
  }
  run.Judge();
}

}  // namespace

std::vector<Row> CancelRows() {
  const auto row = [](const std::string& name, const std::string& point, void (*body)(RowRun&)) {
    return Row{"cancel_" + name, "cancel at each of 9 points of the life cycle: " + point, "1,000",
               "both roles freed ≤ 1 s; free + active + cached + held = total", body};
  };
  return {
      row("at_once", "as soon as it is sent", AtOnce),
      row("in_queue", "waiting for admission at the decode worker", InTheQueue),
      row("on_the_wire", "admitted, on its way to the prefill worker", OnTheWire),
      row("computing", "while the prompt is computed", WhileComputing),
      row("transfer_0", "at the first frame of the transfer", InTransfer<0>),
      row("transfer_50", "at half of the transfer", InTransfer<50>),
      row("transfer_99", "before the commit", InTransfer<99>),
      row("first_token", "at the first token", AtFirstToken),
      row("decoding", "between later tokens", WhileDecoding),
  };
}

}  // namespace baton::testing
