#include "tests/common/backend/cuda/ptx/history.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace baton::backend::cuda::ptx {

uint32_t History::StartBlock() {
  blocks_.emplace_back();
  return static_cast<uint32_t>(blocks_.size() - 1);
}

uint32_t History::StartPhase(uint32_t block, uint32_t epoch) {
  phases_.push_back({block, epoch});
  return static_cast<uint32_t>(phases_.size() - 1);
}

History::Cell& History::At(uint64_t word) {
  const uint64_t number = word / kArrayWords;
  if (number != last_number_) {
    std::unique_ptr<Cells>& cells = cells_[number];
    if (cells == nullptr) cells = std::make_unique<Cells>();
    last_cells_ = cells.get();
    last_number_ = number;
  }
  return (*last_cells_)[word % kArrayWords];
}

bool History::Ordered(uint32_t before, uint16_t thread, uint32_t time, bool atomic, uint32_t now,
                      uint16_t thread_now) const {
  const Phase& then = phases_[before];
  const Phase& here = phases_[now];
  if (then.block == here.block) return before != now || thread == thread_now;
  const auto passed = [](const Mark& mark, uint16_t by, uint32_t epoch) {
    return mark.thread == by || mark.epoch < epoch;
  };
  // Released by the first atomic behind a fence that covers it. An atomic releases itself.
  uint32_t released = time;
  if (!atomic) {
    released = UINT32_MAX;
    const std::vector<Mark>& atomics = blocks_[then.block].atomics;
    for (const Mark& fence : blocks_[then.block].fences) {
      if (fence.time >= released) break;
      if (fence.time < time || (fence.thread != thread && fence.epoch <= then.epoch)) continue;
      const auto after =
          std::upper_bound(atomics.begin(), atomics.end(), fence.time,
                           [](uint32_t at, const Mark& mark) { return at < mark.time; });
      const auto release = std::find_if(after, atomics.end(), [&](const Mark& mark) {
        return passed(fence, mark.thread, mark.epoch);
      });
      if (release != atomics.end()) released = std::min(released, release->time);
    }
  }
  for (const Mark& seen : blocks_[here.block].atomics) {
    if (seen.time <= released) continue;
    for (const Mark& fence : blocks_[here.block].fences) {
      if (fence.time > seen.time && passed(seen, fence.thread, fence.epoch) &&
          passed(fence, thread_now, here.epoch)) {
        return true;
      }
    }
  }
  return false;
}

std::string History::Touch(uint64_t address, uint32_t byte_mask, Access access, uint32_t phase,
                           uint16_t thread, uint32_t time) {
  Cell& cell = At(address / 4);
  const bool writes =
      access == Access::kWrite || access == Access::kWriteSame || access == Access::kAtomic;
  if (writes && cell.read_only) return "writes what the kernel reads by ld.global.nc";
  if (access == Access::kReadOnly) {
    cell.read_only = true;
    if (cell.write_bytes != 0) return "reads by ld.global.nc what the kernel writes";
    return "";
  }
  const bool both_atomic = access == Access::kAtomic && cell.write_is_atomic;
  const bool same_value = access == Access::kWriteSame && !cell.write_is_atomic &&
                          phases_[cell.write_phase].block == phases_[phase].block;
  if ((cell.write_bytes & byte_mask) != 0 && !both_atomic && !same_value &&
      !Ordered(cell.write_phase, cell.write_thread, cell.write_time, cell.write_is_atomic, phase,
               thread)) {
    return absl::StrCat(writes ? "writes" : "reads", " what thread ", cell.write_thread,
                        " of block ", phases_[cell.write_phase].block,
                        cell.write_is_atomic ? " changed by an atomic" : " wrote",
                        ", with nothing between them that orders the two");
  }
  if (writes) {
    if ((cell.read_bytes & byte_mask) != 0 &&
        !Ordered(cell.read_phase, cell.read_thread, cell.read_time, false, phase, thread)) {
      return absl::StrCat("writes what ",
                          cell.read_thread == kManyThreads
                              ? "several threads"
                              : absl::StrCat("thread ", cell.read_thread),
                          " of block ", phases_[cell.read_phase].block,
                          " read, with nothing between them that orders the two");
    }
    cell.write_phase = phase;
    cell.write_time = time;
    cell.write_thread = thread;
    cell.write_bytes = static_cast<uint8_t>(byte_mask);
    cell.write_is_atomic = access == Access::kAtomic;
  } else {
    const bool same = cell.read_phase == phase && cell.read_bytes != 0;
    cell.read_thread = same && cell.read_thread != thread ? kManyThreads : thread;
    cell.read_bytes = static_cast<uint8_t>((same ? cell.read_bytes : 0u) | byte_mask);
    cell.read_phase = phase;
    cell.read_time = time;
  }
  return "";
}

}  // namespace baton::backend::cuda::ptx
