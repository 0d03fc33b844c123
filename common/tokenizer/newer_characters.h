// Characters that Unicode 15.0, 15.1 and 16.0 added, by general category.
//
// Hugging Face `tokenizers` 0.23 matches with Unicode 16, Debian 12's PCRE2 with Unicode 14. A
// letter unknown to one of them splits words differently, so the missing characters are added to
// patterns. Categories never change for the characters PCRE2 knows; with a newer PCRE2 this adds
// nothing.
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
