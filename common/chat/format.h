// Python's ways to format text: the operator %, str.format, and padding. Of a format specification
// they know fill, alignment, sign, 0, width, precision, comma, and the types s, d, i, x, X, o, b,
// e, f, g, r and %; others are a Failure.
#ifndef BATON_COMMON_CHAT_FORMAT_H_
#define BATON_COMMON_CHAT_FORMAT_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "common/chat/runtime.h"
#include "common/chat/traced_text.h"
#include "common/chat/value.h"

namespace baton::chat {

// format % arguments, of a tuple, a dict, or one other value.
absl::StatusOr<Value> FormatPercent(Runtime& runtime, const Value& format, const Value& arguments);
// format.format(...)
absl::StatusOr<Value> FormatBraces(Runtime& runtime, const Value& format,
                                   const Arguments& arguments);

enum class Align : uint8_t {
  kLeft,
  kRight,
  kMiddle,     // of a format specification
  kCenter,     // of str.center, which rounds otherwise
  kAfterSign,  // at the right, filled behind a sign
};
// Fills `text` up to `width` code points.
absl::StatusOr<Value> PadText(Runtime& runtime, const Value& text, int64_t width, Align align,
                              const TracedText& fill);

}  // namespace baton::chat

#endif  // BATON_COMMON_CHAT_FORMAT_H_
