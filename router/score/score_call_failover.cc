// The part of ScoreCall that sends batches to prefill workers, and sends what they lose elsewhere.
//
// An item is answered once: when its result has come it is no part of its batch any more. What is
// left of a batch that ends goes to another worker, as a new request of Generate would: losses with
// a dead worker, and refusals by a draining one, are free; other losses are charged to the retry
// budget, one batch as one sequence. After kMaxLosses losses an item has the error as its result. A
// full worker is asked again after a pause; a call of which no item was ever scored fails with the
// second refusal.
#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "router/fleet/roster.h"
#include "router/metrics.h"
#include "router/options.h"
#include "router/request/generate_call.h"
#include "router/request/retry_budget.h"
#include "router/request/worker_error.h"
#include "router/routing/decision_log.h"
#include "router/routing/route_planner.h"
#include "router/score/score_call.h"

namespace baton::router {
namespace {

// More workers than this do not widen the bound on items in flight.
constexpr int kMostWorkers = 16;
// Before a full or draining worker is asked again; doubled with each refusal, up to a bound.
constexpr absl::Duration kPause = absl::Milliseconds(200);
constexpr int kMaxPauseDoublings = 3;

}  // namespace

void ScoreCall::Dispatch() {
  while (!ready_.empty() && parts_.clock.SinceStart() >= not_before_ && PayForRetries()) {
    const size_t bound = static_cast<size_t>(kItemsInFlight) * prefill_workers_;
    if (in_flight_ >= bound) return;
    const absl::Status opened = OpenBatch();
    if (opened.ok()) {
      no_worker_since_.reset();
      continue;
    }
    const bool may_wait = scored_any_ || lost_worker_ || refusals_ + drains_ > 0;
    if (!absl::IsUnavailable(opened) || !may_wait) return Fail(opened);
    if (!no_worker_since_) no_worker_since_ = parts_.clock.SinceStart();
    return;
  }
}

absl::Status ScoreCall::OpenBatch() {
  size_t count = std::min<size_t>(ready_.size(), kItemsPerBatch);
  int shared = ready_.front().prompt.prefix_tokens;
  int64_t tokens = 0;
  for (size_t i = 0; i < count; ++i) {
    shared = std::min(shared, ready_[i].prompt.prefix_tokens);
    tokens += static_cast<int64_t>(ready_[i].prompt.tokens.size());
  }
  RouteRequest wanted;
  wanted.model_fingerprint = model_.fingerprint;
  wanted.keys = prefix_keys_;
  wanted.prompt_tokens =
      static_cast<int>(tokens - static_cast<int64_t>(count - 1) * shared);  // the prefix once
  wanted.max_answer_tokens = 1;
  wanted.avoid = avoid_;
  wanted.avoided_prefill_may_do = refusals_ > 0;
  wanted.workers = RouteRequest::Workers::kPrefill;
  wanted.explain = true;
  wanted.may_refuse = !scored_any_ && !lost_worker_;
  absl::StatusOr<Route> route = parts_.planner.Choose(wanted);
  if (!route.ok()) return route.status();
  Batch batch;
  batch.route = *std::move(route);
  prefill_workers_ = std::clamp(batch.route.why->prefill_candidates, 1, kMostWorkers);
  batch.route.why->request_id = request_id_;
  batch.route.why->time = parts_.clock.Now();
  parts_.decisions.Add(std::move(batch.route.why));
  parts_.metrics.Routed(batch.route.decision, parts_.planner.policy_name());
  parts_.retry_budget.OnRequest(1);

  internal::v1::ScoreItemsRequest request;
  request.set_request_id(request_id_);
  request.set_model_fingerprint(model_.fingerprint);
  request.set_prefill_epoch(batch.route.decode.epoch);
  request.set_cache_salt(settings_.request.cache_salt());
  request.set_priority(settings_.request.priority());
  request.set_tenant(settings_.request.tenant());
  const std::vector<int32_t>& first = ready_.front().prompt.tokens;
  request.mutable_prefix()->Assign(first.begin(), first.begin() + shared);
  for (size_t i = 0; i < count; ++i) {
    Item item = std::move(ready_.front());
    ready_.pop_front();
    internal::v1::ScoreItemsRequest::Item* sent = request.add_items();
    sent->mutable_tokens()->Assign(item.prompt.tokens.begin() + shared, item.prompt.tokens.end());
    for (const std::vector<int32_t>& label : item.prompt.labels) {
      sent->add_labels()->mutable_tokens()->Assign(label.begin(), label.end());
    }
    batch.items.emplace_back(std::move(item));
  }
  batch.open = count;
  in_flight_ += count;
  const WorkerTarget& target = batch.route.decode;
  if (!absl::c_linear_search(holds_, target.hold)) holds_.push_back(target.hold);
  BATON_REQUEST_LOG(Debug, request_id_, caller_.trace)
      << count << " items to " << target.address << " (" << batch.route.matched_blocks
      << " blocks cached)";
  const int stream = next_stream_++;
  batch.handle = parts_.score_network->Open(target.worker, std::move(request), caller_.trace,
                                            deadline_, shared_from_this(), stream);
  batches_.emplace(stream, std::move(batch));
  return absl::OkStatus();
}

void ScoreCall::EndBatch(Batch batch) {
  if (!batch.returned.empty()) {
    const absl::Status error = batch.refusal;
    return OnBatchLost(std::move(batch), error);
  }
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
  Batch batch = std::move(found->second);
  batches_.erase(found);
  BATON_REQUEST_LOG(Warning, request_id_, caller_.trace)
      << "lost " << batch.open << " items at prefill worker " << batch.route.decode.address << ": "
      << status.error_message() << " (code " << status.error_code() << ")";
  OnBatchLost(std::move(batch), FromWorker(status));
}

void ScoreCall::OnBatchLost(Batch batch, const absl::Status& error) {
  if (absl::IsDeadlineExceeded(error)) return Fail(error);
  const Blame blame = BlameFor(error);
  parts_.planner.OnRouteFailed(batch.route, blame);
  const bool refused = IsRefusal(error);
  const bool drains = ErrorReason(error) == "DRAINING";
  const bool again = AnotherPairMayDo(error, /*begun=*/true);
  std::vector<Item> left;
  const auto take = [&](Item item) {
    mutex_.AssertHeld();
    if (!refused && !drains) ++item.losses;
    if (again && item.losses < kMaxLosses) {
      left.push_back(std::move(item));
    } else {
      AnswerError(item, error);
    }
  };
  in_flight_ -= batch.open;
  for (std::optional<Item>& item : batch.items) {
    if (item) take(*std::move(item));
  }
  for (Item& item : batch.returned) take(std::move(item));
  if (!left.empty()) {
    parts_.metrics.RequestRetried(ErrorReason(error));
    const WorkerTarget& worker = batch.route.decode;
    const absl::Duration now = parts_.clock.SinceStart();
    avoid_.push_back(worker.incarnation());
    avoid_until_ = now + kSameWorkerPause;
    if (refused) {
      ++refusals_;
      if (refusals_ > 1 && !scored_any_ && !lost_worker_) return Fail(error);
      if (refusals_ > 1) {
        not_before_ = now + kPause * (1 << std::min(refusals_ - 2, kMaxPauseDoublings));
      }
    } else if (drains) {
      if (++drains_ > 1) not_before_ = now + kPause;
    } else {
      lost_worker_ = true;
      owed_.push_back(worker);
    }
    GiveBack(std::move(left));
  }
  Dispatch();
  if (sink_ == nullptr) return;
  PrepareMore();
  FinishIfDone();
}

void ScoreCall::GiveBack(std::vector<Item> items) {
  absl::c_sort(items, [](const Item& a, const Item& b) { return a.number < b.number; });
  ready_.insert(ready_.begin(), std::make_move_iterator(items.begin()),
                std::make_move_iterator(items.end()));
}

bool ScoreCall::PayForRetries() {
  const auto dead = [this](const WorkerTarget& target) { return parts_.roster.LooksDead(target); };
  const auto living = std::stable_partition(owed_.begin(), owed_.end(), dead);
  const int orphaned = static_cast<int>(living - owed_.begin());
  if (orphaned > 0) parts_.metrics.OrphanedByDeath(orphaned);
  owed_.erase(owed_.begin(), living);
  const absl::Duration now = parts_.clock.SinceStart();
  while (!owed_.empty() && parts_.retry_budget.TryTake(1)) {
    parts_.retry_budget.Charged(1, {owed_.back().incarnation()}, now);
    owed_.pop_back();
  }
  if (owed_.empty()) {
    unpaid_since_.reset();
  } else if (!unpaid_since_) {
    unpaid_since_ = now;
  }
  return owed_.empty();
}

absl::Status ScoreCall::CheckWaitBounds() const {
  if (parts_.clock.Now() >= deadline_) return DeadlinePassed();
  const absl::Duration now = parts_.clock.SinceStart();
  const absl::Duration bound = absl::Milliseconds(parts_.options.failover_wait_ms);
  if (no_worker_since_ && now - *no_worker_since_ >= bound) return LostWorker("WORKER_LOST");
  if (unpaid_since_ && now - *unpaid_since_ >= bound) {
    parts_.metrics.RetryBudgetExhausted();
    return WithRetryAfter(
        MakeError(absl::StatusCode::kUnavailable, "RETRY_BUDGET_EXHAUSTED",
                  "items were lost, though their worker lives, and so were too many others"),
        absl::Seconds(1));
  }
  return absl::OkStatus();
}

void ScoreCall::OnTick() {
  absl::MutexLock lock(&mutex_);
  if (sink_ == nullptr) return;
  std::vector<int> lost;
  for (const auto& [stream, batch] : batches_) {
    if (!parts_.roster.MayLive(batch.route.decode)) lost.push_back(stream);
  }
  for (const int stream : lost) {
    if (sink_ == nullptr) return;
    const auto found = batches_.find(stream);
    Batch batch = std::move(found->second);
    batches_.erase(found);
    batch.handle->Cancel();
    OnBatchLost(std::move(batch), LostWorker("WORKER_EXPIRED"));
  }
  if (sink_ == nullptr) return;
  if (!avoid_.empty() && parts_.clock.SinceStart() >= avoid_until_) avoid_.clear();
  if (absl::Status over = CheckWaitBounds(); !over.ok()) return Fail(over);
  Dispatch();
  if (sink_ != nullptr) PrepareMore();
}

}  // namespace baton::router
