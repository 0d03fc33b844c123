// Allocation of parts of the one piece of device memory that a worker takes at start.
#ifndef BATON_COMMON_BACKEND_CUDA_RUNTIME_ARENA_H_
#define BATON_COMMON_BACKEND_CUDA_RUNTIME_ARENA_H_

#include <cstddef>
#include <map>
#include <optional>

namespace baton::backend::cuda {

// First fit over free ranges; adjacent free ranges are joined. Works on offsets, without the
// memory. Thread: one.
class Arena {
 public:
  static constexpr size_t kAlignment = 256;

  explicit Arena(size_t size_bytes);

  // The offset of size_bytes, rounded up to kAlignment; nullopt if no free range is that long.
  std::optional<size_t> Take(size_t size_bytes);
  // REQUIRES: `offset` is from Take and is taken.
  void Give(size_t offset);

  size_t size_bytes() const { return size_bytes_; }
  // The longest range that Take can give.
  size_t LargestFree() const;
  size_t used_bytes() const { return used_bytes_; }

 private:
  const size_t size_bytes_;
  size_t used_bytes_ = 0;
  std::map<size_t, size_t> free_;  // offset -> size
  std::map<size_t, size_t> taken_;
};

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_RUNTIME_ARENA_H_
