#include "common/backend/cuda/kernels/recurrence.cuh"
#include "common/backend/cuda/kernels/recurrence.h"

namespace baton::backend::cuda {
namespace {

constexpr int kFewTaps = 4;

BATON_DEVICE float InputOf(const ShortConvLaunch& launch, int64_t row, int channel) {
  const float x = LoadFloat(launch.x + row * launch.x_stride + channel);
  if (launch.before == nullptr) return x;
  return Mul(x, LoadFloat(launch.before + row * launch.before_stride + channel));
}

// Drops the oldest.
template <int kHeld>
BATON_DEVICE void Append(float input, float (&held)[kHeld]) {
  BATON_UNROLL for (int i = 0; i + 1 < kHeld; ++i) held[i] = held[i + 1];
  held[kHeld - 1] = input;
}

template <class OutRow>
BATON_DEVICE void StoreElement(float y, void* out, int64_t at) {
  auto* const to = static_cast<typename OutRow::Stored*>(out) + at;
  if constexpr (sizeof(*to) == sizeof(float)) {
    StoreGlobal(to, y);
  } else {
    StoreGlobal(to, OutRow::FromF32(y));
  }
}

// kTaps: at least the launch's. `held` has the inputs of the kTaps - 1 tokens before a row, of
// which the last taps - 1 count.
//
// A state may be overwritten in its place, and blocks run in any order. So the block that has a
// sequence's first row computes all rows that read the state, even beyond its own, and others leave
// these out.
template <class OutRow, int kTaps>
BATON_KERNEL_RESIDENT(kConvThreads, kTaps == 4 ? 8 : 6)
ShortConvKernel(ShortConvLaunch launch) {
  AwaitPrevious();
  constexpr int kHeld = kTaps - 1;
  const int channel = static_cast<int>(BlockIndex().y) * kConvThreads + ThreadIndex();
  if (channel >= launch.channels) return;
  const int kept = launch.taps - 1, unused = kTaps - launch.taps;
  const int unit = channel / kUnitLanes, lane = channel % kUnitLanes;
  float weight[kTaps];
  BATON_UNROLL for (int i = 0; i < kTaps; ++i) {
    weight[i] = i < unused
                    ? 0.0f
                    : LoadFloat(launch.weight + int64_t{i - unused} * launch.channels + channel);
  }
  const float bias = launch.bias == nullptr ? 0.0f : LoadFloat(launch.bias + channel);
  float held[kHeld];
  const int first = static_cast<int>(BlockIndex().x) * launch.rows_of_block;
  const int end = Least(first + launch.rows_of_block, launch.rows);
  int end_of_readers = 0;
  for (int row = first; row < end || row < end_of_readers; ++row) {
    if (LoadGlobal(launch.positions + row) < 0) return;  // and so are all behind it
    const StateEntry entry =
        LoadGlobal(launch.state.sequences + LoadGlobal(launch.sequence_of_row + row));
    const int at = row - entry.first_row;
    if (at > 0 && at < kept && entry.first_row < first) continue;
    // The first row of the sequence here.
    if (at == 0 || (entry.first_row < first && at == Greatest(first - entry.first_row, kept))) {
      const float* from =
          entry.state < 0 || at > 0 ? nullptr : UnitIn(launch.state, entry.state, unit) + lane;
      BATON_UNROLL for (int i = 0; i < kHeld; ++i) {
        const int before = at - kHeld + i;  // the row of the sequence
        held[i] = i < unused        ? 0.0f
                  : before >= 0     ? InputOf(launch, entry.first_row + before, channel)
                  : from == nullptr ? 0.0f
                                    : LoadFresh(from + (before + kept) * kUnitLanes);
      }
    }
    if (at == 0) {  // `held` is the state
      end_of_readers = row + Least(kept, entry.row_count);
      for (int store = 0; store < entry.store_count; ++store) {
        const StoreAt to = StoreOf(launch.state, entry, store);
        float left[kHeld];
        BATON_UNROLL for (int i = 0; i < kHeld; ++i) left[i] = held[i];
        for (int next = Greatest(0, to.rows - kHeld); next < to.rows; ++next) {
          Append(InputOf(launch, entry.first_row + next, channel), left);
        }
        float* const unit_to = UnitIn(launch.state, to.pages, unit) + lane;
        BATON_UNROLL for (int i = 0; i < kHeld; ++i) {
          if (i >= unused) StoreGlobal(unit_to + (i - unused) * kUnitLanes, left[i]);
        }
      }
    }
    const float u = InputOf(launch, row, channel);
    float y = bias;
    BATON_UNROLL for (int i = 0; i < kHeld; ++i) {
      if (i >= unused) y = Fma(weight[i], held[i], y);
    }
    y = Fma(weight[kHeld], u, y);
    Append(u, held);
    if (launch.silu) y = Silu(y);
    if (launch.after != nullptr) {
      y = Mul(y, LoadFloat(launch.after + int64_t{row} * launch.after_stride + channel));
    }
    StoreElement<OutRow>(y, launch.out, int64_t{row} * launch.out_stride + channel);
  }
}

unsigned Tiles(int size, int tile) { return static_cast<unsigned>((size + tile - 1) / tile); }

// Elements that StoreElement stores.
struct FloatElement {
  using Stored = float;
};
template <class Element>
struct Element16 : Element {
  using Stored = uint16_t;
};

template <class OutRow>
void DispatchConv(const ShortConvLaunch& launch, Stream stream) {
  const auto kernel =
      launch.taps <= kFewTaps ? &ShortConvKernel<OutRow, kFewTaps> : &ShortConvKernel<OutRow, 8>;
  Launch(kernel,
         {Tiles(launch.rows, launch.rows_of_block), Tiles(launch.channels, kConvThreads), 1},
         kConvThreads, 0, stream, launch);
}

}  // namespace

void LaunchShortConv(const ShortConvLaunch& launch, DType out_dtype, Stream stream) {
  if (launch.rows == 0) return;
  switch (out_dtype) {
    case DType::kF32:
      return DispatchConv<FloatElement>(launch, stream);
    case DType::kF16:
      return DispatchConv<Element16<Half>>(launch, stream);
    case DType::kBF16:
      return DispatchConv<Element16<BFloat16>>(launch, stream);
  }
}

}  // namespace baton::backend::cuda
