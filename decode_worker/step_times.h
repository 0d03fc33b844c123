// How long this worker's steps take: decode steps by the context they read, prompts by their cost.
// For the reports that routers choose by.
#ifndef BATON_DECODE_WORKER_STEP_TIMES_H_
#define BATON_DECODE_WORKER_STEP_TIMES_H_

#include <vector>

#include "absl/time/time.h"
#include "common/worker/prefill_cost.h"
#include "common/worker/watch_service.h"
#include "decode_worker/scheduler.h"
#include "decode_worker/sequence.h"

namespace baton::decode_worker {

// Thread: owned by the loop.
class StepTimes {
 public:
  // Steps that decode and compute prompts at once count for neither: which part was whose is not
  // known.
  void Took(const std::vector<Chunk>& chunks, absl::Duration took);

  // Fills in what is known, and what the sequences will still take: those whose prompts are
  // computed here.
  void Tell(const std::vector<Sequence*>& sequences, int max_tokens_per_step,
            worker::WorkerLoad* load) const;

 private:
  worker::PrefillCost cost_;
  // Of decode steps, older ones counting less.
  double steps_ = 0;
  double seconds_ = 0;
  double context_tokens_ = 0;
  int stalls_in_a_row_ = 0;
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_STEP_TIMES_H_
