// Row: frames of KV transfers that are not what was sent.
#include <atomic>
#include <cstdio>
#include <map>
#include <thread>

#include "absl/algorithm/container.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/error.h"
#include "tests/cluster/faults/frame_faults.h"
#include "tests/cluster/faults/frame_proxy.h"
#include "tests/cluster/faults/row.h"
#include "tests/cluster/faults/worker_face.h"
#include "tests/testing/metrics_scrape.h"
#include "tests/testing/worker_client.h"

namespace baton::testing {
namespace {

constexpr int kClients = 3;

struct KindCount {
  int64_t sent = 0, refused = 0, harmless = 0, token_first = 0;
};

// Sends request `i` with the fault of its number, and judges what comes.
class FrameJudge {
 public:
  FrameJudge(RowRun& run, ProcessCluster& cluster, const WorkerFace& prefill,
             const WorkerFace& decode, const std::vector<Case>& cases)
      : run_(run), cluster_(cluster), prefill_(prefill), decode_(decode), cases_(cases) {}

  void Ask(int i, const FrameFaultKind* kind) {
    const Case& c = cases_[i % cases_.size()];
    internal::v1::DecodeRequest request = MakeDecodeRequest(prefill_, decode_, c.prompt, c.sampling,
                                                            static_cast<int>(c.expected.size()));
    request.set_request_id(absl::StrCat(i));
    request.set_cache_salt(NewSalt());
    const DecodeResult result = Decode(cluster_.channel("decode-0"), request);
    Answer answer;
    answer.status = result.status;
    answer.tokens = result.tokens;
    if (result.finish == internal::v1::DecodeResponse::FINISH_LENGTH) {
      answer.finish = baton::v1::FINISH_REASON_LENGTH;
    }
    const Tally::Verdict verdict = run_.tally().Count(c, answer);
    absl::MutexLock lock(&mutex_);
    if (kind == nullptr) {
      if (verdict != Tally::Verdict::kRight) {
        run_.Fail(absl::StrCat("without a fault: ", result.status.ToString()));
      }
      return;
    }
    KindCount& count = counts_[kind->name];
    ++count.sent;
    count.refused += verdict == Tally::Verdict::kError;
    count.harmless += verdict == Tally::Verdict::kRight;
    count.token_first += verdict == Tally::Verdict::kError && !result.tokens.empty();
    const std::string what = absl::StrCat(kind->name, ", request ", i, ": ");
    if (verdict == Tally::Verdict::kRight && kind->must_be_refused) {
      ++unnoticed_;
      std::fprintf(stderr, "  %sanswered right\n", what.c_str());
    }
    if (verdict != Tally::Verdict::kError) return;
    if (!absl::c_linear_search(kind->reasons, ErrorReason(result.status))) {
      run_.Fail(absl::StrCat(what, "refused as ", result.status.ToString()));
    }
    // What the prefill worker drew may be out, in a frame that was whole; nothing from its KV.
    if (result.tokens.size() > 1) run_.Fail(absl::StrCat(what, "decoded from unverified KV"));
  }

  // Answered right although the frame had to be refused: only if another transfer made it good.
  int64_t unnoticed() const {
    absl::MutexLock lock(&mutex_);
    return unnoticed_;
  }
  std::map<std::string, KindCount> counts() const {
    absl::MutexLock lock(&mutex_);
    return counts_;
  }

 private:
  RowRun& run_;
  ProcessCluster& cluster_;
  const WorkerFace &prefill_, &decode_;
  const std::vector<Case>& cases_;
  mutable absl::Mutex mutex_;
  std::map<std::string, KindCount> counts_ ABSL_GUARDED_BY(mutex_);
  int64_t unnoticed_ ABSL_GUARDED_BY(mutex_) = 0;
};

void SpoilFrames(RowRun& run) {
  ClusterOptions options;
  options.prefill_workers = options.decode_workers = 1;
  options.routers = 0;
  ProcessCluster* cluster = run.StartCluster(options);
  if (cluster == nullptr) return;
  auto proxy = FrameProxy::Start(cluster->address("prefill-0"), cluster->worker_security());
  if (!proxy.ok()) return run.Fail(proxy.status().ToString());
  const auto prefill = WorkerFace::Of(cluster->channel("prefill-0"), (*proxy)->address());
  const auto decode = WorkerFace::Of(cluster->channel("decode-0"), cluster->address("decode-0"));
  if (!prefill.ok() || !decode.ok()) return run.Fail("no card");
  const std::vector<Case> cases = run.Cases(64, {100, 400, 3, 6});
  FrameJudge judge(run, *cluster, *prefill, *decode, cases);
  for (int i = 0; i < 20; ++i) judge.Ask(i, nullptr);

  const std::vector<FrameFaultKind>& kinds = FrameFaultKinds();
  const uint64_t seed = run.seed();
  (*proxy)->SetFaults([&kinds, seed](const std::string& request_id) -> std::unique_ptr<FrameFault> {
    int i = 0;
    if (!absl::SimpleAtoi(request_id, &i)) return nullptr;
    return MakeFrameFault(kinds[i % kinds.size()], seed * 1'000'003 + i);
  });
  const int count = run.Count(10'000, static_cast<int>(kinds.size()));
  const double failures_before =
      MetricSum(cluster->metrics_address("decode-0"), "baton_kv_transfer_failures_total");
  std::atomic<int> next{0};
  std::vector<std::thread> clients;
  for (int client = 0; client < kClients; ++client) {
    clients.emplace_back([&] {
      for (int i; (i = next.fetch_add(1)) < count;) judge.Ask(i, &kinds[i % kinds.size()]);
    });
  }
  for (std::thread& client : clients) client.join();
  run.AwaitFreed(absl::Now());
  run.result().count = count;

  const double noticed =
      MetricSum(cluster->metrics_address("decode-0"), "baton_kv_transfer_failures_total") -
      failures_before;
  int64_t refused = 0, must = 0, token_first = 0;
  for (const auto& [name, kind] : judge.counts()) {
    refused += kind.refused;
    token_first += kind.token_first;
  }
  for (const FrameFaultKind& kind : kinds) {
    if (kind.must_be_refused) must += judge.counts().at(kind.name).sent;
  }
  // Each fault that had to be found shows in the worker's own count, whatever became of its
  // request.
  run.Require(noticed + 0.5 >= static_cast<double>(must),
              absl::StrCat(must, " faults had to be found, ", noticed, " transfers failed"));
  run.Require(judge.unnoticed() == 0 || noticed >= static_cast<double>(refused + judge.unnoticed()),
              absl::StrCat(judge.unnoticed(), " faults went by unnoticed"));
  run.Measure({"kinds", Measured::Of::kLargest, static_cast<double>(kinds.size()), 0, ""});
  run.MeasureCount("refused", refused);
  run.MeasureCount("harmless and answered right", run.tally().right() - 20);
  run.MeasureCount("of the refused, first token already out", token_first);
  run.Judge(/*allowed_errors=*/refused);
}

}  // namespace

std::vector<Row> FrameRows() {
  return {{"frame_faults",
           "frame bit-flip, truncation, duplicate, reorder, wrong layout/request/epoch", "10,000",
           "100 % found before the first token; 0 wrong outputs", SpoilFrames}};
}

}  // namespace baton::testing
