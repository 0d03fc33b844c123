#include <algorithm>

#include "common/backend/cuda/kernels/elements.cuh"
#include "common/backend/cuda/kernels/norm.h"
#include "common/backend/cuda/kernels/norm_unit.cuh"

namespace baton::backend::cuda {
namespace {

constexpr int kMaxThreads = kMostNormThreads;
constexpr int kHeldUnits = 2;  // rows of up to 8,192 are read once

BATON_DEVICE void LoadX(const NormLaunch& launch, const float* x, int unit,
                        float (&to)[kUnitElements]) {
  if (!launch.writes_x) {
    LoadUnit(x + unit * kUnitElements, to);
  } else {
    LoadOwnUnit(x + unit * kUnitElements, to);
  }
}

// 1 / rms of the row whose squares the threads have summed. scratch: a float a warp.
BATON_DEVICE float InverseRmsOfRow(const NormLaunch& launch, float squares, float* scratch) {
  return InverseRms(BlockSum(squares, BlockThreads() / kWarpLanes, scratch), launch.cols,
                    launch.eps);
}

struct Unit {
  float x[kUnitElements], delta[kUnitElements];
};

// body(unit number, its registers, whether they are those of the pass before) for the thread's
// units: `held`, and others for those beyond.
template <class Body>
BATON_DEVICE void ForUnits(int cols, Unit (&held)[kHeldUnits], const Body& body) {
  const int threads = BlockThreads(), units = cols / kUnitElements;
  BATON_UNROLL for (int i = 0; i < kHeldUnits; ++i) {
    const int unit = ThreadIndex() + i * threads;
    if (unit < units) body(unit, held[i], true);
  }
  for (int unit = ThreadIndex() + kHeldUnits * threads; unit < units; unit += threads) {
    Unit other;
    body(unit, other, false);
  }
}

// kNormsDelta: with a delta_weight. kWeighted: with a weight.
template <class OutRow, bool kNormsDelta, bool kWeighted>
BATON_KERNEL(kMaxThreads)
NormKernel(NormLaunch launch) {
  AwaitPrevious();
  const int64_t row = BlockIndex().x;
  float* const x_row = launch.x + row * launch.x_stride;
  float* const scratch = reinterpret_cast<float*>(SharedMemory());
  Unit held[kHeldUnits];
  const auto load_delta = [&](int unit, float(&to)[kUnitElements]) {
    LoadUnit(launch.delta + row * launch.delta_stride + unit * kUnitElements, to);
    if constexpr (kNormsDelta) {
      BATON_UNROLL for (int i = 0; i < kUnitElements; ++i) to[i] = Mul(to[i], launch.delta_scale);
    }
  };
  const auto write = [&](int unit, const float(&out)[kUnitElements]) {
    OutRow::Store(out, static_cast<typename OutRow::Stored*>(launch.out) + row * launch.out_stride +
                           unit * kUnitElements);
  };
  float squares = 0, delta_scale = 0;
  if constexpr (kNormsDelta) {
    ForUnits(launch.cols, held, [&](int number, Unit& unit, bool is_held) {
      load_delta(number, unit.delta);
      if (is_held) LoadX(launch, x_row, number, unit.x);  // on its way while others sum
      squares = AddSquares(unit.delta, squares);
    });
    delta_scale = InverseRmsOfRow(launch, squares, scratch + BlockThreads() / kWarpLanes);
    squares = 0;
  }
  ForUnits(launch.cols, held, [&](int number, Unit& unit, bool is_held) {
    if (!kNormsDelta || !is_held) {
      LoadX(launch, x_row, number, unit.x);
      if (launch.delta != nullptr) load_delta(number, unit.delta);
    }
    if constexpr (kNormsDelta) {
      Normalize(launch.delta_weight, number, delta_scale, unit.delta);
    }
    if (launch.delta != nullptr) {
      // Times 1 is the sum of both, rounded once.
      const float scale = kNormsDelta ? 1.0f : launch.delta_scale;
      BATON_UNROLL for (int i = 0; i < kUnitElements; ++i) {
        unit.x[i] = Fma(unit.delta[i], scale, unit.x[i]);
      }
      StoreUnit(unit.x, x_row + number * kUnitElements);
    }
    if constexpr (kWeighted) {
      squares = AddSquares(unit.x, squares);
    } else {
      write(number, unit.x);
    }
  });
  if constexpr (kWeighted) {
    const float scale = InverseRmsOfRow(launch, squares, scratch);
    ForUnits(launch.cols, held, [&](int number, Unit& unit, bool is_held) {
      if (!is_held) LoadX(launch, x_row, number, unit.x);
      Normalize(launch.weight, number, scale, unit.x);
      write(number, unit.x);
    });
  }
}

template <class OutRow>
void Dispatch(const NormLaunch& launch, int rows, Stream stream) {
  const int units = launch.cols / kUnitElements;
  const int threads = std::min(kMaxThreads, (units + kWarpLanes - 1) / kWarpLanes * kWarpLanes);
  const bool norms_delta = launch.delta_weight != nullptr;
  const auto kernel = launch.weight != nullptr ? norms_delta ? &NormKernel<OutRow, true, true>
                                                             : &NormKernel<OutRow, false, true>
                      : norms_delta ? &NormKernel<OutRow, true, false>
                                               : &NormKernel<OutRow, false, false>;
  const size_t sums = norms_delta ? 2 : 1;
  Launch(kernel, {static_cast<unsigned>(rows), 1, 1}, threads,
         sums * static_cast<size_t>(threads / kWarpLanes) * sizeof(float), stream, launch);
}

}  // namespace

void LaunchNorm(const NormLaunch& launch, DType out_dtype, int rows, Stream stream) {
  if (rows == 0) return;
  NormLaunch filled = launch;
  filled.writes_x = launch.delta != nullptr || launch.out == launch.x;
  WithRowType(out_dtype, [&](auto out_row) { Dispatch<decltype(out_row)>(filled, rows, stream); });
}

}  // namespace baton::backend::cuda
