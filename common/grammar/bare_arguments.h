// The arguments of a tool call as a model's format writes them: a JSON object, literals
// (literal_arguments.h), or a mark for each argument with strings that have no quotes.
#ifndef BATON_COMMON_GRAMMAR_BARE_ARGUMENTS_H_
#define BATON_COMMON_GRAMMAR_BARE_ARGUMENTS_H_

#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "baton/v1/inference.pb.h"

namespace baton::grammar {

using ArgumentStyle = v1::StructuredOutput::ToolCalls::ArgumentStyle;

bool IsJson(ArgumentStyle style);

// `parameters` in the form that XGrammar gets. NormalSchema's errors; SCHEMA_UNSUPPORTED also for a
// schema whose type is not object. Empty text is the schema of any object.
absl::StatusOr<std::string> NormalParameters(const std::string& parameters,
                                             absl::string_view field);

// The format (structural_tag.h) of arguments of this schema. `replaced`: a text of the format with
// its special tokens replaced. NormalParameters's errors; SCHEMA_UNSUPPORTED also for what the
// style cannot write, such as a string that a reader could not tell from what ends it or from
// another value. Without `constrains_text`, strings without quotes of which the schema says more
// than their type are SCHEMA_UNSUPPORTED, too, as they are on workers without a level.
absl::StatusOr<std::string> Arguments(
    const std::string& parameters, ArgumentStyle style, absl::string_view field,
    std::optional<int> max_whitespace,
    absl::FunctionRef<std::string(absl::string_view text)> replaced, bool constrains_text = true);

// Arguments's errors.
absl::Status CheckArguments(const std::string& parameters, ArgumentStyle style,
                            absl::string_view field, bool constrains_text = true);

}  // namespace baton::grammar

#endif  // BATON_COMMON_GRAMMAR_BARE_ARGUMENTS_H_
