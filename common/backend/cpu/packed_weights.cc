#include "common/backend/cpu/packed_weights.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "common/backend/cpu/convert.h"
#include "common/backend/cpu/kernels.h"
#include "common/backend/quantized.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"

namespace baton::backend {
namespace {

// [64][in] -> [in][64] (f32) or [in / 2][64][2] (bf16), which is the same thing with a pair of bf16
// in place of a float. In squares, so that both sides stay in the first-level cache.
void TransposeWords(const uint32_t* rows, int64_t words, uint32_t* panel) {
  constexpr int64_t kSquare = 16;
  for (int64_t k = 0; k < words; k += kSquare) {
    const int64_t end = std::min(words, k + kSquare);
    for (int column = 0; column < kPanelColumns; ++column) {
      for (int64_t i = k; i < end; ++i) {
        panel[i * kPanelColumns + column] = rows[column * words + i];
      }
    }
  }
}

// A row of a matrix as `dtype`.
void CopyRow(const HostMatrix& matrix, int64_t row, DType dtype, void* out) {
  const auto* data = static_cast<const std::byte*>(matrix.data);
  ConvertElements(data + row * matrix.cols * static_cast<int64_t>(SizeOf(matrix.dtype)),
                  matrix.dtype, matrix.cols, dtype, out);
}
void CopyRow(const QuantizedHostMatrix& matrix, int64_t row, DType dtype, void* out) {
  std::vector<float> values(static_cast<size_t>(matrix.cols));
  DequantizeRow(matrix, row, values.data());
  ConvertElements(values.data(), DType::kF32, matrix.cols, dtype, out);
}

}  // namespace

PackedWeights::PackedWeights(int64_t out_features, int64_t in_features, DType dtype)
    : PanelMatrix(Form::kFloat, out_features, in_features),
      dtype_(dtype),
      padded_in_(dtype == DType::kBF16
                     ? (in_features + kBF16InMultiple - 1) / kBF16InMultiple * kBF16InMultiple
                     : in_features) {}

int64_t PackedWeights::panel_bytes() const {
  return padded_in_ * kPanelColumns * static_cast<int64_t>(SizeOf(dtype_));
}

const std::byte* PackedWeights::panel(int64_t index) const {
  return static_cast<const std::byte*>(memory_.data()) + index * panel_bytes();
}

template <class Matrix>
void PackedWeights::FillPanel(absl::Span<const Matrix> stacked, int64_t index) {
  const int64_t row_bytes = padded_in_ * static_cast<int64_t>(SizeOf(dtype_));
  const int64_t words = row_bytes / 4;
  std::vector<uint32_t> rows(kPanelColumns * words);  // zeros where the matrix ends
  int64_t row = index * kPanelColumns, column = 0;
  for (const Matrix& part : stacked) {
    for (; row < part.rows && column < kPanelColumns; ++row, ++column) {
      CopyRow(part, row, dtype_, rows.data() + column * words);
    }
    row -= part.rows;
  }
  std::byte* panel = static_cast<std::byte*>(memory_.data()) + index * panel_bytes();
  TransposeWords(rows.data(), words, reinterpret_cast<uint32_t*>(panel));
}

template <class Matrix>
absl::StatusOr<std::unique_ptr<PackedWeights>> PackedWeights::PackStacked(
    absl::Span<const Matrix> stacked, DType dtype, ThreadPool& pool) {
  BATON_CHECK(!stacked.empty());
  int64_t rows = 0;
  for (const Matrix& part : stacked) {
    BATON_CHECK_EQ(part.cols, stacked[0].cols);
    rows += part.rows;
  }
  std::unique_ptr<PackedWeights> packed(new PackedWeights(rows, stacked[0].cols, dtype));
  const size_t size_bytes = static_cast<size_t>(packed->panel_count() * packed->panel_bytes());
  BATON_ASSIGN_OR_RETURN(packed->memory_, MappedMemory::Map(size_bytes));
  pool.Run(static_cast<int>(packed->panel_count()),
           [&](int panel, int thread) { packed->FillPanel(stacked, panel); });
  return packed;
}

absl::StatusOr<std::unique_ptr<PackedWeights>> PackedWeights::Pack(
    absl::Span<const HostMatrix> stacked, DType dtype, ThreadPool& pool) {
  return PackStacked(stacked, dtype, pool);
}

absl::StatusOr<std::unique_ptr<PackedWeights>> PackedWeights::Pack(
    absl::Span<const QuantizedHostMatrix> stacked, DType dtype, ThreadPool& pool) {
  return PackStacked(stacked, dtype, pool);
}

}  // namespace baton::backend
