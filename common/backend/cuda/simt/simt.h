// The kernels' dialect: CUDA's execution model behind functions that have two implementations, so
// that the same source compiles for the GPU (nvcc) and for an emulation with fibers on the CPU (any
// C++ compiler), on which the tests compare every kernel with references.
//
// Both implement, in namespace baton::backend::cuda:
//   BATON_KERNEL(threads), BATON_KERNEL_RESIDENT(threads, blocks), BATON_DEVICE, BATON_UNROLL,
//   Launch(kernel, grid, threads, shared, stream, args), ThreadIndex(), ThreadIndexHere(),
//   BlockIndex(), AwaitPrevious(), PrefetchL2, Multiprocessors(), SharedMemory(), SyncThreads(),
//   SyncWarp(), Shuffle, ShuffleXor, Load16, Load8, Load4 and the same with If, Load16Once,
//   Load16Into, Load4Into, LoadFresh, LoadTransposed, Store16, LoadGlobal, StoreGlobal, CopyAsync16
//   and its groups, Half and BFloat16 with their products Mma8 and Mma16, HiddenZero(), Pinned,
//   Fenced, atomics, ThreadFence(), and arithmetic with explicit rounding: Add, Mul, Fma.
//
// The first statement of a kernel is AwaitPrevious(), behind no more than prefetches of weights
// (tests/cuda/kernel_check.py).
//
// Rules of the dialect, which the emulation checks: all 32 lanes of a warp reach a warp operation
// at the same place; bytes of CopyAsync16 are readable only after a wait for its group; Load16
// reads nothing that the launch writes; shared memory holds NaNs until it is written; 16-byte
// accesses are aligned to 16; results do not depend on the order of warps or blocks between
// synchronisations (the emulation draws it from a seed). Kernels access global memory through these
// functions alone, so that the emulation can count the accesses.
//
// Floating-point contraction is off for kernels (-fmad=false, -ffp-contract=off): a sum is fused
// where the source says Fma, in every kernel that shares the source, and on both machines.
#ifndef BATON_COMMON_BACKEND_CUDA_SIMT_SIMT_H_
#define BATON_COMMON_BACKEND_CUDA_SIMT_SIMT_H_

#include <cstddef>
#include <cstdint>

namespace baton::backend::cuda {

inline constexpr int kWarpLanes = 32;

struct GridSize {
  unsigned x = 1, y = 1, z = 1;
};

// 16 bytes, as one memory instruction moves them.
struct alignas(16) Vec16 {
  uint32_t x[4];
};
// Eight bytes, likewise.
struct alignas(8) Vec8 {
  uint32_t x[2];
};

// Dynamic shared memory of a block without opting in, and the most on any GPU from sm_80 on.
// Launches on a T4 use at most the first.
inline constexpr size_t kSharedBytesUnasked = size_t{48} << 10;
inline constexpr size_t kMostSharedBytes = size_t{99} << 10;

// A queue of work on the device (cudaStream_t); null if launches are synchronous.
using Stream = void*;

}  // namespace baton::backend::cuda

#if defined(__CUDACC__)
#include "common/backend/cuda/simt/nvidia.h"
#else
#include "common/backend/cuda/simt/emulated.h"
#endif

namespace baton::backend::cuda {

// A remainder or quotient of an unsigned number takes one instruction.
BATON_DEVICE int Lane() {
  return static_cast<int>(static_cast<unsigned>(ThreadIndex()) % kWarpLanes);
}
BATON_DEVICE int Warp() {
  return static_cast<int>(static_cast<unsigned>(ThreadIndex()) / kWarpLanes);
}

template <class T>
BATON_DEVICE T Least(T a, T b) {
  return b < a ? b : a;
}
template <class T>
BATON_DEVICE T Greatest(T a, T b) {
  return a < b ? b : a;
}

// Loads of what the block may have written before a SyncThreads: by way of L1 as Load16, Load8 and
// Load4, whose path need not see such writes.
BATON_DEVICE Vec16 LoadCoherent16(const void* global) {
  return LoadGlobal(static_cast<const Vec16*>(global));
}
BATON_DEVICE Vec8 LoadCoherent8(const void* global) {
  return LoadGlobal(static_cast<const Vec8*>(global));
}
BATON_DEVICE uint32_t LoadCoherent4(const void* global) {
  return LoadGlobal(static_cast<const uint32_t*>(global));
}
// The same, or zeros.
BATON_DEVICE Vec16 LoadCoherent16If(bool valid, const void* global) {
  return valid ? LoadCoherent16(global) : Vec16{};
}
BATON_DEVICE Vec8 LoadCoherent8If(bool valid, const void* global) {
  return valid ? LoadCoherent8(global) : Vec8{};
}
BATON_DEVICE uint32_t LoadCoherent4If(bool valid, const void* global) {
  return valid ? LoadCoherent4(global) : 0;
}

// The sum over the warp, in all lanes, in a fixed order.
BATON_DEVICE float WarpSum(float value) {
  BATON_UNROLL for (int mask = 16; mask > 0; mask /= 2) {
    value = Add(value, ShuffleXor(value, mask));
  }
  return value;
}

// The same for a block of `warps` warps; `scratch`: one float a warp, in shared memory, free again
// after the caller's next SyncThreads().
BATON_DEVICE float BlockSum(float value, int warps, float* scratch) {
  value = WarpSum(value);
  if (Lane() == 0) scratch[Warp()] = value;
  SyncThreads();
  float sum = 0;
  for (int warp = 0; warp < warps; ++warp) sum = Add(sum, scratch[warp]);
  return sum;
}

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_SIMT_SIMT_H_
