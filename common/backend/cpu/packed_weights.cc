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

// [32][in] -> [in][32], of float32 or of 16 bits; for products of bfloat16 [in / 2][32][2], which
// is the same thing with a pair in place of a float. In squares, so that both sides stay in the
// first-level cache.
template <class Word>
void TransposeWords(const void* from, int64_t words, void* to) {
  const auto* rows = static_cast<const Word*>(from);
  auto* panel = static_cast<Word*>(to);
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

PackedWeights::PackedWeights(int64_t out_features, int64_t in_features, DType compute, DType stored)
    : PanelMatrix(Form::kFloat, out_features, in_features),
      compute_(compute),
      stored_(stored),
      padded_in_(compute == DType::kBF16
                     ? (in_features + kBF16InMultiple - 1) / kBF16InMultiple * kBF16InMultiple
                     : in_features) {}

int64_t PackedWeights::panel_bytes() const {
  return padded_in_ * kPanelColumns * static_cast<int64_t>(SizeOf(stored_));
}

const std::byte* PackedWeights::panel(int64_t index) const {
  return static_cast<const std::byte*>(memory_.data()) + index * panel_bytes();
}

void PackedWeights::ReadRow(int64_t row, float* out) const {
  BATON_CHECK(row >= 0 && row < out_features_) << "row " << row;
  const std::byte* from = panel(row / kPanelColumns);
  const int64_t column = row % kPanelColumns;
  const size_t size = SizeOf(stored_);
  const int64_t step = compute_ == DType::kBF16 ? 2 : 1;  // elements of a column side by side
  std::vector<std::byte> elements(static_cast<size_t>(in_features_) * size);
  for (int64_t i = 0; i < in_features_; ++i) {
    const int64_t at = (i / step * kPanelColumns + column) * step + i % step;
    std::memcpy(&elements[static_cast<size_t>(i) * size], from + at * static_cast<int64_t>(size),
                size);
  }
  ConvertElements(elements.data(), stored_, in_features_, DType::kF32, out);
}

template <class Matrix>
void PackedWeights::FillPanel(absl::Span<const Matrix> stacked, int64_t index) {
  const int64_t row_bytes = padded_in_ * static_cast<int64_t>(SizeOf(stored_));
  std::vector<std::byte> rows(kPanelColumns * row_bytes);  // zeros where the matrix ends
  int64_t row = index * kPanelColumns, column = 0;
  for (const Matrix& part : stacked) {
    for (; row < part.rows && column < kPanelColumns; ++row, ++column) {
      CopyRow(part, row, stored_, rows.data() + column * row_bytes);
    }
    row -= part.rows;
  }
  std::byte* panel = static_cast<std::byte*>(memory_.data()) + index * panel_bytes();
  const bool single = compute_ == DType::kF32 && stored_ != DType::kF32;
  if (single) {
    TransposeWords<uint16_t>(rows.data(), row_bytes / 2, panel);
  } else {
    TransposeWords<uint32_t>(rows.data(), row_bytes / 4, panel);
  }
}

template <class Matrix>
absl::StatusOr<std::unique_ptr<PackedWeights>> PackedWeights::PackStacked(
    absl::Span<const Matrix> stacked, DType compute, DType stored, ThreadPool& pool) {
  BATON_CHECK(!stacked.empty());
  int64_t rows = 0;
  for (const Matrix& part : stacked) {
    BATON_CHECK_EQ(part.cols, stacked[0].cols);
    rows += part.rows;
  }
  std::unique_ptr<PackedWeights> packed(new PackedWeights(rows, stacked[0].cols, compute, stored));
  const size_t size_bytes = static_cast<size_t>(packed->panel_count() * packed->panel_bytes());
  BATON_ASSIGN_OR_RETURN(packed->memory_, MappedMemory::Map(size_bytes));
  pool.Run(static_cast<int>(packed->panel_count()),
           [&](int panel, int thread) { packed->FillPanel(stacked, panel); });
  return packed;
}

absl::StatusOr<std::unique_ptr<PackedWeights>> PackedWeights::Pack(
    absl::Span<const HostMatrix> stacked, DType compute, ThreadPool& pool) {
  BATON_CHECK(!stacked.empty());
  const bool alike = std::all_of(stacked.begin(), stacked.end(), [&](const HostMatrix& part) {
    return part.dtype == stacked[0].dtype;
  });
  const bool keeps = compute == DType::kF32 && alike;
  return PackStacked(stacked, compute, keeps ? stacked[0].dtype : compute, pool);
}

absl::StatusOr<std::unique_ptr<PackedWeights>> PackedWeights::Pack(
    absl::Span<const QuantizedHostMatrix> stacked, DType compute, ThreadPool& pool) {
  return PackStacked(stacked, compute, compute, pool);
}

}  // namespace baton::backend
