#include "router/http/answer_parts.h"

#include <gtest/gtest.h>

#include <string>

namespace baton::router {
namespace {

// Counts the reasoning of answers whose deltas a test makes up.
class ReasoningTokensTest : public ::testing::Test {
 protected:
  ReasoningTokensTest() { options_.reasoning = chat::ReasoningFormat::kThinkTags; }

  void Add(const std::string& text, int tokens = 1, int choice = 0, bool ends = false) {
    generated_ += tokens;
    v1::GenerateResponse delta;
    delta.set_text(text);
    delta.set_choice(choice);
    delta.mutable_usage()->set_generated_tokens(generated_);
    if (ends) delta.set_finish_reason(v1::FINISH_REASON_STOP);
    tokens_.Add(delta, options_);
  }

  AnswerParts::Options options_;
  ReasoningTokens tokens_;
  int generated_ = 0;
};

TEST_F(ReasoningTokensTest, WhatBringsNoTextBelongsToWhatCameBefore) {
  Add("<think>");
  EXPECT_EQ(tokens_.count(), 0) << "nothing is known yet";
  Add("\n");
  Add("so");
  EXPECT_EQ(tokens_.count(), 3);
  Add("");  // a part of a character
  Add("</think>");
  Add("\n\n");
  EXPECT_EQ(tokens_.count(), 6);
  Add("4");
  Add("");
  Add(".", 1, 0, /*ends=*/true);
  EXPECT_EQ(tokens_.count(), 6);
}

TEST_F(ReasoningTokensTest, AMessageThatEndsTheReasoningWithTextBehindItCountsAsAnswer) {
  Add("<think>so", 2);
  Add(" it is", 3);
  EXPECT_EQ(tokens_.count(), 5);
  Add("</think>4", 2);
  EXPECT_EQ(tokens_.count(), 5);
}

TEST_F(ReasoningTokensTest, AnAnswerWithoutReasoningHasNone) {
  Add("<th");
  Add("ree>");
  Add("</think>", 1, 0, /*ends=*/true);
  EXPECT_EQ(tokens_.count(), 0);
}

TEST_F(ReasoningTokensTest, EachChoiceHasItsOwn) {
  options_.starts_in_reasoning = true;
  Add("a", 1, 0);
  Add("</think>b", 2, 1);
  Add("c", 1, 0);
  Add("d", 1, 1);
  EXPECT_EQ(tokens_.count(), 2);
}

}  // namespace
}  // namespace baton::router
