// The characters that texts of a regular expression may have.
#ifndef BATON_COMMON_GRAMMAR_REGEX_CHARACTERS_H_
#define BATON_COMMON_GRAMMAR_REGEX_CHARACTERS_H_

#include "absl/strings/string_view.h"
#include "common/grammar/character_set.h"

namespace baton::grammar {

// All characters of the literals and classes of `regex`, so perhaps more than its texts have.
// REQUIRES: it is in the normal form of normal_regex.h.
CharacterSet CharactersOf(absl::string_view regex);

}  // namespace baton::grammar

#endif  // BATON_COMMON_GRAMMAR_REGEX_CHARACTERS_H_
