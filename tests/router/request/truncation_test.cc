#include "router/request/truncation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "absl/container/flat_hash_set.h"
#include "common/base/error.h"
#include "common/kv/prefix_key.h"
#include "tests/testing/seed.h"

namespace baton::router {
namespace {

v1::Truncation Kept(int first, int last, float ratio) {
  v1::Truncation truncation;
  truncation.set_keep_first(first);
  truncation.set_keep_last(last);
  truncation.set_retention_ratio(ratio);
  return truncation;
}

std::vector<int32_t> Truncated(const std::vector<int32_t>& prompt, const v1::Truncation& how,
                               int room) {
  const absl::StatusOr<int> dropped = TokensToDrop(how, static_cast<int64_t>(prompt.size()), room);
  EXPECT_TRUE(dropped.ok()) << dropped.status();
  std::vector<int32_t> left(prompt.begin(), prompt.begin() + how.keep_first());
  left.insert(left.end(), prompt.begin() + how.keep_first() + *dropped, prompt.end());
  return left;
}

TEST(TruncationTest, TheNumbersOfAnExample) {
  const v1::Truncation how = Kept(10, 20, 0.75f);
  EXPECT_EQ(TruncationStep(how, 400), 100);
  EXPECT_EQ(*TokensToDrop(how, 400, 400), 0);
  EXPECT_EQ(*TokensToDrop(how, 401, 400), 100);
  EXPECT_EQ(*TokensToDrop(how, 500, 400), 100);
  EXPECT_EQ(*TokensToDrop(how, 501, 400), 200);
  EXPECT_EQ(*TokensToDrop(v1::Truncation(), 401, 400), 80) << "0.8 of the room stays filled";
  EXPECT_EQ(*TokensToDrop(Kept(0, 0, 1), 401, 400), 1) << "no more than it must";
}

TEST(TruncationTest, WhatIsToBeKeptMustFit) {
  EXPECT_EQ(*TokensToDrop(Kept(200, 200, 0.5f), 401, 400), 1) << "no room for a larger step";
  EXPECT_EQ(ErrorReason(TokensToDrop(Kept(200, 201, 0.5f), 402, 400).status()), "OUT_OF_RANGE");
  EXPECT_EQ(ErrorReason(TokensToDrop(Kept(0, 0, 0.5f), 5, 0).status()), "OUT_OF_RANGE");
  EXPECT_EQ(*TokensToDrop(Kept(1000, 1000, 0.5f), 400, 400), 0) << "nothing is to be dropped";
}

// Whatever the numbers: the prompt fits, keeps its ends, and a longer one drops no less.
TEST(TruncationTest, AlwaysFitsAndKeepsBothEnds) {
  std::mt19937 random(testing::TestSeed(20261123));
  for (int i = 0; i < 20'000; ++i) {
    const int room = 1 + static_cast<int>(random() % 500);
    const int first = static_cast<int>(random() % static_cast<unsigned>(room + 1));
    const int last = static_cast<int>(random() % static_cast<unsigned>(room - first + 1));
    const v1::Truncation how =
        Kept(first, last, 0.1f + 0.9f * static_cast<float>(random() % 1000) / 1000);
    const int tokens = 1 + static_cast<int>(random() % 3000);
    const int dropped = *TokensToDrop(how, tokens, room);
    ASSERT_LE(tokens - dropped, room) << how.ShortDebugString();
    ASSERT_TRUE(dropped == 0 || first + dropped <= tokens - last) << how.ShortDebugString();
    ASSERT_TRUE(dropped == 0 || dropped - TruncationStep(how, room) < tokens - room)
        << "a step too many: " << how.ShortDebugString();
    ASSERT_LE(dropped, *TokensToDrop(how, tokens + 1, room)) << how.ShortDebugString();
  }
}

// The share of a conversation's prompt blocks that an earlier turn has computed, over 50 turns.
double HitRatio(float ratio, int keep_first, int turn_tokens, int room) {
  std::mt19937 random(testing::TestSeed(7));
  absl::flat_hash_set<kv::PrefixKey> cached;
  std::vector<int32_t> conversation(static_cast<size_t>(keep_first), 1);
  int64_t blocks = 0, hits = 0;
  for (int turn = 0; turn < 50; ++turn) {
    for (int i = 0; i < turn_tokens; ++i) {
      conversation.push_back(static_cast<int32_t>(random() % 50'000));
    }
    const auto keys = kv::PrefixKeys(kv::RootPrefixKey(1, "", ""),
                                     Truncated(conversation, Kept(keep_first, 0, ratio), room), 16);
    for (const kv::PrefixKey key : keys) {
      ++blocks;
      hits += cached.insert(key).second ? 0 : 1;
    }
  }
  return static_cast<double>(hits) / static_cast<double>(blocks);
}

TEST(TruncationTest, FiftyTurnsHitThreeTimesAsOftenAsWhenEachIsTrimmed) {
  const struct {
    int room, turn_tokens;
  } conversations[] = {{1024, 64}, {2048, 100}, {4096, 200}, {4096, 400}};
  for (const auto& [room, turn_tokens] : conversations) {
    const double in_steps = HitRatio(0.8f, 64, turn_tokens, room);
    const double each_turn = HitRatio(1, 64, turn_tokens, room);
    EXPECT_GE(in_steps, 3 * each_turn) << turn_tokens << " tokens a turn, room for " << room;
    EXPECT_GE(in_steps, 0.5);
  }
}

TEST(TruncationTest, RoomIsWhatTheAnswerLeaves) {
  ModelInfo model;
  model.max_model_len = 1600;
  v1::StopConditions stop;
  EXPECT_EQ(RoomForPrompt(stop, model, {}), 1500) << "a sixteenth for the answer";
  model.defaults.set_max_new_tokens(300);
  EXPECT_EQ(RoomForPrompt(stop, model, {}), 1300);
  RequestClass bounded;
  bounded.default_max_tokens = 200;
  bounded.max_context_tokens = 1000;
  EXPECT_EQ(RoomForPrompt(stop, model, bounded), 800);
  bounded.max_output_tokens = 50;
  EXPECT_EQ(RoomForPrompt(stop, model, bounded), 950);
  stop.set_max_tokens(10);
  EXPECT_EQ(RoomForPrompt(stop, model, bounded), 990);
  stop.set_min_tokens(20);
  EXPECT_EQ(RoomForPrompt(stop, model, bounded), 980);
}

TEST(TruncationTest, RangesOfItsFields) {
  v1::GenerateRequest request;
  request.set_text("p");
  EXPECT_TRUE(CheckTruncation(request).ok());
  *request.mutable_truncation() = Kept(0, 5, 0.1f);
  EXPECT_TRUE(CheckTruncation(request).ok());
  for (const v1::Truncation& bad :
       {Kept(-1, 0, 0.5f), Kept(0, -1, 0.5f), Kept(0, 0, 0.09f), Kept(0, 0, 1.01f),
        Kept(0, 0, std::numeric_limits<float>::quiet_NaN())}) {
    *request.mutable_truncation() = bad;
    EXPECT_EQ(ErrorReason(CheckTruncation(request)), "OUT_OF_RANGE") << bad.ShortDebugString();
  }
  request.mutable_messages();
  *request.mutable_truncation() = Kept(0, 5, 0.5f);
  EXPECT_EQ(ErrorReason(CheckTruncation(request)), "NOT_WITH_MESSAGES");
}

}  // namespace
}  // namespace baton::router
