#include "common/backend/cuda/matrices/quantized_matrix.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/backend/cpu/convert.h"
#include "common/backend/quantized.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace baton::backend::cuda {
namespace {

constexpr int kSliceRows = 64;                      // slices are multiples of it where they can be
constexpr size_t kMostSliceRows = size_t{1} << 18;  // a grid has 65,535 rows of blocks

absl::Status Unsupported(absl::string_view what, absl::string_view expected) {
  return MakeError(
      absl::StatusCode::kUnimplemented, "UNSUPPORTED_MODEL",
      absl::StrCat("--device cuda: quantised matrix: found ", what, ", expected ", expected));
}

absl::Status CheckStacked(absl::Span<const QuantizedHostMatrix> stacked) {
  const QuantizedHostMatrix& first = stacked[0];
  if (first.cols % 8 != 0) {
    return Unsupported(absl::StrCat(first.cols, " columns"), "a multiple of 8");
  }
  if (first.groups() > 1 && (first.group_size < kChunkedK ||
                             !std::has_single_bit(static_cast<uint64_t>(first.group_size)))) {
    return Unsupported(absl::StrCat("groups of ", first.group_size, " columns"),
                       "a power of two from 32 on, or all columns");
  }
  for (const QuantizedHostMatrix& part : stacked) {
    BATON_CHECK_EQ(part.cols, first.cols);
    BATON_CHECK_EQ(part.bits, first.bits);
    BATON_CHECK_EQ(part.group_size, first.group_size);
    BATON_CHECK(part.scale_dtype == first.scale_dtype);
    BATON_CHECK_EQ(part.fp4, first.fp4);
    BATON_CHECK_EQ(part.symmetric, first.symmetric);
    const bool ordered = part.order != nullptr;
    if (ordered == (first.order != nullptr) &&
        (!ordered || std::equal(part.order, part.order + part.cols, first.order))) {
      continue;
    }
    return Unsupported("matrices that are multiplied as one with columns in different orders",
                       "one order");
  }
  return absl::OkStatus();
}

// The byte of a group of MXFP4, from half of its scale in bfloat16.
uint32_t Fp4Scale(uint16_t half, DType dtype) {
  const int exponent = half >> 7;  // 0: the scale 0
  if (exponent == 0) return 0;
  return static_cast<uint32_t>(std::min(exponent + (dtype == DType::kF16 ? 1 : 7), 254));
}

// Values of the stack, row after row.
class Rows {
 public:
  Rows(absl::Span<const QuantizedHostMatrix> stacked, DType dtype)
      : stacked_(stacked), dtype_(dtype) {}

  // Null beyond the last row.
  const QuantizedHostMatrix* Find(int64_t* row) const {
    for (const QuantizedHostMatrix& part : stacked_) {
      if (*row < part.rows) return &part;
      *row -= part.rows;
    }
    return nullptr;
  }
  // The 64 bytes of a row in a tile.
  void FillTileRow(int64_t row, int64_t column_tile, uint8_t* to) const;
  uint32_t GroupWord(int64_t row, int64_t index, bool paired_scales) const;

 private:
  absl::Span<const QuantizedHostMatrix> stacked_;
  DType dtype_;
};

void Rows::FillTileRow(int64_t row, int64_t column_tile, uint8_t* to) const {
  std::memset(to, 0, kQuantizedTileRowBytes);
  const QuantizedHostMatrix* matrix = Find(&row);
  if (matrix == nullptr) return;
  const int bits = matrix->bits;
  const uint8_t* values = matrix->values + row * matrix->row_bytes();
  const uint16_t* zeros = matrix->zeros + row * matrix->groups();
  const int64_t tile_cols = kQuantizedTileRowBytes * 8 / bits;
  // The value nearest to the zero point, which may exceed the largest value by one.
  const int padding = matrix->fp4 ? 0 : std::min<int>(zeros[matrix->groups() - 1], (1 << bits) - 1);
  const int chunk_bytes = bits;  // of eight columns
  for (int64_t i = 0; i < tile_cols / 8; ++i) {
    const int64_t column = column_tile * tile_cols + i * 8;
    const int64_t step = i / 4, member = i % 4;
    uint8_t* chunk = to + member * 16 + step * chunk_bytes;
    if (column >= matrix->cols) {
      std::memset(chunk, bits == 8 ? padding : padding * 0x11, static_cast<size_t>(chunk_bytes));
      continue;
    }
    for (int at = 0; at < chunk_bytes; at += 4) {
      uint32_t word;
      std::memcpy(&word, values + column * bits / 8 + at, sizeof(word));
      word = PlaceElements(word, bits);
      std::memcpy(chunk + at, &word, sizeof(word));
    }
  }
}

uint32_t Rows::GroupWord(int64_t row, int64_t index, bool paired_scales) const {
  const QuantizedHostMatrix* matrix = Find(&row);
  if (matrix == nullptr) return 0;
  const int64_t groups = matrix->groups();
  // What of_group gives for `count` groups, as far as there are, the first one lowest.
  const auto pack = [&](int count, auto of_group) {
    uint32_t word = 0;
    for (int i = 0; i < count && index * count + i < groups; ++i) {
      word |= uint32_t{of_group(row * groups + index * count + i)} << i * (32 / count);
    }
    return word;
  };
  if (matrix->fp4) {
    return pack(kFp4WordColumns / kFp4Group,
                [&](int64_t at) { return Fp4Scale(matrix->scales[at], dtype_); });
  }
  // Float16 weights are made with float16 scales.
  const auto scale_at = [&](int64_t at) {
    uint16_t scale = matrix->scales[at];
    if (dtype_ == DType::kF16 && matrix->scale_dtype == DType::kBF16) {
      ConvertElements(&matrix->scales[at], DType::kBF16, 1, DType::kF16, &scale);
    }
    return scale;
  };
  if (paired_scales) return pack(2, scale_at);
  const int64_t at = row * groups + index;
  return scale_at(at) | static_cast<uint32_t>(matrix->zeros[at]) << 16;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PackedMatrix>> CudaQuantizedMatrix::Make(
    absl::Span<const QuantizedHostMatrix> stacked, DType dtype, MatrixMemory& memory) {
  BATON_CHECK(!stacked.empty());
  BATON_RETURN_IF_ERROR(CheckStacked(stacked));
  const QuantizedHostMatrix& first = stacked[0];
  int64_t row_count = 0;
  for (const QuantizedHostMatrix& part : stacked) row_count += part.rows;
  const int64_t group_size = PackedGroup(first.fp4, first.group_size);
  const QuantizedExtent extent =
      QuantizedExtentOf(row_count, first.cols, first.bits, group_size, first.symmetric);
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<Buffer> buffer,
                         memory.Allocate(static_cast<size_t>(extent.size_bytes())));
  const Rows rows(stacked, dtype);
  auto* values = static_cast<std::byte*>(buffer->data());
  const auto value_bytes = static_cast<size_t>(extent.value_bytes());
  memory.Fill(values, value_bytes, [&](size_t offset, size_t size, void* to) {
    for (size_t at = 0; at < size; at += kQuantizedTileRowBytes) {
      const auto index = static_cast<int64_t>((offset + at) / kQuantizedTileRowBytes);
      const int64_t tile = index / kQuantizedTileRows;
      rows.FillTileRow(tile / extent.column_tiles * kQuantizedTileRows + index % kQuantizedTileRows,
                       tile % extent.column_tiles, static_cast<uint8_t*>(to) + at);
    }
  });
  const int64_t words = extent.group_words;
  const size_t group_bytes = static_cast<size_t>(extent.size_bytes()) - value_bytes;
  memory.Fill(values + value_bytes, group_bytes, [&](size_t offset, size_t size, void* to) {
    for (size_t at = 0; at < size / sizeof(uint32_t); ++at) {
      const auto index = static_cast<int64_t>(offset / sizeof(uint32_t) + at);
      const int64_t block = index / kQuantizedTileRows;
      static_cast<uint32_t*>(to)[at] =
          rows.GroupWord(block / words * kQuantizedTileRows + index % kQuantizedTileRows,
                         block % words, extent.paired_scales);
    }
  });
  std::unique_ptr<Buffer> order;
  if (first.order != nullptr) {
    const size_t order_bytes = static_cast<size_t>(first.cols) * sizeof(int32_t);
    BATON_ASSIGN_OR_RETURN(order, memory.Allocate(order_bytes));
    memory.Fill(order->data(), order_bytes, [&](size_t offset, size_t size, void* to) {
      std::memcpy(to, reinterpret_cast<const std::byte*>(first.order) + offset, size);
    });
  }
  QuantizedView view = {};
  view.values = values;
  view.groups = reinterpret_cast<const uint32_t*>(values + value_bytes);
  view.n = static_cast<int>(row_count);
  view.k = static_cast<int>(first.cols);
  view.column_tiles = static_cast<int>(extent.column_tiles);
  view.group_count = static_cast<int>(words);
  view.paired_scales = extent.paired_scales;
  view.steps_a_group_log2 = extent.paired_scales ? 1
                            : words == 1
                                ? 30
                                : std::countr_zero(static_cast<uint64_t>(group_size / kChunkedK));
  view.bf16_scales = first.scale_dtype == DType::kBF16;
  return std::make_unique<CudaQuantizedMatrix>(
      view, first.fp4 ? kFp4 : first.bits, std::move(buffer), memory.on_host(), std::move(order));
}

namespace {

// Has x's columns in the matrix's order.
template <class AnyLaunch>
void OrderColumns(AnyLaunch& launch, const CudaQuantizedMatrix& matrix,
                  const QuantizedWorkspaces& workspaces, Stream stream) {
  if (matrix.order() == nullptr) return;
  const int cols = matrix.view().k;
  BATON_CHECK_LE(static_cast<size_t>(launch.rows) * static_cast<size_t>(cols) * sizeof(uint16_t),
                 workspaces.sizes.reordered)
      << "StepLimits' reordered_columns";
  LaunchGatherColumns({.x = launch.x,
                       .x_stride = launch.x_stride,
                       .order = matrix.order(),
                       .out = workspaces.reordered,
                       .cols = cols},
                      launch.rows, stream);
  launch.x = workspaces.reordered;
  launch.x_stride = cols;
}

// Products that dequantise in registers leave the room for dequantised weights to the sums of
// slices.
float* SliceSums(const QuantizedWorkspaces& workspaces) {
  return static_cast<float*>(workspaces.dequantized);
}
int64_t SliceSumsFloats(const QuantizedWorkspaces& workspaces) {
  return static_cast<int64_t>(workspaces.sizes.dequantized / sizeof(float));
}

// Rows of each of `matrices` that are dequantised at once.
int SliceRows(const QuantizedView& w, const QuantizedWorkspaces& workspaces, int matrices) {
  const size_t row_bytes = static_cast<size_t>(w.k) * sizeof(uint16_t);
  const size_t most = workspaces.sizes.dequantized / row_bytes / static_cast<size_t>(matrices);
  BATON_CHECK_GE(most, static_cast<size_t>(kQuantizedTileRows)) << "StepLimits' quantized_columns";
  const auto rows = static_cast<int>(std::min(kMostSliceRows, most));
  return rows - rows % (rows >= kSliceRows ? kSliceRows : static_cast<int>(kQuantizedTileRows));
}

}  // namespace

void MultiplyQuantizedGated(MatMulGatedLaunch launch, const CudaQuantizedMatrix& matrix,
                            DType dtype, const QuantizedWorkspaces& workspaces, Stream stream) {
  const QuantizedView& w = matrix.view();
  BATON_CHECK(matrix.bits() != kFp4) << "MXFP4 is of experts";
  BATON_CHECK_EQ(w.n % (2 * kQuantizedTileRows), 0);
  OrderColumns(launch, matrix, workspaces, stream);
  if (launch.rows <= kQuantizedRows) {
    LaunchQuantizedMatMulGated({.x = launch.x,
                                .x_stride = launch.x_stride,
                                .w = w,
                                .out = launch.out,
                                .out_stride = launch.out_stride,
                                .rows = launch.rows,
                                .gating = launch.gating,
                                .tile_rows = workspaces.tile_rows,
                                .slice_sums = SliceSums(workspaces),
                                .slice_sums_floats = SliceSumsFloats(workspaces)},
                               matrix.bits(), dtype, stream);
    return;
  }
  // A slice of gate, and the same rows of up behind it.
  const int slice = SliceRows(w, workspaces, 2);
  auto* const dequantized = static_cast<uint16_t*>(workspaces.dequantized);
  for (int first = 0; first < launch.cols; first += slice) {
    MatMulGatedLaunch part = launch;
    part.cols = std::min(slice, launch.cols - first);
    part.w = dequantized;
    part.out = static_cast<uint16_t*>(launch.out) + first;
    for (const bool up : {false, true}) {
      LaunchDequantize({.w = w,
                        .first_row = (up ? launch.cols : 0) + first,
                        .row_count = part.cols,
                        .out = dequantized + (up ? int64_t{part.cols} * w.k : 0)},
                       matrix.bits(), dtype, stream);
    }
    LaunchMatMulGated(part, dtype, stream);
  }
}

void MultiplyQuantized(MatMulLaunch launch, const CudaQuantizedMatrix& matrix, DType dtype,
                       const QuantizedWorkspaces& workspaces, Products* products, Stream stream) {
  const QuantizedView& w = matrix.view();
  BATON_CHECK(matrix.bits() != kFp4) << "MXFP4 is of experts";
  OrderColumns(launch, matrix, workspaces, stream);
  if (launch.rows <= kQuantizedRows) {
    LaunchQuantizedMatMul({.x = launch.x,
                           .x_stride = launch.x_stride,
                           .w = w,
                           .bias = launch.bias,
                           .out = launch.out,
                           .out_stride = launch.out_stride,
                           .rows = launch.rows,
                           .tile_rows = workspaces.tile_rows,
                           .slice_sums = SliceSums(workspaces),
                           .slice_sums_floats = SliceSumsFloats(workspaces),
                           .added_scale = launch.added_scale},
                          matrix.bits(), dtype, stream);
    return;
  }
  int first = 0;
  for (const MatMulLaunch& part : SlicesOf(launch, matrix, workspaces)) {
    LaunchDequantize(
        {.w = w, .first_row = first, .row_count = part.n, .out = workspaces.dequantized},
        matrix.bits(), dtype, stream);
    first += part.n;
    if (products != nullptr && products->MatMul(part, dtype, stream)) continue;
    LaunchMatMul(part, dtype, stream);
  }
}

std::vector<MatMulLaunch> SlicesOf(const MatMulLaunch& launch, const CudaQuantizedMatrix& matrix,
                                   const QuantizedWorkspaces& workspaces) {
  const QuantizedView& w = matrix.view();
  const int slice = SliceRows(w, workspaces, 1);
  std::vector<MatMulLaunch> slices;
  for (int first = 0; first < w.n; first += slice) {
    MatMulLaunch part = launch;
    part.n = std::min(slice, w.n - first);
    part.w = workspaces.dequantized;
    if (launch.bias != nullptr) part.bias = launch.bias + first;
    part.out = launch.out + first;
    slices.push_back(part);
  }
  return slices;
}

}  // namespace baton::backend::cuda
