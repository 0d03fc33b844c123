// Characters that Unicode 15.0, 15.1 and 16.0 added, by general category.
//
// Hugging Face `tokenizers` 0.23 matches with Unicode 16, Debian 12's PCRE2 with Unicode 14. A
// letter that only one of them knows would split words differently, so the tokenizer's patterns are
// extended with the missing characters. No character of Unicode 14 changed its category in these
// versions. With a newer PCRE2 the added characters are redundant and harmless.
#ifndef BATON_COMMON_TOKENIZER_NEWER_CHARACTERS_H_
#define BATON_COMMON_TOKENIZER_NEWER_CHARACTERS_H_

#include <string>

#include "absl/strings/string_view.h"

namespace baton::tokenizer {

// Returns the contents of a PCRE2 class with all newer characters of a general category, such as
// "Lu", or of a group of them, such as "L". Empty for other names. Thread-safe.
std::string NewerCharacters(absl::string_view category);

// Returns the general category of a newer character, such as "Lu"; empty for all others.
absl::string_view NewerCategory(char32_t c);

}  // namespace baton::tokenizer

#endif  // BATON_COMMON_TOKENIZER_NEWER_CHARACTERS_H_
