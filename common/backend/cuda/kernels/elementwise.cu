#include "common/backend/cuda/kernels/elements.cuh"
#include "common/backend/cuda/kernels/elementwise.h"

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
  StoreUnit(x, launch.out + row * launch.out_stride + column);
}

template <class OutRow>
BATON_KERNEL(kPassThreads)
SiluMulKernel(SiluMulLaunch launch) {
  AwaitPrevious();
  const int64_t row = BlockIndex().x;
  const int column = FirstColumn();
  if (column >= launch.cols) return;
  float gate[kUnitElements], up[kUnitElements];
  const float* from = launch.gate_up + row * launch.gate_up_stride + column;
  LoadUnit(from, gate);
  LoadUnit(from + launch.cols, up);
  BATON_UNROLL for (int i = 0; i < kUnitElements; ++i) gate[i] = SiluMul(gate[i], up[i]);
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

}  // namespace

void LaunchGather(const GatherLaunch& launch, DType table_dtype, int rows, Stream stream) {
  if (rows == 0) return;
  WithRowType(table_dtype, [&](auto table_row) {
    Launch(GatherKernel<decltype(table_row)>, PassGrid(rows, launch.cols), kPassThreads, 0, stream,
           launch);
  });
}

void LaunchSiluMul(const SiluMulLaunch& launch, DType out_dtype, int rows, Stream stream) {
  if (rows == 0) return;
  WithRowType(out_dtype, [&](auto out_row) {
    Launch(SiluMulKernel<decltype(out_row)>, PassGrid(rows, launch.cols), kPassThreads, 0, stream,
           launch);
  });
}

void LaunchAddBias(const AddBiasLaunch& launch, int rows, Stream stream) {
  if (rows == 0) return;
  Launch(AddBiasKernel, PassGrid(rows, launch.cols), kPassThreads, 0, stream, launch);
}

}  // namespace baton::backend::cuda
