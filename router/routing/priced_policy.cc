#include "router/routing/priced_policy.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>
#include <vector>

#include "router/routing/decode_price.h"
#include "router/routing/link_rates.h"

namespace baton::router {
namespace {

// Costs this close are equal: what is left of them is noise of the measurement.
constexpr double kTieShare = 0.01;
constexpr double kTie_s = 1e-4;
// Of ρ.
constexpr double kUtilizationMemory_s = 60;
// Of at least so many decode workers, half are looked at.
constexpr int kDrawAmong = 8;
// Less of a discount is none.
constexpr double kLeastDiscount = 1e-3;

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t mixed = (a ^ b * 0x9E3779B97F4A7C15u) * 0xD6E8FEB86659FD93u;
  mixed = (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93u;
  return mixed ^ mixed >> 32;
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

// Less than half of them have a block iff it lies at or behind this.
int MedianDepth(absl::Span<const Candidate> candidates) {
  std::vector<int> depths;
  depths.reserve(candidates.size());
  for (const Candidate& c : candidates) depths.push_back(c.matched_blocks);
  const auto middle = depths.begin() + depths.size() / 2;
  std::nth_element(depths.begin(), middle, depths.end());
  return *middle;
}

double Lowest(const std::vector<double>& values) {
  // In lanes of their own they do not wait for each other.
  constexpr size_t kLanes = 4;
  double least[kLanes];
  std::fill(std::begin(least), std::end(least), std::numeric_limits<double>::infinity());
  for (size_t i = 0; i < values.size(); ++i)
    least[i % kLanes] = std::min(least[i % kLanes], values[i]);
  return *std::min_element(std::begin(least), std::end(least));
}

bool Stale(absl::Span<const Candidate> candidates) {
  return std::all_of(candidates.begin(), candidates.end(),
                     [](const Candidate& c) { return c.silence_s > kStaleReport_s; });
}

}  // namespace

uint64_t PricedPolicy::HomeKey(const RouteQuery& query, int known_blocks) const {
  // Without blocks, there is nothing that could be shared.
  if (query.keys.empty()) return turn_;
  return query.keys[std::min(static_cast<size_t>(known_blocks), query.keys.size() - 1)];
}

Pricing PricedPolicy::PricingOf(const RouteQuery& query, absl::Span<const Candidate> prefill) {
  // Sums in lanes of their own do not wait for each other.
  constexpr size_t kLanes = 4;
  double sums[kLanes] = {};
  int busy = 0, deepest = 0;
  for (size_t i = 0; i < queues_.size(); ++i) {
    sums[i % kLanes] += queues_[i];
    busy += queues_[i] > 0 ? 1 : 0;
    deepest = std::max(deepest, cached_blocks_[i]);
  }
  home_key_ = HomeKey(query, deepest);
  const double count = static_cast<double>(prefill.size());
  const double passed =
      last_s_ ? std::max(0.0, query.now_s - *last_s_) : kUtilizationMemory_s * 100;
  busy_share_ += (1 - std::exp(-passed / kUtilizationMemory_s)) * (busy / count - busy_share_);
  last_s_ = query.now_s;
  Pricing pricing;
  if (mean_service_s_.value() <= 0) return pricing;
  const double idle_share = std::max(1 - busy_share_, 1e-3);
  const double gain = std::clamp(busy_share_ / idle_share, options_.min_gain, options_.max_gain);
  const double queue_s = std::accumulate(std::begin(sums), std::end(sums), 0.0) / count;
  pricing.fleet = gain * queue_s / mean_service_s_.value();
  pricing.own_queue = options_.own_queue * (1 - busy_share_) / mean_service_s_.value();
  pricing.highest = options_.max_price;
  const double unseen = queue_s / (queue_s + options_.home_queue_scale_s);
  pricing.home_discount = options_.home_discount * unseen * unseen;
  if (pricing.home_discount > kLeastDiscount) {
    pricing.home = prefill[HighestHash(home_key_, prefill, [](int) { return true; })].worker;
  }
  return pricing;
}

int PricedPolicy::ChoosePrefill(const RouteQuery& query, absl::Span<const Candidate> prefill,
                                RouteChoice& choice) {
  // In vectors of their own: a thousand candidates are more than a first-level cache.
  const size_t count = prefill.size();
  queues_.resize(count);
  costs_.resize(count);
  cached_blocks_.resize(count);
  for (size_t i = 0; i < count; ++i) {
    queues_[i] = prefill[i].queue_s;
    costs_[i] = prefill[i].service_s;
    cached_blocks_[i] = prefill[i].matched_blocks;
  }
  if (query.links != nullptr) choice.hidden_s = Lowest(costs_);
  if (Stale(prefill)) {
    choice.decision = "home";
    // By the first block that less than half of the fleet has: what all prompts begin with is no
    // reason to bring them together.
    const uint64_t key = HomeKey(query, MedianDepth(prefill));
    return HighestHash(key, prefill, [](int) { return true; });
  }
  const Pricing pricing = choice.pricing = PricingOf(query, prefill);
  // As Pricing::Cost, but for one.
  for (size_t i = 0; i < count; ++i) {
    const double price = std::min(pricing.highest, pricing.fleet + pricing.own_queue * queues_[i]);
    costs_[i] = prefill[i].wait_s() - prefill[i].fetch_saves_s + (1 + price) * costs_[i];
  }
  for (size_t i = 0; i < count && pricing.home >= 0; ++i) {
    if (prefill[i].worker == pricing.home) costs_[i] = pricing.Cost(prefill[i]);
  }
  const int best = Cheapest(prefill);
  choice.decision = cached_blocks_[best] > 0 ? "prefix" : "load";
  return best;
}

// Changes costs_.
int PricedPolicy::ChoosePrefillFor(const RouteQuery& query, absl::Span<const Candidate> prefill,
                                   const Candidate& partner, RouteChoice& choice) {
  const KvMove move(query, partner);
  for (size_t i = 0; i < prefill.size(); ++i) {
    costs_[i] += move.SecondsFrom(prefill[i].worker, choice.hidden_s);
  }
  const int best = Cheapest(prefill);
  choice.decision = cached_blocks_[best] > 0 ? "prefix" : "load";
  return best;
}

// By costs_ and cached_blocks_.
int PricedPolicy::Cheapest(absl::Span<const Candidate> prefill) const {
  const size_t count = prefill.size();
  const double lowest = Lowest(costs_);
  const double bound = lowest + std::max(kTie_s, kTieShare * lowest);
  int deepest = -1, best = 0, equals = 0;
  for (size_t i = 0; i < count; ++i) {
    if (costs_[i] > bound || cached_blocks_[i] < deepest) continue;
    equals = cached_blocks_[i] == deepest ? equals + 1 : 1;
    deepest = cached_blocks_[i];
    best = static_cast<int>(i);
  }
  if (equals > 1) {
    best = HighestHash(home_key_, prefill,
                       [&](int i) { return costs_[i] <= bound && cached_blocks_[i] == deepest; });
  }
  return best;
}

// Room first, then the lowest price; equal prices at random. Of many workers, half are looked at,
// drawn anew for each request: several routers that have heard the same would else all fill the
// same gap. Idle workers, and those that hold blocks of the session, are always looked at.
int PricedPolicy::ChooseDecode(const RouteQuery& query, absl::Span<const Candidate> decode,
                               bool alone, const Candidate* prefill, uint64_t turn) {
  const int count = static_cast<int>(decode.size());
  bool draws = count >= kDrawAmong;
  while (true) {
    int best = -1, equals = 1;
    std::tuple<bool, double, int, int> lowest;
    for (int i = 0; i < count; ++i) {
      const Candidate& c = decode[i];
      const uint64_t chance = Mix(turn, static_cast<uint64_t>(i));
      if (draws && chance >> 63 != 0 && c.matched_blocks == 0 && c.running + c.queued > 0) continue;
      const DecodePrice price = PriceDecode(query, c, alone, prefill);
      const std::tuple rank = {price.full, price.total(), c.running + c.queued, -c.free_blocks};
      if (best >= 0 && rank > lowest) continue;
      equals = best >= 0 && rank == lowest ? equals + 1 : 1;
      lowest = rank;
      // Of k equals, the k-th takes the place of the one before with the chance 1/k.
      if (equals == 1 || chance % equals == 0) best = i;
    }
    // One of the others may have room.
    const bool all_full = best < 0 || std::get<0>(lowest);
    if (!draws || !all_full) return best;
    draws = false;
  }
}

// The decode worker that had better compute the prompt itself; -1 if none had. What it computes
// stops the sequences of its batch for as long: their time counts as the prompt's own does.
int PricedPolicy::ChooseLocal(const RouteQuery& query, const Candidate& prefill,
                              const Pricing& pricing, absl::Span<const Candidate> decode,
                              const Candidate& partner) {
  if (options_.max_local_prefill_tokens == 0 || !prefill.cost_known) return -1;
  const double elsewhere = pricing.Cost(prefill) + KvMove(query, partner).SecondsFrom(prefill);
  const double partner_step_s = DecodeStepSeconds(partner, 1, query.prompt_tokens);
  int best = -1;
  double lowest = elsewhere;
  for (int i = 0; i < static_cast<int>(decode.size()); ++i) {
    const Candidate& c = decode[i];
    const int tail = query.prompt_tokens - c.matched_blocks * query.block_tokens;
    if (!c.cost_known || tail > options_.max_local_prefill_tokens) continue;
    if (c.queued > c.sent || c.free_blocks < query.prompt_blocks - c.matched_blocks) continue;
    const double slower_s = DecodeStepSeconds(c, 1, query.prompt_tokens) - partner_step_s;
    const double here =
        c.queue_s + c.service_s * (1 + c.running) + query.answer_tokens * std::max(0.0, slower_s);
    if (here < lowest) best = i, lowest = here;
  }
  return best;
}

void PricedPolicy::OnSent(const Candidate& prefill) { mean_service_s_.Add(prefill.service_s); }

// Where links are measured: the prefill worker as ever; a decode worker for it, by load and link;
// a prefill worker for that one. If it is another, once more the decode worker.
bool PricedPolicy::ChooseByLinks(const RouteQuery& query, absl::Span<const Candidate> prefill,
                                 absl::Span<const Candidate> decode, RouteChoice& choice) {
  const uint64_t turn = Mix(options_.seed, turn_++);
  const auto decode_for = [&](const Candidate* computes) {
    return ChooseDecode(query, decode, /*alone=*/false, computes, turn);
  };
  choice.prefill = ChoosePrefill(query, prefill, choice);
  if (choice.decision == "home") {
    choice.decode = decode_for(nullptr);
    return false;
  }
  choice.decode = decode_for(&prefill[choice.prefill]);
  const Candidate& partner = decode[choice.decode];
  if (query.links->IsFastest(prefill[choice.prefill].worker, partner.worker)) return true;
  const int better = ChoosePrefillFor(query, prefill, partner, choice);
  if (better == choice.prefill) return true;
  choice.prefill = better;
  choice.decode = decode_for(&prefill[better]);
  return true;
}

RouteChoice PricedPolicy::Choose(const RouteQuery& query, absl::Span<const Candidate> prefill,
                                 absl::Span<const Candidate> decode) {
  RouteChoice choice;
  if (query.links != nullptr && !prefill.empty() && !decode.empty()) {
    if (!ChooseByLinks(query, prefill, decode, choice)) return choice;
  } else {
    const bool alone = prefill.empty();
    choice.decode = decode.empty() ? -1
                                   : ChooseDecode(query, decode, alone, /*prefill=*/nullptr,
                                                  Mix(options_.seed, turn_++));
    if (alone) {
      choice.decision = "decode_only";
      return choice;
    }
    choice.prefill = ChoosePrefill(query, prefill, choice);
    if (choice.decision == "home" || decode.empty()) return choice;
  }
  const int local =
      ChooseLocal(query, prefill[choice.prefill], choice.pricing, decode, decode[choice.decode]);
  if (local >= 0) {
    choice.prefill = -1;
    choice.decode = local;
    choice.decision = "local";
    return choice;
  }
  return choice;
}

}  // namespace baton::router
