#include "router/admission.h"

#include <gtest/gtest.h>

#include <deque>

#include "tests/router/fake_clock.h"

namespace baton::router {
namespace {

class AdmissionTest : public ::testing::Test {
 protected:
  // A request comes in with its prompt.
  void Enter(int64_t tokens) {
    inside_.push_back(*admission_.TryEnter());
    ASSERT_TRUE(inside_.back().TryAddPrompt(tokens));
  }
  // The oldest leaves, having had its first token.
  void Leave() {
    inside_.front().OnFirstToken();
    inside_.pop_front();
  }

  testing::FakeClock clock_;
  Admission::Inside seen_;
  Admission admission_{{20, 1000, absl::Milliseconds(700)},
                       clock_,
                       [this](const Admission::Inside& inside) { seen_ = inside; }};
  std::deque<Admission::Ticket> inside_;
};

TEST_F(AdmissionTest, RequestsAndPromptTokensAreBounded) {
  for (int i = 0; i < 20; ++i) Enter(49);
  EXPECT_FALSE(admission_.TryEnter().has_value());
  EXPECT_EQ(seen_.requests, 20);
  EXPECT_EQ(seen_.prompt_tokens, 980);
  inside_.pop_back();
  auto ticket = admission_.TryEnter();
  ASSERT_TRUE(ticket.has_value());
  EXPECT_FALSE(ticket->TryAddPrompt(70));
  EXPECT_TRUE(ticket->TryAddPrompt(69));
  EXPECT_EQ(seen_.prompt_tokens, 1000);
  inside_.clear();
  ticket.reset();
  EXPECT_EQ(seen_.requests, 0);
  EXPECT_EQ(seen_.prompt_tokens, 0);
}

TEST_F(AdmissionTest, APromptLargerThanTheBoundRunsAlone) {
  Enter(5000);
  auto ticket = admission_.TryEnter();
  EXPECT_FALSE(ticket->TryAddPrompt(1));
}

TEST_F(AdmissionTest, WhoIsRefusedIsTold_TheFirstTimeAConstant) {
  EXPECT_EQ(admission_.RetryAfter(), absl::Milliseconds(700));
}

TEST_F(AdmissionTest, TheRefusedStandInALineThatMovesAsPlacesBecomeFree) {
  // Four a second, for long.
  for (int i = 0; i < 200; ++i) {
    Enter(10);
    clock_.Advance(absl::Milliseconds(250));
    Leave();
  }
  // Each is told a quarter of a second later than the one before.
  for (int place = 1; place <= 8; ++place) {
    EXPECT_NEAR(absl::ToDoubleMilliseconds(admission_.RetryAfter()), 250 * place, 10 * place);
  }
  // The line has moved on by itself.
  clock_.Advance(absl::Seconds(1));
  EXPECT_NEAR(absl::ToDoubleMilliseconds(admission_.RetryAfter()), 1250, 80);
  clock_.Advance(absl::Seconds(60));
  EXPECT_GE(admission_.RetryAfter(), absl::Milliseconds(50));
  for (int i = 0; i < 10'000; ++i) admission_.RetryAfter();
  EXPECT_LE(admission_.RetryAfter(), absl::Seconds(30));
}

TEST_F(AdmissionTest, TheWaitIsTheTokensAheadAtThePaceUnderLoad) {
  for (int i = 0; i < 10; ++i) Enter(50);
  EXPECT_EQ(admission_.EstimatedWait(), absl::ZeroDuration()) << "nothing is known";
  // 100 tokens a second, ten always waiting.
  for (int i = 0; i < 60; ++i) {
    clock_.Advance(absl::Milliseconds(500));
    Leave();
    Enter(50);
  }
  EXPECT_NEAR(absl::ToDoubleSeconds(admission_.EstimatedWait()), 5, 0.5);
  // What stands still for an hour without load does not change the pace.
  while (!inside_.empty()) {
    clock_.Advance(absl::Milliseconds(500));
    Leave();
  }
  EXPECT_EQ(admission_.EstimatedWait(), absl::ZeroDuration());
  clock_.Advance(absl::Hours(1));
  for (int i = 0; i < 10; ++i) Enter(100);
  EXPECT_NEAR(absl::ToDoubleSeconds(admission_.EstimatedWait()), 10, 1);
}

TEST_F(AdmissionTest, ASlowQuietTimeSaysNothingOfTheWaitUnderLoad) {
  for (int i = 0; i < 50; ++i) {
    Enter(10);
    clock_.Advance(absl::Seconds(2));
    Leave();
  }
  for (int i = 0; i < 20; ++i) Enter(50);
  EXPECT_EQ(admission_.EstimatedWait(), absl::ZeroDuration());
}

TEST_F(AdmissionTest, PromptsThatHadTheirFirstTokenOrLeftAreNotWaitedFor) {
  for (int i = 0; i < 12; ++i) Enter(50);
  for (int i = 0; i < 30; ++i) {
    clock_.Advance(absl::Milliseconds(500));
    Leave();
    Enter(50);
  }
  const absl::Duration before = admission_.EstimatedWait();
  inside_[3].OnFirstToken();
  inside_[3].OnFirstToken();  // counted once
  inside_.pop_back();         // cancelled
  EXPECT_NEAR(absl::FDivDuration(admission_.EstimatedWait(), before), 10.0 / 12, 0.06);
}

}  // namespace
}  // namespace baton::router
