// Attention over paged KV: one arithmetic in two shapes.
//
// Rows are packed: for a sequence and a KV head, packed row r is query position r / group, head
// r % group of the group. So any group size fills the tensor cores' 16 rows (as in FlashInfer and
// XQA), and one tile can hold several query positions, each with its causal bound.
//
// A packed row's result is a function of its query and its visible tokens alone: tokens are
// processed in pieces of 64 and splits of 256, at multiples of those. A piece has one maximum, to
// which its weights are relative; its sums are folded into the split's, and those into the row's,
// in ascending order (the fold of partial softmaxes: Milakov and Gimelshein, arXiv 1805.02867;
// FlashAttention-2, arXiv 2307.08691). Pieces and splits that only other rows of the tile see do
// not change its bits. So both kernels give a row the same bits:
//
// - split: few rows, bandwidth-bound. A block computes one split of one row tile, each warp one
//   piece, loaded from memory to registers; the block that finishes last folds the splits
//   (FlashDecoding; the last block folds as in stream-K reductions: one atomic counter, which
//   resets itself).
// - tile: many rows. A block computes 64 packed rows over all their tokens, K and V staged in
//   shared memory; while it multiplies with one, it loads the other, below sm_80 through registers.
//   With two stages it loads both of the next piece. A warp has one row tile of 16 rows, or two.
//
// A soft cap (score_cap) changes each score before it is hidden or weighed; a sink is added to the
// sum of weights behind the last fold. Both are in one place for both kernels, and in variants of
// them (as FlashInfer calls them), so that the kernels without take neither the instructions nor
// the registers.
//
// Codes of quantised KV become 16-bit elements, each rounded once, in the same place for both: the
// split kernel has them in registers, the tile kernel puts elements into shared memory.
//
// A split launch can be fused with what comes before it in a decode step (rope_write.h): each block
// makes the queries of its row tile itself, and the block of a row's last split the K and V of its
// new token, which it writes before it loads the split's tokens from there, as all others. So a row
// has the bits that the two launches give it.
//
// Heads of 512 dims have kernels of their own, in the same two uses: wide_attention.h.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_ATTENTION_H_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_ATTENTION_H_

#include "common/backend/cuda/kernels/index_maps.h"
#include "common/backend/cuda/kernels/rope_head.h"
#include "common/backend/cuda/simt/simt.h"
#include "common/backend/tensor.h"

namespace baton::backend::cuda {

// A sequence of a step, on the device. Its table entries begin at first_block.
struct SequenceEntry {
  int first_row;
  int row_count;
  int context;
  int first_block;  // index in the concatenated block tables
};

// One block of threads of either kernel (for each KV head).
struct AttentionItem {
  int sequence;
  int first_packed_row;
  int split;          // split kernel: this one
  int split_count;    // of the row tile; 1: no fold
  int first_partial;  // split kernel: of the row tile's splits in the partials
  int row_tile;       // split kernel: index of the counter
};

struct AttentionLaunch {
  const float* q;  // [rows, query_heads * head_dim]; of a fused launch nothing
  int64_t q_stride;
  void* out;  // 16-bit elements, the same shape
  int64_t out_stride;
  std::byte* layer;            // of block 0; written by a fused launch alone
  int64_t block_stride_bytes;  // below 4 GiB
  int block_tokens_log2;       // 4 or more
  int kv_heads;
  int group;           // query heads a KV head
  int head_dim;        // a multiple of 8 up to 256, or kWidestHead
  int latent_dim = 0;  // of latent attention alone: latent.h
  float scale;
  int window;                    // 0: all
  float score_cap = 0;           // not 0: a scaled score s becomes score_cap * tanh(s / score_cap)
  const float* sinks = nullptr;  // [query_heads], or null: see AttentionArgs
  const SequenceEntry* sequences;
  const int32_t* tables;
  const AttentionItem* items;
  // split: the first of the items and their end, in device memory; null: as many as there are
  // blocks.
  const int* item_range;
  float* partials;      // split: [partial, kv_head] of PartialFloats(dim)
  unsigned* counters;   // split: [row tile, kv_head], 0 before and after
  float* totals;        // tile: [item, kv_head] of TotalFloats(dim)
  int tile_stages = 1;  // tile: as TileStages says, or fewer; of quantised KV 1
  bool tile_pairs = false;  // tile: as TilePairs says, of heads up to 64 in two stages
  KvFormat kv_format = KvFormat::kPlain;
  // split: with a qkv the launch is fused. It makes queries, K and V of the rows as rope_write.h
  // does, and writes K and V. REQUIRES: SplitFuses; each sequence has one row, whose splits are all
  // among the items; no sequence sees a token that another one of the launch adds.
  HeadSource heads = {};
  uint32_t group_inverse = 0;  // the launch functions set it
};

// Whether the split kernel of such heads can be fused with the write of K and V: one row tile, and
// so one block, sees a sequence's new token.
inline bool SplitFuses(int group, int head_dim) { return group <= kRowTile && !IsWide(head_dim); }

// packed / group by a product, with an inverse of (2^31 + group - 1) / group: exact while
// packed * group is below 2^31.
inline constexpr uint32_t kInverseUnit = uint32_t{1} << 31;
BATON_HOST_DEVICE int QueryOf(int packed, uint32_t group_inverse) {
  return static_cast<int>(uint64_t{static_cast<uint32_t>(packed) * 2} * group_inverse >> 32);
}
inline AttentionLaunch WithInverse(AttentionLaunch launch) {
  const auto group = static_cast<uint32_t>(launch.group);
  launch.group_inverse = (kInverseUnit + group - 1) / group;
  return launch;
}

// The sums of a split: m and l of 16 rows, then 16 x padded_dim sums.
BATON_HOST_DEVICE int64_t PartialFloats(int padded_dim) { return 16 * (2 + int64_t{padded_dim}); }
BATON_HOST_DEVICE int64_t TotalFloats(int padded_dim) { return 64 * int64_t{padded_dim}; }

// Shared memory of a block of the tile kernel.
constexpr size_t TileSharedBytes(int padded_dim, int stages) {
  return static_cast<size_t>(stages * kPieceTokens * (padded_dim + TileDims(padded_dim, stages)) *
                             2);
}
// Blocks of the tile kernel that a multiprocessor has registers for, without soft cap and sinks.
constexpr int TileBlocks(int padded_dim) { return padded_dim == 64 ? 3 : 2; }
// The number of stages of the tile kernel, given a multiprocessor's shared memory: two if there is
// room for those of all blocks. Wide heads are not staged.
// kernel_capability: what the kernels are compiled for; below 8.0 they copy through registers.
inline int TileStages(int head_dim, int kernel_capability, size_t shared_bytes) {
  constexpr size_t kOfTheSystem = 1024;  // a block
  const int dim = PaddedDim(head_dim);
  const size_t block = TileSharedBytes(dim, 2) + kOfTheSystem;
  const bool deep = kernel_capability >= 80 && !IsWide(head_dim) &&
                    static_cast<size_t>(TileBlocks(dim)) * block <= shared_bytes;
  return deep ? 2 : 1;
}

// The tile kernel exists in a second form, whose warps have two row tiles each and whose blocks
// have half of the warps. A multiprocessor has registers for so many of its blocks.
constexpr int kPairedTileBlocks = 4;
// Whether that form is the faster one: it reads less from shared memory, but a block takes longer,
// so there must be about as many blocks as run at a time. blocks: items times KV heads.
inline bool TilePairs(int64_t blocks, int multiprocessors) {
  return blocks >= int64_t{kPairedTileBlocks - 1} * multiprocessors;
}

inline bool IsVariant(const AttentionLaunch& launch) {
  return launch.score_cap != 0 || launch.sinks != nullptr;
}

// dtype: of out and of KV that is plain, kF16 or kBF16; quantised KV is multiplied as it. blocks:
// for each KV head; with an item_range, a block computes several items.
void LaunchAttentionSplit(const AttentionLaunch& launch, DType dtype, int blocks, Stream stream);
void LaunchAttentionTile(const AttentionLaunch& launch, DType dtype, int items, Stream stream);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_ATTENTION_H_
