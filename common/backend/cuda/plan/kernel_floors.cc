#include "common/backend/cuda/plan/kernel_floors.h"

#include <algorithm>

#include "common/backend/cuda/kernels/index_maps.h"
#include "common/backend/cuda/kernels/latent.h"
#include "common/backend/quantized.h"
#include "common/backend/tensor.h"

namespace baton::backend::cuda {
namespace {

constexpr int64_t kElement = 2, kFloat = 4;

// Bytes of a token's K or V of one head.
int64_t KvHeadRowBytes(KvFormat format, int head_dim) {
  return KvRowBytes(format, DType::kF16, head_dim) + KvRowParameterBytes(format);
}

}  // namespace

MovedBytes MatMulFloor(int64_t rows, int64_t n, int64_t k, bool has_bias) {
  return {.read = kElement * (rows + n) * k + (has_bias ? kFloat * n : 0),
          .written = kFloat * rows * n};
}

double MatMulOperations(int64_t rows, int64_t n, int64_t k) {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(n) * static_cast<double>(k);
}

MovedBytes MatMulGatedFloor(int64_t rows, int64_t cols, int64_t k) {
  return {.read = MatMulFloor(rows, 2 * cols, k, false).read, .written = kElement * rows * cols};
}

MovedBytes NormedMatMulFloor(int64_t rows, int64_t n, int64_t k, bool has_bias) {
  MovedBytes moved = MatMulFloor(rows, n, k, has_bias);
  moved.read += (kFloat - kElement) * rows * k + kFloat * k;
  return moved;
}

MovedBytes NormedMatMulGatedFloor(int64_t rows, int64_t cols, int64_t k) {
  return {.read = NormedMatMulFloor(rows, 2 * cols, k, false).read,
          .written = kElement * rows * cols};
}

MovedBytes AddedMatMulFloor(int64_t rows, int64_t n, int64_t k, bool has_bias) {
  MovedBytes moved = MatMulFloor(rows, n, k, has_bias);
  moved.read += kFloat * rows * n;
  return moved;
}

MovedBytes QuantizedMatMulGatedFloor(int64_t rows, int64_t cols, int64_t k, int bits,
                                     int64_t group_size) {
  return {.read = QuantizedMatMulFloor(rows, 2 * cols, k, bits, group_size, false).read,
          .written = kElement * rows * cols};
}

MovedBytes QuantizedMatMulFloor(int64_t rows, int64_t n, int64_t k, int bits, int64_t group_size,
                                bool has_bias) {
  return {.read = QuantizedExtentOf(n, k, bits, group_size).size_bytes() + kElement * rows * k +
                  (has_bias ? kFloat * n : 0),
          .written = kFloat * rows * n};
}

MovedBytes DequantizeFloor(int64_t rows, int64_t k, int bits, int64_t group_size) {
  return {.read = QuantizedExtentOf(rows, k, bits, group_size).size_bytes(),
          .written = kElement * rows * k};
}

MovedBytes ExpertMatMulFloor(const ExpertShape& shape) {
  const bool fp4 = shape.bits == kFp4;
  const int64_t matrix = shape.bits == 16
                             ? kElement * shape.n * shape.k
                             : QuantizedExtentOf(shape.n, shape.k, fp4 ? 4 : shape.bits,
                                                 PackedGroup(fp4, shape.group_size))
                                   .size_bytes();
  return {.read = shape.experts * matrix + kElement * shape.x_rows * shape.k,
          .written = kFloat * shape.pairs * shape.n};
}

MovedBytes ExpertMatMulGatedFloor(const ExpertShape& shape) {
  return {.read = ExpertMatMulFloor(shape).read, .written = kElement * shape.pairs * shape.n / 2};
}

MovedBytes RouterFloor(int64_t rows, int64_t experts, int64_t cols) {
  return {.read = (kElement * rows + kFloat * experts) * cols, .written = kFloat * rows * experts};
}

MovedBytes SumExpertsFloor(int64_t rows, int64_t per_token, int64_t cols) {
  return {.read = kFloat * rows * per_token * (cols + 1), .written = kFloat * rows * cols};
}

MovedBytes GatherColumnsFloor(int64_t rows, int64_t cols) {
  return {.read = (kElement * rows + kFloat) * cols, .written = kElement * rows * cols};
}

MovedBytes AttentionFloor(absl::Span<const SequenceEntry> sequences, int kv_heads, int group,
                          int head_dim, int window, KvFormat format) {
  int64_t tokens = 0, rows = 0;
  for (const SequenceEntry& sequence : sequences) {
    if (sequence.row_count == 0) continue;
    const int end = sequence.context + sequence.row_count;
    tokens += window == 0 ? end : end - std::max(0, sequence.context + 1 - window);
    rows += sequence.row_count;
  }
  const int64_t query_values = rows * kv_heads * group * head_dim;
  return {.read = tokens * 2 * kv_heads * KvHeadRowBytes(format, head_dim) + kFloat * query_values,
          .written = kElement * query_values};
}

double AttentionOperations(absl::Span<const SequenceEntry> sequences, int kv_heads, int group,
                           int head_dim, int window) {
  double seen = 0;  // tokens, over all rows
  for (const SequenceEntry& sequence : sequences) {
    // The first rows of a window may see fewer than it holds, each one more than the one before.
    const int64_t first = sequence.context + 1, last = sequence.context + sequence.row_count;
    const int64_t most = window == 0 ? last : window;
    const int64_t growing = std::clamp<int64_t>(most - first + 1, 0, sequence.row_count);
    seen += static_cast<double>(growing * first + growing * (growing - 1) / 2 +
                                (sequence.row_count - growing) * most);
  }
  return 4 * seen * kv_heads * group * head_dim;
}

MovedBytes AttentionPartialsFloor(absl::Span<const SequenceEntry> sequences,
                                  absl::Span<const AttentionItem> split_items, int kv_heads,
                                  int group, int head_dim, int window) {
  int64_t rows = 0;
  for (const AttentionItem& item : split_items) {
    const SequenceEntry& sequence = sequences[static_cast<size_t>(item.sequence)];
    const int first_query = item.first_packed_row / group;
    const int first_token =
        window == 0 ? 0 : std::max(0, sequence.context + first_query - window + 1);
    const int first_split = first_token / kSplitTokens;
    if (item.split < first_split || item.split_count - first_split == 1) continue;
    rows += std::min(kRowTile, sequence.row_count * group - item.first_packed_row);
  }
  return {.read = 0, .written = rows * kv_heads * (2 + PaddedDim(head_dim)) * kFloat};
}

MovedBytes LatentAttentionFloor(absl::Span<const SequenceEntry> sequences,
                                const LatentFloorShape& shape) {
  const int head_dim = shape.latent_dim + shape.rotated;
  int64_t tokens = 0, rows = 0;
  for (const SequenceEntry& sequence : sequences) {
    if (sequence.row_count == 0) continue;
    tokens += sequence.context + sequence.row_count;
    rows += sequence.row_count;
  }
  return {.read = tokens * KvHeadRowBytes(shape.format, head_dim) +
                  kFloat * rows * shape.heads * head_dim,
          .written = kElement * rows * shape.heads * shape.latent_dim};
}

double LatentAttentionOperations(absl::Span<const SequenceEntry> sequences,
                                 const LatentFloorShape& shape) {
  // Keys and values count as if each had half of the elements of both.
  const int dims = 2 * shape.latent_dim + shape.rotated;
  return AttentionOperations(sequences, 1, shape.heads, dims, 0) / 2;
}

MovedBytes LatentPartialsFloor(absl::Span<const AttentionItem> split_items) {
  int64_t floats = 0;
  for (const AttentionItem& item : split_items) {
    if (item.split_count > 1) floats += kLatentPartialFloats;
  }
  return {.read = 0, .written = floats * kFloat};
}

MovedBytes LatentWriteFloor(int64_t rows, int64_t positions, int plain,
                            const LatentFloorShape& shape) {
  const int64_t heads = shape.heads, head_dim = shape.latent_dim + shape.rotated;
  return {.read = kFloat * (rows * (heads * (plain + shape.rotated) + head_dim) +
                            positions * shape.rotated + shape.latent_dim),
          .written = rows * (heads * (kElement * plain + kFloat * shape.rotated) +
                             KvHeadRowBytes(shape.format, static_cast<int>(head_dim)))};
}

MovedBytes HeadMatMulFloor(int64_t rows, int64_t heads, int64_t n, int64_t k) {
  return {.read = kElement * heads * (n * k + rows * k), .written = kFloat * rows * heads * n};
}

MovedBytes NormFloor(int64_t rows, int64_t cols, bool has_delta, int64_t out_element_bytes,
                     int weights) {
  return {.read = rows * cols * kFloat * (has_delta ? 2 : 1) + weights * cols * kFloat,
          .written = rows * cols * (out_element_bytes + (has_delta ? kFloat : 0))};
}

MovedBytes RopeWriteFloor(int64_t rows, int query_heads, int kv_heads, int head_dim, int half,
                          int64_t positions, int norms, KvFormat format) {
  const int64_t q = int64_t{query_heads} * head_dim, kv = 2 * int64_t{kv_heads} * head_dim;
  return {
      .read = rows * (q + kv) * kFloat + positions * half * 2 * kFloat + norms * head_dim * kFloat,
      .written = rows * (q * kFloat + 2 * kv_heads * KvHeadRowBytes(format, head_dim))};
}

MovedBytes ShortConvFloor(int64_t sequences, int64_t rows, int64_t channels, int64_t taps,
                          int64_t out_element_bytes) {
  const int64_t states = sequences * channels * (taps - 1) * kFloat;
  return {.read = states + (rows + taps) * channels * kFloat,
          .written = states + rows * channels * out_element_bytes};
}

MovedBytes HeadsFloor(int64_t sequences, int64_t rows, int64_t lanes, int64_t depth,
                      int64_t row_floats) {
  const int64_t states = sequences * lanes * depth * kFloat;
  return {.read = states + rows * row_floats * kFloat, .written = states + rows * lanes * kFloat};
}

MovedBytes GatedNormFloor(int64_t rows, int64_t cols, int64_t weight_size) {
  return {.read = (2 * rows * cols + weight_size) * kFloat, .written = rows * cols * kElement};
}

MovedBytes OutputGateFloor(int64_t rows, int64_t cols) {
  return {.read = rows * cols * (kFloat + kElement), .written = rows * cols * kElement};
}

MovedBytes GatherFloor(int64_t rows, int64_t cols, int64_t table_rows,
                       int64_t table_element_bytes) {
  return {.read = table_rows * cols * table_element_bytes, .written = rows * cols * kFloat};
}

MovedBytes GateFloor(int64_t rows, int64_t cols, int64_t out_element_bytes) {
  return {.read = rows * cols * 2 * kFloat, .written = rows * cols * out_element_bytes};
}

MovedBytes AddBiasFloor(int64_t rows, int64_t cols) {
  return {.read = (rows + 1) * cols * kFloat, .written = rows * cols * kFloat};
}

MovedBytes ScaleLogitsFloor(int64_t rows, int64_t cols) {
  return {.read = rows * cols * kFloat, .written = rows * cols * kFloat};
}

MovedBytes SampleFloor(int64_t requests, int64_t vocab) {
  return {.read = requests * vocab * kFloat, .written = 0};
}

MovedBytes CopyFloor(int64_t size_bytes) { return {.read = size_bytes, .written = size_bytes}; }

}  // namespace baton::backend::cuda
