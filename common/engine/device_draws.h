// The draws that the device makes itself in a step: those whose logits the host does not need.
#ifndef BATON_COMMON_ENGINE_DEVICE_DRAWS_H_
#define BATON_COMMON_ENGINE_DEVICE_DRAWS_H_

#include <cstdint>
#include <vector>

#include "common/backend/backend.h"
#include "common/engine/batch.h"
#include "common/engine/engine.h"

namespace baton::engine {

// Draws from one tensor of logits. Thread: the one that runs the step.
class DeviceDraws {
 public:
  // True if only tokens are wanted of this row of the entry, no scores or log probabilities, and
  // any token may be drawn; so of all draws of an entry with drafts, or of none.
  static bool Suffice(const BatchEntry& entry, int row);

  // The draw behind the first `drafted` of the entry's drafts, after that behind one less. `entry`
  // and `result` must live until Collect, an entry without drafts until Enqueue. logit_row is a row
  // of the tensor passed to Enqueue, batch_row one of the step.
  void Add(const BatchEntry& entry, int drafted, int logit_row, int batch_row, StepResult& result);
  // Enqueues the draws added. What their entries refer to need not live longer.
  // REQUIRES: at most StepLimits' max_logit_rows draws, not collected yet.
  void Enqueue(backend::Backend& backend, const backend::Tensor& logits, int64_t token_count);
  // Waits, sets the results' tokens to what model::SampleMany returns for the first token_count
  // logits, and forgets the draws. False if there were none.
  bool Collect(backend::Backend& backend);
  // Enqueue and Collect, in as few calls of the backend as rows_per_call (rows per call) allows.
  bool Run(backend::Backend& backend, const backend::Tensor& logits, int64_t token_count,
           int rows_per_call);

  absl::Span<const backend::SampleRow> rows() const { return rows_; }

 private:
  struct Draw {
    size_t suppressed;  // tokens of the entry's history
    StepResult* result;
    const BatchEntry* entry;  // null: without drafts
    int drafted;
  };
  static void Finish(const Draw& draw, const backend::SampleOutcome& outcome);
  bool FinishAll();

  std::vector<backend::SampleRow> rows_;
  std::vector<Draw> draws_;  // one per row
  std::vector<backend::SampleOutcome> outcomes_;
};

}  // namespace baton::engine

#endif  // BATON_COMMON_ENGINE_DEVICE_DRAWS_H_
