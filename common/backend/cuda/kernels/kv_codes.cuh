// Rows of a quantised KV pool, by the definition in tensor.h (KvFormat): the bits are those that
// the CPU backend writes for the same float32.
#ifndef BATON_COMMON_BACKEND_CUDA_KERNELS_KV_CODES_CUH_
#define BATON_COMMON_BACKEND_CUDA_KERNELS_KV_CODES_CUH_

#include "common/backend/cuda/kernels/index_maps.h"
#include "common/backend/cuda/simt/simt.h"
#include "common/backend/tensor.h"

namespace baton::backend::cuda {

// The codes of a chunk: eight elements.
template <int kBits>
struct CodeChunk {
  static constexpr int kBytes = kBits * kChunkElements / 8;
  uint32_t x[kBytes / 4];

  static BATON_DEVICE CodeChunk Load(const std::byte* from) {
    if constexpr (kBits == 8) {
      const Vec8 v = Load8(from);
      return {{v.x[0], v.x[1]}};
    } else {
      return {{Load4(from)}};
    }
  }
  static BATON_DEVICE CodeChunk LoadIf(bool valid, const std::byte* from) {
    if constexpr (kBits == 8) {
      const Vec8 v = Load8If(valid, from);
      return {{v.x[0], v.x[1]}};
    } else {
      return {{Load4If(valid, from)}};
    }
  }
  // The same of what the block may have written.
  static BATON_DEVICE CodeChunk LoadCoherent(const std::byte* from) {
    if constexpr (kBits == 8) {
      const Vec8 v = LoadCoherent8(from);
      return {{v.x[0], v.x[1]}};
    } else {
      return {{LoadCoherent4(from)}};
    }
  }
  static BATON_DEVICE CodeChunk LoadCoherentIf(bool valid, const std::byte* from) {
    if constexpr (kBits == 8) {
      const Vec8 v = LoadCoherent8If(valid, from);
      return {{v.x[0], v.x[1]}};
    } else {
      return {{LoadCoherent4If(valid, from)}};
    }
  }
};

// Codes become numbers by way of pairs of float16 that hold a code's bits, times a power of two:
// exact, and that power is the scale's. Two to 24 makes 1 of a float16's least bit.
struct HalfPair {
  uint32_t bits;
  BATON_DEVICE float low() const { return Half::ToF32(static_cast<uint16_t>(bits)); }
  BATON_DEVICE float high() const { return Half::ToF32(static_cast<uint16_t>(bits >> 16)); }
};
inline constexpr float kTwoTo24 = 16777216.0f;

// Whole numbers from 0 on.
template <int kBits>
struct IntCodes {
  using Chunk = CodeChunk<kBits>;
  static constexpr KvFormat kFormat = kBits == 8 ? KvFormat::kInt8 : KvFormat::kInt4;
  static constexpr float kLargest = static_cast<float>((1 << kBits) - 1), kLeast = 0;

  // fma(code, scale, zero) of all.
  static BATON_DEVICE void Decode(const Chunk& chunk, float scale, float zero,
                                  float (&values)[kChunkElements]) {
    const float unit = Mul(scale, kTwoTo24);
    if constexpr (kBits == 8) {
      BATON_UNROLL for (int i = 0; i < kChunkElements; i += 2) {
        const HalfPair pair = {PermuteBytes(chunk.x[i / 4], 0, i % 4 == 0 ? 0x4140 : 0x4342)};
        values[i] = Fma(pair.low(), unit, zero);
        values[i + 1] = Fma(pair.high(), unit, zero);
      }
    } else {
      const float sixteenth = Mul(scale, kTwoTo24 / 16);
      BATON_UNROLL for (int i = 0; i < kChunkElements / 2; ++i) {
        const bool shifted = i % 2 == 1;  // by four bits
        const HalfPair pair = {chunk.x[0] >> (i / 2 * 8) & (shifted ? 0x00f000f0u : 0x000f000fu)};
        values[i] = Fma(pair.low(), shifted ? sixteenth : unit, zero);
        values[i + 4] = Fma(pair.high(), shifted ? sixteenth : unit, zero);
      }
    }
  }
  // To the nearest, ties to even. kLeast <= y <= kLargest.
  static BATON_DEVICE uint32_t Encode(float y) {
    constexpr float kTwoTo23 = 8388608.0f;  // whose unit is 1
    return FloatBits(Add(y, kTwoTo23)) & ((1u << kBits) - 1);
  }
};
using Int8 = IntCodes<8>;
using Int4 = IntCodes<4>;

// E4M3, from bits alone: GPUs before sm_89 have no conversion.
struct Fp8 {
  using Chunk = CodeChunk<8>;
  static constexpr KvFormat kFormat = KvFormat::kFp8;
  static constexpr float kLargest = 448, kLeast = -448;

  static BATON_DEVICE void Decode(const Chunk& chunk, float scale, float zero,
                                  float (&values)[kChunkElements]) {
    constexpr float kTwoTo8 = 256;  // the difference of the exponents' biases
    const float unit = Mul(scale, kTwoTo8);
    BATON_UNROLL for (int i = 0; i < kChunkElements; i += 4) {
      BATON_UNROLL for (int odd = 0; odd < 2; ++odd) {  // bytes 1 and 3, or 0 and 2
        const uint32_t four = chunk.x[i / 4];
        const uint32_t sign = odd == 1 ? four : four << 8, rest = odd == 1 ? four >> 1 : four << 7;
        const HalfPair pair = {(sign & 0x80008000) | (rest & 0x3f803f80)};
        values[i + odd] = Fma(pair.low(), unit, zero);
        values[i + odd + 2] = Fma(pair.high(), unit, zero);
      }
    }
  }
  static BATON_DEVICE uint32_t Encode(float y) {
    const uint32_t bits = FloatBits(y), sign = bits >> 24 & 0x80, rest = bits & 0x7fffffff;
    // Below 2^-6 the adder rounds to a multiple of 2^-9.
    const uint32_t small = FloatBits(Add(BitsFloat(rest), 16384.0f)) - FloatBits(16384.0f);
    const uint32_t large = ((rest + 0x7ffff + (rest >> 20 & 1)) >> 20) - ((127 - 7) << 3);
    return sign | Least(rest < 0x3c800000 ? small : large, 0x7eu);
  }
};

// What a pool holds: Half or BFloat16 as they are, or codes of which the kernels make them.
template <class Element, class CodesType>
struct Coded : Element {
  using Codes = CodesType;
};
template <class Kv>
constexpr bool kIsCoded = false;
template <class Element, class CodesType>
constexpr bool kIsCoded<Coded<Element, CodesType>> = true;

// What a pool of such KV holds: codes, or elements.
template <class Kv>
struct StoredKv {
  using Type = Kv;
};
template <class Element, class CodesType>
struct StoredKv<Coded<Element, CodesType>> {
  using Type = CodesType;
};

// A token's scale and zero, as the pool holds them.
struct ScaleAndZero {
  uint32_t bits;
  BATON_DEVICE float scale() const { return Half::ToF32(static_cast<uint16_t>(bits)); }
  BATON_DEVICE float zero() const { return Half::ToF32(static_cast<uint16_t>(bits >> 16)); }
};

// A chunk's elements, each rounded to the kernel's 16 bits: the one place where codes become
// operands, for both attention kernels. Zeros of zeros.
template <class Kv>
BATON_DEVICE Vec16 Dequantize(const typename Kv::Codes::Chunk& chunk, ScaleAndZero by) {
  float values[kChunkElements];
  Kv::Codes::Decode(chunk, by.scale(), by.zero(), values);
  Vec16 packed;
  BATON_UNROLL for (int i = 0; i < 4; ++i) packed.x[i] = Kv::Pack(values[2 * i], values[2 * i + 1]);
  return packed;
}

// The largest float16 that is not above x, and the smallest that is not below. |x| <= 65504.
BATON_DEVICE uint32_t HalfAtMost(float x) {
  const uint32_t near = Half::FromF32(x);
  if (Half::ToF32(static_cast<uint16_t>(near)) <= x) return near;
  if ((near & 0x7fff) == 0) return 0x8001;
  return (near & 0x8000) != 0 ? near + 1 : near - 1;
}
BATON_DEVICE uint32_t HalfAtLeast(float x) { return HalfAtMost(-x) ^ 0x8000; }

BATON_DEVICE float Saturate(float x) {
  constexpr float kMost = kLargestKvElement;
  return x < -kMost ? -kMost : x > kMost ? kMost : x;
}

// Of a row whose least and largest elements are given.
template <class Codes>
BATON_DEVICE ScaleAndZero ScaleAndZeroOf(float least, float largest, bool finite) {
  constexpr uint32_t kNaN = 0x7e00;
  if (!finite) return {kNaN | kNaN << 16};
  least = Saturate(least);
  largest = Saturate(largest);
  uint32_t zero = 0;
  float reach = -least > largest ? -least : largest;
  if constexpr (Codes::kLeast == 0) {
    zero = HalfAtMost(least);
    reach = Add(largest, -Half::ToF32(static_cast<uint16_t>(zero)));
  }
  return {HalfAtLeast(Divide(reach, Codes::kLargest)) | zero << 16};
}

// An element of the row with this scale and zero. Codes of a NaN row mean nothing.
template <class Codes>
BATON_DEVICE uint32_t CodeOf(float x, float scale, float zero) {
  const float code = Divide(Add(x, -zero), scale);
  const float bounded = code < Codes::kLargest ? code : Codes::kLargest;
  return Codes::Encode(Codes::kLeast < code ? bounded : Codes::kLeast);
}

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_KERNELS_KV_CODES_CUH_
