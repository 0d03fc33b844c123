#include "common/model/gguf_blocks.h"

#include <bit>
#include <cstring>

#include "common/backend/quantized.h"
#include "common/backend/tensor.h"
#include "common/base/check.h"
#include "common/model/convert.h"

namespace baton::model {
namespace {

using backend::SuperBlockRow;

constexpr int kSmallBlock = 32;
constexpr int kSuperBlock = 256;

float F16At(const void* bytes) {
  float value;
  ToF32(bytes, backend::DType::kF16, 1, &value);
  return value;
}

// float16 scale; int8 [32].
void DequantizeQ8_0(const uint8_t* block, float* out) {
  const float scale = F16At(block);
  for (int i = 0; i < kSmallBlock; ++i) {
    out[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * scale;
  }
}

// What a block has of kBits: with 5, a fifth bit of each element [32]; then the low four bits: byte
// i has elements i and i + 16.
template <int kBits>
int SmallValue(const uint8_t* bits, int i) {
  const uint8_t* nibbles = bits + (kBits == 5 ? 4 : 0);
  const int q = i < 16 ? nibbles[i] & 0xf : nibbles[i - 16] >> 4;
  return kBits == 5 ? q | (bits[i / 8] >> i % 8 & 1) << 4 : q;
}

// float16 scale; bits, whose middle is 0.
template <int kBits>
void DequantizeSmall(const uint8_t* block, float* out) {
  const float scale = F16At(block);
  for (int i = 0; i < kSmallBlock; ++i) {
    out[i] = static_cast<float>(SmallValue<kBits>(block + 2, i) - (1 << (kBits - 1))) * scale;
  }
}

// The same, with kLeast a float16 least value before the bits, which is added.
template <int kBits, bool kLeast>
void SplitSmall(const uint8_t* block, const SuperBlockRow& out) {
  std::memcpy(out.scales, block, 2);
  out.factors[0] = 1;
  std::memcpy(out.leasts, block + (kLeast ? 2 : 0), 2);
  if (kLeast) *out.leasts ^= 0x8000;
  out.factors[1] = kLeast ? 1 : 1 << (kBits - 1);
  for (int i = 0; i < kSmallBlock; ++i) {
    out.values[i] = static_cast<uint8_t>(SmallValue<kBits>(block + (kLeast ? 4 : 2), i));
  }
}

// The scales and least values of eight groups, six bits each, in 12 bytes: the low six bits of the
// first eight bytes are the first four of both; the last four of both have their low four bits in
// the last four bytes, and their high two bits above those six.
void SplitGroupScales(const uint8_t* bytes, int8_t* factors) {
  for (int i = 0; i < 4; ++i) {
    int8_t *first = factors + 2 * i, *last = first + 8;
    first[0] = bytes[i] & 0x3f;
    first[1] = bytes[i + 4] & 0x3f;
    last[0] = static_cast<int8_t>((bytes[i + 8] & 0xf) | bytes[i] >> 6 << 4);
    last[1] = static_cast<int8_t>(bytes[i + 8] >> 4 | bytes[i + 4] >> 6 << 4);
  }
}

// float16 scale and least value; the groups' scales; with kBits 5 fifth bits: byte i has those of
// element i of the eight groups of 32; the low four bits: of each pair of groups, byte i has
// element i of both.
template <int kBits>
void SplitGroups(const uint8_t* block, const SuperBlockRow& out) {
  std::memcpy(out.scales, block, 2);
  std::memcpy(out.leasts, block + 2, 2);
  SplitGroupScales(block + 4, out.factors);
  const uint8_t* fifths = block + 16;
  const uint8_t* nibbles = fifths + (kBits == 5 ? 32 : 0);
  for (int group = 0; group < 8; ++group) {
    for (int i = 0; i < 32; ++i) {
      int q = nibbles[group / 2 * 32 + i] >> group % 2 * 4 & 0xf;
      if (kBits == 5) q |= (fifths[i] >> group & 1) << 4;
      out.values[group * 32 + i] = static_cast<uint8_t>(q);
    }
  }
}

// The low four bits [128 bytes], the high two [64], int8 scales of 16 groups of 16, float16 scale.
// Either half of the block has four rows of 32: rows 0 and 2 are in the nibbles of its first 32
// bytes, 1 and 3 in those of the next 32, and byte i of its high bits has element i of all four.
void SplitQ6_K(const uint8_t* block, const SuperBlockRow& out) {
  std::memcpy(out.factors, block + 192, 16);
  std::memcpy(out.scales, block + 208, 2);
  for (int half = 0; half < 2; ++half) {
    const uint8_t* low = block + half * 64;
    const uint8_t* high = block + 128 + half * 32;
    for (int row = 0; row < 4; ++row) {
      for (int i = 0; i < 32; ++i) {
        const int nibble = low[row % 2 * 32 + i] >> row / 2 * 4 & 0xf;
        const int q = nibble | (high[i] >> row * 2 & 3) << 4;
        out.values[half * 128 + row * 32 + i] = static_cast<uint8_t>(q);
      }
    }
  }
}

template <int kBits, int kElements, auto kSplit>
void DequantizeSplit(const uint8_t* block, float* out) {
  uint8_t values[kElements];
  int8_t factors[kElements / 16];
  uint16_t scales = 0, leasts = 0;
  kSplit(block, {values, factors, &scales, &leasts});
  const float scale = F16At(&scales), least = F16At(&leasts);
  for (int i = 0; i < kElements; ++i) {
    const int8_t* both = factors + i / 32 * 2;
    if (kBits == 6) {
      out[i] = scale * static_cast<float>(both[i / 16 % 2]) * static_cast<float>(values[i] - 32);
    } else {
      const float product = scale * static_cast<float>(both[0]) * static_cast<float>(values[i]);
      out[i] = product - least * static_cast<float>(both[1]);
    }
  }
}

// The exponent of two, plus 127; bytes with elements i and i + 16. QuantizedHostMatrix has the
// values and what becomes of small scales; larger ones than are accepted become NaN.
void DequantizeMxfp4(const uint8_t* block, float* out) {
  const int exponent = block[0];
  const float half = std::bit_cast<float>(exponent > kMxfp4MaxExponent ? 0x7fc00000u
                                          : exponent < 2               ? 0u
                                                         : uint32_t(exponent - 1) << 23);
  for (int i = 0; i < kSmallBlock; ++i) {
    const int code = i < 16 ? block[1 + i] & 0xf : block[1 + i - 16] >> 4;
    out[i] = static_cast<float>(backend::kFp4Values[code] - backend::kFp4Zero) * half;
  }
}

template <int kBits, int kElements, auto kSplit>
constexpr BlockFormat InSuperBlocks(absl::string_view name, int bytes, int scale, int least) {
  return {name,  kElements, bytes,         DequantizeSplit<kBits, kElements, kSplit>,
          kBits, kSplit,    {scale, least}};
}

constexpr BlockFormat kFormats[] = {
    {"Q8_0", kSmallBlock, 34, DequantizeQ8_0},
    {"Q4_0", kSmallBlock, 18, DequantizeSmall<4>},
    {kMxfp4Name, kSmallBlock, 17, DequantizeMxfp4},
    // Dequantised as the format says: the difference of two multiples loses the sign of a zero.
    {"Q5_0", kSmallBlock, 22, DequantizeSmall<5>, 5, SplitSmall<5, false>, {0, 0}},
    InSuperBlocks<4, kSmallBlock, SplitSmall<4, true>>("Q4_1", 20, 0, 2),
    InSuperBlocks<5, kSmallBlock, SplitSmall<5, true>>("Q5_1", 24, 0, 2),
    InSuperBlocks<4, kSuperBlock, SplitGroups<4>>("Q4_K", 144, 0, 2),
    InSuperBlocks<5, kSuperBlock, SplitGroups<5>>("Q5_K", 176, 0, 2),
    InSuperBlocks<6, kSuperBlock, SplitQ6_K>("Q6_K", 210, 208, 208),
};

}  // namespace

const BlockFormat* FindBlockFormat(absl::string_view name) {
  for (const BlockFormat& format : kFormats) {
    if (format.name == name) return &format;
  }
  return nullptr;
}

bool HasFiniteScales(const BlockFormat& format, const uint8_t* block) {
  for (const int place : format.scale_places) {
    constexpr uint8_t kExponent = 0x7c;  // of the high byte
    if ((block[place + 1] & kExponent) == kExponent) return false;
  }
  return true;
}

bool Dequantize(const BlockFormat& format, const char* blocks, int64_t elements, float* out) {
  BATON_CHECK_EQ(elements % format.elements, 0);
  const auto* bytes = reinterpret_cast<const uint8_t*>(blocks);
  for (int64_t done = 0; done < elements; done += format.elements, bytes += format.bytes) {
    format.dequantize(bytes, out + done);
  }
  constexpr uint32_t kExponent = 0x7f800000;  // all bits set: an infinity or a NaN
  uint32_t not_finite = 0;
  for (int64_t i = 0; i < elements; ++i) {
    not_finite |= (std::bit_cast<uint32_t>(out[i]) & kExponent) == kExponent;
  }
  return not_finite == 0;
}

}  // namespace baton::model
