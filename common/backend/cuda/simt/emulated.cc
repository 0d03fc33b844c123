#include <algorithm>
#include <array>
#include <bit>
#include <boost/context/fiber.hpp>
#include <boost/context/fixedsize_stack.hpp>
#include <boost/context/preallocated.hpp>
#include <cmath>
#include <cstring>
#include <deque>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/backend/cuda/simt/fiber_switch.h"
#include "common/backend/cuda/simt/simt.h"
#include "common/base/check.h"

namespace baton::backend::cuda::emulated {
namespace {

namespace context = boost::context;

constexpr size_t kStackBytes = 128 << 10;
constexpr int kMaxThreads = 1024;
constexpr size_t kRememberedReads = 4096;

thread_local Options options;
KernelRunner* kernel_runner = nullptr;

struct Copy {
  void* to;
  const void* from;
  bool valid;
};

// A thread of the block. Its fiber outlives the block: the next one's thread runs on it.
struct Fiber {
  enum class State { kIdle, kReady, kMeeting, kAtBarrier };
  context::fiber self;
  context::fiber scheduler;
  SwitchedStack stack;
  State state = State::kIdle;
  int index = 0;
  void* operand = nullptr;
  std::vector<Copy> open_group;
  std::deque<std::vector<Copy>> groups;
};

struct WarpMeeting {
  Combine combine = nullptr;
  int present = 0;
};

// Runs blocks, one at a time.
class Machine {
 public:
  Machine() = default;
  // Fibers come to their end rather than being unwound by an exception.
  ~Machine() {
    ending_ = true;
    for (const auto& fiber : fibers_) Resume(*fiber);
  }
  void Run(const LaunchShape& shape, const std::function<void()>& kernel);

  GridSize grid_, block_;
  int threads_ = 0;
  size_t shared_bytes_ = 0;
  std::unique_ptr<std::byte[]> shared_;
  Fiber* current_ = nullptr;

  void SyncThreads();
  void MeetWarp(void* operand, Combine combine);
  // size_bytes is at most 16. The launch may write to the bytes beside them.
  void RememberRead(const void* global, size_t size_bytes) {
    Read& read = read_only_[reinterpret_cast<uintptr_t>(global) / size_bytes % kRememberedReads];
    if (read.address == global && read.size_bytes == size_bytes) return CheckUnwritten(read);
    // What makes room for another can be checked no later than now.
    if (read.address != nullptr) CheckUnwritten(read);
    read.address = global;
    read.size_bytes = size_bytes;
    std::memcpy(&read.value, global, size_bytes);
  }
  void Count(const void* address, size_t size_bytes, bool writes);

 private:
  // What was read through the read-only path, as it was then.
  struct Read {
    const void* address = nullptr;
    size_t size_bytes = 0;
    Vec16 value;
  };
  static void CheckUnwritten(const Read& read) {
    BATON_CHECK(std::memcmp(read.address, &read.value, read.size_bytes) == 0)
        << "Load" << read.size_bytes << " from memory that the launch writes: " << read.address;
  }
  void AddSectors(Accesses& accesses);
  void RunBlock(const std::function<void()>& kernel);
  bool RunWarp(int warp);
  void ReleaseBarrierIfAllCame();
  void MakeFiber();
  // Switches to a thread of the block, and back to the scheduler.
  void Resume(Fiber& fiber) {
    scheduler_stack_.Leave(fiber.stack);
    current_ = &fiber;
    fiber.self = std::move(fiber.self).resume();
    current_ = nullptr;
    scheduler_stack_.Enter(fiber.stack);
  }
  void Yield() {
    Fiber& fiber = *current_;
    fiber.stack.Leave(scheduler_stack_);
    fiber.scheduler = std::move(fiber.scheduler).resume();
    fiber.stack.Enter(scheduler_stack_);
  }

  std::vector<std::unique_ptr<Fiber>> fibers_;
  SwitchedStack scheduler_stack_;
  bool ending_ = false;
  std::vector<WarpMeeting> meetings_;
  const std::function<void()>* kernel_ = nullptr;
  std::mt19937_64 order_;
  int alive_ = 0;
  int at_barrier_ = 0;
  // It is on the heap: thread-local variables are taken from the stacks of libraries' threads.
  std::vector<Read> read_only_ = std::vector<Read>(kRememberedReads);
  // The launch's sectors, by number: whether each was read before it was written, and whether it
  // was written.
  struct Sector {
    bool read = false, written = false;
  };
  std::unordered_map<uintptr_t, Sector> sectors_;
};

thread_local Machine machine;

void Machine::Run(const LaunchShape& shape, const std::function<void()>& kernel) {
  const auto& [grid, threads, shared_bytes] = shape;
  BATON_CHECK(current_ == nullptr) << "a kernel launches a kernel";
  BATON_CHECK(threads > 0 && threads <= kMaxThreads && threads % kWarpLanes == 0)
      << threads << " threads a block";
  BATON_CHECK(grid.x > 0 && grid.y > 0 && grid.z > 0) << "an empty grid";
  BATON_CHECK(grid.y <= 65'535 && grid.z <= 65'535) << "a grid of " << grid.y << " x " << grid.z;
  BATON_CHECK_LE(shared_bytes,
                 options.compute_capability < 80 ? kSharedBytesUnasked : kMostSharedBytes);
  order_.seed(options.seed);
  grid_ = grid;
  threads_ = threads;
  shared_bytes_ = shared_bytes;
  kernel_ = &kernel;
  while (fibers_.size() < static_cast<size_t>(threads)) MakeFiber();
  meetings_.assign(static_cast<size_t>(threads / kWarpLanes), {});
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  std::vector<uint64_t> blocks_in_order(blocks);
  std::iota(blocks_in_order.begin(), blocks_in_order.end(), uint64_t{0});
  if (options.seed != 0) std::shuffle(blocks_in_order.begin(), blocks_in_order.end(), order_);
  for (const uint64_t index : blocks_in_order) {
    block_ = {static_cast<unsigned>(index % grid.x), static_cast<unsigned>(index / grid.x % grid.y),
              static_cast<unsigned>(index / grid.x / grid.y)};
    // Exactly as large as was asked for, so that AddressSanitizer sees what goes beyond.
    shared_ = std::make_unique<std::byte[]>(shared_bytes);
    if (shared_bytes > 0) std::memset(shared_.get(), 0xff, shared_bytes);
    RunBlock(kernel);
  }
  for (Read& read : read_only_) {
    if (read.address != nullptr) CheckUnwritten(read);
    read.address = nullptr;
  }
  if (options.accesses != nullptr) AddSectors(*options.accesses);
}

void Machine::Count(const void* address, size_t size_bytes, bool writes) {
  const auto* first = static_cast<const std::byte*>(address);
  if (first >= shared_.get() && first < shared_.get() + shared_bytes_) return;
  Accesses& accesses = *options.accesses;
  (writes ? accesses.requested_written_bytes : accesses.requested_read_bytes) +=
      static_cast<int64_t>(size_bytes);
  if (address >= accesses.watched_begin && address < accesses.watched_end) {
    accesses.watched_bytes += static_cast<int64_t>(size_bytes);
  }
  const auto begin = reinterpret_cast<uintptr_t>(address);
  for (uintptr_t at = begin / kSectorBytes; at <= (begin + size_bytes - 1) / kSectorBytes; ++at) {
    Sector& sector = sectors_[at];
    if (writes) {
      sector.written = true;
    } else if (!sector.written) {
      sector.read = true;
    }
  }
}

void Machine::AddSectors(Accesses& accesses) {
  for (const auto& [number, sector] : sectors_) {
    if (sector.read) accesses.read_bytes += kSectorBytes;
    if (sector.written) accesses.written_bytes += kSectorBytes;
  }
  sectors_.clear();
}

void Machine::MakeFiber() {
  fibers_.push_back(std::make_unique<Fiber>());
  Fiber* fiber = fibers_.back().get();
  fiber->index = static_cast<int>(fibers_.size()) - 1;
  context::fixedsize_stack allocator(kStackBytes);
  const context::stack_context memory = allocator.allocate();
  fiber->stack.SetBounds(static_cast<std::byte*>(memory.sp) - memory.size, memory.size);
  fiber->self =
      context::fiber(std::allocator_arg, context::preallocated(memory.sp, memory.size, memory),
                     allocator, [this, fiber](context::fiber&& scheduler) {
                       fiber->scheduler = std::move(scheduler);
                       fiber->stack.Enter(scheduler_stack_);
                       while (!ending_) {
                         (*kernel_)();
                         fiber->state = Fiber::State::kIdle;
                         --alive_;
                         Yield();
                       }
                       fiber->stack.Leave(scheduler_stack_, true);
                       return std::move(fiber->scheduler);
                     });
}

void Machine::RunBlock(const std::function<void()>& kernel) {
  alive_ = threads_;
  at_barrier_ = 0;
  for (int i = 0; i < threads_; ++i) fibers_[static_cast<size_t>(i)]->state = Fiber::State::kReady;
  std::vector<int> warps(meetings_.size());
  std::iota(warps.begin(), warps.end(), 0);
  while (alive_ > 0) {
    bool moved = false;
    if (options.seed != 0) {
      std::shuffle(warps.begin(), warps.end(), order_);
      // Some get far ahead of others: what they run into without a barrier shows.
      constexpr int kTurns[] = {0, 1, 9, 1 << 30};
      for (const int warp : warps) {
        for (int turns = kTurns[order_() % 4]; turns > 0 && RunWarp(warp); --turns) moved = true;
      }
    }
    if (!moved) {
      for (const int warp : warps) moved |= RunWarp(warp);
    }
    ReleaseBarrierIfAllCame();
    BATON_CHECK(moved) << "the kernel hangs: lanes of a warp wait at an operation that others of "
                          "it have passed or left out";
  }
  for (int i = 0; i < threads_; ++i) {
    const Fiber& fiber = *fibers_[static_cast<size_t>(i)];
    BATON_CHECK(fiber.groups.empty() && fiber.open_group.empty())
        << "thread " << i << " ended without waiting for its copies";
  }
}

bool Machine::RunWarp(int warp) {
  bool moved = false;
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    Fiber& fiber = *fibers_[static_cast<size_t>(warp * kWarpLanes + lane)];
    if (fiber.state != Fiber::State::kReady) continue;
    moved = true;
    Resume(fiber);
  }
  return moved;
}

void Machine::ReleaseBarrierIfAllCame() {
  if (at_barrier_ == 0 || at_barrier_ < alive_) return;
  at_barrier_ = 0;
  for (int i = 0; i < threads_; ++i) {
    Fiber& fiber = *fibers_[static_cast<size_t>(i)];
    if (fiber.state == Fiber::State::kAtBarrier) fiber.state = Fiber::State::kReady;
  }
}

void Machine::SyncThreads() {
  ++at_barrier_;
  current_->state = Fiber::State::kAtBarrier;
  Yield();
}

void Machine::MeetWarp(void* operand, Combine combine) {
  const int warp = current_->index / kWarpLanes;
  WarpMeeting& meeting = meetings_[static_cast<size_t>(warp)];
  if (meeting.present == 0) meeting.combine = combine;
  BATON_CHECK(meeting.combine == combine) << "lanes of a warp meet at different operations";
  current_->operand = operand;
  if (++meeting.present < kWarpLanes) {
    current_->state = Fiber::State::kMeeting;
    Yield();
    return;
  }
  meeting.present = 0;
  void* operands[kWarpLanes];
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    Fiber& fiber = *fibers_[static_cast<size_t>(warp * kWarpLanes + lane)];
    operands[lane] = fiber.operand;
    fiber.state = Fiber::State::kReady;
  }
  combine(operands);
}

// Row-major A [16, k], B as [8, k] (column by column), as PTX's fragments hold them.
template <int kK>
void Mma(void* const (&operands)[kWarpLanes]) {
  float a[16][kK], b[8][kK];
  const auto& first = *static_cast<const MmaOperand*>(operands[0]);
  const auto unpack = [&](uint32_t pair, float* to) {
    to[0] = first.to_f32(static_cast<uint16_t>(pair));
    to[1] = first.to_f32(static_cast<uint16_t>(pair >> 16));
  };
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    const auto& operand = *static_cast<const MmaOperand*>(operands[lane]);
    BATON_CHECK(operand.to_f32 == first.to_f32) << "lanes of a warp multiply different types";
    const int group = lane / 4, pair = lane % 4 * 2;
    for (int half = 0; half < kK / 8; ++half) {
      unpack(operand.a[half * 2], &a[group][half * 8 + pair]);
      unpack(operand.a[half * 2 + 1], &a[group + 8][half * 8 + pair]);
      unpack(operand.b[half], &b[group][half * 8 + pair]);
    }
  }
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    const auto& operand = *static_cast<const MmaOperand*>(operands[lane]);
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, col = lane % 4 * 2 + i % 2;
      double sum = 0;
      for (int k = 0; k < kK; ++k) {
        sum += static_cast<double>(a[row][k]) * static_cast<double>(b[col][k]);
      }
      operand.d[i] = static_cast<float>(static_cast<double>(operand.d[i]) + sum);
    }
  }
}

void Perform(const Copy& copy) {
  if (copy.valid) {
    std::memcpy(copy.to, copy.from, 16);
  } else {
    std::memset(copy.to, 0, 16);
  }
}

}  // namespace

void SetOptions(const Options& new_options) { options = new_options; }
const Options& GetOptions() { return options; }

void RunGrid(const LaunchShape& shape, Stream stream, std::function<void()> kernel) {
  if (stream == nullptr) return machine.Run(shape, kernel);
  const auto& emulated = *static_cast<const EmulatedStream*>(stream);
  auto run = [shape, to_emulate = emulated.options, kernel = std::move(kernel)] {
    const Options before = std::exchange(options, to_emulate);
    machine.Run(shape, kernel);
    options = before;
  };
  if (emulated.queue == nullptr) return run();
  emulated.queue->Enqueue(shape, std::move(run));
}

void SetKernelRunner(KernelRunner* runner) { kernel_runner = runner; }
KernelRunner* GetKernelRunner() { return kernel_runner; }

void RunGridBy(KernelRunner& runner, const LaunchShape& shape, Stream stream, const void* kernel,
               const void* arguments, size_t argument_bytes) {
  if (stream == nullptr) return runner.Run(shape, options, kernel, arguments, argument_bytes);
  const auto& emulated = *static_cast<const EmulatedStream*>(stream);
  const auto* first = static_cast<const std::byte*>(arguments);
  auto run = [&runner, shape, to_emulate = emulated.options, kernel,
              copy = std::vector<std::byte>(first, first + argument_bytes)] {
    runner.Run(shape, to_emulate, kernel, copy.data(), copy.size());
  };
  if (emulated.queue == nullptr) return run();
  emulated.queue->Enqueue(shape, std::move(run));
}

int ThreadIndex() { return machine.current_->index; }
int BlockThreads() { return machine.threads_; }
GridSize BlockIndex() { return machine.block_; }
GridSize Grid() { return machine.grid_; }
std::byte* SharedMemory() { return machine.shared_.get(); }
void SyncThreads() { machine.SyncThreads(); }
void MeetWarp(void* operand, Combine combine) { machine.MeetWarp(operand, combine); }

const Vec16& Aligned16(const void* address) {
  BATON_CHECK_EQ(reinterpret_cast<uintptr_t>(address) % sizeof(Vec16), uintptr_t{0})
      << "16 bytes at " << address;
  return *static_cast<const Vec16*>(address);
}
const Vec16& ReadOnly16(const void* global) {
  const Vec16& value = Aligned16(global);
  CountRead(global, sizeof(Vec16));
  machine.RememberRead(&value, sizeof(value));
  return value;
}
void ReadOnly(const void* global, size_t size_bytes, void* to) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(global);
  BATON_CHECK_EQ(address % size_bytes, uintptr_t{0}) << size_bytes << " bytes at " << global;
  CountRead(global, size_bytes);
  machine.RememberRead(global, size_bytes);
  std::memcpy(to, global, size_bytes);
}
void CountRead(const void* address, size_t size_bytes) {
  if (options.accesses != nullptr) machine.Count(address, size_bytes, false);
}
void CountWrite(const void* address, size_t size_bytes) {
  if (options.accesses != nullptr) machine.Count(address, size_bytes, true);
}

// Late where the hardware may be late: at the wait that makes it sure, and the place is poisoned
// until then.
void CopyAsync16(void* shared, const void* global, bool valid) {
  // What is not valid is not read, and may be no place at all.
  const Copy copy = {&const_cast<Vec16&>(Aligned16(shared)), valid ? &Aligned16(global) : nullptr,
                     valid};
  if (options.compute_capability < 80) {
    if (valid) ReadOnly16(global);
    return Perform(copy);
  }
  std::memset(shared, 0xff, 16);
  if (valid) CountRead(global, sizeof(Vec16));
  machine.current_->open_group.push_back(copy);
}

void CopyAsyncCommit() {
  if (options.compute_capability < 80) return;
  machine.current_->groups.push_back(std::move(machine.current_->open_group));
  machine.current_->open_group.clear();
}

void CopyAsyncWait(int pending) {
  auto& groups = machine.current_->groups;
  while (groups.size() > static_cast<size_t>(pending)) {
    for (const Copy& copy : groups.front()) Perform(copy);
    groups.pop_front();
  }
}

float HalfToF32(uint16_t bits) {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000) << 16;
  const uint32_t exponent = bits >> 10 & 0x1f;
  const uint32_t mantissa = bits & 0x3ff;
  if (exponent == 0x1f) return BitsFloat(sign | 0x7f800000 | mantissa << 13);
  if (exponent != 0) return BitsFloat(sign | (exponent + 112) << 23 | mantissa << 13);
  const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -magnitude : magnitude;
}

// Rounds to the nearest, ties to even.
uint16_t HalfFromF32(float value) {
  const uint32_t bits = FloatBits(value);
  const auto sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  const float magnitude = std::fabs(value);
  if (std::isnan(value)) return static_cast<uint16_t>(sign | 0x7e00);
  if (magnitude >= 65'520.0f) return static_cast<uint16_t>(sign | 0x7c00);
  // The distance of neighbouring halves here: nearbyint rounds to even by default.
  const int exponent = std::max(magnitude == 0 ? -14 : std::ilogb(magnitude), -14);
  const auto steps = static_cast<uint32_t>(std::nearbyint(std::ldexp(magnitude, 10 - exponent)));
  // 1024 steps are an implicit leading bit; rounding up into the next exponent carries over.
  return static_cast<uint16_t>(sign | ((static_cast<uint32_t>(exponent + 14) << 10) + steps));
}

uint16_t BFloat16FromF32(float value) {
  uint32_t bits = FloatBits(value);
  if (std::isnan(value)) return 0x7fff;
  bits += 0x7fff + (bits >> 16 & 1);
  return static_cast<uint16_t>(bits >> 16);
}

float FmaToOdd(float a, float b, float c) {
  // The last place of an inexact result is made odd.
  const auto to_odd = [](auto rounded, double error) {
    using Float = decltype(rounded);
    using Bits = std::conditional_t<sizeof(Float) == 8, uint64_t, uint32_t>;
    if (error == 0 || !std::isfinite(rounded) || std::bit_cast<Bits>(rounded) % 2 == 1) {
      return rounded;
    }
    constexpr auto kInfinity = std::numeric_limits<Float>::infinity();
    return std::nextafter(rounded, error < 0 ? -kInfinity : kInfinity);
  };
  const double product = double{a} * b;  // exact
  const double sum = product + c, c_part = sum - product;
  const double error = (product - (sum - c_part)) + (c - c_part);  // Knuth's TwoSum
  const double exact = to_odd(sum, error);
  const auto single = static_cast<float>(exact);
  return to_odd(single, exact - single);
}

void MmaK8(void* const (&operands)[kWarpLanes]) { Mma<8>(operands); }
void MmaK16(void* const (&operands)[kWarpLanes]) { Mma<16>(operands); }

Vec16 LoadTransposed(const void* shared) {
  struct Operand {
    const void* row;
    Vec16 result;
  } operand = {&Aligned16(shared), {}};
  MeetWarp(&operand, [](void* const(&operands)[kWarpLanes]) {
    uint16_t rows[kWarpLanes][8];
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      std::memcpy(rows[lane], static_cast<Operand*>(operands[lane])->row, sizeof(rows[lane]));
    }
    for (int lane = 0; lane < kWarpLanes; ++lane) {
      Vec16& result = static_cast<Operand*>(operands[lane])->result;
      for (int matrix = 0; matrix < 4; ++matrix) {
        const int row = matrix * 8 + lane % 4 * 2, column = lane / 4;
        result.x[matrix] = rows[row][column] | static_cast<uint32_t>(rows[row + 1][column]) << 16;
      }
    }
  });
  return operand.result;
}

}  // namespace baton::backend::cuda::emulated
