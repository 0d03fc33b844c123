#include "router/request/admission.h"

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <thread>

#include "tests/router/fake_clock.h"

namespace baton::router {
namespace {

class AdmissionTest : public ::testing::Test {
 protected:
  // Of an empty prompt: that of those before it.
  absl::Duration EstimatedWait() { return admission_.EstimatedTimes(0, 1).first_token; }

  // A request comes in with its prompt.
  void Enter(int64_t tokens) {
    inside_.push_back(*admission_.TryEnter());
    ASSERT_TRUE(inside_.back().TryAddPrompt(tokens));
  }
  void Fill(int requests, int64_t tokens = 10) {
    for (int i = 0; i < requests; ++i) Enter(tokens);
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

TEST_F(AdmissionTest, ARequestThatHasLeftTakesNoPlaceAndIsAwaitedAllTheSame) {
  Enter(1000);
  inside_.back().Leave();
  EXPECT_EQ(seen_.requests, 0);
  EXPECT_EQ(seen_.prompt_tokens, 0);
  EXPECT_EQ(seen_.without_prompt, 0);
  EXPECT_EQ(admission_.load().before_first_token, 0);
  Enter(1000);
  inside_.pop_back();
  EXPECT_EQ(seen_.requests, 0);
  std::atomic<bool> forgotten = false;
  std::thread awaiting([&] {
    admission_.AwaitEmpty();
    EXPECT_TRUE(forgotten);
  });
  forgotten = true;
  inside_.clear();
  awaiting.join();
  EXPECT_EQ(seen_.requests, 0) << "a place is freed once";
}

TEST_F(AdmissionTest, APromptMayHaveNoTokens) {
  auto ticket = admission_.TryEnter();
  ASSERT_TRUE(ticket.has_value());
  EXPECT_TRUE(ticket->TryAddPrompt(0));
  EXPECT_EQ(seen_.without_prompt, 0);
  Admission::Ticket moved = *std::move(ticket);
  ticket.reset();
  moved.Leave();
  EXPECT_EQ(seen_.without_prompt, 0);
  EXPECT_EQ(seen_.requests, 0);
}

TEST_F(AdmissionTest, RequestsAndPromptTokensAreBounded) {
  for (int i = 0; i < 20; ++i) Enter(49);
  EXPECT_FALSE(admission_.TryEnter().has_value());
  EXPECT_EQ(seen_.requests, 20);
  EXPECT_EQ(seen_.prompt_tokens, 980);
  EXPECT_EQ(seen_.without_prompt, 0);
  inside_.pop_back();
  {
    const auto early = admission_.TryEnter();  // ends before its prompt is known
    ASSERT_TRUE(early.has_value());
  }
  EXPECT_EQ(seen_.without_prompt, 0);
  auto ticket = admission_.TryEnter();
  EXPECT_EQ(seen_.without_prompt, 1);
  ASSERT_TRUE(ticket.has_value());
  EXPECT_FALSE(ticket->TryAddPrompt(70));
  EXPECT_TRUE(ticket->TryAddPrompt(69));
  EXPECT_EQ(seen_.prompt_tokens, 1000);
  EXPECT_EQ(seen_.without_prompt, 0);
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
  Fill(19);
  for (int i = 0; i < 200; ++i) {
    Enter(10);
    clock_.Advance(absl::Milliseconds(250));
    Leave();
  }
  // Each is told a quarter of a second later than the one before.
  for (int place = 1; place <= 8; ++place) {
    EXPECT_NEAR(absl::ToDoubleMilliseconds(admission_.RetryAfter()), 250 * place, 10 * place);
  }
  // The line moves on.
  for (int i = 0; i < 4; ++i) {
    Enter(10);
    clock_.Advance(absl::Milliseconds(250));
    Leave();
  }
  EXPECT_NEAR(absl::ToDoubleMilliseconds(admission_.RetryAfter()), 1250, 80);
}

// The first answers come late and one by one, as in a process whose caches are cold.
TEST_F(AdmissionTest, TheFirstAnswersAreNoPace) {
  Fill(20);
  clock_.Advance(absl::Seconds(4));
  for (int i = 0; i < 5; ++i) {
    Leave();
    Enter(10);
    for (int client = 0; client < 10; ++client) {
      EXPECT_EQ(admission_.RetryAfter(), absl::Milliseconds(700)) << i;
    }
    clock_.Advance(absl::Milliseconds(500));
  }
  // Ten at once are none either, but a second of them is.
  for (int i = 0; i < 10; ++i) {
    Leave();
    Enter(10);
  }
  clock_.Advance(absl::Milliseconds(500));
  EXPECT_NEAR(absl::ToDoubleMilliseconds(admission_.RetryAfter()), 200, 50);
}

TEST_F(AdmissionTest, ALineFormedAtASlowPaceMovesAtThePresentOne) {
  Fill(20);
  for (int i = 0; i < 10; ++i) {
    Leave();
    Enter(10);
    clock_.Advance(absl::Seconds(2));
  }
  for (int client = 0; client < 30; ++client) admission_.RetryAfter();
  EXPECT_EQ(admission_.RetryAfter(), absl::Seconds(30));
  for (int i = 0; i < 200; ++i) {  // 15 clients stood in it
    Leave();
    Enter(10);
    clock_.Advance(absl::Milliseconds(50));
  }
  EXPECT_LT(admission_.RetryAfter(), absl::Milliseconds(150));
}

TEST_F(AdmissionTest, AQuietTimeDoesNotChangeThePaceOfABurst) {
  Fill(19);
  for (int i = 0; i < 200; ++i) {
    Enter(10);
    clock_.Advance(absl::Milliseconds(250));
    Leave();
  }
  inside_.clear();
  // Few come, and so few leave.
  for (int i = 0; i < 60; ++i) {
    Enter(10);
    clock_.Advance(absl::Seconds(5));
    Leave();
  }
  Fill(20);
  for (int place = 1; place <= 8; ++place) {
    EXPECT_NEAR(absl::ToDoubleMilliseconds(admission_.RetryAfter()), 250 * place, 50 * place);
  }
}

TEST_F(AdmissionTest, ALineThatDoesNotMoveIsAPace) {
  Fill(20);
  for (int i = 0; i < 100; ++i) {
    Leave();
    Enter(10);
    clock_.Advance(absl::Milliseconds(100));
  }
  const absl::Duration before = admission_.RetryAfter();
  clock_.Advance(absl::Seconds(30));
  EXPECT_GT(admission_.RetryAfter(), 10 * before);
}

TEST_F(AdmissionTest, FullOfPromptTokensIsFull) {
  Fill(2, 450);
  for (int i = 0; i < 100; ++i) {
    Enter(10);
    clock_.Advance(absl::Milliseconds(500));
    inside_.pop_back();
  }
  EXPECT_NEAR(absl::ToDoubleMilliseconds(admission_.RetryAfter()), 500, 30);
}

TEST_F(AdmissionTest, TheWaitIsTheTokensAheadAtThePaceUnderLoad) {
  for (int i = 0; i < 10; ++i) Enter(50);
  EXPECT_EQ(EstimatedWait(), absl::ZeroDuration()) << "nothing is known";
  // 100 tokens a second, ten always waiting.
  for (int i = 0; i < 60; ++i) {
    clock_.Advance(absl::Milliseconds(500));
    Leave();
    Enter(50);
  }
  EXPECT_NEAR(absl::ToDoubleSeconds(EstimatedWait()), 5, 0.5);
  // What stands still for an hour without load does not change the pace.
  while (!inside_.empty()) {
    clock_.Advance(absl::Milliseconds(500));
    Leave();
  }
  EXPECT_EQ(EstimatedWait(), absl::ZeroDuration());
  clock_.Advance(absl::Hours(1));
  for (int i = 0; i < 10; ++i) Enter(100);
  EXPECT_NEAR(absl::ToDoubleSeconds(EstimatedWait()), 10, 1);
}

TEST_F(AdmissionTest, TheAnswerTakesItsTimeToo) {
  for (int i = 0; i < 10; ++i) Enter(50);
  for (int i = 0; i < 60; ++i) {  // 100 tokens a second
    clock_.Advance(absl::Milliseconds(500));
    Leave();
    Enter(50);
  }
  EXPECT_NEAR(absl::ToDoubleSeconds(admission_.EstimatedTimes(100, 40).first_token), 6, 0.5);
  const auto answer_s = [&](int64_t max_tokens) {
    const Admission::Estimate times = admission_.EstimatedTimes(100, max_tokens);
    return absl::ToDoubleSeconds(times.last_token - times.first_token);
  };
  EXPECT_EQ(answer_s(40), 0) << "nothing is known";
  // Half of what they may have, at 100 ms a token. Those that were cut short tell only that.
  for (int i = 0; i < 50; ++i) {
    admission_.OnAnswer(20, 40, absl::Milliseconds(1900), /*whole=*/true);
    admission_.OnAnswer(3, 40, absl::Milliseconds(200), /*whole=*/false);
  }
  EXPECT_NEAR(answer_s(40), 1.9, 1e-6);
  EXPECT_NEAR(answer_s(60), 2.9, 1e-6);
  // Of quite other answers nothing is known; and they leave what is known of these alone.
  EXPECT_EQ(answer_s(30'000), 0);
  for (int i = 0; i < 50; ++i) admission_.OnAnswer(3, 30'000, absl::Milliseconds(200), true);
  EXPECT_NEAR(answer_s(30'000), 0.2, 1e-6);
  EXPECT_NEAR(answer_s(40), 1.9, 1e-6);
}

TEST_F(AdmissionTest, ASlowQuietTimeSaysNothingOfTheWaitUnderLoad) {
  for (int i = 0; i < 50; ++i) {
    Enter(10);
    clock_.Advance(absl::Seconds(2));
    Leave();
  }
  for (int i = 0; i < 20; ++i) Enter(50);
  EXPECT_EQ(EstimatedWait(), absl::ZeroDuration());
}

TEST_F(AdmissionTest, PromptsThatHadTheirFirstTokenOrLeftAreNotWaitedFor) {
  for (int i = 0; i < 12; ++i) Enter(50);
  for (int i = 0; i < 30; ++i) {
    clock_.Advance(absl::Milliseconds(500));
    Leave();
    Enter(50);
  }
  const absl::Duration before = EstimatedWait();
  inside_[3].OnFirstToken();
  inside_[3].OnFirstToken();  // counted once
  inside_.pop_back();         // cancelled
  EXPECT_NEAR(absl::FDivDuration(EstimatedWait(), before), 10.0 / 12, 0.06);
}

}  // namespace
}  // namespace baton::router
