// The room that KV of a prompt's blocks takes, and the bytes that move with it: what routers know
// of a model's KV memory.
#ifndef BATON_COMMON_KV_KV_SIZES_H_
#define BATON_COMMON_KV_KV_SIZES_H_

#include <algorithm>
#include <cstdint>
#include <limits>

#include "common/kv/block_pool.h"

namespace baton::kv {

struct KvSizes {
  BlockShape shape;
  double block_bytes = 0;   // of a block, all layers
  double window_bytes = 0;  // of these, layers with a window

  // The pages that blocks [first, end) of a sequence take at a worker that has those before
  // `first`.
  int PagesOf(int first, int end) const {
    const int blocks = std::max(0, end - first);
    const int64_t pages = shape.LeastPages(blocks);
    return static_cast<int>(std::min<int64_t>(pages, std::numeric_limits<int>::max()));
  }
  // The pages that so many whole blocks from KV tiers take: of layers with a window, tiers have
  // all; of recurrent ones, a state behind the last block.
  double LoadedPages(double blocks) const {
    return shape.recurrent ? blocks * shape.full_pages + shape.window_pages
                           : blocks * shape.pages();
  }
  // Blocks whose KV, without states, would be as many bytes as a state; 0: there are none.
  double StateBlocks() const {
    return shape.recurrent && block_bytes > window_bytes
               ? window_bytes / (block_bytes - window_bytes)
               : 0;
  }
  // Blocks that would be as many bytes as those which such a worker gets of blocks [first, end).
  double MovedBlocks(int first, int end) const {
    const int blocks = std::max(0, end - first);
    if (block_bytes <= 0 || !shape.windowed()) return blocks;
    const int beyond = std::max(0, blocks - shape.window_blocks);
    return blocks - beyond * window_bytes / block_bytes;
  }
};

}  // namespace baton::kv

#endif  // BATON_COMMON_KV_KV_SIZES_H_
