// What attention and the operations before it take: rotations, the write of KV, and attention
// itself. backend.h has the operations.
#ifndef BATON_COMMON_BACKEND_ATTENTION_H_
#define BATON_COMMON_BACKEND_ATTENTION_H_

#include <cmath>
#include <cstdint>
#include <vector>

#include "common/backend/matrix_packer.h"
#include "common/backend/tensor.h"

namespace baton::backend {

// How a RoPE variant rotates the first elements of a head, pairs (i, i + rotary_dim / 2) as in
// Hugging Face; elements from rotary_dim on stay as they are.
struct RopeSpec {
  std::vector<double> inverse_frequencies;  // [rotary_dim / 2]
  float factor = 1;                         // multiplies cos and sin
  // If query_beta is not 0, a rotated query at position p is multiplied by
  // 1 + query_beta * ln(1 + floor(p / query_positions)), keys are not.
  double query_beta = 0;
  int query_positions = 0;

  float QueryScale(int position) const {
    const double times = query_positions == 0 ? 0 : position / query_positions;
    return static_cast<float>(1 + query_beta * std::log1p(times));
  }
};

// cos and sin for every position and frequency of one RopeSpec.
class RopeTable {
 public:
  virtual ~RopeTable() = default;
};

struct RopeWriteArgs {
  int layer = 0;
  int query_heads = 0;
  int64_t q_stride = 0;            // columns from one head's query to the next one's; 0: head_dim
  Tensor qkv;                      // f32 [rows, query_heads * q_stride + 2 * kv_heads * head_dim]
  const Buffer* q_norm = nullptr;  // f32 [head_dim], or none: RMS norm per head before RoPE (Qwen3)
  const Buffer* k_norm = nullptr;
  float norm_eps = 0;
  const RopeTable* rope = nullptr;  // null: no rotation
  Tensor q_out;                     // f32 [rows, query_heads * head_dim]: normed and rotated
  // v_is_k: qkv has no columns for v, and v is k before its norm and rotation. norm_v: each head of
  // v is normed, without a weight. q_only: qkv has q alone, and nothing is written.
  bool v_is_k = false;
  bool norm_v = false;
  bool q_only = false;
};

// Latent attention (DeepSeek-V2, arXiv 2405.04434), with the matrix that expands latents to keys
// absorbed in the queries: a token's K is its normed latent and one rotated part for all heads.
struct LatentWriteArgs {
  int layer = 0;
  int query_heads = 0;
  // f32 [rows, query_heads * (plain + rotated)]: of each head its part without position first.
  Tensor q;
  Tensor kv;                     // f32 [rows, latent_dim + rotated]
  const Buffer* norm = nullptr;  // f32 [latent_dim]: RMS norm of the latent
  float norm_eps = 0;
  const RopeTable* rope = nullptr;  // of rotated parts, whose pairs are neighbours here
  Tensor q_plain;                   // [rows, query_heads * plain], activation_dtype()
  // f32 [rows, query_heads * head_dim]: becomes the rotated part behind the latent_dim elements of
  // each head, which stay as they are.
  Tensor q_out;
};

// Each head multiplies its own columns of x by its own matrix.
struct HeadProductArgs {
  Tensor x;                             // [rows, heads * in], activation_dtype()
  const PackedMatrix* heads = nullptr;  // of PackHeads
  Tensor out;                           // f32 [rows, heads * out_stride], or the start of it
  int64_t out_stride = 0;  // from one head's results to the next one's; what is between stays
};

struct AttentionArgs {
  int layer = 0;
  int query_heads = 0;
  float scale = 0;      // on q·k
  float score_cap = 0;  // not 0: a scaled score s becomes score_cap * tanh(s / score_cap)
  int window = 0;       // 0: all; else a row at position p sees (p - window, p]
  // f32 [query_heads], or none: a score of each head without a value, which takes its share of the
  // softmax.
  const Buffer* sinks = nullptr;
  Tensor q;    // f32, as RopeWriteKv, or WriteLatentKv and MatMulHeads, left it
  Tensor out;  // [rows, query_heads * value_dim()], activation_dtype()
};

// The heads of attention layers that are alike.
struct AttentionHeads {
  int query_heads = 0, kv_heads = 0, head_dim = 0;
  int group() const { return query_heads / kv_heads; }  // query heads a KV head
  bool operator==(const AttentionHeads& other) const = default;
};

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_ATTENTION_H_
