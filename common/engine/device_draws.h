// The draws of a step that the device makes itself: those where nobody wants to see the logits.
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

  // `entry` and `result` must live until Run. logit_row: of the tensor that Run is given.
  void Add(const BatchEntry& entry, int logit_row, StepResult& result);
  // Sets the results' tokens, to what model::SampleMany gives of the first token_count logits, in
  // as few calls as rows_a_call allows, and forgets what was added. False if there was nothing.
  bool Run(backend::Backend& backend, const backend::Tensor& logits, int64_t token_count,
           int rows_a_call);

 private:
  struct Draw {
    const BatchEntry* entry;
    StepResult* result;
  };
  void Finish(const Draw& draw, const backend::SampleOutcome& outcome);

  std::vector<backend::SampleRow> rows_;
  std::vector<Draw> draws_;  // one a row
  std::vector<backend::SampleOutcome> outcomes_;
};

}  // namespace baton::engine

#endif  // BATON_COMMON_ENGINE_DEVICE_DRAWS_H_
