// Calls of tools, in the text of a model's own format: what may be asked, and what XGrammar gets.
#ifndef BATON_COMMON_GRAMMAR_TOOL_CALL_GRAMMAR_H_
#define BATON_COMMON_GRAMMAR_TOOL_CALL_GRAMMAR_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "baton/v1/inference.pb.h"
#include "common/grammar/grammar.h"

namespace baton::grammar {

// The texts of a GrammarSpec of kToolCalls.
std::vector<std::string> ToolCallTexts(const v1::StructuredOutput::ToolCalls& calls);

// INVALID_ARGUMENT naming the field: SCHEMA_INVALID for what inference.proto does not allow, and
// the errors of NormalSchema for a tool's parameters.
absl::Status CheckToolCalls(absl::Span<const std::string> texts);

// A special token of the tokenizer.
struct SpecialToken {
  std::string text;
  int32_t id = 0;
};

// What stands for a special token in a grammar and in the vocabulary that XGrammar gets. No text
// has it: it begins with a byte that is not part of UTF-8.
std::string PrivateText(int32_t id);

struct ToolCallGrammar {
  std::string structural_tag;           // for XGrammar; not UTF-8 where it has private texts
  std::vector<int32_t> special_tokens;  // that answers may have
};

// Special tokens in the texts of the format become their private texts. There are at most
// `max_whitespace` characters of white space in a row between tokens of JSON; absent: any number.
// CheckToolCalls's errors; SCHEMA_INVALID also for a trigger that ends within a special token.
absl::StatusOr<ToolCallGrammar> MakeToolCallGrammar(absl::Span<const std::string> texts,
                                                    absl::Span<const SpecialToken> special_tokens,
                                                    std::optional<int> max_whitespace);

}  // namespace baton::grammar

#endif  // BATON_COMMON_GRAMMAR_TOOL_CALL_GRAMMAR_H_
