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
  worker::WorkerLoad Tell() {
    std::vector<Sequence*> all;
    for (const auto& sequence : sequences_) all.push_back(sequence.get());
    worker::WorkerLoad load;
    times_.Tell(all, 1000, &load);
    return load;
  }
  std::vector<std::unique_ptr<Sequence>> sequences_;
  StepTimes times_;
};

TEST_F(StepTimesTest, DecodeStepsAreToldWithTheContextTheyRead) {
  EXPECT_EQ(Tell().decode_step, absl::ZeroDuration());
  for (int i = 0; i < 50; ++i) {
    times_.Took({{nullptr, 100, 101}, {nullptr, 300, 301}}, absl::Milliseconds(8));
  }
  EXPECT_NEAR(absl::ToDoubleMilliseconds(Tell().decode_step), 8, 1e-6);
  EXPECT_EQ(Tell().decode_context_tokens, 400);
  EXPECT_FALSE(Tell().prefill_cost.has_value());
  // A prompt's chunk in the step makes it tell of neither.
  times_.Took({{nullptr, 100, 101}, {nullptr, 0, 500}}, absl::Seconds(1));
  EXPECT_NEAR(absl::ToDoubleMilliseconds(Tell().decode_step), 8, 1e-6);
  EXPECT_FALSE(Tell().prefill_cost.has_value());
}

TEST_F(StepTimesTest, AStallIsForgivenAndASlowWorkerIsNot) {
  const auto step = [this](absl::Duration took) { times_.Took({{nullptr, 100, 101}}, took); };
  for (int i = 0; i < 20; ++i) step(absl::Milliseconds(8));
  step(absl::Seconds(30));
  EXPECT_NEAR(absl::ToDoubleMilliseconds(Tell().decode_step), 8, 1e-6);
  for (int i = 0; i < 60; ++i) step(absl::Milliseconds(80));
  EXPECT_NEAR(absl::ToDoubleMilliseconds(Tell().decode_step), 80, 1);
}

TEST_F(StepTimesTest, WhatIsLeftIsOfThePromptsComputedHere) {
  for (int i = 1; i <= 200; ++i) {
    times_.Took({{nullptr, 0, 10 * (i % 50 + 1)}}, absl::Milliseconds(5 + 10 * (i % 50 + 1)));
  }
  ASSERT_TRUE(Tell().prefill_cost.has_value());
  EXPECT_EQ(Tell().remaining_work, absl::ZeroDuration());
  Make(101, 100, Sequence::State::kRunning, "p:1");  // decodes
  Make(400, 0, Sequence::State::kReceiving, "p:1");  // computed elsewhere
  EXPECT_EQ(Tell().remaining_work, absl::ZeroDuration());
  Make(300, 200, Sequence::State::kRunning, "p:1");  // its tail is computed here
  Make(200, 0, Sequence::State::kWaiting, "");
  EXPECT_NEAR(absl::ToDoubleMilliseconds(Tell().remaining_work), 305, 30);
}

}  // namespace
}  // namespace baton::decode_worker
