// ScoreItems: each item is a job; their results share the call's stream and its spans.
#include <deque>
#include <optional>
#include <utility>

#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/rpc/grpc_status.h"
#include "common/base/rpc/server_stream.h"
#include "common/prefill/job_trace.h"
#include "common/prefill/request.h"
#include "common/prefill/service.h"
#include "common/worker/call_gate.h"

namespace baton::prefill {
namespace {

using internal::v1::ScoredItem;

// Bounded by the number of items. The methods are for one thread at a time: the loop's, once it has
// the items.
class ScoredItemStream final : public ServerStream<ScoredItem, ScoredItem> {
 public:
  // `trace` may be null.
  ScoredItemStream(int item_count, std::shared_ptr<JobTrace> trace,
                   std::function<void()> on_peer_gone)
      : unfinished_(item_count), trace_(std::move(trace)), on_peer_gone_(std::move(on_peer_gone)) {
    if (trace_ != nullptr) submitted_at_ = trace_->Now();
  }

  // An item runs.
  void Started() {
    if (trace_ == nullptr || started_at_) return;
    started_at_ = trace_->Now();
    trace_->Started(submitted_at_, *started_at_);
  }
  void Heartbeat(absl::Duration now) {
    if (now == last_heartbeat_) return;  // another item's
    last_heartbeat_ = now;
    ScoredItem heartbeat;
    heartbeat.set_heartbeat(true);
    Push(std::move(heartbeat));
  }
  // The last result of all items ends the stream.
  void Finish(ScoredItem item, int prompt_tokens) {
    prompt_tokens_ += prompt_tokens;
    cached_tokens_ += item.cached_prompt_tokens();
    failed_items_ += item.code() == 0 ? 0 : 1;
    if (--unfinished_ == 0) EndTrace(absl::OkStatus());  // before the router has the last result
    Push(std::move(item));
    if (unfinished_ == 0) ServerStream::Finish(grpc::Status::OK);
  }
  void Refuse(const absl::Status& error) {
    EndTrace(error);
    ServerStream::Finish(ToGrpcStatus(error));
  }

 private:
  void Encode(ScoredItem item, ScoredItem* message) override { *message = std::move(item); }
  // One heartbeat waits at most.
  bool Merge(std::deque<ScoredItem>& waiting, ScoredItem& next) override {
    return next.heartbeat();  // what waits says as much
  }
  void OnPeerGone() override { on_peer_gone_(); }

  void EndTrace(const absl::Status& status) {
    if (trace_ == nullptr) return;
    trace_->root().Set("baton.failed_items", int64_t{failed_items_});
    if (started_at_) {
      trace_->Computed(prompt_tokens_, cached_tokens_, *started_at_, trace_->Now());
    }
    trace_->End(status);
  }

  int unfinished_;
  const std::shared_ptr<JobTrace> trace_;
  const std::function<void()> on_peer_gone_;
  absl::Duration submitted_at_;
  std::optional<absl::Duration> started_at_;
  std::optional<absl::Duration> last_heartbeat_;
  int prompt_tokens_ = 0;
  int cached_tokens_ = 0;
  int failed_items_ = 0;
};

class ItemSink final : public ScoreSink {
 public:
  ItemSink(int index, int prompt_tokens, std::shared_ptr<ScoredItemStream> stream)
      : prompt_tokens_(prompt_tokens), stream_(std::move(stream)) {
    result_.set_item(index);
  }

  void OnStarted() override { stream_->Started(); }
  void OnHeartbeat(absl::Duration now) override { stream_->Heartbeat(now); }
  void OnScores(std::vector<std::vector<float>> labels, int cached_prompt_tokens) override {
    for (const std::vector<float>& logprobs : labels) {
      result_.add_labels()->mutable_logprobs()->Assign(logprobs.begin(), logprobs.end());
    }
    result_.set_cached_prompt_tokens(cached_prompt_tokens);
  }
  void OnEmbedding(std::vector<float> embedding, int cached_prompt_tokens) override {
    result_.mutable_embedding()->Assign(embedding.begin(), embedding.end());
    result_.set_cached_prompt_tokens(cached_prompt_tokens);
  }
  void Finish(const absl::Status& status) override {
    if (!status.ok()) {
      result_.set_code(static_cast<int>(status.code()));
      result_.set_reason(ErrorReason(status));
      result_.set_message(std::string(status.message()));
      if (const auto retry_after = ErrorRetryAfter(status)) {
        result_.set_retry_after_ms(absl::ToInt64Milliseconds(*retry_after));
      }
    }
    stream_->Finish(std::move(result_), prompt_tokens_);
  }

 private:
  const int prompt_tokens_;
  const std::shared_ptr<ScoredItemStream> stream_;
  ScoredItem result_;  // the loop's
};

}  // namespace

grpc::ServerWriteReactor<ScoredItem>* PrefillService::ScoreItems(
    grpc::CallbackServerContext* context, const internal::v1::ScoreItemsRequest* request) {
  const int count = request->items_size();
  const uint64_t first_job = calls_.next_job_id.fetch_add(static_cast<uint64_t>(count));
  const absl::Status allowed = worker::CheckCall(calls_.secret, *context);
  tracing::Tracer* const tracer = allowed.ok() ? calls_.tracer : nullptr;  // strangers record none
  const TraceContext trace_context = tracing::JoinTrace(tracer, TraceOfCall(*context));
  std::shared_ptr<JobTrace> trace =
      JobTrace::Begin(tracer, trace_context, "baton.internal.v1.PrefillService/ScoreItems");
  if (trace != nullptr) {
    trace->root().Set("baton.request.id", request->request_id());
    trace->root().Set("baton.items", int64_t{count});
  }
  auto stream = std::make_shared<ScoredItemStream>(
      count, std::move(trace),
      [this, first_job, count, open = worker::OpenCalls::Count(calls_.open_calls)] {
        for (int i = 0; i < count; ++i) calls_.jobs.Cancel(first_job + static_cast<uint64_t>(i));
      });
  auto* reactor = ScoredItemStream::Open(stream);
  const absl::Status status =
      allowed.ok() ? CheckRequest(*request, calls_.role, calls_.epoch, calls_.engine) : allowed;
  if (!status.ok()) {
    if (allowed.ok()) {  // strangers must not fill the log
      BATON_REQUEST_LOG(Warning, request->request_id(), trace_context)
          << "items of " << context->peer() << " refused: " << status;
    }
    calls_.metrics.Refused(ErrorReason(status));
    stream->Refuse(status);
    return reactor;
  }
  std::vector<std::unique_ptr<PrefillJob>> jobs =
      MakeJobs(*request, absl::FromChrono(context->deadline()), calls_.engine);
  for (int i = 0; i < count; ++i) {
    PrefillJob& job = *jobs[static_cast<size_t>(i)];
    job.id = first_job + static_cast<uint64_t>(i);
    job.trace_context = trace_context;
    job.scoring->sink = std::make_shared<ItemSink>(i, job.size(), stream);
  }
  calls_.jobs.Submit(std::move(jobs));
  return reactor;
}

}  // namespace baton::prefill
