#include <iterator>

#include "common/backend/cuda/kernels/elements.cuh"
#include "common/backend/cuda/kernels/elementwise.h"
#include "common/backend/cuda/kernels/soft_cap.cuh"

namespace baton::backend::cuda {
namespace {

// The first column of the thread's unit, in row BlockIndex().x.
BATON_DEVICE int FirstColumn() {
  return (static_cast<int>(BlockIndex().y) * kPassThreads + ThreadIndex()) * kUnitElements;
}

GridSize PassGrid(int rows, int cols) {
  const int units = cols / kUnitElements;
  return {static_cast<unsigned>(rows),
          static_cast<unsigned>((units + kPassThreads - 1) / kPassThreads), 1};
}

BATON_DEVICE int32_t TableRowOf(const GatherLaunch& launch, int64_t row) {
  const int32_t drawn = launch.drawn == nullptr ? kNotDrawn : LoadGlobal(launch.drawn + row);
  if (drawn < 0) return LoadGlobal(launch.row_of + row);
  const int32_t token = LoadGlobal(&launch.results[drawn].token_id);
  return token >= 0 && token < launch.table_rows ? token : 0;
}

template <class TableRow>
BATON_KERNEL(kPassThreads)
GatherKernel(GatherLaunch launch) {
  AwaitPrevious();
  const int64_t row = BlockIndex().x;
  const int column = FirstColumn();
  if (column >= launch.cols) return;
  float x[kUnitElements];
  const int32_t from = TableRowOf(launch, row);
  // Not read in this launch: threads of such rows read the result.
  if (column == 0 && launch.drawn != nullptr && LoadGlobal(launch.drawn + row) >= 0) {
    StoreGlobal(launch.kept + row, from);
  }
  TableRow::Load(static_cast<const typename TableRow::Stored*>(launch.table) +
                     from * launch.table_stride + column,
                 x);
  BATON_UNROLL for (int i = 0; i < kUnitElements; ++i) x[i] = Mul(x[i], launch.scale);
  StoreUnit(x, launch.out + row * launch.out_stride + column);
}

// A NaN stays one.
BATON_DEVICE float SquaredRelu(float up, const Gating& gating) {
  const float positive = up < 0 ? 0.0f : up;
  return Mul(Mul(positive, positive), gating.scale);
}

template <class OutRow, int kKind>
BATON_KERNEL(kPassThreads)
GateKernel(GateLaunch launch) {
  AwaitPrevious();
  const Gating gating = {.kind = static_cast<GateKind>(kKind), .scale = launch.gating.scale};
  const int64_t row = BlockIndex().x;
  const int column = FirstColumn();
  if (column >= launch.cols) return;
  float gate[kUnitElements], up[kUnitElements];
  const float* from = launch.gate_up + row * launch.gate_up_stride + column;
  LoadUnit(from, gate);
  if (gating.kind == GateKind::kSquaredRelu) {
    BATON_UNROLL for (int i = 0; i < kUnitElements; ++i) gate[i] = SquaredRelu(gate[i], gating);
  } else {
    const bool apart = launch.up != nullptr;
    LoadUnit(apart ? launch.up + row * launch.up_stride + column : from + launch.cols, up);
    BATON_UNROLL for (int i = 0; i < kUnitElements; ++i) gate[i] = Gated(gate[i], up[i], gating);
  }
  OutRow::Store(
      gate, static_cast<typename OutRow::Stored*>(launch.out) + row * launch.out_stride + column);
}

BATON_KERNEL(kPassThreads)
AddBiasKernel(AddBiasLaunch launch) {
  AwaitPrevious();
  const int64_t row = BlockIndex().x;
  const int column = FirstColumn();
  if (column >= launch.cols) return;
  float x[kUnitElements], bias[kUnitElements];
  LoadOwnUnit(launch.x + row * launch.x_stride + column, x);
  LoadUnit(launch.bias + column, bias);
  BATON_UNROLL for (int i = 0; i < kUnitElements; ++i) x[i] = Add(x[i], bias[i]);
  StoreUnit(x, launch.x + row * launch.x_stride + column);
}

BATON_KERNEL(kPassThreads)
ScaleLogitsKernel(ScaleLogitsLaunch launch) {
  AwaitPrevious();
  const int column = FirstColumn();
  if (column >= launch.cols) return;
  float* const logits = launch.logits + int64_t{BlockIndex().x} * launch.stride + column;
  const SoftCap soft_cap(launch.scale, launch.cap);
  const auto scaled = [&](float x) {
    return launch.cap == 0 ? Mul(x, launch.scale) : soft_cap.Of(x);
  };
  if (column + kUnitElements > launch.cols) {
    for (int i = 0; column + i < launch.cols; ++i) {
      StoreGlobal(logits + i, scaled(LoadGlobal(logits + i)));
    }
    return;
  }
  float x[kUnitElements];
  LoadOwnUnit(logits, x);
  BATON_UNROLL for (int i = 0; i < kUnitElements; ++i) x[i] = scaled(x[i]);
  StoreUnit(x, logits);
}

}  // namespace

void LaunchGather(const GatherLaunch& launch, DType table_dtype, int rows, Stream stream) {
  if (rows == 0) return;
  WithRowType(table_dtype, [&](auto table_row) {
    Launch(GatherKernel<decltype(table_row)>, PassGrid(rows, launch.cols), kPassThreads, 0, stream,
           launch);
  });
}

void LaunchGate(const GateLaunch& launch, DType out_dtype, int rows, Stream stream) {
  if (rows == 0) return;
  WithRowType(out_dtype, [&](auto out_row) {
    using OutRow = decltype(out_row);
    constexpr void (*kKernels[])(GateLaunch) = {&GateKernel<OutRow, 0>, &GateKernel<OutRow, 1>,
                                                &GateKernel<OutRow, 2>, &GateKernel<OutRow, 3>};
    static_assert(std::size(kKernels) == kGateKinds);
    const auto kernel = kKernels[static_cast<int>(launch.gating.kind)];
    Launch(kernel, PassGrid(rows, launch.cols), kPassThreads, 0, stream, launch);
  });
}

void LaunchAddBias(const AddBiasLaunch& launch, int rows, Stream stream) {
  if (rows == 0) return;
  Launch(AddBiasKernel, PassGrid(rows, launch.cols), kPassThreads, 0, stream, launch);
}

void LaunchScaleLogits(const ScaleLogitsLaunch& launch, int rows, Stream stream) {
  if (rows == 0 || launch.cols == 0) return;
  const int whole = (launch.cols + kUnitElements - 1) / kUnitElements * kUnitElements;
  Launch(ScaleLogitsKernel, PassGrid(rows, whole), kPassThreads, 0, stream, launch);
}

}  // namespace baton::backend::cuda
