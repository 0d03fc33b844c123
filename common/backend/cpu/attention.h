// Paged causal attention on all threads.
#ifndef BATON_COMMON_BACKEND_CPU_ATTENTION_H_
#define BATON_COMMON_BACKEND_CPU_ATTENTION_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "common/backend/backend.h"
#include "common/backend/cpu/cpu_batch.h"
#include "common/backend/cpu/kernels.h"
#include "common/backend/cpu/thread_pool.h"

namespace baton::backend {

// A tile is some rows of one sequence with one KV head and its query heads: K and V are read once
// for all of them. Keys are split at multiples of 256 positions. Each split has its own softmax,
// and splits are always combined in order, so a row's result is the same to the bit whatever its
// tile and however many threads run. A large tile's splits run on several threads; the last thread
// to finish combines them.
//
// Not thread-safe: one Run at a time.
class AttentionRunner {
 public:
  // Query heads of a KV head: a row's are of one tile.
  static constexpr int kMostGroup = kTileColumns;

  // With `bf16`, queries and softmax probabilities may be rounded to bfloat16, as activations are.
  AttentionRunner(const Kernels& kernels, bool bf16, ThreadPool& pool)
      : kernels_(kernels), bf16_(bf16), pool_(pool) {}

  void Run(const CpuBatch& batch, const KvPool& kv, const AttentionArgs& args);

 private:
  struct Tile {
    int sequence;
    int kv_head;
    int first_row;  // of the sequence's rows
    int row_count;
    int first_split, end_split;
    int64_t first_partial;  // in partials_, if several threads share the tile
    int counter;            // in unfinished_, likewise
  };
  struct Task {
    int tile;
    int first_split, end_split;
    bool shared;
  };
  // One thread's memory.
  struct Workspace {
    std::vector<std::byte> bytes;
    std::byte* aligned = nullptr;
  };
  struct Step;  // what all tasks of one call share

  void PlanTiles(const Step& step);
  void PlanTasks(const Step& step);
  void RunTask(const Step& step, const Task& task, int thread);
  void AttendSplit(const Step& step, const Tile& tile, int split, const void* query, void* scratch,
                   const SplitResult& result);
  void Finish(const Step& step, const Tile& tile, const SplitResult& total);
  SplitResult PartialOf(const Step& step, const Tile& tile, int split);

  const Kernels& kernels_;
  const bool bf16_;
  ThreadPool& pool_;
  std::vector<Tile> tiles_;
  std::vector<Task> tasks_;
  std::vector<Workspace> workspaces_;
  std::vector<float> partials_;
  std::vector<std::atomic<int>> unfinished_;
};

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_ATTENTION_H_
