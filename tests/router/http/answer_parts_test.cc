#include "router/http/answer_parts.h"

#include <gtest/gtest.h>

#include <iterator>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/common/chat/parsed_answer.h"
#include "tests/testing/seed.h"

namespace baton::router {
namespace {

constexpr char kHarmonyCall[] = "<|channel|>commentary to=functions.f<|message|>";
constexpr char kHarmonyThought[] = "<|start|>assistant<|channel|>analysis<|message|>hm<|end|>";
constexpr char kHarmonyFinal[] = "<|start|>assistant<|channel|>final<|message|>";

// The parts of an answer in order, which must be as AnswerPart says: text, "[reasoning]" and
// "|name(arguments)"; "|name(arguments~" of a call that is not whole.
std::string PartsInOrder(const AnswerParts::Options& options,
                         const std::vector<std::string>& pieces) {
  using enum chat::AnswerPart::Kind;
  AnswerParts answer(options, /*choice=*/0);
  std::vector<chat::AnswerPart> parts;
  for (size_t i = 0; i < pieces.size(); ++i) {
    for (chat::AnswerPart& part : answer.Append(pieces[i], i + 1 == pieces.size())) {
      chat::AppendPart(std::move(part), &parts);
    }
  }
  std::string text;
  bool is_open = false;
  for (const chat::AnswerPart& part : parts) {
    EXPECT_EQ(part.kind == kArguments || part.kind == kCallEnd, is_open) << text;
    if (part.kind == kCall) is_open = true;
    if (part.kind == kCallEnd) is_open = false;
    absl::StrAppend(&text, part.kind == kReasoning ? "[" : "", part.text,
                    part.kind == kReasoning ? "]" : "");
    if (part.kind == kCall) absl::StrAppend(&text, "|", part.name, "(");
    if (part.kind == kCallEnd) absl::StrAppend(&text, part.is_whole ? ")" : "~");
  }
  EXPECT_FALSE(is_open) << text;
  return text;
}

AnswerParts::Options HarmonyOptions() {
  AnswerParts::Options options;
  options.tool_calls = chat::ToolCallFormat::kHarmony;
  options.tools = chat::ToolsOf(R"([{"function": {"name": "f"}}])");
  options.reasoning = chat::ReasoningFormat::kHarmony;
  return options;
}

TEST(AnswerPartsTest, ACallEndsWithItsMessage) {
  const std::string call = kHarmonyCall;
  const std::string other = "<|channel|>commentary to=functions.g<|message|>";
  const std::string thought = kHarmonyThought, end = absl::StrCat("<|end|>", thought);
  const struct {
    std::string answer, expected, without_reasoning;
  } kAnswers[] = {
      {absl::StrCat(call, "{\"a\": 1", end, kHarmonyFinal, "}"), "|f({\"a\": 1~[hm]}",
       "|f({\"a\": 1~}"},
      {absl::StrCat(call, "{\"a\": \"x", end, kHarmonyFinal, "y\"}"), "|f({\"a\": \"x~[hm]y\"}",
       "|f({\"a\": \"x~y\"}"},
      {absl::StrCat(call, "{\"a\": 1", end, "<|start|>assistant", call, "{}<|call|>"),
       "|f({\"a\": 1~[hm]|f({})", "|f({\"a\": 1~|f({})"},
      {absl::StrCat(call, "{\"a\": 1}", end, kHarmonyFinal, "b"), "|f({\"a\": 1})[hm]b",
       "|f({\"a\": 1})b"},
      // Without an argument the call has not begun.
      {absl::StrCat(call, " ", end, kHarmonyFinal, "b"), absl::StrCat(call, " [hm]\nb"),
       absl::StrCat(call, " \nb")},
      // Nor has that of another tool until it is complete.
      {absl::StrCat(other, "{\"a\": 1", end, kHarmonyFinal, "}"),
       absl::StrCat(other, "{\"a\": 1[hm]\n}"), absl::StrCat(other, "{\"a\": 1\n}")},
      {absl::StrCat(call, "{\"a\": 1", end), "|f({\"a\": 1~[hm]", "|f({\"a\": 1~"},
      {absl::StrCat(call, "{\"a\": 1<|en"), "|f({\"a\": 1~<|en", "|f({\"a\": 1~<|en"},
  };
  for (const auto& [answer, expected, without_reasoning] : kAnswers) {
    AnswerParts::Options options = HarmonyOptions();
    EXPECT_EQ(PartsInOrder(options, {answer}), expected) << answer;
    EXPECT_EQ(PartsInOrder(options, chat::BytesOf(answer)), expected) << answer;
    options.include_reasoning = false;
    EXPECT_EQ(PartsInOrder(options, {answer}), without_reasoning) << answer;
    EXPECT_EQ(PartsInOrder(options, chat::BytesOf(answer)), without_reasoning) << answer;
  }
}

TEST(AnswerPartsTest, NothingComesWithinACall) {
  const uint64_t seed = testing::TestSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  static const char* const kPieces[] = {kHarmonyCall,
                                        kHarmonyThought,
                                        kHarmonyFinal,
                                        "<|start|>assistant",
                                        "<|channel|>",
                                        "analysis",
                                        " to=functions.g",
                                        "<|message|>",
                                        "<|end|>",
                                        "<|call|>",
                                        "{\"a\": ",
                                        "{}",
                                        "}",
                                        "1",
                                        "\"",
                                        "x",
                                        " ",
                                        "\n",
                                        "<|",
                                        ","};
  for (int i = 0; i < 5'000; ++i) {
    AnswerParts::Options options = HarmonyOptions();
    options.parallel_tool_calls = random() % 2 == 0;
    std::string answer;
    for (size_t n = random() % 16; n > 0; --n) answer += kPieces[random() % std::size(kPieces)];
    ASSERT_EQ(PartsInOrder(options, chat::RandomPiecesOf(answer + " ", &random)),
              PartsInOrder(options, {answer + " "}))
        << answer;
  }
}

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
