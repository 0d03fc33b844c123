// A row of logits, and the order of its tokens: by logit, highest first, then by id.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_TOKEN_ORDER_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_TOKEN_ORDER_CUH_

#include "common/backend/cuda/simt/simt.h"

namespace baton::backend::cuda {

// A logit's bits, so that a higher logit has a higher key; zeros are equal. Not of NaN.
BATON_DEVICE uint32_t KeyOf(float logit) {
  const uint32_t bits = FloatBits(Add(logit, 0.0f));  // -0 + 0 is 0
  return bits >> 31 != 0 ? ~bits : bits | 0x80000000u;
}
BATON_DEVICE float LogitOfKey(uint32_t key) {
  return BitsFloat(key >> 31 != 0 ? key & 0x7fffffffu : ~key);
}
// A token's place in the order: the earlier, the higher. 0 is no token's.
BATON_DEVICE uint64_t PlaceOf(uint32_t key, int id) {
  return uint64_t{key} << 32 | ~static_cast<uint32_t>(id);
}
BATON_DEVICE int IdOf(uint64_t place) { return static_cast<int>(~static_cast<uint32_t>(place)); }
BATON_DEVICE float LogitOf(uint64_t place) {
  return LogitOfKey(static_cast<uint32_t>(place >> 32));
}

// The tokens from `begin` on.
struct Row {
  const float* logits;  // of 16-byte alignment
  int size;
  int begin = 0;  // a multiple of 4
};
// Some of a row's tokens, in any order.
struct TokenList {
  const uint64_t* places;  // of 16-byte alignment
  int count;
};
BATON_DEVICE int TokenCount(const Row& row) { return row.size - row.begin; }
BATON_DEVICE int TokenCount(const TokenList& list) { return list.count; }

// Runs body(first id, four logits) for all of a row, by all threads of the block; ids from the
// row's size on are no tokens. Several loads are under way at a time.
template <class Body>
BATON_DEVICE void ForQuads(const Row& row, const Body& body) {
  constexpr int kLoads = 2;
  const int quads = (row.size + 3) / 4;
  for (int first = row.begin / 4 + ThreadIndex(); first < quads; first += kLoads * BlockThreads()) {
    Vec16 v[kLoads];
    BATON_UNROLL for (int i = 0; i < kLoads; ++i) {
      const int quad = first + i * BlockThreads();
      if (quad < quads) v[i] = LoadFresh16(row.logits + quad * 4);
    }
    BATON_UNROLL for (int i = 0; i < kLoads; ++i) {
      const int quad = first + i * BlockThreads();
      if (quad < quads) body(quad * 4, v[i]);
    }
  }
}
// body(id, logit)
template <class Body>
BATON_DEVICE void ForTokens(const Row& row, const Body& body) {
  ForQuads(row, [&](int first, const Vec16& v) {
    BATON_UNROLL for (int i = 0; i < 4; ++i) {
      if (first + i < row.size) body(first + i, BitsFloat(v.x[i]));
    }
  });
}

template <class Body>
BATON_DEVICE void ForTokens(const TokenList& list, const Body& body) {
  for (int first = 2 * ThreadIndex(); first < list.count; first += 2 * BlockThreads()) {
    const Vec16 v = LoadFresh16(list.places + first);
    BATON_UNROLL for (int i = 0; i < 2; ++i) {
      if (first + i >= list.count) continue;
      const uint64_t place = uint64_t{v.x[2 * i + 1]} << 32 | v.x[2 * i];
      body(IdOf(place), LogitOf(place));
    }
  }
}

// The highest of the block's values; scratch: one a warp, in shared memory.
BATON_DEVICE uint64_t BlockHighest(uint64_t value, uint64_t* scratch) {
  BATON_UNROLL for (int mask = kWarpLanes / 2; mask > 0; mask /= 2) {
    value = Greatest(value, ShuffleXor(value, mask));
  }
  SyncThreads();
  if (Lane() == 0) scratch[Warp()] = value;
  SyncThreads();
  for (int warp = 0; warp < BlockThreads() / kWarpLanes; ++warp) {
    value = Greatest(value, scratch[warp]);
  }
  return value;
}

struct Inspected {
  uint64_t highest;    // the first place of the order; 0: all are -inf
  uint64_t first_bad;  // of the lowest id whose logit is NaN or +inf: PlaceOf(0, id); 0: none
};
// By all threads together. Copies the row, unless `copy` is null.
BATON_DEVICE Inspected Inspect(const Row& row, float* copy, uint64_t* scratch) {
  constexpr float kMax = 3.40282346638528859812e38f;
  uint64_t highest = 0, first_bad = 0;
  ForQuads(row, [&](int first, const Vec16& v) {
    if (copy != nullptr) Store16(copy + first, v);
    BATON_UNROLL for (int i = 0; i < 4; ++i) {
      const float logit = BitsFloat(v.x[i]);
      if (first + i >= row.size) continue;
      if (!(logit <= kMax)) first_bad = Greatest(first_bad, PlaceOf(0, first + i));
      if (logit >= -kMax) highest = Greatest(highest, PlaceOf(KeyOf(logit), first + i));
    }
  });
  highest = BlockHighest(highest, scratch);
  first_bad = BlockHighest(first_bad, scratch);
  return {highest, first_bad};
}

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_TOKEN_ORDER_CUH_
