// The arguments of a tool call as literals of Python, or as Gemma 4 writes objects: strings have
// quotes, but not, or not only, those of JSON.
//
// Stateless; thread-safe.
#ifndef BATON_COMMON_GRAMMAR_LITERAL_ARGUMENTS_H_
#define BATON_COMMON_GRAMMAR_LITERAL_ARGUMENTS_H_

#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "baton/v1/inference.pb.h"
#include "common/json/json.h"

namespace baton::grammar {

// True for the styles of this file.
bool IsLiteral(v1::StructuredOutput::ToolCalls::ArgumentStyle style);

// The format (structural_tag.h) of arguments that are valid against `schema`, which is in the form
// that NormalSchema makes and describes objects. `replaced`: as of Arguments (bare_arguments.h).
// SCHEMA_UNSUPPORTED, naming `field`, for what the style cannot write, and for what no value is
// valid against, where that is seen.
absl::StatusOr<std::string> LiteralArguments(
    const json::Value& schema, v1::StructuredOutput::ToolCalls::ArgumentStyle style,
    absl::string_view field, absl::FunctionRef<std::string(absl::string_view text)> replaced);

}  // namespace baton::grammar

#endif  // BATON_COMMON_GRAMMAR_LITERAL_ARGUMENTS_H_
