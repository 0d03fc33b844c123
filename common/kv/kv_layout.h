// The shape of KV blocks in memory and on the wire. Two workers can exchange blocks only if their
// layouts are equal, which the handshake decides by Fingerprint().
#ifndef BATON_COMMON_KV_KV_LAYOUT_H_
#define BATON_COMMON_KV_KV_LAYOUT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/kv/block_pool.h"

namespace baton::kv {

// The numbers enter Fingerprint(): never renumber.
enum class KvDtype { kF32 = 1, kBF16 = 2, kF16 = 3, kInt8 = 4, kInt4 = 5, kFp8 = 6 };

// "float32", "bfloat16", "float16", "int8", "int4", "fp8"
absl::string_view KvDtypeName(KvDtype dtype);
std::optional<KvDtype> ParseKvDtype(absl::string_view name);

// The arrangement of a chunk that this build writes. Raised when the arrangement changes.
inline constexpr int kKvFormatVersion = 1;

// How blocks lie in pages, the equal pieces of a KV pool. A page has the chunks of layers_per_page
// layers, one after the other, of one kind: layers that attend to all tokens, or layers with a
// sliding window, whose pages are freed when a sequence has left them behind. A block has one page
// of each of its tables: first those of the layers without a window. Where no layer has a window, a
// block is one page.
//
// A state of recurrent layers lies in pages of its own, cut into pieces of a chunk's size. Memory
// and transfers count the pieces as layers with a window of one token.
struct KvPages {
  struct Place {
    int table = 0;  // of the layer's page among a block's
    int slot = 0;   // of the layer's chunk in the page
  };
  // Where the units of a plane are (backend::StatePlane): spot_units of them at each spot.
  struct Plane {
    struct Spot {
      int table = 0;  // of the page among the state's
      int64_t offset = 0;
    };
    int spot_units = 0;
    std::vector<Spot> spots;
  };

  int layers_per_page = 0;
  int full_tables = 0;                     // of layers without a window, 1 or more
  int window_tables = 0;                   // of layers with one, or of states
  std::vector<Place> places;               // by layer
  std::vector<std::vector<Plane>> states;  // by recurrent layer
  // By recurrent layer: so many pieces of a state are whole once that layer is computed.
  std::vector<int> pieces_behind;

  int tables() const { return full_tables + window_tables; }
};

// A part of a recurrent layer's state, of float32: backend::StatePlane.
struct StateShape {
  int64_t lanes = 0;
  int depth = 0;
  bool operator==(const StateShape& other) const = default;
};

// What a layer stores of a token: K and V of so many heads.
struct KvHeads {
  int kv_heads = 0;
  int head_dim = 0;
  bool operator==(const KvHeads& other) const = default;
};

// A block holds block_tokens tokens of all layers, a chunk of each (or several: layer_heads). A
// chunk is [K,V][kv head] of heads or, with latent attention, [kv head] alone. A head is
// [block_tokens][head_dim] of dtype; of a quantised dtype it is followed by [block_tokens] of
// (scale, zero) in float16 (backend::KvFormat has the arithmetic).
struct KvLayout {
  // Chunks of a block: those of the layers with KV, and then the pieces of a state.
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int block_tokens = 16;
  KvDtype dtype = KvDtype::kBF16;
  int format_version = kKvFormatVersion;
  // The type of the activations that it was made of, kF32, kBF16 or kF16; of no account unless it
  // has more bits than dtype. KV of workers that compute in different types is not mixed, whatever
  // holds it.
  KvDtype computed = KvDtype::kBF16;
  // Bits of the weights that it was computed with, if they were rounded when they were loaded (4 or
  // 8); 0: the checkpoint's.
  int weight_bits = 0;
  // Whether weights of few bits were dequantised where a CPU would multiply them as they are.
  bool dequantized = false;
  // What it was computed with, as "cpu fma 1" (Backend::Numerics(), numerics.h): workers whose
  // results differ in any bit do not mix KV. Empty: any.
  std::string numerics = "";
  // Of each layer, how many tokens before its own a token sees, itself included; 0: all. Empty:
  // all, of all layers. At least one layer sees all.
  std::vector<int> windows = {};
  // Not 0: latent attention (arXiv 2405.04434), where V of a token is the first so many elements of
  // its K, and is not stored apart.
  int latent_dim = 0;
  // By layer with KV, where they differ; set by SetHeads. A layer then is one or several
  // neighbouring chunks of one page, which its heads fill but for a rest; kv_heads and head_dim are
  // the first layer's. Empty: a layer is one chunk.
  std::vector<KvHeads> layer_heads = {};
  // By recurrent layer; set by AddStates.
  std::vector<std::vector<StateShape>> states = {};

  // Gives each layer its own heads. `layers` and `windows` count layers before, and chunks behind.
  void SetHeads(std::vector<KvHeads> of_layers);
  // Adds the states of recurrent layers to a layout of attention layers without windows.
  void AddStates(std::vector<std::vector<StateShape>> of_layers);

  // INVALID_ARGUMENT, naming the field, its value and its range. Layouts from files and peers pass
  // through here first; a valid one overflows in none of the sums below.
  absl::Status Validate() const;

  // These REQUIRE that Validate() is OK.
  int64_t HeadBytes() const;   // K or V of one head of one (block, layer), unless layers differ
  int64_t ChunkBytes() const;  // one (block, layer), or of layers that differ its part
  int64_t BlockBytes() const;  // one block, all layers
  bool windowed() const { return !windows.empty(); }
  int window(int layer) const { return windows.empty() ? 0 : windows[layer]; }
  bool recurrent() const { return !states.empty(); }
  // The pieces of a state are the last of the layers.
  int state_pieces() const;
  int attention_layers() const { return layers - state_pieces(); }
  // The chunks of a layer with KV: [first, end).
  struct Chunks {
    int first = 0;
    int end = 0;
  };
  Chunks ChunksOf(int layer) const;
  KvPages Pages() const;
  // What a BlockPool of such blocks is made with.
  BlockShape Shape() const;
  int64_t PageBytes() const;
  // The first of the blocks before `end` of which a transfer sends the layer's KV to a worker that
  // goes on behind `blocks` whole blocks: BlockShape::FirstWindowBlock of layers with a window, the
  // last one of pieces of a state, else 0.
  int FirstNeededBlock(int layer, int blocks, int end) const;
  // The bytes of the chunks among the blocks [first_block, end) that are needed behind `blocks`
  // whole ones.
  int64_t NeededBytes(int first_block, int end, int blocks) const;

  // FAILED_PRECONDITION (KV_LAYOUT) unless a caller's layout, of which only the fingerprint is
  // known, is this worker's. Names the caller's dtype if nothing else differs.
  absl::Status CheckCaller(uint64_t fingerprint) const;
  // XXH3-64 over the fields as little-endian int32, in the order above, but `latent_dim`, only if
  // it is not 0, behind `format_version`; `computed` only if it has more bits than dtype,
  // `weight_bits` and `dequantized` (with which both are there) only if they are not 0, then the
  // bytes of `numerics`, `windows`, `layer_heads`, last the lanes and depths of `states`: the same
  // on every machine.
  uint64_t Fingerprint() const;
  // E.g. "bfloat16", "bfloat16 of float32", "int8 of bfloat16",
  // "bfloat16 with weights of 4 bits", "bfloat16 with dequantised weights".
  std::string DtypeText() const;
  // For messages, e.g. "24 layers, 2 kv heads of 64, 16-token blocks, bfloat16, format 1, by cpu
  // vdpbf16ps 1".
  std::string ToString() const;

  bool operator==(const KvLayout& other) const = default;
};

}  // namespace baton::kv

#endif  // BATON_COMMON_KV_KV_LAYOUT_H_
