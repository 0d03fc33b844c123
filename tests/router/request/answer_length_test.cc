#include "router/request/answer_length.h"

#include <gtest/gtest.h>

#include "common/kv/answer_blocks.h"

namespace baton::router {
namespace {

class AnswerLengthTest : public ::testing::Test {
 protected:
  AnswerLengthTest() {
    model_.block_tokens = 16;
    model_.max_model_len = 8192;
  }
  int Most(int prompt_tokens) const {
    return DefaultMaxTokens(request_, model_, class_, prompt_tokens,
                            model_.max_model_len - prompt_tokens);
  }

  ModelInfo model_;
  RequestClass class_;
  v1::GenerateRequest request_;
};

TEST_F(AnswerLengthTest, ThePoolOfADecodeWorkerBoundsTheDefault) {
  EXPECT_EQ(Most(37), 8155) << "no decode worker is known";
  model_.decode_pages = {1024};
  EXPECT_EQ(Most(37), 8155) << "the pool holds more than the context";
  model_.decode_pages = {273};
  EXPECT_EQ(Most(37), 273 * 16 - 37 + 1);
  model_.defaults.set_max_new_tokens(100);
  EXPECT_EQ(Most(37), 100);
  EXPECT_EQ(Most(273 * 16 - 49), 50) << "the model's default, too";
  class_.default_max_tokens = 7000;
  EXPECT_EQ(Most(37), 273 * 16 - 37 + 1) << "and the operator's";
}

TEST_F(AnswerLengthTest, EveryWorkerThatHoldsThePromptTakesTheRequest) {
  model_.decode_pages = {300, 100, 200, 100};
  for (const int beams : {0, 3}) {
    if (beams > 0) request_.set_beam_width(beams);
    for (const int prompt : {1, 50, 160, 400, 799, 800, 1600, 1601, 2000, 3200, 3201, 4799}) {
      const int most = Most(prompt);
      int takers = 0;
      for (const int blocks : model_.decode_pages) {
        if (kv::BlocksOfAnswer(prompt, 1, beams, 16) > blocks) continue;
        ++takers;
        EXPECT_LE(kv::BlocksOfAnswer(prompt, most, beams, 16), blocks) << prompt;
      }
      EXPECT_EQ(takers == 0, most == 8192 - prompt) << "no bound: " << prompt;
    }
  }
  request_.clear_beam_width();
  EXPECT_EQ(Most(1601), 200 * 16 - 1601 + 1) << "no more than one of 100 blocks would have left";
}

TEST_F(AnswerLengthTest, APromptThatFitsNowhereIsTheWorkersToRefuse) {
  model_.decode_pages = {100};
  EXPECT_EQ(Most(1600), 1) << "the last one that fits";
  EXPECT_EQ(Most(1601), 8192 - 1601);
}

TEST_F(AnswerLengthTest, WhatTheClientAsksForStays) {
  model_.decode_pages = {100};
  request_.mutable_stop()->set_min_tokens(5000);
  EXPECT_EQ(Most(37), 5000);
}

}  // namespace
}  // namespace baton::router
