// The regular expressions that an answer can be constrained to: those of ECMA 262 without
// assertions, back references, flags and Unicode classes. XGrammar accepts more, with another
// meaning than a validator's; that is refused here by name.
//
// XGrammar reads what is left with two parsers, prints it for a third one, and runs it in two ways,
// and these disagree: to one of them \x22a is one character. So it gets a normal form, in which
// they agree:
// - a character stands for itself, in UTF-8. Punctuation that has a meaning has a backslash; a line
//   feed and a carriage return are \n and \r. A zero byte is \u0000;
// - a class is its characters in ascending order, but a ^ in first place is the last one. One with
//   characters beyond ASCII is the negation of all others, in ranges that end where ASCII ends:
//   where XGrammar looks ahead, it compares the last byte of a range's ends with a character of
//   ASCII, so what is listed beyond ASCII may forbid, but not allow, such a character too many.
//   Surrogates, which are in no text, are among the others, as \ud800 and \udfff;
// - groups are plain, x? is x{0,1}, and no repetition is lazy, which would not change the language.
#ifndef BATON_COMMON_GRAMMAR_NORMAL_REGEX_H_
#define BATON_COMMON_GRAMMAR_NORMAL_REGEX_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/grammar/character_set.h"

namespace baton::grammar {

enum class RegexUse {
  kAnswer,      // the answer is the text
  kJsonString,  // the text is inside a JSON string, so it must not have a quote or a backslash
};

// The normal form, an expression of the same kind. INVALID_ARGUMENT naming `field`: SCHEMA_INVALID
// for what is malformed or not UTF-8, SCHEMA_TOO_COMPLEX for more than kMaxRegexBytes,
// SCHEMA_UNSUPPORTED for the rest. Messages begin with `place`, if there is one.
absl::StatusOr<std::string> NormalRegex(absl::string_view regex, RegexUse use,
                                        absl::string_view field, absl::string_view place = "");

// The class of these characters in normal form. REQUIRES: not all of them are surrogates.
std::string NormalClass(const CharacterSet& set);

// What a JSON string holds only escaped: the quote, the backslash and control characters.
const CharacterSet& EscapedInJson();

}  // namespace baton::grammar

#endif  // BATON_COMMON_GRAMMAR_NORMAL_REGEX_H_
