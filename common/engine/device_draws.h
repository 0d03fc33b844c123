// The draws of a step that the device makes itself: those whose logits are not needed on the host.
#ifndef BATON_COMMON_ENGINE_DEVICE_DRAWS_H_
#define BATON_COMMON_ENGINE_DEVICE_DRAWS_H_

#include <cstdint>
#include <vector>

#include "common/backend/backend.h"
#include "common/engine/batch.h"
#include "common/engine/engine.h"

namespace baton::engine {

// Of one tensor of logits. Thread: the step's.
class DeviceDraws {
 public:
  // Whether all that is wanted of this row of the entry are tokens.
  static bool Suffice(const BatchEntry& entry, int row);

  // `result` must live until Collect. logit_row: of the tensor that Enqueue is given; batch_row: of
  // the step.
  void Add(const BatchEntry& entry, int logit_row, int batch_row, StepResult& result);
  // Enqueues what was added. What the entries refer to is not looked at any more.
  // REQUIRES: at most StepLimits' max_logit_rows draws, not collected yet.
  void Enqueue(backend::Backend& backend, const backend::Tensor& logits, int64_t token_count);
  // Waits, sets the results' tokens to what model::SampleMany gives of the first token_count
  // logits, and forgets what was added. False if there was nothing.
  bool Collect(backend::Backend& backend);
  // Both, in as few calls of the backend as rows_a_call allows.
  bool Run(backend::Backend& backend, const backend::Tensor& logits, int64_t token_count,
           int rows_a_call);

  absl::Span<const backend::SampleRow> rows() const { return rows_; }

 private:
  struct Draw {
    size_t suppressed;  // tokens of the entry's history
    StepResult* result;
  };
  static void Finish(const Draw& draw, const backend::SampleOutcome& outcome);
  bool FinishAll();

  std::vector<backend::SampleRow> rows_;
  std::vector<Draw> draws_;  // one a row
  std::vector<backend::SampleOutcome> outcomes_;
};

}  // namespace baton::engine

#endif  // BATON_COMMON_ENGINE_DEVICE_DRAWS_H_
