// Lower bounds on the memory traffic of each kernel: every needed byte of its operands read once,
// every byte of its results written once; and the additions and multiplications of the
// compute-bound ones. Tests compare the kernels' accesses with them, and the GPU benchmark its
// timings: the time at the floor is total() over the measured copy bandwidth. Host arithmetic.
//
// Excludes the arguments of a launch and arrays of a few words a thread block (plans, block tables,
// counters). Elements have 2 bytes, the activation type's, unless stated.
#ifndef BATON_COMMON_BACKEND_CUDA_PLAN_KERNEL_FLOORS_H_
#define BATON_COMMON_BACKEND_CUDA_PLAN_KERNEL_FLOORS_H_

#include <cstdint>

#include "absl/types/span.h"
#include "common/backend/cuda/kernels/attention.h"
#include "common/backend/tensor.h"

namespace baton::backend::cuda {

struct MovedBytes {
  int64_t read = 0;
  int64_t written = 0;
  int64_t total() const { return read + written; }
};

// x [rows, k] and W [n, k] of 16 bits, bias [n], out f32 [rows, n]. Both shapes, and cuBLASLt.
MovedBytes MatMulFloor(int64_t rows, int64_t n, int64_t k, bool has_bias);
double MatMulOperations(int64_t rows, int64_t n, int64_t k);
// Gate in the product: W [2 cols, k], out of 16 bits [rows, cols].
MovedBytes MatMulGatedFloor(int64_t rows, int64_t cols, int64_t k);
// The norm of x in the product: x f32 and its weight.
MovedBytes NormedMatMulFloor(int64_t rows, int64_t n, int64_t k, bool has_bias);
MovedBytes NormedMatMulGatedFloor(int64_t rows, int64_t cols, int64_t k);
// The product added to what out has.
MovedBytes AddedMatMulFloor(int64_t rows, int64_t n, int64_t k, bool has_bias);
MovedBytes QuantizedMatMulGatedFloor(int64_t rows, int64_t cols, int64_t k, int bits,
                                     int64_t group_size);
// MatMulFloor for W as quantized.h packs it, in whole tiles.
MovedBytes QuantizedMatMulFloor(int64_t rows, int64_t n, int64_t k, int bits, int64_t group_size,
                                bool has_bias);
// `rows` rows of such a W, to 16 bits.
MovedBytes DequantizeFloor(int64_t rows, int64_t k, int bits, int64_t group_size);
// Products of experts (experts.h): `pairs` rows of out, of `x_rows` different rows of x, and the
// matrices of `experts` different experts, W [n, k] of 16 bits or as quantized.h packs it.
struct ExpertShape {
  int64_t pairs = 0, x_rows = 0, experts = 0, n = 0, k = 0;
  int bits = 16;  // 16, 8, 4 or kFp4
  int64_t group_size = 0;
};
MovedBytes ExpertMatMulFloor(const ExpertShape& shape);
MovedBytes ExpertMatMulGatedFloor(const ExpertShape& shape);  // out: n / 2 columns of 16 bits
// Logits of so many experts, f32.
MovedBytes RouterFloor(int64_t rows, int64_t experts, int64_t cols);
MovedBytes SumExpertsFloor(int64_t rows, int64_t per_token, int64_t cols);
MovedBytes GatherColumnsFloor(int64_t rows, int64_t cols);

// K and V of every token that some row of a sequence sees, once for all of its rows and heads; q
// f32 read, out written. Sequences share no blocks. This holds for both kernels and excludes their
// workspaces. Scales and zeros of a quantised format count too.
MovedBytes AttentionFloor(absl::Span<const SequenceEntry> sequences, int kv_heads, int group,
                          int head_dim, int window, KvFormat format = KvFormat::kPlain);
// Operations of the two products, over the tokens that each row sees.
double AttentionOperations(absl::Span<const SequenceEntry> sequences, int kv_heads, int group,
                           int head_dim, int window);
// The partial sums, on top of the floor, that the split kernel writes and its last blocks read from
// the L2 cache: the rows of every split of a row tile with several.
MovedBytes AttentionPartialsFloor(absl::Span<const SequenceEntry> sequences,
                                  absl::Span<const AttentionItem> split_items, int kv_heads,
                                  int group, int head_dim, int window);

// Latent attention (latent.h): a row of the pool of every token that some row of a sequence sees,
// once for all of its rows and heads.
struct LatentFloorShape {
  int heads = 0, latent_dim = 0, rotated = 0;
  KvFormat format = KvFormat::kPlain;
};
MovedBytes LatentAttentionFloor(absl::Span<const SequenceEntry> sequences,
                                const LatentFloorShape& shape);
double LatentAttentionOperations(absl::Span<const SequenceEntry> sequences,
                                 const LatentFloorShape& shape);
// On top of it, as AttentionPartialsFloor, but for whole row tiles.
MovedBytes LatentPartialsFloor(absl::Span<const AttentionItem> split_items);
// plain: of a head's query, the elements without a position.
MovedBytes LatentWriteFloor(int64_t rows, int64_t positions, int plain,
                            const LatentFloorShape& shape);
MovedBytes HeadMatMulFloor(int64_t rows, int64_t heads, int64_t n, int64_t k);

// Recurrent layers (recurrence.h): states are read and written once a sequence. row_floats: of a
// row's operands. out_element_bytes: 2 or 4.
MovedBytes ShortConvFloor(int64_t sequences, int64_t rows, int64_t channels, int64_t taps,
                          int64_t out_element_bytes);
MovedBytes HeadsFloor(int64_t sequences, int64_t rows, int64_t lanes, int64_t depth,
                      int64_t row_floats);
MovedBytes GatedNormFloor(int64_t rows, int64_t cols, int64_t weight_size);
MovedBytes OutputGateFloor(int64_t rows, int64_t cols);

// out_element_bytes: of out, 2 or 4. weights: of the row and of the delta, 0 to 2.
MovedBytes NormFloor(int64_t rows, int64_t cols, bool has_delta, int64_t out_element_bytes,
                     int weights = 1);
// half: of the rotated dims; norms: q's and k's, 0 to 2. cos and sin of `positions` different
// positions.
MovedBytes RopeWriteFloor(int64_t rows, int query_heads, int kv_heads, int head_dim, int half,
                          int64_t positions, int norms, KvFormat format = KvFormat::kPlain);
// table_element_bytes: 2 or 4; table_rows: different rows that are gathered.
MovedBytes GatherFloor(int64_t rows, int64_t cols, int64_t table_rows, int64_t table_element_bytes);
MovedBytes GateFloor(int64_t rows, int64_t cols, int64_t out_element_bytes);
MovedBytes AddBiasFloor(int64_t rows, int64_t cols);
MovedBytes ScaleLogitsFloor(int64_t rows, int64_t cols);
// Every request's logits once, each its own row. Greedy ones; others change the row that they copy
// and read it again, which the L2 cache serves.
MovedBytes SampleFloor(int64_t requests, int64_t vocab);
// CopyBlocks, gather and scatter.
MovedBytes CopyFloor(int64_t size_bytes);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_PLAN_KERNEL_FLOORS_H_
