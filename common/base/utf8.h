// Checks, reads, writes and clips UTF-8. Protobuf requires it of string fields: one invalid string
// makes its whole message unreadable.
#ifndef BATON_COMMON_BASE_UTF8_H_
#define BATON_COMMON_BASE_UTF8_H_

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace baton {

// Also false for surrogates, overlong forms and code points above U+10FFFF.
bool IsUtf8(absl::string_view text);

// What may follow the bytes so far: a character, one to three bytes of 0x80 to 0xBF, or such bytes
// after a lead byte that limits the first of them.
enum class Utf8State : uint8_t {
  kCharacter,
  kOneMore,
  kTwoMore,
  kThreeMore,
  kAfterE0,
  kAfterEd,
  kAfterF0,
  kAfterF4,
  kInvalid,  // nothing: the bytes begin no UTF-8
};
constexpr size_t kUtf8States = static_cast<size_t>(Utf8State::kInvalid);  // without kInvalid

Utf8State NextUtf8State(Utf8State state, unsigned char byte);

// Returns the length in bytes of the character that starts with `lead`. REQUIRES: `lead` is the
// lead byte of valid UTF-8.
inline size_t Utf8CharBytes(char lead) {
  const unsigned char byte = static_cast<unsigned char>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// Returns the first character. REQUIRES: `text` is valid UTF-8 and not empty.
char32_t FirstChar(absl::string_view text);

void AppendUtf8(char32_t c, std::string* out);

// The number of code points. REQUIRES: valid UTF-8.
int64_t CountCharacters(absl::string_view text);

// Returns valid UTF-8 of at most `max_bytes` bytes. Replaces each invalid byte with "?". A text
// that is too long is cut between characters and ends in "...", if max_bytes has room for that.
std::string ClipToUtf8(absl::string_view text, size_t max_bytes);

// A file's text without the byte order mark, U+FEFF, that some editors write at its start and none
// shows.
absl::string_view WithoutByteOrderMark(absl::string_view text);

}  // namespace baton

#endif  // BATON_COMMON_BASE_UTF8_H_
