// GPT-2's printable name for every byte: '!'..'~', U+A1..U+AC and U+AE..U+FF name themselves, the
// other 68 bytes are named U+0100 and up, in order (gpt-2/src/encoder.py, bytes_to_unicode).
// Thread-safe.
#ifndef BATON_COMMON_TOKENIZER_BYTE_LEVEL_H_
#define BATON_COMMON_TOKENIZER_BYTE_LEVEL_H_

#include <string>

#include "absl/strings/string_view.h"

namespace baton::tokenizer {

// Returns the name of one byte, as UTF-8.
absl::string_view ByteName(unsigned char byte);

std::string BytesToNames(absl::string_view bytes);

// Appends the bytes that `names` spells; false, appending nothing, if a character is no byte's
// name. REQUIRES: valid UTF-8.
bool AppendNamedBytes(absl::string_view names, std::string* bytes);

}  // namespace baton::tokenizer

#endif  // BATON_COMMON_TOKENIZER_BYTE_LEVEL_H_
