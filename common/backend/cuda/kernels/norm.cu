#include <algorithm>

#include "common/backend/cuda/kernels/elements.cuh"
#include "common/backend/cuda/kernels/norm.h"

namespace baton::backend::cuda {
namespace {

constexpr int kMaxThreads = 512;
constexpr int kHeldUnits = 2;  // rows of up to 8,192 are read once

BATON_DEVICE void LoadX(const NormLaunch& launch, const float* x, int unit,
                        float (&to)[kUnitElements]) {
  if (launch.delta == nullptr) {
    LoadUnit(x + unit * kUnitElements, to);
  } else {
    LoadOwnUnit(x + unit * kUnitElements, to);
  }
}

// The unit of x, with its delta, which is left in x too.
BATON_DEVICE void TakeUnit(const NormLaunch& launch, int64_t row, int unit,
                           float (&to)[kUnitElements]) {
  float* x = launch.x + row * launch.x_stride;
  LoadX(launch, x, unit, to);
  if (launch.delta == nullptr) return;
  float delta[kUnitElements];
  LoadUnit(launch.delta + row * launch.delta_stride + unit * kUnitElements, delta);
  BATON_UNROLL for (int i = 0; i < kUnitElements; ++i) to[i] = Add(to[i], delta[i]);
  StoreUnit(to, x + unit * kUnitElements);
}

BATON_DEVICE float AddSquares(const float (&x)[kUnitElements], float sum) {
  BATON_UNROLL for (int i = 0; i < kUnitElements; ++i) sum = Fma(x[i], x[i], sum);
  return sum;
}

template <class OutRow>
BATON_DEVICE void WriteUnit(const NormLaunch& launch, int64_t row, int unit, float scale,
                            const float (&x)[kUnitElements]) {
  float weight[kUnitElements], out[kUnitElements];
  LoadUnit(launch.weight + unit * kUnitElements, weight);
  BATON_UNROLL for (int i = 0; i < kUnitElements; ++i) out[i] = Mul(Mul(x[i], scale), weight[i]);
  OutRow::Store(out, static_cast<typename OutRow::Stored*>(launch.out) + row * launch.out_stride +
                         unit * kUnitElements);
}

template <class OutRow>
BATON_KERNEL(kMaxThreads)
NormKernel(NormLaunch launch) {
  AwaitPrevious();
  const int64_t row = BlockIndex().x;
  const int threads = BlockThreads(), units = launch.cols / kUnitElements;
  float held[kHeldUnits][kUnitElements];
  float sum = 0;
  BATON_UNROLL for (int i = 0; i < kHeldUnits; ++i) {
    const int unit = ThreadIndex() + i * threads;
    if (unit < units) {
      TakeUnit(launch, row, unit, held[i]);
      sum = AddSquares(held[i], sum);
    }
  }
  for (int unit = ThreadIndex() + kHeldUnits * threads; unit < units; unit += threads) {
    float x[kUnitElements];
    TakeUnit(launch, row, unit, x);
    sum = AddSquares(x, sum);
  }
  sum = BlockSum(sum, threads / kWarpLanes, reinterpret_cast<float*>(SharedMemory()));
  const float mean = Divide(sum, static_cast<float>(launch.cols));
  const float scale = Divide(1.0f, SquareRoot(Add(mean, launch.eps)));
  BATON_UNROLL for (int i = 0; i < kHeldUnits; ++i) {
    const int unit = ThreadIndex() + i * threads;
    if (unit < units) WriteUnit<OutRow>(launch, row, unit, scale, held[i]);
  }
  for (int unit = ThreadIndex() + kHeldUnits * threads; unit < units; unit += threads) {
    float x[kUnitElements];
    LoadX(launch, launch.x + row * launch.x_stride, unit, x);
    WriteUnit<OutRow>(launch, row, unit, scale, x);
  }
}

}  // namespace

void LaunchNorm(const NormLaunch& launch, DType out_dtype, int rows, Stream stream) {
  if (rows == 0) return;
  const int units = launch.cols / kUnitElements;
  const int threads = std::min(kMaxThreads, (units + kWarpLanes - 1) / kWarpLanes * kWarpLanes);
  WithRowType(out_dtype, [&](auto out_row) {
    Launch(NormKernel<decltype(out_row)>, {static_cast<unsigned>(rows), 1, 1}, threads,
           static_cast<size_t>(threads / kWarpLanes) * sizeof(float), stream, launch);
  });
}

}  // namespace baton::backend::cuda
