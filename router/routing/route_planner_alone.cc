// The part of RoutePlanner that chooses one worker for all of a request's work: of scoring, answers
// of one token and warm prefixes.
#include "absl/time/time.h"
#include "common/base/error.h"
#include "router/routing/route_planner.h"

namespace baton::router {
namespace {

absl::Status NoPrefillWorker(bool to_score) {
  return WithRetryAfter(
      MakeError(absl::StatusCode::kUnavailable, "NO_PREFILL_WORKER",
                to_score ? "no worker that scores is ready that was not tried: neither a prefill "
                           "worker nor a decode worker that can score"
                         : "no prefill worker is ready that was not tried"),
      absl::Seconds(1));
}

}  // namespace

absl::Status RoutePlanner::CollectAlone(const RouteRequest& request, absl::Span<const int> depths,
                                        absl::Duration now, Candidates* found) const {
  const auto keep = [&](const auto& wanted) {
    mutex_.AssertReaderHeld();
    found->KeepIf([&](int i) { return wanted(found->worker(i)); });
    return !found->empty();
  };
  const bool scores = request.workers == RouteRequest::Workers::kScore;
  const auto takes = [&](int worker) {
    mutex_.AssertReaderHeld();
    return request.pinned() ? ProcessAt(worker) == request.only : workers_[worker].scores;
  };
  CollectPrefill(request, depths, now, found);
  if (!request.pinned() && !scores) {
    return found->empty() ? NoPrefillWorker(scores) : absl::OkStatus();
  }
  if (keep(takes)) return absl::OkStatus();
  Collect(v1::WORKER_ROLE_DECODE, /*suspect=*/false, request, depths, now, found);
  if (keep(takes)) return absl::OkStatus();
  if (!request.pinned()) return NoPrefillWorker(scores);
  return MakeError(absl::StatusCode::kUnavailable, "NO_WORKER", "the worker takes no requests now");
}

RoutePlanner::Pair RoutePlanner::ChooseAlone(const RouteQuery& query,
                                             const Candidates& prefill) const {
  const RouteChoice choice = policy_.Choose(query, prefill, {});
  Candidate none;
  none.worker = kNoWorker;
  return {prefill[choice.prefill], none, choice.decision, choice.pricing, 0, choice.prefill_costs};
}

}  // namespace baton::router
