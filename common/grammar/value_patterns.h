// Regular expressions of values that JSON schemas describe, in the normal form of normal_regex.h:
// for styles of arguments that are no JSON, whose values XGrammar does not know.
//
// Stateless; thread-safe.
#ifndef BATON_COMMON_GRAMMAR_VALUE_PATTERNS_H_
#define BATON_COMMON_GRAMMAR_VALUE_PATTERNS_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "common/json/json.h"

namespace baton::grammar {

// Whole numbers from `least` to `most`, as JSON writes them; absent: without that bound, but with
// at most 308 digits, as many as a double can have. Nullopt if there are none. REQUIRES: both are
// within 2^53 of 0.
std::optional<std::string> IntegerPattern(std::optional<int64_t> least,
                                          std::optional<int64_t> most);

// The same between the bounds of `schema`, whose type is integer.
std::optional<std::string> IntegerPattern(const json::Value& schema);

// Numbers as JSON writes them, with at most 209 digits before the point, and two of an exponent: a
// double has the magnitude of each.
const std::string& NumberPattern();

// What a string of this `format` is. REQUIRES: it is one of Formats() (schema_keywords.h).
const std::string& FormatPattern(absl::string_view format);

}  // namespace baton::grammar

#endif  // BATON_COMMON_GRAMMAR_VALUE_PATTERNS_H_
