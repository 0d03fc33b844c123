// Prefetch beside attention's products. For kernels_*.cc only; see simd16.h.
#ifndef BATON_COMMON_BACKEND_CPU_LINES_AHEAD_H_
#define BATON_COMMON_BACKEND_CPU_LINES_AHEAD_H_

#include <cstdint>

#include "common/backend/cpu/simd16.h"

namespace baton::backend {
namespace {

// Asks for K and V of other blocks, a line at a time, while a block is computed: what is needed
// next, into the first-level cache, then what is needed later, into the second. All at once would
// fill the queue of cache misses, behind which every load waits. Blocks lie apart, so the
// hardware's prefetch stops at the end of each; it needs no help within a large one.
class LinesAhead {
 public:
  static constexpr int64_t kLine = 64;
  // `bytes` of each; null: none.
  BATON_INLINE LinesAhead(const void* next, const void* later, int64_t bytes)
      : next_(static_cast<const char*>(next)),
        later_(static_cast<const char*>(later)),
        next_lines_(Lines(next, bytes)),
        later_lines_(Lines(later, bytes)) {}
  BATON_INLINE void Ask() {
    if (next_lines_ > 0) {
      __builtin_prefetch(next_, 0, 3);
      next_ += kLine;
      --next_lines_;
    } else if (later_lines_ > 0) {
      __builtin_prefetch(later_, 0, 2);
      later_ += kLine;
      --later_lines_;
    }
  }

 private:
  static BATON_INLINE int64_t Lines(const void* block, int64_t bytes) {
    constexpr int64_t kMostBytes = 16 << 10;
    return block == nullptr || bytes > kMostBytes ? 0 : (bytes + kLine - 1) / kLine;
  }
  const char* next_;
  const char* later_;
  int64_t next_lines_, later_lines_;
};

}  // namespace
}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_LINES_AHEAD_H_
