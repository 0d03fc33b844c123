#include "router/http/anthropic_response.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/error.h"
#include "router/http/anthropic_error.h"
#include "tests/testing/seed.h"

namespace baton::router {
namespace {

using chat::ToolCallFormat;
using Json = nlohmann::json;

struct NamedEvent {
  std::string name;
  Json data;
};

std::vector<NamedEvent> NamedEvents(const std::string& stream) {
  std::vector<NamedEvent> events;
  for (const absl::string_view text : absl::StrSplit(stream, "\n\n", absl::SkipEmpty())) {
    const std::vector<std::string> lines = absl::StrSplit(text, '\n');
    EXPECT_EQ(lines.size(), 2u) << text;
    events.push_back({lines[0].substr(7), Json::parse(lines[1].substr(6))});
    EXPECT_EQ(events.back().name, events.back().data["type"]);
  }
  return events;
}

// The message that a client adds up from a stream, which must be well-formed.
Json AddedUp(const std::string& stream) {
  Json message;
  std::string input;
  bool open = false, stopped = false;
  for (const NamedEvent& event : NamedEvents(stream)) {
    const Json& data = event.data;
    EXPECT_EQ(message.is_null(), event.name == "message_start");
    EXPECT_FALSE(stopped) << event.name;
    if (data.contains("index")) {
      const size_t blocks = message["content"].size();
      EXPECT_EQ(data["index"], event.name == "content_block_start" ? blocks : blocks - 1);
      EXPECT_EQ(open, event.name != "content_block_start");
    }
    if (event.name == "message_start") {
      message = data["message"];
      EXPECT_EQ(message["usage"]["output_tokens"], 0);
    } else if (event.name == "content_block_start") {
      open = true;
      input.clear();
      message["content"].push_back(data["content_block"]);
    } else if (event.name == "content_block_delta") {
      Json& block = message["content"].back();
      const Json& delta = data["delta"];
      const std::string type = delta["type"];
      if (type == "text_delta") {
        block["text"] = block["text"].get<std::string>() + delta["text"].get<std::string>();
      } else if (type == "thinking_delta") {
        block["thinking"] =
            block["thinking"].get<std::string>() + delta["thinking"].get<std::string>();
      } else if (type == "signature_delta") {
        block["signature"] = delta["signature"];
      } else {
        EXPECT_EQ(type, "input_json_delta");
        input += delta["partial_json"].get<std::string>();
      }
    } else if (event.name == "content_block_stop") {
      open = false;
      if (message["content"].back()["type"] == "tool_use") {
        message["content"].back()["input"] = Json::parse(input);
      }
    } else if (event.name == "message_delta") {
      EXPECT_FALSE(open);
      message.update(data["delta"]);
      message["usage"] = data["usage"];
    } else {
      EXPECT_EQ(event.name, "message_stop");
      stopped = true;
    }
  }
  EXPECT_TRUE(stopped);
  return message;
}

class AnthropicResponseTest : public ::testing::Test {
 protected:
  AnthropicResponse Format() const { return AnthropicResponse(options_); }
  v1::GenerateResponse Delta(absl::string_view text, bool last) const {
    v1::GenerateResponse delta;
    delta.set_text(std::string(text));
    *delta.mutable_usage() = usage_;
    if (last) {
      delta.set_finish_reason(finish_);
      delta.set_matched_stop(matched_);
    }
    return delta;
  }
  Json Whole(absl::string_view text) const {
    AnthropicResponse format = Format();
    format.Add(Delta(text, true));
    return Json::parse(format.Whole(usage_));
  }
  // The text in pieces of these sizes.
  Json Streamed(absl::string_view text, const std::vector<size_t>& sizes) const {
    AnthropicResponse format = Format();
    std::string stream;
    for (const size_t size : sizes) {
      stream += format.Chunk(Delta(text.substr(0, size), size == text.size()));
      text.remove_prefix(size);
    }
    return AddedUp(stream + format.StreamEnd(usage_));
  }

  AnthropicResponse::Options options_ = {"r1", "tiny", {}};
  v1::Usage usage_ = [] {
    v1::Usage usage;
    usage.set_prompt_tokens(50);
    usage.set_cached_prompt_tokens(32);
    usage.set_generated_tokens(7);
    return usage;
  }();
  v1::FinishReason finish_ = v1::FINISH_REASON_STOP;
  std::string matched_;
};

TEST_F(AnthropicResponseTest, AnAnswerHasAllMembersOfAMessage) {
  EXPECT_EQ(Whole("Hi \"you\"\n"), Json::parse(R"({
    "id": "msg_r1", "type": "message", "role": "assistant", "model": "tiny",
    "content": [{"type": "text", "text": "Hi \"you\"\n"}],
    "stop_reason": "end_turn", "stop_sequence": null,
    "usage": {"input_tokens": 18, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 32,
              "output_tokens": 7}})"));
  EXPECT_EQ(Whole("")["content"], Json::array());
}

TEST_F(AnthropicResponseTest, AStreamAddsUpToTheWholeAnswerHoweverItIsCut) {
  const std::string two =
      "Café:\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": "
      "\"K\\\"öln\"}}\n</tool_call>\n"
      "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>";
  const struct {
    ToolCallFormat format;
    std::string text;
    const char* blocks;  // their types
    const char* reason;
  } cases[] = {
      {ToolCallFormat::kUnsupported, "plain é", "text", "end_turn"},
      {ToolCallFormat::kUnsupported, two, "text", "end_turn"},
      {ToolCallFormat::kHermes, two, "text tool_use tool_use", "tool_use"},
      {ToolCallFormat::kHermes, two + "\nThat is é < all.<tool_call>{}",
       "text tool_use tool_use text", "tool_use"},
      {ToolCallFormat::kHermes, "<tool_call>{\"name\": \"f\", \"argu", "text", "end_turn"},
      {ToolCallFormat::kLlama3, "{\"name\": \"f\", \"parameters\": {\"a\": \"é\"}}", "tool_use",
       "tool_use"},
      {ToolCallFormat::kMistral,
       "Ok[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": {}}]",
       "text tool_use tool_use", "tool_use"},
  };
  const uint64_t seed = testing::TestSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  for (const auto& c : cases) {
    options_.parts.tool_calls = c.format;
    options_.parts.call_id_seed = 5;
    const Json whole = Whole(c.text);
    std::string types;
    for (const Json& block : whole["content"]) {
      absl::StrAppend(&types, types.empty() ? "" : " ", block["type"].get<std::string>());
    }
    EXPECT_EQ(types, c.blocks) << whole;
    EXPECT_EQ(whole["stop_reason"], c.reason);
    // Deltas are whole UTF-8.
    std::vector<size_t> starts;
    for (size_t i = 1; i < c.text.size(); ++i) {
      if ((static_cast<unsigned char>(c.text[i]) & 0xC0) != 0x80) starts.push_back(i);
    }
    const auto expect_equal = [&](const std::vector<size_t>& cuts) {
      std::vector<size_t> sizes;
      size_t at = 0;
      for (const size_t cut : cuts) {
        sizes.push_back(cut - at);
        at = cut;
      }
      sizes.push_back(c.text.size() - at);
      EXPECT_EQ(Streamed(c.text, sizes), whole) << ::testing::PrintToString(sizes);
    };
    expect_equal({});
    for (const size_t start : starts) expect_equal({start});
    expect_equal(starts);
    for (int round = 0; round < 20; ++round) {
      std::vector<size_t> cuts;
      for (const size_t start : starts) {
        if (random() % 5 == 0) cuts.push_back(start);
      }
      expect_equal(cuts);
    }
  }
}

TEST_F(AnthropicResponseTest, TextBehindACallIsABlockOfItsOwn) {
  options_.parts.tool_calls = ToolCallFormat::kHermes;
  const Json content =
      Whole("A<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1}}</tool_call>B")["content"];
  ASSERT_EQ(content.size(), 3u) << content;
  EXPECT_EQ(content[0]["text"], "A");
  EXPECT_EQ(content[1]["name"], "f");
  EXPECT_EQ(content[1]["input"], Json::parse(R"({"a": 1})"));
  EXPECT_EQ(content[1]["id"].get<std::string>().substr(0, 5), "call_");
  EXPECT_EQ(content[2]["text"], "B");
}

TEST_F(AnthropicResponseTest, AStreamSendsInputAsItGrows) {
  options_.parts.tool_calls = ToolCallFormat::kHermes;
  AnthropicResponse format = Format();
  const auto names = [&](absl::string_view text, bool last) {
    std::string names;
    for (const NamedEvent& event : NamedEvents(format.Chunk(Delta(text, last)))) {
      absl::StrAppend(&names, event.name, " ", event.data.value("index", -1), " ",
                      event.data.value("delta", Json::object()).value("partial_json", ""), "\n");
    }
    return names;
  };
  EXPECT_EQ(names("<tool_call>{\"name\": \"f\", \"arguments\": ", false), "message_start -1 \n");
  EXPECT_EQ(names("{\"a\"", false), "content_block_start 0 \ncontent_block_delta 0 {\"a\"\n");
  EXPECT_EQ(names(": 1", false), "content_block_delta 0 : 1\n");
  EXPECT_EQ(names("}", false), "content_block_delta 0 }\n");
  EXPECT_EQ(names("}", true), "content_block_stop 0 \n");
}

// An input is an object. A stream has what the model writes, a whole answer the members that are
// whole.
TEST_F(AnthropicResponseTest, ACallCutOffHasTheMembersThatAreWhole) {
  options_.parts.tool_calls = ToolCallFormat::kHermes;
  finish_ = v1::FINISH_REASON_LENGTH;
  const Json whole =
      Whole("<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1, 2], \"b\": \"x");
  EXPECT_EQ(whole["stop_reason"], "max_tokens");
  ASSERT_EQ(whole["content"].size(), 1u);
  EXPECT_EQ(whole["content"][0]["input"], Json::parse(R"({"a": [1, 2]})"));
}

// The model may reason in a message of its own behind one that ends within a call.
TEST_F(AnthropicResponseTest, ReasoningBehindACallThatIsNotWholeIsABlockOfItsOwn) {
  options_.parts.tool_calls = ToolCallFormat::kHarmony;
  options_.parts.reasoning = chat::ReasoningFormat::kHarmony;
  const std::string text =
      "<|channel|>commentary to=functions.f<|message|>{\"a\": 1<|end|><|start|>assistant"
      "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>}";
  const Json content = Whole(text)["content"];
  ASSERT_EQ(content.size(), 3u) << content;
  EXPECT_EQ(content[0]["type"], "tool_use");
  EXPECT_EQ(content[0]["name"], "f");
  EXPECT_EQ(content[0]["input"], Json::object());
  EXPECT_EQ(content[1]["thinking"], "hm");
  EXPECT_EQ(content[2]["text"], "}");
  for (const size_t size : {text.size(), size_t{1}}) {
    AnthropicResponse format = Format();
    std::string blocks;
    for (size_t at = 0; at < text.size(); at += size) {
      for (const auto& [name, data] :
           NamedEvents(format.Chunk(Delta(text.substr(at, size), at + size == text.size())))) {
        if (name == "content_block_start") {
          EXPECT_EQ(data["content_block"]["type"] == "tool_use",
                    data["content_block"].contains("id"));
          absl::StrAppend(&blocks, data["content_block"]["type"].get<std::string>(), " ");
        } else if (name == "content_block_delta") {
          const Json& delta = data["delta"];
          absl::StrAppend(&blocks, delta.value("partial_json", ""), delta.value("thinking", ""),
                          delta.value("text", ""));
        } else if (name == "content_block_stop") {
          blocks += "|";
        }
      }
    }
    EXPECT_EQ(blocks, "tool_use {\"a\": 1|thinking hm|text }|") << size;
  }
}

TEST_F(AnthropicResponseTest, TheStopReasonSaysWhatEndedTheAnswer) {
  finish_ = v1::FINISH_REASON_LENGTH;
  EXPECT_EQ(Whole("a")["stop_reason"], "max_tokens");
  EXPECT_EQ(Streamed("a", {1})["stop_reason"], "max_tokens");
  finish_ = v1::FINISH_REASON_STOP;
  matched_ = "\"END";
  for (const Json& answer : {Whole("a"), Streamed("a", {1})}) {
    EXPECT_EQ(answer["stop_reason"], "stop_sequence");
    EXPECT_EQ(answer["stop_sequence"], "\"END");
  }
}

TEST_F(AnthropicResponseTest, WithoutParallelCallsAnAnswerHasTheFirst) {
  options_.parts.tool_calls = ToolCallFormat::kHermes;
  options_.parts.parallel_tool_calls = false;
  const std::string call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  EXPECT_EQ(Whole(call + call)["content"].size(), 1u);
}

TEST_F(AnthropicResponseTest, AnErrorOfAStreamIsAnEvent) {
  AnthropicResponse format = Format();
  format.Chunk(Delta("a", false));
  const std::vector<NamedEvent> events = NamedEvents(
      format.StreamError(MakeError(absl::StatusCode::kUnavailable, "WORKER_LOST", "gone")));
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].name, "error");
  EXPECT_EQ(events[0].data, Json::parse(R"({
    "type": "error", "error": {"type": "overloaded_error", "message": "gone"},
    "request_id": "r1"})"));
}

TEST(AnthropicErrorTest, EachStatusHasItsType) {
  const auto type = [](absl::StatusCode code) {
    return Json::parse(AnthropicErrorJson(absl::Status(code, "m"), "r"))["error"]["type"]
        .get<std::string>();
  };
  EXPECT_EQ(type(absl::StatusCode::kInvalidArgument), "invalid_request_error");
  EXPECT_EQ(type(absl::StatusCode::kUnauthenticated), "authentication_error");
  EXPECT_EQ(type(absl::StatusCode::kPermissionDenied), "permission_error");
  EXPECT_EQ(type(absl::StatusCode::kNotFound), "not_found_error");
  EXPECT_EQ(type(absl::StatusCode::kUnavailable), "overloaded_error");
  EXPECT_EQ(type(absl::StatusCode::kDeadlineExceeded), "timeout_error");
  EXPECT_EQ(type(absl::StatusCode::kInternal), "api_error");
  const HttpResponse refused = AnthropicErrorResponse(
      WithRetryAfter(MakeError(absl::StatusCode::kResourceExhausted, "TOO_MANY_REQUESTS", "m"),
                     absl::Milliseconds(1500)),
      "r");
  EXPECT_EQ(refused.status, 429);
  EXPECT_EQ(Json::parse(refused.body)["error"]["type"], "rate_limit_error");
  bool has_retry = false;
  for (const auto& [name, value] : refused.headers) {
    has_retry = has_retry || (name == "Retry-After" && value == "2");
  }
  EXPECT_TRUE(has_retry);
  EXPECT_EQ(Json::parse(AnthropicPlainError(413, "m", "r").body)["error"]["type"],
            "request_too_large");
}

TEST(AnthropicErrorTest, AMessageHasTheClientsNameOfTheField) {
  const auto message = [](const char* reason, const char* field) {
    return Json::parse(
               AnthropicErrorJson(InvalidField(reason, field, "why"), "r"))["error"]["message"]
        .get<std::string>();
  };
  EXPECT_EQ(message("OUT_OF_RANGE", "sampling.top_p"), "top_p: why");
  EXPECT_EQ(message("CONTEXT_LENGTH_EXCEEDED", "stop.max_tokens"), "max_tokens: why");
  EXPECT_EQ(message("EMPTY_STOP", "stop.stop"), "stop_sequences: why");
  EXPECT_EQ(message("BAD_TENANT", "tenant"), "metadata.user_id: why");
  EXPECT_EQ(message("SCHEMA_INVALID", "structured_output.json_schema"),
            "output_config.format: why");
  EXPECT_EQ(message("PROMPT_TOO_LONG", "token_ids"), "prompt is too long: messages: why");
}

}  // namespace
}  // namespace baton::router
