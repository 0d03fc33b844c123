// What a worker's card says of the pages of its KV blocks.
#ifndef BATON_ROUTER_FLEET_CARD_SIZES_H_
#define BATON_ROUTER_FLEET_CARD_SIZES_H_

#include <algorithm>

#include "baton/internal/v1/worker.pb.h"
#include "common/kv/kv_sizes.h"

namespace baton::router {

// Far above any model, and small enough that no sum of pages overflows.
inline constexpr int kMostPagesOfBlock = 1 << 17;
inline constexpr int kMostWindowBlocks = 1 << 26;

inline bool HasSaneShape(const internal::v1::WorkerCard& card) {
  if (!card.has_block_shape()) return true;
  const internal::v1::BlockShape& shape = card.block_shape();
  return shape.full_pages() >= 1 && shape.full_pages() <= kMostPagesOfBlock &&
         shape.window_pages() >= 0 && shape.window_pages() <= kMostPagesOfBlock &&
         shape.window_blocks() >= 0 && shape.window_blocks() <= kMostWindowBlocks &&
         shape.window_bytes() >= 0 && shape.window_bytes() <= card.kv_block_bytes();
}

// REQUIRES: HasSaneShape(card).
inline kv::KvSizes KvSizesOf(const internal::v1::WorkerCard& card) {
  kv::KvSizes sizes;
  sizes.block_bytes = static_cast<double>(card.kv_block_bytes());
  if (!card.has_block_shape()) return sizes;
  const internal::v1::BlockShape& shape = card.block_shape();
  sizes.shape = {shape.full_pages(), shape.window_pages(), shape.window_blocks(),
                 shape.recurrent()};
  sizes.window_bytes = static_cast<double>(shape.window_bytes());
  return sizes;
}

}  // namespace baton::router

#endif  // BATON_ROUTER_FLEET_CARD_SIZES_H_
