#include "common/worker/token_sampling.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "common/base/error.h"

namespace baton::worker {
namespace {

constexpr int kVocabSize = 100;

TEST(TokenSamplingTest, ThereAndBack) {
  const model::SamplingParams params = {.temperature = 0.5f,
                                        .top_p = 0.9f,
                                        .top_k = 7,
                                        .min_p = 0.1f,
                                        .seed = ~uint64_t{0},
                                        .choice = 3,
                                        .repetition_penalty = 1.5f,
                                        .frequency_penalty = -1,
                                        .presence_penalty = 0.5f,
                                        .logit_bias = {{1, 2}, {5, -3}, {99, 100}},
                                        .logprobs = 0};
  EXPECT_EQ(FromProto(ToProto(params)), params);
  EXPECT_EQ(FromProto(ToProto(model::SamplingParams())), model::SamplingParams());
}

TEST(TokenSamplingTest, AnAbsentRepetitionPenaltyIsNone) {
  EXPECT_EQ(FromProto({}).repetition_penalty, 1);
  EXPECT_FALSE(FromProto({}).logprobs.has_value());
}

TEST(TokenSamplingTest, BiasesComeInOrder) {
  internal::v1::TokenSampling sampling;
  for (int id = 999; id >= 0; --id) (*sampling.mutable_logit_bias())[id] = static_cast<float>(id);
  const model::SamplingParams params = FromProto(sampling);
  ASSERT_EQ(params.logit_bias.size(), 1000u);
  for (int id = 0; id < 1000; ++id) EXPECT_EQ(params.logit_bias[id].first, id);
}

TEST(TokenSamplingTest, SampledTokens) {
  model::SampledToken token;
  token.token_id = 4;
  token.logprob = -0.5f;
  token.top = {{2, -0.25f}, {4, -0.5f}};
  const std::vector<v1::TokenLogprobs> protos = ToProto(std::vector{token, token});
  ASSERT_EQ(protos.size(), 2u);
  EXPECT_EQ(protos[1].token_id(), 4);
  EXPECT_EQ(protos[1].logprob(), -0.5f);
  ASSERT_EQ(protos[1].top_size(), 2);
  EXPECT_EQ(protos[1].top(0).token_id(), 2);
  EXPECT_EQ(protos[1].top(0).logprob(), -0.25f);
}

template <class Request>
Request Good() {
  Request request;
  request.add_tokens(0);
  request.add_tokens(kVocabSize - 1);
  *request.mutable_sampling() = ToProto(model::SamplingParams());
  return request;
}
template <>
internal::v1::DecodeRequest Good() {
  internal::v1::DecodeRequest request;
  request.add_tokens(0);
  request.add_tokens(kVocabSize - 1);
  *request.mutable_sampling() = ToProto(model::SamplingParams());
  request.set_max_tokens(4);
  return request;
}

template <class Request>
void ExpectRefused(const char* what, const char* reason, const char* field,
                   const std::function<void(Request&)>& spoil) {
  Request request = Good<Request>();
  spoil(request);
  const absl::Status status = CheckTokenFields(request, kVocabSize);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what;
  EXPECT_EQ(ErrorReason(status), reason) << what;
  EXPECT_EQ(ErrorField(status), field) << what;
}

// What both messages have.
template <class Request>
void ExpectCommonChecks() {
  const auto refuse = ExpectRefused<Request>;
  refuse("token", "OUT_OF_RANGE", "tokens", [](auto& r) { r.add_tokens(kVocabSize); });
  refuse("token", "OUT_OF_RANGE", "tokens", [](auto& r) { r.add_tokens(-1); });
  refuse("low", "OUT_OF_RANGE", "prompt_tokens", [](auto& r) { r.set_prompt_tokens(-1); });
  refuse("high", "OUT_OF_RANGE", "prompt_tokens", [](auto& r) { r.set_prompt_tokens(3); });
  refuse("nan", "OUT_OF_RANGE", "sampling.temperature",
         [](auto& r) { r.mutable_sampling()->set_temperature(std::nanf("")); });
  refuse("high", "OUT_OF_RANGE", "sampling.temperature",
         [](auto& r) { r.mutable_sampling()->set_temperature(2.5f); });
  refuse("low", "OUT_OF_RANGE", "sampling.repetition_penalty",
         [](auto& r) { r.mutable_sampling()->set_repetition_penalty(-1); });
  refuse("high", "OUT_OF_RANGE", "sampling.frequency_penalty",
         [](auto& r) { r.mutable_sampling()->set_frequency_penalty(3); });
  refuse("nan", "OUT_OF_RANGE", "sampling.presence_penalty",
         [](auto& r) { r.mutable_sampling()->set_presence_penalty(std::nanf("")); });
  refuse("high", "OUT_OF_RANGE", "sampling.logprobs",
         [](auto& r) { r.mutable_sampling()->set_logprobs(21); });
  refuse("nan", "OUT_OF_RANGE", "sampling.logit_bias",
         [](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[1] = std::nanf(""); });
  refuse("many", "OUT_OF_RANGE", "sampling.logit_bias", [](auto& r) {
    for (int id = 0; id < 1025; ++id) (*r.mutable_sampling()->mutable_logit_bias())[id] = 0;
  });
  refuse("id", "OUT_OF_RANGE", "sampling.logit_bias",
         [](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[kVocabSize] = 0; });
  refuse("id", "OUT_OF_RANGE", "sampling.logit_bias",
         [](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[-1] = 0; });
  refuse("low", "OUT_OF_RANGE", "prompt_logprobs", [](auto& r) { r.set_prompt_logprobs(-1); });
  refuse("high", "OUT_OF_RANGE", "prompt_logprobs", [](auto& r) { r.set_prompt_logprobs(21); });
  refuse("unknown", "OUT_OF_RANGE", "priority",
         [](auto& r) { r.set_priority(static_cast<v1::Priority>(9)); });
  const auto retain = [&](const char* field, int until, int priority, int64_t ttl_ms) {
    refuse("retention", "OUT_OF_RANGE", field, [&](auto& r) {
      r.mutable_retention()->set_until_token(until);
      r.mutable_retention()->set_priority(priority);
      r.mutable_retention()->set_ttl_ms(ttl_ms);
    });
  };
  retain("retention.until_token", 0, 50, 1);
  retain("retention.until_token", -1, 50, 1);
  retain("retention.priority", 1, -1, 1);
  retain("retention.priority", 1, 101, 1);
  retain("retention.ttl_ms", 1, 50, 0);
  retain("retention.ttl_ms", 1, 50, 604'800'001);
  refuse("control", "BAD_TENANT", "tenant", [](auto& r) { r.set_tenant("\n"); });
  refuse("long", "BAD_TENANT", "tenant", [](auto& r) { r.set_tenant(std::string(129, 't')); });

  Request good = Good<Request>();
  EXPECT_TRUE(CheckTokenFields(good, kVocabSize).ok());
  EXPECT_EQ(PromptTokens(good), 2);
  good.set_prompt_tokens(1);
  good.set_prompt_logprobs(20);
  good.mutable_sampling()->set_logprobs(20);
  good.set_priority(v1::PRIORITY_LOW);
  good.set_tenant("a tenant");
  good.mutable_retention()->set_until_token(std::numeric_limits<int32_t>::max());
  good.mutable_retention()->set_priority(100);
  good.mutable_retention()->set_ttl_ms(604'800'000);
  (*good.mutable_sampling()->mutable_logit_bias())[kVocabSize - 1] = -100;
  EXPECT_TRUE(CheckTokenFields(good, kVocabSize).ok()) << CheckTokenFields(good, kVocabSize);
  EXPECT_EQ(PromptTokens(good), 1);
}

TEST(TokenFieldsTest, OfBothRequests) {
  ExpectCommonChecks<internal::v1::PrefillRequest>();
  ExpectCommonChecks<internal::v1::DecodeRequest>();
}

TEST(TokenFieldsTest, TokensOfEitherFieldAreTheSame) {
  auto request = Good<internal::v1::DecodeRequest>();
  const auto tokens = request.tokens();
  request.mutable_fixed_tokens()->Swap(request.mutable_tokens());
  // As they come over the wire.
  internal::v1::DecodeRequest received;
  ASSERT_TRUE(received.ParseFromString(request.SerializeAsString()));
  EXPECT_TRUE(CheckTokenFields(received, kVocabSize).ok());
  EXPECT_EQ(received.tokens_size(), 0);
  EXPECT_THAT(TokensOf(received), ::testing::ElementsAreArray(tokens));
  EXPECT_EQ(PromptTokens(received), tokens.size());
}

TEST(TokenFieldsTest, OfAPrefillRequest) {
  const auto refuse = ExpectRefused<internal::v1::PrefillRequest>;
  refuse("many", "TOO_MANY_STOPS", "suppressed_token_ids",
         [](auto& r) { r.mutable_suppressed_token_ids()->Resize(1025, 1); });
  refuse("id", "OUT_OF_RANGE", "suppressed_token_ids",
         [](auto& r) { r.add_suppressed_token_ids(kVocabSize); });
}

TEST(TokenFieldsTest, OfADecodeRequest) {
  const auto refuse = ExpectRefused<internal::v1::DecodeRequest>;
  refuse("many", "TOO_MANY_STOPS", "stop_token_ids",
         [](auto& r) { r.mutable_stop_token_ids()->Resize(1025, 1); });
  refuse("id", "OUT_OF_RANGE", "stop_token_ids", [](auto& r) { r.add_stop_token_ids(-1); });
  refuse("both", "OUT_OF_RANGE", "fixed_tokens", [](auto& r) { r.add_fixed_tokens(0); });
  for (const int32_t id : {-1, kVocabSize}) {
    refuse("fixed", "OUT_OF_RANGE", "tokens", [id](auto& r) {
      r.mutable_fixed_tokens()->Swap(r.mutable_tokens());
      r.add_fixed_tokens(id);
    });
  }
  refuse("zero", "OUT_OF_RANGE", "max_tokens", [](auto& r) { r.set_max_tokens(0); });
  refuse("low", "OUT_OF_RANGE", "min_tokens", [](auto& r) { r.set_min_tokens(-1); });
  refuse("high", "OUT_OF_RANGE", "min_tokens", [](auto& r) { r.set_min_tokens(5); });
  refuse("low", "OUT_OF_RANGE", "n", [](auto& r) { r.set_n(-1); });
  refuse("high", "OUT_OF_RANGE", "n", [](auto& r) { r.set_n(17); });
  refuse("one", "OUT_OF_RANGE", "beam_width", [](auto& r) { r.set_beam_width(1); });
  refuse("high", "OUT_OF_RANGE", "beam_width", [](auto& r) { r.set_beam_width(17); });
  refuse("negative", "OUT_OF_RANGE", "beam_width", [](auto& r) { r.set_beam_width(-2); });
  refuse("more choices", "OUT_OF_RANGE", "n", [](auto& r) {
    r.set_beam_width(2);
    r.set_n(3);
  });
  refuse("high", "OUT_OF_RANGE", "length_penalty", [](auto& r) {
    r.set_beam_width(2);
    r.set_length_penalty(10.5f);
  });
  refuse("nan", "OUT_OF_RANGE", "length_penalty", [](auto& r) {
    r.set_beam_width(2);
    r.set_length_penalty(std::nanf(""));
  });
  internal::v1::DecodeRequest good = Good<internal::v1::DecodeRequest>();
  good.set_min_tokens(4);
  good.set_n(16);
  good.set_beam_width(16);
  good.set_length_penalty(-1);
  EXPECT_TRUE(CheckTokenFields(good, kVocabSize).ok());
}

}  // namespace
}  // namespace baton::worker
