// Device memory out of a backend's arena.
#ifndef BATON_COMMON_BACKEND_CUDA_RUNTIME_ARENA_BUFFER_H_
#define BATON_COMMON_BACKEND_CUDA_RUNTIME_ARENA_BUFFER_H_

#include <cstddef>

#include "common/backend/cuda/runtime/arena.h"
#include "common/backend/tensor.h"

namespace baton::backend::cuda {

// Gives its part back when it ends. Thread: as the arena, which must outlive it.
class ArenaBuffer final : public Buffer {
 public:
  ArenaBuffer(Arena& arena, std::byte* base, size_t offset, size_t size_bytes)
      : Buffer(base + offset, size_bytes), arena_(arena), offset_(offset) {}
  ~ArenaBuffer() override { arena_.Give(offset_); }

 private:
  Arena& arena_;
  const size_t offset_;
};

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_RUNTIME_ARENA_BUFFER_H_
