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
constexpr size_t kStackStaggerBytes = 256;  // Boost begins stacks at multiples of it
constexpr int kMaxThreads = 1024;
constexpr size_t kRememberedReads = 4096;

thread_local Options options;
KernelRunner* kernel_runner = nullptr;

struct Copy {
  void* to;
  const void* from;
  bool valid;
};

// A stack, and the place where what runs on it goes on.
struct Context {
  context::fiber resumption;
  SwitchedStack stack;
};

// A thread of the block. Its fiber outlives the block: the next one's thread runs on it.
struct Fiber : Context {
  enum class State { kIdle, kReady, kMeeting, kAtBarrier };
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

  Fiber* current_ = nullptr;

  void SyncThreads();
  void MeetWarp(void* operand, Combine combine);
  // size_bytes is at most 16. The launch may write to the bytes beside them.
  void RememberRead(const void* global, size_t size_bytes) {
    Read& read = read_only_[reinterpret_cast<uintptr_t>(global) / size_bytes % kRememberedReads];
    if (read.address == global && read.size_bytes == size_bytes) return CheckUnwritten(read);
    // What makes room for another can be checked no later than now.
    if (read.address != nullptr) {
      CheckUnwritten(read);
    } else {
      remembered_.push_back(&read);
    }
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
  // Switches to a thread of the block; returns when none of its warp goes on.
  void Resume(Fiber& fiber) {
    current_ = &fiber;
    Switch(scheduler_, fiber);
    current_ = nullptr;
  }
  // Switches to the next lane of the warp that can go on, or back to the scheduler.
  void Yield() {
    Fiber& fiber = *current_;
    const int end = (fiber.index / kWarpLanes + 1) * kWarpLanes;
    for (int i = fiber.index + 1; i < end; ++i) {
      Fiber& next = *fibers_[static_cast<size_t>(i)];
      if (next.state != Fiber::State::kReady) continue;
      current_ = &next;
      return Switch(fiber, next);
    }
    Switch(fiber, scheduler_);
  }
  void Switch(Context& from, Context& to) {
    from.stack.Leave(to.stack);
    left_ = &from;
    Arrive(from, std::move(to.resumption).resume());
  }
  // `to` goes on; `resumption` is that of what was left for it.
  void Arrive(Context& to, context::fiber resumption) {
    left_->resumption = std::move(resumption);
    to.stack.Enter(left_->stack);
    if (current_ != nullptr) place.thread = current_->index;
  }

  std::vector<std::unique_ptr<Fiber>> fibers_;
  Context scheduler_;
  Context* left_ = nullptr;  // what was switched from last
  bool ending_ = false;
  int threads_ = 0;
  size_t shared_bytes_ = 0;
  std::unique_ptr<std::byte[]> shared_;
  std::vector<WarpMeeting> meetings_;
  const std::function<void()>* kernel_ = nullptr;
  std::mt19937_64 order_;
  int alive_ = 0;
  int at_barrier_ = 0;
  // It is on the heap: thread-local variables are taken from the stacks of libraries' threads.
  std::vector<Read> read_only_ = std::vector<Read>(kRememberedReads);
  std::vector<Read*> remembered_;  // of those, what the launch has read
  // The launch's sectors, by number: whether each was read before it was written, and whether it
  // was written.
  struct Sector {
    bool read = false, written = false;
  };
  std::unordered_map<uintptr_t, Sector> sectors_;
};

thread_local Machine machine;
// The same while it runs blocks: unlike it, this is there without being asked whether it is.
constinit thread_local Machine* running = nullptr;

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
  threads_ = threads;
  Machine* const before = std::exchange(running, this);
  place.grid = grid;
  place.block_threads = threads;
  shared_bytes_ = shared_bytes;
  kernel_ = &kernel;
  while (fibers_.size() < static_cast<size_t>(threads)) MakeFiber();
  meetings_.assign(static_cast<size_t>(threads / kWarpLanes), {});
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  std::vector<uint64_t> blocks_in_order(blocks);
  std::iota(blocks_in_order.begin(), blocks_in_order.end(), uint64_t{0});
  if (options.seed != 0) std::shuffle(blocks_in_order.begin(), blocks_in_order.end(), order_);
  for (const uint64_t index : blocks_in_order) {
    place.block = {static_cast<unsigned>(index % grid.x),
                   static_cast<unsigned>(index / grid.x % grid.y),
                   static_cast<unsigned>(index / grid.x / grid.y)};
    // Exactly as large as was asked for, so that AddressSanitizer sees what goes beyond.
    shared_ = std::make_unique_for_overwrite<std::byte[]>(shared_bytes);
    if (shared_bytes > 0) std::memset(shared_.get(), 0xff, shared_bytes);
    place.shared = shared_.get();
    RunBlock(kernel);
  }
  running = before;
  place = {};
  for (Read* read : remembered_) {
    CheckUnwritten(*read);
    read->address = nullptr;
  }
  remembered_.clear();
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
  // Stacks lie a multiple of a page apart. Lanes do the same at the same depth of theirs, which
  // would be in the same few lines of the caches.
  const size_t skipped = static_cast<size_t>(fiber->index % kWarpLanes) * kStackStaggerBytes;
  void* const top = static_cast<std::byte*>(memory.sp) - skipped;
  fiber->stack.SetBounds(static_cast<std::byte*>(memory.sp) - memory.size, memory.size - skipped);
  fiber->resumption =
      context::fiber(std::allocator_arg, context::preallocated(top, memory.size - skipped, memory),
                     allocator, [this, fiber](context::fiber&& resumption) {
                       Arrive(*fiber, std::move(resumption));
                       while (!ending_) {
                         (*kernel_)();
                         fiber->state = Fiber::State::kIdle;
                         --alive_;
                         Yield();
                       }
                       fiber->stack.Leave(scheduler_.stack, true);
                       left_ = fiber;
                       return std::move(scheduler_.resumption);
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

void Perform(const Copy& copy) {
  if (copy.valid) {
    std::memcpy(copy.to, copy.from, 16);
  } else {
    std::memset(copy.to, 0, 16);
  }
}

}  // namespace

constinit thread_local Place place;

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

void SyncThreads() { running->SyncThreads(); }
void MeetWarp(void* operand, Combine combine) { running->MeetWarp(operand, combine); }

const Vec16& Aligned16(const void* address) {
  BATON_CHECK_EQ(reinterpret_cast<uintptr_t>(address) % sizeof(Vec16), uintptr_t{0})
      << "16 bytes at " << address;
  return *static_cast<const Vec16*>(address);
}
const Vec16& ReadOnly16(const void* global) {
  const Vec16& value = Aligned16(global);
  CountRead(global, sizeof(Vec16));
  running->RememberRead(&value, sizeof(value));
  return value;
}
void ReadOnly(const void* global, size_t size_bytes, void* to) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(global);
  BATON_CHECK_EQ(address % size_bytes, uintptr_t{0}) << size_bytes << " bytes at " << global;
  CountRead(global, size_bytes);
  running->RememberRead(global, size_bytes);
  std::memcpy(to, global, size_bytes);
}
void CountRead(const void* address, size_t size_bytes) {
  if (options.accesses != nullptr) running->Count(address, size_bytes, false);
}
void CountWrite(const void* address, size_t size_bytes) {
  if (options.accesses != nullptr) running->Count(address, size_bytes, true);
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
  running->current_->open_group.push_back(copy);
}

void CopyAsyncCommit() {
  if (options.compute_capability < 80) return;
  running->current_->groups.push_back(std::move(running->current_->open_group));
  running->current_->open_group.clear();
}

void CopyAsyncWait(int pending) {
  auto& groups = running->current_->groups;
  while (groups.size() > static_cast<size_t>(pending)) {
    for (const Copy& copy : groups.front()) Perform(copy);
    groups.pop_front();
  }
}

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
