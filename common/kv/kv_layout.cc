#include "common/kv/kv_layout.h"

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/kv/byte_order.h"
#include "xxhash.h"

namespace baton::kv {
namespace {

// Far above any model, and small enough that BlockBytes() stays below 2^48.
constexpr int kMaxLayers = 4096;
constexpr int kMaxKvHeads = 1024;
constexpr int kMaxHeadDim = 4096;
constexpr int kBlockTokensStep = 16;
constexpr int kMaxBlockTokens = 256;

absl::Status CheckRange(absl::string_view field, int value, int min, int max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return InvalidField("KV_LAYOUT_INVALID", absl::StrCat("kv_layout.", field),
                      absl::StrCat("is ", value, ", expected ", min, " to ", max));
}

bool IsKnown(KvDtype dtype) {
  return dtype == KvDtype::kF32 || dtype == KvDtype::kBF16 || dtype == KvDtype::kF16;
}

}  // namespace

absl::string_view KvDtypeName(KvDtype dtype) {
  BATON_CHECK(IsKnown(dtype)) << static_cast<int>(dtype);
  if (dtype == KvDtype::kF32) return "float32";
  return dtype == KvDtype::kBF16 ? "bfloat16" : "float16";
}

std::optional<KvDtype> ParseKvDtype(absl::string_view name) {
  for (KvDtype dtype : {KvDtype::kF32, KvDtype::kBF16, KvDtype::kF16}) {
    if (name == KvDtypeName(dtype)) return dtype;
  }
  return std::nullopt;
}

int KvDtypeBytes(KvDtype dtype) {
  BATON_CHECK(IsKnown(dtype)) << static_cast<int>(dtype);
  return dtype == KvDtype::kF32 ? 4 : 2;
}

absl::Status KvLayout::Validate() const {
  BATON_RETURN_IF_ERROR(CheckRange("layers", layers, 1, kMaxLayers));
  BATON_RETURN_IF_ERROR(CheckRange("kv_heads", kv_heads, 1, kMaxKvHeads));
  BATON_RETURN_IF_ERROR(CheckRange("head_dim", head_dim, 1, kMaxHeadDim));
  BATON_RETURN_IF_ERROR(
      CheckRange("block_tokens", block_tokens, kBlockTokensStep, kMaxBlockTokens));
  if (block_tokens % kBlockTokensStep != 0) {
    return InvalidField(
        "KV_LAYOUT_INVALID", "kv_layout.block_tokens",
        absl::StrCat("is ", block_tokens, ", expected a multiple of ", kBlockTokensStep));
  }
  if (!IsKnown(dtype)) {
    return InvalidField("KV_LAYOUT_INVALID", "kv_layout.dtype",
                        absl::StrCat("is number ", static_cast<int>(dtype),
                                     ", expected 1 (float32), 2 (bfloat16) or 3 (float16)"));
  }
  return CheckRange("format_version", format_version, kKvFormatVersion, kKvFormatVersion);
}

int64_t KvLayout::ChunkBytes() const {
  return int64_t{2} * kv_heads * block_tokens * head_dim * KvDtypeBytes(dtype);
}

int64_t KvLayout::BlockBytes() const { return layers * ChunkBytes(); }

uint64_t KvLayout::Fingerprint() const {
  ByteString bytes;
  for (int field :
       {layers, kv_heads, head_dim, block_tokens, static_cast<int>(dtype), format_version}) {
    AppendLittleEndian(static_cast<uint32_t>(field), &bytes);
  }
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::string KvLayout::ToString() const {
  // The dtype may be one that Validate() refuses, and the refusal wants to print it.
  std::string dtype_text = IsKnown(dtype) ? std::string(KvDtypeName(dtype))
                                          : absl::StrCat("dtype ", static_cast<int>(dtype));
  return absl::StrCat(layers, " layers, ", kv_heads, " kv heads of ", head_dim, ", ", block_tokens,
                      "-token blocks, ", dtype_text, ", format ", format_version);
}

}  // namespace baton::kv
