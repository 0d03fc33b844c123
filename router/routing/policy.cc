#include "router/routing/policy.h"

#include <tuple>
#include <vector>

namespace baton::router {
namespace {

// The `turn`-th of those whose cost is lowest; -1 without candidates.
template <class CostOf>
int PickLowest(absl::Span<const Candidate> candidates, uint64_t turn, CostOf cost_of) {
  if (candidates.empty()) return -1;
  std::vector<int> best;
  for (int i = 0; i < static_cast<int>(candidates.size()); ++i) {
    if (!best.empty() && cost_of(candidates[best[0]]) < cost_of(candidates[i])) continue;
    if (!best.empty() && cost_of(candidates[i]) < cost_of(candidates[best[0]])) best.clear();
    best.push_back(i);
  }
  return best[turn % best.size()];
}

bool HasRoom(const RouteQuery& query, const Candidate& c) {
  return c.free_blocks >= query.prompt_blocks - c.matched_blocks;
}

}  // namespace

RouteChoice PrefixThenLoad::Choose(const RouteQuery& query, absl::Span<const Candidate> prefill,
                                   absl::Span<const Candidate> decode) {
  const uint64_t turn = turn_++;
  RouteChoice choice;
  const bool alone = prefill.empty();
  choice.decode = PickLowest(decode, turn, [&](const Candidate& c) {
    const int cached = alone ? c.matched_blocks : 0;
    return std::make_tuple(!HasRoom(query, c), -cached, c.running + c.queued, -c.free_blocks);
  });
  if (alone) {
    choice.decision = "decode_only";
    return choice;
  }
  choice.prefill = PickLowest(prefill, turn, [](const Candidate& c) {
    return std::make_tuple(-c.matched_blocks, c.queued_tokens, c.running + c.queued);
  });
  choice.decision = prefill[choice.prefill].matched_blocks > 0 ? "prefix" : "load";
  return choice;
}

RouteChoice RoundRobin::Choose(const RouteQuery& query, absl::Span<const Candidate> prefill,
                               absl::Span<const Candidate> decode) {
  RouteChoice choice;
  // The next number behind the last one taken, or the lowest of all.
  choice.decode = PickLowest(decode, /*turn=*/0, [&](const Candidate& c) {
    return std::make_tuple(!HasRoom(query, c), c.worker <= last_decode_, c.worker);
  });
  if (choice.decode >= 0) last_decode_ = decode[choice.decode].worker;
  if (prefill.empty()) {
    choice.decision = "decode_only";
    return choice;
  }
  choice.prefill = PickLowest(prefill, /*turn=*/0, [&](const Candidate& c) {
    return std::make_tuple(c.worker <= last_prefill_, c.worker);
  });
  last_prefill_ = prefill[choice.prefill].worker;
  choice.decision = prefill[choice.prefill].matched_blocks > 0 ? "prefix" : "load";
  return choice;
}

}  // namespace baton::router
