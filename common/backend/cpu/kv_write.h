// Between the products of a layer's input and attention, on all threads: queries rotated by
// position, K and V written to their slots of the pool.
#ifndef BATON_COMMON_BACKEND_CPU_KV_WRITE_H_
#define BATON_COMMON_BACKEND_CPU_KV_WRITE_H_

#include <cstdint>
#include <vector>

#include "common/backend/backend.h"
#include "common/backend/cpu/cpu_batch.h"
#include "common/backend/cpu/kernels.h"
#include "common/backend/cpu/thread_pool.h"

namespace baton::backend {

class CpuRopeTable final : public RopeTable {
 public:
  int half = 0;  // rotary_dim / 2
  int positions = 0;
  std::vector<float> cosine;       // [positions, half]
  std::vector<float> sine;         // [positions, half]
  std::vector<float> query_scale;  // [positions], or none
};

// Backend::RopeWriteKv and Backend::WriteLatentKv. Thread: as the backend that owns it.
class KvWriter {
 public:
  KvWriter(const Kernels& kernels, ThreadPool& pool) : kernels_(kernels), pool_(pool) {}

  void Write(const CpuBatch& batch, const KvPool& kv, const RopeWriteArgs& args);
  void Write(const CpuBatch& batch, const KvPool& kv, const LatentWriteArgs& args);

 private:
  // Where a row's token has its place.
  struct Slot {
    int position = 0;
    int in_block = 0;
    std::byte* chunk = nullptr;
  };
  Slot SlotOf(const CpuBatch& batch, const KvPool& kv, int layer, int64_t row) const;
  void Rotate(const CpuRopeTable& rope, int position, float* head) const;
  // K or V of one head, [head_dim]. head: of the chunk.
  void WriteHead(const KvPool& kv, const Slot& slot, int head, const float* values) const;
  void WriteRow(const CpuBatch& batch, const KvPool& kv, const RopeWriteArgs& args,
                int64_t row) const;
  void WriteRow(const CpuBatch& batch, const KvPool& kv, const LatentWriteArgs& args,
                int64_t row) const;

  const Kernels& kernels_;
  ThreadPool& pool_;
};

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_KV_WRITE_H_
