// Recurrent layers on all threads: the operations of recurrence.h.
#ifndef BATON_COMMON_BACKEND_CPU_RECURRENCE_H_
#define BATON_COMMON_BACKEND_CPU_RECURRENCE_H_

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "common/backend/backend.h"
#include "common/backend/cpu/cpu_batch.h"
#include "common/backend/cpu/kernels.h"
#include "common/backend/cpu/thread_pool.h"

namespace baton::backend {

// A task takes some units of one sequence's state through all of the sequence's tokens. It writes
// them to the pages where they are to be left, and goes on from there: a unit is a few KiB in one
// piece, which stay in the cache wherever they are. Behind the last such place it goes on in memory
// of its thread.
//
// Thread: as the backend that owns it.
class RecurrenceRunner {
 public:
  RecurrenceRunner(const Kernels& kernels, ThreadPool& pool) : kernels_(kernels), pool_(pool) {}

  void ShortConv(const CpuBatch& batch, const KvPool& kv, const ShortConvArgs& args);
  void GatedDelta(const CpuBatch& batch, const KvPool& kv, const GatedDeltaArgs& args);
  void StateSpace(const CpuBatch& batch, const KvPool& kv, const StateSpaceArgs& args);
  void Norm(const GatedNormArgs& args);
  void Gate(const OutputGateArgs& args);

 private:
  struct Task {
    int sequence = 0;
    int64_t first_unit = 0;
    int units = 0;
  };
  // The tokens of `run` are those of rows from `row` on.
  using Body = absl::FunctionRef<void(const StateRun& run, int64_t row, int64_t first_unit)>;

  // Calls body for all tokens and units of a plane, in the order of the tokens. Each `group` of
  // units, which divides the plane, is of one head: no call has units of two.
  void ForRuns(const CpuBatch& batch, const KvPool& kv, const StatePlane& plane, int64_t group,
               Body body);
  // Sets tasks_.
  void Plan(const CpuBatch& batch, const StatePlane& plane, int64_t group);
  // Points to memory of the thread for so many units.
  void FindOwnUnits(int thread, const StatePlane& plane, int count, float** units);

  const Kernels& kernels_;
  ThreadPool& pool_;
  std::vector<int> order_;  // sequences with rows, the longest first
  std::vector<Task> tasks_;
  std::vector<std::vector<float>> own_units_;  // by thread
};

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_RECURRENCE_H_
