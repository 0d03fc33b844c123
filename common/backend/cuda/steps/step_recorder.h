// Decode steps as CUDA graphs: one for each number of padded rows and of thread blocks of
// attention's split kernel, which differs from one kind of heads to the next.
//
// The first step of a kind is enqueued kernel by kernel (libraries and drivers load what they
// need), the second is captured, later ones are one launch. The batch sizes are like those that
// vLLM captures: dense where batches are small.
#ifndef BATON_COMMON_BACKEND_CUDA_STEPS_STEP_RECORDER_H_
#define BATON_COMMON_BACKEND_CUDA_STEPS_STEP_RECORDER_H_

#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "common/backend/backend.h"
#include "common/backend/cuda/runtime/runtime.h"
#include "common/backend/cuda/steps/batch_upload.h"

namespace baton::backend::cuda {

// Bounds of a batch's numbers, which the kernels do not check.
struct BatchBounds {
  int64_t tokens = std::numeric_limits<int64_t>::max();  // rows of the embedding
  int blocks = std::numeric_limits<int>::max();          // of the pool
  int positions = std::numeric_limits<int>::max();       // of the rotation's table

  // Ends the process if the batch exceeds them.
  void Check(const CudaBatch& batch) const;
  void Narrow(const BatchBounds& other);
};

// The rows to which `rows` are padded: 1, 2, 4, 8, 16, 24, 32, 48, 64, then each 32nd to 256, then
// each 64th; `most` at most. REQUIRES: 1 <= rows <= most.
int PaddedRows(int rows, int most);

// Thread blocks for each KV head for so many items: a power of two, so that few lengths differ in
// their graph; at most as many as keep the device busy, each of which takes several items.
int SplitBlocks(int items, int kv_heads, int multiprocessors);

// State of the last enqueued step.
struct StepState {
  // The draws that were uploaded with the batch, and their address; null: none.
  const SampleRow* draws = nullptr;
  const std::byte* d_draws = nullptr;
  BatchBounds bounds;                     // that its operations require
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
  // Split blocks of each kind of heads for so many splits of all rows.
  std::vector<int> BlocksOf(int splits) const;
  // The device has no memory for another graph, or to launch one: logged once.
  void NoteFull();

  struct Recorded {
    BatchBounds bounds;
    std::unique_ptr<Graph> graph;  // null: enqueued once so far, or no memory for it
  };

  const int most_rows_;
  const StepLimits limits_;
  const std::vector<AttentionHeads> heads_;
  BatchUpload& upload_;
  StepState& state_;
  Runtime& runtime_;
  const Stream stream_;
  bool full_ = false;
  std::map<std::vector<int>, Recorded>
      recorded_;  // by rows, and split blocks of each kind of heads
};

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_STEPS_STEP_RECORDER_H_
