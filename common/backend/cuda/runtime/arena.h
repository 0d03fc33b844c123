// Suballocates the single device allocation that a worker makes at start.
#ifndef BATON_COMMON_BACKEND_CUDA_RUNTIME_ARENA_H_
#define BATON_COMMON_BACKEND_CUDA_RUNTIME_ARENA_H_

#include <cstddef>
#include <map>
#include <optional>

namespace baton::backend::cuda {

// First fit over free ranges; adjacent free ranges are joined. Deals only in offsets and never
// touches the memory itself. Not thread-safe.
class Arena {
 public:
  static constexpr size_t kAlignment = 256;

  explicit Arena(size_t size_bytes);

  // Allocates size_bytes, rounded up to a multiple of kAlignment, and returns its offset; nullopt
  // if no free range is long enough.
  std::optional<size_t> Take(size_t size_bytes);
  // Frees what Take returned. REQUIRES: `offset` is from Take and was not freed since.
  void Give(size_t offset);

  size_t size_bytes() const { return size_bytes_; }
  // The largest size that Take can currently satisfy.
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
