// The bytes of a segment as stores keep them.
//
//   "BATONKV1", or "BATONST1" of a state, then little-endian: u64 model fingerprint, u64 KV layout
//   fingerprint, u64 root prefix key, u32 number of prompt tokens up to the segment's end, u32
//   tokens of the segment, u64 KV bytes, u64 checksum, i32 tokens[], KV [layer][block][chunk], or
//   the state [piece]
//
// A segment's value has the KV of the attention layers; a state is stored apart from it.
// The checksum is the XXH3-64 of all that follows it, seeded with that of all before it.
#ifndef BATON_COMMON_KV_STORE_SEGMENT_VALUE_H_
#define BATON_COMMON_KV_STORE_SEGMENT_VALUE_H_

#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/kv/kv_layout.h"
#include "common/kv/prefix_key.h"
#include "common/kv_store/segment_store.h"

namespace baton::kv_store {

struct Segment {
  uint64_t model_fingerprint = 0;
  uint64_t layout_fingerprint = 0;
  kv::PrefixKey root = 0;
  absl::Span<const int32_t> tokens;  // the prompt up to the segment's end
  int segment_tokens = 0;            // the last ones, whose KV it is
  bool state = false;                // the state behind the last token instead of the KV
};

// The bytes of the encoded value.
size_t EncodedBytes(const Segment& segment, const kv::KvLayout& layout);
// `fill` writes the KV, all of `kv`. REQUIRES: whole blocks of the layout, segment_tokens > 0; a
// state only of a layout with one.
SegmentBytes Encode(const Segment& segment, const kv::KvLayout& layout,
                    absl::FunctionRef<void(absl::Span<std::byte> kv)> fill);
// The KV, or the state, of a value, which is that of `expected`; a view into `value`. DATA_LOSS,
// which names the first field that differs, for damaged bytes and for any other segment. Reads
// nothing outside of `value`, and checks the sum last, over all of it.
absl::StatusOr<absl::Span<const std::byte>> Decode(absl::Span<const std::byte> value,
                                                   const Segment& expected,
                                                   const kv::KvLayout& layout);

}  // namespace baton::kv_store

#endif  // BATON_COMMON_KV_STORE_SEGMENT_VALUE_H_
