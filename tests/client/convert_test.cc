#include "client/cpp/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "tests/client/scripted_router.h"

namespace baton::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

TEST(ConvertTest, AWorkersWorkHasShortNames) {
  v1::WorkerStatus status;
  status.set_role(v1::WORKER_ROLE_DECODE);
  status.add_capabilities(v1::WORKER_CAPABILITY_COMPUTE);
  status.add_capabilities(v1::WORKER_CAPABILITY_ANSWER);
  const Worker worker = FromProto(status);
  EXPECT_EQ(worker.role, "decode");
  EXPECT_THAT(worker.capabilities, ElementsAre("compute", "answer"));
}

TEST(ConvertTest, EveryFieldOfARequest) {
  GenerateRequest request;
  request.text = "hi";
  request.sampling.repetition_penalty = 1.5f;
  request.sampling.frequency_penalty = -1;
  request.sampling.presence_penalty = 0.5f;
  request.sampling.logit_bias = {{1, 2.0f}, {5, -3.0f}};
  request.min_tokens = 3;
  request.n = 4;
  request.beam_width = 5;
  request.length_penalty = 0.5f;
  request.logprobs = 0;
  request.prompt_logprobs = 6;
  request.priority = Priority::kLow;
  request.tenant = "t";
  request.add_special_tokens = false;
  request.split_special_tokens = false;
  request.speculation = false;
  const v1::GenerateRequest proto = ToProto(request);
  EXPECT_EQ(proto.sampling().repetition_penalty(), 1.5f);
  EXPECT_EQ(proto.sampling().frequency_penalty(), -1);
  EXPECT_EQ(proto.sampling().presence_penalty(), 0.5f);
  EXPECT_THAT(proto.sampling().logit_bias(), UnorderedElementsAre(Pair(1, 2.0f), Pair(5, -3.0f)));
  EXPECT_EQ(proto.stop().min_tokens(), 3);
  EXPECT_EQ(proto.n(), 4);
  EXPECT_EQ(proto.beam_width(), 5);
  EXPECT_EQ(proto.length_penalty(), 0.5f);
  EXPECT_TRUE(proto.has_logprobs());
  EXPECT_EQ(proto.logprobs(), 0);
  EXPECT_EQ(proto.prompt_logprobs(), 6);
  EXPECT_EQ(proto.priority(), v1::PRIORITY_LOW);
  EXPECT_EQ(proto.tenant(), "t");
  EXPECT_TRUE(proto.has_add_special_tokens());
  EXPECT_TRUE(proto.has_split_special_tokens());
  EXPECT_FALSE(proto.split_special_tokens());
  EXPECT_TRUE(proto.has_speculation());
  EXPECT_FALSE(proto.speculation());
}

TEST(ConvertTest, Retention) {
  GenerateRequest request;
  request.retention = Retention{.priority = 7, .ttl_ms = 9};
  request.explain_cache = true;
  v1::GenerateRequest proto = ToProto(request);
  EXPECT_FALSE(proto.retention().has_until_token());
  EXPECT_EQ(proto.retention().priority(), 7);
  EXPECT_EQ(proto.retention().ttl_ms(), 9);
  EXPECT_TRUE(proto.explain_cache());
  request.retention->until_token = 5;
  EXPECT_EQ(ToProto(request).retention().until_token(), 5);
}

TEST(ConvertTest, CacheMissOfUsage) {
  v1::Usage usage;
  EXPECT_FALSE(FromProto(usage).cache_miss.has_value());
  usage.mutable_cache_miss()->set_cause(v1::CACHE_MISS_CAUSE_OTHER_SALT);
  usage.mutable_cache_miss()->set_first_different_token(3);
  usage.mutable_cache_miss()->set_lost_tokens(4);
  const std::optional<CacheMiss> miss = FromProto(usage).cache_miss;
  ASSERT_TRUE(miss.has_value());
  EXPECT_EQ(miss->cause, "other_salt");
  EXPECT_EQ(miss->first_different_token, 3);
  EXPECT_EQ(miss->lost_tokens, 4);
}

TEST(ConvertTest, TruncationSegmentsAndTheirUsage) {
  GenerateRequest request;
  EXPECT_FALSE(ToProto(request).has_truncation());
  request.truncation.emplace();
  request.truncation->keep_first = 0;
  request.truncation->retention_ratio = 0.5f;
  request.segments = {{PromptSource::kTools, 7}, {PromptSource::kOther, 2}};
  const v1::GenerateRequest proto = ToProto(request);
  EXPECT_TRUE(proto.truncation().has_keep_first());
  EXPECT_FALSE(proto.truncation().has_keep_last());
  EXPECT_EQ(proto.truncation().retention_ratio(), 0.5f);
  ASSERT_EQ(proto.segments_size(), 2);
  EXPECT_EQ(proto.segments(0).source(), v1::PROMPT_SOURCE_TOOLS);
  EXPECT_EQ(proto.segments(0).length(), 7);
  EXPECT_EQ(proto.segments(1).source(), v1::PROMPT_SOURCE_UNSPECIFIED);
  v1::Usage usage;
  usage.set_dropped_prompt_tokens(5);
  usage.set_draft_tokens(8);
  usage.set_accepted_draft_tokens(6);
  v1::SourceUsage* source = usage.add_by_source();
  source->set_source(v1::PROMPT_SOURCE_USER);
  source->set_tokens(4);
  source->set_cached(3);
  EXPECT_EQ(FromProto(usage).dropped_prompt_tokens, 5);
  EXPECT_EQ(FromProto(usage).draft_tokens, 8);
  EXPECT_EQ(FromProto(usage).accepted_draft_tokens, 6);
  EXPECT_EQ(FromProto(usage).by_source.at(PromptSource::kUser).cached, 3);
}

TEST(ConvertTest, StructuredOutput) {
  GenerateRequest request;
  request.json_object = true;
  EXPECT_TRUE(ToProto(request).structured_output().has_json_object());
  request = {};
  request.json_schema = "{}";
  EXPECT_EQ(ToProto(request).structured_output().json_schema(), "{}");
  EXPECT_FALSE(ToProto(request).structured_output().any_whitespace());
  request.any_whitespace = true;
  EXPECT_TRUE(ToProto(request).structured_output().any_whitespace());
  request = {};
  request.regex = "a";
  EXPECT_EQ(ToProto(request).structured_output().regex(), "a");
  request = {};
  request.answer_texts = {"a", "b"};
  EXPECT_EQ(ToProto(request).structured_output().choices().texts_size(), 2);
}

TEST(ConvertTest, WhatIsAbsentStaysAbsent) {
  const v1::GenerateRequest proto = ToProto(GenerateRequest{});
  EXPECT_FALSE(proto.has_structured_output());
  EXPECT_FALSE(proto.has_retention());
  EXPECT_FALSE(proto.sampling().has_repetition_penalty());
  EXPECT_FALSE(proto.sampling().has_frequency_penalty());
  EXPECT_FALSE(proto.sampling().has_presence_penalty());
  EXPECT_FALSE(proto.stop().has_min_tokens());
  EXPECT_FALSE(proto.has_n());
  EXPECT_FALSE(proto.has_beam_width());
  EXPECT_FALSE(proto.has_length_penalty());
  EXPECT_FALSE(proto.has_logprobs());
  EXPECT_FALSE(proto.has_prompt_logprobs());
  EXPECT_FALSE(proto.has_add_special_tokens());
  EXPECT_FALSE(proto.has_split_special_tokens());
  EXPECT_FALSE(proto.has_speculation());
  EXPECT_EQ(proto.priority(), v1::PRIORITY_UNSPECIFIED);
}

v1::TokenLogprobs Logprobs(int32_t id, float logprob) {
  v1::TokenLogprobs logprobs;
  logprobs.set_token_id(id);
  logprobs.set_logprob(logprob);
  logprobs.add_top()->set_token_id(9);
  logprobs.mutable_top(0)->set_logprob(-0.125f);
  return logprobs;
}

TEST(ConvertTest, AWholeAnswer) {
  v1::GenerateOnceResponse response;
  response.set_text("a");
  *response.add_prompt_logprobs() = Logprobs(3, -3);
  for (const char* text : {"a", "b"}) {
    v1::Choice* choice = response.add_choices();
    choice->set_text(text);
    choice->add_token_ids(7);
    choice->set_finish_reason(v1::FINISH_REASON_LENGTH);
    choice->set_matched_stop("x");
    choice->set_beam_score(-1.5);
    *choice->add_logprobs() = Logprobs(7, -0.5f);
  }
  const Completion completion = FromProto(response);
  EXPECT_EQ(completion.text(), "a");
  ASSERT_EQ(completion.prompt_logprobs.size(), 1u);
  EXPECT_EQ(completion.prompt_logprobs[0].logprob, -3);
  ASSERT_EQ(completion.choices.size(), 2u);
  const Choice& second = completion.choices[1];
  EXPECT_EQ(second.text, "b");
  EXPECT_THAT(second.token_ids, ElementsAre(7));
  EXPECT_EQ(second.finish_reason, FinishReason::kLength);
  EXPECT_EQ(second.matched_stop, "x");
  EXPECT_EQ(second.beam_score, -1.5);
  ASSERT_EQ(second.logprobs.size(), 1u);
  EXPECT_EQ(second.logprobs[0].token_id, 7);
  ASSERT_EQ(second.logprobs[0].top.size(), 1u);
  EXPECT_EQ(second.logprobs[0].top[0].token_id, 9);
  EXPECT_EQ(second.logprobs[0].top[0].logprob, -0.125f);
}

class StreamTest : public ::testing::Test {
 protected:
  v1::GenerateResponse& Say(int choice, const char* text) {
    return script_.emplace_back(baton::testing::Piece(text, choice));
  }
  std::unique_ptr<GenerateStream> Generate(int n) {
    router_.Reply({std::exchange(script_, {}), absl::OkStatus()});
    GenerateRequest request;
    request.n = n;
    return client_->Generate(request);
  }

  baton::testing::ScriptedRouter router_;
  std::vector<v1::GenerateResponse> script_;
  std::unique_ptr<Client> client_ = *Client::Create(router_.address());
};

TEST_F(StreamTest, ChoicesThatComeInTurns) {
  *Say(0, "a").add_prompt_logprobs() = Logprobs(3, -3);
  *Say(1, "x").add_logprobs() = Logprobs(7, -0.5f);
  Say(0, "b").set_finish_reason(v1::FINISH_REASON_STOP);
  v1::GenerateResponse& last = Say(1, "y");
  *last.add_logprobs() = Logprobs(8, -0.25f);
  last.set_finish_reason(v1::FINISH_REASON_LENGTH);
  last.set_beam_score(-2);
  last.set_seed(5);
  const auto stream = Generate(2);
  std::vector<int> order;
  while (auto delta = stream->Next()) {
    order.push_back(delta->choice);
    if (order.size() == 1) {
      EXPECT_EQ(delta->prompt_logprobs.size(), 1u);
    }
    if (order.size() == 2) {
      ASSERT_EQ(delta->logprobs.size(), 1u);
      EXPECT_EQ(delta->logprobs[0].token_id, 7);
    }
  }
  EXPECT_TRUE(stream->status().ok()) << stream->status();
  EXPECT_THAT(order, ElementsAre(0, 1, 0, 1));
  const Completion& completion = stream->completion();
  EXPECT_EQ(completion.text(), "ab");
  EXPECT_EQ(completion.finish_reason(), FinishReason::kStop);
  EXPECT_EQ(completion.seed, 5u);
  ASSERT_EQ(completion.choices.size(), 2u);
  EXPECT_EQ(completion.choices[0].text, "ab");
  EXPECT_EQ(completion.choices[1].text, "xy");
  EXPECT_EQ(completion.choices[1].finish_reason, FinishReason::kLength);
  EXPECT_EQ(completion.choices[1].beam_score, -2);
  ASSERT_EQ(completion.choices[1].logprobs.size(), 2u);
  EXPECT_EQ(completion.choices[1].logprobs[1].token_id, 8);
  EXPECT_EQ(completion.prompt_logprobs.size(), 1u);
}

TEST_F(StreamTest, WhatOnlySaysThatTheStreamLivesIsPassedOver) {
  Say(0, "a").mutable_usage()->set_generated_tokens(1);
  for (int choice : {0, 1, 0}) Say(choice, "").mutable_usage()->set_generated_tokens(1);
  Say(1, "x").set_finish_reason(v1::FINISH_REASON_STOP);
  Say(1, "");
  Say(0, "").set_finish_reason(v1::FINISH_REASON_LENGTH);
  const auto stream = Generate(2);
  std::vector<int> order;
  while (auto delta = stream->Next()) order.push_back(delta->choice);
  EXPECT_THAT(order, ElementsAre(0, 1, 0));
  EXPECT_TRUE(stream->status().ok()) << stream->status();
  EXPECT_EQ(stream->completion().choices[0].text, "a");
  EXPECT_EQ(stream->completion().choices[1].text, "x");
}

TEST_F(StreamTest, IncompleteUntilEveryChoiceHasFinished) {
  Say(0, "a").set_finish_reason(v1::FINISH_REASON_STOP);
  Say(1, "x");
  const auto stream = Generate(2);
  while (stream->Next()) {
  }
  EXPECT_EQ(stream->status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(stream->status().message()), HasSubstr("choice 1"));
}

TEST_F(StreamTest, AChoiceThatWasNotAskedForIsAnError) {
  for (const int bad : {2, -1, 2147483647}) {
    Say(0, "a");
    Say(bad, "x");
    Say(1, "y");
    const auto stream = Generate(2);
    while (stream->Next()) {
    }
    EXPECT_EQ(stream->status().code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(stream->status().message()),
                HasSubstr("choice " + std::to_string(bad)));
    EXPECT_EQ(stream->completion().choices[1].text, "");
  }
}

TEST(ConvertTest, AnErrorOfTheConstraintNamesTheOneGiven) {
  const auto named = [](const GenerateRequest& request) {
    const absl::Status error = InvalidField("SCHEMA_TOO_COMPLEX", "structured_output", "too large");
    const absl::Status renamed = InCallersNames(error, ToProto(request));
    EXPECT_EQ(renamed.message(), absl::StrCat(ErrorField(renamed), ": too large"));
    EXPECT_EQ(ErrorReason(renamed), "SCHEMA_TOO_COMPLEX");
    return ErrorField(renamed);
  };
  GenerateRequest object, schema, regex, texts;
  object.json_object = true;
  schema.json_schema = "{}";
  regex.regex = "a";
  texts.answer_texts = {"a"};
  EXPECT_EQ(named(object), "json_object");
  EXPECT_EQ(named(schema), "json_schema");
  EXPECT_EQ(named(regex), "regex");
  EXPECT_EQ(named(texts), "answer_texts");
  EXPECT_EQ(named(GenerateRequest()), "structured_output");
}

}  // namespace
}  // namespace baton::client
