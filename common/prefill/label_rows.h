// Labels of several tokens: after a prompt, the tokens of each label but its last are rows that
// attend to the prompt and to the label so far. Labels share the prompt's whole blocks; each writes
// to copies of the prompt's partial last block, and to blocks behind it (copy-on-write).
//
// Thread: the loop's.
#ifndef BATON_COMMON_PREFILL_LABEL_ROWS_H_
#define BATON_COMMON_PREFILL_LABEL_ROWS_H_

#include <vector>

#include "absl/status/status.h"
#include "common/engine/engine.h"
#include "common/prefill/job.h"

namespace baton::prefill {

// How many blocks the labels of the job need beside those of its prompt. REQUIRES: job.scoring.
int LabelBlocks(const PrefillJob& job, int block_tokens);

// How many rows the labels of the job are, all but the first token of each. REQUIRES: job.scoring.
int LabelTokens(const PrefillJob& job);

// A job whose prompt has been computed, and what became of its labels.
struct LabelledJob {
  PrefillJob* job = nullptr;
  absl::Status status;
};

// Appends to the scoring->logprobs of jobs whose status is OK, which have the labels' first tokens,
// those of all other tokens of the labels. Runs as many steps as the engine's limits ask for;
// returns how many rows it computed. REQUIRES: scoring->label_blocks has LabelBlocks().
int ComputeLabelRows(engine::Engine& engine, std::vector<LabelledJob>& jobs);

}  // namespace baton::prefill

#endif  // BATON_COMMON_PREFILL_LABEL_ROWS_H_
