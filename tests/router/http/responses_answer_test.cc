#include "router/http/responses_answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "common/base/error.h"
#include "router/http/responses_request.h"
#include "tests/testing/seed.h"
#include "tests/testing/tiny_tokenizer.h"

namespace baton::router {
namespace {

using chat::ToolCallFormat;
using ::testing::ElementsAre;
using Json = nlohmann::json;

constexpr char kTextAndCalls[] =
    "Café:\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"city\": \"Köln\"}}\n</tool_call>\n"
    "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call> So <b>.";

class ResponsesAnswerTest : public ::testing::Test {
 protected:
  ResponsesAnswerTest() {
    const std::string dir = ::testing::TempDir() + "/tiny";
    testing::WriteTinyTokenizer(dir);
    tokenizer_ = *tokenizer::Tokenizer::Load(dir);
    options_.model = "m";
    options_.created = 5;
    options_.parts.call_id_seed = 7;
    options_.parts.tool_calls = ToolCallFormat::kHermes;
    options_.responses = std::make_shared<ResponsesRequest>();
    options_.responses->echo = R"("instructions":"be brief")";
    usage_.set_prompt_tokens(10);
    usage_.set_cached_prompt_tokens(4);
    usage_.set_generated_tokens(3);
  }

  static v1::GenerateResponse Delta(const std::string& text,
                                    v1::FinishReason finish = v1::FINISH_REASON_UNSPECIFIED) {
    v1::GenerateResponse delta;
    delta.set_text(text);
    delta.set_finish_reason(finish);
    return delta;
  }
  // Of pieces that are whole characters.
  std::vector<v1::GenerateResponse> Deltas(const std::vector<std::string>& pieces,
                                           v1::FinishReason finish = v1::FINISH_REASON_STOP) {
    std::vector<v1::GenerateResponse> deltas;
    for (const std::string& piece : pieces) deltas.push_back(Delta(piece));
    deltas.back().set_finish_reason(finish);
    return deltas;
  }
  Json Whole(const std::vector<v1::GenerateResponse>& deltas) {
    ResponsesAnswer answer(options_, *tokenizer_);
    for (const v1::GenerateResponse& delta : deltas) answer.Add(delta);
    return Json::parse(answer.Whole(usage_));
  }
  // The events of a stream, whose numbers are in order.
  static std::vector<Json> Events(const std::string& text) {
    std::vector<Json> events;
    for (absl::string_view one : absl::StrSplit(text, "\n\n", absl::SkipEmpty())) {
      EXPECT_TRUE(absl::ConsumePrefix(&one, "event: ")) << one;
      const std::vector<std::string> lines = absl::StrSplit(one, absl::MaxSplits('\n', 1));
      events.push_back(Json::parse(std::string(absl::StripPrefix(lines.at(1), "data: "))));
      EXPECT_EQ(events.back()["type"], lines[0]);
    }
    return events;
  }
  std::vector<Json> Streamed(const std::vector<v1::GenerateResponse>& deltas) {
    ResponsesAnswer answer(options_, *tokenizer_);
    std::string text;
    for (const v1::GenerateResponse& delta : deltas) text += answer.Chunk(delta);
    text += answer.StreamEnd(usage_);
    std::vector<Json> events = Events(text);
    for (size_t i = 0; i < events.size(); ++i) EXPECT_EQ(events[i]["sequence_number"], i);
    return events;
  }
  // The events without their numbers, deltas of one item joined.
  static std::vector<Json> Joined(std::vector<Json> events) {
    std::vector<Json> joined;
    for (Json& event : events) {
      event.erase("sequence_number");
      if (event.contains("delta") && !joined.empty() && joined.back()["type"] == event["type"] &&
          joined.back()["item_id"] == event["item_id"]) {
        joined.back()["delta"] =
            joined.back()["delta"].get<std::string>() + event["delta"].get<std::string>();
      } else {
        joined.push_back(event);
      }
    }
    return joined;
  }
  static std::vector<std::string> Types(const std::vector<Json>& events) {
    std::vector<std::string> types;
    for (const Json& event : events) {
      types.emplace_back(absl::StripPrefix(event["type"].get<std::string>(), "response."));
    }
    return types;
  }

  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
  OpenAiResponse::Options options_;
  v1::Usage usage_;
};

// The characters of a text.
std::vector<std::string> Characters(const std::string& text) {
  std::vector<std::string> characters;
  for (const char c : text) {
    if ((static_cast<unsigned char>(c) & 0xC0) != 0x80) characters.emplace_back();
    characters.back() += c;
  }
  return characters;
}

TEST_F(ResponsesAnswerTest, AnAnswerIsOneObject) {
  const Json json = Whole(Deltas({"Hi", " \"you\""}));
  EXPECT_TRUE(absl::StartsWith(json["id"].get<std::string>(), "resp_"));
  EXPECT_EQ(json["object"], "response");
  EXPECT_EQ(json["created_at"], 5);
  EXPECT_EQ(json["status"], "completed");
  EXPECT_EQ(json["error"], nullptr);
  EXPECT_EQ(json["incomplete_details"], nullptr);
  EXPECT_EQ(json["model"], "m");
  EXPECT_EQ(json["instructions"], "be brief");
  EXPECT_EQ(json["store"], false);
  ASSERT_EQ(json["output"].size(), 1u);
  const Json& message = json["output"][0];
  EXPECT_TRUE(absl::StartsWith(message["id"].get<std::string>(), "msg_"));
  EXPECT_EQ(message["type"], "message");
  EXPECT_EQ(message["role"], "assistant");
  EXPECT_EQ(message["status"], "completed");
  EXPECT_EQ(message["content"], Json::parse(R"([{"type": "output_text", "text": "Hi \"you\"",
                                                 "annotations": [], "logprobs": []}])"));
  EXPECT_EQ(json["usage"], Json::parse(R"({"input_tokens": 10, "output_tokens": 3,
      "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
      "output_tokens_details": {"reasoning_tokens": 0}, "total_tokens": 13})"));
}

TEST_F(ResponsesAnswerTest, AnAnswerCutOffByItsLengthIsIncomplete) {
  const auto deltas = Deltas({"Hi"}, v1::FINISH_REASON_LENGTH);
  const Json json = Whole(deltas);
  EXPECT_EQ(json["status"], "incomplete");
  EXPECT_EQ(json["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(json["output"][0]["status"], "incomplete");
  EXPECT_EQ(Streamed(deltas).back()["type"], "response.incomplete");
  EXPECT_EQ(Streamed(deltas).back()["response"], json);
}

TEST_F(ResponsesAnswerTest, AnAnswerWithoutTextHasAMessage) {
  const Json json = Whole(Deltas({""}));
  ASSERT_EQ(json["output"].size(), 1u);
  EXPECT_EQ(json["output"][0]["content"][0]["text"], "");
  EXPECT_EQ(Streamed(Deltas({""})).back()["response"], json);
}

TEST_F(ResponsesAnswerTest, AStreamHasEveryEventInOrder) {
  const std::vector<Json> events = Streamed(Deltas(Characters(kTextAndCalls)));
  EXPECT_THAT(
      Types(Joined(events)),
      ElementsAre("created", "in_progress",                                        //
                  "output_item.added", "content_part.added", "output_text.delta",  //
                  "output_text.done", "content_part.done", "output_item.done",     //
                  "output_item.added", "function_call_arguments.delta",            //
                  "function_call_arguments.done", "output_item.done",              //
                  "output_item.added", "function_call_arguments.delta",            //
                  "function_call_arguments.done", "output_item.done",              //
                  "output_item.added", "content_part.added", "output_text.delta",  //
                  "output_text.done", "content_part.done", "output_item.done", "completed"));
  const Json& created = events[0]["response"];
  EXPECT_EQ(created["status"], "in_progress");
  EXPECT_EQ(created["output"], Json::array());
  EXPECT_EQ(created["usage"], nullptr);
  EXPECT_EQ(created["id"], events.back()["response"]["id"]);
  // Each item at its end is what the whole answer has, and the events are about the item.
  std::map<int, std::string> ids, texts;
  const Json& output = events.back()["response"]["output"];
  ASSERT_EQ(output.size(), 4u);
  for (const Json& event : events) {
    if (!event.contains("output_index")) continue;
    const int index = event["output_index"];
    const Json item = event.value("item", Json::object());
    if (event["type"] == "response.output_item.added") {
      ids[index] = item["id"];
      EXPECT_EQ(item["status"], "in_progress");
      EXPECT_TRUE(item["type"] == "message" ? item["content"].empty() : item["arguments"] == "");
    } else if (event["type"] == "response.output_item.done") {
      EXPECT_EQ(item, output[index]);
    } else {
      EXPECT_EQ(event["item_id"], ids[index]);
    }
    if (event.contains("delta")) texts[index] += event["delta"].get<std::string>();
  }
  EXPECT_EQ(texts, (std::map<int, std::string>{
                       {0, "Café:"}, {1, "{\"city\": \"Köln\"}"}, {2, "{}"}, {3, "So <b>."}}));
  EXPECT_EQ(output[1]["type"], "function_call");
  EXPECT_TRUE(absl::StartsWith(output[1]["id"].get<std::string>(), "fc_"));
  EXPECT_TRUE(absl::StartsWith(output[1]["call_id"].get<std::string>(), "call_"));
  EXPECT_EQ(output[1]["name"], "f");
  // The arguments come in pieces.
  EXPECT_GT(std::count_if(events.begin(), events.end(),
                          [](const Json& event) {
                            return event["type"] == "response.function_call_arguments.delta" &&
                                   event["output_index"] == 1;
                          }),
            10);
}

TEST_F(ResponsesAnswerTest, ACallCutOffByTheLengthIsIncomplete) {
  const auto deltas =
      Deltas(Characters("Hi<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"x"),
             v1::FINISH_REASON_LENGTH);
  const Json json = Whole(deltas);
  EXPECT_EQ(json["status"], "incomplete");
  EXPECT_EQ(json["output"][0]["status"], "completed");
  EXPECT_EQ(json["output"][1]["status"], "incomplete");
  EXPECT_EQ(json["output"][1]["arguments"], "{\"a\": \"x");
  const std::vector<Json> events = Streamed(deltas);
  EXPECT_EQ(events.back()["response"], json);
  EXPECT_EQ(events.at(events.size() - 2)["type"], "response.output_item.done");
  EXPECT_EQ(events.at(events.size() - 2)["item"], json["output"][1]);
}

// The model may reason in a message of its own behind one that ends within a call.
TEST_F(ResponsesAnswerTest, ReasoningBehindACallThatIsNotWholeIsAnItemOfItsOwn) {
  options_.parts.tool_calls = ToolCallFormat::kHarmony;
  options_.parts.reasoning = chat::ReasoningFormat::kHarmony;
  const std::string text =
      "<|channel|>commentary to=functions.f<|message|>{\"a\": 1<|end|><|start|>assistant"
      "<|channel|>analysis<|message|>hm<|end|><|start|>assistant<|channel|>final<|message|>}";
  const Json whole = Whole(Deltas({text}));
  const Json& output = whole["output"];
  ASSERT_EQ(output.size(), 3u) << output;
  EXPECT_EQ(output[0]["type"], "function_call");
  EXPECT_EQ(output[0]["arguments"], "{\"a\": 1");
  EXPECT_EQ(output[0]["status"], "incomplete");
  EXPECT_EQ(output[1]["type"], "reasoning");
  EXPECT_EQ(output[1]["content"][0]["text"], "hm");
  EXPECT_EQ(output[1]["status"], "completed");
  EXPECT_EQ(output[2]["type"], "message");
  EXPECT_EQ(output[2]["content"][0]["text"], "}");
  for (const auto& pieces : {std::vector<std::string>{text}, Characters(text)}) {
    const std::vector<Json> events = Joined(Streamed(Deltas(pieces)));
    EXPECT_EQ(events.back()["response"], whole);
    EXPECT_THAT(
        Types(events),
        ElementsAre("created", "in_progress",                                           //
                    "output_item.added", "function_call_arguments.delta",               //
                    "function_call_arguments.done", "output_item.done",                 //
                    "output_item.added", "content_part.added", "reasoning_text.delta",  //
                    "reasoning_text.done", "content_part.done", "output_item.done",     //
                    "output_item.added", "content_part.added", "output_text.delta",     //
                    "output_text.done", "content_part.done", "output_item.done", "completed"));
  }
}

TEST_F(ResponsesAnswerTest, AnAnswerDoesNotDependOnHowItsTextIsCut) {
  const uint64_t seed = testing::TestSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  for (const std::string& text :
       {std::string(kTextAndCalls), std::string("plain"), std::string("<tool_call>{\"name\": 5"),
        std::string("<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"),
        std::string("a<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"é\nb\"}}")}) {
    const std::vector<std::string> characters = Characters(text);
    const Json whole = Whole(Deltas({text}));
    const std::vector<Json> events = Joined(Streamed(Deltas({text})));
    EXPECT_EQ(events.back()["response"], whole);
    const auto expect_equal = [&](const std::vector<std::string>& pieces) {
      EXPECT_EQ(Whole(Deltas(pieces)), whole) << ::testing::PrintToString(pieces);
      EXPECT_EQ(Joined(Streamed(Deltas(pieces))), events) << ::testing::PrintToString(pieces);
    };
    expect_equal(characters);
    for (size_t cut = 1; cut < characters.size(); ++cut) {
      std::vector<std::string> pieces(2);
      for (size_t i = 0; i < characters.size(); ++i) pieces[i < cut ? 0 : 1] += characters[i];
      expect_equal(pieces);
    }
    for (int round = 0; round < 20; ++round) {
      std::vector<std::string> pieces(1);
      for (const std::string& one : characters) {
        if (random() % 3 == 0) pieces.emplace_back();
        pieces.back() += one;
      }
      expect_equal(pieces);
    }
  }
}

TEST_F(ResponsesAnswerTest, WhatIsKeptIsTheAnswerAsAChatHasIt) {
  std::string id, response;
  Json answer;
  options_.responses->keep = [&](const std::string& of, std::string object,
                                 const json::Value& messages) {
    id = of;
    response = std::move(object);
    answer = Json::parse(json::ToText(messages));
  };
  const Json whole = Whole(Deltas({kTextAndCalls}));
  EXPECT_EQ(id, whole["id"]);
  EXPECT_EQ(Json::parse(response), whole);
  EXPECT_EQ(whole["store"], true);
  ASSERT_EQ(answer.size(), 2u);
  EXPECT_EQ(answer[0]["content"], "Café:");
  ASSERT_EQ(answer[0]["tool_calls"].size(), 2u);
  EXPECT_EQ(answer[0]["tool_calls"][0]["id"], whole["output"][1]["call_id"]);
  EXPECT_EQ(answer[0]["tool_calls"][0]["function"],
            Json({{"name", "f"}, {"arguments", "{\"city\": \"Köln\"}"}}));
  EXPECT_EQ(answer[1], Json({{"role", "assistant"}, {"content", "So <b>."}}));
  id.clear();
  EXPECT_EQ(Streamed(Deltas({"x"})).back()["response"]["id"], id);
}

TEST_F(ResponsesAnswerTest, AStreamThatFailsSaysSoTwice) {
  ResponsesAnswer answer(options_, *tokenizer_);
  answer.Chunk(Delta("Hi"));
  bool kept = false;
  options_.responses->keep = [&](const std::string&, std::string, const json::Value&) {
    kept = true;
  };
  const std::vector<Json> events = Events(answer.StreamError(
      MakeError(absl::StatusCode::kUnavailable, "WORKER_LOST", "the \"worker\" is lost")));
  EXPECT_THAT(Types(events), ElementsAre("output_text.done", "content_part.done",
                                         "output_item.done", "error", "failed"));
  EXPECT_EQ(events[2]["item"]["status"], "incomplete");
  EXPECT_EQ(events[3]["code"], "worker_lost");
  EXPECT_EQ(events[3]["message"], "the \"worker\" is lost");
  EXPECT_EQ(events[3]["param"], nullptr);
  const Json& response = events[4]["response"];
  EXPECT_EQ(response["status"], "failed");
  EXPECT_EQ(response["error"],
            Json({{"code", "server_error"}, {"message", "the \"worker\" is lost"}}));
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "Hi");
  EXPECT_FALSE(kept);
}

TEST_F(ResponsesAnswerTest, ErrorsHaveTheNamesOfThisApi) {
  ResponsesAnswer answer(options_, *tokenizer_);
  const HttpResponse response =
      answer.Error(InvalidField("PROMPT_TOO_LONG", "messages", "5 tokens"));
  EXPECT_EQ(response.status, 400);
  const Json error = Json::parse(response.body)["error"];
  EXPECT_EQ(error["param"], "input");
  EXPECT_EQ(error["code"], "context_length_exceeded");
  EXPECT_EQ(error["message"], "input: 5 tokens");
}

// A stream has the entries in its deltas, a whole answer in its text.
TEST_F(ResponsesAnswerTest, LogprobsDescribeTheText) {
  options_.logprobs = true;
  options_.parts.tool_calls = ToolCallFormat::kUnsupported;
  std::vector<v1::GenerateResponse> deltas;
  for (const char c : std::string("ab")) {
    v1::GenerateResponse delta = Delta(std::string(1, c));
    v1::TokenLogprobs* token = delta.add_logprobs();
    token->set_token_id(c);
    token->set_logprob(-1);
    token->add_top()->set_token_id('z');
    deltas.push_back(delta);
  }
  v1::TokenLogprobs* end = deltas.back().add_logprobs();
  end->set_token_id(testing::kEndToken);
  deltas.back().set_finish_reason(v1::FINISH_REASON_STOP);
  const Json entries = Whole(deltas)["output"][0]["content"][0]["logprobs"];
  ASSERT_EQ(entries.size(), 3u);
  EXPECT_EQ(entries[0], Json::parse(R"({"token": "a", "logprob": -1.0, "bytes": [97],
      "top_logprobs": [{"token": "z", "logprob": 0.0, "bytes": [122]}]})"));
  EXPECT_EQ(entries[2]["bytes"], Json::array());
  Json streamed = Json::array();
  for (const Json& event : Streamed(deltas)) {
    if (event["type"] != "response.output_text.delta") continue;
    for (const Json& entry : event["logprobs"]) streamed.push_back(entry);
  }
  EXPECT_EQ(streamed, entries);
}

}  // namespace
}  // namespace baton::router
