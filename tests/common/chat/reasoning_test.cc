#include "common/chat/reasoning.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/chat/model_chat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/model_dir.h"
#include "tests/testing/seed.h"

namespace baton::chat {
namespace {

using testing::ModelDir;

// "[reasoning]content" of an answer that is appended in these parts.
std::string PartsOf(ReasoningFormat format, bool starts_inside,
                    const std::vector<std::string>& parts) {
  ReasoningParser parser(format, starts_inside);
  std::string reasoning;
  std::string content;
  const auto add = [&](const ReasoningParser::Delta& delta) {
    reasoning += delta.reasoning;
    content += delta.content;
  };
  for (const std::string& part : parts) add(parser.Append(part));
  add(parser.Finish());
  return absl::StrCat("[", reasoning, "]", content);
}

struct ReasoningCase {
  ReasoningFormat format;
  bool starts_inside;
  const char* answer;
  const char* expected;
};

constexpr ReasoningFormat kThink = ReasoningFormat::kThinkTags;
constexpr ReasoningFormat kHarmony = ReasoningFormat::kHarmony;

const ReasoningCase kReasoningCases[] = {
    // The answer begins with the mark.
    {kThink, false, "<think>\nLet me\n\nsee é.\n</think>\n\nIt is 4.\n",
     "[Let me\n\nsee é.]It is 4.\n"},
    {kThink, false, "\n <think>a</think>b", "[a]b"},
    {kThink, false, "<think>\n\n</think>\n\n  b", "[]b"},
    {kThink, false, "<think></think>", "[]"},
    // The prompt has begun the reasoning.
    {kThink, true, "\nwell\n</think>\n\nIt is 4.", "[well]It is 4."},
    {kThink, true, "</think>b", "[]b"},
    {kThink, true, "<think>\nagain</think>\nb", "[again]b"},
    {kThink, true, " a <think> b </think> c", "[a <think> b]c"},
    // The answer ends within the reasoning.
    {kThink, false, "<think>\nso far \n", "[so far]"},
    {kThink, false, "<think>a</thin", "[a</thin]"},
    {kThink, true, "so far, 1 < 2\n\n", "[so far, 1 < 2]"},
    {kThink, true, "<thi", "[<thi]"},
    {kThink, true, "", "[]"},
    // No reasoning, or marks that stand further back.
    {kThink, false, "", "[]"},
    {kThink, false, "\n\n4 \n", "[]\n\n4 \n"},
    {kThink, false, " <thi", "[] <thi"},
    {kThink, false, "A tag is <think>so</think>.", "[]A tag is <think>so</think>."},
    {kThink, false, "</think>a", "[]</think>a"},
    {kThink, false, "<thinker>a</thinker>", "[]<thinker>a</thinker>"},
    {kThink, false, "<think>a</think>b <think>c</think>", "[a]b <think>c</think>"},
    {kThink, false, "<think>a</</think></think>b", "[a</]</think>b"},

    {ReasoningFormat::kSeedTags, false, "<seed:think>a\n</seed:think>b", "[a]b"},
    {ReasoningFormat::kSeedTags, false, "<think>a</think>b", "[]<think>a</think>b"},
    {ReasoningFormat::kMistral, false, "[THINK]a [1] [/THINK]b", "[a [1]]b"},
    {ReasoningFormat::kMistral, false, "[THIN] b", "[][THIN] b"},
    {ReasoningFormat::kGemma4, false, "<|channel>thought\na\nb\n<channel|>c", "[a\nb]c"},
    {ReasoningFormat::kGemma4, false, "<|channel>thought\n<channel|>c", "[]c"},
    {ReasoningFormat::kGemma4, true, "a<channel|>c", "[a]c"},

    {kHarmony, false,
     "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant<|channel|>final"
     "<|message|>It is 4.",
     "[Let me see.]It is 4."},
    {kHarmony, false, "<|channel|>final<|message|> 4\n", "[] 4\n"},
    {kHarmony, false,
     "<|channel|>analysis<|message|>a\n<|end|><|start|>assistant<|channel|>commentary<|message|>"
     "I look.<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>"
     "<|start|>assistant<|channel|>final<|message|>c",
     "[a\nb]I look.\nc"},
    {kHarmony, false, "<|channel|>analysis<|message|>so <|en", "[so <|en]"},
    {kHarmony, false, "<|channel|>analysis<|message|>a<|end|><|start|>assis", "[a]"},
    {kHarmony, false, "<|channel|>anal", "[]"},
    {kHarmony, false, "<|chan", "[]<|chan"},
    {kHarmony, false, "{\"a\": 1} <|message|>", "[]{\"a\": 1} <|message|>"},
    {kHarmony, true, "a<|end|><|start|>assistant<|channel|>final<|message|>b<|end|>", "[a]b"},
};

TEST(ReasoningTest, EverySplitGivesTheSame) {
  for (const ReasoningCase& c : kReasoningCases) {
    const std::string answer = c.answer;
    ASSERT_EQ(PartsOf(c.format, c.starts_inside, {answer}), c.expected) << answer;
    std::vector<std::string> bytes;
    for (size_t i = 0; i < answer.size(); ++i) {
      ASSERT_EQ(PartsOf(c.format, c.starts_inside, {answer.substr(0, i), answer.substr(i)}),
                c.expected)
          << answer << " split at byte " << i;
      bytes.push_back(answer.substr(i, 1));
    }
    ASSERT_EQ(PartsOf(c.format, c.starts_inside, bytes), c.expected) << answer << " byte by byte";
  }
}

// It takes minutes if the time grows as the square of the length.
TEST(ReasoningTest, WhiteSpaceAtTheBeginningIsReadOnce) {
  const std::string answer = std::string(size_t{1} << 20, ' ') + "a";
  ReasoningParser parser(kThink, /*starts_inside=*/false);
  for (size_t i = 0; i + 1 < answer.size(); ++i) {
    ASSERT_EQ(parser.Append(" ").content, "");
  }
  EXPECT_TRUE(parser.Append("a").content == answer);
}

// Texts of marks, parts of marks, spaces and letters.
TEST(ReasoningTest, RandomAnswersDoNotDependOnTheSplit) {
  const uint64_t seed = testing::TestSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  for (const ReasoningFormat format :
       {kThink, ReasoningFormat::kSeedTags, ReasoningFormat::kMistral, ReasoningFormat::kGemma4,
        kHarmony}) {
    const auto marks = ReasoningMarkers(format);
    for (int round = 0; round < 2'000; ++round) {
      std::vector<std::string> pieces;
      for (size_t i = 0; i < 1 + random() % 8; ++i) {
        const std::string mark(marks[random() % marks.size()]);
        const std::string choices[] = {mark,      mark,          mark.substr(0, random() % 9),
                                       "thought", "analysis",    "\n",
                                       " ",       "final a \n\n"};
        pieces.push_back(choices[random() % std::size(choices)]);
      }
      const std::string answer = absl::StrJoin(pieces, "");
      const bool starts_inside = random() % 2 == 0;
      std::vector<std::string> parts;
      for (size_t at = 0; at < answer.size(); at += parts.back().size()) {
        parts.push_back(answer.substr(at, 1 + random() % 7));
      }
      ASSERT_EQ(PartsOf(format, starts_inside, parts), PartsOf(format, starts_inside, {answer}))
          << answer;
    }
  }
}

TEST(ReasoningTest, TextComesOutAtOnce) {
  ReasoningParser parser(kThink, /*starts_inside=*/true);
  EXPECT_EQ(parser.Append("\nHello").reasoning, "Hello");
  EXPECT_EQ(parser.Append(" world").reasoning, " world");
  EXPECT_EQ(parser.Append("\n").reasoning, "");  // may be the end
  EXPECT_EQ(parser.Append("</th").reasoning, "");
  EXPECT_EQ(parser.Append("is").reasoning, "\n</this");
  EXPECT_EQ(parser.Append("</think>\n").content, "");
  EXPECT_EQ(parser.Append("\nfour").content, "four");
  EXPECT_EQ(parser.Append(" \n").content, " \n");
}

// A header that does not end is not held for ever.
TEST(ReasoningTest, ALongHeaderIsContent) {
  const std::string header = "<|channel|>" + std::string(2'000, 'x');
  EXPECT_EQ(PartsOf(kHarmony, false, {header, "<|message|>a"}), "[]" + header + "<|message|>a");
  EXPECT_EQ(PartsOf(kHarmony, false, {header + "<|message|>a"}), "[]" + header + "<|message|>a");
  ReasoningParser parser(kHarmony, false);
  EXPECT_EQ(parser.Append(header).content, header);
}

TEST(ReasoningTest, OnlyTheTemplatesOwnMarkBeginsReasoning) {
  const std::string prompt = "user: <think> assistant: <think>\n";
  const ByteRange of_user = {6, 13};
  EXPECT_TRUE(EndsInReasoning(kThink, prompt, {}));
  EXPECT_TRUE(EndsInReasoning(kThink, prompt, {of_user}));
  EXPECT_FALSE(EndsInReasoning(kThink, prompt, {{31, 32}}));  // a byte of the last mark
  EXPECT_FALSE(EndsInReasoning(kThink, prompt + "a", {}));
  EXPECT_FALSE(EndsInReasoning(kThink, prompt + "</think>\n\n", {}));
  EXPECT_FALSE(EndsInReasoning(ReasoningFormat::kMistral, prompt, {}));
  EXPECT_FALSE(EndsInReasoning(ReasoningFormat::kNone, prompt, {}));
  EXPECT_FALSE(EndsInReasoning(kThink, "think>", {}));
}

json::Value ParseJson(const std::string& text) { return json::Parse(text, "test").value(); }

ModelChat Published(const std::string& name) {
  const std::string path = absl::StrCat(BATON_CHAT_TEMPLATES, "/", name, ".jinja");
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file.is_open()) << path;
  const ModelDir dir;
  dir.Write("chat_template.jinja", std::string(std::istreambuf_iterator<char>(file), {}));
  auto chat = ModelChat::Load(dir.path());
  EXPECT_TRUE(chat.ok()) << chat.status();
  return *std::move(chat);
}

// Whether the prompt leaves its reasoning open, with these variables.
bool EndsInReasoning(const ModelChat& chat, const std::string& variables,
                     const std::string& content = "hi") {
  json::Value messages = ParseJson(R"([{"role": "user", "content": ""}])");
  messages.items[0].items[1].scalar.text = content;
  bool ends = false;
  for (const bool split : {true, false}) {
    const auto rendered = chat.Render(
        {.messages = messages, .variables = ParseJson(variables), .split_special_tokens = split},
        absl::UnixEpoch());
    EXPECT_TRUE(rendered.ok()) << rendered.status();
    EXPECT_TRUE(split || rendered->split.empty());
    if (!split) {
      EXPECT_EQ(rendered->ends_in_reasoning, ends);
    }
    ends = rendered->ends_in_reasoning;
  }
  return ends;
}

TEST(ReasoningTest, PublishedTemplates) {
  constexpr ReasoningFormat kNone = ReasoningFormat::kNone;
  const struct {
    const char* name;
    ReasoningFormat format;
    // Whether the prompt ends in reasoning: by default, with thinking off, and with thinking on.
    bool normal, off, on;
  } cases[] = {
      {"Qwen-Qwen3-0.6B", kThink, false, false, false},
      {"Qwen3.5-4B", kThink, true, false, true},
      {"llama-cpp-deepseek-r1", kThink, true, true, true},
      {"deepseek-ai-DeepSeek-R1-Distill-Llama-8B", kThink, true, true, true},
      {"deepseek-ai-DeepSeek-V3.1", kThink, false, false, true},
      {"GLM-4.6", kThink, false, false, false},
      {"GLM-4.7-Flash", kThink, true, false, true},
      {"NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", kThink, true, false, true},
      {"HuggingFaceTB-SmolLM3-3B", kThink, false, false, false},
      {"LFM2.5-8B-A1B", kThink, false, false, false},
      {"ibm-granite-granite-3.3-2B-Instruct", kThink, false, false, false},
      {"ByteDance-Seed-OSS", ReasoningFormat::kSeedTags, false, false, false},
      {"mistralai-Ministral-3-14B-Reasoning-2512", ReasoningFormat::kMistral, false, false, false},
      {"google-gemma-4-31B-it", ReasoningFormat::kGemma4, false, false, false},
      {"openai-gpt-oss-120b", kHarmony, false, false, false},
      {"Qwen-Qwen2.5-7B-Instruct", kNone, false, false, false},
      {"Qwen3-Coder", kNone, false, false, false},
      {"ibm-granite-granite-4.0", kNone, false, false, false},
      {"meta-llama-Llama-3.3-70B-Instruct", kNone, false, false, false},
      {"google-gemma-2-2b-it", kNone, false, false, false},
      {"mistralai-Mistral-Nemo-Instruct-2407", kNone, false, false, false},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    const ModelChat chat = Published(c.name);
    EXPECT_EQ(chat.reasoning_format(), c.format);
    EXPECT_EQ(EndsInReasoning(chat, "{}"), c.normal);
    EXPECT_EQ(EndsInReasoning(chat, R"({"enable_thinking": false, "thinking": false})"), c.off);
    EXPECT_EQ(EndsInReasoning(chat, R"({"enable_thinking": true, "thinking": true})"), c.on);
    // A text that spells the mark changes nothing.
    for (const absl::string_view mark : ReasoningMarkers(c.format)) {
      EXPECT_EQ(EndsInReasoning(chat, "{}", std::string(mark)), c.normal) << mark;
    }
  }
}

TEST(ReasoningTest, APromptThatEndsTheReasoningSaysSo) {
  for (const char* const name :
       {"Qwen-Qwen3-0.6B", "Qwen3.5-4B", "GLM-4.6", "GLM-4.7-Flash", "deepseek-ai-DeepSeek-V3.1",
        "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "HuggingFaceTB-SmolLM3-3B"}) {
    const ModelChat chat = Published(name);
    for (const bool thinks : {false, true}) {
      const auto rendered = chat.Render(
          {.messages = ParseJson(R"([{"role": "user", "content": "a</think>"}])"),
           .variables = ParseJson(thinks ? R"({"enable_thinking": true, "thinking": true})"
                                         : R"({"enable_thinking": false, "thinking": false})")},
          absl::UnixEpoch());
      ASSERT_TRUE(rendered.ok()) << rendered.status();
      EXPECT_EQ(rendered->ends_after_reasoning, !thinks) << name;
    }
  }
  const std::vector<ByteRange> request = {{0, 9}};
  EXPECT_TRUE(EndsAfterReasoning(kThink, "a</think> \n", {}));
  EXPECT_FALSE(EndsAfterReasoning(kThink, "a</think>", request));
  EXPECT_FALSE(EndsAfterReasoning(ReasoningFormat::kNone, "a</think>", {}));
}

TEST(ReasoningTest, TheTextsAroundReasoningAreThoseOfTheModel) {
  EXPECT_EQ(ReasoningTextsOf(kThink, false).begin, "<think>");
  EXPECT_EQ(ReasoningTextsOf(kThink, true).end, "</think>");
  // In Harmony the answer is a further message, and calls bring their own header.
  EXPECT_EQ(ReasoningTextsOf(kHarmony, false).begin, "<|channel|>analysis<|message|>");
  for (const bool calls : {false, true}) {
    ReasoningParser parser(kHarmony, false, calls);
    const auto texts = ReasoningTextsOf(kHarmony, calls);
    const auto delta = parser.Append(
        absl::StrCat(texts.begin, "hm", texts.end,
                     calls ? "<|channel|>commentary to=functions.f<|message|>" : "", "{}"));
    EXPECT_EQ(delta.reasoning, "hm");
    EXPECT_EQ(delta.content, calls ? "<|channel|>commentary to=functions.f<|message|>{}" : "{}");
  }
}

TEST(ReasoningTest, ATextAtTheEndOfThePromptBeginsNoReasoning) {
  const ModelDir dir;
  dir.Write("chat_template.jinja",
            "{% if x %}<think></think>{% endif %}{{ messages[0].content }}\n");
  const auto chat = ModelChat::Load(dir.path());
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_FALSE(EndsInReasoning(*chat, "{}", "<think>"));
  EXPECT_FALSE(EndsInReasoning(*chat, "{}", "think>"));
}

TEST(ReasoningTest, VariablesThatTemplatesRead) {
  const struct {
    const char* name;
    std::set<std::string> reads;
  } cases[] = {
      {"Qwen-Qwen3-0.6B", {"enable_thinking"}},
      {"deepseek-ai-DeepSeek-V3.1", {"enable_thinking", "thinking"}},
      {"deepseek-ai-DeepSeek-V4", {"enable_thinking", "reasoning_effort", "thinking"}},
      {"openai-gpt-oss-120b", {"reasoning_effort"}},
      {"google-gemma-4-31B-it", {"enable_thinking"}},
      {"ibm-granite-granite-3.3-2B-Instruct", {"thinking"}},
      {"ByteDance-Seed-OSS", {}},
      {"LFM2.5-8B-A1B", {}},  // has message.thinking
      {"mistralai-Ministral-3-14B-Reasoning-2512", {}},
      {"Qwen-Qwen2.5-7B-Instruct", {}},
  };
  for (const auto& c : cases) {
    const ModelChat chat = Published(c.name);
    for (const char* name : {"enable_thinking", "reasoning_effort", "thinking"}) {
      EXPECT_EQ(chat.ReadsVariable(name), c.reads.contains(name)) << c.name << " " << name;
    }
    EXPECT_TRUE(chat.ReadsVariable("messages")) << c.name;
    EXPECT_FALSE(chat.ReadsVariable("loop")) << c.name;
    EXPECT_FALSE(chat.ReadsVariable("no such name")) << c.name;
  }
}

// The reasoning of a history has the name that the API has for it, not the template.
TEST(ReasoningTest, AHistorysReasoningReachesEveryTemplateThatReadsIt) {
  for (const char* name :
       {"Qwen-Qwen3-0.6B", "Qwen3.5-4B", "GLM-4.6", "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
        "LFM2.5-8B-A1B", "openai-gpt-oss-120b", "google-gemma-4-31B-it", "ByteDance-Seed-OSS",
        "upstage-Solar-Open-100B"}) {
    const ModelChat chat = Published(name);
    for (const char* field : {"reasoning_content", "reasoning", "thinking"}) {
      const auto rendered = chat.Render(
          {.messages = ParseJson(absl::StrCat(
               R"([{"role": "user", "content": "x"}, {"role": "assistant", ")", field,
               R"(": "I look it up.", "tool_calls": [{"id": "call00001", "type": "function",
               "function": {"name": "f", "arguments": "{}"}}]},
               {"role": "tool", "tool_call_id": "call00001", "name": "f", "content": "x"}])"))},
          absl::UnixEpoch());
      ASSERT_TRUE(rendered.ok()) << name << ": " << rendered.status();
      const size_t at = rendered->text.find("I look it up.");
      ASSERT_NE(at, std::string::npos) << name << " " << field << "\n" << rendered->text;
      EXPECT_EQ(rendered->text.find("I look it up.", at + 1), std::string::npos) << name;
    }
  }
}

}  // namespace
}  // namespace baton::chat
