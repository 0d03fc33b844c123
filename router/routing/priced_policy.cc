#include "router/routing/priced_policy.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <tuple>
#include <utility>
#include <vector>

#include "router/routing/link_rates.h"
#include "router/routing/wide_loops.h"

namespace baton::router {
namespace {

constexpr double kLeastOfNone = std::numeric_limits<double>::infinity();
// Costs this close are equal: what is left of them is noise of the measurement.
constexpr double kTieShare = 0.01;
constexpr double kTie_s = 1e-4;
// A prompt that joins a queue delays those that come behind it, by as much as this share of the
// queue where it is compared with decode workers. Without it, queues are longer at full load by
// half (an estimate by simulation); with twice as much, decode workers compute so much that answers
// take longer.
constexpr double kDelayOfLater = 0.5;
// How long ρ remembers.
constexpr double kUtilizationMemory_s = 60;
// If there are at least so many decode workers, half of them are looked at.
constexpr size_t kDrawAmong = 8;
// Less of a discount is none.
constexpr double kLeastDiscount = 1e-3;

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t mixed = (a ^ b * 0x9E3779B97F4A7C15u) * 0xD6E8FEB86659FD93u;
  mixed = (mixed ^ mixed >> 32) * 0xD6E8FEB86659FD93u;
  return mixed ^ mixed >> 32;
}

int HighestHash(uint64_t key, const Candidates& candidates) {
  int best = -1;
  uint64_t best_hash = 0;
  for (int i = 0; i < candidates.size(); ++i) {
    const uint64_t hash = Mix(key, candidates.identity(i));
    if (best < 0 || hash > best_hash) best = i, best_hash = hash;
  }
  return best;
}

// Less than half of them have a block iff it lies at or behind this.
int MedianDepth(const Candidates& candidates) {
  std::vector<int> depths(candidates.matched_blocks().begin(), candidates.matched_blocks().end());
  const auto middle = depths.begin() + depths.size() / 2;
  std::nth_element(depths.begin(), middle, depths.end());
  return *middle;
}

struct FleetSums {
  double queue_s = 0;
  double busy = 0;  // workers with a queue
  int deepest = 0;  // match
};
BATON_WIDE_LOOPS FleetSums SumsOf(const double* queue_s, const int* matched_blocks, size_t size) {
  // Four sums, which do not wait for each other.
  using Four = double __attribute__((vector_size(4 * sizeof(double))));
  Four sums = {}, busy = {};
  for (size_t i = 0; i + 4 <= size; i += 4) {
    Four queues;
    std::memcpy(&queues, queue_s + i, sizeof(queues));
    sums += queues;
    busy += queues > 0 ? Four{1, 1, 1, 1} : Four{};
  }
  for (size_t i = size / 4 * 4; i < size; ++i) {
    sums[i % 4] += queue_s[i];
    busy[i % 4] += queue_s[i] > 0 ? 1 : 0;
  }
  int deepest = 0;
  for (size_t i = 0; i < size; ++i) {
    deepest = matched_blocks[i] > deepest ? matched_blocks[i] : deepest;
  }
  return {sums[0] + sums[1] + sums[2] + sums[3], busy[0] + busy[1] + busy[2] + busy[3], deepest};
}

// Chooses among equally cheap decode workers: the one with the fewest sequences, then with the most
// free blocks, then the one that this router has sent no request for longest. Short answers leave
// equal workers idle most of the time, so without the last rule the first of them would always be
// chosen, or chance would choose one far more often than another.
class LeastLoaded {
 public:
  explicit LeastLoaded(uint64_t turn) : turn_(turn) {}
  void Add(int i, const Candidate& c) {
    const Load load = {c.running + c.queued, -c.free_blocks, c.last_sent};
    if (equals_ > 0 && load > least_) return;
    equals_ = equals_ > 0 && load == least_ ? equals_ + 1 : 1;
    least_ = load;
    // The k-th of equal workers takes the place of the one before with the chance 1/k.
    if (Mix(turn_, static_cast<uint64_t>(i)) % equals_ == 0) chosen_ = i;
  }
  int chosen() const { return chosen_; }  // -1: none was added

 private:
  using Load = std::tuple<int, int, int64_t>;
  const uint64_t turn_;
  int chosen_ = -1;
  uint64_t equals_ = 0;
  Load least_;
};

bool Stale(const Candidates& candidates) {
  for (int i = 0; i < candidates.size(); ++i) {
    if (candidates.silence_s(i) <= kStaleReport_s) return false;
  }
  return true;
}

// Among those whose cost is nearly the lowest, the deepest match wins, then the highest hash.
int Cheapest(const Candidates& prefill, const CostColumn& costs, uint64_t home_key) {
  const absl::Span<const int> cached_blocks = prefill.matched_blocks();
  const double bound = costs.least() + std::max(kTie_s, kTieShare * costs.least());
  int deepest = -1, best = 0;
  uint64_t best_hash = 0;
  costs.ForEachUpTo(bound, [&](size_t i) {
    const int cached = cached_blocks[i];
    const uint64_t hash = Mix(home_key, prefill.identity(static_cast<int>(i)));
    // No branches, which would be guessed wrong: many are equal where nothing is cached.
    const bool better = static_cast<int>(cached > deepest) |
                        (static_cast<int>(cached == deepest) & static_cast<int>(hash > best_hash));
    deepest = better ? cached : deepest;
    best = better ? static_cast<int>(i) : best;
    best_hash = better ? hash : best_hash;
    return true;
  });
  return best;
}

}  // namespace

uint64_t PricedPolicy::HomeKey(const RouteQuery& query, int known_blocks) const {
  // Without blocks, there is nothing that could be shared.
  if (query.keys.empty()) return turn_;
  return query.keys[std::min(static_cast<size_t>(known_blocks), query.keys.size() - 1)];
}

Pricing PricedPolicy::PricingOf(const RouteQuery& query, const Candidates& prefill,
                                uint64_t* home_key) {
  const FleetSums sums = SumsOf(prefill.queue_s().data(), prefill.matched_blocks().data(),
                                static_cast<size_t>(prefill.size()));
  *home_key = HomeKey(query, sums.deepest);
  const double count = prefill.size();
  double busy_share = 0, mean_service_s = 0;
  {
    absl::MutexLock lock(&mutex_);
    const double passed =
        last_s_ ? std::max(0.0, query.now_s - *last_s_) : kUtilizationMemory_s * 100;
    busy_share_ +=
        (1 - std::exp(-passed / kUtilizationMemory_s)) * (sums.busy / count - busy_share_);
    // Decisions are made side by side: one may have read the clock before another.
    last_s_ = std::max(query.now_s, last_s_.value_or(query.now_s));
    busy_share = busy_share_;
    mean_service_s = mean_service_s_.value();
  }
  Pricing pricing;
  if (mean_service_s <= 0) return pricing;
  const double idle_share = std::max(1 - busy_share, 1e-3);
  const double gain = std::clamp(busy_share / idle_share, options_.min_gain, options_.max_gain);
  const double queue_s = sums.queue_s / count;
  pricing.fleet = gain * queue_s / mean_service_s;
  pricing.own_queue = options_.own_queue * (1 - busy_share) / mean_service_s;
  pricing.highest = options_.max_price;
  const double unseen = queue_s / (queue_s + options_.home_queue_scale_s);
  pricing.home_discount = options_.home_discount * unseen * unseen;
  if (pricing.home_discount > kLeastDiscount) {
    pricing.home = prefill.worker(HighestHash(*home_key, prefill));
  }
  return pricing;
}

int PricedPolicy::ChoosePrefill(const RouteQuery& query, const Candidates& prefill,
                                RouteChoice& choice, Compared& compared) {
  if (query.links != nullptr) choice.hidden_s = Least(prefill.service_s());
  if (Stale(prefill)) {
    choice.decision = "home";
    // By the first block that less than half of the fleet has: what all prompts begin with is no
    // reason to bring them together.
    const uint64_t key = HomeKey(query, MedianDepth(prefill));
    return HighestHash(key, prefill);
  }
  choice.pricing = PricingOf(query, prefill, &compared.home_key);
  choice.pricing.Costs(prefill, &compared.costs);
  compared.costs.Seal();
  choice.prefill_costs = &compared.costs;
  const int best = Cheapest(prefill, compared.costs, compared.home_key);
  choice.decision = prefill.matched_blocks()[best] > 0 ? "prefix" : "load";
  return best;
}

// Half of many workers are looked at, drawn anew for each request: several routers that have heard
// the same would else all fill the same gap. Idle workers, and those that hold blocks of the
// session or have them in their tiers, are always looked at.
void PricedPolicy::LookAtDecode(const RouteQuery& query, absl::Span<const Candidate> decode,
                                bool alone, const Candidate* prefill, uint64_t turn, bool draws,
                                Compared& compared) {
  compared.looked_at.clear();
  for (size_t i = 0; i < decode.size(); ++i) {
    const Candidate& c = decode[i];
    // One branch: what was drawn cannot be guessed.
    const bool may_pass =
        draws & (c.matched_blocks == 0) & (c.tier_blocks == 0) & (c.running + c.queued > 0);
    if (may_pass & (Mix(turn, i) >> 63 != 0)) continue;
    DecodePrice& price = compared.decode_prices[i];
    double& cost = compared.decode_costs[i];
    if (std::isnan(cost)) {
      // Made in its place: a copy would be read before it is written out.
      new (&price) DecodePrice(PriceDecode(query, c, alone, prefill));
    } else {
      PricePrompt(query, c, alone, prefill, &price);
    }
    cost = price.total();
    compared.looked_at.push_back(static_cast<int>(i));
  }
}

// Workers with room come first, then the lowest price decides, then LeastLoaded. Returns -1 if none
// was looked at.
int PricedPolicy::CheapestDecode(absl::Span<const Candidate> decode, uint64_t turn,
                                 const Compared& compared) {
  const std::vector<int>& looked_at = compared.looked_at;
  if (looked_at.empty()) return -1;
  double lowest_with_room = kLeastOfNone, lowest_full = kLeastOfNone;
  bool all_full = true;
  for (const int i : looked_at) {
    const bool full = compared.decode_prices[i].full;
    const double cost = compared.decode_costs[i];
    lowest_with_room = std::min(lowest_with_room, full ? kLeastOfNone : cost);
    lowest_full = std::min(lowest_full, full ? cost : kLeastOfNone);
    all_full = all_full & full;
  }
  const double lowest = all_full ? lowest_full : lowest_with_room;
  LeastLoaded best(turn);
  for (const int i : looked_at) {
    if ((compared.decode_costs[i] != lowest) | (compared.decode_prices[i].full != all_full)) {
      continue;
    }
    best.Add(i, decode[i]);
  }
  return best.chosen();
}

int PricedPolicy::ChooseDecode(const RouteQuery& query, absl::Span<const Candidate> decode,
                               bool alone, const Candidate* prefill, uint64_t turn,
                               Compared& compared) {
  if (compared.decode_costs.empty()) {
    compared.decode_costs.assign(decode.size(), std::numeric_limits<double>::quiet_NaN());
    compared.decode_prices.resize(decode.size());
  }
  bool draws = decode.size() >= kDrawAmong;
  while (true) {
    LookAtDecode(query, decode, alone, prefill, turn, draws, compared);
    const int best = CheapestDecode(decode, turn, compared);
    // One of the others may have room.
    const bool all_full = best < 0 || compared.decode_prices[best].full;
    if (!draws || !all_full) return best;
    draws = false;
  }
}

void PricedPolicy::ChooseLocal(const RouteQuery& query, const Candidate& prefill,
                               absl::Span<const Candidate> decode, uint64_t turn,
                               RouteChoice* choice) const {
  if (options_.max_local_prefill_tokens == 0 || !prefill.cost_known) return;
  const int partner_at = choice->decode;
  const Candidate& partner = decode[partner_at];
  const double ready_s =
      prefill.wait_s() + prefill.computing_s() + KvMove(query, partner).SecondsFrom(prefill);
  const double elsewhere =
      ready_s + kDelayOfLater * prefill.queue_s + BehindPrompts(query, partner, ready_s);
  const double partner_step_s = DecodeStepSeconds(partner, 1, query.prompt_tokens);
  double lowest = elsewhere;
  struct Cheaper {
    int at;
    bool lends;
    double cost;
  };
  std::vector<Cheaper> cheaper;
  const auto consider = [&](const Cheaper& way) {
    if (way.cost >= elsewhere) return;
    cheaper.push_back(way);
    lowest = std::min(lowest, way.cost);
  };
  for (int i = 0; i < static_cast<int>(decode.size()); ++i) {
    const Candidate& c = decode[i];
    const int tail = query.prompt_tokens - (c.matched_blocks + c.tier_blocks) * query.block_tokens;
    if (!c.cost_known || tail > options_.max_local_prefill_tokens) continue;
    if (c.queued > c.sent || c.free_blocks < query.PagesBeside(c.matched_blocks)) continue;
    const double slower_s = DecodeStepSeconds(c, 1, query.prompt_tokens) - partner_step_s;
    consider(
        {i, false, ComputeBesideAnswers(query, c) + query.answer_tokens * std::max(0.0, slower_s)});
    if (c.lends && i != partner_at) consider({i, true, ComputeForAnother(query, c, partner)});
  }
  // Among equally cheap ways, those without a move come first.
  const double bound = lowest + std::max(kTie_s, kTieShare * lowest);
  for (const bool lends : {false, true}) {
    LeastLoaded best(turn);
    for (const Cheaper& way : cheaper) {
      if (way.lends == lends && way.cost <= bound) best.Add(way.at, decode[way.at]);
    }
    if (best.chosen() < 0) continue;
    choice->prefill = -1;
    (lends ? choice->lender : choice->decode) = best.chosen();
    choice->decision = lends ? "lent" : "local";
    return;
  }
}

void PricedPolicy::OnSent(const Candidate& prefill) {
  absl::MutexLock lock(&mutex_);
  mean_service_s_.Add(prefill.service_s);
}

// Where links are measured: the prefill worker as ever; a decode worker for it, by load and link;
// a prefill worker for that one. If it is another, once more the decode worker.
bool PricedPolicy::ChooseByLinks(const RouteQuery& query, const Candidates& prefill,
                                 absl::Span<const Candidate> decode, uint64_t turn,
                                 RouteChoice& choice, Compared& compared) {
  choice.prefill = ChoosePrefill(query, prefill, choice, compared);
  if (choice.decision == "home") {
    choice.decode =
        ChooseDecode(query, decode, /*alone=*/false, /*prefill=*/nullptr, turn, compared);
    return false;
  }
  const auto decode_for = [&](int computes) {
    const Candidate c = prefill[computes];
    return ChooseDecode(query, decode, /*alone=*/false, &c, turn, compared);
  };
  choice.decode = decode_for(choice.prefill);
  choice.decode_costs = &compared.decode_costs;
  const Candidate& partner = decode[choice.decode];
  if (query.links->IsFastest(prefill.worker(choice.prefill), partner.worker)) return true;
  KvMove(query, partner)
      .AddTo(compared.costs.all(), prefill, choice.hidden_s, &compared.moved_costs);
  compared.moved_costs.Seal();
  const int better = Cheapest(prefill, compared.moved_costs, compared.home_key);
  choice.decision = prefill.matched_blocks()[better] > 0 ? "prefix" : "load";
  choice.moved_costs = &compared.moved_costs;
  if (better == choice.prefill) return true;
  choice.prefill = better;
  const int partner_of_better = decode_for(better);
  if (partner_of_better != choice.decode) choice.moved_costs = nullptr;
  choice.decode = partner_of_better;
  return true;
}

RouteChoice PricedPolicy::Choose(const RouteQuery& query, const Candidates& prefill,
                                 absl::Span<const Candidate> decode) {
  thread_local Compared compared;  // for its memory
  compared.decode_costs.clear();
  RouteChoice choice;
  const uint64_t turn = Mix(options_.seed, turn_++);
  if (query.links != nullptr && !prefill.empty() && !decode.empty()) {
    if (!ChooseByLinks(query, prefill, decode, turn, choice, compared)) return choice;
  } else {
    const bool alone = prefill.empty();
    Candidate computes;
    if (!alone) {
      choice.prefill = ChoosePrefill(query, prefill, choice, compared);
      computes = prefill[choice.prefill];
    }
    const bool home = choice.decision == "home";
    choice.decode = decode.empty()
                        ? -1
                        : ChooseDecode(query, decode, alone, alone || home ? nullptr : &computes,
                                       turn, compared);
    if (alone) {
      choice.decision = "decode_only";
      return choice;
    }
    if (home || decode.empty()) return choice;
    choice.decode_costs = &compared.decode_costs;
  }
  ChooseLocal(query, prefill[choice.prefill], decode, turn, &choice);
  return choice;
}

}  // namespace baton::router
