#include "common/kv/prefix_key.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <bit>
#include <cstring>

#include "common/base/check.h"
#include "common/kv/byte_order.h"

namespace baton::kv {
namespace {

// Roots and blocks are hashed with different seeds, so that no choice of salt imitates a block.
constexpr XXH64_hash_t kRootSeed = 1;
constexpr XXH64_hash_t kBlockSeed = 0;
constexpr XXH64_hash_t kTierSeed = 2;
constexpr XXH64_hash_t kSnapshotSeed = 3;

void AppendSized(absl::string_view text, ByteString* bytes) {
  AppendLittleEndian(static_cast<uint64_t>(text.size()), bytes);
  bytes->insert(bytes->end(), text.begin(), text.end());
}

}  // namespace

PrefixKey RootPrefixKey(uint64_t model_fingerprint, absl::string_view cache_salt,
                        absl::string_view adapter) {
  ByteString bytes;
  AppendLittleEndian(model_fingerprint, &bytes);
  AppendSized(cache_salt, &bytes);
  AppendSized(adapter, &bytes);
  return XXH3_128bits_withSeed(bytes.data(), bytes.size(), kRootSeed).low64;
}

PrefixKey NextPrefixKey(PrefixKey parent, absl::Span<const int32_t> block_tokens) {
  ByteString bytes(sizeof(parent) + block_tokens.size() * sizeof(int32_t));
  uint8_t* at = StoreLittleEndian(parent, bytes.data());
  // A router and a worker each hash every token of a prompt: where the machine's order allows it,
  // a block is copied as a whole.
  if (std::endian::native == std::endian::little && !block_tokens.empty()) {
    std::memcpy(at, block_tokens.data(), block_tokens.size() * sizeof(int32_t));
  } else {
    for (const int32_t token : block_tokens) {
      at = StoreLittleEndian(static_cast<uint32_t>(token), at);
    }
  }
  return XXH3_128bits_withSeed(bytes.data(), bytes.size(), kBlockSeed).low64;
}

PrefixKey SnapshotKey(PrefixKey block) {
  ByteString bytes;
  AppendLittleEndian(block, &bytes);
  return XXH3_128bits_withSeed(bytes.data(), bytes.size(), kSnapshotSeed).low64;
}

PrefixKey TierKey(PrefixKey end, int segment_tokens) {
  ByteString bytes;
  AppendLittleEndian(end, &bytes);
  AppendLittleEndian(static_cast<uint32_t>(segment_tokens), &bytes);
  return XXH3_128bits_withSeed(bytes.data(), bytes.size(), kTierSeed).low64;
}

std::vector<PrefixKey> PrefixKeys(PrefixKey root, absl::Span<const int32_t> tokens,
                                  int block_tokens) {
  BATON_CHECK_GT(block_tokens, 0);
  std::vector<PrefixKey> keys;
  keys.reserve(tokens.size() / block_tokens);
  PrefixKey key = root;
  for (size_t end = block_tokens; end <= tokens.size(); end += block_tokens) {
    key = NextPrefixKey(key, tokens.subspan(end - block_tokens, block_tokens));
    keys.push_back(key);
  }
  return keys;
}

}  // namespace baton::kv
