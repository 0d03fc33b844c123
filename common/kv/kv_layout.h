// The shape of KV blocks in memory and on the wire. Two workers can exchange blocks only if their
// layouts are equal, which the handshake decides by Fingerprint().
#ifndef BATON_COMMON_KV_KV_LAYOUT_H_
#define BATON_COMMON_KV_KV_LAYOUT_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace baton::kv {

// The numbers enter Fingerprint(): never renumber.
enum class KvDtype { kF32 = 1, kBF16 = 2, kF16 = 3, kInt8 = 4, kInt4 = 5, kFp8 = 6 };

// "float32", "bfloat16", "float16", "int8", "int4", "fp8"
absl::string_view KvDtypeName(KvDtype dtype);
std::optional<KvDtype> ParseKvDtype(absl::string_view name);

// The arrangement of a chunk that this build writes. Raised when the arrangement changes.
inline constexpr int kKvFormatVersion = 1;

// A block holds block_tokens tokens: `layers` chunks, one after the other, so it is copied in one
// piece. A chunk is [K,V][kv head] of heads. A head is [block_tokens][head_dim] of dtype; of a
// quantised dtype it is followed by [block_tokens] of (scale, zero) in float16
// (backend::KvFormat has the arithmetic).
struct KvLayout {
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

  // INVALID_ARGUMENT, naming the field, its value and its range. Layouts from files and peers pass
  // through here first; a valid one overflows in none of the sums below.
  absl::Status Validate() const;

  // These REQUIRE that Validate() is OK.
  int64_t HeadBytes() const;   // K or V of one head of one (block, layer)
  int64_t ChunkBytes() const;  // one (block, layer)
  int64_t BlockBytes() const;  // one block, all layers

  // FAILED_PRECONDITION (KV_LAYOUT) unless a caller's layout, of which only the fingerprint is
  // known, is this worker's. Names the caller's dtype if nothing else differs.
  absl::Status CheckCaller(uint64_t fingerprint) const;
  // XXH3-64 over the fields as little-endian int32, in the order above, `computed` only if it has
  // more bits than dtype, `weight_bits` and `dequantized` (with which both are there) only if they
  // are not 0, last the bytes of `numerics`: the same on every machine.
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
