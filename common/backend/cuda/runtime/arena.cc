#include "common/backend/cuda/runtime/arena.h"

#include <algorithm>
#include <iterator>

#include "common/base/check.h"

namespace baton::backend::cuda {

Arena::Arena(size_t size_bytes) : size_bytes_(size_bytes / kAlignment * kAlignment) {
  if (size_bytes_ > 0) free_[0] = size_bytes_;
}

std::optional<size_t> Arena::Take(size_t size_bytes) {
  if (size_bytes > size_bytes_) return std::nullopt;
  // A part of 0 bytes takes one unit, so that offsets are unique.
  const size_t size = (std::max<size_t>(size_bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
  const auto range = std::find_if(free_.begin(), free_.end(),
                                  [&](const auto& entry) { return entry.second >= size; });
  if (range == free_.end()) return std::nullopt;
  const auto [offset, free_size] = *range;
  free_.erase(range);
  if (free_size > size) free_[offset + size] = free_size - size;
  taken_[offset] = size;
  used_bytes_ += size;
  return offset;
}

void Arena::Give(size_t offset) {
  const auto taken = taken_.find(offset);
  BATON_CHECK(taken != taken_.end()) << "offset " << offset << " is not taken";
  size_t begin = offset, size = taken->second;
  used_bytes_ -= size;
  taken_.erase(taken);
  const auto next = free_.lower_bound(begin);
  if (next != free_.end() && next->first == begin + size) {
    size += next->second;
    free_.erase(next);
  }
  const auto behind = free_.lower_bound(begin);
  if (behind != free_.begin()) {
    const auto before = std::prev(behind);
    if (before->first + before->second == begin) {
      begin = before->first;
      size += before->second;
      free_.erase(before);
    }
  }
  free_[begin] = size;
}

size_t Arena::LargestFree() const {
  size_t largest = 0;
  for (const auto& [offset, size] : free_) largest = std::max(largest, size);
  return largest;
}

}  // namespace baton::backend::cuda
