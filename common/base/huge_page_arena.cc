#include "common/base/huge_page_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>

namespace baton {
namespace {

constexpr size_t kFirstChunk = size_t{64} << 10;
constexpr size_t kLargestChunk = size_t{32} << 20;

size_t RoundUp(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

}  // namespace

HugePageArena::~HugePageArena() {
  for (const Chunk& chunk : chunks_) ::operator delete(chunk.begin, chunk.alignment);
}

// The best fit, lowest address first.
void* HugePageArena::Allocate(size_t bytes) {
  bytes = RoundUp(bytes, kAlignment);
  auto found = by_size_.lower_bound({bytes, nullptr});
  if (found == by_size_.end()) {
    AddChunk(bytes);
    found = by_size_.lower_bound({bytes, nullptr});
  }
  const auto [size, begin] = *found;
  TakeHole(begin, size);
  if (size > bytes) AddHole(begin + bytes, size - bytes);
  return begin;
}

void HugePageArena::Free(void* block, size_t bytes) {
  char* begin = static_cast<char*>(block);
  char* end = begin + RoundUp(bytes, kAlignment);
  const auto next = holes_.lower_bound(begin);
  if (next != holes_.begin()) {
    const auto [before, size] = *std::prev(next);
    if (before + size == begin) {
      TakeHole(before, size);
      begin = before;
    }
  }
  if (const auto behind = holes_.find(end); behind != holes_.end()) {
    const size_t size = behind->second;
    TakeHole(end, size);
    end += size;
  }
  AddHole(begin, static_cast<size_t>(end - begin));
}

void HugePageArena::AddChunk(size_t least_bytes) {
  size_t bytes = std::max(least_bytes, std::clamp(chunk_bytes_, kFirstChunk, kLargestChunk));
  const bool huge = bytes >= kHugePage;
  if (huge) bytes = RoundUp(bytes, kHugePage);
  const auto alignment = static_cast<std::align_val_t>(huge ? kHugePage : kAlignment);
  char* begin = static_cast<char*>(::operator new(bytes, alignment));
#if defined(MADV_HUGEPAGE)
  if (huge) madvise(begin, bytes, MADV_HUGEPAGE);  // only speed is lost where the kernel refuses
#endif
  chunks_.push_back({begin, alignment});
  chunk_bytes_ += bytes;
  AddHole(begin, bytes);
}

void HugePageArena::AddHole(char* begin, size_t bytes) {
  holes_.emplace(begin, bytes);
  by_size_.emplace(bytes, begin);
}

void HugePageArena::TakeHole(char* begin, size_t bytes) {
  holes_.erase(begin);
  by_size_.erase({bytes, begin});
}

}  // namespace baton
