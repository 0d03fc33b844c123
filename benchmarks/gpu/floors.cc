#include "benchmarks/gpu/floors.h"

namespace baton::gpu_bench {
namespace {

constexpr int kSplitTokens = 256;
constexpr int kF32Bytes = 4;

double Times(int64_t a, int64_t b) { return static_cast<double>(a) * static_cast<double>(b); }

// Over all rows, the tokens that each sees: itself and those before it.
double Pairs(const AttentionShape& shape) {
  const double rows = shape.rows;
  return shape.sequences * (rows * shape.context + rows * (rows + 1) / 2);
}

double AttentionFlops(const AttentionShape& shape) {
  return 4 * Pairs(shape) * shape.query_heads * shape.head_dim;
}

}  // namespace

double KvBytes(const AttentionShape& shape, int element_bytes) {
  return 2.0 * element_bytes * shape.kv_heads * shape.head_dim *
         Times(shape.sequences, shape.context + shape.rows);
}

Work SplitAttention(const AttentionShape& shape, int element_bytes) {
  Work work = {KvBytes(shape, element_bytes), AttentionFlops(shape)};
  const int splits = (shape.context + shape.rows + kSplitTokens - 1) / kSplitTokens;
  if (splits > 1) {
    const double partials =
        Times(shape.sequences, shape.rows) * shape.query_heads * static_cast<double>(splits);
    work.bytes += 2 * kF32Bytes * (shape.head_dim + 2) * partials;
  }
  return work;
}

Work TileAttention(const AttentionShape& shape, int element_bytes) {
  const double outputs = Times(shape.sequences, shape.rows) * shape.query_heads * shape.head_dim;
  return {KvBytes(shape, element_bytes) + (kF32Bytes + element_bytes) * outputs,
          AttentionFlops(shape)};
}

Work Product(int64_t rows, int64_t n, int64_t k, int element_bytes) {
  return {element_bytes * (Times(n, k) + Times(rows, k)) + kF32Bytes * Times(rows, n),
          2 * Times(rows, n) * static_cast<double>(k)};
}

Work QuantizedProduct(int64_t rows, int64_t n, int64_t k, int bits, int64_t group_size,
                      int element_bytes) {
  const int64_t groups = (k + group_size - 1) / group_size;
  Work work = Product(rows, n, k, element_bytes);
  work.bytes += Times(n, k) * bits / 8 + 4 * Times(n, groups) - element_bytes * Times(n, k);
  return work;
}

Work Norm(int64_t rows, int64_t cols, int out_bytes, bool with_delta) {
  return {Times(rows, cols) * ((with_delta ? 3 : 1) * kF32Bytes + out_bytes), 0};
}

Work RopeWrite(int64_t rows, int query_heads, int kv_heads, int head_dim, int element_bytes) {
  const double read = kF32Bytes * (query_heads + 2.0 * kv_heads);
  const double written = kF32Bytes * query_heads + 2.0 * element_bytes * kv_heads;
  return {(read + written) * Times(rows, head_dim), 0};
}

Work Gather(int64_t rows, int64_t cols, int element_bytes) {
  return {Times(rows, cols) * (element_bytes + kF32Bytes), 0};
}

Work SiluMul(int64_t rows, int64_t cols, int out_bytes) {
  return {Times(rows, cols) * (2 * kF32Bytes + out_bytes), 0};
}

Work Sampling(int64_t requests, int64_t vocab) { return {kF32Bytes * Times(requests, vocab), 0}; }

Work BlockCopy(int64_t bytes_moved) { return {2 * static_cast<double>(bytes_moved), 0}; }

}  // namespace baton::gpu_bench
