#include "decode_worker/response.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <vector>

namespace baton::decode_worker {
namespace {

using internal::v1::DecodeResponse;

DecodeResponse Token(int choice, int token) {
  DecodeResponse response;
  response.set_choice(choice);
  response.add_token_ids(token);
  response.add_logprobs()->set_token_id(token);
  return response;
}

// As a stream does whose reader takes nothing.
void Push(std::deque<DecodeResponse>& waiting, DecodeResponse next) {
  if (waiting.empty() || !MergeResponse(waiting, next)) waiting.push_back(std::move(next));
}

TEST(ResponseTest, ChoicesThatTakeTurnsAreMergedAsOneIs) {
  constexpr int kChoices = 4, kTokens = 2500;
  std::deque<DecodeResponse> waiting;
  for (int token = 0; token < kTokens; ++token) {
    for (int choice = 0; choice < kChoices; ++choice) Push(waiting, Token(choice, token));
  }
  EXPECT_EQ(waiting.size(), 3u * kChoices);
  std::map<int, std::vector<int>> tokens;
  for (const DecodeResponse& response : waiting) {
    EXPECT_LE(response.token_ids_size(), kMaxTokensPerMessage);
    EXPECT_EQ(response.logprobs_size(), response.token_ids_size());
    for (const int token : response.token_ids()) tokens[response.choice()].push_back(token);
  }
  for (int choice = 0; choice < kChoices; ++choice) {
    ASSERT_EQ(tokens[choice].size(), static_cast<size_t>(kTokens));
    for (int i = 0; i < kTokens; ++i) ASSERT_EQ(tokens[choice][static_cast<size_t>(i)], i);
  }
}

TEST(ResponseTest, TheNewestNewsStandAndNothingFollowsAFinish) {
  std::deque<DecodeResponse> waiting;
  Push(waiting, Token(0, 1));
  waiting.back().mutable_usage()->set_kv_bytes(5);
  Push(waiting, Token(1, 1));
  DecodeResponse last = Token(0, 2);
  last.mutable_usage()->set_kv_bytes(9);
  last.set_finish(DecodeResponse::FINISH_STOP);
  Push(waiting, last);
  ASSERT_EQ(waiting.size(), 2u);
  EXPECT_EQ(waiting[0].usage().kv_bytes(), 9);
  EXPECT_EQ(waiting[0].finish(), DecodeResponse::FINISH_STOP);
  Push(waiting, Token(0, 3));
  EXPECT_EQ(waiting.size(), 3u);
}

TEST(ResponseTest, NewerTimingsReplaceOlderOnesZerosIncluded) {
  std::deque<DecodeResponse> waiting;
  DecodeResponse first = Token(0, 1);
  first.mutable_timings()->set_prefill_ms(30);
  Push(waiting, first);
  DecodeResponse second = Token(0, 2);
  second.mutable_timings()->set_queue_ms(4);
  Push(waiting, second);
  ASSERT_EQ(waiting.size(), 1u);
  EXPECT_EQ(waiting[0].timings().queue_ms(), 4);
  EXPECT_EQ(waiting[0].timings().prefill_ms(), 0);
}

TEST(ResponseTest, AHeartbeatIsOneAndGivesWay) {
  std::deque<DecodeResponse> waiting;
  Push(waiting, DecodeResponse());
  Push(waiting, DecodeResponse());
  EXPECT_EQ(waiting.size(), 1u);
  Push(waiting, Token(2, 5));
  ASSERT_EQ(waiting.size(), 1u);
  EXPECT_EQ(waiting[0].choice(), 2);
  Push(waiting, DecodeResponse());
  EXPECT_EQ(waiting.size(), 1u);
}

}  // namespace
}  // namespace baton::decode_worker
