// Products with weights of 4 or 8 bits, and those weights as 16-bit values.
//
// A weight is the 16-bit value nearest to (value - zero) * scale: the product for up to
// kQuantizedRows rows computes it in registers, LaunchDequantize writes it to memory for the
// products of matmul.h. All have matmul.h's order of k (index_maps.h's slices), so a row gets the
// same bits from each.
//
// - rows: few, or small matrices. A block takes 8, 16 or 32 rows by 16 rows of W, each warp one
//   slice.
// - tile: more rows. A block takes 32 or 64 rows by 256 rows of W, each warp 32 of those,
//   with all of the block's rows; x goes through shared memory. It takes all slices, one after the
//   other; or, where that would leave multiprocessors idle, one, and another kernel adds them up.
//
// Layout (common/backend/quantized.h): tiles of 8 rows of W by 64 bytes a row, so that a warp reads
// 512 bytes in a row, 16 a lane. A tile has 128 columns of 4 bits or 64 of 8, in steps of 32, each
// of which is two mma's with FragmentK's order: member m of row r holds, at 64 r + 16 m, columns
// 32 j + 8 m to 32 j + 8 m + 7 of every step j. Within those eight, PlaceOfElement orders
// them so that a mask extracts two at a time from a word, as the halves of a register.
//
// Sources: the magic numbers 0x6400 | v = 1024 + v of float16 ("Who Says Elephants Can't Run", Kim
// et al. 2022; FasterTransformer); weights stored in the order of the fragments (Marlin, Frantar et
// al. 2024).
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_QUANTIZED_H_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_QUANTIZED_H_

#include "common/backend/cuda/kernels/gating.h"
#include "common/backend/cuda/kernels/index_maps.h"
#include "common/backend/cuda/simt/simt.h"
#include "common/backend/tensor.h"

namespace baton::backend::cuda {

// The place of element e (of 8 consecutive columns) among the 8 values of 4 bits in a word, or,
// e modulo 4, among the 4 of 8 bits in word e / 4.
BATON_INDEX_MAP int PlaceOfElement(int element, int bits) {
  const int in_word = bits == 4 ? element : element % 4;
  return in_word / 2 + in_word % 2 * (16 / bits);
}
// A word of values in order, the first lowest, to one of values in their places.
BATON_INDEX_MAP uint32_t PlaceElements(uint32_t word, int bits) {
  if (bits == 8) return (word & 0xff0000ffu) | (word >> 8 & 0xff00u) | (word & 0xff00u) << 8;
  uint32_t halves[2] = {word & 0x0f0f0f0fu, word >> 4 & 0x0f0f0f0fu};
  for (uint32_t& half : halves) {
    half = (half | half >> 4) & 0x00ff00ffu;
    half = (half | half >> 8) & 0x0000ffffu;
  }
  return halves[0] | halves[1] << 16;
}
// In place of bits: numbers of MXFP4, four bits that lie as other values of 4 bits do. A word of
// `groups` has the scales of a tile's four steps, the first one's lowest, as if a group had 128
// columns. A scale is a byte: the exponent of the scale as a float32 for float16 weights, else that
// of 64 times the scale; 0 is the scale 0. Products with experts alone.
inline constexpr int kFp4 = -4;
BATON_INDEX_MAP int StepsATile(int bits) { return bits == 8 ? 2 : 4; }

struct QuantizedView {
  const void* values;      // tiles: [row tiles][column tiles][8][64 bytes]
  const uint32_t* groups;  // [row tiles][group_count][8]: scale's bits, zero point << 16
  int n;
  int k;  // a multiple of 8
  int column_tiles;
  int group_count;         // words of a row
  int steps_a_group_log2;  // of a word; a step: 32 columns
  bool bf16_scales;        // else float16; with float16 weights always those
  // A word has the scales of two groups of one step each, the first one's lower; every zero point
  // is 2^(bits - 1).
  bool paired_scales = false;
};

// The most rows that a block of the shape `tile` takes: 64 where it may have the shared memory.
// kernel_capability: what the kernels are compiled for; below 8.0 a block has at most 48 KiB.
inline constexpr int kSmallTileRows = 32, kLargeTileRows = 64;
inline int QuantizedTileRows(int kernel_capability) {
  return kernel_capability >= 80 ? kLargeTileRows : kSmallTileRows;
}

struct QuantizedMatMulLaunch {
  const void* x;  // [rows, k], 16-bit
  int64_t x_stride;
  QuantizedView w;
  const float* bias;  // [n] or null
  float* out;         // [rows, n]
  int64_t out_stride;
  int rows;
  int tile_rows = kSmallTileRows;  // as QuantizedTileRows says, or fewer
  // Room for the sums of slices that are blocks' own, or none.
  float* slice_sums = nullptr;
  int64_t slice_sums_floats = 0;
  float added_scale = 0;  // as MatMulLaunch has it
};

// The most rows for which this is sooner than LaunchDequantize and the product of matmul.h, which
// moves four bytes of memory and of L2 for each weight, by estimate.
inline constexpr int kQuantizedRows = 256;

// kTile: all slices in a block; kSlices: a block has one, in the second half of the columns or, of
// few, in all, with room for the sums. kAuto: what an estimate says is the soonest, which also
// chooses how many columns are cut so.
enum class QuantizedShape { kAuto, kRows, kTile, kSlices };

// Floats of `slice_sums` for n columns that are cut into slices.
int64_t SliceSumsFloats(int rows, int n, int k);

// dtype: of x, kF16 or kBF16. Reads n k bits / 8 bytes, 4 for each group; for every 16 columns of n
// (rows) or 256 (tile) the rows' k 16-bit values, from L1 or L2; with an added_scale rows n floats;
// writes rows n floats.
void LaunchQuantizedMatMul(const QuantizedMatMulLaunch& launch, int bits, DType dtype,
                           Stream stream, QuantizedShape shape = QuantizedShape::kAuto);

struct QuantizedMatMulGatedLaunch {
  const void* x;  // [rows, k], 16-bit
  int64_t x_stride;
  QuantizedView w;  // gate first; n a multiple of 16
  void* out;        // [rows, n / 2], 16-bit
  int64_t out_stride;
  int rows;
  Gating gating = {};
  int tile_rows = kSmallTileRows;  // this and the others as QuantizedMatMulLaunch's
  float* slice_sums = nullptr;
  int64_t slice_sums_floats = 0;
};

// out = activation(gate) * up * scale for gate_up = x Wᵀ: the bits that LaunchQuantizedMatMul and
// LaunchGate (to dtype) leave, and gate_up is not written.
void LaunchQuantizedMatMulGated(const QuantizedMatMulGatedLaunch& launch, int bits, DType dtype,
                                Stream stream, QuantizedShape shape = QuantizedShape::kAuto);

struct DequantizeLaunch {
  QuantizedView w;
  int first_row;  // a multiple of 8
  int row_count;
  void* out;  // [row_count, k], 16-bit
};

// Rows of W as `dtype`. Reads what is stored of them, writes row_count k 16-bit values.
void LaunchDequantize(const DequantizeLaunch& launch, int bits, DType dtype, Stream stream);

struct GatherColumnsLaunch {
  const void* x;  // [rows, cols], 16-bit
  int64_t x_stride;
  const int32_t* order;  // [cols]
  void* out;             // [rows, cols] without gaps: out[r, i] = x[r, order[i]]
  int cols;              // a multiple of 8
};

void LaunchGatherColumns(const GatherColumnsLaunch& launch, int rows, Stream stream);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_QUANTIZED_H_
