#include "router/request/unread_answers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/error.h"
#include "router/request/delta_merging.h"
#include "router/request/response_sink.h"

namespace baton::router {
namespace {

constexpr int64_t kMostUnread = 1000;

class UnreadAnswersTest : public ::testing::Test {
 protected:
  std::unique_ptr<UnreadAnswers::Answer> Add(char name) {
    return std::make_unique<UnreadAnswers::Answer>(all_, [this, name] { cut_ += name; });
  }

  std::string cut_;
  int64_t seen_bytes_ = 0;
  int seen_cuts_ = 0;
  UnreadAnswers all_{kMostUnread, [this](int64_t bytes) { seen_bytes_ = bytes; },
                     [this] { ++seen_cuts_; }};
};

TEST_F(UnreadAnswersTest, BytesAreThoseThatWaitNow) {
  auto a = Add('a');
  auto b = Add('b');
  a->Update(400, false);
  b->Update(300, false);
  EXPECT_EQ(all_.bytes(), 700);
  a->Update(100, true);
  EXPECT_EQ(all_.bytes(), 400);
  EXPECT_EQ(seen_bytes_, 400);
  b.reset();
  EXPECT_EQ(all_.bytes(), 100);
  a->Update(0, true);
  EXPECT_EQ(seen_bytes_, 0);
  EXPECT_EQ(cut_, "");
}

TEST_F(UnreadAnswersTest, BeyondTheBoundTheOneThatWasNotReadForLongestEnds) {
  auto a = Add('a');
  auto b = Add('b');
  auto c = Add('c');
  a->Update(400, false);
  b->Update(300, false);
  c->Update(300, false);
  EXPECT_EQ(cut_, "") << "the bound itself is allowed";
  a->Update(350, true);  // a reads, if slowly
  c->Update(351, false);
  EXPECT_EQ(cut_, "b");
  EXPECT_EQ(all_.bytes(), 701);
  EXPECT_EQ(seen_cuts_, 1);
  b->Update(900, false);  // b does not know that yet
  EXPECT_EQ(all_.bytes(), 701);
  b.reset();
  EXPECT_EQ(all_.bytes(), 701);
  a->Update(700, false);
  EXPECT_EQ(cut_, "bc");
  EXPECT_EQ(all_.bytes(), 700);
}

TEST_F(UnreadAnswersTest, AnAnswerThatIsLargerThanTheBoundEndsItselfWithTheOthers) {
  auto a = Add('a');
  auto b = Add('b');
  a->Update(10, false);
  b->Update(kMostUnread + 1, false);
  EXPECT_EQ(cut_, "ab");
  EXPECT_EQ(all_.bytes(), 0);
}

TEST_F(UnreadAnswersTest, NoneIsCutAfterItsDestructor) {
  for (int round = 0; round < 200; ++round) {
    std::atomic<bool> alive = true;
    UnreadAnswers all(
        kMostUnread, [](int64_t) {}, [] {});
    auto victim = std::make_unique<UnreadAnswers::Answer>(all, [&alive] { EXPECT_TRUE(alive); });
    victim->Update(kMostUnread, false);
    std::thread other([&all] {
      UnreadAnswers::Answer more(all, [] {});
      more.Update(1, false);
    });
    victim.reset();
    alive = false;
    other.join();
    EXPECT_EQ(all.bytes(), 0);
  }
}

v1::GenerateResponse DeltaOf(int choice, int tokens, int logprobs) {
  v1::GenerateResponse delta;
  delta.set_choice(choice);
  delta.set_text(std::string(tokens, 'a'));
  for (int i = 0; i < tokens; ++i) {
    v1::TokenLogprobs* one = delta.add_logprobs();
    for (int k = 0; k < logprobs; ++k) one->add_top()->set_token_id(k);
  }
  return delta;
}

TEST(PendingDeltasTest, TheirBytesAreCountedAndMergedMessagesStaySmall) {
  PendingDeltas pending;
  EXPECT_EQ(pending.bytes(), 0);
  int64_t least = 0;
  for (int i = 0; i < 3000; ++i) {
    const v1::GenerateResponse delta = DeltaOf(i % 2, 1, 20);
    least += static_cast<int64_t>(delta.logprobs(0).SpaceUsedLong());
    const int64_t before = pending.bytes();
    const int64_t bound = PendingDeltas::BytesOf(delta);
    pending.Add(delta);
    ASSERT_GT(pending.bytes(), before);
    ASSERT_LE(pending.bytes(), before + bound);
  }
  EXPECT_GE(pending.bytes(), least) << "no less than the memory of the log probabilities";
  std::string text[2];
  while (!pending.empty()) {
    const v1::GenerateResponse next = pending.Next();
    // The rest of the bound is for the usage, and for what else does not grow.
    EXPECT_LE(next.ByteSizeLong(), (64 << 10) + 256);
    text[next.choice()] += next.text();
  }
  EXPECT_EQ(text[0].size(), 1500u);
  EXPECT_EQ(text[1].size(), 1500u);
  EXPECT_EQ(pending.bytes(), 0);
}

TEST(PendingDeltasTest, OneAnswerHasABoundAndAReaderThatKeepsUpHasNone) {
  PendingDeltas pending;
  const v1::GenerateResponse delta = DeltaOf(0, 10, 20);
  const int64_t most = PendingDeltas::BytesOf(delta) * 3 / 2;
  EXPECT_TRUE(AcceptBehind(pending, delta, /*answer_bytes=*/1).ok()) << "it is sent at once";
  pending.Add(delta);
  const absl::Status behind = AcceptBehind(pending, delta, most);
  EXPECT_EQ(behind.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(ErrorReason(behind), "READER_BEHIND");
  EXPECT_TRUE(AcceptBehind(pending, delta, 2 * most).ok());
  pending.Clear();
  EXPECT_TRUE(AcceptBehind(pending, delta, most).ok());
}

}  // namespace
}  // namespace baton::router
