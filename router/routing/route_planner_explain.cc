// The part of RoutePlanner that records why a pair was chosen.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "router/routing/decode_price.h"
#include "router/routing/route_planner.h"

namespace baton::router {
namespace {

constexpr double kNotCompared = std::numeric_limits<double>::infinity();

// The indexes of the cheapest, in order of their costs, with the costs; the chosen one always among
// them, -1: none.
absl::InlinedVector<std::pair<double, int>, kMaxExplainedCandidates> Cheapest(
    const CostColumn& costs, int chosen) {
  absl::InlinedVector<std::pair<double, int>, kMaxExplainedCandidates> cheapest;
  const auto insert = [&cheapest](std::pair<double, int> entry) {
    ptrdiff_t at = 0;  // counted, not searched: where it belongs cannot be guessed
    for (const auto& [cost, i] : cheapest) {
      at += static_cast<int>(cost < entry.first) |
            (static_cast<int>(cost == entry.first) & static_cast<int>(i < entry.second));
    }
    cheapest.push_back(entry);
    std::move_backward(cheapest.begin() + at, cheapest.end() - 1, cheapest.end());
    cheapest[static_cast<size_t>(at)] = entry;
  };
  constexpr size_t kOthers = kMaxExplainedCandidates - 1;
  // The chosen one may be among the cheapest.
  costs.ForEachUpTo(costs.BoundOf<kOthers + 1>(), [&](size_t i) {
    if (static_cast<int>(i) == chosen || costs[i] == kNotCompared) return true;
    const bool full = cheapest.size() == kOthers;
    if (full && costs[i] >= cheapest.back().first) return true;
    if (full) cheapest.pop_back();
    insert({costs[i], static_cast<int>(i)});
    return cheapest.size() < kOthers || cheapest.back().first > costs.least();
  });
  if (chosen >= 0) insert({costs[static_cast<size_t>(chosen)], chosen});
  return cheapest;
}

int CachedTokens(const RouteQuery& query, const Candidate& c) {
  return std::min(query.prompt_tokens, c.matched_blocks * query.block_tokens);
}

}  // namespace

std::shared_ptr<Decision> RoutePlanner::Explain(const RouteQuery& query, const Route& route,
                                                const Pair& pair, const Candidates& prefill,
                                                absl::Span<const Candidate> decode) const {
  auto why = std::make_shared<Decision>();
  why->prompt_tokens = query.prompt_tokens;
  why->computes = route.computes.worker;
  why->answers = route.answers.worker;
  why->computes_address = route.computes.address;
  why->answers_address = route.answers.address;
  why->label = pair.decision;
  why->policy = policy_.name();
  if (pair.prefill && !pair.lent) why->kappa = pair.pricing.Price(*pair.prefill);
  why->prefill_candidates = prefill.size();
  why->decode_candidates = static_cast<int>(decode.size());
  // What it loads before it begins is in its cache by then.
  why->predicted_cached_tokens =
      CachedTokens(query, pair.computes()) + pair.computes().tier_blocks * query.block_tokens;
  why->predicted_ttft_seconds = absl::ToDoubleSeconds(route.predicted_ttft);
  why->spilled = route.spilled;
  why->candidates.reserve(2 * kMaxExplainedCandidates);
  ExplainPrefill(query, pair, prefill, why.get());
  if (pair.lent) {
    DecisionCandidate& lender = ExplainOne(query, *pair.prefill, /*computes=*/true, why.get());
    lender.transfer_seconds = KvMove(query, pair.decode).SecondsFrom(*pair.prefill);
    lender.cost = ComputeForAnother(query, *pair.prefill, pair.decode);
  }
  ExplainDecode(query, pair, decode, why.get());
  return why;
}

std::optional<absl::Duration> RoutePlanner::PrefillTime(int worker, int tokens,
                                                        int cached_tokens) const {
  absl::MutexLock lock(&mutex_);
  const std::optional<LinearCost> cost = fleet_.PrefillCost(worker);
  if (!cost) return std::nullopt;
  return absl::Seconds(cost->Prefill(tokens, cached_tokens));
}

void RoutePlanner::ExplainPrefill(const RouteQuery& query, const Pair& pair,
                                  const Candidates& prefill, Decision* why) const {
  std::optional<KvMove> to_chosen;
  if (query.links != nullptr && pair.prefill && !pair.prefill_alone()) {
    to_chosen.emplace(query, pair.decode);
  }
  const auto transfer_s = [&](int i) {
    return to_chosen ? to_chosen->SecondsFrom(prefill.worker(i), pair.hidden_s) : 0;
  };
  thread_local CostColumn computed, moved;  // for their memory
  const CostColumn* column = pair.prefill_costs;
  if (column == nullptr) {
    pair.pricing.Costs(prefill, &computed);
    computed.Seal();
    column = &computed;
  }
  if (to_chosen && pair.moved_costs != nullptr) {
    column = pair.moved_costs;
  } else if (to_chosen) {
    to_chosen->AddTo(column->all(), prefill, pair.hidden_s, &moved);
    moved.Seal();
    column = &moved;
  }
  for (const auto& [cost, i] : Cheapest(*column, prefill.Find(why->computes))) {
    DecisionCandidate& explained = ExplainOne(query, prefill[i], /*computes=*/true, why);
    explained.transfer_seconds = transfer_s(i);
    explained.cost = cost;
  }
}

void RoutePlanner::ExplainDecode(const RouteQuery& query, const Pair& pair,
                                 absl::Span<const Candidate> decode, Decision* why) const {
  const bool computes = !pair.prefill;
  const Candidate* prefill = computes ? nullptr : &*pair.prefill;
  const auto chosen = std::find_if(decode.begin(), decode.end(),
                                   [why](const Candidate& c) { return c.worker == why->answers; });
  const int at = chosen == decode.end() ? -1 : static_cast<int>(chosen - decode.begin());
  thread_local CostColumn column;  // for its memory
  const absl::Span<double> costs = column.Resize(decode.size());
  const std::vector<double>* known = computes ? nullptr : pair.decode_costs;
  for (size_t i = 0; i < decode.size(); ++i) {
    if (known == nullptr) {
      costs[i] = PriceDecode(query, decode[i], /*alone=*/computes, prefill).total();
    } else {
      costs[i] = std::isnan((*known)[i]) ? kNotCompared : (*known)[i];
    }
  }
  column.Seal();
  for (const auto& [cost, i] : Cheapest(column, at)) {
    const Candidate& c = decode[i];
    if (pair.lent && c.worker == why->computes) continue;  // it is there as the lender
    DecisionCandidate& explained = ExplainOne(query, c, computes, why);
    if (query.links != nullptr && prefill != nullptr) {
      explained.transfer_seconds = KvMove(query, c).SecondsFrom(*prefill);
    }
    explained.cost = cost;
    const bool no_room = c.free_blocks < query.PagesBeside(c.matched_blocks);
    if (!computes && no_room) explained.excluded = "no room";
  }
}

DecisionCandidate& RoutePlanner::ExplainOne(const RouteQuery& query, const Candidate& c,
                                            bool computes, Decision* why) const {
  const Worker& worker = workers_[c.worker];
  DecisionCandidate& explained = why->candidates.emplace_back();
  explained.worker = c.worker;
  explained.role = worker.role;
  explained.address = worker.target.address;
  explained.pool = pools_.name(worker.pool);
  explained.cached_tokens = CachedTokens(query, c);
  explained.tier_tokens = computes ? c.tier_blocks * query.block_tokens : 0;
  explained.queue_seconds = computes ? c.wait_s() : c.queue_s;
  explained.service_seconds =
      computes ? c.computing_s() : DecodeStepSeconds(c, 1, query.prompt_tokens);
  if (!health_.WorkerUsable(c.worker)) explained.excluded = "failed lately";
  return explained;
}

}  // namespace baton::router
