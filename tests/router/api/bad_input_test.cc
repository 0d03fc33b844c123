// Every way to send a bad request, with the exact code, reason and field that it is answered with.
#include <gmock/gmock.h>
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/base/error.h"
#include "common/base/rpc/grpc_status.h"
#include "tests/testing/fake_cluster.h"

namespace baton::router {
namespace {

using absl::StatusCode;
using ::baton::testing::FakeCluster;
using ::baton::testing::Ids;
using ::testing::HasSubstr;

struct Row {
  const char* name;
  StatusCode code;
  const char* reason;
  const char* field;
  const char* in_message;
  std::function<void(v1::GenerateRequest*)> spoil;
};

std::vector<Row> Rows() {
  const auto invalid = StatusCode::kInvalidArgument;
  const auto tokens = [](int count) {
    return [count](v1::GenerateRequest* r) {
      r->mutable_token_ids()->mutable_ids()->Resize(count, 65);
    };
  };
  return {
      {"NoPrompt", invalid, "EMPTY_PROMPT", "prompt", "none of text, token_ids and messages",
       [](auto* r) { r->clear_prompt(); }},
      {"EmptyText", invalid, "EMPTY_PROMPT", "text", "empty", [](auto* r) { r->set_text(""); }},
      {"EmptyIds", invalid, "EMPTY_PROMPT", "token_ids", "empty",
       [](auto* r) { r->mutable_token_ids(); }},
      {"TextFillsContext", invalid, "PROMPT_TOO_LONG", "text", "128 tokens",
       [](auto* r) { r->set_text(std::string(128, 'a')); }},
      {"IdsFillContext", invalid, "PROMPT_TOO_LONG", "token_ids", "context length is 128",
       tokens(128)},
      {"ManyIds", invalid, "PROMPT_TOO_LONG", "token_ids", "1000000 tokens", tokens(1'000'000)},
      {"TwoMillionIds", invalid, "PROMPT_TOO_LONG", "token_ids", "at most 1048576 accepted",
       tokens(2'000'000)},
      {"TenMegabytes", invalid, "PROMPT_TOO_LONG", "text", "at most 1048576 accepted",
       [](auto* r) { r->set_text(std::string(10 << 20, ' ')); }},
      {"UnknownModel", StatusCode::kNotFound, "MODEL_NOT_FOUND", "model", "\"tiny\" is",
       [](auto* r) { r->set_model("gpt-9"); }},
      {"LongModelNameCutInACharacter", StatusCode::kNotFound, "MODEL_NOT_FOUND", "model",
       "is not served",
       [](auto* r) {
         std::string name = "x";
         for (int i = 0; i < 200; ++i) name += "\xE2\x82\xAC";
         r->set_model(name);
       }},
      {"NegativeTemperature", invalid, "OUT_OF_RANGE", "sampling.temperature", "0 to 2",
       [](auto* r) { r->mutable_sampling()->set_temperature(-0.1f); }},
      {"HighTemperature", invalid, "OUT_OF_RANGE", "sampling.temperature", "2.5 given",
       [](auto* r) { r->mutable_sampling()->set_temperature(2.5f); }},
      {"NanTemperature", invalid, "OUT_OF_RANGE", "sampling.temperature", "nan",
       [](auto* r) { r->mutable_sampling()->set_temperature(std::nanf("")); }},
      {"ZeroTopP", invalid, "OUT_OF_RANGE", "sampling.top_p", "above 0",
       [](auto* r) { r->mutable_sampling()->set_top_p(0); }},
      {"HighTopP", invalid, "OUT_OF_RANGE", "sampling.top_p", "at most 1",
       [](auto* r) { r->mutable_sampling()->set_top_p(1.01f); }},
      {"NanTopP", invalid, "OUT_OF_RANGE", "sampling.top_p", "nan",
       [](auto* r) { r->mutable_sampling()->set_top_p(std::nanf("")); }},
      {"LowTopK", invalid, "OUT_OF_RANGE", "sampling.top_k", "-1 or more",
       [](auto* r) { r->mutable_sampling()->set_top_k(-2); }},
      {"LowMinP", invalid, "OUT_OF_RANGE", "sampling.min_p", "0 to 1",
       [](auto* r) { r->mutable_sampling()->set_min_p(-0.5f); }},
      {"InfiniteMinP", invalid, "OUT_OF_RANGE", "sampling.min_p", "inf",
       [](auto* r) { r->mutable_sampling()->set_min_p(INFINITY); }},
      {"ZeroMaxTokens", invalid, "OUT_OF_RANGE", "stop.max_tokens", "1 or more",
       [](auto* r) { r->mutable_stop()->set_max_tokens(0); }},
      {"NegativeMaxTokens", invalid, "OUT_OF_RANGE", "stop.max_tokens", "-5 given",
       [](auto* r) { r->mutable_stop()->set_max_tokens(-5); }},
      {"HugeMaxTokens", invalid, "CONTEXT_LENGTH_EXCEEDED", "stop.max_tokens",
       "at most 125 expected", [](auto* r) { r->mutable_stop()->set_max_tokens(2'147'483'647); }},
      {"OneTokenTooMany", invalid, "CONTEXT_LENGTH_EXCEEDED", "stop.max_tokens",
       "3 of the context's 128", [](auto* r) { r->mutable_stop()->set_max_tokens(126); }},
      {"SeventeenStops", invalid, "TOO_MANY_STOPS", "stop.stop", "17 strings",
       [](auto* r) {
         for (int i = 0; i < 17; ++i) r->mutable_stop()->add_stop(std::string(1, 'x'));
       }},
      {"EmptyStop", invalid, "EMPTY_STOP", "stop.stop", "empty string",
       [](auto* r) { r->mutable_stop()->add_stop(""); }},
      {"LongStop", invalid, "OUT_OF_RANGE", "stop.stop", "1025 bytes",
       [](auto* r) { r->mutable_stop()->add_stop(std::string(1025, 'x')); }},
      {"ManyStopIds", invalid, "TOO_MANY_STOPS", "stop.stop_token_ids", "257 ids",
       [](auto* r) { r->mutable_stop()->mutable_stop_token_ids()->Resize(257, 1); }},
      {"UnknownStopId", invalid, "OUT_OF_RANGE", "stop.stop_token_ids", "id 257 at position 0",
       [](auto* r) { r->mutable_stop()->add_stop_token_ids(257); }},
      {"IdPastVocabulary", invalid, "OUT_OF_RANGE", "token_ids", "id 257 at position 1",
       [](auto* r) {
         r->mutable_token_ids()->add_ids(1);
         r->mutable_token_ids()->add_ids(257);
       }},
      {"NegativeId", invalid, "OUT_OF_RANGE", "token_ids", "id -1",
       [](auto* r) { r->mutable_token_ids()->add_ids(-1); }},
      {"ZeroRetention", invalid, "OUT_OF_RANGE", "retention.until_token", "1 or more",
       [](auto* r) { r->mutable_retention()->set_until_token(0); }},
      {"HighRetentionPriority", invalid, "OUT_OF_RANGE", "retention.priority", "0 to 100",
       [](auto* r) { r->mutable_retention()->set_priority(101); }},
      {"EndlessRetention", invalid, "OUT_OF_RANGE", "retention.ttl_ms", "1 to 604800000",
       [](auto* r) { r->mutable_retention()->set_priority(1); }},
      {"ControlInRequestId", invalid, "BAD_REQUEST_ID", "request_id", "printable",
       [](auto* r) { r->set_request_id("a\nb"); }},
      {"LongRequestId", invalid, "BAD_REQUEST_ID", "request_id", "at most 128",
       [](auto* r) { r->set_request_id(std::string(129, 'a')); }},
      {"LongSalt", invalid, "OUT_OF_RANGE", "cache_salt", "at most 256",
       [](auto* r) { r->set_cache_salt(std::string(257, 'a')); }},
  };
}

std::vector<Row> ChoiceRows() {
  const auto invalid = StatusCode::kInvalidArgument;
  return {
      {"LowRepetitionPenalty", invalid, "OUT_OF_RANGE", "sampling.repetition_penalty",
       "above 0 and at most 2", [](auto* r) { r->mutable_sampling()->set_repetition_penalty(0); }},
      {"HighRepetitionPenalty", invalid, "OUT_OF_RANGE", "sampling.repetition_penalty",
       "above 0 and at most 2",
       [](auto* r) { r->mutable_sampling()->set_repetition_penalty(2.01f); }},
      {"NanRepetitionPenalty", invalid, "OUT_OF_RANGE", "sampling.repetition_penalty", "nan",
       [](auto* r) { r->mutable_sampling()->set_repetition_penalty(std::nanf("")); }},
      {"LowFrequencyPenalty", invalid, "OUT_OF_RANGE", "sampling.frequency_penalty", "-2 to 2",
       [](auto* r) { r->mutable_sampling()->set_frequency_penalty(-2.01f); }},
      {"HighFrequencyPenalty", invalid, "OUT_OF_RANGE", "sampling.frequency_penalty", "-2 to 2",
       [](auto* r) { r->mutable_sampling()->set_frequency_penalty(2.01f); }},
      {"NanFrequencyPenalty", invalid, "OUT_OF_RANGE", "sampling.frequency_penalty", "nan",
       [](auto* r) { r->mutable_sampling()->set_frequency_penalty(std::nanf("")); }},
      {"LowPresencePenalty", invalid, "OUT_OF_RANGE", "sampling.presence_penalty", "-2 to 2",
       [](auto* r) { r->mutable_sampling()->set_presence_penalty(-2.01f); }},
      {"HighPresencePenalty", invalid, "OUT_OF_RANGE", "sampling.presence_penalty", "-2 to 2",
       [](auto* r) { r->mutable_sampling()->set_presence_penalty(2.01f); }},
      {"NanPresencePenalty", invalid, "OUT_OF_RANGE", "sampling.presence_penalty", "nan",
       [](auto* r) { r->mutable_sampling()->set_presence_penalty(std::nanf("")); }},
      {"HighLogitBias", invalid, "OUT_OF_RANGE", "sampling.logit_bias", "100.5 for id 7",
       [](auto* r) { (*r->mutable_sampling()->mutable_logit_bias())[7] = 100.5f; }},
      {"NanLogitBias", invalid, "OUT_OF_RANGE", "sampling.logit_bias", "nan for id 7",
       [](auto* r) { (*r->mutable_sampling()->mutable_logit_bias())[7] = std::nanf(""); }},
      {"LogitBiasOfUnknownId", invalid, "OUT_OF_RANGE", "sampling.logit_bias", "id 257",
       [](auto* r) { (*r->mutable_sampling()->mutable_logit_bias())[257] = 1; }},
      {"LogitBiasOfNegativeId", invalid, "OUT_OF_RANGE", "sampling.logit_bias", "id -1",
       [](auto* r) { (*r->mutable_sampling()->mutable_logit_bias())[-1] = 1; }},
      {"ManyLogitBiases", invalid, "OUT_OF_RANGE", "sampling.logit_bias", "1025 ids",
       [](auto* r) {
         for (int i = 0; i < 1025; ++i) (*r->mutable_sampling()->mutable_logit_bias())[i] = 1;
       }},
      {"ZeroN", invalid, "OUT_OF_RANGE", "n", "1 to 16", [](auto* r) { r->set_n(0); }},
      {"SeventeenN", invalid, "OUT_OF_RANGE", "n", "17 given", [](auto* r) { r->set_n(17); }},
      {"NegativeLogprobs", invalid, "OUT_OF_RANGE", "logprobs", "0 to 20",
       [](auto* r) { r->set_logprobs(-1); }},
      {"ManyLogprobs", invalid, "OUT_OF_RANGE", "logprobs", "21 given",
       [](auto* r) { r->set_logprobs(21); }},
      {"NegativePromptLogprobs", invalid, "OUT_OF_RANGE", "prompt_logprobs", "0 to 20",
       [](auto* r) { r->set_prompt_logprobs(-1); }},
      {"ManyPromptLogprobs", invalid, "OUT_OF_RANGE", "prompt_logprobs", "21 given",
       [](auto* r) { r->set_prompt_logprobs(21); }},
      {"NegativeMinTokens", invalid, "OUT_OF_RANGE", "stop.min_tokens", "0 or more",
       [](auto* r) { r->mutable_stop()->set_min_tokens(-1); }},
      {"MinAboveMaxTokens", invalid, "OUT_OF_RANGE", "stop.min_tokens", "at most max_tokens, 4",
       [](auto* r) {
         r->mutable_stop()->set_max_tokens(4);
         r->mutable_stop()->set_min_tokens(5);
       }},
      {"MinTokensPastContext", invalid, "CONTEXT_LENGTH_EXCEEDED", "stop.min_tokens",
       "at most 125 expected", [](auto* r) { r->mutable_stop()->set_min_tokens(126); }},
      {"UnknownPriority", invalid, "OUT_OF_RANGE", "priority", "4 given",
       [](auto* r) { r->set_priority(static_cast<v1::Priority>(4)); }},
      {"NegativePriority", invalid, "OUT_OF_RANGE", "priority", "-1 given",
       [](auto* r) { r->set_priority(static_cast<v1::Priority>(-1)); }},
      {"ControlInTenant", invalid, "BAD_TENANT", "tenant", "printable",
       [](auto* r) { r->set_tenant("a\tb"); }},
      {"LongTenant", invalid, "BAD_TENANT", "tenant", "at most 128",
       [](auto* r) { r->set_tenant(std::string(129, 'a')); }},
      {"OneBeam", invalid, "OUT_OF_RANGE", "beam_width", "2 to 16",
       [](auto* r) { r->set_beam_width(1); }},
      {"SeventeenBeams", invalid, "OUT_OF_RANGE", "beam_width", "17 given",
       [](auto* r) { r->set_beam_width(17); }},
      {"MoreChoicesThanBeams", invalid, "OUT_OF_RANGE", "n", "at most beam_width, 3",
       [](auto* r) {
         r->set_beam_width(3);
         r->set_n(4);
       }},
      {"HighLengthPenalty", invalid, "OUT_OF_RANGE", "length_penalty", "-10 to 10",
       [](auto* r) {
         r->set_beam_width(3);
         r->set_length_penalty(10.5f);
       }},
      {"NanLengthPenalty", invalid, "OUT_OF_RANGE", "length_penalty", "nan",
       [](auto* r) {
         r->set_beam_width(3);
         r->set_length_penalty(std::nanf(""));
       }},
      {"LengthPenaltyAlone", invalid, "ONLY_WITH_BEAM_SEARCH", "length_penalty",
       "without beam_width", [](auto* r) { r->set_length_penalty(1); }},
      {"BeamsAndStopString", invalid, "NOT_WITH_BEAM_SEARCH", "stop.stop", "stop_token_ids may",
       [](auto* r) {
         r->set_beam_width(2);
         r->mutable_stop()->add_stop("x");
       }},
      {"BeamsAndTemperature", invalid, "NOT_WITH_BEAM_SEARCH", "sampling.temperature",
       "logit_bias alone",
       [](auto* r) {
         r->set_beam_width(2);
         r->mutable_sampling()->set_temperature(0);
       }},
      {"BeamsAndTopP", invalid, "NOT_WITH_BEAM_SEARCH", "sampling.top_p", "logit_bias alone",
       [](auto* r) {
         r->set_beam_width(2);
         r->mutable_sampling()->set_top_p(1);
       }},
      {"BeamsAndTopK", invalid, "NOT_WITH_BEAM_SEARCH", "sampling.top_k", "logit_bias alone",
       [](auto* r) {
         r->set_beam_width(2);
         r->mutable_sampling()->set_top_k(0);
       }},
      {"BeamsAndMinP", invalid, "NOT_WITH_BEAM_SEARCH", "sampling.min_p", "logit_bias alone",
       [](auto* r) {
         r->set_beam_width(2);
         r->mutable_sampling()->set_min_p(0);
       }},
      {"BeamsAndSeed", invalid, "NOT_WITH_BEAM_SEARCH", "sampling.seed", "logit_bias alone",
       [](auto* r) {
         r->set_beam_width(2);
         r->mutable_sampling()->set_seed(1);
       }},
      {"BeamsAndRepetitionPenalty", invalid, "NOT_WITH_BEAM_SEARCH", "sampling.repetition_penalty",
       "logit_bias alone",
       [](auto* r) {
         r->set_beam_width(2);
         r->mutable_sampling()->set_repetition_penalty(1);
       }},
      {"BeamsAndFrequencyPenalty", invalid, "NOT_WITH_BEAM_SEARCH", "sampling.frequency_penalty",
       "logit_bias alone",
       [](auto* r) {
         r->set_beam_width(2);
         r->mutable_sampling()->set_frequency_penalty(0);
       }},
      {"BeamsAndPresencePenalty", invalid, "NOT_WITH_BEAM_SEARCH", "sampling.presence_penalty",
       "logit_bias alone",
       [](auto* r) {
         r->set_beam_width(2);
         r->mutable_sampling()->set_presence_penalty(0);
       }},
  };
}

class BadInputTest : public ::testing::Test {
 protected:
  void Expect(const Row& row, const grpc::Status& answer) {
    const absl::Status error = FromGrpcStatus(answer);
    EXPECT_EQ(error.code(), row.code) << error;
    EXPECT_EQ(ErrorReason(error), row.reason) << error;
    EXPECT_EQ(ErrorField(error), row.field) << error;
    EXPECT_THAT(std::string(error.message()), HasSubstr(row.in_message));
  }

  FakeCluster cluster_;
  std::unique_ptr<v1::InferenceService::Stub> stub_ =
      v1::InferenceService::NewStub(cluster_.channel());
};

TEST_F(BadInputTest, EachGetsItsCodeReasonAndField) {
  std::vector<Row> rows = Rows();
  for (Row& row : ChoiceRows()) rows.push_back(std::move(row));
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    v1::GenerateRequest request;
    request.set_text("abc");
    row.spoil(&request);
    {
      grpc::ClientContext context;
      auto reader = stub_->Generate(&context, request);
      v1::GenerateResponse response;
      EXPECT_FALSE(reader->Read(&response));
      Expect(row, reader->Finish());
    }
    v1::GenerateOnceRequest once;
    *once.mutable_request() = request;
    grpc::ClientContext context;
    v1::GenerateOnceResponse response;
    Expect(row, stub_->GenerateOnce(&context, once, &response));
  }
  EXPECT_EQ(cluster_.decode(0)->decode_count(), 0) << "no worker was bothered";
}

// What protobuf's own classes would not even send.
class RawBytesTest : public BadInputTest {
 protected:
  grpc::Status Send(const std::string& method, const std::string& bytes) {
    grpc::GenericStub stub(cluster_.channel());
    grpc::ClientContext context;
    grpc::Slice slice(bytes);
    grpc::ByteBuffer request(&slice, 1), response;
    absl::Notification done;
    grpc::Status answer;
    stub.UnaryCall(&context, absl::StrCat("/baton.v1.InferenceService/", method),
                   grpc::StubOptions(), &request, &response, [&](grpc::Status status) {
                     answer = status;
                     done.Notify();
                   });
    done.WaitForNotification();
    return answer;
  }
};

TEST_F(RawBytesTest, TextThatIsNotUtf8NamesItsField) {
  const std::string broken =
      "a\xff\xfe"
      "b";
  const std::string text_field =
      absl::StrCat(std::string("\x12\x04", 2), broken);  // GenerateRequest.text
  const Row row = {"", StatusCode::kInvalidArgument, "NOT_UTF8", "text", "not valid UTF-8", {}};
  Expect(row, Send("Generate", text_field));
  Expect(row, Send("Tokenize", text_field));
  const Row inner = {"", StatusCode::kInvalidArgument, "NOT_UTF8", "request.text", "UTF-8", {}};
  Expect(inner, Send("GenerateOnce", absl::StrCat(std::string("\x0a\x06", 2), text_field)));
  // stop.stop, a string inside a message: field 5, then field 2.
  const Row stop = {"", StatusCode::kInvalidArgument, "NOT_UTF8", "stop.stop", "UTF-8", {}};
  Expect(stop, Send("Generate", std::string("\x12\x01"
                                            "a"
                                            "\x2a\x03\x12\x01\xc0",
                                            8)));
  // Surrogates and overlong forms are not UTF-8 either.
  Expect(row, Send("Generate", "\x12\x03\xed\xa0\x80"));
  Expect(row, Send("Generate", "\x12\x03\xe0\x80\x80"));
}

TEST_F(RawBytesTest, BytesThatAreNoMessage) {
  const Row row = {"", StatusCode::kInvalidArgument,     "MALFORMED_REQUEST",
                   "", "not a baton.v1.GenerateRequest", {}};
  Expect(row, Send("Generate",
                   "\x12\x7f"
                   "a"));
  Expect(row, Send("Generate", std::string(100, '\xff')));
}

TEST_F(BadInputTest, TokenizeAndDetokenize) {
  v1::TokenizeRequest request;
  v1::TokenizeResponse response;
  request.set_text("h\xc3\xa9");
  {
    grpc::ClientContext context;
    ASSERT_TRUE(stub_->Tokenize(&context, request, &response).ok());
    EXPECT_THAT(response.token_ids(), ::testing::ElementsAre('h', 0xc3, 0xa9));
  }
  request.set_text("<|end|>");
  for (const bool split : {false, true}) {
    grpc::ClientContext context;
    request.set_split_special_tokens(split);
    ASSERT_TRUE(stub_->Tokenize(&context, request, &response).ok());
    EXPECT_EQ(response.token_ids_size(), split ? 7 : 1);
  }
  request.set_text(std::string(2 << 20, 'a'));
  {
    grpc::ClientContext context;
    Expect({"", StatusCode::kInvalidArgument, "PROMPT_TOO_LONG", "text", "1048576", {}},
           stub_->Tokenize(&context, request, &response));
  }
  v1::DetokenizeRequest ids;
  v1::DetokenizeResponse text;
  for (int32_t id : std::vector<int32_t>{'h', 0xc3, 0xa9, 256}) ids.add_token_ids(id);
  {
    grpc::ClientContext context;
    ASSERT_TRUE(stub_->Detokenize(&context, ids, &text).ok());
    EXPECT_EQ(text.text(), "h\xc3\xa9");
  }
  v1::DetokenizeRequest many;
  many.mutable_token_ids()->Resize(2 << 20, 'a');
  {
    grpc::ClientContext context;
    Expect({"", StatusCode::kInvalidArgument, "PROMPT_TOO_LONG", "token_ids", "1048576", {}},
           stub_->Detokenize(&context, many, &text));
  }
  ids.set_skip_special_tokens(false);
  {
    grpc::ClientContext context;
    ASSERT_TRUE(stub_->Detokenize(&context, ids, &text).ok());
    EXPECT_EQ(text.text(), "h\xc3\xa9<|end|>");
  }
  ids.add_token_ids(9999);
  {
    grpc::ClientContext context;
    Expect({"", StatusCode::kInvalidArgument, "OUT_OF_RANGE", "token_ids", "id 9999", {}},
           stub_->Detokenize(&context, ids, &text));
  }
}

}  // namespace
}  // namespace baton::router
