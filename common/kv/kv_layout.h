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
enum class KvDtype { kF32 = 1, kBF16 = 2, kF16 = 3 };

absl::string_view KvDtypeName(KvDtype dtype);  // "float32", "bfloat16", "float16"
std::optional<KvDtype> ParseKvDtype(absl::string_view name);
int KvDtypeBytes(KvDtype dtype);  // of one element

// The arrangement of a chunk that this build writes. Raised when the arrangement changes.
inline constexpr int kKvFormatVersion = 1;

// A block holds block_tokens tokens: `layers` chunks, one after the other. A chunk is
// [K,V][kv head][block_tokens][head_dim] of dtype, so a block is copied in one piece.
struct KvLayout {
  int layers = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int block_tokens = 16;
  KvDtype dtype = KvDtype::kBF16;
  int format_version = kKvFormatVersion;

  // INVALID_ARGUMENT, naming the field, its value and its range. Layouts from files and peers pass
  // through here first; a valid one overflows in none of the sums below.
  absl::Status Validate() const;

  // Both REQUIRE that Validate() is OK.
  int64_t ChunkBytes() const;  // one (block, layer)
  int64_t BlockBytes() const;  // one block, all layers

  // XXH3-64 over the fields as little-endian int32, in the order above: the same on every machine.
  uint64_t Fingerprint() const;
  // For messages, e.g. "24 layers, 2 kv heads of 64, 16-token blocks, bfloat16, format 1".
  std::string ToString() const;

  bool operator==(const KvLayout& other) const = default;
};

}  // namespace baton::kv

#endif  // BATON_COMMON_KV_KV_LAYOUT_H_
