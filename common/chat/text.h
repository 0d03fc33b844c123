// Python's str, on UTF-8: positions and lengths are in code points, white space and case are
// Unicode's. Every text here is valid UTF-8.
//
// Stateless; thread-safe.
#ifndef BATON_COMMON_CHAT_TEXT_H_
#define BATON_COMMON_CHAT_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace baton::chat {

// Returns the code point at the byte `*position`, which moves behind it.
char32_t NextCodePoint(absl::string_view text, size_t* position);
void AppendCodePoint(char32_t c, std::string* out);
size_t CodePointCount(absl::string_view text);
// The byte at which the code point `index` starts; the size if there are fewer.
size_t ByteOfCodePoint(absl::string_view text, size_t index);

bool IsSpace(char32_t c);      // str.isspace
bool IsPrintable(char32_t c);  // str.isprintable
absl::string_view StripLeft(absl::string_view text);
absl::string_view StripRight(absl::string_view text);
// Without the code points of `chars` at the start and at the end.
absl::string_view StripChars(absl::string_view text, absl::string_view chars, bool left,
                             bool right);

// Takes linear time, unlike std::string::find. npos if there is none.
size_t FindText(absl::string_view text, absl::string_view wanted, size_t start = 0);
size_t CountText(absl::string_view text, absl::string_view wanted);  // without overlaps
// Visits, in order, the parts of `text` that stay and the places of `from`: the first `max`, all of
// them if negative. An empty `from` is before each code point.
void ReplaceText(absl::string_view text, absl::string_view from, int64_t max,
                 absl::FunctionRef<void(absl::string_view kept)> keep,
                 absl::FunctionRef<void()> replace);

// str.split; `separator` must not be empty. Negative `max`: no limit on the number of splits.
std::vector<absl::string_view> SplitText(absl::string_view text, absl::string_view separator,
                                         int64_t max, bool from_right);
std::vector<absl::string_view> SplitSpace(absl::string_view text, int64_t max, bool from_right);
std::vector<absl::string_view> SplitLines(absl::string_view text, bool keep_ends);

std::string UpperCase(absl::string_view text);
std::string LowerCase(absl::string_view text);
std::string FoldCase(absl::string_view text);  // str.casefold
std::string Capitalize(absl::string_view text);
std::string TitleCase(absl::string_view text);   // str.title
std::string TitleWords(absl::string_view text);  // the filter title
std::string EscapeHtml(absl::string_view text);

// For str.isalpha and its kind: true if the text is not empty and each code point is.
enum class CharacterClass : uint8_t { kAlpha, kDigit, kDecimal, kNumeric, kAlphanumeric, kSpace };
bool AllInClass(absl::string_view text, CharacterClass which);
// True if at least one letter has a case, and all of those have this one.
bool IsAllCase(absl::string_view text, bool upper);

// "it's" with Python's choice of quotes and escapes.
std::string QuotedLikePython(absl::string_view text);
// repr(float): the shortest digits that read back as the same number.
std::string FloatText(double value);
// Replaces the escapes of a Python string literal. INVALID_ARGUMENT for a malformed one.
absl::StatusOr<std::string> UnescapePython(absl::string_view text);

}  // namespace baton::chat

#endif  // BATON_COMMON_CHAT_TEXT_H_
