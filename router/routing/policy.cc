#include "router/routing/policy.h"

#include <tuple>
#include <vector>

#include "router/routing/wide_loops.h"

namespace baton::router {
namespace {

// The `turn`-th of so many whose cost is lowest; -1 of none.
template <class CostOf>
int PickLowest(int count, uint64_t turn, CostOf cost_of) {
  if (count == 0) return -1;
  auto lowest = cost_of(0);
  std::vector<int> best = {0};
  for (int i = 1; i < count; ++i) {
    const auto cost = cost_of(i);
    if (lowest < cost) continue;
    if (cost < lowest) best.clear(), lowest = cost;
    best.push_back(i);
  }
  return best[turn % best.size()];
}

// Plain pointers and locals, so that the loop is vectorized.
BATON_WIDE_LOOPS void SetCosts(const Pricing& pricing, const double* __restrict queue_s,
                               const double* __restrict service_s, absl::Span<double> costs) {
  const double highest = pricing.highest, fleet = pricing.fleet, own_queue = pricing.own_queue;
  double* __restrict cost = costs.data();
  for (size_t i = 0; i < costs.size(); ++i) {
    const double congested = fleet + own_queue * queue_s[i];
    const double price = congested < highest ? congested : highest;
    cost[i] = queue_s[i] + (1 + price) * service_s[i];
  }
}

bool HasRoom(const RouteQuery& query, const Candidate& c) {
  return c.free_blocks >= query.PagesBeside(c.matched_blocks);
}

}  // namespace

absl::Span<double> Pricing::Costs(const Candidates& candidates, CostColumn* column) const {
  const absl::Span<double> costs = column->Resize(candidates.queue_s().size());
  SetCosts(*this, candidates.queue_s().data(), candidates.service_s().data(), costs);
  for (int i = 0; candidates.moves() && i < candidates.size(); ++i) {
    costs[i] = Cost(candidates[i]);
  }
  const int at_home = home == kNoWorker ? -1 : candidates.Find(home);
  if (at_home >= 0) costs[at_home] = Cost(candidates[at_home]);
  return costs;
}

RouteChoice PrefixThenLoad::Choose(const RouteQuery& query, const Candidates& prefill,
                                   absl::Span<const Candidate> decode) {
  const uint64_t turn = turn_++;
  RouteChoice choice;
  const bool alone = prefill.empty();
  choice.decode = PickLowest(static_cast<int>(decode.size()), turn, [&](int i) {
    const Candidate& c = decode[i];
    const int cached = alone ? c.matched_blocks : 0;
    return std::make_tuple(!HasRoom(query, c), -cached, c.running + c.queued, -c.free_blocks);
  });
  if (alone) {
    choice.decision = "decode_only";
    return choice;
  }
  choice.prefill = PickLowest(prefill.size(), turn, [&](int i) {
    const Candidate& c = prefill.row(i);
    return std::make_tuple(-prefill.matched_blocks()[i], c.queued_tokens, c.running + c.queued);
  });
  choice.decision = prefill.matched_blocks()[choice.prefill] > 0 ? "prefix" : "load";
  return choice;
}

RouteChoice RoundRobin::Choose(const RouteQuery& query, const Candidates& prefill,
                               absl::Span<const Candidate> decode) {
  RouteChoice choice;
  absl::MutexLock lock(&mutex_);
  // The next number behind the last one taken, or the lowest of all.
  choice.decode = PickLowest(static_cast<int>(decode.size()), /*turn=*/0, [&](int i) {
    mutex_.AssertHeld();
    const Candidate& c = decode[i];
    return std::make_tuple(!HasRoom(query, c), c.worker <= last_decode_, c.worker);
  });
  if (choice.decode >= 0) last_decode_ = decode[choice.decode].worker;
  if (prefill.empty()) {
    choice.decision = "decode_only";
    return choice;
  }
  choice.prefill = PickLowest(prefill.size(), /*turn=*/0, [&](int i) {
    mutex_.AssertHeld();
    return std::make_tuple(prefill.worker(i) <= last_prefill_, prefill.worker(i));
  });
  last_prefill_ = prefill.worker(choice.prefill);
  choice.decision = prefill.matched_blocks()[choice.prefill] > 0 ? "prefix" : "load";
  return choice;
}

}  // namespace baton::router
