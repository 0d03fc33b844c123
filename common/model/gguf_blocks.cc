#include "common/model/gguf_blocks.h"

#include <bit>

#include "common/backend/tensor.h"
#include "common/base/check.h"
#include "common/model/convert.h"

namespace baton::model {
namespace {

constexpr int kSmallBlock = 32;
constexpr int kSuperBlock = 256;

float F16At(const uint8_t* bytes) {
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

// float16 scale, with kLeast float16 least value, with kBits 5 a fifth bit of each element [32],
// and the low four bits: byte i has elements i and i + 16. Without a least value, the middle is 0.
template <int kBits, bool kLeast>
void DequantizeSmall(const uint8_t* block, float* out) {
  const float scale = F16At(block);
  const float least = kLeast ? F16At(block + 2) : 0;
  const uint8_t* fifths = block + (kLeast ? 4 : 2);
  const uint8_t* nibbles = fifths + (kBits == 5 ? 4 : 0);
  for (int i = 0; i < kSmallBlock; ++i) {
    int q = i < 16 ? nibbles[i] & 0xf : nibbles[i - 16] >> 4;
    if (kBits == 5) q |= (fifths[i / 8] >> i % 8 & 1) << 4;
    out[i] = kLeast ? static_cast<float>(q) * scale + least
                    : static_cast<float>(q - (1 << (kBits - 1))) * scale;
  }
}

// The scales and least values of eight groups, six bits each, in 12 bytes: the low six bits of the
// first eight bytes are the first four of both; the last four of both have their low four bits in
// the last four bytes, and their high two bits above those six.
struct GroupScales {
  int scale[8];
  int least[8];
};
GroupScales UnpackGroupScales(const uint8_t* bytes) {
  GroupScales groups;
  for (int i = 0; i < 4; ++i) {
    groups.scale[i] = bytes[i] & 0x3f;
    groups.least[i] = bytes[i + 4] & 0x3f;
    groups.scale[i + 4] = (bytes[i + 8] & 0xf) | bytes[i] >> 6 << 4;
    groups.least[i + 4] = bytes[i + 8] >> 4 | bytes[i + 4] >> 6 << 4;
  }
  return groups;
}

// float16 scale and least value; the groups' scales; with kBits 5 fifth bits: byte i has those of
// element i of the eight groups of 32; the low four bits: of each pair of groups, byte i has
// element i of both.
template <int kBits>
void DequantizeGroups(const uint8_t* block, float* out) {
  const float scale = F16At(block), least = F16At(block + 2);
  const GroupScales groups = UnpackGroupScales(block + 4);
  const uint8_t* fifths = block + 16;
  const uint8_t* nibbles = fifths + (kBits == 5 ? 32 : 0);
  for (int group = 0; group < 8; ++group) {
    const float group_scale = scale * static_cast<float>(groups.scale[group]);
    const float group_least = least * static_cast<float>(groups.least[group]);
    const int shift = group % 2 * 4;
    for (int i = 0; i < 32; ++i) {
      int q = nibbles[group / 2 * 32 + i] >> shift & 0xf;
      if (kBits == 5) q |= (fifths[i] >> group & 1) << 4;
      out[group * 32 + i] = group_scale * static_cast<float>(q) - group_least;
    }
  }
}

// The low four bits [128 bytes], the high two [64], int8 scales of 16 groups of 16, float16 scale.
// Either half of the block has four rows of 32: rows 0 and 2 are in the nibbles of its first 32
// bytes, 1 and 3 in those of the next 32, and byte i of its high bits has element i of all four.
void DequantizeQ6_K(const uint8_t* block, float* out) {
  const uint8_t* scales = block + 192;
  const float scale = F16At(block + 208);
  for (int half = 0; half < 2; ++half) {
    const uint8_t* low = block + half * 64;
    const uint8_t* high = block + 128 + half * 32;
    for (int row = 0; row < 4; ++row) {
      for (int i = 0; i < 32; ++i) {
        const int nibble = low[row % 2 * 32 + i] >> row / 2 * 4 & 0xf;
        const int q = (nibble | (high[i] >> row * 2 & 3) << 4) - 32;
        const int place = half * 128 + row * 32 + i;
        const auto group_scale = static_cast<int8_t>(scales[place / 16]);
        out[place] = scale * static_cast<float>(group_scale) * static_cast<float>(q);
      }
    }
  }
}

constexpr BlockFormat kFormats[] = {
    {"Q8_0", kSmallBlock, 34, DequantizeQ8_0},
    {"Q4_0", kSmallBlock, 18, DequantizeSmall<4, false>},
    {"Q4_1", kSmallBlock, 20, DequantizeSmall<4, true>},
    {"Q5_0", kSmallBlock, 22, DequantizeSmall<5, false>},
    {"Q5_1", kSmallBlock, 24, DequantizeSmall<5, true>},
    {"Q4_K", kSuperBlock, 144, DequantizeGroups<4>},
    {"Q5_K", kSuperBlock, 176, DequantizeGroups<5>},
    {"Q6_K", kSuperBlock, 210, DequantizeQ6_K},
};

}  // namespace

const BlockFormat* FindBlockFormat(absl::string_view name) {
  for (const BlockFormat& format : kFormats) {
    if (format.name == name) return &format;
  }
  return nullptr;
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
