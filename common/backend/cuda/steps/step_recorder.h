// Decode steps as CUDA graphs: one for each of few numbers of rows, and of blocks that attention's
// split kernel gets.
//
// The first step of a kind is enqueued kernel by kernel (libraries and drivers load what they
// need), the second is captured, all later ones are one launch. Batch sizes as vLLM's captured
// ones: dense where batches are small.
#ifndef BATON_COMMON_BACKEND_CUDA_STEPS_STEP_RECORDER_H_
#define BATON_COMMON_BACKEND_CUDA_STEPS_STEP_RECORDER_H_

#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "common/backend/backend.h"
#include "common/backend/cuda/runtime/runtime.h"
#include "common/backend/cuda/steps/batch_upload.h"

namespace baton::backend::cuda {

// What the kernels take for granted of a batch's numbers, since they don't check them.
struct BatchBounds {
  int64_t tokens = std::numeric_limits<int64_t>::max();  // rows of the embedding
  int blocks = std::numeric_limits<int>::max();          // of the pool
  int positions = std::numeric_limits<int>::max();       // of the rotation's table

  // Ends the process if the batch is beyond them.
  void Check(const CudaBatch& batch) const;
  void Narrow(const BatchBounds& other);
};

// Rows of the step that serves so many: 1, 2, 4, 8, 16, 24, 32, 48, 64, then each 32nd to 256, then
// each 64th; `most` at most. REQUIRES: 1 <= rows <= most.
int PaddedRows(int rows, int most);

// Blocks for each KV head that serve so many items: a power of two, so that not every length is a
// kind of its own; at most as many as keep the device busy, which then take turns.
int SplitBlocks(int items, int kv_heads, int multiprocessors);

// Of the batch that operations were last enqueued for.
struct StepState {
  // Of the last upload: what draws it took along, and where they are. Null: none.
  const SampleRow* draws = nullptr;
  const std::byte* d_draws = nullptr;
  BatchBounds bounds;                     // what they ask of it
  const int32_t* drawn_tokens = nullptr;  // its input tokens on the device, if some were drawn
};

// Thread: the backend's.
class CudaStepRecorder final : public StepRecorder {
 public:
  // state: the backend's.
  CudaStepRecorder(const StepLimits& limits, BatchUpload& upload, StepState& state,
                   Runtime& runtime, Stream stream);

  PaddedBatch Upload(const RaggedBatch& batch) override;
  std::vector<Kind> Kinds() const override;
  void Run(const DeviceBatch& batch, absl::FunctionRef<void()> enqueue) override;

 private:
  struct Recorded {
    BatchBounds bounds;
    std::unique_ptr<Graph> graph;  // null: it was enqueued once, or there is no memory for it
  };

  const int most_rows_;
  const StepLimits limits_;
  BatchUpload& upload_;
  StepState& state_;
  Runtime& runtime_;
  const Stream stream_;
  bool full_ = false;                                 // the device has no memory for more graphs
  std::map<std::pair<int, int>, Recorded> recorded_;  // by rows and split blocks
};

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_STEPS_STEP_RECORDER_H_
