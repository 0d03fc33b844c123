// Values as text: Python's str, repr and json.dumps.
//
// Errors are those of Runtime's budgets, and Failure for what json.dumps refuses.
#ifndef BATON_COMMON_CHAT_PRINTING_H_
#define BATON_COMMON_CHAT_PRINTING_H_

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/chat/runtime.h"
#include "common/chat/traced_text.h"
#include "common/chat/value.h"

namespace baton::chat {

absl::StatusOr<TracedText> StrOf(Runtime& runtime, const Value& value);
absl::StatusOr<TracedText> ReprOf(Runtime& runtime, const Value& value);
// repr(int) or repr(float). REQUIRES: a number.
std::string NumberText(const Value& value);
// Escapes a string for HTML; markup is HTML already, and stays as it is. REQUIRES: a string.
TracedText Escaped(const Value& value);

// The options of json.dumps, as far as the filter tojson of `transformers` passes them on.
struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // of one level; absent: everything in one line
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
absl::StatusOr<TracedText> JsonOf(Runtime& runtime, const Value& value, const JsonStyle& style);

}  // namespace baton::chat

#endif  // BATON_COMMON_CHAT_PRINTING_H_
