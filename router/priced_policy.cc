#include "router/priced_policy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <vector>

namespace baton::router {
namespace {

// Costs this close are equal: what is left of them is noise of the measurement.
constexpr double kTieShare = 0.01;
constexpr double kTie_s = 1e-4;
// Of ρ.
constexpr double kUtilizationMemory_s = 60;

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t mixed = (a ^ b * 0x9E3779B97F4A7C15u) * 0xD6E8FEB86659FD93u;
  mixed = (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93u;
  return mixed ^ mixed >> 32;
}

// The first block of the prompt that less than half of the fleet has: what all prompts begin with
// is no reason to bring them together. Without blocks all prompts are one. `depths`: how many
// blocks each worker of the fleet has.
uint64_t HomeKey(const RouteQuery& query, absl::Span<const int> depths) {
  if (query.keys.empty()) return 0;
  const auto half_has = [&depths](int blocks) {
    int have = 0;
    for (const int depth : depths) have += depth > blocks ? 1 : 0;
    return 2 * static_cast<size_t>(have) >= depths.size();
  };
  int first = 0, last = static_cast<int>(query.keys.size()) - 1;
  while (first < last) {
    const int middle = (first + last) / 2;
    if (half_has(middle)) {
      first = middle + 1;
    } else {
      last = middle;
    }
  }
  return query.keys[first];
}

template <class In>
int HighestHash(uint64_t key, absl::Span<const Candidate> candidates, In in) {
  int best = -1;
  uint64_t best_hash = 0;
  for (int i = 0; i < static_cast<int>(candidates.size()); ++i) {
    if (!in(i)) continue;
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

double PricedPolicy::Price(double now_s) {
  // Sums in lanes of their own do not wait for each other.
  constexpr size_t kLanes = 4;
  double sums[kLanes] = {};
  int busy = 0;
  for (size_t i = 0; i < queues_.size(); ++i) {
    sums[i % kLanes] += queues_[i];
    busy += queues_[i] > 0 ? 1 : 0;
  }
  const double count = static_cast<double>(queues_.size());
  const double mean_queue = std::accumulate(std::begin(sums), std::end(sums), 0.0) / count;
  const double passed = last_s_ < 0 ? kUtilizationMemory_s * 100 : std::max(0.0, now_s - last_s_);
  busy_share_ += (1 - std::exp(-passed / kUtilizationMemory_s)) * (busy / count - busy_share_);
  last_s_ = now_s;
  if (mean_service_s_.value() <= 0) return 0;
  const double idle_share = std::max(1 - busy_share_, 1e-3);
  const double gain = std::clamp(busy_share_ / idle_share, options_.min_gain, options_.max_gain);
  return std::min(options_.max_price, gain * mean_queue / mean_service_s_.value());
}

int PricedPolicy::ChoosePrefill(const RouteQuery& query, absl::Span<const Candidate> prefill,
                                RouteChoice& choice) {
  // In vectors of their own: a thousand candidates are more than a first-level cache.
  const size_t count = prefill.size();
  queues_.resize(count);
  costs_.resize(count);
  depths_.resize(count);
  for (size_t i = 0; i < count; ++i) {
    queues_[i] = prefill[i].queue_s;
    costs_[i] = prefill[i].service_s;
    depths_[i] = prefill[i].matched_blocks;
  }
  if (Stale(prefill)) {
    choice.decision = "home";
    return HighestHash(HomeKey(query, depths_), prefill, [](int) { return true; });
  }
  choice.price = Price(query.now_s);
  for (size_t i = 0; i < count; ++i) costs_[i] = queues_[i] + (1 + choice.price) * costs_[i];
  constexpr size_t kLanes = 4;
  double least[kLanes];
  std::fill(std::begin(least), std::end(least), std::numeric_limits<double>::infinity());
  for (size_t i = 0; i < count; ++i) least[i % kLanes] = std::min(least[i % kLanes], costs_[i]);
  const double lowest = *std::min_element(std::begin(least), std::end(least));
  const double bound = lowest + std::max(kTie_s, kTieShare * lowest);
  int deepest = -1, best = 0, equals = 0;
  for (size_t i = 0; i < count; ++i) {
    if (costs_[i] > bound || depths_[i] < deepest) continue;
    equals = depths_[i] == deepest ? equals + 1 : 1;
    deepest = depths_[i];
    best = static_cast<int>(i);
  }
  if (equals > 1) {
    best = HighestHash(HomeKey(query, depths_), prefill,
                       [&](int i) { return costs_[i] <= bound && depths_[i] == deepest; });
  }
  choice.decision = depths_[best] > 0 ? "prefix" : "load";
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
    // Those that wait enter as others finish: one every answer's length over the batch. Those just
    // sent there have room, or it would be full.
    const double wait = (c.queued - c.sent) * answer / std::max(1, c.running);
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
    if (c.queued > c.sent || c.free_blocks < query.prompt_blocks - c.matched_blocks) continue;
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
  mean_service_s_.Add(prefill[choice.prefill].service_s);
  return choice;
}

}  // namespace baton::router
