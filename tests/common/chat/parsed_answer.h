// What ToolCallParser makes of an answer that arrives in pieces.
#ifndef BATON_TESTS_COMMON_CHAT_PARSED_ANSWER_H_
#define BATON_TESTS_COMMON_CHAT_PARSED_ANSWER_H_

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/chat/tool_calls.h"
#include "common/json/json.h"
#include "common/json/scanner.h"
#include "gtest/gtest.h"

namespace baton::chat {

using SharedTools = std::shared_ptr<const json::Value>;

inline SharedTools ToolsOf(absl::string_view text) {
  return std::make_shared<const json::Value>(json::Parse(text, "tools").value());
}

inline std::vector<std::string> BytesOf(const std::string& text) {
  std::vector<std::string> bytes;
  for (const char c : text) bytes.emplace_back(1, c);
  return bytes;
}

inline std::vector<std::string> RandomPiecesOf(const std::string& text, std::mt19937_64* random) {
  std::vector<std::string> pieces;
  for (size_t at = 0; at < text.size(); at += pieces.back().size()) {
    pieces.push_back(text.substr(at, 1 + (*random)() % 8));
  }
  return pieces;
}

// The parts of an answer, whose order and arguments must be as ToolCallParser says.
inline JoinedAnswer Joined(ToolCallFormat format, const std::vector<std::string>& pieces,
                           SharedTools tools = nullptr, bool calls_begin = false) {
  using enum AnswerPart::Kind;
  ToolCallParser parser(format, /*id_seed=*/1, std::move(tools), calls_begin);
  JoinedAnswer joined;
  bool is_open = false;
  const auto add = [&](const ToolCallParser::Parts& parts) {
    for (const AnswerPart& part : parts) {
      const bool is_inner = part.kind == kArguments || part.kind == kCallEnd;
      EXPECT_EQ(is_inner, is_open);
      if (part.kind == kText || part.kind == kArguments) {
        EXPECT_FALSE(part.text.empty());
      }
      if (part.kind == kCall) is_open = true;
      if (part.kind == kCallEnd) is_open = false;
      joined.Add(part);
    }
  };
  for (const std::string& piece : pieces) add(parser.Append(piece));
  add(parser.Finish());
  EXPECT_FALSE(is_open);
  for (const ToolCall& call : joined.calls) {
    const auto arguments = json::Parse(call.arguments, "arguments");
    EXPECT_EQ(arguments.ok() && arguments->kind == json::Value::Kind::kObject, call.is_whole)
        << call.arguments;
    json::Scanner scanner;
    for (const char c : call.arguments) {
      EXPECT_NE(scanner.Push(c), json::Scanner::Event::kBroken) << call.arguments;
    }
  }
  return joined;
}

// "text|name(arguments)|..." of an answer; "|name(arguments~" of a call that is not whole.
inline std::string Described(const JoinedAnswer& joined) {
  std::string text = joined.text;
  for (const ToolCall& call : joined.calls) {
    absl::StrAppend(&text, "|", call.name, "(", call.arguments, call.is_whole ? ")" : "~");
  }
  return text;
}

}  // namespace baton::chat

#endif  // BATON_TESTS_COMMON_CHAT_PARSED_ANSWER_H_
