#include "common/backend/cuda/kernels/matmul_normed.h"
#include "common/backend/cuda/kernels/matmul_rows.cuh"
#include "common/backend/cuda/kernels/normed_rows.cuh"
#include "common/base/check.h"

namespace baton::backend::cuda {
namespace {

template <class Element, int kTiles>
BATON_KERNEL_RESIDENT(kRowsThreads, kResidentRows)
NormedRowsKernel(NormedMatMulLaunch launch) {
  using Shape = RowsShape<kNormedRows, kTiles>;
  constexpr size_t kSumsBytes = Shape::kColumnsBytes;
  MultiplyRowsOf<Element, kNormedRows, kTiles, NormedX<kSumsBytes>,
                 StoredOutputs<kNormedRows, Shape::kColumns>>(
      launch, 0, [&] { StageNormed<Element, kSumsBytes>(launch.input, launch.rows, launch.k); });
}

template <class Element>
BATON_KERNEL_RESIDENT(kRowsThreads, kResidentRows)
NormedGatedKernel(NormedMatMulGatedLaunch launch) {
  constexpr size_t kSumsBytes = RowsShape<kNormedRows, 2>::kColumnsBytes;
  MultiplyGatedRowsOf<Element, kNormedRows, NormedX<kSumsBytes>>(
      launch, 0, [&] { StageNormed<Element, kSumsBytes>(launch.input, launch.rows, launch.k); });
}

template <class Element, int kTiles>
void LaunchRows(const NormedMatMulLaunch& launch, Stream stream) {
  using Shape = RowsShape<kNormedRows, kTiles>;
  Launch(NormedRowsKernel<Element, kTiles>,
         RowsGrid<Shape>(MatMulTiles(launch.n, Shape::kColumns), 1), kRowsThreads,
         NormedBytes(Shape::kColumnsBytes, launch.rows, launch.k), stream, launch);
}

template <class Element>
void Dispatch(const NormedMatMulLaunch& launch, Stream stream) {
  if (FillsWithWideRows(launch.n)) return LaunchRows<Element, 2>(launch, stream);
  LaunchRows<Element, 1>(launch, stream);
}

template <class Element>
void Dispatch(const NormedMatMulGatedLaunch& launch, Stream stream) {
  using Shape = RowsShape<kNormedRows, 2>;
  Launch(NormedGatedKernel<Element>, RowsGrid<Shape>(MatMulTiles(launch.cols, kColumnTile), 1),
         kRowsThreads, NormedBytes(Shape::kColumnsBytes, launch.rows, launch.k), stream, launch);
}

template <class AnyLaunch>
void DispatchAll(const AnyLaunch& launch, int columns, DType dtype, Stream stream) {
  if (launch.rows == 0 || columns == 0) return;
  BATON_CHECK(NormsInProduct(launch.rows, launch.k)) << launch.rows << " rows of " << launch.k;
  if (dtype == DType::kF16) {
    Dispatch<Half>(launch, stream);
  } else {
    Dispatch<BFloat16>(launch, stream);
  }
}

}  // namespace

void LaunchNormedMatMul(const NormedMatMulLaunch& launch, DType dtype, Stream stream) {
  BATON_CHECK_EQ(launch.added_scale, 0.0f);
  DispatchAll(launch, launch.n, dtype, stream);
}

void LaunchNormedMatMulGated(const NormedMatMulGatedLaunch& launch, DType dtype, Stream stream) {
  DispatchAll(launch, launch.cols, dtype, stream);
}

}  // namespace baton::backend::cuda
