// The maps between lanes, registers, shared memory and matrices that the kernels share, as plain
// functions that the tests enumerate.
//
// Products are warp-wide mma's of 16 x 16 times 16 x 8 whose fragments come straight from rows that
// are contiguous in memory, 16 bytes a lane, with no transposition but for V in shared memory
// (LoadTransposed, whose products have dims in their order):
//
// - A sum over k is correct for any order of k that both operands share. So a lane's 16
//   bytes, eight consecutive k, are assigned to the fragment's columns in two consecutive mma's
//   (FragmentK). Both operands of a product of rows with rows (Q Kᵀ, x Wᵀ) are loaded so.
// - Where V comes to registers straight from the pool, the columns of P V are permuted, too: lane
//   group g holds eight consecutive dims of V, the i-th of which is column g of the i-th mma
//   (OutputDim), so that two tokens' rows are paired by a byte permutation and the result comes out
//   as eight consecutive dims a lane.
//
// Source: fragment layouts of mma.m16n8k8 and m16n8k16, PTX ISA.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_INDEX_MAPS_H_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_INDEX_MAPS_H_

#if defined(__CUDACC__)
#define BATON_INDEX_MAP __host__ __device__ constexpr
#else
#define BATON_INDEX_MAP constexpr
#endif

namespace baton::backend::cuda {

// A lane's place in a fragment: rows (of A and C) or columns (of B) `group` and group + 8; `member`
// of the four lanes that share them.
BATON_INDEX_MAP int GroupOf(int lane) { return lane / 4; }
BATON_INDEX_MAP int MemberOf(int lane) { return lane % 4; }

inline constexpr int kChunkElements = 8;  // of 16 bits in 16 bytes
// k's that the four members' chunks cover: two mma's of 16.
inline constexpr int kChunkedK = 4 * kChunkElements;

// The k (of the 32) at column `column` (0 to 15) of mma number `product` (0 or 1).
BATON_INDEX_MAP int FragmentK(int product, int column) {
  const int member = column % 8 / 2;
  const int reg = product * 2 + column / 8;
  return member * kChunkElements + reg * 2 + column % 2;
}

// Products x Wᵀ cut k, by k alone, into slices whose sums are added in order: the columns of each
// but the last ones, whole tiles of quantised weights. Slices behind the end are empty.
inline constexpr int kSlices = 8;
inline constexpr int kSliceUnit = 4 * kChunkedK;
BATON_INDEX_MAP int SliceLength(int k) {
  return (k + kSlices * kSliceUnit - 1) / (kSlices * kSliceUnit) * kSliceUnit;
}

// Queries are staged as fragments of A: the place, in words of two elements, of word `word` (0 to
// 3) of chunk `chunk` of row `row` (0 to 15). A lane's four registers of a product are consecutive.
BATON_INDEX_MAP int QueryWord(int row, int chunk, int word) {
  const int product = chunk / 4 * 2 + word / 2, lane = row % 8 * 4 + chunk % 4;
  return (product * 32 + lane) * 4 + word % 2 * 2 + row / 8;
}

// Products of many rows take rows of W by 16, two tiles of 8 columns. Row `row` is this column of
// the result: a lane's two columns of each tile are four adjacent ones.
BATON_INDEX_MAP int PairedColumn(int row) {
  return row / 16 * 16 + row % 8 / 2 * 4 + row / 8 % 2 * 2 + row % 2;
}

// P V by halves of 64 dims: the dim of the half that column `column` (0 to 7) of mma `i` is.
inline constexpr int kOutputSpan = 64;
BATON_INDEX_MAP int OutputDim(int i, int column) { return column * kChunkElements + i; }

// Shared memory keeps rows of 16-byte chunks. The swizzles are such that the eight lanes that one
// cycle serves use different banks: lanes of a fragment of K (or of x and W) read four
// consecutive chunks of two consecutive rows, those of V the same chunk of eight consecutive rows.
// `chunks` a row: a multiple of 8.
BATON_INDEX_MAP int RowsOperandChunk(int row, int chunk, int chunks) {
  return row * chunks + (chunk ^ ((row & 1) << 2));
}
BATON_INDEX_MAP int ValuesOperandChunk(int row, int chunk, int chunks) {
  return row * chunks + (chunk ^ (row & 7));
}
// The sums of 16 rows and a span of dims in float32 chunks of four dims, which lanes of a fragment
// write by pairs of rows, every fourth chunk, and read a row at a time, every second chunk.
BATON_INDEX_MAP int SumsChunk(int row, int chunk) {
  return row * (kOutputSpan / 4) + (chunk ^ (chunk >> 3 & 1) ^ (row & 1) << 1);
}

// Attention, for head dims up to `dim` (64, 128 or 256; shorter ones are padded with zeros), and
// of 512.
// A row's result is folded twice, in ascending order: pieces into splits, splits into the whole.
inline constexpr int kPieceTokens = 64;  // whose weights share one maximum
inline constexpr int kSplitTokens = 256;
inline constexpr int kRowTile = 16;  // packed rows (query position, head of the group) a warp
inline constexpr int kAttentionWarps = 4;
BATON_INDEX_MAP int PaddedDim(int head_dim) {
  return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : head_dim <= 256 ? 256 : 512;
}
// Heads that have kernels of their own (wide_attention.h), which exist for this width alone.
BATON_INDEX_MAP bool IsWide(int head_dim) { return head_dim > 256; }
inline constexpr int kWidestHead = 512;
// Dims of the result that one block of the tile kernel computes, for registers hold no more of 64
// rows' sums. Blocks of other dims compute the same scores. Where there is shared memory for two
// stages, no registers hold a piece on its way.
BATON_INDEX_MAP int TileDims(int dim, int stages) {
  return dim <= 128 || IsWide(dim) ? dim : stages == 2 ? 128 : 64;
}

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_INDEX_MAPS_H_
