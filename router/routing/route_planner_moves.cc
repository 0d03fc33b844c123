// The part of RoutePlanner that prices KV which a worker need not compute: what it would
// fetch from another worker, or load from its KV tiers.
#include <algorithm>
#include <optional>
#include <vector>

#include "common/kv/fetch_rule.h"
#include "common/kv/prefix_key.h"
#include "router/routing/route_planner.h"

namespace baton::router {

// What a worker was only sent is on its way at best, and cannot be fetched: `reported` is without
// it.
RoutePlanner::Held RoutePlanner::HolderOf(const Candidates& prefill, const Candidates& decode,
                                          absl::Span<const int> reported) {
  Held holder = {kNoWorker, kv::kLeastFetchedBlocks - 1};
  for (const Candidates* candidates : {&prefill, &decode}) {
    for (int i = 0; i < candidates->size(); ++i) {
      const auto worker = static_cast<size_t>(candidates->worker(i));
      if (worker >= reported.size() || reported[worker] <= holder.blocks) continue;
      holder = {candidates->worker(i), reported[worker]};
    }
  }
  return holder;
}

void RoutePlanner::PriceFetches(const RouteQuery& query, const Held& holder,
                                Candidates* candidates) const {
  if (holder.worker == kNoWorker || options_.kv_fetch_bytes_per_second <= 0) return;
  // Whole blocks, and the last token is always computed.
  const int held_blocks = std::min(holder.blocks, (query.prompt_tokens - 1) / query.block_tokens);
  const double held = held_blocks * query.block_tokens;
  for (int i = 0; i < candidates->size(); ++i) {
    const Candidate c = (*candidates)[i];
    if (c.fetch_s > 0) continue;  // from its tiers
    const kv::KvSizes& kv = workers_[c.worker].kv;
    const int blocks = kv::BlocksToFetch(held_blocks, c.matched_blocks, c.total_blocks, kv.shape);
    const std::optional<LinearCost> cost = fleet_.PrefillCost(c.worker);
    if (blocks == 0 || !cost) continue;
    const double fetch_s = kv.MovedBlocks(c.matched_blocks, held_blocks) * kv.block_bytes /
                           options_.kv_fetch_bytes_per_second;
    const double cached = c.matched_blocks * query.block_tokens;
    if (fetch_s >= cost->Prefill(held - cached, cached)) continue;
    candidates->SetMove(i, fetch_s, c.service_s - cost->Prefill(query.prompt_tokens - held, held),
                        /*tier_blocks=*/0);
  }
}

void RoutePlanner::NameHolder(const RouteQuery& query, const Held& holder, const Pair& pair,
                              Route* route) const {
  const int least = pair.computes().matched_blocks + kv::kLeastFetchedBlocks;
  if (holder.worker == kNoWorker || holder.blocks < least) return;
  route->kv_holder = workers_[holder.worker].target;
  route->kv_holder_tokens = std::min(holder.blocks * query.block_tokens,
                                     query.prompt_tokens / query.block_tokens * query.block_tokens);
}

RoutePlanner::InTiers RoutePlanner::MatchTiers(const RouteRequest& request) const {
  InTiers held;
  held.segment_tokens = tier_segment_tokens_;
  if (held.segment_tokens == 0) return held;
  const int blocks = std::max(held.segment_tokens / tier_block_tokens_, 1);
  std::vector<kv::PrefixKey> keys;
  for (size_t end = static_cast<size_t>(blocks); end <= request.keys.size();
       end += static_cast<size_t>(blocks)) {
    keys.push_back(kv::TierKey(request.keys[end - 1], held.segment_tokens));
  }
  index_.Match(keys, &held.segments);
  if (recurrent_.load(std::memory_order_relaxed)) {
    index_.LimitTo(
        keys.size(),
        [&](size_t segment) {
          const size_t end = (segment + 1) * static_cast<size_t>(blocks);
          return kv::TierKey(kv::SnapshotKey(request.keys[end - 1]), held.segment_tokens);
        },
        &held.segments);
  }
  return held;
}

void RoutePlanner::PriceLoads(const RouteQuery& query, const InTiers& held,
                              Candidates* candidates) const {
  const int segment = held.segment_tokens;
  if (std::all_of(held.segments.begin(), held.segments.end(), [](int n) { return n == 0; })) {
    return;
  }
  for (int i = 0; i < candidates->size(); ++i) {
    const Candidate c = (*candidates)[i];
    const double each_s = workers_[c.worker].tier_load_s;
    const std::optional<LinearCost> cost = fleet_.PrefillCost(c.worker);
    if (static_cast<size_t>(c.worker) >= held.segments.size() || each_s <= 0 || !cost) continue;
    // As the worker does it: whole segments, from the one that the cache ends in; the last token is
    // always computed.
    const int segments =
        std::min(held.segments[static_cast<size_t>(c.worker)], (query.prompt_tokens - 1) / segment);
    const int cached = c.matched_blocks * query.block_tokens;
    const int loads = segments - cached / segment;
    const double blocks = static_cast<double>(loads) * segment / query.block_tokens;
    const kv::KvSizes& kv = workers_[c.worker].kv;
    if (loads <= 0 || kv.LoadedPages(blocks) > kv::kMostFetchedShare * c.total_blocks) continue;
    const int there = segments * segment;
    const double load_s = (loads + kv.StateBlocks() * query.block_tokens / segment) * each_s;
    if (load_s >= kv::kMostLoadShare * cost->Prefill(there - cached, cached)) continue;
    candidates->SetMove(i, load_s, c.service_s - cost->Prefill(query.prompt_tokens - there, there),
                        (there - cached) / query.block_tokens);
  }
}

}  // namespace baton::router
