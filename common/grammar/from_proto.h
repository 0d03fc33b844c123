// Structured output as a request names it, to what a grammar is compiled from.
#ifndef BATON_COMMON_GRAMMAR_FROM_PROTO_H_
#define BATON_COMMON_GRAMMAR_FROM_PROTO_H_

#include "absl/status/status.h"
#include "baton/v1/inference.pb.h"
#include "common/grammar/grammar.h"

namespace baton::grammar {

// Without a kind it is kChoices without texts, which CheckSpec refuses.
GrammarSpec FromProto(const v1::StructuredOutput& structured_output);

// INVALID_ARGUMENT, NOT_WITH_STRUCTURED_OUTPUT, naming a field beside which the end of an answer is
// not the grammar's to decide.
absl::Status CheckBeside(bool beams, bool ignores_eos, bool min_tokens);

}  // namespace baton::grammar

#endif  // BATON_COMMON_GRAMMAR_FROM_PROTO_H_
