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

// Formats: any text without those that are excluded; a text; the empty text; one after the other;
// one of several; one or nothing; any number of one.
std::string AnyText(absl::Span<const std::string> excluded);
std::string Constant(absl::string_view text);
std::string Nothing();
std::string Sequence(absl::Span<const std::string> formats);
std::string AnyOf(absl::Span<const std::string> formats);
std::string Optional(absl::string_view format);
std::string Star(absl::string_view format);
// `content` between two texts.
std::string Tag(absl::string_view begin, absl::string_view content, absl::string_view end);
// JSON of a schema in its normal form; at most `max_whitespace` characters of white space in a row
// between its tokens.
std::string JsonOfSchema(absl::string_view schema, std::optional<int> max_whitespace);

// The format of an EBNF grammar: `root` is the body of its first rule, `rules` has the others.
std::string GrammarOf(absl::string_view root, absl::string_view rules = "");

// Parts of EBNF: a text, a class of ASCII or the negation of one, and a regular expression in the
// normal form of normal_regex.h.
std::string EbnfString(absl::string_view text);
std::string EbnfClass(absl::string_view characters, bool negated);
std::string EbnfRegex(absl::string_view pattern);

}  // namespace baton::grammar

#endif  // BATON_COMMON_GRAMMAR_STRUCTURAL_TAG_H_
