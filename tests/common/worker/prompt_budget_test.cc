#include "common/worker/prompt_budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace baton::worker {
namespace {

constexpr int kBlock = 16, kMost = 2048;

// A worker of so many prompt tokens a second, which decodes its batch in that time.
struct Machine {
  double tokens_per_second = 0;
  absl::Duration decode;
  absl::Duration Takes(int prompt_tokens, bool decodes) const {
    return absl::Seconds(prompt_tokens / tokens_per_second) +
           (decodes ? decode : absl::ZeroDuration());
  }
};

// The longest of `steps` full steps, and the tokens of the last one.
std::pair<absl::Duration, int> RunSteps(PromptBudget& budget, const Machine& machine, bool decodes,
                                        int steps = 30) {
  absl::Duration longest;
  int tokens = 0;
  for (int i = 0; i < steps; ++i) {
    tokens = budget.Tokens();
    const absl::Duration took = machine.Takes(tokens, decodes);
    longest = std::max(longest, took);
    budget.OnStep(tokens, decodes ? 8 : 0, took);
  }
  return {longest, tokens};
}

TEST(PromptBudgetTest, NoStepIsLongOnAnyMachine) {
  for (const double rate : {20.0, 100.0, 400.0, 3000.0, 1e6}) {
    PromptBudget budget(kBlock, kMost);
    const auto [longest, tokens] =
        RunSteps(budget, {rate, absl::ZeroDuration()}, /*decodes=*/false);
    EXPECT_LE(longest, std::max(PromptBudget::kAlone, absl::Seconds(64 / rate))) << rate;
    EXPECT_NEAR(tokens, std::clamp(rate / 2, 16.0, 2048.0), 1) << rate;
  }
}

TEST(PromptBudgetTest, BesideAnswersThereIsLessTimeButAlwaysSome) {
  PromptBudget budget(kBlock, kMost);
  Machine machine = {400, absl::Milliseconds(50)};
  for (int i = 0; i < 5; ++i) budget.OnStep(0, 8, machine.decode);
  EXPECT_NEAR(RunSteps(budget, machine, /*decodes=*/true).second, 400 * 0.2, 1);
  machine.decode = absl::Milliseconds(300);
  for (int i = 0; i < 20; ++i) budget.OnStep(0, 8, machine.decode);
  EXPECT_NEAR(RunSteps(budget, machine, true).second, 400 * 0.15, 1);
  // The answers have ended.
  EXPECT_NEAR(RunSteps(budget, machine, false).second, 400 * 0.5, 1);
}

TEST(PromptBudgetTest, AMachineThatSlowsDownIsFollowedAtOnce) {
  PromptBudget budget(kBlock, kMost);
  RunSteps(budget, {2000, absl::ZeroDuration()}, false);
  const int tokens = budget.Tokens();
  EXPECT_NEAR(tokens, 1000, 1);
  budget.OnStep(tokens, 0, absl::Seconds(2));
  EXPECT_NEAR(budget.Tokens(), 250, 1);
}

TEST(PromptBudgetTest, SmallStepsSayNothingOfLargeOnes) {
  PromptBudget budget(kBlock, kMost);
  RunSteps(budget, {1000, absl::ZeroDuration()}, false);
  const int tokens = budget.Tokens();
  for (int i = 0; i < 100; ++i) budget.OnStep(1, 0, absl::Milliseconds(50));  // 20 a second
  EXPECT_EQ(budget.Tokens(), tokens);
}

}  // namespace
}  // namespace baton::worker
