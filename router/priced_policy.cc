#include "router/priced_policy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <vector>

namespace baton::router {
namespace {

// Weight of one prompt in the mean service time.
constexpr double kServiceWeight = 0.02;
// Costs this close are equal: what is left of them is noise of the measurement.
constexpr double kTieShare = 0.01;
constexpr double kTie_s = 1e-4;

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t mixed = (a ^ b * 0x9E3779B97F4A7C15u) * 0xD6E8FEB86659FD93u;
  mixed = (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93u;
  return mixed ^ mixed >> 32;
}

// The first block of the prompt that less than half of the fleet has: what all prompts begin with
// is no reason to bring them together. Without blocks all prompts are one.
uint64_t HomeKey(const RouteQuery& query, absl::Span<const Candidate> fleet) {
  if (query.keys.empty()) return 0;
  std::vector<int> depths;
  depths.reserve(fleet.size());
  for (const Candidate& c : fleet) depths.push_back(c.matched_blocks);
  // Fewer than half hold a block iff it lies at or behind the depth in the middle.
  const auto middle = depths.begin() + depths.size() / 2;
  std::nth_element(depths.begin(), middle, depths.end());
  const size_t first = std::min(static_cast<size_t>(*middle), query.keys.size() - 1);
  return query.keys[first];
}

template <class In>
int HighestHash(uint64_t key, absl::Span<const Candidate> candidates, In in) {
  int best = -1;
  uint64_t best_hash = 0;
  for (int i = 0; i < static_cast<int>(candidates.size()); ++i) {
    if (!in(candidates[i])) continue;
    const uint64_t hash = Mix(key, candidates[i].identity);
    if (best < 0 || hash > best_hash) best = i, best_hash = hash;
  }
  return best;
}

bool Stale(absl::Span<const Candidate> candidates) {
  return std::all_of(candidates.begin(), candidates.end(),
                     [](const Candidate& c) { return c.silence_s > kStaleReport_s; });
}

}  // namespace

int PricedPolicy::ChoosePrefill(const RouteQuery& query, absl::Span<const Candidate> prefill,
                                RouteChoice& choice) {
  if (Stale(prefill)) {
    choice.decision = "home";
    return HighestHash(HomeKey(query, prefill), prefill, [](const Candidate&) { return true; });
  }
  double queue_sum = 0;
  for (const Candidate& c : prefill) queue_sum += c.queue_s;
  if (mean_service_s_ > 0) {
    const double mean_queue = queue_sum / static_cast<double>(prefill.size());
    choice.price = std::min(options_.max_price, options_.gain * mean_queue / mean_service_s_);
  }
  const auto cost = [&](const Candidate& c) {
    return c.queue_s + (1 + choice.price) * c.service_s;
  };
  double lowest = std::numeric_limits<double>::infinity();
  for (const Candidate& c : prefill) lowest = std::min(lowest, cost(c));
  const double bound = lowest + std::max(kTie_s, kTieShare * lowest);
  int deepest = -1, best = 0, equals = 0;
  for (int i = 0; i < static_cast<int>(prefill.size()); ++i) {
    if (cost(prefill[i]) > bound || prefill[i].matched_blocks < deepest) continue;
    equals = prefill[i].matched_blocks == deepest ? equals + 1 : 1;
    deepest = prefill[i].matched_blocks;
    best = i;
  }
  if (equals > 1) {
    best = HighestHash(HomeKey(query, prefill), prefill, [&](const Candidate& c) {
      return c.matched_blocks == deepest && cost(c) <= bound;
    });
  }
  choice.decision = prefill[best].matched_blocks > 0 ? "prefix" : "load";
  return best;
}

// Room first. Then what the answer will take: the KV still to be brought or computed, the queue,
// and all its tokens at the pace of the batch that it joins. `alone`: the worker computes the
// prompt itself.
int PricedPolicy::ChooseDecode(const RouteQuery& query, absl::Span<const Candidate> decode,
                               bool alone) {
  const auto rank = [&](const Candidate& c) {
    const int missing = query.prompt_blocks - c.matched_blocks;
    const bool full = c.free_blocks < missing;
    const double prompt = alone ? c.queue_s + c.service_s : missing * query.block_transfer_s;
    const double answer = query.answer_tokens * c.step_s;
    // Those that wait enter as others finish: one every answer's length over the batch.
    const double wait = c.queued * answer / std::max(1, c.running);
    return std::make_tuple(full, prompt + answer + wait, c.running + c.queued, -c.free_blocks);
  };
  const uint64_t turn = turn_++;
  int best = 0, equals = 1;
  auto lowest = rank(decode[0]);
  for (int i = 1; i < static_cast<int>(decode.size()); ++i) {
    const auto of_this = rank(decode[i]);
    if (of_this > lowest) continue;
    equals = of_this == lowest ? equals + 1 : 1;
    lowest = of_this;
    // Of k equals, the k-th takes the place of the one before with the chance 1/k.
    if (equals == 1 || Mix(turn, static_cast<uint64_t>(i)) % equals == 0) best = i;
  }
  return best;
}

// The decode worker that had better compute the prompt itself; -1 if none had. What it computes
// stops the sequences of its batch for as long: their time counts as the prompt's own does.
int PricedPolicy::ChooseLocal(const RouteQuery& query, const Candidate& prefill, double price,
                              absl::Span<const Candidate> decode, const Candidate& partner) {
  if (options_.max_local_prefill_tokens == 0 || !prefill.cost_known) return -1;
  const int missing = query.prompt_blocks - partner.matched_blocks;
  const double elsewhere =
      prefill.queue_s + (1 + price) * prefill.service_s + missing * query.block_transfer_s;
  int best = -1;
  double lowest = elsewhere;
  for (int i = 0; i < static_cast<int>(decode.size()); ++i) {
    const Candidate& c = decode[i];
    const int tail = query.prompt_tokens - c.matched_blocks * query.block_tokens;
    if (!c.cost_known || tail > options_.max_local_prefill_tokens) continue;
    if (c.queued > 0 || c.free_blocks < query.prompt_blocks - c.matched_blocks) continue;
    const double here = c.queue_s + c.service_s * (1 + c.running) +
                        query.answer_tokens * std::max(0.0, c.step_s - partner.step_s);
    if (here < lowest) best = i, lowest = here;
  }
  return best;
}

RouteChoice PricedPolicy::Choose(const RouteQuery& query, absl::Span<const Candidate> prefill,
                                 absl::Span<const Candidate> decode) {
  RouteChoice choice;
  choice.decode = ChooseDecode(query, decode, prefill.empty());
  if (prefill.empty()) {
    choice.decision = "decode_only";
    return choice;
  }
  choice.prefill = ChoosePrefill(query, prefill, choice);
  if (choice.decision == "home") return choice;
  const int local =
      ChooseLocal(query, prefill[choice.prefill], choice.price, decode, decode[choice.decode]);
  if (local >= 0) {
    choice.prefill = -1;
    choice.decode = local;
    choice.decision = "local";
    return choice;
  }
  const double service = prefill[choice.prefill].service_s;
  mean_service_s_ = mean_service_s_ == 0
                        ? service
                        : mean_service_s_ + kServiceWeight * (service - mean_service_s_);
  return choice;
}

}  // namespace baton::router
