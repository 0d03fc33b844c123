// Splits the source of a template into tokens, with jinja2's rules of white space: trim_blocks,
// lstrip_blocks, the marks - and +, and one newline dropped at the end of the source.
//
// Stateless; thread-safe.
#ifndef BATON_COMMON_CHAT_LEXER_H_
#define BATON_COMMON_CHAT_LEXER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::chat {

struct Token {
  enum class Kind : uint8_t {
    kText,           // outside of all tags
    kBlockBegin,     // {%
    kBlockEnd,       // %}
    kVariableBegin,  // {{
    kVariableEnd,    // }}
    kName,
    kString,
    kInteger,
    kFloat,
    kOperator,
    kEnd,  // the last token
  };
  Kind kind = Kind::kEnd;
  int line = 0;
  std::string text;  // of a string: without quotes, escapes replaced
  int64_t integer = 0;
  double real = 0;
};

// INVALID_ARGUMENT, reason "BAD_CHAT_TEMPLATE", with `name` and the line. The last token is kEnd.
absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source, absl::string_view name);

// The error of both lexer and parser.
absl::Status SyntaxError(absl::string_view name, int line, absl::string_view message);

}  // namespace baton::chat

#endif  // BATON_COMMON_CHAT_LEXER_H_
