// A row of logits, and the order of its tokens: by logit, highest first, then by id.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_TOKEN_ORDER_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_TOKEN_ORDER_CUH_

#include "common/backend/cuda/simt/simt.h"

namespace baton::backend::cuda {

inline constexpr float kInfiniteLogit = __builtin_huge_valf();
inline constexpr float kHighestLogit = 3.40282346638528859812e38f;

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

// The tokens from `begin` on. A request that changes logits has the quads (four adjacent logits)
// with a changed one in `adjusted`, and knows them by a byte each that is not 0.
struct Row {
  const float* logits;  // of 16-byte alignment
  int size;
  int begin = 0;                            // a multiple of 4
  const float* adjusted = nullptr;          // of 16-byte alignment
  const uint8_t* adjusted_quads = nullptr;  // null: none

  BATON_DEVICE bool IsAdjusted(int quad) const {
    return adjusted_quads != nullptr && LoadGlobal(adjusted_quads + quad) != 0;
  }
};

// Runs body(first id, four logits, whether they are adjusted ones) for all of a row, by all threads
// of the block; ids from the row's size on are no tokens. kLoads loads are under way at a time.
template <int kLoads, class Body>
BATON_DEVICE void ForQuads(const Row& row, const Body& body) {
  const int quads = (row.size + 3) / 4;
  for (int first = row.begin / 4 + ThreadIndex(); first < quads; first += kLoads * BlockThreads()) {
    Vec16 v[kLoads];
    bool adjusted[kLoads];
    BATON_UNROLL for (int i = 0; i < kLoads; ++i) {
      const int quad = first + i * BlockThreads();
      if (quad >= quads) continue;
      adjusted[i] = row.IsAdjusted(quad);
      v[i] = LoadFresh16((adjusted[i] ? row.adjusted : row.logits) + quad * 4);
    }
    BATON_UNROLL for (int i = 0; i < kLoads; ++i) {
      const int quad = first + i * BlockThreads();
      if (quad < quads) body(quad * 4, v[i], adjusted[i]);
    }
  }
}
// body(id, logit)
template <int kLoads = 2, class Body>
BATON_DEVICE void ForTokens(const Row& row, const Body& body) {
  ForQuads<kLoads>(row, [&](int first, const Vec16& v, bool) {
    BATON_UNROLL for (int i = 0; i < 4; ++i) {
      if (first + i < row.size) body(first + i, BitsFloat(v.x[i]));
    }
  });
}

// The highest of the block's values, of each of kCount; scratch: kCount a warp, in shared memory.
template <int kCount>
BATON_DEVICE void BlockHighest(uint64_t (&values)[kCount], uint64_t* scratch) {
  BATON_UNROLL for (int i = 0; i < kCount; ++i) {
    BATON_UNROLL for (int mask = kWarpLanes / 2; mask > 0; mask /= 2) {
      values[i] = Greatest(values[i], ShuffleXor(values[i], mask));
    }
    if (Lane() == 0) scratch[Warp() * kCount + i] = values[i];
  }
  SyncThreads();
  for (int warp = 0; warp < BlockThreads() / kWarpLanes; ++warp) {
    BATON_UNROLL for (int i = 0; i < kCount; ++i) {
      values[i] = Greatest(values[i], scratch[warp * kCount + i]);
    }
  }
}

struct Inspected {
  static constexpr int kCount = 4;
  uint64_t highest;    // the first place of the order; 0: all are -inf
  uint64_t lowest;     // of the finite logits: ~key; 0: all are -inf
  uint64_t is_finite;  // 1: one of the logits was finite before the request changed it
  uint64_t first_bad;  // of the lowest id whose logit was NaN or +inf: PlaceOf(0, id); 0: none
};
// By all threads together. scratch: kCount a warp, in shared memory.
BATON_DEVICE Inspected Inspect(const Row& row, uint64_t* scratch) {
  constexpr int kNone = 0x7fffffff;
  float highest = -kInfiniteLogit, lowest = kInfiniteLogit;
  int highest_id = 0, first_bad = kNone;
  bool is_finite = false;
  ForQuads<4>(row, [&](int first, const Vec16& v, bool adjusted) {
    BATON_UNROLL for (int i = 0; i < 4; ++i) {
      if (first + i >= row.size) continue;
      const float logit = BitsFloat(v.x[i]);
      if (!(logit <= kHighestLogit)) first_bad = Least(first_bad, first + i);
      if (logit > highest) {  // a thread meets its ids in order
        highest = logit;
        highest_id = first + i;
      }
      if (logit > -kInfiniteLogit) lowest = Least(lowest, logit);
    }
    if (!adjusted) return;
    const Vec16 raw = LoadFresh16(row.logits + first);
    BATON_UNROLL for (int i = 0; i < 4; ++i) {
      if (first + i >= row.size) continue;
      const float logit = BitsFloat(raw.x[i]);
      if (!(logit <= kHighestLogit)) first_bad = Least(first_bad, first + i);
      if (logit > -kInfiniteLogit) is_finite = true;
    }
  });
  const bool found = highest > -kInfiniteLogit;
  uint64_t values[Inspected::kCount] = {
      found ? PlaceOf(KeyOf(highest), highest_id) : 0, found ? uint64_t{~KeyOf(lowest)} : 0,
      found || is_finite ? uint64_t{1} : 0, first_bad == kNone ? 0 : PlaceOf(0, first_bad)};
  BlockHighest(values, scratch);
  return {values[0], values[1], values[2], values[3]};
}

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_TOKEN_ORDER_CUH_
