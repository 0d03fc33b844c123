// Which of a prompt's tokens come from which part of it, for Usage.by_source.
#ifndef BATON_ROUTER_REQUEST_PROMPT_SOURCES_H_
#define BATON_ROUTER_REQUEST_PROMPT_SOURCES_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "baton/v1/inference.pb.h"
#include "common/tokenizer/tokenizer.h"

namespace baton::router {

// A run of the prompt's tokens, in their order.
struct SourceRun {
  v1::PromptSource source = v1::PROMPT_SOURCE_UNSPECIFIED;
  int tokens = 0;
};

// INVALID_ARGUMENT, BAD_SEGMENTS: the segments do not cover the prompt, or one ends within a
// character. OUT_OF_RANGE: too many, or an unknown source. No segments are fine.
absl::Status CheckSegments(const v1::GenerateRequest& request);

// Says which of the prompt's `tokens` are of which of the request's segments; returns no runs
// without segments. The runs' tokens add up to those of the prompt. A token of a text counts for
// the segment with its first byte. Special tokens that the tokenizer puts before the text count for
// the first segment, those behind it for the last. Where a tokenizer changes the text (such as to
// NFC), positions are scaled to the length of its tokens' text. REQUIRES: CheckSegments passed; a
// text prompt.
absl::StatusOr<std::vector<SourceRun>> SourcesOf(const v1::GenerateRequest& request,
                                                 absl::Span<const int32_t> tokens,
                                                 const tokenizer::Tokenizer& tokenizer);

// Takes `count` tokens away, from the one at `first` on. REQUIRES: there are so many.
void DropTokens(int first, int count, std::vector<SourceRun>* runs);

// Replaces usage->by_source: the prompt's first `cached` tokens were cached. Nothing without runs.
void FillBySource(absl::Span<const SourceRun> runs, int cached, v1::Usage* usage);

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_PROMPT_SOURCES_H_
