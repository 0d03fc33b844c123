#include "decode_worker/step_price.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

namespace baton::decode_worker {
namespace {

// Nothing is measured, so the prior's units count: a step takes 1000, a row 100, a token of context
// 1.
class StepPriceTest : public ::testing::Test {
 protected:
  StepPriceTest() { sequence_.call = std::make_shared<Call>(); }
  Chunk Decoding(int context) {
    return {.sequence = &sequence_, .begin = context, .end = context + 1, .decodes = true};
  }

  Sequence sequence_;
  const StepTimes times_{{{1000, 100, 1}, {}}};
};

TEST_F(StepPriceTest, CountsTokensAndTime) {
  const std::vector<Chunk> chunks = {Decoding(80), {&sequence_, 0, 50}};
  PrefillWork jobs;
  jobs.Add(20, 0);
  StepPrice price(chunks, jobs, times_, /*repeats_drafts=*/false, /*mask_seconds=*/0);
  EXPECT_DOUBLE_EQ(price.tokens(), 1 + 50 + 20);
  EXPECT_DOUBLE_EQ(price.seconds(), 1000 + 100 + 80 + 70 * 100);
  // A draft's row reads its context together with the sequence's first.
  EXPECT_DOUBLE_EQ(price.RowSeconds(chunks[0], 0.5), 100 + 80 * StepTimes::kDraftContext);
  price.Add(chunks[0], 0.5);
  EXPECT_DOUBLE_EQ(price.tokens(), 71.5);
  EXPECT_DOUBLE_EQ(price.seconds(), 8180 + 110);
}

TEST_F(StepPriceTest, ADraftPaysWhereItMakesTokensFaster) {
  const std::vector<Chunk> chunks = {Decoding(0)};
  StepPrice price(chunks, {}, times_, false, 0);
  const double worth = StepPrice::kMargin * 100 / 1100;
  EXPECT_TRUE(price.Pays(worth + 0.001, 100));
  EXPECT_FALSE(price.Pays(worth - 0.001, 100));
  EXPECT_FALSE(price.Gains());
  price.Add(chunks[0], 0.5);
  EXPECT_TRUE(price.Gains());
  price.AddSeconds(600);
  EXPECT_FALSE(price.Gains());
}

TEST_F(StepPriceTest, ARecurrentModelComputesDrawnDraftsTwice) {
  const std::vector<Chunk> chunks = {Decoding(0)};
  const StepPrice price(chunks, {}, times_, /*repeats_drafts=*/true, 0);
  EXPECT_DOUBLE_EQ(price.RowSeconds(chunks[0], 0.5), 150);
}

// Seconds of masks are no units of a prior.
TEST_F(StepPriceTest, MasksCountOnceTimesAreMeasured) {
  sequence_.call->grammar = std::make_shared<const grammar::CompiledGrammar>();
  const std::vector<Chunk> chunks = {Decoding(0)};
  EXPECT_DOUBLE_EQ(StepPrice(chunks, {}, times_, false, 7).RowSeconds(chunks[0], 1), 100);
  StepTimes measured{{{1000, 100, 1}, {}}};
  for (int i = 1; i < 50; ++i) {
    measured.AddStep(chunks, {}, absl::Milliseconds(11), absl::ZeroDuration(),
                     absl::Milliseconds(11 * i));
  }
  EXPECT_NEAR(StepPrice(chunks, {}, measured, false, 7).RowSeconds(chunks[0], 1), 7.001, 1e-4);
}

}  // namespace
}  // namespace baton::decode_worker
