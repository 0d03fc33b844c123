// The inner loops, one table of them per instruction set. Plain structs and pointers, so that a
// kernels_*.cc, compiled for a newer CPU, shares no inline function with code for every CPU.
#ifndef BATON_COMMON_BACKEND_CPU_KERNELS_H_
#define BATON_COMMON_BACKEND_CPU_KERNELS_H_

#include <cstdint>

namespace baton::backend {

// The element types of kernels; the values are those of DType.
enum class Element : uint8_t { kF32, kBF16, kF16 };
// How the KV pool holds elements; the values are those of KvFormat.
enum class Codes : uint8_t { kPlain, kInt8, kInt4, kFp8 };

// Columns of a weight panel. A packed weight is [panels][in][32] for matmul_f32 and, for
// matmul_bf16, [panels][in / 2][32][2] with `in` rounded up to 32: a product reads a panel from end
// to end.
constexpr int kPanelColumns = 32;
constexpr int kBF16InMultiple = 32;
// With kPackRowsFrom rows of x or more, matmul_bf16 takes x as packed by pack_rows, if the table
// has it: strips of kSquareRows rows, one after the other, each padded_in * kSquareRows elements.
constexpr int kPackRowsFrom = 17;
constexpr int kSquareRows = 32;

// out[r, c] = sum over k of x[r, k] * panel[k, c] (+ bias[c]), for rows x columns. matmul_f32 adds
// the products in ascending k to one accumulator that starts at 0; weights of 16 bits become
// float32, exactly, on the way from memory. matmul_bf16 adds pairs of them
// as the instruction does; the order depends on k alone, never on the rows or columns of the call.
struct MatMulSlice {
  const void* x = nullptr;  // [rows, in]; bf16: `in` a multiple of 32
  int64_t x_stride = 0;     // elements; 0: x is packed by pack_rows
  int64_t rows = 0;
  int64_t in = 0;
  const void* panels = nullptr;     // the first of the slice's panels
  Element element = Element::kF32;  // of the panels
  int64_t columns = 0;              // to compute, from the first panel's first column on
  const float* bias = nullptr;      // of the slice's first column, or null
  float* out = nullptr;             // of the slice's first column
  int64_t out_stride = 0;
};

// Activations for quantised weights: blocks of 32 columns, each rounded to whole numbers of 8 bits,
//   x = scale * value, scale = the largest magnitude of the block / 127.
// A block with a NaN or an infinity has a NaN for its scale.
constexpr int kQuantizedBlock = 32;
struct ActivationBlock {
  float scale;
  float scaled_sum;   // scale * sum, rounded once
  int16_t sum;        // of the values
  int16_t first_sum;  // of the first 16 of them
  int8_t values[kQuantizedBlock];
};

// A panel of quantised weights is [groups], each: 32 scales of 16 bits; if the zeros differ, 32
// bytes of 16 - zero, padded to as much; then the group's blocks of 32 of `in`. A block of 8 bits
// is [8][32 columns][4], the zero 128. One of 4 bits is [4][32 columns][4], the low halves of the
// bytes 4 of `in`, the high halves the 4 after them; the zero is 8 where it is not stored.
constexpr int kQuantizedScaleBytes = 2 * kPanelColumns;

// A panel of MXFP4 (QuantizedHostMatrix::fp4) is one of 4 bits whose groups are blocks. They begin
// with 32 bytes, the scales' exponents as float32 has them (0: the scale 0), and the halves of the
// values' bytes are their codes; the zero is 12.

// A panel of super-blocks (SuperBlockHostMatrix) is one of groups, too: 32 scales in float16, with
// 4 and 5 bits 32 least values in float16, negated; then blocks of 32 of `in`. A block is the first
// factors of 32 columns, a signed byte each, then the second ones; the low halves of the values as
// a block of 4 bits; then their high bits, as bytes of [32 columns][4]: of 6 bits two such, whose
// byte has those of `in` i, i + 4, i + 8 and i + 12, two bits each, the first lowest; of 5 bits
// one, with one bit of each of i, i + 4, ..., i + 28.
constexpr int kSuperBlockFactors = 2;  // of a column and block

// out[r, c] (+= bias[c]) = the sum over blocks b, in ascending order, of
//   (sum over the block of x.value * (value - zero)) * x.scale * scale
// The inner sum is exact. Of super-blocks, with 4 and 5 bits
//   (sum of x.value * value) * x.scale * (scale * factor) + x.scaled_sum * -(least * factor),
// with 6 bits the two halves of a block one after the other, each with its factor; the zero is 32.
struct QuantizedSlice {
  const ActivationBlock* x = nullptr;  // [rows, blocks]
  int64_t rows = 0;
  int64_t blocks = 0;        // of a row
  int64_t group_blocks = 0;  // the last group may have fewer
  int bits = 0;              // 4 or 8; of super-blocks 4, 5 or 6
  bool zeros = false;        // they differ; only with 4 bits
  bool super_blocks = false;
  bool fp4 = false;
  Element scale_element = Element::kF16;
  const uint8_t* panels = nullptr;  // the first of the slice's panels
  int64_t panel_bytes = 0;
  int64_t columns = 0;          // to compute, from the first panel's first column on
  const float* bias = nullptr;  // of the slice's first column, or null
  float* out = nullptr;         // of the slice's first column
  int64_t out_stride = 0;
};

// Query columns of a tile, keys of a split.
constexpr int kTileColumns = 64;
constexpr int kSplitTokens = 256;

// Per column: the largest score, the sum of e^(score - largest), the sum of e^(...) * v.
struct SplitResult {
  float* max = nullptr;    // [64]
  float* sum = nullptr;    // [64]; 0 if the column sees nothing of the split
  float* value = nullptr;  // [columns rounded up to 16, stride]
  int64_t stride = 0;      // value_dim rounded up to 16
};

// The rows of one sequence, one kv head and its query heads, against one split of keys. Column c is
// query head c % group of row c / group; columns are padded to a multiple of 16.
struct AttentionTile {
  // Tables of pointers: the K and V of this head in each block of the split: rows, [block_tokens]
  // of row_bytes, then [block_tokens] of (scale, zero) in float16 unless `codes` is kPlain.
  const void* const* k_blocks = nullptr;
  const void* const* v_blocks = nullptr;
  // K of the next split, if it is known: prefetched while this one is computed.
  const void* const* next_k_blocks = nullptr;
  int next_block_count = 0;
  int block_tokens = 0;
  Element element = Element::kF32;  // of rows that are kPlain
  Codes codes = Codes::kPlain;
  int64_t row_bytes = 0;
  int head_dim = 0;
  int value_dim = 0;            // the first elements of V's rows that are wanted; a multiple of 16,
                                // with attention_bf16 of 32, unless it is head_dim
  float score_cap = 0;          // 0: none; see AttentionArgs
  int tokens = 0;               // of this split to look at, from its start
  const void* query = nullptr;  // as pack_query left it
  int columns = 0;
  // Per column, relative to the split's start: it sees tokens [first_seen, end_seen). To the next
  // multiple of 16 columns, the last is repeated.
  const int32_t* first_seen = nullptr;
  const int32_t* end_seen = nullptr;
  void* scratch = nullptr;  // scratch_bytes of it, 64-byte aligned
  SplitResult result;
};

constexpr int kMaxHeadDim = 1024;
constexpr float kLowestScore = -1e30f;  // finite: a row that sees no token yet makes no NaN

// A row of Norm; see NormArgs.
struct NormRow {
  float* x = nullptr;  // [n]
  const float* delta = nullptr;
  float delta_scale = 1;
  const float* delta_weight = nullptr;
  const float* weight = nullptr;
  float eps = 0;
  int64_t n = 0;
  Element element = Element::kF32;  // of y
  void* y = nullptr;
};

// The values are those of GatedActivation.
enum class Activation : uint8_t { kSilu, kGeluTanh, kClampedSwiglu, kSquaredRelu };

// Some of a sequence's tokens, one after another, and some units of its state (recurrence.h), which
// are [depth][kUnitLanes]. Each is read at `from` and left at `to`, which may be the same memory.
constexpr int kUnitLanes = 16;
constexpr int kRunTokens = 16;
struct StateRun {
  int tokens = 0;  // 1 to kRunTokens
  int units = 0;
  const float* const* from = nullptr;  // [units]
  float* const* to = nullptr;          // [units]
};

// What rows have in some columns.
struct FloatRows {
  const float* first = nullptr;
  int64_t stride = 0;
};

// Of ShortConvArgs, from the channels of the first unit on.
constexpr int kMostTaps = 8;
struct ShortConvRun {
  StateRun run;
  int taps = 0;
  FloatRows x;
  FloatRows before;  // or null, as `after` and `bias`
  FloatRows after;
  FloatRows weight;
  const float* bias = nullptr;
  bool silu = false;
  Element element = Element::kF32;  // of out
  void* out = nullptr;
  int64_t out_stride = 0;
};

// Units of one head: keys, queries and gates are the head's, values and out are the units'.
constexpr int kMostDepth = 512;
struct GatedDeltaRun {
  StateRun run;
  int key_dim = 0;
  FloatRows keys, queries, values;
  FloatRows b, a;
  float decay = 0;
  float step_bias = 0;
  float norm_eps = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
};
struct StateSpaceRun {
  StateRun run;
  int state_dim = 0;
  FloatRows b, c, x;
  FloatRows dt;
  float decay = 0;
  float step_bias = 0;
  float skip = 0;
  float least_step = 0;
  float most_step = 0;
  float* out = nullptr;
  int64_t out_stride = 0;
};

// A group of a row of GatedNorm; see GatedNormArgs.
struct GatedNormGroup {
  const float* x = nullptr;  // [n]
  const float* gate = nullptr;
  const float* weight = nullptr;
  bool gate_first = false;
  float eps = 0;
  int64_t n = 0;
  Element element = Element::kF32;  // of y
  void* y = nullptr;
};

struct AttentionKernels {
  int64_t (*query_bytes)(int head_dim) = nullptr;
  int64_t (*scratch_bytes)(int head_dim) = nullptr;
  // q: for every column, head_dim floats, to be multiplied by scale.
  void (*pack_query)(const float* const* q, int columns, int head_dim, float scale,
                     void* packed) = nullptr;
  void (*attend)(const AttentionTile& tile) = nullptr;
};

struct Kernels {
  const char* name = nullptr;
  // Tables with the same text compute the same bits, in float32 and in bfloat16.
  const char* numerics = nullptr;
  const char* numerics_bf16 = nullptr;  // null: not on this CPU

  void (*norm)(const NormRow& row) = nullptr;
  // Pairs (i, i + half) turned by cos[i], sin[i]; the rest as it is. In place.
  void (*rope)(float* head, const float* cosine, const float* sine, int half) = nullptr;
  // y = activation(gate) * up * scale; kSquaredRelu does not read gate
  void (*gate)(const float* gate, const float* up, Activation activation, float scale, int64_t n,
               Element element, void* y) = nullptr;
  // In place: x * scale, or cap * tanh(x * scale / cap) if cap is not 0.
  void (*scale)(float* x, float scale, float cap, int64_t n) = nullptr;
  void (*to_f32)(const void* x, Element element, int64_t n, float* y) = nullptr;
  void (*from_f32)(const float* x, Element element, int64_t n, void* y) = nullptr;
  void (*short_conv)(const ShortConvRun& run) = nullptr;
  void (*gated_delta)(const GatedDeltaRun& run) = nullptr;
  void (*state_space)(const StateSpaceRun& run) = nullptr;
  void (*gated_norm)(const GatedNormGroup& group) = nullptr;
  // In place: x / (1 + e^-gate).
  void (*gate_output)(void* x, Element element, const float* gate, int64_t n) = nullptr;
  // One row of n elements, as KvFormat says. REQUIRES: codes is not kPlain; n is even.
  void (*quantize)(const float* x, Codes codes, int64_t n, uint8_t* row,
                   uint16_t scale_and_zero[2]) = nullptr;

  // A row of n elements to ceil(n / 32) blocks, the last padded with zeros.
  void (*round_activations)(const void* x, Element element, int64_t n,
                            ActivationBlock* blocks) = nullptr;
  void (*matmul_quantized)(const QuantizedSlice& slice) = nullptr;

  void (*matmul_f32)(const MatMulSlice& slice) = nullptr;
  void (*matmul_bf16)(const MatMulSlice& slice) = nullptr;  // null: not on this CPU
  // If set: packs a strip, up to 32 rows of x, as [padded_in / 32][32 rows][32 of `in`], with zeros
  // for the rows and columns that x lacks.
  void (*pack_rows)(const uint16_t* x, int64_t x_stride, int64_t rows, int64_t in,
                    int64_t padded_in, uint16_t* packed) = nullptr;

  AttentionKernels attention_f32;  // for every pool
  // If `attend` is set: for a bfloat16 or quantised pool with block_tokens a multiple of 16 and
  // head_dim a multiple of 32.
  AttentionKernels attention_bf16;
  // Adds a split's result to `total`, that of the splits before it. `stride`: of `value` in both.
  void (*combine)(const SplitResult& split, int columns, int64_t stride,
                  const SplitResult& total) = nullptr;
  // y = value / (sum + e^sink), `sink` less the largest score; -inf: there is none.
  void (*finish)(const float* value, float sum, float sink, int64_t n, Element element,
                 void* y) = nullptr;
};

// Each is empty (no name) where the compiler does not target that instruction set.
extern const Kernels kPortableKernels;
extern const Kernels kAvx2Kernels;
extern const Kernels kAvxVnniKernels;  // kAvx2Kernels and another matmul_quantized
extern const Kernels kAvx512Kernels;
extern const Kernels kAvx512VnniKernels;  // kAvx512Kernels and another matmul_quantized
extern const Kernels kAvx512BF16Kernels;  // kAvx512VnniKernels, matmul_bf16 and attention_bf16
// kAvx512VnniKernels with other functions for products of bfloat16 and of few bits, pack_rows and
// attention_bf16.
extern const Kernels kAmxKernels;

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_CPU_KERNELS_H_
