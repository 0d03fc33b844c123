// Runs decoded PTX: several blocks at a time, their warps in random turns, the lanes of a warp
// apart where they branch apart. Every access is held against History.
//
// A warp's lanes that branch apart go on in groups, in random order, and come together where they
// reach the same instruction; bar.sync, shfl.sync, mma.sync and ldmatrix wait for all lanes of the
// warp that have not ended, and a lane that never comes is a hang, which is said.
#ifndef BATON_TESTS_COMMON_BACKEND_CUDA_PTX_MACHINE_H_
#define BATON_TESTS_COMMON_BACKEND_CUDA_PTX_MACHINE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/backend/cuda/simt/simt.h"
#include "tests/common/backend/cuda/ptx/history.h"
#include "tests/common/backend/cuda/ptx/program.h"

namespace baton::backend::cuda::ptx {

class Machine;
struct BlockState;

inline constexpr uint32_t kAllLanes = 0xffffffffu;

// Sums of products as tensor cores make them: of so many products and the sum before, aligned to
// the largest and cut off there, not rounded. "Numerical behavior of NVIDIA tensor cores", Fasi,
// Higham, Mikaitis, Pranesh 2021; without the guard bits that some chips have. 0: exact, then
// rounded once.
struct MachineOptions {
  int truncated_sum = 0;
};

struct Copy {
  uint32_t to = 0;  // shared
  uint64_t from = 0;
  bool valid = false;
};

class WarpState {
 public:
  // 32 values of a register.
  template <class T>
  T* At(uint32_t place) {
    return reinterpret_cast<T*>(registers.get() + place);
  }
  uint32_t& Bits(uint32_t place) { return *At<uint32_t>(place); }
  uint16_t thread(int lane) const { return static_cast<uint16_t>(index * kWarpLanes + lane); }

  struct Group {
    uint32_t mask = 0, pc = 0;
    bool waits = false;  // for the warp's other lanes
  };

  Machine* machine = nullptr;
  BlockState* block = nullptr;
  int index = 0;
  std::unique_ptr<std::byte[]> registers;
  std::vector<Group> groups;
  uint32_t alive = 0;
  bool at_barrier = false;
  int line = 0;  // of the instruction that runs
  // cp.async of each lane: the open group, and those committed.
  std::vector<Copy> open_copies[kWarpLanes];
  std::deque<std::vector<Copy>> copies[kWarpLanes];
};

struct BlockState {
  GridSize index;
  uint32_t number = 0, epoch = 0, phase = 0, shared_phase = 0;
  std::vector<std::byte> shared;
  History shared_history;
  std::vector<std::unique_ptr<WarpState>> warps;
  int warps_alive = 0, warps_at_barrier = 0;
};

class Machine {
 public:
  Machine(const Program& program, MachineOptions options) : program_(program), options_(options) {}

  void Run(const Kernel& kernel, const emulated::LaunchShape& shape, uint64_t seed,
           const void* arguments, size_t argument_bytes);

  // Of operations:
  // value: what a write is about to leave there.
  std::byte* Global(WarpState& warp, int lane, uint64_t address, int bytes, Access access,
                    const std::byte* value = nullptr);
  std::byte* Shared(WarpState& warp, int lane, uint32_t address, int bytes, Access access,
                    const std::byte* value = nullptr);
  const std::byte* Parameter(WarpState& warp, uint64_t offset, int bytes) const;
  void Fence(WarpState& warp, uint32_t mask);
  void StartCopy(WarpState& warp, int lane, const Copy& copy);
  void AwaitCopies(WarpState& warp, int lane, size_t pending);
  // The lane that comes first where all of them do something at once.
  int first_lane() { return seed_ == 0 ? 0 : static_cast<int>(random_() % kWarpLanes); }
  const MachineOptions& options() const { return options_; }
  [[noreturn]] void Fail(const WarpState& warp, int lane, absl::string_view what) const;

 private:
  void StartBlock(BlockState& block, uint64_t index);
  // Runs a warp until it waits, ends, or has had its turn; whether anything was done.
  bool RunWarp(WarpState& warp, int turn);
  // The group to run, or -1.
  int ChooseGroup(WarpState& warp);
  void Split(WarpState& warp, size_t group, const Instruction& instruction, uint32_t taken);
  // At an instruction where the warp meets: whether all are there; else the group waits.
  bool Meet(WarpState& warp, size_t& group);
  void MergeAt(WarpState& warp, size_t& group);
  void EndLanes(WarpState& warp, size_t group, uint32_t mask);
  void ReleaseBarrier(BlockState& block);

  const Program& program_;
  const MachineOptions options_;
  const Kernel* kernel_ = nullptr;
  emulated::LaunchShape shape_;
  const std::byte* arguments_ = nullptr;
  uint64_t seed_ = 0;
  std::mt19937_64 random_;
  uint32_t now_ = 0;
  std::unique_ptr<History> history_;
  std::vector<std::unique_ptr<BlockState>> resident_;
};

}  // namespace baton::backend::cuda::ptx

#endif  // BATON_TESTS_COMMON_BACKEND_CUDA_PTX_MACHINE_H_
