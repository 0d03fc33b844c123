// Calls with random arguments, in the text of each format, keep their values however they are cut.
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "common/chat/tool_calls.h"
#include "common/json/json.h"
#include "gtest/gtest.h"
#include "tests/common/chat/parsed_answer.h"
#include "tests/testing/seed.h"

namespace baton::chat {
namespace {

using JsonValue = json::Value;

constexpr char kValueTools[] = R"([{"type": "function", "function": {"name": "f", "parameters": {
  "type": "object", "properties": {"s": {"type": "string"}, "t": {"type": "string"},
    "n": {"type": "integer"}, "b": {"type": "boolean"}, "o": {"type": "object"},
    "l": {"type": "array"}}}}}])";

class RandomCall {
 public:
  RandomCall(ToolCallFormat format, std::mt19937_64* random) : format_(format), random_(*random) {}

  // A call of `f` with some of the arguments that kValueTools has.
  std::string Written(JsonValue* arguments) {
    *arguments = json::ObjectValue();
    std::vector<std::string> members;
    for (const char* const key : {"s", "n", "o", "t", "b", "l"}) {
      if (random_() % 3 == 0) continue;
      JsonValue value = ValueOf(key);
      members.push_back(Member(key, value));
      json::AddMember(key, std::move(value), arguments);
    }
    switch (format_) {
      case ToolCallFormat::kQwenXml:
        return absl::StrCat("<tool_call>\n<function=f>\n", absl::StrJoin(members, ""),
                            "</function>\n</tool_call>");
      case ToolCallFormat::kGlm:
        return absl::StrCat("<tool_call>f\n", absl::StrJoin(members, ""), "</tool_call>");
      case ToolCallFormat::kLfm2:
        return absl::StrCat("<|tool_call_start|>[f(", absl::StrJoin(members, ", "),
                            ")]<|tool_call_end|>");
      case ToolCallFormat::kGemma4:
        return absl::StrCat("<|tool_call>call:f{", absl::StrJoin(members, ","), "}<tool_call|>");
      case ToolCallFormat::kHermes:
        return absl::StrCat("<tool_call>\n{\"name\": \"f\", \"arguments\": ",
                            json::ToText(*arguments), "}\n</tool_call>");
      case ToolCallFormat::kLlama3:
        return absl::StrCat("{\"name\": \"f\", \"parameters\": ", json::ToText(*arguments), "}");
      case ToolCallFormat::kMistral:
        return absl::StrCat("[TOOL_CALLS]f[ARGS]", json::ToText(*arguments));
      case ToolCallFormat::kDeepSeek:
        return absl::StrCat("<｜tool▁call▁begin｜>f<｜tool▁sep｜>", json::ToText(*arguments),
                            "<｜tool▁call▁end｜>");
      default:
        return absl::StrCat("<|channel|>commentary to=functions.f <|message|>",
                            json::ToText(*arguments), "<|call|>");
    }
  }

 private:
  std::string Text() {
    static const char* const kPieces[] = {"a",
                                          "é",
                                          "日",
                                          "😀",
                                          "\n",
                                          "\n\n",
                                          "\t",
                                          "\"",
                                          "'",
                                          "\\",
                                          "\\n",
                                          "\\u00e9",
                                          "{",
                                          "}",
                                          "]",
                                          ")",
                                          ",",
                                          "</function>",
                                          "</tool_call>",
                                          "</param",
                                          "</",
                                          "<tool_call>",
                                          "<tool_call|>",
                                          "<|\"",
                                          "<|tool_call_end|>",
                                          "</arg_val",
                                          " ",
                                          "<",
                                          "[TOOL_CALLS]",
                                          "<|call|>",
                                          "\x01",
                                          "```"};
    std::string text;
    for (size_t n = random_() % 8; n > 0; --n) text += kPieces[random_() % std::size(kPieces)];
    return text;
  }

  JsonValue Any(int depth) {
    switch (random_() % (depth > 2 ? 4 : 6)) {
      case 0:
        return json::TextValue(Text());
      case 1:
        return json::Parse(absl::StrCat(static_cast<int>(random_() % 2000) - 1000), "n").value();
      case 2:
        return json::BoolValue(random_() % 2 == 0);
      case 3:
        return JsonValue();
      case 4: {
        JsonValue list = json::ArrayValue();
        for (size_t n = random_() % 3; n > 0; --n) list.items.push_back(Any(depth + 1));
        return list;
      }
      default: {
        JsonValue object = json::ObjectValue();
        for (const char* const key : {"k", "key_2"}) {
          if (random_() % 2 == 0) json::AddMember(key, Any(depth + 1), &object);
        }
        return object;
      }
    }
  }

  JsonValue ValueOf(absl::string_view key) {
    if (key == "s" || key == "t") return json::TextValue(Text());
    if (key == "n") return json::Parse(absl::StrCat(random_() % 1000), "n").value();
    if (key == "b") return json::BoolValue(random_() % 2 == 0);
    JsonValue value = json::ArrayValue();
    if (key == "l") {
      for (size_t n = random_() % 3; n > 0; --n) value.items.push_back(Any(0));
      return value;
    }
    value = json::ObjectValue();
    if (random_() % 2 == 0) json::AddMember("k", Any(0), &value);
    return value;
  }

  std::string Member(absl::string_view key, const JsonValue& value) {
    const std::string bare =
        value.scalar.kind == json::Scalar::Kind::kString ? value.scalar.text : json::ToText(value);
    switch (format_) {
      case ToolCallFormat::kQwenXml:
        return absl::StrCat("<parameter=", key, ">\n", bare, "\n</parameter>\n");
      case ToolCallFormat::kGlm:
        return absl::StrCat("<arg_key>", key, "</arg_key>\n<arg_value>", bare, "</arg_value>\n");
      case ToolCallFormat::kLfm2:
        return absl::StrCat(key, "=", Literal(value));
      default:
        return absl::StrCat(key, ":", Literal(value));
    }
  }

  // As Python or Gemma 4 writes it.
  std::string Literal(const JsonValue& value) {
    const bool is_python = format_ == ToolCallFormat::kLfm2;
    std::vector<std::string> items;
    if (value.kind == JsonValue::Kind::kArray) {
      for (const JsonValue& item : value.items) items.push_back(Literal(item));
      return absl::StrCat("[", absl::StrJoin(items, ", "), "]");
    }
    if (value.kind == JsonValue::Kind::kObject) {
      for (size_t i = 0; i < value.keys.size(); ++i) {
        items.push_back(
            absl::StrCat(is_python ? absl::StrCat("'", value.keys[i], "'") : value.keys[i], ":",
                         Literal(value.items[i])));
      }
      return absl::StrCat("{", absl::StrJoin(items, ","), "}");
    }
    const json::Scalar& scalar = value.scalar;
    if (scalar.kind == json::Scalar::Kind::kString) {
      if (!is_python) return absl::StrCat("<|\"|>", scalar.text, "<|\"|>");
      const bool single = random_() % 2 == 0;
      return absl::StrCat(
          single ? "'" : "\"",
          absl::StrReplaceAll(scalar.text,
                              {{"\\", "\\\\"}, {single ? "'" : "\"", single ? "\\'" : "\\\""}}),
          single ? "'" : "\"");
    }
    if (!is_python) return json::ToText(value);
    if (scalar.kind == json::Scalar::Kind::kNull) return "None";
    if (scalar.kind == json::Scalar::Kind::kBool) return scalar.boolean ? "True" : "False";
    return json::ToText(value);
  }

  const ToolCallFormat format_;
  std::mt19937_64& random_;
};

TEST(CallReaderTest, RandomCallsKeepTheirValuesHoweverTheyAreCut) {
  using enum ToolCallFormat;
  const uint64_t seed = testing::TestSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  const SharedTools tools = ToolsOf(kValueTools);
  for (const ToolCallFormat format :
       {kHermes, kLlama3, kMistral, kDeepSeek, kHarmony, kQwenXml, kGlm, kLfm2, kGemma4}) {
    for (int i = 0; i < 400; ++i) {
      JsonValue first, second;
      RandomCall calls(format, &random);
      const std::string text = format == kLlama3 ? "" : "So";
      const std::string begin = text + calls.Written(&first);
      const std::string answer =
          absl::StrCat(begin, format == kLlama3 ? "; " : "", calls.Written(&second));
      const JoinedAnswer joined = Joined(format, RandomPiecesOf(answer, &random), tools);
      ASSERT_EQ(joined.text, text) << answer;
      ASSERT_EQ(joined.calls.size(), 2u) << answer;
      for (const auto& [call, value] :
           {std::pair(joined.calls[0], first), std::pair(joined.calls[1], second)}) {
        ASSERT_TRUE(call.is_whole) << answer;
        ASSERT_EQ(json::CanonicalText(json::Parse(call.arguments, "arguments").value()),
                  json::CanonicalText(value))
            << answer;
      }
      // Cut off anywhere, it is the same however it is cut, and begins what it would have been.
      const std::string beginning = answer.substr(0, random() % answer.size());
      const JoinedAnswer whole = Joined(format, {beginning}, tools);
      ASSERT_EQ(Described(Joined(format, RandomPiecesOf(beginning, &random), tools)),
                Described(whole));
      for (size_t c = 0; c < whole.calls.size(); ++c) {
        const std::string& arguments = whole.calls[c].arguments;
        ASSERT_EQ(arguments, joined.calls[c].arguments.substr(0, arguments.size())) << beginning;
      }
    }
  }
}

}  // namespace
}  // namespace baton::chat
