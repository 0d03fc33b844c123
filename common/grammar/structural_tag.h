// Parts of what XGrammar reads as a structural tag, which is JSON. Texts may have private texts
// (tool_call_grammar.h): its parser of JSON passes on bytes that are not UTF-8.
//
// Stateless; thread-safe.
#ifndef BATON_COMMON_GRAMMAR_STRUCTURAL_TAG_H_
#define BATON_COMMON_GRAMMAR_STRUCTURAL_TAG_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace baton::grammar {

std::string JsonString(absl::string_view text);
std::string JsonStrings(absl::Span<const std::string> texts);

// Formats: a text; one after the other; one of several; one or nothing; any number of one.
std::string Constant(absl::string_view text);
std::string Sequence(absl::Span<const std::string> formats);
std::string AnyOf(absl::Span<const std::string> formats);
std::string Optional(absl::string_view format);
std::string Star(absl::string_view format);
// `content` between two texts.
std::string Tag(absl::string_view begin, absl::string_view content, absl::string_view end);
// JSON of a schema in its normal form; at most `max_whitespace` characters of white space in a row
// between its tokens.
std::string JsonOfSchema(absl::string_view schema, std::optional<int> max_whitespace);

}  // namespace baton::grammar

#endif  // BATON_COMMON_GRAMMAR_STRUCTURAL_TAG_H_
