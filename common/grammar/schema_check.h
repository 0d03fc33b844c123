// What may be asked of structured output, checked before anything is compiled: bounds, and JSON
// schemas of keywords that XGrammar enforces as a validator of JSON Schema 2020-12 reads them. A
// keyword that it would ignore or weaken is refused by name.
#ifndef BATON_COMMON_GRAMMAR_SCHEMA_CHECK_H_
#define BATON_COMMON_GRAMMAR_SCHEMA_CHECK_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/grammar/grammar.h"

namespace baton::grammar {

// INVALID_ARGUMENT naming the field: SCHEMA_INVALID for what is no schema, SCHEMA_UNSUPPORTED with
// the place and the keyword, SCHEMA_TOO_COMPLEX for what is above a bound of grammar.h.
absl::Status CheckSpec(const GrammarSpec& spec);

// The same schema in the form that XGrammar gets, with CheckSpec's errors, which name `field`.
// Patterns are in the normal form of normal_regex.h, and lengths of strings are patterns.
absl::StatusOr<std::string> NormalSchema(const std::string& schema,
                                         absl::string_view field = "structured_output.json_schema");

}  // namespace baton::grammar

#endif  // BATON_COMMON_GRAMMAR_SCHEMA_CHECK_H_
