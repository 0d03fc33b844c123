// The part of ScoreCall that sends batches to workers that score, and sends what they lose
// elsewhere.
//
// An item is answered once: when its result has come it is no part of its batch any more. What is
// left of a batch that ends goes to another worker by the rules of retry_ledger.h, where one batch
// counts as one sequence. An item that is lost too often (loss_record.h) has the error as its
// result. A worker that lives and sends neither results nor heartbeats for a batch has lost it.
#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "router/fleet/roster.h"
#include "router/metrics.h"
#include "router/options.h"
#include "router/request/retry_budget.h"
#include "router/request/retry_ledger.h"
#include "router/request/worker_error.h"
#include "router/routing/decision_log.h"
#include "router/routing/route_planner.h"
#include "router/score/score_call.h"

namespace baton::router {
namespace {

// More workers than this do not widen the bound on items in flight.
constexpr int kMostWorkers = 16;
// A call has so many batches in flight, so that workers do not wait for its next one.
constexpr int kBatchesInFlight = 4;

}  // namespace

void ScoreCall::Dispatch() {
  const absl::Duration now = parts_.awake.SinceStart();
  DropUnclear();
  if (sink_ == nullptr) return;
  if (ready_.empty()) return retries_.StopWaiting();
  while (!ready_.empty() && retries_.Due(now)) {
    if (!DispatchBatch(now)) break;
  }
  if (sink_ == nullptr) return;
  if (const absl::Status over = retries_.Over(retry_, now); !over.ok()) Fail(over);
}

bool ScoreCall::DispatchBatch(absl::Duration now) {
  const Cut cut = NextCut();
  if (cut.items == 0) return false;
  auto admitted = parts_.admission.TryAddFurther(cut.tokens, /*always=*/batches_.empty());
  if (!admitted) return false;  // OnTick tries again
  RetryLedger::Pay({&retries_}, /*any_ready=*/true, retry_, now);
  if (!retries_.MayOpen(now)) return false;
  const absl::Status opened = OpenBatch(cut, *std::move(admitted));
  if (opened.ok()) {
    retries_.OnOpened(retry_, now);
    return true;
  }
  retries_.OnNotOpened(retry_, now);
  // A call that runs waits, also before its first result.
  const bool may_wait =
      retries_.MayWait() || !batches_.empty() || parts_.roster.Awaited(v1::WORKER_CAPABILITY_SCORE);
  if (absl::IsUnavailable(opened) && may_wait) {
    retries_.OnNoWorker(now, opened);
  } else {
    Fail(opened);
  }
  return false;
}

ScoreCall::Cut ScoreCall::NextCut() const {
  const double share = share_.fraction() * prefill_workers_;
  const double most_items = kItemsInFlight * share;
  const double most_tokens = static_cast<double>(kTokensInFlight) * share;
  Cut cut;
  if (in_flight_ > 0 && (static_cast<double>(in_flight_) >= most_items ||
                         static_cast<double>(tokens_in_flight_) >= most_tokens)) {
    return cut;
  }
  const size_t batch_items = std::clamp<size_t>(static_cast<size_t>(most_items / kBatchesInFlight),
                                                1, std::min<size_t>(kItemsPerBatch, ready_.size()));
  const auto batch_tokens =
      std::min(kTokensPerBatch, static_cast<int64_t>(most_tokens / kBatchesInFlight));
  cut.shared = ready_.front().prompt.prefix_tokens;
  int64_t whole = 0;
  int64_t behind_prefix = 0;
  for (; cut.items < batch_items; ++cut.items) {
    const ItemPrompt& prompt = ready_[cut.items].prompt;
    const int size = static_cast<int>(prompt.tokens.size());
    behind_prefix += size - prompt.prefix_tokens;
    if (cut.items > 0 && behind_prefix > batch_tokens) break;
    whole += size;
    cut.shared = std::min(cut.shared, prompt.prefix_tokens);
    cut.longest_prompt = std::max(cut.longest_prompt, size);
    for (const auto& label : prompt.labels) cut.label_tokens += static_cast<int>(label.size()) - 1;
  }
  cut.tokens = whole - static_cast<int64_t>(cut.items) * cut.shared;
  return cut;
}

absl::Status ScoreCall::OpenBatch(const Cut& cut, Admission::FurtherPrompt admitted) {
  RouteRequest wanted;
  wanted.model_fingerprint = model_.fingerprint;
  wanted.keys = prefix_keys_;
  // The prefix once.
  wanted.prompt_tokens = static_cast<int>(cut.shared + cut.tokens + cut.label_tokens);
  wanted.LimitTo(cut.longest_prompt, model_.block_tokens);
  wanted.max_answer_tokens = 1;
  retries_.Ask(&wanted);
  // Only the first batch is what the caller waits for: the others wait behind it, and each other.
  wanted.may_refuse = wanted.may_refuse && !dispatched_;
  wanted.workers = RouteRequest::Workers::kScore;
  wanted.explain = true;
  wanted.pool = PoolFor(class_, parts_.options, cut.longest_prompt);
  wanted.spill = class_.spill;
  wanted.ttft_slo = class_.ttft_slo;
  absl::StatusOr<Route> route = parts_.planner.Choose(wanted);
  if (!route.ok()) return route.status();
  Batch batch;
  batch.route = *std::move(route);
  batch.tokens = cut.tokens;
  batch.admitted = std::move(admitted);
  prefill_workers_ = std::clamp(batch.route.why->prefill_candidates, 1, kMostWorkers);
  batch.route.why->request_id = request_id_;
  batch.route.why->time = parts_.clock.Now();
  parts_.decisions.Add(std::move(batch.route.why));
  parts_.metrics.Routed(batch.route.decision, parts_.planner.policy_name());
  for (const v1::WorkerRole role : batch.route.spilled) parts_.metrics.PoolSpilled(role);
  const absl::Duration now = parts_.clock.SinceStart();
  if (!std::exchange(dispatched_, true)) {
    parts_.metrics.Dispatched(now - received_, settings_.request.priority());
  }
  parts_.retry_budget.OnRequest(1);

  internal::v1::ScoreItemsRequest request;
  request.set_request_id(request_id_);
  request.set_model_fingerprint(model_.fingerprint);
  request.set_prefill_epoch(batch.route.answers.epoch);
  request.set_cache_salt(settings_.request.cache_salt());
  request.set_priority(settings_.request.priority());
  request.set_tenant(settings_.request.tenant());
  request.set_embed(dimensions_ > 0);
  const std::vector<int32_t>& first = ready_.front().prompt.tokens;
  request.mutable_prefix()->Assign(first.begin(), first.begin() + cut.shared);
  for (size_t i = 0; i < cut.items; ++i) {
    Item item = std::move(ready_.front());
    ready_.pop_front();
    internal::v1::ScoreItemsRequest::Item* sent = request.add_items();
    sent->mutable_tokens()->Assign(item.prompt.tokens.begin() + cut.shared,
                                   item.prompt.tokens.end());
    for (const std::vector<int32_t>& label : item.prompt.labels) {
      sent->add_labels()->mutable_tokens()->Assign(label.begin(), label.end());
    }
    batch.items.emplace_back(std::move(item));
  }
  batch.open = cut.items;
  in_flight_ += cut.items;
  tokens_in_flight_ += cut.tokens;
  batch.sent_at = batch.last_message = parts_.awake.SinceStart();
  // A long step of the worker sends nothing.
  batch.patience =
      absl::Milliseconds(parts_.options.stall_timeout_ms) + 2 * batch.route.predicted_ttft;
  const WorkerTarget& target = batch.route.answers;
  if (!absl::c_linear_search(holds_, target.hold)) holds_.push_back(target.hold);
  BATON_REQUEST_LOG(Debug, request_id_, trace_.context())
      << cut.items << " items to " << target.address << " (" << batch.route.matched_blocks
      << " blocks cached)";
  const int stream = next_stream_++;
  const TraceContext trace = trace_.Opened(stream, batch.route, static_cast<int>(cut.items), now);
  batch.handle = parts_.score_network->Open(target.worker, std::move(request), trace, deadline_,
                                            shared_from_this(), stream);
  batches_.emplace(stream, std::move(batch));
  return absl::OkStatus();
}

void ScoreCall::EndBatch(int stream) {
  if (const Batch& batch = batches_.at(stream); !batch.returned.empty()) {
    return OnBatchLost(stream, absl::Status(batch.refusal));
  }
  Batch batch = std::move(batches_.at(stream));
  batches_.erase(stream);
  tokens_in_flight_ -= batch.tokens;
  batch.admitted->Computed();
  trace_.BatchDone(stream, parts_.clock.SinceStart());
  parts_.planner.OnFirstToken(batch.route);
  parts_.planner.OnRouteWorked(batch.route, /*kv_moved=*/false);
  Dispatch();
  if (sink_ == nullptr) return;
  PrepareMore();
  FinishIfDone();
}

void ScoreCall::OnStreamEnd(int stream, const grpc::Status& status) {
  absl::MutexLock lock(&mutex_);
  const auto found = batches_.find(stream);
  if (sink_ == nullptr || found == batches_.end()) return;
  const Batch& batch = found->second;
  BATON_REQUEST_LOG(Warning, request_id_, trace_.context())
      << "lost " << batch.open << " items at worker " << batch.route.answers.address << ": "
      << status.error_message() << " (code " << status.error_code() << ")";
  OnBatchLost(stream, FromWorker(status));
}

void ScoreCall::OnBatchLost(int stream, const absl::Status& error) {
  Batch batch = std::move(batches_.at(stream));
  batches_.erase(stream);
  tokens_in_flight_ -= batch.tokens;
  batch.admitted.reset();
  trace_.BatchLost(stream, error, parts_.clock.SinceStart());
  if (absl::IsDeadlineExceeded(error)) return Fail(error);
  const absl::Duration now = parts_.awake.SinceStart();
  const StreamEnd end(error, batch.route, batch.heard, batch.sent_at, now);
  parts_.planner.OnRouteFailed(batch.route, BlameNow(parts_.awake, end.blame));
  const bool again = AnotherPairMayDo(error, /*begun=*/true);
  bool unclear = false;
  std::vector<Item> left;
  const auto take = [&](Item item) {
    mutex_.AssertHeld();
    item.losses.Add(end, parts_.roster);
    absl::Status over = item.losses.Verdict(parts_.roster, now);
    if (over.ok() && !again) over = error;
    if (sink_ == nullptr) return;
    if (!over.ok()) return AnswerError(item, over);
    unclear = unclear || item.losses.unclear();
    left.push_back(std::move(item));
  };
  in_flight_ -= batch.open;
  for (std::optional<Item>& item : batch.items) {
    if (item) take(*std::move(item));
  }
  for (Item& item : batch.returned) take(std::move(item));
  if (sink_ == nullptr) return;  // an error of one item was the call's answer
  if (!left.empty()) {
    parts_.metrics.RequestRetried(ErrorReason(error));
    trace_.Retried(ErrorReason(error), parts_.clock.SinceStart());
    retries_.OnEnd(end, /*sequences=*/1, unclear, parts_.roster);
    unclear_ = unclear_ || unclear;
    // They wait for a worker again, before those that came later.
    absl::c_sort(left, [](const Item& a, const Item& b) { return a.number < b.number; });
    ready_.insert(ready_.begin(), std::make_move_iterator(left.begin()),
                  std::make_move_iterator(left.end()));
  }
  Dispatch();
  if (sink_ == nullptr) return;
  PrepareMore();
  FinishIfDone();
}

void ScoreCall::DropUnclear() {
  if (!std::exchange(unclear_, false)) return;
  std::deque<Item> left;
  for (Item& item : std::exchange(ready_, {})) {
    const absl::Status over = item.losses.Verdict(parts_.roster, parts_.awake.SinceStart());
    if (!over.ok()) {
      AnswerError(item, over);
      if (sink_ == nullptr) return;  // that was the call's answer
    } else {
      unclear_ = unclear_ || item.losses.unclear();
      left.push_back(std::move(item));
    }
  }
  ready_ = std::move(left);
}

void ScoreCall::OnTick() {
  absl::MutexLock lock(&mutex_);
  CheckReader(parts_.clock.SinceStart());
  if (sink_ == nullptr) return;
  const absl::Duration now = parts_.awake.SinceStart();
  std::vector<std::pair<int, absl::Status>> lost;
  for (const auto& [stream, batch] : batches_) {
    const ProcessLife life = parts_.roster.LifeOf(batch.route.answers, batch.heard_at);
    if (now - batch.last_message > batch.patience) {
      lost.emplace_back(stream, LostWorker("WORKER_STALLED"));
    } else if (life != ProcessLife::kLives) {
      lost.emplace_back(
          stream, LostWorker(life == ProcessLife::kGone ? "WORKER_EXPIRED" : "WORKER_SUSPECT"));
    }
  }
  for (const auto& [stream, error] : lost) {
    if (sink_ == nullptr) return;
    const Batch& batch = batches_.at(stream);
    BATON_REQUEST_LOG(Warning, request_id_, trace_.context())
        << batch.open << " items leave worker " << batch.route.answers.address << ": "
        << ErrorReason(error);
    batch.handle->Cancel();
    OnBatchLost(stream, error);
  }
  if (sink_ == nullptr) return;
  if (parts_.clock.Now() >= deadline_) return Fail(DeadlinePassed());
  retries_.AvoidNoneAfterPause(now);
  Dispatch();
  if (sink_ == nullptr) return;
  PrepareMore();
  FinishIfDone();
}

}  // namespace baton::router
