// Values that a model writes without JSON's quotes around strings. A reader takes such a value from
// its first character to the mark that ends it. If the value can only be a string, it is that text.
// Else a text that is JSON of a type which the value may have is that JSON, and every other text is
// a string (chat/bare_calls.h). The formats here allow what is valid when it is read so.
//
// Stateless; thread-safe.
#ifndef BATON_COMMON_GRAMMAR_BARE_VALUES_H_
#define BATON_COMMON_GRAMMAR_BARE_VALUES_H_

#include <cstddef>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/json/json.h"

namespace baton::grammar {

// A schema, as NormalSchema has made it and as it was given. The latter has the lengths of strings.
struct BareSchema {
  const json::Value* normal;
  const json::Value* given;
};

// What values are read between.
struct BareEnd {
  absl::string_view text;     // ASCII; begins with a character that it does not have again
  absl::string_view in_tags;  // with its special tokens replaced (tool_call_grammar.h)
};

// The format (structural_tag.h) of a string of any text.
std::string BareText(const BareEnd& end);

// The format of values of `schema`, which may be strings. `root` is what references lead into.
// INVALID_ARGUMENT with what is not supported as its message: where the reader could not tell a
// string from what ends it, or from another value that is not valid. `bytes_left`: what formats may
// still take, of which this one's is taken; RESOURCE_EXHAUSTED if it is not enough. References let
// a small schema lead to the same values very often.
absl::StatusOr<std::string> BareValues(const BareSchema& schema, const BareSchema& root,
                                       const BareEnd& end, size_t* bytes_left);

// True if the schema says no more of values than their types, and so no more than the reader needs.
bool SaysTypesOnly(const json::Value& schema);

}  // namespace baton::grammar

#endif  // BATON_COMMON_GRAMMAR_BARE_VALUES_H_
