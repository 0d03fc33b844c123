// Conversations that spell special tokens, through published chat templates and a tokenizer for
// which everything that looks like one is one.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/chat/model_chat.h"
#include "common/chat/text.h"
#include "common/tokenizer/tokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/tokenizer/tokenizer_json.h"
#include "tests/testing/model_dir.h"
#include "tests/testing/seed.h"

namespace baton::chat {
namespace {

using ::testing::ElementsAreArray;
using ::testing::Gt;
using testing::ModelDir;
using testing::ReadAll;

constexpr int kFirstSpecial = 256;  // ids below are bytes

bool IsWordByte(char c) {
  return absl::ascii_isalnum(c) || absl::StrContains("_|/:-", absl::string_view(&c, 1)) ||
         !absl::ascii_isascii(c);
}

// What looks like a special token: <...> or [...] around letters, digits and the like.
std::set<std::string> SpecialTokensIn(absl::string_view source) {
  std::set<std::string> tokens = {"<s>", "</s>", "<|im_start|>", "<|im_end|>", "[INST]"};
  for (size_t begin = 0; begin < source.size(); ++begin) {
    if (source[begin] != '<' && source[begin] != '[') continue;
    size_t end = begin + 1;
    while (end < source.size() && IsWordByte(source[end])) ++end;
    if (end == source.size() || end < begin + 2 || end - begin > 60) continue;
    if (source[end] != (source[begin] == '<' ? '>' : ']')) continue;
    tokens.emplace(source.substr(begin, end + 1 - begin));
  }
  return tokens;
}

std::unique_ptr<tokenizer::Tokenizer> TokenizerOf(const std::set<std::string>& special) {
  nlohmann::json json = tokenizer::ByteLevelJson();
  json["normalizer"] = {{"type", "NFC"}};
  int id = kFirstSpecial;
  for (const std::string& token : special) {
    json["added_tokens"].push_back(tokenizer::AddedTokenJson(id++, token));
  }
  return tokenizer::MakeTokenizer(json);
}

std::vector<int32_t> SpecialOf(const std::vector<int32_t>& ids) {
  std::vector<int32_t> special;
  for (const int32_t id : ids) {
    if (id >= kFirstSpecial) special.push_back(id);
  }
  return special;
}

struct PublishedTemplate {
  std::string name;
  ModelChat chat;
  std::vector<std::string> special;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer;
};

std::vector<PublishedTemplate> AllCases() {
  std::vector<PublishedTemplate> cases;
  std::vector<std::filesystem::path> files = {BATON_DEMO_MODEL "/chat_template.jinja"};
  for (const auto& entry : std::filesystem::directory_iterator(BATON_CHAT_TEMPLATES)) {
    if (entry.path().extension() == ".jinja") files.push_back(entry.path());
  }
  std::sort(files.begin() + 1, files.end());
  for (const auto& file : files) {
    const std::string source = ReadAll(file);
    const ModelDir dir;
    dir.Write("chat_template.jinja", source);
    dir.Write("tokenizer_config.json", R"({"bos_token": "<s>", "eos_token": "</s>"})");
    auto chat = ModelChat::Load(dir.path());
    EXPECT_TRUE(chat.ok()) << file << ": " << chat.status();
    if (!chat.ok()) continue;
    const std::set<std::string> special = SpecialTokensIn(source);
    cases.push_back(
        {file.stem(), *std::move(chat), {special.begin(), special.end()}, TokenizerOf(special)});
  }
  return cases;
}

std::string Pick(const std::vector<std::string>& from, std::mt19937_64& random) {
  return from[random() % from.size()];
}

json::Value JsonString(std::string text) {
  json::Value value;
  value.scalar.kind = json::Scalar::Kind::kString;
  value.scalar.text = std::move(text);
  return value;
}

// A conversation whose texts are those of `text`, called for each.
template <class Text>
Conversation RandomConversation(std::mt19937_64& random, Text text) {
  const auto object = [](std::vector<std::pair<std::string, json::Value>> members) {
    json::Value value;
    value.kind = json::Value::Kind::kObject;
    for (auto& [key, member] : members) {
      value.keys.push_back(key);
      value.items.push_back(std::move(member));
    }
    return value;
  };
  const auto list = [](std::vector<json::Value> items) {
    json::Value value;
    value.kind = json::Value::Kind::kArray;
    value.items = std::move(items);
    return value;
  };
  const auto message = [&](const char* role) {
    return object({{"role", JsonString(role)}, {"content", JsonString(text())}});
  };
  Conversation conversation;
  const bool with_tools = random() % 3 == 0;
  std::vector<json::Value> messages;
  if (random() % 2 == 0) messages.push_back(message("system"));
  messages.push_back(message("user"));
  if (with_tools) {
    json::Value call = message("assistant");
    call.keys.push_back("tool_calls");
    call.items.push_back(list({object(
        {{"id", JsonString("abcdefgh1")},
         {"type", JsonString("function")},
         {"function", object({{"name", JsonString(text())},
                              {"arguments", JsonString(absl::StrCat("{\"", text(), "\": \"", text(),
                                                                    "\"}"))}})}})}));
    messages.push_back(std::move(call));
    json::Value result = message("tool");
    result.keys.insert(result.keys.end(), {"name", "tool_call_id"});
    result.items.push_back(JsonString(text()));
    result.items.push_back(JsonString("abcdefgh1"));
    messages.push_back(std::move(result));
    const auto described = [&] {
      return object({{"type", JsonString("string")}, {"description", JsonString(text())}});
    };
    conversation.tools = list(
        {object({{"type", JsonString("function")},
                 {"function",
                  object({{"name", JsonString(text())},
                          {"description", JsonString(text())},
                          {"parameters", object({{"type", JsonString("object")},
                                                 {"properties", object({{text(), described()}})},
                                                 {"required", list({JsonString(text())})}})}})}})});
  } else if (random() % 2 == 0) {
    json::Value answer = message("assistant");
    if (random() % 2 == 0) {
      answer.keys.push_back("reasoning_content");
      answer.items.push_back(JsonString(text()));
    }
    messages.push_back(std::move(answer));
    messages.push_back(message("user"));
  }
  conversation.messages = list(std::move(messages));
  conversation.add_generation_prompt = random() % 2 == 0;
  if (random() % 4 == 0) {
    conversation.variables = object({{"custom_instructions", JsonString(text())}});
  }
  return conversation;
}

std::string PlainText(std::mt19937_64& random) {
  static const std::vector<std::string>& kWords = *new std::vector<std::string>{
      "Hello", " there", "\n\n", "  ", "<",     ">",   "[",          "]", "é", "e\u0301",
      "你好",  "42",     "'s",   "|",  "a < b", "```", "\U0001F600", "{", "}", "."};
  std::string text = "w";
  for (size_t i = random() % 6; i > 0; --i) text += Pick(kWords, random);
  return text;
}

// Contents without special tokens have the same ids, split or not.
TEST(SpecialTokensTest, OtherTextKeepsItsTokens) {
  std::mt19937_64 random(testing::TestSeed());
  int rendered = 0;
  for (const PublishedTemplate& test : AllCases()) {
    for (int round = 0; round < 30; ++round) {
      Conversation conversation =
          RandomConversation(random, [&] { return "w" + PlainText(random); });
      const auto split = test.chat.Render(conversation, absl::UnixEpoch());
      conversation.split_special_tokens = false;
      const auto whole = test.chat.Render(conversation, absl::UnixEpoch());
      ASSERT_EQ(split.ok(), whole.ok());
      if (!split.ok()) continue;
      ++rendered;
      ASSERT_EQ(split->text, whole->text) << test.name;
      EXPECT_TRUE(whole->split.empty());
      EXPECT_EQ(split->starts_with_bos, whole->starts_with_bos) << test.name;
      EXPECT_EQ(*test.tokenizer->Encode(split->text, false, split->split),
                *test.tokenizer->Encode(whole->text, false))
          << test.name << "\n"
          << split->text;
    }
  }
  EXPECT_GT(rendered, 1'000);
}

// The special tokens of a prompt are those of the same conversation with other texts in the place
// of the spelled tokens: those that the template writes.
TEST(SpecialTokensTest, OnlyTheTemplateWritesSpecialTokens) {
  std::mt19937_64 random(testing::TestSeed());
  int compared = 0;
  int spelled = 0;
  std::vector<std::string> without;
  for (const PublishedTemplate& test : AllCases()) {
    int of_case = 0;
    for (int round = 0; round < 40; ++round) {
      // A private-use character stands for each of some spellings.
      std::vector<std::pair<std::string, std::string>> spellings;
      for (char32_t c = 0xE000; c < 0xE004; ++c) {
        std::string mark;
        AppendCodePoint(c, &mark);
        spellings.emplace_back(mark, Pick(test.special, random));
      }
      const Conversation marked = RandomConversation(random, [&] {
        std::string text = PlainText(random);
        for (size_t i = random() % 3; i > 0; --i) {
          absl::StrAppend(&text, spellings[random() % spellings.size()].first, PlainText(random));
        }
        return text;
      });
      Conversation conversation = marked;
      const auto spell = [&](auto self, json::Value* value) -> void {
        for (std::string& key : value->keys) key = absl::StrReplaceAll(key, spellings);
        value->scalar.text = absl::StrReplaceAll(value->scalar.text, spellings);
        for (json::Value& item : value->items) self(self, &item);
      };
      spell(spell, &conversation.messages);
      spell(spell, &conversation.tools);
      spell(spell, &conversation.variables);
      const auto expected = test.chat.Render(marked, absl::UnixEpoch());
      const auto found = test.chat.Render(conversation, absl::UnixEpoch());
      if (!expected.ok() || !found.ok()) continue;
      const auto ids = test.tokenizer->Encode(found->text, false, found->split);
      ASSERT_TRUE(ids.ok()) << ids.status();
      const std::vector<int32_t> all = SpecialOf(*test.tokenizer->Encode(found->text, false));
      const std::vector<int32_t> special = SpecialOf(*ids);
      if (all.size() > special.size()) ++spelled;
      // A template may look for a spelling in a content, such as </think>, and go another way.
      if (absl::StrReplaceAll(expected->text, spellings) != found->text) continue;
      ++compared;
      ++of_case;
      ASSERT_THAT(special, ElementsAreArray(SpecialOf(
                               *test.tokenizer->Encode(expected->text, false, expected->split))))
          << test.name << "\n"
          << found->text;
    }
    if (of_case == 0) without.push_back(test.name);
  }
  EXPECT_THAT(compared, Gt(1'500));
  EXPECT_THAT(spelled, Gt(1'000));
  EXPECT_THAT(without, ::testing::SizeIs(::testing::Lt(8u)));
}

}  // namespace
}  // namespace baton::chat
