// The prompts of `baton bench judge`: a rubric that all items of a set share, and the items.
#ifndef BATON_CLI_BENCH_JUDGE_ITEMS_H_
#define BATON_CLI_BENCH_JUDGE_ITEMS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cli/bench/dataset.h"
#include "cli/random.h"

namespace baton::cli {

struct JudgeShape {
  int shared_tokens = 1500;  // of the rubric
  int own_tokens = 500;      // of an item, behind the rubric
  bool texts = true;         // prompts are texts, else token ids
};

struct JudgeSet {
  BenchPrompt rubric;
  std::vector<BenchPrompt> items;  // each begins with the rubric
};

// Returns a new rubric with `items` new items, drawn from `random`. Token ids are below
// `vocab_size`. Texts have exactly the lengths of `shape` as `count` counts them, rubric and item
// together as one text; both are made of words that no language has. `count` may be null without
// texts. Errors are those of `count`, or INTERNAL if no text of this length was found.
absl::StatusOr<JudgeSet> MakeJudgeSet(const JudgeShape& shape, int items, int vocab_size,
                                      const TokenCounter& count, Random* random);

}  // namespace baton::cli

#endif  // BATON_CLI_BENCH_JUDGE_ITEMS_H_
