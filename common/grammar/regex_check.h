// The regular expressions that an answer can be constrained to: those of ECMA 262 without
// assertions, back references, flags and Unicode classes. XGrammar accepts more, with another
// meaning than a validator's; that is refused here by name.
#ifndef BATON_COMMON_GRAMMAR_REGEX_CHECK_H_
#define BATON_COMMON_GRAMMAR_REGEX_CHECK_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace baton::grammar {

enum class RegexUse {
  kAnswer,      // the answer is the text
  kJsonString,  // the text is inside a JSON string, so it must not have a quote or a backslash
};

// INVALID_ARGUMENT naming `field`: SCHEMA_INVALID for what is malformed or not UTF-8,
// SCHEMA_TOO_COMPLEX for more than kMaxRegexBytes, SCHEMA_UNSUPPORTED for the rest. An expression
// that passes may still be found malformed by the compiler.
absl::Status CheckRegex(absl::string_view regex, RegexUse use, absl::string_view field);

// The expression with each . as [^\n\r], which is what it means to a validator; to XGrammar it is
// any character. REQUIRES: CheckRegex passed.
std::string WithoutNewlines(absl::string_view regex);

}  // namespace baton::grammar

#endif  // BATON_COMMON_GRAMMAR_REGEX_CHECK_H_
