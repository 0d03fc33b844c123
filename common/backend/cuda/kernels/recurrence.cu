#include <algorithm>

#include "common/backend/cuda/kernels/recurrence.cuh"
#include "common/backend/cuda/kernels/recurrence.h"

namespace baton::backend::cuda {
namespace {

constexpr int kMostThreads = kUnitsOfBlock * kWarpLanes;

// The depths of a lane that a thread has: every second one, `count` of them.
template <int kHeld>
struct HeldDepths {
  BATON_DEVICE explicit HeldDepths(float*) {}
  BATON_DEVICE float& operator[](int i) { return depths[i]; }
  float depths[kHeld];
};
// In shared memory, as a unit is in global memory.
template <>
struct HeldDepths<0> {
  BATON_DEVICE explicit HeldDepths(float* unit) : depths(unit + Lane()) {}
  BATON_DEVICE float& operator[](int i) { return depths[i * kWarpLanes]; }
  float* depths;
};

// body(i) for i = 0, 4, ... below count, a multiple of 4.
template <int kHeld, class Body>
BATON_DEVICE void ForQuads(int count, const Body& body) {
  if constexpr (kHeld == 0) {
    for (int i = 0; i < count; i += 4) body(i);
  } else {
    BATON_UNROLL for (int i = 0; i < kHeld; i += 4) {
      if (i < count) body(i);
    }
  }
}

BATON_DEVICE void LoadQuad(const float* shared, float (&to)[4]) {
  const Vec16 v = LoadShared16(shared);
  BATON_UNROLL for (int i = 0; i < 4; ++i) to[i] = BitsFloat(v.x[i]);
}

// The parts of a block's shared memory, for `tokens` tokens.
struct Staged {
  BATON_DEVICE Staged(const HeadsLaunch& launch)
      : row_floats(StagedFloats(launch.state.depth)),
        lanes(launch.units_of_block * kUnitLanes),
        keys(reinterpret_cast<float*>(SharedMemory())),
        queries(keys + launch.staged_tokens * row_floats),
        values(queries + launch.staged_tokens * row_floats),
        decay(values + launch.staged_tokens * lanes),
        rate(decay + launch.staged_tokens),
        states(rate + launch.staged_tokens) {}
  const int row_floats, lanes;
  float *const keys, *const queries, *const values, *const decay, *const rate, *const states;
};

// A row of a head's key or query: a half of the warp loads it, l from column l on. Normed, for the
// delta rule: x * factor / sqrt(the sum of its squares + eps).
template <bool kNorms>
BATON_DEVICE void StageRow(const float* from, int depth, float eps, float factor, float* to) {
  const int lane = Lane() % kUnitLanes, odd = lane % 2;
  // The staged place of column lane + 16 i.
  float* const at = to + odd * (depth / 2 + 4) + lane / 2;
  float squares = 0;
  for (int i = 0; i < depth; i += kUnitLanes) {
    const float x = LoadFloat(from + i + lane);
    at[i / 2] = x;
    squares = Fma(x, x, squares);
  }
  if constexpr (kNorms) {
    BATON_UNROLL for (int mask = kUnitLanes / 2; mask > 0; mask /= 2) {
      squares = Add(squares, ShuffleXor(squares, mask));
    }
    const float by = Divide(factor, SquareRoot(Add(squares, eps)));
    for (int i = 0; i < depth; i += kUnitLanes) at[i / 2] = Mul(at[i / 2], by);
  }
}

// Brings rows [row, row + count) of a head to shared memory, lanes from first_lane on.
template <bool kDelta>
BATON_DEVICE void Stage(const HeadsLaunch& launch, const Staged& staged, int head, int first_lane,
                        int64_t row, int count) {
  const int depth = launch.state.depth, warps = BlockThreads() / kWarpLanes;
  int key = head / launch.heads_of_key;
  if constexpr (kDelta) key %= launch.key_heads;
  const int64_t key_column = int64_t{key} * depth;
  const bool is_query = Lane() >= kUnitLanes;
  for (int t = Warp(); t < count; t += warps) {
    const float* from =
        (is_query ? launch.queries : launch.keys) + (row + t) * launch.row_stride + key_column;
    StageRow<kDelta>(from, depth, launch.norm_eps, is_query ? launch.query_factor : 1.0f,
                     (is_query ? staged.queries : staged.keys) + t * staged.row_floats);
  }
  const int lanes = Least(staged.lanes, launch.lanes - first_lane);
  const float* values = launch.values + row * launch.row_stride + head * launch.lanes + first_lane;
  for (int i = ThreadIndex(); i < count * lanes; i += BlockThreads()) {
    const int t = i / lanes, lane = i % lanes;
    staged.values[t * staged.lanes + lane] = LoadFloat(values + t * launch.row_stride + lane);
  }
  if (const int t = ThreadIndex(); t < count) {
    const float* gates = launch.gates + (row + t) * launch.gates_stride + head;
    const float bias = LoadFloat(launch.step_bias + head);
    float step = Softplus(Add(LoadFloat(kDelta ? gates + launch.heads : gates), bias));
    if constexpr (!kDelta) {
      // A NaN stays one.
      step = Least(Greatest(step, launch.least_step), launch.most_step);
    }
    staged.decay[t] = ExpOfNegative(Mul(LoadFloat(launch.decay + head), step));
    staged.rate[t] = kDelta ? Sigmoid(LoadFloat(gates)) : step;
  }
}

// S = decay S + key inputᵀ; out = queryᵀ S. The input is rate * value or, of the delta rule, rate *
// (value - decay keyᵀ S): keyᵀ S of the next token is summed while S is at hand.
template <bool kDelta, int kHeld>
BATON_DEVICE void Advance(const HeadsLaunch& launch, const Staged& staged, float skip, int count,
                          float* out, HeldDepths<kHeld>& state) {
  const int half = launch.state.depth / 2;
  const int parity = Lane() / kUnitLanes, lane = Lane() % kUnitLanes;
  const int own = parity * (half + 4);  // the thread's part of a staged row
  const float* key = staged.keys + own;
  const float* query = staged.queries + own;
  const float* value = staged.values + Warp() * kUnitLanes + lane;
  float sum = 0;
  if constexpr (kDelta) {
    ForQuads<kHeld>(half, [&](int i) {
      float k[4];
      LoadQuad(key + i, k);
      BATON_UNROLL for (int j = 0; j < 4; ++j) sum = Fma(k[j], state[i + j], sum);
    });
    sum = Add(sum, ShuffleXor(sum, kUnitLanes));
  }
  for (int t = 0; t < count; ++t) {
    const float decay = staged.decay[t], v = value[t * staged.lanes];
    float input = v;
    if constexpr (kDelta) input = Fma(-decay, sum, input);
    input = Mul(staged.rate[t], input);
    // The last token's own: the sum is not used.
    const float* next_key = t + 1 < count ? key + staged.row_floats : key;
    float y = 0, next = 0;
    ForQuads<kHeld>(half, [&](int i) {
      float k[4], q[4], n[4];
      LoadQuad(key + i, k);
      LoadQuad(query + i, q);
      if constexpr (kDelta) LoadQuad(next_key + i, n);
      BATON_UNROLL for (int j = 0; j < 4; ++j) {
        const float s = Fma(k[j], input, Mul(decay, state[i + j]));
        state[i + j] = s;
        y = Fma(q[j], s, y);
        if constexpr (kDelta) next = Fma(n[j], s, next);
      }
    });
    y = Add(y, ShuffleXor(y, kUnitLanes));
    if constexpr (kDelta) sum = Add(next, ShuffleXor(next, kUnitLanes));
    if constexpr (!kDelta) y = Fma(skip, v, y);
    if (parity == 0) StoreGlobal(out + t * launch.out_stride + lane, y);
    key = next_key;
    query += staged.row_floats;
  }
}

// kHeld: of HeldDepths.
template <bool kDelta, int kHeld>
BATON_KERNEL_RESIDENT(kMostThreads, kHeld > kFewHeldDepths ? 4 : 8)
HeadsKernel(HeadsLaunch launch) {
  AwaitPrevious();
  const int units = launch.lanes / kUnitLanes;
  const int groups = (units + launch.units_of_block - 1) / launch.units_of_block;
  const int parts = launch.heads * groups, block = static_cast<int>(BlockIndex().x);
  const StateEntry entry = LoadGlobal(launch.state.sequences + block / parts);
  if (entry.row_count == 0) return;
  const int head = block % parts / groups;
  const int first_unit = block % parts % groups * launch.units_of_block;
  // The last block of a head may have a warp that only helps to stage.
  const bool active = first_unit + Warp() < units;
  const int unit = head * units + first_unit + Warp();
  const int half = launch.state.depth / 2;
  const Staged staged(launch);
  HeldDepths<kHeld> state(staged.states + Warp() * launch.state.depth * kUnitLanes);
  if (active) {
    const float* from = entry.state < 0 ? nullptr : UnitIn(launch.state, entry.state, unit);
    ForQuads<kHeld>(half, [&](int i) {
      BATON_UNROLL for (int j = 0; j < 4; ++j) {
        state[i + j] = from == nullptr ? 0.0f : LoadFresh(from + (i + j) * kWarpLanes + Lane());
      }
    });
  }
  const float skip = kDelta ? 0.0f : LoadFloat(launch.skip + head);
  int done = 0;
  for (int store = 0; done < entry.row_count; ++store) {
    const StoreAt to = StoreOf(launch.state, entry, store);
    while (done < to.rows) {
      const int count = Least(launch.staged_tokens, to.rows - done);
      const int64_t row = entry.first_row + done;
      Stage<kDelta>(launch, staged, head, first_unit * kUnitLanes, row, count);
      SyncThreads();
      if (active) {
        Advance<kDelta, kHeld>(launch, staged, skip, count,
                               launch.out + row * launch.out_stride + int64_t{unit} * kUnitLanes,
                               state);
      }
      SyncThreads();
      done += count;
    }
    if (active && LoadGlobal(launch.state.tables + to.pages) >= 0) {
      float* const unit_to = UnitIn(launch.state, to.pages, unit);
      ForQuads<kHeld>(half, [&](int i) {
        BATON_UNROLL for (int j = 0; j < 4; ++j) {
          StoreGlobal(unit_to + (i + j) * kWarpLanes + Lane(), state[i + j]);
        }
      });
    }
  }
}

template <bool kDelta>
void LaunchHeads(HeadsLaunch launch, int sequences, Stream stream) {
  if (sequences == 0) return;
  const int depth = launch.state.depth, units = launch.lanes / kUnitLanes;
  const bool in_registers = depth <= 2 * kManyHeldDepths;
  // States in shared memory leave room for one.
  launch.units_of_block = in_registers ? std::min(units, kUnitsOfBlock) : 1;
  launch.staged_tokens = StagedTokens(depth);
  const int groups = (units + launch.units_of_block - 1) / launch.units_of_block;
  const int lanes = launch.units_of_block * kUnitLanes;
  const int floats = launch.staged_tokens * (2 * StagedFloats(depth) + lanes + 2) +
                     (in_registers ? 0 : depth * lanes);
  const auto kernel = depth <= 2 * kFewHeldDepths ? &HeadsKernel<kDelta, kFewHeldDepths>
                      : in_registers              ? &HeadsKernel<kDelta, kManyHeldDepths>
                                                  : &HeadsKernel<kDelta, 0>;
  Launch(kernel, {static_cast<unsigned>(sequences * launch.heads * groups), 1, 1},
         launch.units_of_block * kWarpLanes, static_cast<size_t>(floats) * sizeof(float), stream,
         launch);
}

}  // namespace

void LaunchGatedDelta(const HeadsLaunch& launch, int sequences, Stream stream) {
  LaunchHeads<true>(launch, sequences, stream);
}
void LaunchStateSpace(const HeadsLaunch& launch, int sequences, Stream stream) {
  LaunchHeads<false>(launch, sequences, stream);
}

}  // namespace baton::backend::cuda
