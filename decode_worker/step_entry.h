// Converts a sequence's share of a step to the engine's BatchEntry.
#ifndef BATON_DECODE_WORKER_STEP_ENTRY_H_
#define BATON_DECODE_WORKER_STEP_ENTRY_H_

#include "common/engine/batch.h"
#include "decode_worker/scheduler.h"

namespace baton::decode_worker {

// Refers to the chunk, its sequence and its call, which must stay as they are until the step is
// over.
engine::BatchEntry MakeEntry(const Chunk& chunk, int block_tokens);

// The same for a chunk with drawn_by, which PlanAhead() planned.
engine::BatchEntry MakeEntryAhead(const Chunk& chunk, int block_tokens);

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_STEP_ENTRY_H_
