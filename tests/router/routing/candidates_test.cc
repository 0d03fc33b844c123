// The columns that decisions are made over, and what is chosen by them: each compared with a plain
// pass over rows.
#include "router/routing/candidates.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "router/routing/decode_price.h"
#include "router/routing/fleet_load.h"
#include "router/routing/link_rates.h"
#include "router/routing/priced_policy.h"
#include "tests/testing/seed.h"

namespace baton::router {
namespace {

using Random = std::mt19937_64;

int Below(Random& random, int bound) { return static_cast<int>(random() % bound); }

TEST(CostColumnTest, FindsWhatASortFinds) {
  const uint64_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Random random(seed);
  CostColumn column;
  for (int trial = 0; trial < 500; ++trial) {
    const int count = Below(random, 300);
    std::vector<double> costs;
    for (int i = 0; i < count; ++i) costs.push_back(Below(random, trial % 2 == 0 ? 20 : 100'000));
    std::copy(costs.begin(), costs.end(), column.Resize(costs.size()).begin());
    column.Seal();
    std::vector<double> sorted = costs;
    std::sort(sorted.begin(), sorted.end());
    if (count > 0) {
      EXPECT_EQ(column.least(), sorted[0]);
    }
    EXPECT_EQ(column.least(), Least(costs));
    for (const int low : {1, 8}) {
      const double bound = low == 1 ? column.BoundOf<1>() : column.BoundOf<8>();
      if (count >= low) {
        EXPECT_GE(bound, sorted[low - 1]) << count;
      }
      std::vector<int> wanted, visited;
      for (int i = 0; i < count; ++i) {
        if (costs[i] <= bound) wanted.push_back(i);
      }
      column.ForEachUpTo(bound, [&visited](size_t i) {
        visited.push_back(static_cast<int>(i));
        return true;
      });
      EXPECT_EQ(visited, wanted);
      int calls = 0;
      column.ForEachUpTo(bound, [&calls](size_t) { return ++calls < 3; });
      EXPECT_EQ(calls, std::min<int>(3, static_cast<int>(wanted.size())));
    }
  }
}

TEST(CandidatesTest, KeepsThoseAskedForWithTheirColumns) {
  std::vector<Candidate> fleet(6);
  for (int i = 0; i < 6; ++i) {
    fleet[i].worker = 10 + i;
    fleet[i].matched_blocks = i;
    fleet[i].queue_s = i * 0.5;
    fleet[i].silence_s = i * 0.25;
    fleet[i].running = 100 + i;
  }
  fleet[4].fetch_s = 9;
  fleet[4].fetch_saves_s = 3;
  fleet[4].tier_blocks = 2;
  Candidates candidates = fleet;
  candidates.Prefer([&](int i) { return candidates.worker(i) > 99; });
  EXPECT_EQ(candidates.size(), 6) << "there are none such";
  candidates.Prefer([&](int i) { return candidates.worker(i) % 2 == 0; });
  candidates.KeepIf([&](int i) { return candidates.worker(i) != 10; });
  ASSERT_EQ(candidates.size(), 2);
  const Candidates copy = candidates;
  candidates = Candidates();
  EXPECT_EQ(copy.Find(12), 0);
  EXPECT_EQ(copy.Find(14), 1);
  for (const int left : {10, 11, 13, 15}) EXPECT_EQ(copy.Find(left), -1) << left;
  const Candidate last = copy[1];
  EXPECT_EQ(last.worker, 14);
  EXPECT_EQ(last.matched_blocks, 4);
  EXPECT_EQ(last.running, 104);
  EXPECT_EQ(last.silence_s, 1);
  EXPECT_EQ(last.wait_s(), 9);
  EXPECT_EQ(last.wait_s(), copy.wait_s(1));
  EXPECT_EQ(last.computing_s(), copy.computing_s(1));
  EXPECT_EQ(last.tier_blocks, 2);
  EXPECT_EQ(copy[0].fetch_s, 0);
  std::vector<Candidate> rows = fleet;
  copy.CopyTo(&rows);
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].worker, 12);
}

// Workers of several kinds come, go, fall silent and slow down; what is collected is what a pass
// over all of them would find.
void CollectsEachReadyWorker(uint64_t seed) {
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Random random(seed);
  constexpr int kWorkers = 40;
  FleetLoad fleet;
  fleet.Grow(kWorkers);
  std::map<int, int> ready, suspect;  // worker -> tokens of its blocks
  std::vector<double> idle_at_s(kWorkers);
  // As of the worker's last event, or the last time that all were brought up to date.
  std::vector<LinearCost> costs(kWorkers);
  const auto update = [&](int worker) {
    costs[worker] = fleet.PrefillCost(worker).value_or(kDefaultPrefillCost);
  };
  double now_s = 1000;
  for (int step = 0; step < 2000; ++step) {
    now_s += Below(random, 100) * 1e-3;
    const absl::Duration now = absl::Seconds(now_s);
    const int worker = Below(random, kWorkers);
    const int what = Below(random, 20);
    bool all_costs = false;
    if (what < 3) {
      const int block_tokens = Below(random, 10) == 0 ? 32 : 16;
      fleet.OnReady(worker, {v1::WORKER_ROLE_PREFILL, 7, random(), 100, block_tokens, 0,
                             absl::StrCat("gpu", Below(random, 2))});
      suspect.erase(worker);
      ready[worker] = block_tokens;
    } else if (what < 4 && ready.contains(worker)) {
      fleet.OnSuspect(worker);
      suspect[worker] = ready[worker];
      ready.erase(worker);
    } else if (what < 5) {
      fleet.OnUnavailable(worker);
      ready.erase(worker), suspect.erase(worker);
    } else if (what < 6) {
      fleet.Forget(worker);
      ready.erase(worker), suspect.erase(worker);
      idle_at_s[worker] = 0;
    } else if (what < 7) {
      fleet.Tick(now);
      all_costs = true;
    } else if (ready.contains(worker) || suspect.contains(worker)) {
      internal::v1::LoadReport report;
      report.set_remaining_work_us(Below(random, 1'000'000));
      report.mutable_prefill_cost()->set_fixed_us(1000);
      report.mutable_prefill_cost()->set_token_us(100);
      report.mutable_prefill_cost()->set_fitted_steps(10);
      auto& measured = *report.mutable_prefill_cost()->mutable_measured();
      measured.set_steps(16);
      measured.set_prompt_tokens(1600);
      measured.set_seconds((0.016 + 0.16) * (Below(random, 4) == 0 ? 4 : 1));
      all_costs = !fleet.PrefillCost(worker);
      fleet.OnReport(worker, report, now);
      idle_at_s[worker] = now_s + static_cast<double>(report.remaining_work_us()) * 1e-6;
    }
    update(worker);
    for (int i = 0; all_costs && i < kWorkers; ++i) update(i);
    std::vector<int> matched(static_cast<size_t>(Below(random, 2) == 0 ? kWorkers : kWorkers / 2));
    for (int& blocks : matched) blocks = Below(random, 8);
    for (const bool of_suspect : {false, true}) {
      FleetLoad::Query query = {v1::WORKER_ROLE_PREFILL, 7, of_suspect, 100, matched};
      Candidates found;
      fleet.Collect(query, now, &found);
      const std::map<int, int>& wanted = of_suspect ? suspect : ready;
      ASSERT_EQ(found.size(), static_cast<int>(wanted.size())) << "step " << step;
      int i = 0;
      for (const auto& [number, block_tokens] : wanted) {
        const Candidate c = found[i++];
        ASSERT_EQ(c.worker, number) << "step " << step;
        const int blocks =
            number < static_cast<int>(matched.size()) ? matched[static_cast<size_t>(number)] : 0;
        ASSERT_EQ(c.matched_blocks, blocks);
        const double cached = std::min(1.0 * blocks * block_tokens, 99.0);
        ASSERT_EQ(c.service_s, costs[number].Prefill(100 - cached, cached)) << "step " << step;
        ASSERT_NEAR(c.queue_s, std::max(0.0, idle_at_s[number] - now_s), 1e-6) << "step " << step;
      }
    }
  }
}

TEST(CandidatesTest, EachReadyWorkerIsCollectedAsItIs) {
  for (uint64_t seed = 0; seed < 5; ++seed) CollectsEachReadyWorker(seed);
  CollectsEachReadyWorker(testing::TestSeed());
}

// The hash of PricedPolicy.
uint64_t HomeHash(uint64_t key, uint64_t identity) {
  constexpr uint64_t kOdd = 0xD6E8FEB86659FD93u;
  uint64_t mixed = (key ^ identity * 0x9E3779B97F4A7C15u) * kOdd;
  mixed = (mixed ^ mixed >> 32) * kOdd;
  return mixed ^ mixed >> 32;
}

struct Exhaustive {
  int prefill = -1;
  int home = -1;
};

double NoMove(const Candidate&) { return 0; }

// As docs/design/routing.md describes it: each worker's cost, the cheapest, the deepest of those
// within a hundredth of it, the highest hash of those.
template <class Move>
Exhaustive ChooseExhaustively(const std::vector<Candidate>& fleet, const Pricing& pricing,
                              absl::Span<const kv::PrefixKey> keys, const Move& move_s) {
  int known = 0;
  double least = std::numeric_limits<double>::infinity();
  for (const Candidate& c : fleet) {
    known = std::max(known, c.matched_blocks);
    least = std::min(least, pricing.Cost(c) + move_s(c));
  }
  const uint64_t key = keys[std::min<size_t>(known, keys.size() - 1)];
  Exhaustive best;
  for (int i = 0; i < static_cast<int>(fleet.size()); ++i) {
    const Candidate& c = fleet[i];
    const auto higher = [&](int than) {
      return than < 0 || HomeHash(key, c.identity) > HomeHash(key, fleet[than].identity);
    };
    if (higher(best.home)) best.home = i;
    if (pricing.Cost(c) + move_s(c) > least + std::max(1e-4, 0.01 * least)) continue;
    const int depth = best.prefill < 0 ? -1 : fleet[best.prefill].matched_blocks;
    if (c.matched_blocks > depth || (c.matched_blocks == depth && higher(best.prefill))) {
      best.prefill = i;
    }
  }
  return best;
}

// Many equals, and queues long enough for homes.
std::vector<Candidate> RandomFleet(Random& random, int size, bool moves) {
  std::vector<Candidate> fleet(static_cast<size_t>(size));
  const bool busy = Below(random, 2) == 0;
  for (int i = 0; i < size; ++i) {
    Candidate& c = fleet[static_cast<size_t>(i)];
    c.worker = i;
    c.identity = random();
    c.matched_blocks = Below(random, 4) == 0 ? Below(random, 9) : 0;
    c.service_s = 0.1 * (9 - c.matched_blocks) * (Below(random, 10) == 0 ? 2 : 1);
    c.queue_s = busy ? Below(random, 200) * 0.2 : Below(random, 2) * Below(random, 100) * 1e-3;
    if (!moves || Below(random, 2) == 0) continue;
    c.fetch_s = Below(random, 10) * 0.05;
    c.fetch_saves_s = c.fetch_s > 0 ? c.service_s / 2 : 0;
  }
  return fleet;
}

void ChoosesLikeAnExhaustivePass(uint64_t seed) {
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Random random(seed);
  const std::vector<kv::PrefixKey> keys = {11, 12, 13, 14, 15, 16, 17, 18};
  Candidate decode;
  decode.free_blocks = 1000;
  PricedPolicy policy;
  RouteQuery query;
  query.prompt_tokens = 128;
  query.prompt_blocks = 8;
  query.keys = keys;
  for (int trial = 0; trial < 1000; ++trial) {
    query.now_s += 0.5;
    const std::vector<Candidate> fleet =
        RandomFleet(random, 1 + Below(random, trial % 10 == 0 ? 1000 : 40), Below(random, 3) == 0);
    const RouteChoice choice = policy.Choose(query, fleet, {decode});
    const Exhaustive wanted = ChooseExhaustively(fleet, choice.pricing, keys, &NoMove);
    ASSERT_EQ(choice.prefill, wanted.prefill) << "trial " << trial;
    if (choice.pricing.home != kNoWorker) {
      EXPECT_EQ(choice.pricing.home, wanted.home);
    }
    ASSERT_NE(choice.prefill_costs, nullptr);
    for (size_t i = 0; i < fleet.size(); ++i) {
      ASSERT_EQ((*choice.prefill_costs)[i], choice.pricing.Cost(fleet[i]));
    }
    policy.OnSent(fleet[static_cast<size_t>(choice.prefill)]);
  }
}

TEST(CandidatesTest, ThePricedPolicyChoosesLikeAnExhaustivePass) {
  for (uint64_t seed = 0; seed < 5; ++seed) ChoosesLikeAnExhaustivePass(seed);
  ChoosesLikeAnExhaustivePass(testing::TestSeed());
}

// Links of which some stand out, and some are unknown.
LinkRates RandomLinks(Random& random, int prefill_workers, int decode_workers) {
  LinkRates links;
  const int count = prefill_workers + decode_workers;
  links.Grow(count);
  for (int worker = 0; worker < count; ++worker) links.Joins(worker, absl::StrCat("w", worker), 1);
  for (int worker = prefill_workers; worker < count; ++worker) {
    internal::v1::LoadReport report;
    for (int i = Below(random, 10); i > 0; --i) {
      internal::v1::LinkRate& link = *report.add_links();
      link.set_worker_id(absl::StrCat("w", Below(random, prefill_workers)));
      link.set_epoch(1);
      link.set_bytes_per_second(1e7 * (1 + Below(random, 4) * Below(random, 30)));
    }
    links.OnReport(worker, report, 0);
  }
  links.Tick(0);
  return links;
}

// The cheapest of those that the request looks at: half of many, unless none of them has room. Of
// equals one at random: the k-th takes the place of the one before with the chance 1/k.
int ChooseDecodeExhaustively(const RouteQuery& query, const std::vector<Candidate>& decode,
                             const Candidate& prefill, uint64_t turn) {
  for (const bool draws : {decode.size() >= 8, false}) {
    int best = -1;
    uint64_t equals = 0;
    std::tuple<bool, double, int, int> lowest;
    for (size_t i = 0; i < decode.size(); ++i) {
      const Candidate& c = decode[i];
      const uint64_t chance = HomeHash(turn, i);
      const bool drawn = chance >> 63 == 0;
      if (draws && !drawn && c.matched_blocks == 0 && c.running + c.queued > 0) continue;
      const DecodePrice price = PriceDecode(query, c, /*alone=*/false, &prefill);
      const std::tuple rank = {price.full, price.total(), c.running + c.queued, -c.free_blocks};
      if (best < 0 || rank < lowest) {
        best = static_cast<int>(i), lowest = rank, equals = 1;
      } else if (rank == lowest && chance % ++equals == 0) {
        best = static_cast<int>(i);
      }
    }
    if (best >= 0 && !std::get<0>(lowest)) return best;
    if (!draws) return best;
  }
  return -1;
}

// The three steps of docs/design/routing.md, each a plain pass.
void ChoosesByLinksLikeAnExhaustivePass(uint64_t seed) {
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Random random(seed);
  const std::vector<kv::PrefixKey> keys = {11, 12, 13, 14, 15, 16, 17, 18};
  PricedOptions options;
  options.seed = seed;
  options.max_local_prefill_tokens = 0;
  PricedPolicy policy(options);
  RouteQuery query;
  query.prompt_tokens = 128;
  query.prompt_blocks = 8;
  query.keys = keys;
  query.block_transfer_s = 1e-2;
  query.kv.block_bytes = 4e7;
  query.layer_share = 1.0 / 32;
  query.answer_tokens = query.mean_answer_tokens = 100;
  int again = 0;
  uint64_t turn = 0;
  for (int trial = 0; trial < 400; ++trial) {
    query.now_s += 0.5;
    const std::vector<Candidate> fleet =
        RandomFleet(random, 1 + Below(random, trial % 10 == 0 ? 1000 : 40), Below(random, 3) == 0);
    std::vector<Candidate> decode(static_cast<size_t>(1 + Below(random, 40)));
    const bool alike = trial % 3 == 0;
    for (size_t i = 0; i < decode.size(); ++i) {
      Candidate& c = decode[i];
      c.worker = static_cast<int>(fleet.size() + i);
      c.matched_blocks = Below(random, 3) == 0 ? Below(random, 9) : 0;
      c.running = Below(random, alike ? 2 : 20);
      c.total_blocks = 10'000;
      c.free_blocks = Below(random, 4) == 0 ? Below(random, 8) : 1000;
      c.context_tokens =
          c.running * (alike ? 100 : 100 + Below(random, 1000)) + (alike ? 0 : static_cast<int>(i));
      c.queue_s = Below(random, 3) == 0 ? 0.1 * Below(random, 30) : 0;
    }
    const LinkRates links =
        RandomLinks(random, static_cast<int>(fleet.size()), static_cast<int>(decode.size()));
    if (!links.any()) continue;
    query.links = &links;
    const RouteChoice choice = policy.Choose(query, fleet, decode);
    const Pricing& pricing = choice.pricing;
    const uint64_t mixed_turn = HomeHash(seed, turn++);
    double hidden_s = fleet[0].service_s;
    for (const Candidate& c : fleet) hidden_s = std::min(hidden_s, c.service_s);
    ASSERT_EQ(choice.hidden_s, hidden_s);
    int prefill = ChooseExhaustively(fleet, pricing, keys, &NoMove).prefill;
    int partner =
        ChooseDecodeExhaustively(query, decode, fleet[static_cast<size_t>(prefill)], mixed_turn);
    const Candidate& at = decode[static_cast<size_t>(partner)];
    if (!links.IsFastest(prefill, at.worker)) {
      const KvMove move(query, at);
      const int better = ChooseExhaustively(fleet, pricing, keys, [&](const Candidate& c) {
                           return move.SecondsFrom(c.worker, hidden_s);
                         }).prefill;
      if (better != prefill) {
        ++again;
        prefill = better;
        partner = ChooseDecodeExhaustively(query, decode, fleet[static_cast<size_t>(prefill)],
                                           mixed_turn);
      }
    }
    ASSERT_EQ(choice.prefill, prefill) << "trial " << trial;
    ASSERT_EQ(choice.decode, partner) << "trial " << trial;
    for (size_t i = 0; i < fleet.size(); ++i) {
      ASSERT_EQ((*choice.prefill_costs)[i], pricing.Cost(fleet[i]));
      if (choice.moved_costs == nullptr) continue;
      const KvMove move(query, decode[static_cast<size_t>(partner)]);
      ASSERT_EQ((*choice.moved_costs)[i],
                pricing.Cost(fleet[i]) + move.SecondsFrom(static_cast<int>(i), hidden_s));
    }
    for (size_t i = 0; i < decode.size(); ++i) {
      const double told = (*choice.decode_costs)[i];
      const Candidate& computes = fleet[static_cast<size_t>(prefill)];
      ASSERT_TRUE(std::isnan(told) ||
                  told == PriceDecode(query, decode[i], /*alone=*/false, &computes).total());
    }
    policy.OnSent(fleet[static_cast<size_t>(prefill)]);
  }
  EXPECT_GT(again, 20);
}

TEST(CandidatesTest, ThePricedPolicyChoosesByLinksLikeAnExhaustivePass) {
  for (uint64_t seed = 0; seed < 5; ++seed) ChoosesByLinksLikeAnExhaustivePass(seed);
  ChoosesByLinksLikeAnExhaustivePass(testing::TestSeed());
}

}  // namespace
}  // namespace baton::router
