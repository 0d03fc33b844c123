#include "common/kv/kv_layout.h"

#include <iterator>

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

struct DtypeFacts {
  KvDtype dtype;
  absl::string_view name;
  int bits;        // of an element
  bool quantized;  // with a scale and a zero for each token and head
};
constexpr DtypeFacts kDtypes[] = {
    {KvDtype::kF32, "float32", 32, false}, {KvDtype::kBF16, "bfloat16", 16, false},
    {KvDtype::kF16, "float16", 16, false}, {KvDtype::kInt8, "int8", 8, true},
    {KvDtype::kInt4, "int4", 4, true},     {KvDtype::kFp8, "fp8", 8, true},
};
constexpr int kScaleAndZeroBytes = 4;

const DtypeFacts* Find(KvDtype dtype) {
  for (const DtypeFacts& facts : kDtypes) {
    if (facts.dtype == dtype) return &facts;
  }
  return nullptr;
}

// The activations' type, if the layout's elements are of fewer bits; else null.
const DtypeFacts* RoundedFrom(const KvLayout& layout) {
  const DtypeFacts *facts = Find(layout.dtype), *source = Find(layout.computed);
  if (facts == nullptr || source == nullptr || facts->bits >= source->bits) return nullptr;
  return source;
}

}  // namespace

absl::string_view KvDtypeName(KvDtype dtype) {
  const DtypeFacts* facts = Find(dtype);
  BATON_CHECK(facts != nullptr) << static_cast<int>(dtype);
  return facts->name;
}

std::optional<KvDtype> ParseKvDtype(absl::string_view name) {
  for (const DtypeFacts& facts : kDtypes) {
    if (name == facts.name) return facts.dtype;
  }
  return std::nullopt;
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
  const DtypeFacts* facts = Find(dtype);
  if (facts == nullptr) {
    return InvalidField("KV_LAYOUT_INVALID", "kv_layout.dtype",
                        absl::StrCat("is number ", static_cast<int>(dtype), ", expected 1 to ",
                                     std::size(kDtypes)));
  }
  if (const DtypeFacts* source = Find(computed); source == nullptr || source->quantized) {
    return InvalidField(
        "KV_LAYOUT_INVALID", "kv_layout.computed",
        absl::StrCat("is number ", static_cast<int>(computed), ", expected 1 to 3"));
  }
  if (head_dim * facts->bits % 8 != 0) {
    return InvalidField("KV_LAYOUT_INVALID", "kv_layout.head_dim",
                        absl::StrCat("is ", head_dim, ", expected whole bytes of ", facts->name));
  }
  return CheckRange("format_version", format_version, kKvFormatVersion, kKvFormatVersion);
}

int64_t KvLayout::HeadBytes() const {
  const DtypeFacts* facts = Find(dtype);
  BATON_CHECK(facts != nullptr) << static_cast<int>(dtype);
  const int64_t row = int64_t{head_dim} * facts->bits / 8;
  return block_tokens * (row + (facts->quantized ? kScaleAndZeroBytes : 0));
}

int64_t KvLayout::ChunkBytes() const { return 2 * kv_heads * HeadBytes(); }

int64_t KvLayout::BlockBytes() const { return layers * ChunkBytes(); }

absl::Status KvLayout::CheckCaller(uint64_t fingerprint) const {
  if (fingerprint == Fingerprint()) return absl::OkStatus();
  std::string callers = absl::StrCat("KV layout ", absl::Hex(fingerprint));
  for (const DtypeFacts& facts : kDtypes) {
    for (const KvDtype source : {KvDtype::kF32, KvDtype::kBF16, KvDtype::kF16}) {
      for (const int bits : {0, 4, 8}) {
        for (const bool dequantized : {false, true}) {
          KvLayout other = *this;
          other.dtype = facts.dtype;
          other.computed = source;
          other.weight_bits = bits;
          other.dequantized = dequantized;
          if (other.Fingerprint() != fingerprint) continue;
          callers = absl::StrCat("KV of ", other.DtypeText());
        }
      }
    }
  }
  return MakeError(absl::StatusCode::kFailedPrecondition, "KV_LAYOUT",
                   absl::StrCat("the caller has ", callers, ", this worker has ", ToString(), " (",
                                absl::Hex(Fingerprint()), "): expected the same"));
}

uint64_t KvLayout::Fingerprint() const {
  ByteString bytes;
  for (int field :
       {layers, kv_heads, head_dim, block_tokens, static_cast<int>(dtype), format_version}) {
    AppendLittleEndian(static_cast<uint32_t>(field), &bytes);
  }
  if (RoundedFrom(*this) != nullptr) {
    AppendLittleEndian(static_cast<uint32_t>(computed), &bytes);
  }
  if (weight_bits != 0 || dequantized) {
    AppendLittleEndian(static_cast<uint32_t>(weight_bits), &bytes);
  }
  if (dequantized) AppendLittleEndian(uint32_t{1}, &bytes);
  bytes.insert(bytes.end(), numerics.begin(), numerics.end());
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::string KvLayout::DtypeText() const {
  // The dtype may be one that Validate() refuses, and the refusal wants to print it.
  const DtypeFacts* facts = Find(dtype);
  if (facts == nullptr) return absl::StrCat("dtype ", static_cast<int>(dtype));
  std::string text(facts->name);
  if (const DtypeFacts* source = RoundedFrom(*this)) absl::StrAppend(&text, " of ", source->name);
  if (dequantized) absl::StrAppend(&text, " with dequantised weights");
  if (weight_bits != 0) {
    absl::StrAppend(&text, dequantized ? "" : " with weights", " of ", weight_bits, " bits");
  }
  return text;
}

std::string KvLayout::ToString() const {
  return absl::StrCat(layers, " layers, ", kv_heads, " kv heads of ", head_dim, ", ", block_tokens,
                      "-token blocks, ", DtypeText(), ", format ", format_version,
                      numerics.empty() ? "" : ", by ", numerics);
}

}  // namespace baton::kv
