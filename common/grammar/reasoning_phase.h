// What a model may write before the constrained part of its answer: its reasoning, which is free
// but for the marks around it (StructuredOutput.Reasoning in inference.proto).
#ifndef BATON_COMMON_GRAMMAR_REASONING_PHASE_H_
#define BATON_COMMON_GRAMMAR_REASONING_PHASE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "common/grammar/grammar.h"

namespace baton::grammar {

// INVALID_ARGUMENT naming the field: SCHEMA_INVALID, SCHEMA_TOO_COMPLEX.
absl::Status CheckReasoning(const GrammarSpec::Reasoning& reasoning);

// What the phase has to know of the tokens of a model.
struct ReasoningVocabulary {
  // The bytes that each token adds to a text; of a special token, those that spell it; empty for
  // tokens that never come in reasoning, as those that end an answer.
  std::vector<std::string> texts;
  std::vector<bool> special;
};

// One thread.
class ReasoningPhase {
 public:
  struct State {
    enum class Place : uint8_t {
      kBegin,  // the answer may be about to begin with its reasoning
      kReasoning,
      kSpace,  // white space behind it
      kConstrained,
    };
    Place place = Place::kConstrained;
    // Bytes: of begin or end that the text ends with, or of white space.
    size_t matched = 0;
  };

  // `vocabulary` must outlive the phase. REQUIRES: CheckReasoning accepts the texts.
  ReasoningPhase(GrammarSpec::Reasoning reasoning, const ReasoningVocabulary& vocabulary);

  State Start() const;
  // The state after one more token of kBegin, kReasoning or kSpace; nullopt if the token cannot
  // come there. In kBegin and kSpace it may still be a token of the constrained part.
  std::optional<State> After(const State& state, int32_t token) const;
  // One bit for each token: those for which After has a state. Valid until the next call; the most
  // recent ones are kept.
  const std::vector<uint32_t>& Mask(const State& state);

 private:
  // The bytes of `end` that a text ends with after one more byte.
  size_t Next(size_t matched, char byte) const;
  std::optional<size_t> AfterReasoning(size_t matched, int32_t token) const;

  const GrammarSpec::Reasoning reasoning_;
  const ReasoningVocabulary& vocabulary_;
  std::vector<size_t> fallback_;  // the failure function of Knuth, Morris and Pratt
  // From so many bytes of `end` on, the rest of it follows: its first special token is there.
  size_t decided_ = std::string::npos;
  std::vector<std::vector<uint32_t>> masks_;  // empty: not kept
  int kept_masks_ = 0;
};

}  // namespace baton::grammar

#endif  // BATON_COMMON_GRAMMAR_REASONING_PHASE_H_
