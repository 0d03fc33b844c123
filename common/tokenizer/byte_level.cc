#include "common/tokenizer/byte_level.h"

#include <array>
#include <cstdint>

#include "common/base/utf8.h"
#include "common/tokenizer/unicode.h"

namespace baton::tokenizer {
namespace {

constexpr char32_t kLastName = 0x143;
constexpr int16_t kNoByte = -1;

bool NamesItself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct Names {
  std::array<std::string, 256> of_byte;
  std::array<int16_t, kLastName + 1> byte_of;

  Names() {
    byte_of.fill(kNoByte);
    char32_t next_name = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const char32_t name = NamesItself(byte) ? static_cast<char32_t>(byte) : next_name++;
      AppendUtf8(name, &of_byte[byte]);
      byte_of[name] = static_cast<int16_t>(byte);
    }
  }
};

const Names& AllNames() {
  static const Names& names = *new Names;
  return names;
}

}  // namespace

absl::string_view ByteName(unsigned char byte) { return AllNames().of_byte[byte]; }

std::string BytesToNames(absl::string_view bytes) {
  std::string names;
  names.reserve(bytes.size() * 2);
  for (const char byte : bytes) names.append(AllNames().of_byte[static_cast<unsigned char>(byte)]);
  return names;
}

bool AppendNamedBytes(absl::string_view names, std::string* bytes) {
  const size_t size_before = bytes->size();
  const Names& table = AllNames();
  for (size_t i = 0; i < names.size(); i += Utf8CharBytes(names[i])) {
    const char32_t name = FirstChar(names.substr(i));
    if (name > kLastName || table.byte_of[name] == kNoByte) {
      bytes->resize(size_before);
      return false;
    }
    bytes->push_back(static_cast<char>(table.byte_of[name]));
  }
  return true;
}

}  // namespace baton::tokenizer
