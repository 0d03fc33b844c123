#include "router/request/answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/error.h"
#include "tests/testing/tiny_tokenizer.h"

namespace baton::router {
namespace {

using ::baton::testing::Ids;
using ::baton::testing::kEndToken;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using DecodeResponse = internal::v1::DecodeResponse;

DecodeResponse Tokens(const std::vector<int32_t>& ids, int choice = 0,
                      DecodeResponse::Finish finish = DecodeResponse::FINISH_UNSPECIFIED) {
  DecodeResponse message;
  message.mutable_token_ids()->Assign(ids.begin(), ids.end());
  message.set_choice(choice);
  message.set_finish(finish);
  return message;
}

class AnswerTest : public ::testing::Test {
 protected:
  AnswerTest() {
    const std::string dir = ::testing::TempDir() + "/tiny";
    testing::WriteTinyTokenizer(dir);
    tokenizer_ = *tokenizer::Tokenizer::Load(dir);
    for (int32_t id : Ids("prompt")) prepared_.decode.add_tokens(id);
    prepared_.decode.set_max_tokens(10);
    prepared_.decode.add_stop_token_ids(kEndToken);
    prepared_.return_token_ids = true;
  }
  void Begin(int n = 1) {
    prepared_.decode.set_n(n);
    answer_.emplace(*tokenizer_, prepared_);
    cursor_ = answer_->AtStart();
  }
  v1::GenerateResponse Take(const DecodeResponse& message) {
    auto delta = answer_->Take(message, &cursor_);
    EXPECT_TRUE(delta.ok()) << delta.status();
    return delta.ok() && *delta ? **delta : v1::GenerateResponse();
  }
  std::string TakeError(const DecodeResponse& message) {
    return ErrorReason(answer_->Take(message, &cursor_).status());
  }

  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
  PreparedRequest prepared_;
  std::optional<Answer> answer_;
  Answer::Cursor cursor_;
};

TEST_F(AnswerTest, TheRestOfAChoiceIsAskedForAfterItsTokens) {
  prepared_.decode.set_min_tokens(3);
  prepared_.decode.set_prompt_logprobs(2);
  prepared_.decode.mutable_sampling()->set_seed(5);
  Begin(3);
  Take(Tokens(Ids("ab"), 1));
  const auto rest = answer_->RestOf(1);
  EXPECT_THAT(rest.tokens(), ElementsAreArray(Ids("promptab")));
  EXPECT_EQ(rest.prompt_tokens(), 6);
  EXPECT_EQ(rest.max_tokens(), 8);
  EXPECT_EQ(rest.min_tokens(), 1);
  EXPECT_EQ(rest.n(), 1);
  EXPECT_EQ(rest.sampling().choice(), 1u);
  EXPECT_EQ(rest.sampling().seed(), 5u);
  EXPECT_FALSE(rest.has_prompt_logprobs()) << "they have been told, or not been there";
  const auto other = answer_->RestOf(2);
  EXPECT_THAT(other.tokens(), ElementsAreArray(Ids("prompt")));
  EXPECT_EQ(other.sampling().choice(), 2u);
  EXPECT_EQ(other.max_tokens(), 10);
  const auto whole = answer_->Whole();
  EXPECT_EQ(whole.n(), 3);
  EXPECT_EQ(whole.prompt_tokens(), 6);
}

TEST_F(AnswerTest, HeldBackTextSurvivesAChangeOfStreams) {
  prepared_.stops = {"END"};
  Begin();
  EXPECT_EQ(Take(Tokens(Ids("aE"))).text(), "a");
  EXPECT_EQ(Take(Tokens({0xC3})).text(), "");  // half a character, after an E that may be a stop
  cursor_ = answer_->AtEnd();
  EXPECT_EQ(Take(Tokens({0xA9})).text(), "E\xC3\xA9");
  EXPECT_EQ(Take(Tokens(Ids("EN"))).text(), "");
  cursor_ = answer_->AtEnd();
  const auto last = Take(Tokens(Ids("Dx")));
  EXPECT_EQ(last.text(), "");
  EXPECT_EQ(last.matched_stop(), "END");
  EXPECT_THAT(last.token_ids(), ElementsAre('D'));
  EXPECT_TRUE(answer_->finished());
}

TEST_F(AnswerTest, SpecialTokensAreTextOnlyIfTheyAreShown) {
  prepared_.decode.clear_stop_token_ids();
  const std::vector<int32_t> ids = {'a', kEndToken, 'b'};
  Begin();
  EXPECT_EQ(Take(Tokens(ids)).text(), "ab");
  prepared_.shown_special_tokens = {kEndToken};
  Begin();
  EXPECT_EQ(Take(Tokens(ids)).text(), "a<|end|>b");
  prepared_.shown_special_tokens = {'a'};  // another one
  Begin();
  EXPECT_EQ(Take(Tokens(ids)).text(), "ab");
}

TEST_F(AnswerTest, NoStopStringBeforeMinTokensButOneThatEndsAfterThem) {
  prepared_.stops = {"END"};
  prepared_.decode.set_min_tokens(5);
  Begin();
  EXPECT_EQ(Take(Tokens(Ids("END"))).text(), "END");
  EXPECT_EQ(Take(Tokens(Ids("E"))).text(), "");
  const auto last = Take(Tokens(Ids("NDmore")));
  EXPECT_EQ(last.matched_stop(), "END");
  EXPECT_EQ(answer_->generated_tokens(), 6);
}

TEST_F(AnswerTest, TokensKnownAlreadyAreComparedAndNotTakenTwice) {
  prepared_.decode.set_beam_width(2);
  Begin(2);
  Take(Tokens(Ids("ab"), 0));
  cursor_ = answer_->AtStart();
  EXPECT_EQ(Take(Tokens(Ids("a"), 0)).text(), "");
  auto more = Tokens(Ids("bc"), 0);
  for (int id : Ids("bc")) more.add_logprobs()->set_token_id(id);
  const auto delta = Take(more);
  EXPECT_EQ(delta.text(), "c");
  ASSERT_EQ(delta.logprobs_size(), 1);
  EXPECT_EQ(delta.logprobs(0).token_id(), 'c');
  EXPECT_EQ(answer_->generated_tokens(), 3);
  cursor_ = answer_->AtStart();
  EXPECT_EQ(TakeError(Tokens(Ids("ax"), 0)), "WORKER_FAILED");
}

TEST_F(AnswerTest, WhatContradictsTheRequestIsAnError) {
  Begin(2);
  EXPECT_EQ(TakeError(Tokens(Ids("a"), 2)), "WORKER_FAILED");
  EXPECT_EQ(TakeError(Tokens(Ids("a"), -1)), "WORKER_FAILED");
  auto uneven = Tokens(Ids("ab"));
  uneven.add_logprobs();
  EXPECT_EQ(TakeError(uneven), "WORKER_FAILED");
}

TEST_F(AnswerTest, WhatFollowsTheEndOfAChoiceIsDropped) {
  prepared_.stops = {"."};
  Begin(2);
  EXPECT_EQ(Take(Tokens(Ids("a.b"), 0)).finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(Take(Tokens(Ids("c"), 0)).ByteSizeLong(), 0u);
  EXPECT_EQ(Take(Tokens({kEndToken}, 0, DecodeResponse::FINISH_STOP)).ByteSizeLong(), 0u);
  EXPECT_THAT(answer_->token_counts(), ElementsAre(2, 0));
  EXPECT_FALSE(answer_->finished());
  EXPECT_EQ(Take(Tokens(Ids("d"), 1, DecodeResponse::FINISH_LENGTH)).finish_reason(),
            v1::FINISH_REASON_LENGTH);
  EXPECT_TRUE(answer_->finished());
}

TEST_F(AnswerTest, LogprobsTravelWithTheirTokens) {
  prepared_.return_token_ids = false;
  prepared_.stops = {"END"};
  Begin();
  auto first = Tokens(Ids("EN"));
  for (int id : Ids("EN")) first.add_logprobs()->set_token_id(id);
  for (int i = 0; i < 5; ++i) first.add_prompt_logprobs()->set_token_id(i);
  const auto head = Take(first);
  EXPECT_EQ(head.text(), "");
  EXPECT_EQ(head.logprobs_size(), 2);
  EXPECT_EQ(head.prompt_logprobs_size(), 5);
  auto second = Tokens(Ids("Dx"));
  for (int id : Ids("Dx")) second.add_logprobs()->set_token_id(id);
  const auto last = Take(second);
  ASSERT_EQ(last.logprobs_size(), 1) << "up to the token that completes the stop string";
  EXPECT_EQ(last.logprobs(0).token_id(), 'D');
  EXPECT_EQ(last.prompt_logprobs_size(), 0);
}

TEST_F(AnswerTest, APromptThatIsOnlyScoredHasNoTokens) {
  prepared_.prompt_only = true;
  prepared_.decode.set_max_tokens(1);
  Begin(2);
  auto first = Tokens(Ids("a"), 1, DecodeResponse::FINISH_STOP);
  first.add_logprobs()->set_token_id('a');
  for (int i = 0; i < 5; ++i) first.add_prompt_logprobs()->set_token_id(i);
  const auto scored = Take(first);
  EXPECT_EQ(scored.choice(), 1);
  EXPECT_EQ(scored.prompt_logprobs_size(), 5);
  EXPECT_EQ(scored.finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(scored.text(), "");
  EXPECT_EQ(scored.token_ids_size(), 0);
  EXPECT_EQ(scored.logprobs_size(), 0);
  EXPECT_FALSE(answer_->finished());
  const auto other = Take(Tokens(Ids("b"), 0, DecodeResponse::FINISH_LENGTH));
  EXPECT_EQ(other.finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(other.prompt_logprobs_size(), 0) << "sent once";
  EXPECT_TRUE(answer_->finished());
  EXPECT_EQ(answer_->generated_tokens(), 0);
}

TEST_F(AnswerTest, PromptLogprobsWaitForTheFirstToken) {
  Begin();
  DecodeResponse early;
  early.add_prompt_logprobs()->set_token_id(7);
  EXPECT_EQ(Take(early).ByteSizeLong(), 0u);
  EXPECT_EQ(Take(Tokens(Ids("a"))).prompt_logprobs_size(), 1);
}

TEST_F(AnswerTest, AChoiceWhoseLastTokenMustBeItsLastEndsWithoutItsWorker) {
  prepared_.stops = {"cd"};
  Begin(3);
  Take(Tokens(Ids("abc"), 0));
  EXPECT_FALSE(answer_->EndIfComplete(0).has_value());
  Take(Tokens(Ids("123456c"), 0));
  auto end = answer_->EndIfComplete(0);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->finish_reason(), v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(end->text(), "c") << "what was held back";
  Take(Tokens({'x', kEndToken}, 1));
  end = answer_->EndIfComplete(1);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_FALSE(answer_->EndIfComplete(2).has_value());
}

TEST_F(AnswerTest, AnOrdinaryStopTokenIsNoTextIfItsMessageSaysThatItIsTheEnd) {
  prepared_.decode.add_stop_token_ids('z');
  Begin(2);
  EXPECT_EQ(Take(Tokens(Ids("az"), 0, DecodeResponse::FINISH_STOP)).text(), "a");
  EXPECT_EQ(Take(Tokens(Ids("az"), 1)).text(), "az");
  const auto end = answer_->EndIfComplete(1);
  ASSERT_TRUE(end.has_value());
  EXPECT_EQ(end->finish_reason(), v1::FINISH_REASON_STOP);
  EXPECT_EQ(end->text(), "") << "it had gone out before anyone knew";
}

TEST_F(AnswerTest, AStopTokenBeforeMinTokensIsNoEnd) {
  prepared_.decode.set_min_tokens(2);
  Begin();
  Take(Tokens({'x', kEndToken}));
  EXPECT_FALSE(answer_->EndIfComplete(0).has_value()) << "the second token cannot have been one";
}

}  // namespace
}  // namespace baton::router
