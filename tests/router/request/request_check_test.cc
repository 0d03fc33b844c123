// What a good request becomes; bad ones are in bad_input_test.cc.
#include "router/request/request_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "common/base/error.h"
#include "tests/testing/tiny_tokenizer.h"

namespace baton::router {
namespace {

using ::baton::testing::kEndToken;
using ::testing::ElementsAre;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

class RequestCheckTest : public ::testing::Test {
 protected:
  RequestCheckTest() {
    const std::string model_dir = ::testing::TempDir() + "/request_check";
    baton::testing::WriteTinyTokenizer(model_dir);
    tokenizer_ = *tokenizer::Tokenizer::Load(model_dir);
    model_.fingerprint = 7;
    model_.block_tokens = 16;
    model_.max_model_len = 128;
    model_.eos_token_ids = {kEndToken};
    request_.set_text("abc");
  }

  internal::v1::DecodeRequest Prepared() {
    const absl::Status status = CheckRequest(request_, "tiny", 1 << 20);
    EXPECT_TRUE(status.ok()) << status;
    absl::StatusOr<PreparedRequest> prepared = PrepareRequest(request_, *tokenizer_, model_);
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    return prepared.ok() ? prepared->decode : internal::v1::DecodeRequest();
  }

  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
  ModelInfo model_;
  v1::GenerateRequest request_;
};

TEST_F(RequestCheckTest, StructuredOutputReachesTheWorker) {
  request_.mutable_structured_output()->set_json_schema(R"({"type": "null"})");
  const internal::v1::DecodeRequest decode = Prepared();
  EXPECT_EQ(decode.structured_output().json_schema(), R"({"type": "null"})");
  EXPECT_THAT(decode.stop_token_ids(), ElementsAre(kEndToken));
}

TEST_F(RequestCheckTest, DefaultsOfAPlainRequest) {
  const internal::v1::DecodeRequest decode = Prepared();
  EXPECT_FALSE(decode.has_structured_output());
  EXPECT_THAT(decode.tokens(), ElementsAre('a', 'b', 'c'));
  EXPECT_EQ(decode.prompt_tokens(), 3);
  EXPECT_EQ(decode.max_tokens(), 125);
  EXPECT_EQ(decode.min_tokens(), 0);
  EXPECT_EQ(decode.n(), 1);
  EXPECT_EQ(decode.beam_width(), 0);
  EXPECT_FALSE(decode.has_prompt_logprobs());
  EXPECT_EQ(decode.priority(), v1::PRIORITY_UNSPECIFIED);
  EXPECT_EQ(decode.tenant(), "");
  EXPECT_FALSE(decode.no_speculation());
  const internal::v1::TokenSampling& sampling = decode.sampling();
  EXPECT_EQ(sampling.temperature(), 1);
  EXPECT_EQ(sampling.repetition_penalty(), 1);
  EXPECT_EQ(sampling.frequency_penalty(), 0);
  EXPECT_EQ(sampling.presence_penalty(), 0);
  EXPECT_EQ(sampling.choice(), 0u);
  EXPECT_TRUE(sampling.logit_bias().empty());
  EXPECT_FALSE(sampling.has_logprobs());
  EXPECT_NE(sampling.seed(), Prepared().sampling().seed()) << "a random one each";
}

TEST_F(RequestCheckTest, WithoutTokensToGenerateThePromptIsScored) {
  request_.mutable_stop()->set_max_tokens(0);
  EXPECT_EQ(ErrorField(CheckRequest(request_, "tiny", 1 << 20)), "stop.max_tokens");
  request_.set_prompt_logprobs(0);
  EXPECT_EQ(Prepared().max_tokens(), 1) << "which the router drops";
  request_.mutable_stop()->set_max_tokens(-1);
  EXPECT_EQ(ErrorField(CheckRequest(request_, "tiny", 1 << 20)), "stop.max_tokens");
}

TEST_F(RequestCheckTest, AllThatIsGivenIsPassedOn) {
  v1::SamplingParams* sampling = request_.mutable_sampling();
  sampling->set_repetition_penalty(1.25f);
  sampling->set_frequency_penalty(-2);
  sampling->set_presence_penalty(2);
  (*sampling->mutable_logit_bias())[0] = -100;
  (*sampling->mutable_logit_bias())[256] = 100;
  request_.mutable_stop()->set_max_tokens(8);
  request_.mutable_stop()->set_min_tokens(8);
  request_.mutable_stop()->set_ignore_eos(true);
  request_.set_n(16);
  request_.set_logprobs(0);
  request_.set_prompt_logprobs(20);
  request_.set_priority(v1::PRIORITY_HIGH);
  request_.set_tenant(std::string(128, 't'));
  request_.set_speculation(false);
  request_.mutable_retention()->set_until_token(3);
  request_.mutable_retention()->set_priority(100);
  request_.mutable_retention()->set_ttl_ms(604'800'000);
  const internal::v1::DecodeRequest decode = Prepared();
  EXPECT_EQ(decode.sampling().repetition_penalty(), 1.25f);
  EXPECT_EQ(decode.sampling().frequency_penalty(), -2);
  EXPECT_EQ(decode.sampling().presence_penalty(), 2);
  EXPECT_THAT(decode.sampling().logit_bias(),
              UnorderedElementsAre(Pair(0, -100.0f), Pair(256, 100.0f)));
  EXPECT_TRUE(decode.sampling().has_logprobs());
  EXPECT_EQ(decode.sampling().logprobs(), 0);
  EXPECT_EQ(decode.prompt_logprobs(), 20);
  EXPECT_EQ(decode.max_tokens(), 8);
  EXPECT_EQ(decode.min_tokens(), 8);
  EXPECT_TRUE(decode.stop_token_ids().empty());
  EXPECT_EQ(decode.n(), 16);
  EXPECT_EQ(decode.priority(), v1::PRIORITY_HIGH);
  EXPECT_EQ(decode.tenant(), std::string(128, 't'));
  EXPECT_TRUE(decode.no_speculation());
  EXPECT_EQ(decode.retention().until_token(), 3);
  EXPECT_EQ(decode.retention().priority(), 100);
  EXPECT_EQ(decode.retention().ttl_ms(), 604'800'000);
  request_.set_speculation(true);
  EXPECT_FALSE(Prepared().no_speculation());
}

TEST_F(RequestCheckTest, PromptLogprobsOfLongPromptsAreBounded) {
  model_.max_model_len = 1 << 17;
  request_.mutable_token_ids()->mutable_ids()->Resize((1 << 18) / 21, 'a');
  request_.set_prompt_logprobs(20);
  EXPECT_EQ(Prepared().prompt_logprobs(), 20);
  request_.mutable_token_ids()->add_ids('a');
  const absl::Status status = PrepareRequest(request_, *tokenizer_, model_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorReason(status), "OUT_OF_RANGE");
  EXPECT_EQ(ErrorField(status), "prompt_logprobs");
  EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("20 for 12484 tokens"));
}

TEST_F(RequestCheckTest, TheModelsDefaultsYieldToTheRequest) {
  model_.defaults.set_temperature(0.7f);
  model_.defaults.set_repetition_penalty(1.5f);
  EXPECT_EQ(Prepared().sampling().temperature(), 0.7f);
  EXPECT_EQ(Prepared().sampling().repetition_penalty(), 1.5f);
  request_.mutable_sampling()->set_temperature(0);
  request_.mutable_sampling()->set_repetition_penalty(1);
  EXPECT_EQ(Prepared().sampling().temperature(), 0);
  EXPECT_EQ(Prepared().sampling().repetition_penalty(), 1);
}

TEST_F(RequestCheckTest, AnswersHaveADefaultLength) {
  const auto most = [this](const RequestClass& request_class) {
    const auto prepared = PrepareRequest(request_, *tokenizer_, model_, request_class);
    EXPECT_TRUE(prepared.ok()) << prepared.status();
    return prepared.ok() ? prepared->decode.max_tokens() : -1;
  };
  RequestClass none, flag, bounded;
  flag.default_max_tokens = 30;
  bounded.max_output_tokens = 20;
  EXPECT_EQ(most(none), 125) << "the rest of the context";
  EXPECT_EQ(most(flag), 30);
  EXPECT_EQ(most(bounded), 20);
  model_.decode_pages = {7};
  EXPECT_EQ(most(none), 7 * 16 - 3 + 1) << "what the KV pool holds";
  EXPECT_EQ(most(flag), 30);
  model_.decode_pages.clear();
  model_.defaults.set_max_new_tokens(50);
  EXPECT_EQ(most(none), 50) << "the model's";
  EXPECT_EQ(most(flag), 30);
  EXPECT_EQ(most(bounded), 20);
  model_.defaults.set_max_new_tokens(5000);
  EXPECT_EQ(most(none), 125);
  request_.mutable_stop()->set_min_tokens(40);
  EXPECT_EQ(most(flag), 40) << "the default must not contradict the request";
  request_.mutable_stop()->set_max_tokens(60);
  EXPECT_EQ(most(flag), 60) << "a default is no ceiling";
  model_.decode_pages = {2};
  EXPECT_EQ(most(flag), 60) << "nor is a pool: its worker refuses the request";
}

TEST_F(RequestCheckTest, AClassBoundsTheContext) {
  RequestClass request_class;
  request_class.max_context_tokens = 10;
  EXPECT_EQ(PrepareRequest(request_, *tokenizer_, model_, request_class)->decode.max_tokens(), 7);
  request_.set_text("0123456789");
  EXPECT_EQ(ErrorReason(PrepareRequest(request_, *tokenizer_, model_, request_class).status()),
            "PROMPT_TOO_LONG");
  request_.set_text("012345678");
  request_.mutable_stop()->set_max_tokens(2);
  EXPECT_EQ(ErrorReason(PrepareRequest(request_, *tokenizer_, model_, request_class).status()),
            "CONTEXT_LENGTH_EXCEEDED");
}

TEST_F(RequestCheckTest, TextSpellsSpecialTokensUnlessItIsSplit) {
  request_.set_text("a<|end|>");
  EXPECT_THAT(Prepared().tokens(), ElementsAre('a', kEndToken));
  request_.set_split_special_tokens(true);
  EXPECT_THAT(Prepared().tokens(), ElementsAre('a', '<', '|', 'e', 'n', 'd', '|', '>'));
  request_.add_segments()->set_source(v1::PROMPT_SOURCE_SYSTEM);
  request_.mutable_segments(0)->set_length(2);
  request_.add_segments()->set_source(v1::PROMPT_SOURCE_USER);
  request_.mutable_segments(1)->set_length(6);
  const auto prepared = PrepareRequest(request_, *tokenizer_, model_);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  ASSERT_EQ(prepared->sources.size(), 2u);
  EXPECT_EQ(prepared->sources[0].tokens, 2);
  EXPECT_EQ(prepared->sources[1].tokens, 6);
}

TEST_F(RequestCheckTest, TruncationKeepsTheEndsAndTheSources) {
  std::string text;
  for (int i = 0; i < 200; ++i) text += static_cast<char>('A' + i / 10);
  request_.set_text(text);
  request_.mutable_stop()->set_max_tokens(28);
  const absl::Status too_long = PrepareRequest(request_, *tokenizer_, model_).status();
  EXPECT_EQ(ErrorReason(too_long), "PROMPT_TOO_LONG");
  // Clients look for these words.
  EXPECT_THAT(std::string(too_long.message()),
              ::testing::HasSubstr("this model's maximum context length is"));
  request_.mutable_truncation()->set_keep_first(10);
  request_.mutable_truncation()->set_keep_last(20);
  request_.mutable_truncation()->set_retention_ratio(0.5f);
  for (const auto& [source, length] :
       {std::pair(v1::PROMPT_SOURCE_SYSTEM, 20), std::pair(v1::PROMPT_SOURCE_HISTORY, 150),
        std::pair(v1::PROMPT_SOURCE_USER, 30)}) {
    request_.add_segments()->set_source(source);
    request_.mutable_segments()->rbegin()->set_length(length);
  }
  ASSERT_TRUE(CheckRequest(request_, "tiny", 1 << 20).ok());
  const auto prepared = PrepareRequest(request_, *tokenizer_, model_);
  ASSERT_TRUE(prepared.ok()) << prepared.status();
  // Room for 100, steps of 50: two of them.
  EXPECT_EQ(prepared->dropped_prompt_tokens, 100);
  const auto& tokens = prepared->decode.tokens();
  EXPECT_EQ(std::string(tokens.begin(), tokens.end()), text.substr(0, 10) + text.substr(110));
  EXPECT_EQ(prepared->decode.prompt_tokens(), 100);
  ASSERT_EQ(prepared->sources.size(), 3u);
  EXPECT_EQ(prepared->sources[0].tokens, 10);
  EXPECT_EQ(prepared->sources[1].tokens, 60);
  EXPECT_EQ(prepared->sources[2].tokens, 30);
}

TEST_F(RequestCheckTest, BeamSearchRanksTheModelsOwnDistribution) {
  model_.defaults.set_temperature(0.7f);
  model_.defaults.set_top_k(20);
  model_.defaults.set_repetition_penalty(1.5f);
  request_.set_beam_width(4);
  request_.set_n(4);
  request_.set_logprobs(2);
  (*request_.mutable_sampling()->mutable_logit_bias())[5] = 1;
  request_.mutable_stop()->add_stop_token_ids(9);
  request_.mutable_stop()->set_min_tokens(2);
  const internal::v1::DecodeRequest decode = Prepared();
  EXPECT_EQ(decode.beam_width(), 4);
  EXPECT_EQ(decode.n(), 4);
  EXPECT_EQ(decode.length_penalty(), 1);
  EXPECT_EQ(decode.sampling().temperature(), 1);
  EXPECT_EQ(decode.sampling().top_p(), 1);
  EXPECT_EQ(decode.sampling().top_k(), 0);
  EXPECT_EQ(decode.sampling().repetition_penalty(), 1);
  EXPECT_THAT(decode.sampling().logit_bias(), UnorderedElementsAre(Pair(5, 1.0f)));
  EXPECT_EQ(decode.sampling().logprobs(), 2);
  EXPECT_THAT(decode.stop_token_ids(), ElementsAre(9, kEndToken));
  EXPECT_EQ(decode.min_tokens(), 2);
  request_.set_length_penalty(-0.5f);
  EXPECT_EQ(Prepared().length_penalty(), -0.5f);
}

}  // namespace
}  // namespace baton::router
