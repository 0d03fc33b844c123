#include "router/routing/priced_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <vector>

#include "absl/strings/str_cat.h"
#include "router/routing/link_rates.h"

namespace baton::router {
namespace {

Candidate Prefill(int worker, int matched_blocks, double queue_s, double service_s) {
  Candidate c;
  c.worker = worker;
  c.identity = 1000 + static_cast<uint64_t>(worker) * 7919;
  c.matched_blocks = matched_blocks;
  c.queue_s = queue_s;
  c.service_s = service_s;
  c.cost_known = true;
  return c;
}

Candidate Decode(int worker, int running, int free_blocks, double step_s) {
  Candidate c;
  c.worker = worker;
  c.running = running;
  c.free_blocks = free_blocks;
  c.total_blocks = 1000;
  c.step = {step_s, 0, 0};
  return c;
}

const std::vector<Candidate> kOneDecode = {Decode(100, 0, 1000, 0.01)};
const std::vector<kv::PrefixKey> kKeys = {11, 12, 13, 14, 15, 16, 17, 18};

RouteQuery Query(int prompt_blocks = 8) {
  RouteQuery query;
  query.prompt_tokens = prompt_blocks * 16;
  query.prompt_blocks = prompt_blocks;
  query.keys = kKeys;
  query.block_transfer_s = 1e-3;
  query.answer_tokens = query.mean_answer_tokens = 100;
  return query;
}

// A gain that does not move, and nothing else that makes a price.
PricedOptions Gain(double gain) {
  PricedOptions options;
  options.min_gain = options.max_gain = gain;
  options.own_queue = options.home_discount = 0;
  options.max_price = 8;
  return options;
}

double ChosenPrice(PricedPolicy& policy, const std::vector<Candidate>& prefill,
                   const RouteQuery& query = Query()) {
  const RouteChoice choice = policy.Choose(query, prefill, kOneDecode);
  return choice.pricing.Price(prefill[choice.prefill]);
}

// Sends prompts of that service time until the mean service time is it.
void Settle(PricedPolicy& policy, double service_s) {
  for (int i = 0; i < 500; ++i) {
    policy.Choose(Query(), {Prefill(0, 0, 0, service_s)}, kOneDecode);
    policy.OnSent(Prefill(0, 0, 0, service_s));
  }
}

TEST(PricedPolicyTest, AnIdleFleetTakesWhoeverIsDoneFirst) {
  PricedPolicy policy(Gain(1));
  Settle(policy, 1);
  const RouteChoice choice = policy.Choose(
      Query(), {Prefill(0, 8, 0.6, 0.1), Prefill(1, 0, 0, 0.65), Prefill(2, 0, 0, 0.9)},
      kOneDecode);
  // 0.6 + 0.1 is later than 0.65; the queues' mean of 0.2 makes the price 0.2, too little to turn
  // it.
  EXPECT_NEAR(choice.pricing.fleet, 0.2, 1e-3);
  EXPECT_EQ(choice.prefill, 0) << "0.6 + 1.2 * 0.1 = 0.72 is less than 1.2 * 0.65 = 0.78";
  const RouteChoice idle =
      policy.Choose(Query(), {Prefill(0, 8, 0.06, 0.1), Prefill(1, 0, 0, 0.12)}, kOneDecode);
  EXPECT_EQ(idle.prefill, 1);
  EXPECT_EQ(idle.decision, "load");
}

TEST(PricedPolicyTest, ABusyFleetComputesLeast) {
  PricedPolicy policy(Gain(1));
  Settle(policy, 1);
  // Greedy: 5 + 0.1 against 4 + 1. Priced: κ = 4.5 / 1.
  const RouteChoice choice =
      policy.Choose(Query(), {Prefill(0, 8, 5, 0.1), Prefill(1, 0, 4, 1)}, kOneDecode);
  EXPECT_NEAR(choice.pricing.fleet, 4.5, 0.01);
  EXPECT_EQ(choice.prefill, 0);
  EXPECT_EQ(choice.decision, "prefix");
}

TEST(PricedPolicyTest, ThePriceIsBoundedAndScaledByTheGain) {
  PricedPolicy bounded(Gain(1));
  Settle(bounded, 0.1);
  EXPECT_EQ(ChosenPrice(bounded, {Prefill(0, 0, 50, 0.1)}), 8);
  PricedPolicy doubled(Gain(2));
  Settle(doubled, 1);
  EXPECT_NEAR(ChosenPrice(doubled, {Prefill(0, 0, 3, 1)}), 6, 0.01);
  PricedPolicy greedy(Gain(0));
  Settle(greedy, 1);
  EXPECT_EQ(ChosenPrice(greedy, {Prefill(0, 0, 3, 1)}), 0);
}

TEST(PricedPolicyTest, TheGainFollowsTheShareOfBusyWorkersSlowly) {
  PricedOptions options;
  options.max_gain = 4;
  PricedPolicy policy(options);
  Settle(policy, 1);
  const auto price = [&policy](double now_s, double first_queue_s) {
    RouteQuery query = Query();
    query.now_s = now_s;
    return policy.Choose(query, {Prefill(0, 0, first_queue_s, 1), Prefill(1, 0, 1, 1)}, kOneDecode)
        .pricing.fleet;
  };
  EXPECT_NEAR(price(0, 1), 0.5, 0.01) << "idle until now: the least gain";
  double last = 0.5;
  // Two thirds of the time both are busy, one third one: ρ = 5/6, ρ/(1 − ρ) = 5, at most 4.
  for (int i = 1; i <= 6000; ++i) last = price(0.1 * i, i % 3 == 0 ? 0 : 1);
  EXPECT_NEAR(price(600, 1), 4, 1e-6);
  // One of them alone: ρ falls to 1/2 with the memory of a minute.
  for (int i = 1; i <= 600; ++i) price(600 + 0.1 * i, 0);
  const double rho = 0.5 + (5.0 / 6 - 0.5) * std::exp(-1);
  EXPECT_NEAR(price(660, 1), rho / (1 - rho), 0.02);
  for (int i = 1; i <= 6000; ++i) last = price(660 + 0.1 * i, 0);
  EXPECT_NEAR(last, 1 * 0.5, 0.01);
}

TEST(PricedPolicyTest, WhileOthersAreIdleAQueueIsForThoseWhosePrefixIsThere) {
  PricedPolicy policy;
  Settle(policy, 1);
  const std::vector<Candidate> half_busy = {Prefill(0, 0, 2, 1.0), Prefill(1, 0, 0, 3.2)};
  const RouteChoice choice = policy.Choose(Query(), half_busy, kOneDecode);
  // All were idle: ρ = 0. κ: 0.5 · 1 of the fleet, and 0.5 · 2 of the queue.
  EXPECT_NEAR(choice.pricing.Price(half_busy[0]), 1.5, 1e-3);
  EXPECT_NEAR(choice.pricing.Price(half_busy[1]), 0.5, 1e-3);
  EXPECT_NEAR(choice.pricing.Cost(half_busy[0]), 2 + 2.5 * 1.0, 1e-2);
  EXPECT_EQ(choice.prefill, 0);
  // Busy for long: a second of the worker's own queue costs no more than that of any other.
  RouteQuery query = Query();
  RouteChoice busy;
  for (int i = 1; i <= 600; ++i) {
    query.now_s = i;
    busy = policy.Choose(query, {Prefill(0, 0, 2, 1), Prefill(1, 0, 2, 1)}, kOneDecode);
  }
  EXPECT_LT(busy.pricing.own_queue, 1e-3);
}

// Routers that have sent prompts with one beginning elsewhere, and have not been told so, agree.
TEST(PricedPolicyTest, TheLongerPromptsWaitTheMoreAHomeIsWorth) {
  const auto settled = [] {
    auto policy = std::make_unique<PricedPolicy>();
    Settle(*policy, 1);
    return policy;
  };
  const auto fleet = [](double queue_s) {
    std::vector<Candidate> all;
    for (int i = 0; i < 8; ++i) all.push_back(Prefill(i, 0, queue_s, 1));
    return all;
  };
  const auto idle = settled()->Choose(Query(), fleet(0.2), kOneDecode);
  EXPECT_EQ(idle.pricing.home, -1);
  const auto first = settled()->Choose(Query(), fleet(20), kOneDecode);
  EXPECT_NEAR(first.pricing.home_discount, 0.3 / 4, 1e-9);
  ASSERT_GE(first.pricing.home, 0);
  EXPECT_EQ(first.prefill, first.pricing.home);
  // A little more to wait there does not matter, much does.
  std::vector<Candidate> other = fleet(20);
  other[first.prefill].queue_s = 20.3;
  EXPECT_EQ(settled()->Choose(Query(), other, kOneDecode).prefill, first.prefill);
  other[first.prefill].queue_s = 40;
  EXPECT_NE(settled()->Choose(Query(), other, kOneDecode).prefill, first.prefill);
  // The next turn of the session, longer by two blocks, of which no router was told.
  std::vector<kv::PrefixKey> longer = kKeys;
  longer.insert(longer.end(), {19, 20});
  RouteQuery next = Query(10);
  next.keys = longer;
  EXPECT_EQ(settled()->Choose(next, fleet(20), kOneDecode).prefill, first.prefill);
  // Prompts without a whole block share nothing.
  RouteQuery short_prompt = Query(1);
  short_prompt.keys = {};
  std::set<int> homes;
  auto policy = settled();
  for (int i = 0; i < 64; ++i) {
    homes.insert(policy->Choose(short_prompt, fleet(20), kOneDecode).prefill);
  }
  EXPECT_EQ(homes.size(), 8u);
}

TEST(PricedPolicyTest, TiesGoToTheDeepestMatchThenToOneHome) {
  PricedPolicy policy;
  EXPECT_EQ(
      policy
          .Choose(Query(), {Prefill(0, 1, 0, 0.5), Prefill(1, 3, 0, 0.5), Prefill(2, 2, 0, 0.5)},
                  kOneDecode)
          .prefill,
      1);
  std::vector<Candidate> fleet;
  for (int i = 0; i < 10; ++i) fleet.push_back(Prefill(i, 0, 0, 0.5));
  const int home = fleet[policy.Choose(Query(), fleet, kOneDecode).prefill].worker;
  // Another router, which numbers and orders the workers otherwise.
  std::reverse(fleet.begin(), fleet.end());
  for (Candidate& c : fleet) c.worker += 50;
  PricedPolicy other;
  EXPECT_EQ(fleet[other.Choose(Query(), fleet, kOneDecode).prefill].worker, home + 50);
  // Other prompts have other homes.
  std::set<int> homes;
  for (uint64_t key = 1; key <= 64; ++key) {
    const std::vector<kv::PrefixKey> keys = {key};
    RouteQuery query = Query(1);
    query.keys = keys;
    homes.insert(policy.Choose(query, fleet, kOneDecode).prefill);
  }
  EXPECT_EQ(homes.size(), 10u);
}

// What is cached says nothing of where the rest of a prompt belongs.
TEST(PricedPolicyTest, TheHomeIsByTheFirstBlockThatNobodyHas) {
  std::vector<Candidate> fleet;
  for (int i = 0; i < 16; ++i) fleet.push_back(Prefill(i, 2, 0, 0.5));
  const auto home = [&fleet](std::vector<kv::PrefixKey> keys) {
    PricedPolicy policy;
    RouteQuery query = Query(4);
    query.keys = keys;
    return policy.Choose(query, fleet, kOneDecode).prefill;
  };
  std::set<int> by_third, by_fourth;
  for (uint64_t i = 0; i < 32; ++i) {
    by_third.insert(home({1, 2, 100 + i, 7}));
    by_fourth.insert(home({1, 2, 3, 100 + i}));
  }
  EXPECT_GT(by_third.size(), 8u);
  EXPECT_EQ(by_fourth.size(), 1u);
}

// What everyone begins with is no reason to meet, what few have is.
TEST(PricedPolicyTest, WithoutReportsTheHomeIsByTheFirstBlockThatHalfOfTheFleetLacks) {
  std::vector<Candidate> fleet;
  for (int i = 0; i < 16; ++i) {
    fleet.push_back(Prefill(i, i < 7 ? 3 : i < 8 ? 2 : 1, 0, 0.5));
    fleet.back().silence_s = kStaleReport_s + 0.1;
  }
  const auto home = [&fleet](std::vector<kv::PrefixKey> keys) {
    PricedPolicy policy;
    RouteQuery query = Query(4);
    query.keys = keys;
    return policy.Choose(query, fleet, kOneDecode).prefill;
  };
  std::set<int> by_second, by_third, by_fourth;
  for (uint64_t i = 0; i < 32; ++i) {
    by_second.insert(home({1, 100 + i, 3, 4}));
    by_third.insert(home({1, 2, 100 + i, 4}));
    by_fourth.insert(home({1, 2, 3, 100 + i}));
  }
  EXPECT_EQ(by_second.size(), 1u) << "eight have it";
  EXPECT_GT(by_third.size(), 8u) << "seven have it";
  EXPECT_EQ(by_fourth.size(), 1u);
}

TEST(PricedPolicyTest, WithoutFreshReportsPromptsGoHome) {
  PricedPolicy policy;
  std::vector<Candidate> fleet;
  for (int i = 0; i < 8; ++i) {
    fleet.push_back(Prefill(i, 0, i, 0.5));
    fleet.back().silence_s = kStaleReport_s + 0.1;
  }
  const RouteChoice first = policy.Choose(Query(), fleet, kOneDecode);
  EXPECT_EQ(first.decision, "home");
  for (Candidate& c : fleet) c.queue_s = 7 - c.queue_s;
  EXPECT_EQ(policy.Choose(Query(), fleet, kOneDecode).prefill, first.prefill)
      << "old queues say nothing";
  fleet[3].silence_s = 0;
  EXPECT_NE(policy.Choose(Query(), fleet, kOneDecode).decision, "home");
}

TEST(PricedPolicyTest, DecodeNeedsRoomThenTheShortestAnswer) {
  PricedPolicy policy;
  const std::vector<Candidate> prefill = {Prefill(0, 0, 0, 0.1)};
  EXPECT_EQ(policy.Choose(Query(), prefill, {Decode(1, 0, 7, 0.01), Decode(2, 9, 8, 0.05)}).decode,
            1)
      << "the idle one has no room for eight blocks";
  EXPECT_EQ(
      policy.Choose(Query(), prefill, {Decode(1, 3, 50, 0.02), Decode(2, 3, 50, 0.01)}).decode, 1);
  // 8 blocks at 1 ms against 100 tokens at 0.05 ms more.
  std::vector<Candidate> decode = {Decode(1, 3, 50, 0.01), Decode(2, 3, 50, 0.01005)};
  decode[1].matched_blocks = 7;
  EXPECT_EQ(policy.Choose(Query(), prefill, decode).decode, 1) << "it holds the session's blocks";
  decode[1].step.fixed_s = 0.0102;
  EXPECT_EQ(policy.Choose(Query(), prefill, decode).decode, 0);
  // Those who wait for room there wait for whole answers.
  decode = {Decode(1, 4, 50, 0.01), Decode(2, 4, 50, 0.012)};
  decode[0].queued = 4;
  EXPECT_EQ(policy.Choose(Query(), prefill, decode).decode, 1);
  decode[0].sent = 4;
  EXPECT_EQ(policy.Choose(Query(), prefill, decode).decode, 0) << "they do not wait, but come";
}

TEST(PricedPolicyTest, EqualDecodeWorkersTakeTurns) {
  PricedPolicy policy;
  std::vector<int> chosen(4);
  std::vector<Candidate> decode;
  for (int i = 0; i < 4; ++i) decode.push_back(Decode(i, 2, 100, 0.01));
  for (int i = 0; i < 400; ++i) {
    ++chosen[policy.Choose(Query(), {Prefill(9, 0, 0, 0.1)}, decode).decode];
  }
  for (int count : chosen) EXPECT_GT(count, 50);
}

// Without this rule, the first of equal workers would always be chosen, or chance would favour one
// for a while.
TEST(PricedPolicyTest, OfEqualDecodeWorkersTheOneSentNothingForLongestIsNext) {
  PricedPolicy policy;
  for (const bool local : {false, true}) {
    std::vector<Candidate> prefill = {Prefill(9, 0, 0, 0.1)};
    std::vector<Candidate> decode = {Decode(1, 0, 100, 0.01), Decode(2, 0, 100, 0.01)};
    for (Candidate& c : decode) {
      c.cost_known = local;
      c.service_s = 0.003;
    }
    std::vector<int> chosen(2);
    for (int i = 1; i <= 80; ++i) {
      const RouteChoice choice = policy.Choose(Query(), prefill, decode);
      EXPECT_EQ(choice.decision == "local", local);
      ++chosen[choice.decode];
      decode[choice.decode].last_sent = i;
    }
    EXPECT_EQ(chosen, std::vector<int>({40, 40}));
    // The load decides before this rule.
    decode[0].running = decode[0].last_sent > decode[1].last_sent ? 0 : 1;
    decode[1].running = 1 - decode[0].running;
    EXPECT_EQ(policy.Choose(Query(), prefill, decode).decode, decode[0].running);
  }
}

// Several routers that have heard the same reports.
TEST(PricedPolicyTest, RoutersDoNotAllFillTheSameGap) {
  std::vector<Candidate> decode;
  for (int i = 0; i < 16; ++i) decode.push_back(Decode(i, i == 3 ? 4 : 6, 500, 0.01));
  int to_the_gap = 0;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    PricedOptions options;
    options.seed = seed;
    PricedPolicy router(options);
    to_the_gap += router.Choose(Query(), {Prefill(99, 0, 0, 0.1)}, decode).decode == 3;
  }
  EXPECT_GT(to_the_gap, 25);
  EXPECT_LT(to_the_gap, 75);
}

TEST(PricedPolicyTest, IdleWorkersAndTheOnlyOneWithRoomAreAlwaysFound) {
  PricedPolicy policy;
  const std::vector<Candidate> prefill = {Prefill(99, 0, 0, 0.1)};
  std::vector<Candidate> decode;
  for (int i = 0; i < 16; ++i) decode.push_back(Decode(i, 6, 500, 0.01));
  decode[5].running = 0;
  for (int i = 0; i < 50; ++i) EXPECT_EQ(policy.Choose(Query(), prefill, decode).decode, 5);
  decode[5].running = 6;
  for (Candidate& c : decode) c.free_blocks = c.worker == 11 ? 500 : 2;
  for (int i = 0; i < 50; ++i) EXPECT_EQ(policy.Choose(Query(), prefill, decode).decode, 11);
}

TEST(PricedPolicyTest, ATailIsComputedWhereItIsCheaperThanToBringTheRest) {
  PricedPolicy policy;
  const std::vector<Candidate> prefill = {Prefill(0, 7, 0, 0.010)};
  std::vector<Candidate> decode = {Decode(1, 2, 100, 0.01), Decode(2, 2, 100, 0.01)};
  decode[0].matched_blocks = 7;
  decode[0].service_s = 0.003;
  decode[0].cost_known = true;
  RouteChoice choice = policy.Choose(Query(), prefill, decode);
  EXPECT_EQ(choice.decision, "local") << "3 · 3 ms against 10 ms and one block's way";
  EXPECT_EQ(choice.prefill, -1);
  EXPECT_EQ(choice.decode, 0);
  decode[0].running = 4;
  EXPECT_EQ(policy.Choose(Query(), prefill, decode).prefill, 0) << "four others would wait for it";
  decode[0].running = 2;
  decode[0].cost_known = false;
  EXPECT_EQ(policy.Choose(Query(), prefill, decode).prefill, 0) << "nobody knows what it takes";
  decode[0].cost_known = true;
  decode[0].matched_blocks = 0;
  PricedOptions short_tails;
  short_tails.max_local_prefill_tokens = 100;
  EXPECT_EQ(PricedPolicy(short_tails).Choose(Query(), prefill, decode).prefill, 0);
}

// Long prompts, too: what decides is the price.
TEST(PricedPolicyTest, AnIdleDecodeWorkerComputesWhatItAnswers) {
  for (const int tokens : {256, 1024, 8192}) {
    for (const double link_block_s : {1e-6, 1e-4, 1e-3, 1e-2}) {
      PricedPolicy policy;
      RouteQuery query = Query(tokens / 16);
      query.block_transfer_s = link_block_s;
      const double service_s = 0.005 + 1.25e-4 * tokens;
      Candidate decode = Decode(1, 0, 1000, 0.01);
      decode.service_s = service_s;
      decode.cost_known = true;
      EXPECT_EQ(policy.Choose(query, {Prefill(0, 0, 0, service_s)}, {decode}).decision, "local")
          << tokens << " tokens, " << link_block_s << " s a block";
      // With half of a batch of 16 at work, its delay costs more than any but the slowest link.
      decode.running = 8;
      EXPECT_EQ(policy.Choose(query, {Prefill(0, 0, 0, service_s)}, {decode}).decision,
                link_block_s * query.prompt_blocks > 8.1 * service_s ? "local" : "load")
          << tokens << " tokens, " << link_block_s << " s a block";
      // What is computed already is not computed again.
      decode.running = 0;
      EXPECT_EQ(policy.Choose(query, {Prefill(0, tokens / 16, 0, 0.006)}, {decode}).decision,
                link_block_s * query.prompt_blocks + 0.006 > service_s ? "local" : "prefix")
          << tokens << " tokens, " << link_block_s << " s a block";
    }
  }
}

// Those that were sent there and have not been reported run by the time that it computes.
TEST(PricedPolicyTest, WhatWasSentThereIsDelayedLikeWhatRuns) {
  PricedPolicy policy;
  Candidate decode = Decode(1, 0, 1000, 0.01);
  decode.service_s = 0.010;
  decode.cost_known = true;
  const std::vector<Candidate> prefill = {Prefill(0, 0, 0, 0.010)};
  EXPECT_EQ(policy.Choose(Query(), prefill, {decode}).decision, "local");
  decode.queued = decode.sent = 1;
  EXPECT_EQ(policy.Choose(Query(), prefill, {decode}).decision, "load") << "20 ms against 10 + 8";
}

// They wait for the prefill worker, however long its queue is.
TEST(PricedPolicyTest, AnswersWhoseKvIsOnItsWayAreNotDelayed) {
  PricedPolicy policy;
  Candidate decode = Decode(1, 0, 1000, 0.01);
  decode.service_s = 0.1;
  decode.cost_known = true;
  std::vector<Candidate> prefill = {Prefill(0, 0, 0.2, 0.1)};
  decode.running = 5;
  decode.queued = decode.sent = 3;
  EXPECT_EQ(policy.Choose(Query(), prefill, {decode}).decision, "load");
  decode.receiving = 8;
  EXPECT_EQ(policy.Choose(Query(), prefill, {decode}).decision, "local") << "0.15 s against 0.4";
  prefill[0].queue_s = 0.01;
  EXPECT_EQ(policy.Choose(Query(), prefill, {decode}).decision, "load")
      << "the one that comes next waits for half of 0.1 s: against 0.115";
  // Two prefill workers send two at a time.
  RouteQuery two = Query();
  two.prefill_workers = 2;
  prefill = {Prefill(0, 0, 0.06, 0.1), Prefill(2, 0, 0.06, 0.1)};
  EXPECT_EQ(policy.Choose(two, prefill, {decode}).decision, "load") << "0.2 s against 0.19";
  decode.receiving = 1;
  decode.running = 1;
  decode.queued = decode.sent = 0;
  EXPECT_EQ(policy.Choose(two, prefill, {decode}).decision, "local") << "0.15 s";
}

// Decode worker 1 answers; decode worker 2 has the bigger batch, which is slower.
class LendingTest : public ::testing::Test {
 protected:
  LendingTest() {
    for (Candidate& c : decode_) {
      c.cost_known = true;
      c.service_s = 0.1;
    }
    decode_[0].queue_s = 1;
    decode_[1].step.fixed_s = 0.05;
    decode_[1].lends = true;
  }
  RouteChoice Choose(const PricedOptions& options = PricedOptions()) {
    return PricedPolicy(options).Choose(Query(), prefill_, decode_);
  }

  std::vector<Candidate> prefill_ = {Prefill(0, 0, 2, 0.1)};
  std::vector<Candidate> decode_ = {Decode(1, 0, 1000, 0.01), Decode(2, 0, 1000, 0.01)};
};

TEST_F(LendingTest, AnIdleDecodeWorkerComputesForAnotherInABurst) {
  const RouteChoice choice = Choose();
  EXPECT_EQ(choice.decision, "lent")
      << "1.0 s, against 1.1 at the worker itself and 3.1 at the prefill worker";
  EXPECT_EQ(choice.prefill, -1);
  EXPECT_EQ(choice.lender, 1);
  EXPECT_EQ(choice.decode, 0);
}

TEST_F(LendingTest, OnlyAWorkerThatOffersItComputesForOthers) {
  decode_[1].lends = false;
  const RouteChoice choice = Choose();
  EXPECT_EQ(choice.decision, "local");
  EXPECT_EQ(choice.lender, -1);
}

TEST_F(LendingTest, ALenderIsPricedByItsQueueItsAnswersAndTheMove) {
  decode_[1].queue_s = 1.2;
  EXPECT_EQ(Choose().decision, "local");
  decode_[1].queue_s = 0;
  decode_[1].running = 12;
  EXPECT_EQ(Choose().decision, "local") << "12 answers are delayed by 0.1 s each";
  decode_[1].running = 0;
  decode_[1].free_blocks = 7;
  EXPECT_EQ(Choose().decision, "local") << "it has no room";
  decode_[1].free_blocks = 1000;
  decode_[1].cost_known = false;
  EXPECT_EQ(Choose().decision, "local") << "its cost is not known";
  decode_[1].cost_known = true;
  prefill_[0].queue_s = decode_[0].queue_s = 0;
  EXPECT_EQ(Choose().decision, "local") << "nothing is to be gained";
  PricedOptions none;
  none.max_local_prefill_tokens = 0;
  decode_[0].queue_s = 1;
  EXPECT_EQ(Choose(none).decision, "load");
}

TEST(PricedPolicyTest, AloneTheDecodeWorkerIsChosenByItsOwnPrefill) {
  PricedPolicy policy;
  std::vector<Candidate> decode = {Decode(1, 0, 100, 0.01), Decode(2, 0, 100, 0.01)};
  decode[0].queue_s = 2;
  decode[0].service_s = 0.1;
  decode[1].service_s = 1.5;
  const RouteChoice choice = policy.Choose(Query(), {}, decode);
  EXPECT_EQ(choice.decode, 1);
  EXPECT_EQ(choice.prefill, -1);
  EXPECT_EQ(choice.decision, "decode_only");
}

// Prefill workers 0 and 1, decode workers 2 and 3, blocks of 1 MB.
class LinkPriceTest : public ::testing::Test {
 protected:
  LinkPriceTest() {
    links_.Grow(4);
    for (int worker = 0; worker < 4; ++worker) links_.Joins(worker, absl::StrCat("w", worker), 1);
    query_ = Query();
    query_.kv.block_bytes = 1e6;
    query_.layer_share = 1.0 / 32;
    query_.links = &links_;
  }
  // Bytes a second, by prefill and decode worker.
  void Measured(const std::vector<std::vector<double>>& rates) {
    for (int d = 0; d < 2; ++d) {
      internal::v1::LoadReport report;
      for (int p = 0; p < 2; ++p) {
        if (rates[p][d] == 0) continue;
        internal::v1::LinkRate& link = *report.add_links();
        link.set_worker_id(absl::StrCat("w", p));
        link.set_epoch(1);
        link.set_bytes_per_second(rates[p][d]);
      }
      links_.OnReport(2 + d, report, 0);
    }
    links_.Tick(0);
  }
  // How often each of the four pairs is chosen, by prefill and decode worker.
  std::vector<std::vector<int>> Chosen(int times = 40) {
    std::vector<std::vector<int>> chosen(2, std::vector<int>(2, 0));
    for (int i = 0; i < times; ++i) {
      // Another beginning each time, for the hash that breaks ties.
      keys_[0] = 1000 + static_cast<uint64_t>(i);
      query_.keys = keys_;
      const RouteChoice choice = policy_.Choose(query_, prefill_, decode_);
      EXPECT_GE(choice.prefill, 0);
      ++chosen[choice.prefill][choice.decode];
    }
    return chosen;
  }
  // Of 40 requests.
  int ToPrefill(int prefill) {
    const auto chosen = Chosen();
    return chosen[prefill][0] + chosen[prefill][1];
  }
  int ToDecode(int decode) {
    const auto chosen = Chosen();
    return chosen[0][decode] + chosen[1][decode];
  }

  LinkRates links_;
  std::vector<kv::PrefixKey> keys_ = kKeys;
  RouteQuery query_;
  PricedPolicy policy_;
  std::vector<Candidate> prefill_ = {Prefill(0, 0, 0, 0.002), Prefill(1, 0, 0, 0.002)};
  std::vector<Candidate> decode_ = {Decode(2, 1, 500, 0.01), Decode(3, 1, 500, 0.01)};
};

TEST_F(LinkPriceTest, ALinkThatIsTenTimesSlowerLosesItsRequestsToTheOthers) {
  Measured({{1e8, 1e9}, {1e9, 1e9}});
  const auto chosen = Chosen();
  EXPECT_EQ(chosen[0][0], 0) << "80 ms beside 8";
  EXPECT_GT(chosen[0][1] + chosen[1][1], 5);
  EXPECT_GT(chosen[1][0] + chosen[1][1], 5);
}

TEST_F(LinkPriceTest, EachRackKeepsItsPairs) {
  Measured({{1e9, 1e8}, {1e8, 1e9}});
  const auto chosen = Chosen();
  EXPECT_GT(chosen[0][0], 5);
  EXPECT_GT(chosen[1][1], 5);
  EXPECT_EQ(chosen[0][1] + chosen[1][0], 0);
}

TEST_F(LinkPriceTest, AWorkerBehindASlowNicLosesItsRequests) {
  Measured({{1e8, 1e8}, {1e9, 1e9}});
  EXPECT_EQ(ToPrefill(1), 40);
  Measured({{1e9, 1e8}, {1e9, 1e8}});
  EXPECT_EQ(ToDecode(0), 40);
  // Links that nothing is known of are as the worker's others.
  LinkRates fresh;
  std::swap(links_, fresh);
  links_.Grow(4);
  for (int worker = 0; worker < 4; ++worker) links_.Joins(worker, absl::StrCat("w", worker), 1);
  Measured({{1e9, 1e8}, {0, 0}});
  EXPECT_EQ(ToDecode(0), 40);
}

TEST_F(LinkPriceTest, WhatIsHiddenBehindComputingCostsNothing) {
  Measured({{1e8, 1e8}, {1e9, 1e9}});
  // 80 ms are less than the prompt's 100: only the last layer's 2.5 ms count.
  prefill_[0].service_s = prefill_[1].service_s = 0.100;
  prefill_[1].queue_s = 0.005;
  EXPECT_EQ(ToPrefill(0), 40);
  prefill_[1].queue_s = 0.001;
  EXPECT_EQ(ToPrefill(1), 40);
}

TEST_F(LinkPriceTest, OnlyMissingBlocksCross) {
  Measured({{1e9, 1e8}, {1e9, 1e8}});
  decode_[1].matched_blocks = 8;
  EXPECT_EQ(ToDecode(1), 40) << "it has all, the other lacks 8 ms";
  decode_[1].matched_blocks = 4;
  EXPECT_EQ(ToDecode(0), 40) << "40 ms against 8";
}

// Load counts beside: the slow link's worker is taken when waiting elsewhere takes longer.
TEST_F(LinkPriceTest, ASlowLinkIsBetterThanALongQueue) {
  Measured({{1e8, 1e8}, {1e9, 1e9}});
  prefill_[1].queue_s = 1;
  EXPECT_EQ(ToPrefill(0), 40);
}

TEST_F(LinkPriceTest, ATailIsComputedRatherThanBroughtOverASlowLink) {
  decode_[0].matched_blocks = 7;
  decode_[0].service_s = 0.006;
  decode_[0].cost_known = true;
  decode_[0].running = 1;
  query_.links = nullptr;
  EXPECT_EQ(policy_.Choose(query_, prefill_, decode_).decision, "load") << "12 ms against 2 + 1";
  query_.links = &links_;
  Measured({{5e7, 5e7}, {5e7, 5e7}});
  EXPECT_EQ(policy_.Choose(query_, prefill_, decode_).decision, "local") << "against 2 + 20";
}

TEST_F(LinkPriceTest, AWorkerThatAnswersAloneMovesNothing) {
  Measured({{1e8, 1e8}, {1e9, 1e9}});
  prefill_[1].queue_s = 0.005;
  EXPECT_EQ(policy_.Choose(query_, prefill_, {}).prefill, 0);
}

}  // namespace
}  // namespace baton::router
