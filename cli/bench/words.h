// Random prompts as texts, for a server that takes only texts and counts no tokens beforehand.
#ifndef BATON_CLI_BENCH_WORDS_H_
#define BATON_CLI_BENCH_WORDS_H_

#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "cli/bench/dataset.h"

namespace baton::cli {

// Lower-case words, each different, so common in English that a tokenizer of a language model
// usually has each, with the space before it, as one token.
absl::Span<const absl::string_view> CommonWords();

// Gives each prompt the text whose words, joined by spaces, stand for its token ids: prompts that
// begin with equal ids begin with equal texts, and a prompt of n ids has n words. The ids stay:
// their number is the prompt's length where the server reports none. REQUIRES: ids are below the
// number of CommonWords().
void SpellPrompts(std::vector<BenchPrompt>* prompts);

}  // namespace baton::cli

#endif  // BATON_CLI_BENCH_WORDS_H_
