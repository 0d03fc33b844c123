// Who read and wrote each word of memory, to find what PTX's memory model leaves undefined:
// accesses of two threads to the same bytes, one of them a write, that no barrier, fence or atomic
// orders. PTX ISA 9.0, "Memory Consistency Model", for programs that use bar.sync, membar and
// relaxed atomics only.
//
// Within a block, bar.sync orders. Between blocks, a write is released by a fence (membar.gl) of
// its thread, or of another thread of the block after a barrier, that an atomic follows, in the
// thread of the fence or after a barrier. It is acquired by an atomic of the reader's block that
// comes later and is followed by a fence, each in the reading thread or before a barrier that it
// has passed. What is written by plain stores is thus found to be read too early
// even if the interpreter's order of execution happens to give the right value. Threads of a block
// may write the same value without order (CUDA C++ Programming Guide: one of the writes is
// performed).
#ifndef BATON_TESTS_COMMON_BACKEND_CUDA_PTX_HISTORY_H_
#define BATON_TESTS_COMMON_BACKEND_CUDA_PTX_HISTORY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

namespace baton::backend::cuda::ptx {

inline constexpr uint16_t kManyThreads = 0xffff;

enum class Access : uint8_t {
  kRead,
  kReadOnly,  // ld.global.nc: nothing may write it while the kernel runs
  kWrite,
  kWriteSame,  // of what is there already: one of several threads' writes is performed, all the
               // same
  kAtomic,
};

// A block between two of its barriers.
struct Phase {
  uint32_t block = 0;  // by start
  uint32_t epoch = 0;
};

struct Mark {  // a fence or an atomic
  uint16_t thread = 0;
  uint32_t epoch = 0;
  uint32_t time = 0;
};

struct BlockMarks {
  std::vector<Mark> fences, atomics;
};

// Of a launch.
class History {
 public:
  History() : phases_(1) {}

  uint32_t StartBlock();  // its number
  uint32_t StartPhase(uint32_t block, uint32_t epoch);
  void Fence(uint32_t phase, uint16_t thread, uint32_t time) {
    blocks_[phases_[phase].block].fences.push_back({thread, phases_[phase].epoch, time});
  }
  // What is wrong with an access of bytes within an aligned word of 4 bytes, or "".
  std::string Touch(uint64_t address, uint32_t byte_mask, Access access, uint32_t phase,
                    uint16_t thread, uint32_t time);
  // Of an atomic on global memory, after it was touched.
  void Atomic(uint32_t phase, uint16_t thread, uint32_t time) {
    blocks_[phases_[phase].block].atomics.push_back({thread, phases_[phase].epoch, time});
  }

 private:
  struct Cell {
    uint32_t write_phase = 0, write_time = 0, read_phase = 0, read_time = 0;
    uint16_t write_thread = 0, read_thread = 0;
    uint8_t write_bytes = 0, read_bytes = 0;
    bool write_is_atomic = false, read_only = false;
  };
  static constexpr uint64_t kArrayWords = 1024;
  using Cells = std::array<Cell, kArrayWords>;

  Cell& At(uint64_t word);
  // Whether what `thread` of phase `before` did at `time` is over for `thread_now` of phase `now`.
  bool Ordered(uint32_t before, uint16_t thread, uint32_t time, bool atomic, uint32_t now,
               uint16_t thread_now) const;

  std::vector<Phase> phases_;  // by number; the first is none
  std::vector<BlockMarks> blocks_;
  std::unordered_map<uint64_t, std::unique_ptr<Cells>> cells_;
  uint64_t last_number_ = ~uint64_t{0};
  Cells* last_cells_ = nullptr;
};

}  // namespace baton::backend::cuda::ptx

#endif  // BATON_TESTS_COMMON_BACKEND_CUDA_PTX_HISTORY_H_
