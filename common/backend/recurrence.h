// Recurrent layers: their states and their operations. A layer reads what a sequence's earlier
// tokens left in a state of fixed size, in float32, and leaves it for the later ones.
//
// One order: every operation goes through a sequence's tokens one by one, in prompts as in answers,
// so that a state has the same bits however the tokens before it were cut into steps (ADR 28).
#ifndef BATON_COMMON_BACKEND_RECURRENCE_H_
#define BATON_COMMON_BACKEND_RECURRENCE_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/backend/tensor.h"

namespace baton::backend {

// out = conv(x) over a sequence's tokens, each channel by itself:
//   y_t = bias + the sum over j, in ascending order, of weight[j] * u_(t - taps + 1 + j)
// with u = x, or x * before; then silu(y), if asked for; then y * after.
// State, plane 0: the last taps - 1 values of u of each channel, the oldest first.
struct ShortConvArgs {
  int layer = 0;  // of KvPool::states
  int taps = 0;   // 2 to kMostConvTaps
  Tensor x;       // f32 [rows, channels]
  // f32 [rows, channels], or no data.
  Tensor before;
  Tensor after;
  const Buffer* weight = nullptr;  // f32 [taps, channels]
  const Buffer* bias = nullptr;    // f32 [channels], or none
  bool silu = false;
  Tensor out;  // f32 or activation_dtype() [rows, channels]; not the memory of the others
};
inline constexpr int kMostConvTaps = 8;

// The gated delta rule (arXiv 2412.06464). For each value head h, with the query and key of key
// head h / (value_heads / key_heads) or, with keys_in_turn, h % key_heads, each divided by sqrt(its
// sum of squares + kDeltaNormEps), the query also by sqrt(key_dim):
//   g = e^(decay[h] * softplus(a + step_bias[h])), beta = 1 / (1 + e^-b)
//   S = g S;  S = S + k (beta (v - kᵀ S));  out = qᵀ S
// State, plane 1: S; a lane is a column of S, value_heads * value_dim lanes of key_dim floats.
struct GatedDeltaArgs {
  int layer = 0;
  int key_heads = 0;
  bool keys_in_turn = false;
  int value_heads = 0;
  int key_dim = 0;    // a multiple of 16, at most kMostStateDepth
  int value_dim = 0;  // a multiple of kStateLanes
  // f32 [rows, 2 * key_heads * key_dim + value_heads * value_dim]: queries, keys, values.
  Tensor qkv;
  Tensor gates;                       // f32 [rows, 2 * value_heads]: b, then a
  const Buffer* decay = nullptr;      // f32 [value_heads], negative
  const Buffer* step_bias = nullptr;  // f32 [value_heads]
  Tensor out;                         // f32 [rows, value_heads * value_dim]
};
inline constexpr float kDeltaNormEps = 1e-6f;
inline constexpr int kMostStateDepth = 512;

// The recurrence of Mamba 2 (arXiv 2405.21060). For each head h, with B and C of group
// h / (heads / groups):
//   step = softplus(dt + step_bias[h]), within [least_step, most_step]
//   S = e^(step decay[h]) S + B (step x)ᵀ;  out = Cᵀ S + skip[h] x
// State, plane 1: S; a lane is a column of S, heads * head_dim lanes of state_dim floats.
struct StateSpaceArgs {
  int layer = 0;
  int heads = 0;
  int head_dim = 0;  // a multiple of kStateLanes
  int groups = 0;
  int state_dim = 0;  // a multiple of 16, at most kMostStateDepth
  // f32 [rows, heads * head_dim + 2 * groups * state_dim]: x, B, C.
  Tensor xbc;
  Tensor dt;                          // f32 [rows, heads]
  const Buffer* decay = nullptr;      // f32 [heads], negative
  const Buffer* step_bias = nullptr;  // f32 [heads]
  const Buffer* skip = nullptr;       // f32 [heads]
  float least_step = 0;
  float most_step = 0;
  Tensor out;  // f32 [rows, heads * head_dim]
};

// An RMS norm of each group of columns, with a gate:
//   out = silu(gate) * (x / rms * weight), or with gate_first (silu(gate) * x) / rms * weight
struct GatedNormArgs {
  Tensor x;     // f32 [rows, cols]
  Tensor gate;  // f32 [rows, cols]
  // f32 [weight_size]: of all columns, or of a group, for each of them.
  const Buffer* weight = nullptr;
  int64_t weight_size = 0;
  int64_t group = 0;  // columns of a group
  bool gate_first = false;
  float eps = 0;
  Tensor out;  // activation_dtype() [rows, cols]
};

// x = x * (1 / (1 + e^-g)), where g of column c is column c / group * gate_stride + c % group of
// `gate`: heads have their gates behind their queries. A gate of one column counts for all of a
// row, whatever the group.
struct OutputGateArgs {
  Tensor x;     // activation_dtype() [rows, cols]
  Tensor gate;  // f32, as many rows
  int64_t group = 0;
  int64_t gate_stride = 0;
};

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_RECURRENCE_H_
