#include "tests/common/backend/cuda/ptx/machine.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton::backend::cuda::ptx {
namespace {

constexpr size_t kMostResident = 4;

uint32_t BytesMask(uint64_t address, int bytes) {
  return ((1u << bytes) - 1) << (address % 4) & 0xfu;
}

}  // namespace

void Machine::Fail(const WarpState& warp, int lane, absl::string_view what) const {
  const GridSize& at = warp.block->index;
  BATON_CHECK(false) << kernel_->name << ", PTX line " << warp.line << ": thread "
                     << warp.thread(lane) << " of block " << warp.block->number << " (" << at.x
                     << ", " << at.y << ", " << at.z << ") " << what << "; seed " << seed_;
  std::abort();
}

std::byte* Machine::Global(WarpState& warp, int lane, uint64_t address, int bytes, Access access,
                           const std::byte* value) {
  if (address % static_cast<uint64_t>(bytes) != 0) {
    Fail(warp, lane, absl::StrCat("accesses ", bytes, " bytes at ", absl::Hex(address)));
  }
  if (value != nullptr && std::memcmp(reinterpret_cast<const std::byte*>(address), value,
                                      static_cast<size_t>(bytes)) == 0) {
    access = Access::kWriteSame;
  }
  for (int done = 0; done < bytes; done += 4) {
    const uint64_t word = address + static_cast<uint64_t>(done);
    const std::string wrong = history_->Touch(word, bytes < 4 ? BytesMask(word, bytes) : 0xfu,
                                              access, warp.block->phase, warp.thread(lane), now_);
    if (!wrong.empty()) Fail(warp, lane, absl::StrCat("in global memory ", wrong));
  }
  if (access == Access::kAtomic) history_->Atomic(warp.block->phase, warp.thread(lane), now_);
  return reinterpret_cast<std::byte*>(address);
}

std::byte* Machine::Shared(WarpState& warp, int lane, uint32_t address, int bytes, Access access,
                           const std::byte* value) {
  BlockState& block = *warp.block;
  if (address % static_cast<uint32_t>(bytes) != 0 ||
      uint64_t{address} + static_cast<uint64_t>(bytes) > block.shared.size()) {
    Fail(warp, lane,
         absl::StrCat("accesses ", bytes, " bytes of shared memory at ", address, " of ",
                      block.shared.size()));
  }
  if (value != nullptr &&
      std::memcmp(block.shared.data() + address, value, static_cast<size_t>(bytes)) == 0) {
    access = Access::kWriteSame;
  }
  for (int done = 0; done < bytes; done += 4) {
    const uint64_t word = address + static_cast<uint32_t>(done);
    const std::string wrong =
        block.shared_history.Touch(word, bytes < 4 ? BytesMask(word, bytes) : 0xfu, access,
                                   block.shared_phase, warp.thread(lane), now_);
    if (!wrong.empty()) Fail(warp, lane, absl::StrCat("in shared memory ", wrong));
  }
  return block.shared.data() + address;
}

const std::byte* Machine::Parameter(WarpState& warp, uint64_t offset, int bytes) const {
  if (offset + static_cast<uint64_t>(bytes) > kernel_->parameter_bytes) {
    Fail(warp, 0, "reads beyond the parameters");
  }
  return arguments_ + offset;
}

void Machine::Fence(WarpState& warp, uint32_t mask) {
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if (mask >> lane & 1) history_->Fence(warp.block->phase, warp.thread(lane), now_);
  }
}

// The bytes come at the wait that makes it sure; until then the place is poisoned.
void Machine::StartCopy(WarpState& warp, int lane, const Copy& copy) {
  std::memset(Shared(warp, lane, copy.to, 16, Access::kWrite), 0xff, 16);
  warp.open_copies[lane].push_back(copy);
}

void Machine::AwaitCopies(WarpState& warp, int lane, size_t pending) {
  auto& groups = warp.copies[lane];
  while (groups.size() > pending) {
    for (const Copy& copy : groups.front()) {
      std::byte* to = Shared(warp, lane, copy.to, 16, Access::kWrite);
      if (copy.valid) {
        std::memcpy(to, Global(warp, lane, copy.from, 16, Access::kRead), 16);
      } else {
        std::memset(to, 0, 16);
      }
    }
    groups.pop_front();
  }
}

void Machine::Run(const Kernel& kernel, const emulated::LaunchShape& shape, uint64_t seed,
                  const void* arguments, size_t argument_bytes) {
  BATON_CHECK_EQ(argument_bytes, kernel.parameter_bytes) << "arguments of " << kernel.name;
  BATON_CHECK(shape.threads > 0 && shape.threads % kWarpLanes == 0 &&
              shape.threads <= kernel.max_threads)
      << shape.threads << " threads of " << kernel.name;
  kernel_ = &kernel;
  shape_ = shape;
  arguments_ = static_cast<const std::byte*>(arguments);
  seed_ = seed;
  random_.seed(seed);
  now_ = 0;
  history_ = std::make_unique<History>();
  const uint64_t blocks = uint64_t{shape.grid.x} * shape.grid.y * shape.grid.z;
  std::vector<uint64_t> order(blocks);
  std::iota(order.begin(), order.end(), uint64_t{0});
  if (seed != 0) std::shuffle(order.begin(), order.end(), random_);
  resident_.clear();
  const size_t at_once = std::min<uint64_t>(blocks, seed == 0 ? 1 : 1 + random_() % kMostResident);
  size_t next = 0;
  for (; next < at_once; ++next) {
    resident_.push_back(std::make_unique<BlockState>());
    StartBlock(*resident_.back(), order[next]);
  }
  while (!resident_.empty()) {
    bool moved = false;
    const size_t start = seed == 0 ? 0 : random_() % resident_.size();
    for (size_t i = 0; i < resident_.size() && !moved; ++i) {
      const size_t at = (start + i) % resident_.size();
      BlockState& block = *resident_[at];
      const size_t first = seed == 0 ? 0 : random_() % block.warps.size();
      // Some warps get far ahead of others.
      constexpr int kTurns[] = {1, 10, 100, 1 << 30};
      for (size_t w = 0; w < block.warps.size() && !moved; ++w) {
        WarpState& warp = *block.warps[(first + w) % block.warps.size()];
        if (warp.alive == 0 || warp.at_barrier) continue;
        moved = RunWarp(warp, seed == 0 ? 1 << 30 : kTurns[random_() % 4]);
      }
      if (block.warps_alive > 0) continue;
      if (next < blocks) {
        StartBlock(block, order[next++]);
      } else {
        resident_.erase(resident_.begin() + static_cast<std::ptrdiff_t>(at));
      }
      break;
    }
    BATON_CHECK(moved || resident_.empty()) << kernel.name << " hangs";
  }
}

void Machine::StartBlock(BlockState& block, uint64_t index) {
  const GridSize& grid = shape_.grid;
  block.index = {static_cast<unsigned>(index % grid.x),
                 static_cast<unsigned>(index / grid.x % grid.y),
                 static_cast<unsigned>(index / grid.x / grid.y)};
  if (block.warps.empty()) block.shared_history.StartBlock();
  block.number = history_->StartBlock();
  block.epoch = 0;
  block.phase = history_->StartPhase(block.number, 0);
  block.shared_phase = block.shared_history.StartPhase(0, block.shared_phase + 1);
  block.shared.assign(kernel_->static_shared_bytes + shape_.shared_bytes, std::byte{0xff});
  const auto warps = static_cast<size_t>(shape_.threads / kWarpLanes);
  block.warps_alive = static_cast<int>(warps);
  block.warps_at_barrier = 0;
  for (size_t w = 0; w < warps; ++w) {
    if (block.warps.size() == w) {
      block.warps.push_back(std::make_unique<WarpState>());
      block.warps[w]->registers = std::make_unique<std::byte[]>(kernel_->register_bytes + 64);
      std::memset(block.warps[w]->registers.get(), 0xff, kernel_->register_bytes);
    }
    WarpState& warp = *block.warps[w];
    warp.machine = this;
    warp.block = &block;
    warp.index = static_cast<int>(w);
    warp.alive = kAllLanes;
    warp.at_barrier = false;
    warp.groups.assign(1, {kAllLanes, 0, false});
    for (const Constant& constant : kernel_->constants) {
      if (constant.bytes == 0) {
        warp.Bits(constant.place) = static_cast<uint32_t>(constant.value);
      } else if (constant.bytes == 2) {
        std::fill_n(warp.At<uint16_t>(constant.place), kWarpLanes,
                    static_cast<uint16_t>(constant.value));
      } else if (constant.bytes == 4) {
        std::fill_n(warp.At<uint32_t>(constant.place), kWarpLanes,
                    static_cast<uint32_t>(constant.value));
      } else {
        std::fill_n(warp.At<uint64_t>(constant.place), kWarpLanes, constant.value);
      }
    }
    for (const auto& [place, special] : kernel_->specials) {
      const uint32_t values[] = {0,
                                 block.index.x,
                                 block.index.y,
                                 block.index.z,
                                 static_cast<uint32_t>(shape_.threads),
                                 grid.x,
                                 grid.y,
                                 grid.z};
      for (int lane = 0; lane < kWarpLanes; ++lane) {
        warp.At<uint32_t>(place)[lane] =
            special == Special::kTidX ? warp.thread(lane) : values[static_cast<int>(special)];
      }
    }
  }
}

int Machine::ChooseGroup(WarpState& warp) {
  int chosen = -1, ready = 0;
  for (size_t g = 0; g < warp.groups.size(); ++g) {
    if (warp.groups[g].waits) continue;
    ++ready;
    // The one that is behind, so that it comes together with the others; now and then any.
    if (chosen < 0 || warp.groups[g].pc < warp.groups[static_cast<size_t>(chosen)].pc) {
      chosen = static_cast<int>(g);
    }
  }
  if (ready > 1 && seed_ != 0 && random_() % 4 == 0) {
    auto skip = static_cast<int>(random_() % static_cast<unsigned>(ready));
    for (size_t g = 0; g < warp.groups.size(); ++g) {
      if (!warp.groups[g].waits && skip-- == 0) return static_cast<int>(g);
    }
  }
  return chosen;
}

void Machine::MergeAt(WarpState& warp, size_t& group) {
  for (size_t g = 0; g < warp.groups.size();) {
    if (g != group && warp.groups[g].pc == warp.groups[group].pc) {
      warp.groups[group].mask |= warp.groups[g].mask;
      warp.groups.erase(warp.groups.begin() + static_cast<std::ptrdiff_t>(g));
      if (g < group) --group;
    } else {
      ++g;
    }
  }
}

bool Machine::Meet(WarpState& warp, size_t& group) {
  MergeAt(warp, group);
  WarpState::Group& mine = warp.groups[group];
  mine.waits = mine.mask != warp.alive;
  return !mine.waits;
}

void Machine::Split(WarpState& warp, size_t group, const Instruction& instruction, uint32_t taken) {
  WarpState::Group& mine = warp.groups[group];
  const uint32_t next = mine.pc + 1;
  if (taken == mine.mask) {
    mine.pc = instruction.target;
  } else if (taken == 0) {
    mine.pc = next;
  } else {
    mine.mask &= ~taken;
    mine.pc = next;
    warp.groups.push_back({taken, instruction.target, false});
  }
}

void Machine::EndLanes(WarpState& warp, size_t group, uint32_t mask) {
  for (int lane = 0; lane < kWarpLanes; ++lane) {
    if ((mask >> lane & 1) != 0 && !(warp.copies[lane].empty() && warp.open_copies[lane].empty())) {
      Fail(warp, lane, "ends without waiting for its copies");
    }
  }
  warp.alive &= ~mask;
  warp.groups[group].mask &= ~mask;
  if (warp.groups[group].mask == 0) {
    warp.groups.erase(warp.groups.begin() + static_cast<std::ptrdiff_t>(group));
  } else {
    ++warp.groups[group].pc;
  }
  // Those that wait for the warp's lanes may now be all.
  for (WarpState::Group& waiting : warp.groups) waiting.waits = false;
  BlockState& block = *warp.block;
  if (warp.alive == 0) {
    --block.warps_alive;
    ReleaseBarrier(block);
  }
}

void Machine::ReleaseBarrier(BlockState& block) {
  if (block.warps_at_barrier == 0 || block.warps_at_barrier < block.warps_alive) return;
  block.warps_at_barrier = 0;
  ++block.epoch;
  block.phase = history_->StartPhase(block.number, block.epoch);
  block.shared_phase = block.shared_history.StartPhase(0, block.shared_phase + 1);
  for (const auto& warp : block.warps) warp->at_barrier = false;
}

bool Machine::RunWarp(WarpState& warp, int turn) {
  const Instruction* const code = kernel_->code.data();
  int chosen = ChooseGroup(warp);
  if (chosen < 0) {
    Fail(warp, std::countr_zero(warp.alive),
         "waits for lanes of its warp that wait elsewhere: the kernel hangs");
  }
  auto group = static_cast<size_t>(chosen);
  for (; turn > 0; --turn) {
    const Instruction& instruction = code[warp.groups[group].pc];
    if (instruction.is_label && warp.groups.size() > 1) {
      MergeAt(warp, group);
      chosen = ChooseGroup(warp);
      if (chosen >= 0 && static_cast<size_t>(chosen) != group) {
        group = static_cast<size_t>(chosen);
        continue;
      }
    }
    WarpState::Group& mine = warp.groups[group];
    warp.line = instruction.line;
    ++now_;
    uint32_t mask = mine.mask;
    if (instruction.is_predicated) {
      const uint32_t bits = warp.Bits(instruction.predicate);
      mask &= instruction.negated ? ~bits : bits;
    }
    switch (instruction.flow) {
      case Flow::kNext:
        if (mask != 0) instruction.handler(warp, instruction, mask);
        ++mine.pc;
        continue;
      case Flow::kBranch:
        Split(warp, group, instruction, mask);
        if (warp.groups.size() == 1) continue;
        break;
      case Flow::kExit:
        if (mask == 0) {
          ++mine.pc;
          continue;
        }
        EndLanes(warp, group, mask);
        if (warp.alive == 0) return true;
        break;
      case Flow::kTrap:
        if (mask != 0) Fail(warp, std::countr_zero(mask), "traps");
        ++mine.pc;
        continue;
      case Flow::kBarrier:
      case Flow::kTogether:
        if (mask != mine.mask) {
          Fail(warp, std::countr_zero(mine.mask), "comes to a meeting under a condition");
        }
        if (!Meet(warp, group)) break;
        if (instruction.flow == Flow::kTogether) {
          if (warp.alive != kAllLanes) {
            Fail(warp, std::countr_zero(~warp.alive), "has ended where its warp meets");
          }
          instruction.handler(warp, instruction, kAllLanes);
          ++warp.groups[group].pc;
          continue;
        }
        ++warp.groups[group].pc;
        warp.at_barrier = true;
        ++warp.block->warps_at_barrier;
        ReleaseBarrier(*warp.block);
        return true;
    }
    // The group changed, or waits.
    chosen = ChooseGroup(warp);
    if (chosen < 0) return true;  // judged at the next turn
    group = static_cast<size_t>(chosen);
  }
  return true;
}

}  // namespace baton::backend::cuda::ptx
