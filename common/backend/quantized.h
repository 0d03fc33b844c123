// Weights of 4 and 8 bits: their values, and their size on a GPU.
#ifndef BATON_COMMON_BACKEND_QUANTIZED_H_
#define BATON_COMMON_BACKEND_QUANTIZED_H_

#include <cstdint>

#include "common/backend/tensor.h"

namespace baton::backend {

// The values of QuantizedHostMatrix::fp4: twice 0, 0.5, 1, 1.5, 2, 3, 4 and 6, and the same
// negated, plus kFp4Zero.
inline constexpr int kFp4Zero = 12;
inline constexpr uint8_t kFp4Values[16] = {12, 13, 14, 15, 16, 18, 20, 24,
                                           12, 11, 10, 9,  8,  6,  4,  0};
inline constexpr int kFp4Group = 32;
// On a GPU a word has the scales of four such groups: for QuantizedExtentOf they are one.
inline constexpr int kFp4WordColumns = 4 * kFp4Group;
constexpr int64_t PackedGroup(bool fp4, int64_t group_size) {
  return fp4 ? kFp4WordColumns : group_size;
}

// Row `row` of the matrix, [cols], in the order of W: exact, since (value - zero) has at most 9
// bits and a scale 11.
void DequantizeRow(const QuantizedHostMatrix& matrix, int64_t row, float* out);

// A GPU keeps such weights in tiles of 8 rows, 512 bytes in all (128 columns of 4 bits, 64 of 8),
// followed by words of 4 bytes: for each row and group its scale and zero point, or for two groups
// their scales, if zero points are known (`symmetric`) and groups have 32 columns.
inline constexpr int64_t kQuantizedTileRows = 8;
inline constexpr int64_t kQuantizedTileRowBytes = 64;
inline constexpr int64_t kQuantizedTileBytes = kQuantizedTileRows * kQuantizedTileRowBytes;

struct QuantizedExtent {
  int64_t row_tiles = 0;
  int64_t column_tiles = 0;
  int64_t group_words = 0;  // of a row
  bool paired_scales = false;

  int64_t value_bytes() const { return row_tiles * column_tiles * kQuantizedTileBytes; }
  int64_t size_bytes() const {
    return value_bytes() + row_tiles * group_words * kQuantizedTileRows * int64_t{sizeof(uint32_t)};
  }
};
constexpr QuantizedExtent QuantizedExtentOf(int64_t rows, int64_t cols, int bits,
                                            int64_t group_size, bool symmetric = false) {
  constexpr int64_t kPairedColumns = 32;
  const int64_t tile_cols = kQuantizedTileRowBytes * 8 / bits;
  const int64_t groups = (cols + group_size - 1) / group_size;
  const bool paired = symmetric && group_size == kPairedColumns && groups > 1;
  return {.row_tiles = (rows + kQuantizedTileRows - 1) / kQuantizedTileRows,
          .column_tiles = (cols + tile_cols - 1) / tile_cols,
          .group_words = paired ? (groups + 1) / 2 : groups,
          .paired_scales = paired};
}

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_QUANTIZED_H_
