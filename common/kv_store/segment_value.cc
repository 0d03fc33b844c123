#include "common/kv_store/segment_value.h"

#include <bit>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "xxhash.h"

namespace baton::kv_store {
namespace {

constexpr char kMagic[] = "BATONKV1", kStateMagic[] = "BATONST1";
constexpr size_t kMagicBytes = 8;
constexpr size_t kChecksumAt = kMagicBytes + 8 + 8 + 8 + 4 + 4 + 8;
constexpr size_t kHeaderBytes = kChecksumAt + 8;

static_assert(std::endian::native == std::endian::little,
              "headers and tokens are written as they are in memory");

template <class T>
std::byte* Put(T value, std::byte* at) {
  std::memcpy(at, &value, sizeof(value));
  return at + sizeof(value);
}

int64_t KvBytes(const Segment& segment, const kv::KvLayout& layout) {
  BATON_CHECK_GT(segment.segment_tokens, 0);
  BATON_CHECK_EQ(segment.segment_tokens % layout.block_tokens, 0);
  BATON_CHECK_LE(segment.segment_tokens, static_cast<int64_t>(segment.tokens.size()));
  if (segment.state) {
    BATON_CHECK_GT(layout.state_pieces(), 0);
    return layout.state_pieces() * layout.ChunkBytes();
  }
  return segment.segment_tokens / layout.block_tokens * layout.attention_layers() *
         layout.ChunkBytes();
}

// The checksum of all bytes but its own.
uint64_t Checksum(absl::Span<const std::byte> value) {
  return XXH3_64bits_withSeed(value.data() + kHeaderBytes, value.size() - kHeaderBytes,
                              XXH3_64bits(value.data(), kChecksumAt));
}

void PutHeader(const Segment& segment, int64_t kv_bytes, std::byte* at) {
  std::memcpy(at, segment.state ? kStateMagic : kMagic, kMagicBytes);
  at = Put(segment.model_fingerprint, at + kMagicBytes);
  at = Put(segment.layout_fingerprint, at);
  at = Put(uint64_t{segment.root}, at);
  at = Put(static_cast<uint32_t>(segment.tokens.size()), at);
  at = Put(static_cast<uint32_t>(segment.segment_tokens), at);
  Put(static_cast<uint64_t>(kv_bytes), at);
}

absl::Status Differs(absl::string_view what) {
  return MakeError(absl::StatusCode::kDataLoss, "KV_STORE_VALUE",
                   absl::StrCat("a segment's value is not the expected one: its ", what,
                                what == "checksum" ? " is wrong" : " differs"));
}

}  // namespace

size_t EncodedBytes(const Segment& segment, const kv::KvLayout& layout) {
  return kHeaderBytes + segment.tokens.size() * sizeof(int32_t) +
         static_cast<size_t>(KvBytes(segment, layout));
}

SegmentBytes Encode(const Segment& segment, const kv::KvLayout& layout,
                    absl::FunctionRef<void(absl::Span<std::byte> kv)> fill) {
  auto value = std::make_shared<std::vector<std::byte>>(EncodedBytes(segment, layout));
  PutHeader(segment, KvBytes(segment, layout), value->data());
  const size_t token_bytes = segment.tokens.size() * sizeof(int32_t);
  std::memcpy(value->data() + kHeaderBytes, segment.tokens.data(), token_bytes);
  fill(absl::MakeSpan(*value).subspan(kHeaderBytes + token_bytes));
  Put(Checksum(*value), value->data() + kChecksumAt);
  return value;
}

absl::StatusOr<absl::Span<const std::byte>> Decode(absl::Span<const std::byte> value,
                                                   const Segment& expected,
                                                   const kv::KvLayout& layout) {
  if (value.size() != EncodedBytes(expected, layout)) return Differs("size");
  std::byte header[kChecksumAt];
  PutHeader(expected, KvBytes(expected, layout), header);
  constexpr std::pair<absl::string_view, size_t> kFields[] = {
      {"format", 8},        {"model", 8},          {"KV layout", 8}, {"namespace", 8},
      {"prompt length", 4}, {"segment length", 4}, {"KV size", 8}};
  size_t at = 0;
  for (const auto& [name, bytes] : kFields) {
    if (std::memcmp(value.data() + at, header + at, bytes) != 0) return Differs(name);
    at += bytes;
  }
  const size_t token_bytes = expected.tokens.size() * sizeof(int32_t);
  if (std::memcmp(value.data() + kHeaderBytes, expected.tokens.data(), token_bytes) != 0) {
    return Differs("prompt");
  }
  uint64_t checksum;
  std::memcpy(&checksum, value.data() + kChecksumAt, sizeof(checksum));
  if (checksum != Checksum(value)) return Differs("checksum");
  return value.subspan(kHeaderBytes + token_bytes);
}

}  // namespace baton::kv_store
