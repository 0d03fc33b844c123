// The keywords of JSON Schema that structured output supports.
#ifndef BATON_COMMON_GRAMMAR_SCHEMA_KEYWORDS_H_
#define BATON_COMMON_GRAMMAR_SCHEMA_KEYWORDS_H_

#include <map>
#include <set>

#include "absl/strings/string_view.h"

namespace baton::grammar {

// Keywords that say nothing about which values are valid.
const std::set<absl::string_view>& Annotations();

// The keywords that constrain values of one type. "number" covers integers.
const std::map<absl::string_view, std::set<absl::string_view>>& KeywordsOfTypes();

// The values of `format`. "email" is not one of them: XGrammar's grammar for it has escapes that
// JSON does not have.
const std::set<absl::string_view>& Formats();

}  // namespace baton::grammar

#endif  // BATON_COMMON_GRAMMAR_SCHEMA_KEYWORDS_H_
