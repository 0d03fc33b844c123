// How models write tool calls, exactly: what forces a model to call must write what it was trained
// on.
#ifndef BATON_COMMON_CHAT_TOOL_CALL_SYNTAX_H_
#define BATON_COMMON_CHAT_TOOL_CALL_SYNTAX_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/chat/tool_calls.h"

namespace baton::chat {

// The texts are those of StructuredOutput.ToolCalls (inference.proto):
//   opening CALL separator CALL closing, with a CALL being
//   before_name NAME before_arguments ARGUMENTS after_arguments
// ToolCallParser reads what is written so.
struct ToolCallSyntax {
  // How arguments are written: StructuredOutput.ToolCalls.ArgumentStyle has the same numbers.
  enum class ArgumentStyle : uint8_t {
    kJson = 1,
    kQwenXml,
    kGlmXml,
    kGlmXmlCompact,
    kPython,
    kGemma
  };
  absl::string_view opening = "";
  absl::string_view before_name = "";
  absl::string_view before_arguments = "";
  absl::string_view after_arguments = "";
  absl::string_view separator = "";
  absl::string_view closing = "";
  // What begins calls in a text; empty if calls are the whole answer.
  absl::string_view trigger = "";
  // What text without calls does not have or, with neither a trigger nor before_answer, does not
  // begin with: to ToolCallParser, a call may begin so, or to ReasoningParser, a message may end.
  absl::Span<const absl::string_view> excluded = {};
  bool quoted_names = false;  // names are parts of JSON strings
  ArgumentStyle argument_style = ArgumentStyle::kJson;
  // Not empty: each answer is a message that begins with a mark, and a call ends the answer. These
  // are the marks of an answer that is no call; of messages that may come before any answer, those
  // with reasoning and those that a reader sees; and what ends such a message.
  absl::string_view before_answer = "";
  absl::string_view before_thought = "";
  absl::string_view before_preamble = "";
  absl::string_view after_message = "";
};

// The ways in which models of a format write calls.
absl::Span<const ToolCallSyntax> SyntaxesOf(ToolCallFormat format);

// The one that a chat template writes; null if it writes none of them. `rendered`: a conversation,
// as the template writes it, with a call of the tool `name`.
const ToolCallSyntax* FindSyntax(ToolCallFormat format, absl::string_view rendered,
                                 absl::string_view name);

// The name as it is written; nullopt if ToolCallParser could not read it back.
std::optional<std::string> WrittenName(const ToolCallSyntax& syntax, absl::string_view name);

}  // namespace baton::chat

#endif  // BATON_COMMON_CHAT_TOOL_CALL_SYNTAX_H_
