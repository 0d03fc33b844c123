#include "router/routing/decode_price.h"

#include <gtest/gtest.h>

#include <cmath>

namespace baton::router {
namespace {

// 20 ms, 2 ms a sequence, 1 µs a token of context.
constexpr LinearCost kStep = {20e-3, 2e-3, 1e-6};

Candidate Worker(int running, int64_t context_tokens = 0) {
  Candidate c;
  c.running = running;
  c.step = kStep;
  c.context_tokens = context_tokens;
  c.total_blocks = 10'000;
  c.free_blocks = 10'000 - static_cast<int>(context_tokens / 16);
  c.max_sequences = 64;
  return c;
}

RouteQuery DecodeQuery() {
  RouteQuery query;
  query.prompt_tokens = 160;
  query.prompt_blocks = 10;
  query.block_transfer_s = 1e-3;
  query.answer_tokens = query.mean_answer_tokens = 100;
  return query;
}

double Price(const Candidate& c, const RouteQuery& query = DecodeQuery()) {
  return PriceDecode(query, c, /*alone=*/false).total();
}

TEST(DecodePriceTest, AnIdleWorkerTakesItsOwnStepsAndTheKv) {
  const DecodePrice price = PriceDecode(DecodeQuery(), Worker(0), false);
  EXPECT_NEAR(price.prompt_s, 10e-3, 1e-12);
  EXPECT_NEAR(price.answer_s, 100 * (20e-3 + 2e-3 + 210e-6), 1e-9);
  EXPECT_EQ(price.wait_s + price.others_s, 0);
}

TEST(DecodePriceTest, WhatIsAddedToTheStepsOfOthersIsPaid) {
  const DecodePrice price = PriceDecode(DecodeQuery(), Worker(8, 4000), false);
  EXPECT_NEAR(price.answer_s, 100 * (20e-3 + 9 * 2e-3 + 4210e-6), 1e-9);
  // Eight sequences with half an answer left each, and a mean context of 500 tokens.
  EXPECT_NEAR(price.others_s, 8 * 50 * (2e-3 + 500e-6), 1e-9);
}

TEST(DecodePriceTest, OneSequenceMoreReadsFewerNewExpertsInALargerBatch) {
  Candidate one = Worker(1), many = Worker(32);
  one.step.choice = many.step.choice = {128, 8};
  one.step.expert_s = many.step.expert_s = 1e-3;
  const DecodePrice of_one = PriceDecode(DecodeQuery(), one, false);
  // 8 and 15.5 of 128 experts.
  EXPECT_NEAR(of_one.answer_s, 100 * (20e-3 + 2 * 2e-3 + 210e-6 + 15.5e-3), 1e-9);
  EXPECT_NEAR(of_one.others_s, 50 * (2e-3 + 7.5e-3), 1e-9);
  const double missed = 128 * std::pow(120.0 / 128, 32);
  EXPECT_NEAR(PriceDecode(DecodeQuery(), many, false).others_s,
              32 * 50 * (2e-3 + 1e-3 * missed * 8 / 128), 1e-9);
}

TEST(DecodePriceTest, SequencesCountBesideContext) {
  EXPECT_GT(Price(Worker(10, 1000)), Price(Worker(5, 1000)));
  EXPECT_GT(Price(Worker(5, 50'000)), Price(Worker(5, 1000)));
  Candidate sent = Worker(5, 1000);
  sent.queued = sent.sent = 5;
  EXPECT_GT(Price(sent), Price(Worker(5, 1000))) << "before any report";
}

// Where a sequence costs nothing that can be measured, as on a GPU that reads weights all the time.
TEST(DecodePriceTest, FreeSequencesAreSpreadAllTheSame) {
  Candidate few = Worker(3), many = Worker(4);
  few.step = many.step = {20e-3, 0, 0};
  EXPECT_GT(Price(many), Price(few));
}

TEST(DecodePriceTest, KvThatIsThereSavesItsTransferAndNoMore) {
  Candidate home = Worker(3);
  home.matched_blocks = 10;
  EXPECT_NEAR(Price(Worker(3)) - Price(home), 10e-3, 1e-9);
  EXPECT_GT(Price([&] {
              Candidate busy = home;
              busy.running = 4;
              return busy;
            }()),
            Price(Worker(3)))
      << "10 ms are less than a sequence more";
}

TEST(DecodePriceTest, APlaceInTheBatchIsWaitedFor) {
  Candidate full = Worker(64);
  EXPECT_GT(PriceDecode(DecodeQuery(), full, false).wait_s, 0);
  Candidate fuller = full;
  fuller.queued = 32;
  // 33 more than there are places: half an answer's time and a little.
  const DecodePrice price = PriceDecode(DecodeQuery(), fuller, false);
  EXPECT_NEAR(price.wait_s / price.answer_s, 33.0 / 64, 0.02);
  EXPECT_EQ(PriceDecode(DecodeQuery(), Worker(63), false).wait_s, 0);
}

TEST(DecodePriceTest, TheGrowthOfAnswersIsForeseen) {
  // Twenty sequences with 50 tokens to come each, and 100 of this one: 69 blocks, and its
  // prompt's 10.
  Candidate c = Worker(20);
  c.total_blocks = 1000;
  c.free_blocks = 80;
  EXPECT_EQ(PriceDecode(DecodeQuery(), c, false).wait_s, 0);
  EXPECT_FALSE(PriceDecode(DecodeQuery(), c, false).full);
  c.free_blocks = 40;
  const DecodePrice price = PriceDecode(DecodeQuery(), c, false);
  EXPECT_GT(price.wait_s, 0);
  EXPECT_FALSE(price.full) << "the prompt still fits";
  c.free_blocks = 9;
  EXPECT_TRUE(PriceDecode(DecodeQuery(), c, false).full);
  // Long answers need more.
  RouteQuery longer = DecodeQuery();
  longer.mean_answer_tokens = 1000;
  c.free_blocks = 80;
  EXPECT_GT(PriceDecode(longer, c, false).wait_s, 0);
}

TEST(DecodePriceTest, AloneItPaysForThePrompt) {
  Candidate c = Worker(0);
  c.queue_s = 2;
  c.service_s = 0.5;
  EXPECT_NEAR(PriceDecode(DecodeQuery(), c, /*alone=*/true).prompt_s, 2.5, 1e-12);
}

// An answer gets one token in each step of 250 ms, instead of each of 22.16 ms.
TEST(DecodePriceTest, AnAnswerIsSlowBesidePromptsThatAreLeftWhenItsKvComes) {
  Candidate busy = Worker(0);
  busy.queue_s = 5;
  const double idle = Price(Worker(0));
  EXPECT_NEAR(Price(busy) - idle, 5, 1e-9);
  Candidate prefill;
  prefill.queue_s = 1;
  prefill.service_s = 3.49;  // and 10 blocks of 1 ms
  EXPECT_NEAR(PriceDecode(DecodeQuery(), busy, /*alone=*/false, &prefill).total() - idle, 0.5,
              1e-9);
  prefill.queue_s = 2;
  EXPECT_NEAR(PriceDecode(DecodeQuery(), busy, /*alone=*/false, &prefill).total() - idle, 0, 1e-9);
  RouteQuery brief = DecodeQuery();
  brief.answer_tokens = 10;
  EXPECT_NEAR(Price(busy, brief) - Price(Worker(0), brief), 10 * (0.250 - 0.02216), 1e-9)
      << "its tokens come in 10 of their steps";
  busy.step.fixed_s += 0.3;
  Candidate slow = Worker(0);
  slow.step = busy.step;
  EXPECT_NEAR(Price(busy, brief) - Price(slow, brief), 10 * 0.150, 1e-9) << "prompts' least share";
}

TEST(DecodePriceTest, NothingIsNegativeWhateverIsReported) {
  Candidate c = Worker(0);
  c.total_blocks = c.free_blocks = 0;
  c.max_sequences = 0;
  c.matched_blocks = 1000;
  c.step = {0, 0, 0};
  c.free_blocks = -5;
  const DecodePrice price = PriceDecode(DecodeQuery(), c, false);
  EXPECT_GE(price.prompt_s, 0);
  EXPECT_GE(price.wait_s, 0);
  EXPECT_GE(price.total(), 0);
}

}  // namespace
}  // namespace baton::router
