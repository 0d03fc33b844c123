#include "common/backend/cpu/packed_weights.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "common/backend/cpu/convert.h"
#include "common/backend/cpu/kernels.h"
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

const std::byte* RowOf(absl::Span<const HostMatrix> stacked, int64_t row, DType* dtype) {
  for (const HostMatrix& part : stacked) {
    if (row < part.rows) {
      *dtype = part.dtype;
      return static_cast<const std::byte*>(part.data) + row * part.cols * SizeOf(part.dtype);
    }
    row -= part.rows;
  }
  return nullptr;
}

}  // namespace

PackedWeights::PackedWeights(int64_t out_features, int64_t in_features, DType dtype)
    : PackedMatrix(out_features, in_features),
      dtype_(dtype),
      padded_in_(dtype == DType::kBF16
                     ? (in_features + kBF16InMultiple - 1) / kBF16InMultiple * kBF16InMultiple
                     : in_features) {}

int64_t PackedWeights::panel_count() const {
  return (out_features_ + kPanelColumns - 1) / kPanelColumns;
}

int64_t PackedWeights::panel_bytes() const {
  return padded_in_ * kPanelColumns * static_cast<int64_t>(SizeOf(dtype_));
}

const std::byte* PackedWeights::panel(int64_t index) const {
  return static_cast<const std::byte*>(memory_.data()) + index * panel_bytes();
}

void PackedWeights::FillPanel(absl::Span<const HostMatrix> stacked, int64_t index) {
  const int64_t row_bytes = padded_in_ * static_cast<int64_t>(SizeOf(dtype_));
  const int64_t words = row_bytes / 4;
  std::vector<uint32_t> rows(kPanelColumns * words);  // zeros where the matrix ends
  const int64_t first = index * kPanelColumns;
  const int64_t count = std::min<int64_t>(kPanelColumns, out_features_ - first);
  for (int64_t r = 0; r < count; ++r) {
    DType dtype = DType::kF32;
    const std::byte* source = RowOf(stacked, first + r, &dtype);
    ConvertElements(source, dtype, in_features_, dtype_, rows.data() + r * words);
  }
  std::byte* panel = static_cast<std::byte*>(memory_.data()) + index * panel_bytes();
  TransposeWords(rows.data(), words, reinterpret_cast<uint32_t*>(panel));
}

absl::StatusOr<std::unique_ptr<PackedWeights>> PackedWeights::Pack(
    absl::Span<const HostMatrix> stacked, DType dtype, ThreadPool& pool) {
  BATON_CHECK(!stacked.empty());
  int64_t rows = 0;
  for (const HostMatrix& part : stacked) {
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

}  // namespace baton::backend
