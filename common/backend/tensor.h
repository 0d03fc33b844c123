// Views of device memory. On the CPU backend that is host memory; code outside a backend must not
// dereference `data` there either.
#ifndef BATON_COMMON_BACKEND_TENSOR_H_
#define BATON_COMMON_BACKEND_TENSOR_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <variant>
#include <vector>

#include "absl/types/span.h"

namespace baton::backend {

enum class DType : uint8_t { kF32, kBF16, kF16 };

constexpr size_t SizeOf(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }
constexpr const char* Name(DType dtype) {
  return dtype == DType::kF32 ? "float32" : dtype == DType::kBF16 ? "bfloat16" : "float16";
}

// Row-major [rows, cols]; row r starts r * row_stride elements after `data`. Owns nothing.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t row_stride = 0;
};

// Weights as a file holds them: row-major [rows, cols] in host memory, at any alignment.
struct HostMatrix {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
};

// Weights of few bits in host memory:
//   W[r, order[i]] = (value(r, i) - zeros[r, i / group_size]) * scales[r, i / group_size],
// rounded once, to the device's activation type. See docs/adr/0006-quantised-weights.md.
//
// fp4: the four bits are an E2M1 number of MXFP4 (OCP Microscaling Formats 1.0), whose value is
// kFp4Values of it: twice the number, plus 12. Then groups have 32 columns, zeros are 12, and
// scales are powers of two in bfloat16, half of the blocks' (0 for one below 2^-126).
struct QuantizedHostMatrix {
  int bits = 4;  // 4 or 8
  int64_t rows = 0;
  int64_t cols = 0;                  // times bits: whole bytes
  int64_t group_size = 0;            // columns; the last group may have fewer
  const uint8_t* values = nullptr;   // [rows, cols * bits / 8]; of 4 bits the even column is low
  const uint16_t* scales = nullptr;  // [rows, groups()], finite
  DType scale_dtype = DType::kF16;   // or kBF16
  const uint16_t* zeros = nullptr;   // [rows, groups()], 0 to 2^bits
  const int32_t* order = nullptr;    // [cols], a permutation; null: the identity
  bool fp4 = false;
  bool symmetric = false;  // all zeros are 2^(bits - 1)

  int64_t groups() const { return (cols + group_size - 1) / group_size; }
  int64_t row_bytes() const { return cols * bits / 8; }
};

// Weights in blocks of 32 columns with factors of few bits, whose super-blocks have the scales, as
// GGUF's K-quants are. Of super-block s, block b and its half h:
//   bits 4, 5: W[r, c] = scales[s] * factors[b, 0] * values[c] - leasts[s] * factors[b, 1]
//   bits 6:    W[r, c] = scales[s] * factors[b, h] * (values[c] - 32)
// These products and differences need at most 24 bits.
struct SuperBlockRow {
  uint8_t* values = nullptr;   // [cols], below 2^bits
  int8_t* factors = nullptr;   // [cols / 32, 2]
  uint16_t* scales = nullptr;  // [cols / super_columns], float16, finite
  uint16_t* leasts = nullptr;  // the same; of 6 bits not used
};
struct SuperBlockHostMatrix {
  int bits = 4;  // 4, 5 or 6
  int64_t rows = 0;
  int64_t cols = 0;           // whole super-blocks
  int64_t super_columns = 0;  // a multiple of 32
  // Writes row `row`. Thread-safe.
  std::function<void(int64_t row, const SuperBlockRow& out)> read;
};

using AnyHostMatrix = std::variant<HostMatrix, QuantizedHostMatrix, SuperBlockHostMatrix>;

// Device memory, freed with the object. The backend outlives its buffers.
class Buffer {
 public:
  virtual ~Buffer() = default;
  void* data() const { return data_; }
  size_t size_bytes() const { return size_bytes_; }
  // The memory file that other processes can map to read the buffer; -1: none.
  virtual int shared_file() const { return -1; }

 protected:
  Buffer(void* data, size_t size_bytes) : data_(data), size_bytes_(size_bytes) {}
  void* data_;
  size_t size_bytes_;
};

class KvCopier;

// How the pool holds elements. kPlain: as they are, of KvPool.dtype. The others are codes with a
// scale and a zero, both float16, for each token and head:
//   element = decoded(code) * scale + zero, in float32
// kInt8, kInt4: decoded(code) = code, 0 to 2^bits - 1; zero is the least element, rounded down, and
// scale * (2^bits - 1) reaches the largest, so that the error is at most scale / 2. Of 4 bits, the
// even element is low. kFp8: E4M3 (OCP 8-bit floating point, no infinities), zero 0, and 448 scales
// reach the largest magnitude. Elements beyond kLargestKvElement saturate; a token and head with a
// NaN or an infinity is NaN as a whole.
enum class KvFormat : uint8_t { kPlain, kInt8, kInt4, kFp8 };

// So that no code, at most one rounding of the scale beyond the largest element, overflows float16.
inline constexpr float kLargestKvElement = 65376.0f;

constexpr int64_t KvRowBytes(KvFormat format, DType dtype, int64_t head_dim) {
  if (format == KvFormat::kPlain) return head_dim * static_cast<int64_t>(SizeOf(dtype));
  return format == KvFormat::kInt4 ? head_dim / 2 : head_dim;
}
// A scale and a zero.
constexpr int64_t KvRowParameterBytes(KvFormat format) {
  return format == KvFormat::kPlain ? 0 : 4;
}

// Where a layer's KV is: in the pages of one of a sequence's tables, at the same place in each.
struct KvPlace {
  int table = 0;
  int slot = 0;
};

// What a layer stores of a token: K and V of so many heads.
struct KvHeads {
  int kv_heads = 0;
  int head_dim = 0;
  bool operator==(const KvHeads& other) const = default;
};

// A recurrent layer's state (recurrence.h) is planes of lanes, each of which is computed without
// the others. kStateLanes neighbouring lanes are a unit, float32 [depth][kStateLanes]; the units of
// a sequence's state lie in pages, state_tables of them, a few units (spot_units) at each spot.
inline constexpr int kStateLanes = 16;
struct StateSpot {
  int table = 0;       // of the page among the state's
  int64_t offset = 0;  // bytes from the page's start, a multiple of 64
};
struct StatePlane {
  int64_t lanes = 0;  // a multiple of kStateLanes
  int depth = 0;
  int spot_units = 0;
  std::vector<StateSpot> spots;  // the last one may have fewer units

  int64_t units() const { return lanes / kStateLanes; }
  int64_t unit_bytes() const { return int64_t{depth} * kStateLanes * 4; }
};
using LayerState = std::vector<StatePlane>;

// The KV pool, of equal pages, also called blocks where a page has all layers: the chunk at slot s
// of page p starts at base + p * block_stride_bytes + s * layer_stride_bytes and is [K,V][kv_heads]
// of heads, head_bytes() each: [block_tokens] rows of KvRowBytes, then [block_tokens] of (scale,
// zero) unless `format` is kPlain. With latent attention it is [kv_heads] alone: K holds V.
struct KvPool {
  std::byte* base = nullptr;
  int64_t block_stride_bytes = 0;
  int64_t layer_stride_bytes = 0;
  int block_count = 0;
  int kv_heads = 0;
  int head_dim = 0;
  // Not 0: latent attention, where V of a token is the first so many elements of its K.
  int latent_dim = 0;
  int block_tokens = 0;
  DType dtype = DType::kF32;  // of elements that are kPlain
  KvFormat format = KvFormat::kPlain;
  KvCopier* copier = nullptr;  // copies from and to `base`; null: `base` is host memory
  int shared_file = -1;        // Buffer::shared_file of the pool's memory
  int tables = 1;              // of each sequence
  // By layer. Empty: there is one table, and a layer's slot is its number.
  std::vector<KvPlace> places = {};
  // Where layers differ, by slot of a block, as places: a layer's heads at the first of the slots
  // that its chunk takes, by which operations know the layer; none at the others. Empty: all layers
  // have kv_heads of head_dim, as have those with which operations are called on one pool:
  // WithHeads.
  std::vector<KvHeads> heads = {};
  // States lie in pages of the pool, too: these are the last of the tables, and SequenceRows has
  // them apart.
  int state_tables = 0;
  std::vector<LayerState> states = {};  // of the recurrent layers

  int block_tables() const { return tables - state_tables; }  // of SequenceRows::blocks
  // The pool as operations of layers with such heads take it.
  KvPool WithHeads(KvHeads of) const {
    KvPool pool = *this;
    pool.heads.clear();
    pool.kv_heads = of.kv_heads;
    pool.head_dim = of.head_dim;
    return pool;
  }
  KvPlace PlaceOf(int layer) const {
    return places.empty() ? KvPlace{0, layer} : places[static_cast<size_t>(layer)];
  }
  // How many layers from `layer` on lie in slots of one table one behind the other: 1 to `most`.
  int LayersTogether(int layer, int most) const {
    const KvPlace first = PlaceOf(layer);
    int count = 1;
    for (; count < most; ++count) {
      if (!places.empty() && static_cast<size_t>(layer + count) >= places.size()) break;
      const KvPlace next = PlaceOf(layer + count);
      if (next.table != first.table || next.slot != first.slot + count) break;
    }
    return count;
  }
  float* StateUnit(const StatePlane& plane, absl::Span<const int32_t> pages, int64_t unit) const {
    const StateSpot& spot = plane.spots[static_cast<size_t>(unit / plane.spot_units)];
    return reinterpret_cast<float*>(base +
                                    pages[static_cast<size_t>(spot.table)] * block_stride_bytes +
                                    spot.offset + unit % plane.spot_units * plane.unit_bytes());
  }
  std::byte* Chunk(int32_t page, int slot) const {
    return base + page * block_stride_bytes + slot * layer_stride_bytes;
  }
  int64_t row_bytes() const { return KvRowBytes(format, dtype, head_dim); }
  int64_t head_bytes() const { return block_tokens * (row_bytes() + KvRowParameterBytes(format)); }
  int value_dim() const { return latent_dim > 0 ? latent_dim : head_dim; }
  // Heads of a chunk.
  int64_t chunk_heads() const { return int64_t{latent_dim > 0 ? 1 : 2} * kv_heads; }
};

// Where a step leaves a sequence's state.
struct StateStore {
  int tokens = 0;                   // behind so many of the sequence's tokens
  absl::Span<const int32_t> pages;  // [KvPool::state_tables]
};

// One sequence's rows in a step. Rows [first_row, first_row + row_count) of the batch compute its
// tokens at positions [context, context + row_count); the tokens before are in its blocks.
struct SequenceRows {
  int first_row = 0;
  int row_count = 0;
  int context = 0;
  // The pages of its blocks, [table][block], as many for each table; they cover context + row_count
  // tokens. Those before what a layer's window reaches may be any that hold finite numbers.
  absl::Span<const int32_t> blocks;
  // Of pools with states. The pages of the state behind `context` tokens, [KvPool::state_tables];
  // empty: all zeros, before the first token. And where the step leaves it, in ascending order of
  // tokens, at least once; it may be the pages that are read. Rows behind the last store leave
  // none: those of drafts, which may not be drawn.
  absl::Span<const int32_t> state = {};
  absl::Span<const StateStore> state_stores = {};
};

inline constexpr int32_t kNotDrawn = -1;
struct SampleRow;  // backend.h

// A step's rows: prefill chunks and single decode tokens alike. Rows of all sequences are
// contiguous and in order. Host memory, valid for the call that takes it.
struct RaggedBatch {
  absl::Span<const int32_t> tokens;  // [rows]
  absl::Span<const SequenceRows> sequences;
  absl::Span<const int32_t> logit_rows;  // rows whose logits are wanted, ascending
  // [rows], or empty if the host knows all tokens. Unless it is kNotDrawn, drawn[r] is the row of
  // the last Backend::EnqueueSample whose token replaces tokens[r], which the host does not know
  // yet.
  absl::Span<const int32_t> drawn = {};
  // The rows of the EnqueueSample that follows this step, if they are known and keep their address:
  // the backend may send them to the device with the batch.
  absl::Span<const SampleRow> draws = {};
};

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_TENSOR_H_
