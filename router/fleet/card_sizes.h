// What a worker's card says of the pages of its KV blocks.
#ifndef BATON_ROUTER_FLEET_CARD_SIZES_H_
#define BATON_ROUTER_FLEET_CARD_SIZES_H_

#include <algorithm>

#include "baton/internal/v1/worker.pb.h"
#include "common/kv/kv_sizes.h"

namespace baton::router {

// Far above any model, and small enough that no sum of pages overflows.
inline constexpr int kMostPagesOfBlock = 4096;
inline constexpr int kMostWindowBlocks = 1 << 26;

inline bool HasSanePages(const internal::v1::WorkerCard& card) {
  if (!card.has_kv_pages()) return true;
  const internal::v1::KvPages& pages = card.kv_pages();
  return pages.full_pages() >= 1 && pages.full_pages() <= kMostPagesOfBlock &&
         pages.window_pages() >= 0 && pages.window_pages() <= kMostPagesOfBlock &&
         pages.window_blocks() >= 0 && pages.window_blocks() <= kMostWindowBlocks &&
         pages.window_bytes() >= 0 && pages.window_bytes() <= card.kv_block_bytes();
}

// REQUIRES: HasSanePages(card).
inline kv::KvSizes KvSizesOf(const internal::v1::WorkerCard& card) {
  kv::KvSizes sizes;
  sizes.block_bytes = static_cast<double>(card.kv_block_bytes());
  if (!card.has_kv_pages()) return sizes;
  const internal::v1::KvPages& pages = card.kv_pages();
  sizes.shape = {pages.full_pages(), pages.window_pages(), pages.window_blocks()};
  sizes.window_bytes = static_cast<double>(pages.window_bytes());
  return sizes;
}

}  // namespace baton::router

#endif  // BATON_ROUTER_FLEET_CARD_SIZES_H_
