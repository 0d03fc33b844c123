// The bytes that must cross a GPU's memory bus, and the operations, whoever computes: the floors of
// docs/cuda.md as arithmetic. Elements of `element_bytes` are weights, KV and what products take.
#ifndef BATON_BENCHMARKS_GPU_FLOORS_H_
#define BATON_BENCHMARKS_GPU_FLOORS_H_

#include <cstdint>

namespace baton::gpu_bench {

struct Work {
  double bytes = 0;
  double flops = 0;  // multiplications and additions, each counted
};

struct AttentionShape {
  int sequences = 1;
  int rows = 1;  // of each sequence, behind `context` tokens
  int context = 0;
  int query_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
};
// K and V of all tokens that a sequence sees, once.
double KvBytes(const AttentionShape& shape, int element_bytes);
// A few rows a sequence: the cache, and where a sequence has several splits of 256 tokens, the
// partial results, written and read.
Work SplitAttention(const AttentionShape& shape, int element_bytes);
// Many rows: the cache, q and the result, once.
Work TileAttention(const AttentionShape& shape, int element_bytes);

Work Product(int64_t rows, int64_t n, int64_t k, int element_bytes);
// Weights of few bits, and 4 bytes a group of `group_size` of them.
Work QuantizedProduct(int64_t rows, int64_t n, int64_t k, int bits, int64_t group_size,
                      int element_bytes);
// with_delta: a sum is added to x first, and x is written back.
Work Norm(int64_t rows, int64_t cols, int out_bytes, bool with_delta);
Work RopeWrite(int64_t rows, int query_heads, int kv_heads, int head_dim, int element_bytes);
Work Gather(int64_t rows, int64_t cols, int element_bytes);
Work SiluMul(int64_t rows, int64_t cols, int out_bytes);
// The logits, once: greedy.
Work Sampling(int64_t requests, int64_t vocab);
Work BlockCopy(int64_t bytes_moved);

}  // namespace baton::gpu_bench

#endif  // BATON_BENCHMARKS_GPU_FLOORS_H_
