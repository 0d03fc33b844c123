// simt.h on the CPU: one block at a time, a fiber for every thread. Slow and strict: it ends the
// process where a kernel breaks a rule of the dialect (simt.h), and says which.
//
// Thread: a host thread's launches run on it, one after another; others may launch at the same
// time.
#ifndef BATON_COMMON_BACKEND_CUDA_SIMT_EMULATED_H_
#define BATON_COMMON_BACKEND_CUDA_SIMT_EMULATED_H_

#include <bit>
#include <cmath>
#include <cstring>
#include <functional>

#include "common/base/check.h"

#define BATON_KERNEL(threads) inline void
#define BATON_KERNEL_RESIDENT(threads, blocks) inline void
#define BATON_DEVICE inline
#define BATON_HOST_DEVICE inline
#define BATON_UNROLL
#define BATON_NO_UNROLL
#define BATON_DEVICE_TABLE static const

namespace baton::backend::cuda {
namespace emulated {

// Global memory accesses, counted for each launch and added up.
struct Accesses {
  // What lanes request: the traffic of L1 and L2.
  int64_t requested_read_bytes = 0;
  int64_t requested_written_bytes = 0;
  // Touched sectors of kSectorBytes, each counted once: the DRAM traffic with an infinite L2.
  // Sectors that the launch wrote before it read them do not count as read.
  int64_t read_bytes = 0;
  int64_t written_bytes = 0;
  // The requested bytes within [watched_begin, watched_end): of one operand.
  const void* watched_begin = nullptr;
  const void* watched_end = nullptr;
  int64_t watched_bytes = 0;
};
inline constexpr int kSectorBytes = 32;
inline constexpr int kMultiprocessors = 2;

// What is emulated. Tests run the same launch under several.
struct Options {
  int compute_capability = 80;   // 75: CopyAsync16 through registers, Mma16x8x16 in two halves
  uint64_t seed = 0;             // order of blocks, and of warps between synchronisations
  Accesses* accesses = nullptr;  // unless null, every launch adds to it; of one host thread
};
// Options of this host thread's launches on the null stream.
void SetOptions(const Options& options);
const Options& GetOptions();

// The shape of a launch.
struct LaunchShape {
  GridSize grid;
  int threads = 0;
  size_t shared_bytes = 0;
};
// Runs launches later, as a GPU does: for tests of asynchrony.
class LaunchQueue {
 public:
  virtual ~LaunchQueue() = default;
  // Calls run() once, after the launches enqueued before.
  virtual void Enqueue(const LaunchShape& shape, std::function<void()> run) = 0;
};
// A Stream that is not null points to this.
struct EmulatedStream {
  Options options;
  LaunchQueue* queue = nullptr;  // null: launches are done when they return
};

// Runs kernels in another way than by calling them: tests interpret what nvcc made of them.
class KernelRunner {
 public:
  virtual ~KernelRunner() = default;
  // `kernel`: the function; `arguments`: its one argument. One thread at a time calls it.
  virtual void Run(const LaunchShape& shape, const Options& options, const void* kernel,
                   const void* arguments, size_t argument_bytes) = 0;
};
// `runner` gets all launches to come; with null, kernels are called. Set it while no kernel runs.
void SetKernelRunner(KernelRunner* runner);
KernelRunner* GetKernelRunner();

void RunGrid(const LaunchShape& shape, Stream stream, std::function<void()> kernel);
// Runs the kernel with the options of the stream.
void RunGridBy(KernelRunner& runner, const LaunchShape& shape, Stream stream, const void* kernel,
               const void* arguments, size_t argument_bytes);

// Where the kernel's thread is that runs on this host thread. Kernels ask in every other line.
struct Place {
  int thread = 0;
  int block_threads = 0;
  GridSize block, grid;
  std::byte* shared = nullptr;
};
extern constinit thread_local Place place;

// What follows is called by the kernels' threads.
inline int ThreadIndex() { return place.thread; }
inline int BlockThreads() { return place.block_threads; }
inline GridSize BlockIndex() { return place.block; }
inline GridSize Grid() { return place.grid; }
inline std::byte* SharedMemory() { return place.shared; }
void SyncThreads();
// Waits for the warp's other lanes to come to the same operation; the last runs
// combine(operands), which sees and changes what each lane brought.
using Combine = void (*)(void* const (&operands)[kWarpLanes]);
void MeetWarp(void* operand, Combine combine);
// Checks that the address is a multiple of 16, as GPUs require.
const Vec16& Aligned16(const void* address);
// Reads through a cache that sees no writes of the same launch: the launch must not write it.
const Vec16& ReadOnly16(const void* global);
// The same for size_bytes, 4 or 8, to `to`.
void ReadOnly(const void* global, size_t size_bytes, void* to);
// These count for Accesses; shared memory is not counted.
void CountRead(const void* address, size_t size_bytes);
void CountWrite(const void* address, size_t size_bytes);
void CopyAsync16(void* shared, const void* global, bool valid);
void CopyAsyncCommit();
void CopyAsyncWait(int pending);

inline float HalfToF32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 0x1f;
  const uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000 | mantissa << 13);
  if (exponent != 0) return std::bit_cast<float>(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}
uint16_t HalfFromF32(float value);
uint16_t BFloat16FromF32(float value);
// a b + c for 16-bit operands, rounded to odd: another rounding, to 22 bits at most, gives what
// rounding the exact sum would.
float FmaToOdd(float a, float b, float c);
// a b + c for both halves of registers, each rounded once.
template <class Element>
uint32_t FmaTwo(uint32_t a, uint32_t b, uint32_t c) {
  const auto one = [&](int shift) -> uint32_t {
    const auto at = [&](uint32_t two) {
      return Element::ToF32(static_cast<uint16_t>(two >> shift));
    };
    return Element::FromF32(FmaToOdd(at(a), at(b), at(c)));
  };
  return one(0) | one(16) << 16;
}

// What one lane brings to a product of 16 x k times k x 8, k = 8 or 16.
struct MmaOperand {
  enum class Type { kHalf, kBFloat16 };
  float* d;
  const uint32_t* a;
  const uint32_t* b;
  Type type;
};
void MmaK8(void* const (&operands)[kWarpLanes]);
Vec16 LoadTransposed(const void* shared);
void MmaK16(void* const (&operands)[kWarpLanes]);

}  // namespace emulated

using emulated::BlockIndex;
using emulated::BlockThreads;
using emulated::CopyAsync16;
using emulated::CopyAsyncCommit;
using emulated::Grid;
using emulated::LoadTransposed;
using emulated::SharedMemory;
using emulated::SyncThreads;
using emulated::ThreadIndex;

inline int ThreadIndexHere() { return ThreadIndex(); }
inline int Multiprocessors() { return emulated::kMultiprocessors; }
inline uint32_t HiddenZero() { return 0; }
inline uint32_t Pinned(uint32_t value, uint32_t) { return value; }
template <class Body>
void Fenced(const Body& body) {
  body();
}

inline void SyncWarp() {
  emulated::MeetWarp(nullptr, [](void* const(&)[kWarpLanes]) {});
}
inline void ThreadFence() {}
template <int kCount>
void CopyAsync16(void* const (&shared)[kCount], const void* const (&global)[kCount],
                 const bool (&valid)[kCount]) {
  for (int i = 0; i < kCount; ++i) emulated::CopyAsync16(shared[i], global[i], valid[i]);
}
template <int kPending>
void CopyAsyncWait() {
  emulated::CopyAsyncWait(kPending);
}

inline void NotBeforeSm80() {
  BATON_CHECK(emulated::GetOptions().compute_capability >= 80) << "launched on sm_75";
}
inline bool CopiesAreAsync() { return emulated::GetOptions().compute_capability >= 80; }
// Whether the copies of a launch on the stream are asynchronous.
template <class Args>
bool CopiesAreAsync(void (*)(Args), Stream stream) {
  const emulated::Options& options = stream == nullptr
                                         ? emulated::GetOptions()
                                         : static_cast<emulated::EmulatedStream*>(stream)->options;
  return options.compute_capability >= 80;
}

template <class T>
T ShuffleXor(T value, int lane_mask) {
  struct Operand {
    T value;
    int mask;
  } operand = {value, lane_mask};
  emulated::MeetWarp(&operand, [](void* const(&operands)[kWarpLanes]) {
    T values[kWarpLanes];
    for (int i = 0; i < kWarpLanes; ++i) values[i] = static_cast<Operand*>(operands[i])->value;
    for (int i = 0; i < kWarpLanes; ++i) {
      Operand& lane = *static_cast<Operand*>(operands[i]);
      lane.value = values[i ^ lane.mask];
    }
  });
  return operand.value;
}
template <class T>
T Shuffle(T value, int from) {
  struct Operand {
    T value;
    int from;
  } operand = {value, from};
  emulated::MeetWarp(&operand, [](void* const(&operands)[kWarpLanes]) {
    T values[kWarpLanes];
    for (int i = 0; i < kWarpLanes; ++i) values[i] = static_cast<Operand*>(operands[i])->value;
    for (int i = 0; i < kWarpLanes; ++i) {
      Operand& lane = *static_cast<Operand*>(operands[i]);
      lane.value = values[lane.from % kWarpLanes];
    }
  });
  return operand.value;
}

template <class T>
T AtomicAdd(T* address, T value) {
  emulated::CountRead(address, sizeof(T));
  emulated::CountWrite(address, sizeof(T));
  const T old = *address;
  *address = old + value;
  return old;
}
inline void AtomicMax(uint64_t* address, uint64_t value) {
  emulated::CountRead(address, sizeof(value));
  emulated::CountWrite(address, sizeof(value));
  if (value > *address) *address = value;
}
inline void AtomicMin(uint64_t* address, uint64_t value) {
  emulated::CountRead(address, sizeof(value));
  emulated::CountWrite(address, sizeof(value));
  if (value < *address) *address = value;
}

inline float Add(float a, float b) { return a + b; }
inline float Mul(float a, float b) { return a * b; }
inline float Fma(float a, float b, float c) { return std::fma(a, b, c); }
inline float Divide(float a, float b) { return a / b; }
inline float SquareRoot(float a) { return std::sqrt(a); }
inline float Exp2(float a) { return std::exp2(a); }
inline uint32_t FloatBits(float a) { return std::bit_cast<uint32_t>(a); }
inline float BitsFloat(uint32_t a) { return std::bit_cast<float>(a); }
template <class T>
void KeepBehind(const T*&) {}
inline uint32_t AndOr(uint32_t a, uint32_t b, uint32_t c) { return (a & b) | c; }
inline uint32_t PermuteBytes(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t result = 0;
  for (int i = 0; i < 4; ++i) {
    result |= static_cast<uint32_t>(bytes >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  }
  return result;
}
inline float GreatestOrNan(float a, float b) { return b <= a ? a : b; }
inline int LeadingZeros(uint64_t a) { return std::countl_zero(a); }
inline uint64_t MulHigh(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
}

// Launches end before the next one begins.
inline void AwaitPrevious() {}
inline void PrefetchL2(const void*) {}

inline Vec16 Load16(const void* global) { return emulated::ReadOnly16(global); }
inline Vec16 Load16Once(const void* global) { return Load16(global); }
inline Vec16 Load16If(bool valid, const void* global) { return valid ? Load16(global) : Vec16{}; }
inline Vec8 Load8(const void* global) {
  Vec8 v;
  emulated::ReadOnly(global, sizeof(v), &v);
  return v;
}
inline Vec8 Load8If(bool valid, const void* global) { return valid ? Load8(global) : Vec8{}; }
inline uint32_t Load4(const void* global) {
  uint32_t v;
  emulated::ReadOnly(global, sizeof(v), &v);
  return v;
}
inline void Load16Into(bool valid, const void* global, Vec16& to) {
  if (valid) to = Load16(global);
}
inline void Load4Into(bool valid, const void* global, uint32_t& to) {
  if (valid) emulated::ReadOnly(global, sizeof(to), &to);
}
inline uint32_t Load4If(bool valid, const void* global) { return valid ? Load4(global) : 0; }
inline Vec16 LoadShared16(const void* shared) { return emulated::Aligned16(shared); }
inline void Store16(void* to, const Vec16& value) {
  emulated::CountWrite(to, sizeof(value));
  const_cast<Vec16&>(emulated::Aligned16(to)) = value;
}
inline float LoadFresh(const float* global) {
  emulated::CountRead(global, sizeof(float));
  return *global;
}
inline Vec16 LoadFresh16(const void* global) {
  emulated::CountRead(global, sizeof(Vec16));
  return emulated::Aligned16(global);
}
inline Vec8 LoadFresh8If(bool valid, const void* global) {
  Vec8 v{};
  if (!valid) return v;
  emulated::CountRead(global, sizeof(v));
  std::memcpy(&v, global, sizeof(v));
  return v;
}
template <class T>
const T& LoadGlobal(const T* global) {
  emulated::CountRead(global, sizeof(T));
  return *global;
}
template <class T>
void StoreGlobal(T* global, T value) {
  emulated::CountWrite(global, sizeof(T));
  *global = value;
}

struct Half {
  static float ToF32(uint16_t bits) { return emulated::HalfToF32(bits); }
  static uint16_t FromF32(float value) { return emulated::HalfFromF32(value); }
  static uint32_t Pack(float low, float high) {
    return FromF32(low) | static_cast<uint32_t>(FromF32(high)) << 16;
  }
  static uint32_t PackAtOnce(float low, float high) { return Pack(low, high); }
  static uint32_t Fma2(uint32_t a, uint32_t b, uint32_t c) {
    return emulated::FmaTwo<Half>(a, b, c);
  }
  // Exact in float32 before it is rounded.
  static uint32_t Multiply2(uint32_t a, uint32_t b) {
    return Pack(Low(a) * Low(b), High(a) * High(b));
  }
  static float Low(uint32_t two) { return ToF32(static_cast<uint16_t>(two)); }
  static float High(uint32_t two) { return ToF32(static_cast<uint16_t>(two >> 16)); }
  static void Mma8(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
    const uint32_t a[] = {a0, a1};
    emulated::MmaOperand operand = {d, a, &b, emulated::MmaOperand::Type::kHalf};
    emulated::MeetWarp(&operand, emulated::MmaK8);
  }
  static void Mma16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if (emulated::GetOptions().compute_capability < 80) {
      Mma8(d, a[0], a[1], b0);
      Mma8(d, a[2], a[3], b1);
      return;
    }
    const uint32_t b[] = {b0, b1};
    emulated::MmaOperand operand = {d, a, b, emulated::MmaOperand::Type::kHalf};
    emulated::MeetWarp(&operand, emulated::MmaK16);
  }
};

struct BFloat16 {
  static float ToF32(uint16_t bits) { return BitsFloat(static_cast<uint32_t>(bits) << 16); }
  static uint16_t FromF32(float value) { return emulated::BFloat16FromF32(value); }
  static uint32_t Pack(float low, float high) {
    return FromF32(low) | static_cast<uint32_t>(FromF32(high)) << 16;
  }
  static uint32_t PackAtOnce(float low, float high) { return Pack(low, high); }
  static uint32_t Fma2(uint32_t a, uint32_t b, uint32_t c) {
    return emulated::FmaTwo<BFloat16>(a, b, c);
  }
  static void Mma16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    const uint32_t b[] = {b0, b1};
    emulated::MmaOperand operand = {d, a, b, emulated::MmaOperand::Type::kBFloat16};
    emulated::MeetWarp(&operand, emulated::MmaK16);
  }
};

template <class Args>
void Launch(void (*kernel)(Args), GridSize grid, int threads, size_t shared_bytes, Stream stream,
            const Args& args) {
  const emulated::LaunchShape shape = {grid, threads, shared_bytes};
  if (emulated::KernelRunner* runner = emulated::GetKernelRunner(); runner != nullptr) {
    return emulated::RunGridBy(*runner, shape, stream, reinterpret_cast<const void*>(kernel), &args,
                               sizeof(args));
  }
  emulated::RunGrid(shape, stream, [kernel, args] { kernel(args); });
}

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_SIMT_EMULATED_H_
