#include "router/http/openai_response.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "router/request/text_assembly.h"
#include "tests/testing/seed.h"
#include "tests/testing/tiny_tokenizer.h"

namespace baton::router {
namespace {

using ::baton::testing::Ids;
using chat::ToolCallFormat;
using Json = nlohmann::json;

// What a client has of an answer: reasoning, text, then each call.
struct Received {
  std::string reasoning;
  std::string content;
  std::string calls;  // "|name arguments|..."
  std::string finish;
  std::set<std::string> ids;

  void AddCalls(const Json& list) {
    for (const Json& call : list) {
      if (call.contains("id")) {
        EXPECT_EQ(call["type"], "function");
        EXPECT_TRUE(ids.insert(call["id"]).second) << "an id twice";
        absl::StrAppend(&calls, "|", call["function"]["name"].get<std::string>(), " ");
      } else {
        EXPECT_FALSE(call.contains("type") || call["function"].contains("name"));
        EXPECT_NE(call["function"]["arguments"], "");
      }
      calls += call["function"]["arguments"];
    }
  }
  bool operator==(const Received& other) const {
    return reasoning == other.reasoning && content == other.content && calls == other.calls &&
           finish == other.finish && ids == other.ids;
  }
  friend std::ostream& operator<<(std::ostream& out, const Received& r) {
    return out << "(" << r.reasoning << ")" << r.content << r.calls << " [" << r.finish << "]";
  }
};

class OpenAiResponseTest : public ::testing::Test {
 protected:
  OpenAiResponseTest() {
    const std::string dir = ::testing::TempDir() + "/tiny";
    testing::WriteTinyTokenizer(dir);
    tokenizer_ = *tokenizer::Tokenizer::Load(dir);
  }
  OpenAiResponse::Options Tools(ToolCallFormat format) {
    OpenAiResponse::Options options;
    options.chat = true;
    options.parts.tool_calls = format;
    options.parts.call_id_seed = 5;
    return options;
  }
  // The deltas of an answer whose tokens arrive in messages of these sizes.
  std::vector<v1::GenerateResponse> Deltas(const std::vector<int32_t>& tokens,
                                           const std::vector<size_t>& sizes) {
    TextAssembly assembly(*tokenizer_, {});
    std::vector<v1::GenerateResponse> deltas;
    size_t at = 0;
    for (const size_t size : sizes) {
      const bool last = at + size == tokens.size();
      const auto part = absl::MakeConstSpan(tokens).subspan(at, size);
      v1::GenerateResponse& delta = deltas.emplace_back();
      delta.set_text(
          assembly.Append(part, last ? TextAssembly::End::kLength : TextAssembly::End::kNone).text);
      if (last) delta.set_finish_reason(v1::FINISH_REASON_STOP);
      at += size;
    }
    return deltas;
  }
  Received Streamed(const OpenAiResponse::Options& options,
                    const std::vector<v1::GenerateResponse>& deltas) {
    OpenAiResponse format(options, *tokenizer_);
    Received received;
    int index = -1;
    for (const v1::GenerateResponse& delta : deltas) {
      const std::string event = format.Chunk(delta);
      if (event.empty()) continue;
      const Json choice = Json::parse(event.substr(6))["choices"][0];
      received.reasoning += choice["delta"].value("reasoning_content", "");
      received.content += choice["delta"].value("content", "");
      const Json calls = choice["delta"].value("tool_calls", Json::array());
      for (const Json& call : calls) {
        if (call.contains("id")) ++index;
        EXPECT_EQ(call["index"], index);
      }
      received.AddCalls(calls);
      if (!choice["finish_reason"].is_null()) received.finish = choice["finish_reason"];
    }
    return received;
  }
  Received Whole(const OpenAiResponse::Options& options, const std::string& text) {
    v1::GenerateResponse all;
    all.set_text(text);
    all.set_finish_reason(v1::FINISH_REASON_STOP);
    OpenAiResponse format(options, *tokenizer_);
    format.Add(all);
    const Json choice = Json::parse(format.Whole({}))["choices"][0];
    Received received;
    const Json& message = choice["message"];
    if (!message["content"].is_null()) received.content = message["content"];
    EXPECT_EQ(message["content"].is_null(),
              received.content.empty() &&
                  (message.contains("tool_calls") || message.contains("reasoning_content")));
    received.reasoning = message.value("reasoning_content", "");
    EXPECT_EQ(message.contains("reasoning_content"), !received.reasoning.empty());
    received.AddCalls(message.value("tool_calls", Json::array()));
    received.finish = choice["finish_reason"];
    return received;
  }

  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
};

TEST_F(OpenAiResponseTest, AnAnswerDoesNotDependOnHowItsTokensArrive) {
  const struct {
    ToolCallFormat format;
    const char* text;
    const char* content;
    const char* calls;
    const char* finish;
  } cases[] = {
      {ToolCallFormat::kHermes,
       "Café:\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"Köln\"}}\n</tool_call>\n"
       "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>",
       "Café:", "|f {\"city\": \"Köln\"}|g {}", "tool_calls"},
      {ToolCallFormat::kHermes, "<tool_call>{\"name\": \"f\", \"argu",  // cut off
       "<tool_call>{\"name\": \"f\", \"argu", "", "stop"},
      {ToolCallFormat::kHermes, "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"é", "",
       "|f {\"a\": \"é", "tool_calls"},
      {ToolCallFormat::kHermes, "<tool_call>{\"name\": \"f\"}</tool_call> é",  // no arguments
       "<tool_call>{\"name\": \"f\"}é", "", "stop"},
      {ToolCallFormat::kHermes, "No call, 5 < 6.", "No call, 5 < 6.", "", "stop"},
      {ToolCallFormat::kLlama3, "{\"name\": \"f\", \"parameters\": {\"a\": \"é\"}}", "",
       "|f {\"a\": \"é\"}", "tool_calls"},
      {ToolCallFormat::kMistral, "Ok[TOOL_CALLS]f[ARGS]{\"a\": 1}", "Ok", "|f {\"a\": 1}",
       "tool_calls"},
      {ToolCallFormat::kDeepSeek,
       "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1}<｜tool▁call▁end｜>"
       "<｜tool▁calls▁end｜>",
       "", "|f {\"a\": 1}", "tool_calls"},
  };
  const uint64_t seed = testing::TestSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  for (const auto& c : cases) {
    const OpenAiResponse::Options options = Tools(c.format);
    const std::vector<int32_t> tokens = Ids(c.text);
    const Received whole = Whole(options, c.text);
    EXPECT_EQ(whole.content, c.content);
    EXPECT_EQ(whole.calls, c.calls);
    EXPECT_EQ(whole.finish, c.finish);
    const auto expect_equal = [&](const std::vector<size_t>& sizes) {
      EXPECT_EQ(Streamed(options, Deltas(tokens, sizes)), whole) << ::testing::PrintToString(sizes);
    };
    for (size_t i = 1; i < tokens.size(); ++i) expect_equal({i, tokens.size() - i});
    expect_equal(std::vector<size_t>(tokens.size(), 1));
    for (int round = 0; round < 20; ++round) {
      std::vector<size_t> sizes;
      for (size_t at = 0; at < tokens.size(); at += sizes.back()) {
        sizes.push_back(std::min(1 + random() % 9, tokens.size() - at));
      }
      expect_equal(sizes);
    }
  }
}

TEST_F(OpenAiResponseTest, CallsAreFoundBehindTheReasoning) {
  const std::string call = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  const struct {
    std::string text, reasoning, content, calls;
    bool starts_in_reasoning = false;
  } cases[] = {
      {"<think>\nI call\n</think>\n\n" + call, "I call", "", "|f {}"},
      {"I say " + call + " é\n</think>\nSo:\n" + call, "I say " + call + " é", "So:", "|f {}",
       true},
      {"<think>" + call, call, "", ""},
      {call + "<think>a</think>", "", "<think>a</think>", "|f {}"},
      {"<think></think>", "", "", ""},
  };
  for (const auto& c : cases) {
    OpenAiResponse::Options options = Tools(ToolCallFormat::kHermes);
    options.parts.reasoning = chat::ReasoningFormat::kThinkTags;
    options.parts.starts_in_reasoning = c.starts_in_reasoning;
    const Received whole = Whole(options, c.text);
    EXPECT_EQ(whole.reasoning, c.reasoning);
    EXPECT_EQ(whole.content, c.content);
    EXPECT_EQ(whole.calls, c.calls);
    const std::vector<int32_t> tokens = Ids(c.text);
    for (size_t i = 1; i < tokens.size(); ++i) {
      EXPECT_EQ(Streamed(options, Deltas(tokens, {i, tokens.size() - i})), whole) << i;
    }
    const std::vector<size_t> singly(tokens.size(), 1);
    EXPECT_EQ(Streamed(options, Deltas(tokens, singly)), whole);
    options.parts.include_reasoning = false;
    const Received without = Streamed(options, Deltas(tokens, singly));
    EXPECT_EQ(without, Whole(options, c.text));
    EXPECT_EQ(without.reasoning, "");
    EXPECT_EQ(without.content, c.content);
    EXPECT_EQ(without.calls, c.calls);
  }
}

// The model may reason in a message of its own behind one that ends within a call.
TEST_F(OpenAiResponseTest, ReasoningBehindACallThatIsNotWholeIsNoPartOfIt) {
  const std::string text =
      "<|channel|>commentary to=functions.f<|message|>{\"a\": 1<|end|><|start|>assistant"
      "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>}";
  OpenAiResponse::Options options = Tools(ToolCallFormat::kHarmony);
  options.parts.reasoning = chat::ReasoningFormat::kHarmony;
  const Received whole = Whole(options, text);
  EXPECT_EQ(whole.reasoning, "hm");
  EXPECT_EQ(whole.content, "}");
  EXPECT_EQ(whole.calls, "|f {\"a\": 1");
  const std::vector<int32_t> tokens = Ids(text);
  EXPECT_EQ(Streamed(options, Deltas(tokens, {tokens.size()})), whole);
  EXPECT_EQ(Streamed(options, Deltas(tokens, std::vector<size_t>(tokens.size(), 1))), whole);
}

// A delta that adds only reasoning has no content, and one that adds only content no reasoning.
TEST_F(OpenAiResponseTest, AStreamSendsReasoningAsItGrows) {
  OpenAiResponse::Options options;
  options.chat = true;
  options.parts.reasoning = chat::ReasoningFormat::kThinkTags;
  OpenAiResponse format(options, *tokenizer_);
  format.StartInReasoning();
  const auto delta = [&](const std::string& text) {
    v1::GenerateResponse one;
    one.set_text(text);
    const std::string event = format.Chunk(one);
    return event.empty() ? Json() : Json::parse(event.substr(6))["choices"][0]["delta"];
  };
  EXPECT_EQ(delta("a"), Json({{"role", "assistant"}, {"reasoning_content", "a"}}));
  EXPECT_EQ(delta(" b\n"), Json({{"reasoning_content", " b"}}));
  EXPECT_EQ(delta("</think>\n"), Json());
  EXPECT_EQ(delta("c"), Json({{"content", "c"}}));
}

TEST_F(OpenAiResponseTest, AStreamSendsArgumentsAsTheyGrow) {
  OpenAiResponse format(Tools(ToolCallFormat::kHermes), *tokenizer_);
  const auto chunk = [&](const char* text, v1::FinishReason finish = {}) {
    v1::GenerateResponse delta;
    delta.set_text(text);
    delta.set_finish_reason(finish);
    const std::string event = format.Chunk(delta);
    return event.empty() ? Json() : Json::parse(event.substr(6))["choices"][0]["delta"];
  };
  EXPECT_EQ(chunk("So <tool_call>{\"name\": \"f\", \"arguments\": "),
            Json({{"role", "assistant"}, {"content", "So"}}));
  Json begun = chunk("{");
  EXPECT_TRUE(begun["tool_calls"][0].erase("id"));
  EXPECT_EQ(begun, Json::parse(R"({"tool_calls": [{"index": 0, "type": "function",
                                    "function": {"name": "f", "arguments": "{"}}]})"));
  EXPECT_EQ(chunk("\"a\": 1"), Json::parse(R"({"tool_calls": [{"index": 0,
                                    "function": {"arguments": "\"a\": 1"}}]})"));
  EXPECT_EQ(chunk("}"), Json::parse(R"({"tool_calls": [{"index": 0,
                                    "function": {"arguments": "}"}}]})"));
  EXPECT_EQ(chunk("}</tool_call>"), Json());
  Json two =
      chunk("<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>", v1::FINISH_REASON_STOP);
  EXPECT_EQ(two["tool_calls"][0]["index"], 1);
  EXPECT_EQ(two["tool_calls"][0]["function"], Json({{"name", "g"}, {"arguments", "{}"}}));
}

// As OpenAI's API, an answer that ends within a call has what the model has written of it.
TEST_F(OpenAiResponseTest, AnAnswerCutOffWithinArgumentsHasTheirBeginning) {
  const std::string text = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": [1, \"x";
  v1::GenerateResponse all;
  all.set_text(text);
  all.set_finish_reason(v1::FINISH_REASON_LENGTH);
  OpenAiResponse format(Tools(ToolCallFormat::kHermes), *tokenizer_);
  format.Add(all);
  const Json choice = Json::parse(format.Whole({}))["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "length");
  EXPECT_EQ(choice["message"]["tool_calls"][0]["function"],
            Json({{"name", "f"}, {"arguments", "{\"a\": [1, \"x"}}));
}

TEST_F(OpenAiResponseTest, WithoutParallelCallsAChoiceHasTheFirst) {
  OpenAiResponse::Options options = Tools(ToolCallFormat::kMistral);
  const std::string text =
      "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", "
      "\"arguments\": {}}][TOOL_CALLS]h{}";
  EXPECT_EQ(Whole(options, text).calls, "|f {}|g {}|h {}");
  options.parts.parallel_tool_calls = false;
  EXPECT_EQ(Whole(options, text).calls, "|f {}");
  EXPECT_EQ(Streamed(options, Deltas(Ids(text), std::vector<size_t>(text.size(), 1))).calls,
            "|f {}");
}

TEST_F(OpenAiResponseTest, ANamedToolsCallIsNoReasonToFinish) {
  OpenAiResponse::Options options = Tools(ToolCallFormat::kMistral);
  const std::string text = "[TOOL_CALLS]f[ARGS]{}";
  EXPECT_EQ(Whole(options, text).finish, "tool_calls");
  options.calls_named_tool = true;
  EXPECT_EQ(Whole(options, text).finish, "stop");
  EXPECT_EQ(Whole(options, text).calls, "|f {}");
  EXPECT_EQ(Streamed(options, Deltas(Ids(text), std::vector<size_t>(text.size(), 1))).finish,
            "stop");
}

TEST_F(OpenAiResponseTest, WithoutToolsACallIsText) {
  OpenAiResponse::Options options = Tools(ToolCallFormat::kUnsupported);
  const std::string text = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  EXPECT_EQ(Whole(options, text).content, text);
  EXPECT_EQ(Whole(options, text).finish, "stop");
}

TEST_F(OpenAiResponseTest, AnAnswerCutOffAfterACallEndsByLength) {
  v1::GenerateResponse delta;
  delta.set_text("[TOOL_CALLS]f{}");
  delta.set_finish_reason(v1::FINISH_REASON_LENGTH);
  EXPECT_EQ(Streamed(Tools(ToolCallFormat::kMistral), {delta}).finish, "length");
}

TEST_F(OpenAiResponseTest, EveryChoiceOfAPromptBeginsWithItsEcho) {
  OpenAiResponse::Options options;
  options.logprobs = true;
  options.choices_per_prompt = 2;
  const std::vector<EchoedPrompt> echo = {{"ab", 'a', {0, 1}}, {"c", 'c', {0}}};
  const auto delta = [](int choice, char token) {
    v1::GenerateResponse one;
    one.set_choice(choice);
    one.set_text(std::string(1, token));
    v1::TokenLogprobs* logprobs = one.add_logprobs();
    logprobs->set_token_id(token);
    logprobs->set_logprob(-1);
    return one;
  };
  v1::GenerateResponse first = delta(1, 'x');  // of its prompt
  v1::TokenLogprobs* prompt = first.add_prompt_logprobs();
  prompt->set_token_id('b');
  prompt->set_logprob(-2);
  prompt->add_top()->set_token_id('z');
  const std::vector<v1::GenerateResponse> deltas = {first, delta(0, 'y'), delta(2, 'q'),
                                                    delta(1, 'w')};
  OpenAiResponse stream(options, *tokenizer_);
  stream.SetEcho(echo);
  std::map<int, std::string> texts;
  std::map<int, Json> tokens, offsets;
  for (const v1::GenerateResponse& one : deltas) {
    const Json choice = Json::parse(stream.Chunk(one).substr(6))["choices"][0];
    texts[choice["index"]] += choice["text"].get<std::string>();
    for (const Json& token : choice["logprobs"]["tokens"]) tokens[choice["index"]].push_back(token);
    for (const Json& at : choice["logprobs"]["text_offset"]) offsets[choice["index"]].push_back(at);
  }
  EXPECT_EQ(texts, (std::map<int, std::string>{{0, "aby"}, {1, "abxw"}, {2, "cq"}}));
  EXPECT_EQ(tokens[0], Json({"a", "b", "y"}));
  EXPECT_EQ(tokens[1], Json({"a", "b", "x", "w"}));
  EXPECT_EQ(tokens[2], Json({"c", "q"}));
  EXPECT_EQ(offsets[1], Json({0, 1, 2, 3}));

  OpenAiResponse whole(options, *tokenizer_);
  whole.SetEcho(echo);
  for (const v1::GenerateResponse& one : deltas) whole.Add(one);
  const Json choices = Json::parse(whole.Whole({}))["choices"];
  EXPECT_EQ(choices[0]["text"], "aby");
  const Json& logprobs = choices[0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], Json({"a", "b", "y"}));
  EXPECT_EQ(logprobs["token_logprobs"], Json({nullptr, -2.0, -1.0}));
  EXPECT_EQ(logprobs["top_logprobs"][0], nullptr);
  EXPECT_EQ(logprobs["top_logprobs"][1], Json({{"z", 0.0}, {"b", -2.0}}));
}

TEST_F(OpenAiResponseTest, DraftsAreOpenAisPredictionTokens) {
  for (const bool chat : {false, true}) {
    OpenAiResponse::Options options;
    options.chat = chat;
    v1::Usage usage;
    EXPECT_FALSE(Json::parse(OpenAiResponse(options, *tokenizer_).Whole(usage))["usage"].contains(
        "completion_tokens_details"));
    usage.set_draft_tokens(9);
    usage.set_accepted_draft_tokens(7);
    EXPECT_EQ(Json::parse(OpenAiResponse(options, *tokenizer_)
                              .Whole(usage))["usage"]["completion_tokens_details"],
              Json({{"accepted_prediction_tokens", 7}, {"rejected_prediction_tokens", 2}}));
    options.include_usage = true;
    EXPECT_NE(OpenAiResponse(options, *tokenizer_)
                  .StreamEnd(usage)
                  .find(R"({"accepted_prediction_tokens":7,"rejected_prediction_tokens":2})"),
              std::string::npos);
  }
  OpenAiResponse::Options reasons;
  reasons.chat = true;
  reasons.parts.reasoning = chat::ReasoningFormat::kThinkTags;
  v1::Usage usage;
  usage.set_draft_tokens(9);
  EXPECT_EQ(
      Json::parse(
          OpenAiResponse(reasons, *tokenizer_).Whole(usage))["usage"]["completion_tokens_details"],
      Json({{"reasoning_tokens", 0},
            {"accepted_prediction_tokens", 0},
            {"rejected_prediction_tokens", 9}}));
}

TEST_F(OpenAiResponseTest, ACacheMissIsPartOfTheUsage) {
  v1::Usage usage;
  OpenAiResponse format({}, *tokenizer_);
  EXPECT_FALSE(Json::parse(format.Whole(usage))["usage"].contains("cache_miss"));
  usage.mutable_cache_miss()->set_cause(v1::CACHE_MISS_CAUSE_OTHER_SALT);
  usage.mutable_cache_miss()->set_lost_tokens(32);
  usage.mutable_cache_miss()->set_earlier_text("\xFF");
  const Json miss = Json::parse(format.Whole(usage))["usage"]["cache_miss"];
  EXPECT_EQ(miss["cause"], "other_salt");
  EXPECT_EQ(miss["lost_tokens"], 32);
  EXPECT_EQ(miss["earlier_text"], "\xEF\xBF\xBD");
}

}  // namespace
}  // namespace baton::router
