#include "common/base/utf8.h"

#include <cstring>

#include "absl/strings/strip.h"

namespace baton {
namespace {

// Length in bytes of the first character of `text`; 0 if that is invalid. REQUIRES: not empty.
size_t CharacterBytes(absl::string_view text) {
  Utf8State state = Utf8State::kCharacter;
  for (size_t i = 0; i < text.size(); ++i) {
    state = NextUtf8State(state, static_cast<unsigned char>(text[i]));
    if (state == Utf8State::kCharacter) return i + 1;
    if (state == Utf8State::kInvalid) return 0;
  }
  return 0;
}

// How many bytes at the start are ASCII; perhaps some fewer.
size_t AsciiBytes(absl::string_view text) {
  size_t count = 0;
  for (uint64_t word; count + sizeof(word) <= text.size(); count += sizeof(word)) {
    std::memcpy(&word, text.data() + count, sizeof(word));
    if ((word & 0x8080808080808080) != 0) break;
  }
  return count;
}

}  // namespace

Utf8State NextUtf8State(Utf8State state, unsigned char byte) {
  const auto if_within = [byte](unsigned char first, unsigned char last, Utf8State next) {
    return byte >= first && byte <= last ? next : Utf8State::kInvalid;
  };
  switch (state) {
    case Utf8State::kCharacter:
      if (byte < 0x80) return Utf8State::kCharacter;
      if (byte < 0xC2) return Utf8State::kInvalid;
      if (byte < 0xE0) return Utf8State::kOneMore;
      if (byte == 0xE0) return Utf8State::kAfterE0;
      if (byte == 0xED) return Utf8State::kAfterEd;
      if (byte < 0xF0) return Utf8State::kTwoMore;
      if (byte == 0xF0) return Utf8State::kAfterF0;
      if (byte < 0xF4) return Utf8State::kThreeMore;
      return byte == 0xF4 ? Utf8State::kAfterF4 : Utf8State::kInvalid;
    case Utf8State::kOneMore:
      return if_within(0x80, 0xBF, Utf8State::kCharacter);
    case Utf8State::kTwoMore:
      return if_within(0x80, 0xBF, Utf8State::kOneMore);
    case Utf8State::kThreeMore:
      return if_within(0x80, 0xBF, Utf8State::kTwoMore);
    case Utf8State::kAfterE0:  // overlong below
      return if_within(0xA0, 0xBF, Utf8State::kOneMore);
    case Utf8State::kAfterEd:  // surrogates above
      return if_within(0x80, 0x9F, Utf8State::kOneMore);
    case Utf8State::kAfterF0:  // overlong below
      return if_within(0x90, 0xBF, Utf8State::kTwoMore);
    case Utf8State::kAfterF4:  // above U+10FFFF
      return if_within(0x80, 0x8F, Utf8State::kTwoMore);
    case Utf8State::kInvalid:
      return Utf8State::kInvalid;
  }
  return Utf8State::kInvalid;
}

bool IsUtf8(absl::string_view text) {
  while (!text.empty()) {
    text.remove_prefix(AsciiBytes(text));
    if (text.empty()) return true;
    const size_t bytes = CharacterBytes(text);
    if (bytes == 0) return false;
    text.remove_prefix(bytes);
  }
  return true;
}

char32_t FirstChar(absl::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  switch (Utf8CharBytes(text[0])) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
    case 3:
      return (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 |
             (byte(3) & 0x3F);
  }
}

void AppendUtf8(char32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
    return;
  }
  if (c < 0x800) {
    out->push_back(static_cast<char>(0xC0 | c >> 6));
  } else {
    if (c < 0x10000) {
      out->push_back(static_cast<char>(0xE0 | c >> 12));
    } else {
      out->push_back(static_cast<char>(0xF0 | c >> 18));
      out->push_back(static_cast<char>(0x80 | (c >> 12 & 0x3F)));
    }
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3F)));
  }
  out->push_back(static_cast<char>(0x80 | (c & 0x3F)));
}

int64_t CountCharacters(absl::string_view text) {
  int64_t count = 0;
  for (const char byte : text) count += (static_cast<unsigned char>(byte) & 0xC0) != 0x80;
  return count;
}

std::string ClipToUtf8(absl::string_view text, size_t max_bytes) {
  constexpr absl::string_view kCut = "...";
  std::string clipped;
  size_t whole = 0;  // longest prefix of `clipped` that leaves room for kCut
  while (!text.empty()) {
    const size_t bytes = CharacterBytes(text);
    const absl::string_view next = bytes == 0 ? "?" : text.substr(0, bytes);
    if (clipped.size() + next.size() > max_bytes) {
      if (max_bytes < kCut.size()) return clipped;
      clipped.resize(whole);
      clipped.append(kCut.data(), kCut.size());
      return clipped;
    }
    clipped.append(next.data(), next.size());
    if (clipped.size() + kCut.size() <= max_bytes) whole = clipped.size();
    text.remove_prefix(bytes == 0 ? 1 : bytes);
  }
  return clipped;
}

absl::string_view WithoutByteOrderMark(absl::string_view text) {
  absl::ConsumePrefix(&text, "\xEF\xBB\xBF");
  return text;
}

}  // namespace baton
