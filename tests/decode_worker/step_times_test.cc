#include "decode_worker/step_times.h"

#include <gtest/gtest.h>

namespace baton::decode_worker {
namespace {

class StepTimesTest : public ::testing::Test {
 protected:
  Sequence* Make(int tokens, int computed, Sequence::State state, const char* prefill) {
    auto& sequence = sequences_.emplace_back(std::make_unique<Sequence>());
    sequence->call = std::make_shared<Call>();
    sequence->call->prefill.address = prefill;
    sequence->tokens.resize(tokens);
    sequence->computed_tokens = computed;
    sequence->state = state;
    return sequence.get();
  }
  worker::WorkerLoad Report() {
    std::vector<Sequence*> all;
    for (const auto& sequence : sequences_) all.push_back(sequence.get());
    worker::WorkerLoad load;
    times_.Report(all, {}, 1000, now_, &load);
    return load;
  }
  void Took(const std::vector<Chunk>& chunks, absl::Duration took) {
    now_ += took;
    times_.AddStep(chunks, {}, took, between_, now_);
  }
  static Chunk Decoding(int context, int drafts = 0) {
    return {.sequence = nullptr,
            .begin = context,
            .end = context + 1,
            .decodes = true,
            .drafts = std::vector<int32_t>(static_cast<size_t>(drafts))};
  }
  std::vector<std::unique_ptr<Sequence>> sequences_;
  absl::Duration now_ = absl::Seconds(1);
  absl::Duration between_ = absl::ZeroDuration();
  StepTimes times_{{{1000, 100, 1}, {}}};
};

TEST_F(StepTimesTest, AUnitOfThePriorIsWorthWhatWasMeasured) {
  EXPECT_EQ(times_.SecondsPerUnit(), 1);
  for (int i = 0; i < 50; ++i) Took({Decoding(0)}, absl::Milliseconds(11));
  EXPECT_NEAR(times_.SecondsPerUnit(), 1e-5, 1e-8);
}

TEST_F(StepTimesTest, DecodeStepsAreReportedByTheirSequencesAndContext) {
  EXPECT_FALSE(Report().decode_cost.has_value());
  for (int i = 0; i < 50; ++i) {
    Took({Decoding(100), Decoding(300)}, absl::Milliseconds(8));
  }
  const worker::WorkerLoad load = Report();
  ASSERT_TRUE(load.decode_cost.has_value());
  const auto& cost = *load.decode_cost;
  EXPECT_NEAR(cost.fixed_us() + 2 * cost.sequence_us() + 400 * cost.context_token_us(), 8000, 10);
  EXPECT_NEAR(cost.measured().sequences(), 2 * cost.measured().steps(), 1e-6);
  EXPECT_NEAR(cost.measured().context_tokens(), 400 * cost.measured().steps(), 1e-6);
  EXPECT_NEAR(cost.measured().seconds(), 8e-3 * cost.measured().steps(), 1e-6);
  EXPECT_FALSE(load.prefill_cost.has_value());
  // A prompt's chunk in the step makes it count for neither.
  Took({Decoding(100), {nullptr, 0, 500}}, absl::Seconds(1));
  EXPECT_LT(Report().decode_cost->measured().seconds(), cost.measured().seconds());
  EXPECT_FALSE(Report().prefill_cost.has_value());
}

TEST_F(StepTimesTest, DraftsCostRowsAndAPartOfTheirContext) {
  // Before anything is measured, by the prior.
  EXPECT_NEAR(times_.DecodeSeconds(2, 100, {}) / times_.DecodeSeconds(1, 100, {}), 1300. / 1200,
              1e-9);
  for (int i = 0; i < 100; ++i) {
    const int drafts = i % 5;
    Took({Decoding(100, drafts)}, absl::Milliseconds(10 + 3 * drafts));
  }
  EXPECT_NEAR(times_.DecodeSeconds(1, 100, {}), 10e-3, 0.3e-3);
  EXPECT_NEAR(times_.DecodeSeconds(5, 150, {}), 22e-3, 0.5e-3);
  // What prompts take comes on top, but for what is read once.
  EXPECT_GT(times_.DecodeSeconds(1, 100, {.tokens = 10, .pairs = 100}), 30e-3);
}

TEST_F(StepTimesTest, WhatStepsWithDraftsTakeBeyondTheirRowsIsKnownApart) {
  // Rows cost 1 ms each, whatever they are of; drafts 5 ms more, once.
  for (int i = 0; i < 400; ++i) {
    const int sequences = 1 + i % 4, drafts = i % 3;
    std::vector<Chunk> chunks(static_cast<size_t>(sequences), Decoding(100));
    chunks.back() = Decoding(100, drafts);
    between_ = drafts > 0 ? absl::Milliseconds(1) : absl::ZeroDuration();
    Took(chunks, absl::Milliseconds(10 + sequences + drafts + (drafts > 0 ? 4 : 0)));
  }
  EXPECT_NEAR(times_.DraftedExtraSeconds(), 5e-3, 2.5e-3);
  // Without any for long, they are worth a try again.
  between_ = absl::ZeroDuration();
  for (int i = 0; i < 5000; ++i) Took({Decoding(100)}, absl::Milliseconds(11));
  EXPECT_LT(times_.DraftedExtraSeconds(), 0.1e-3);
}

TEST_F(StepTimesTest, ContextIsOfTheSequencesThatHaveBlocks) {
  Make(101, 100, Sequence::State::kRunning, "p:1");
  Make(400, 0, Sequence::State::kReceiving, "p:1");
  Make(1000, 0, Sequence::State::kWaiting, "p:1");
  Make(1000, 0, Sequence::State::kEvicted, "p:1");
  EXPECT_EQ(Report().context_tokens, 501);
}

TEST_F(StepTimesTest, WhatIsLeftIsOfThePromptsComputedHere) {
  for (int i = 1; i <= 200; ++i) {
    Took({{nullptr, 0, 10 * (i % 50 + 1)}}, absl::Milliseconds(5 + 10 * (i % 50 + 1)));
  }
  ASSERT_TRUE(Report().prefill_cost.has_value());
  EXPECT_EQ(Report().remaining_work, absl::ZeroDuration());
  Make(101, 100, Sequence::State::kRunning, "p:1");  // decodes
  Make(400, 0, Sequence::State::kReceiving, "p:1");  // computed elsewhere
  EXPECT_EQ(Report().remaining_work, absl::ZeroDuration());
  Make(300, 200, Sequence::State::kRunning, "p:1");  // its tail is computed here
  Make(200, 0, Sequence::State::kWaiting, "");
  EXPECT_NEAR(absl::ToDoubleMilliseconds(Report().remaining_work), 305, 30);
}

}  // namespace
}  // namespace baton::decode_worker
