// The emulated device's 16-bit floats and tensor-core products, against IEEE 754 and the PTX ISA.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <random>
#include <type_traits>
#include <vector>

#include "common/backend/cuda/simt/simt.h"
#include "tests/testing/seed.h"

namespace baton::backend::cuda {
namespace {

class EmulatedArithmeticTest : public ::testing::Test {
 protected:
  EmulatedArithmeticTest() { std::printf("seed %llu\n", static_cast<unsigned long long>(seed_)); }
  void TearDown() override { emulated::SetOptions({}); }

  const uint64_t seed_ = testing::TestSeed();
  std::mt19937_64 random_{seed_};
};

// ---- 16-bit floats -----------------------------------------------------------------------------

struct Format {
  int exponent_bits, mantissa_bits;
  int infinity() const { return ((1 << exponent_bits) - 1) << mantissa_bits; }
  // Of a magnitude's bits; infinity stands for the power of two that would be there.
  double ValueOf(int bits) const {
    const int exponent = bits >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
    const int least = 2 - (1 << (exponent_bits - 1)) - mantissa_bits;
    if (exponent == 0) return std::ldexp(mantissa, least);
    return std::ldexp(mantissa + (1 << mantissa_bits), exponent - 1 + least);
  }
  // IEEE 754: to the nearest, ties to the even one; beyond the greatest as if there were more.
  uint16_t Rounded(float value) const {
    return Rounded(std::fabs(static_cast<double>(value)), std::signbit(value));
  }
  template <class Real>
  uint16_t Rounded(Real magnitude, bool negative) const {
    int low = 0, high = infinity();
    while (low < high) {  // the greatest that isn't above
      const int middle = (low + high + 1) / 2;
      if (ValueOf(middle) <= magnitude) {
        low = middle;
      } else {
        high = middle - 1;
      }
    }
    if (low < infinity()) {
      const Real twice = 2 * magnitude, sum = ValueOf(low) + ValueOf(low + 1);
      if (twice > sum || (twice == sum && low % 2 == 1)) ++low;
    }
    return static_cast<uint16_t>(low | (negative ? 0x8000 : 0));
  }
};
constexpr Format kHalf = {5, 10}, kBFloat16 = {8, 7};

template <class Element>
void CheckFormat(const Format& format, std::mt19937_64& random) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const auto pattern = static_cast<uint16_t>(bits);
    const int magnitude = bits & 0x7fff;
    const float wide = Element::ToF32(pattern);
    if (magnitude > format.infinity()) {
      ASSERT_TRUE(std::isnan(wide)) << bits;
      ASSERT_GT(Element::FromF32(wide) & 0x7fff, format.infinity()) << bits;
      continue;
    }
    const double expected = magnitude == format.infinity() ? std::numeric_limits<double>::infinity()
                                                           : format.ValueOf(magnitude);
    ASSERT_EQ(std::fabs(static_cast<double>(wide)), expected) << bits;
    ASSERT_EQ(std::signbit(wide), bits >= 0x8000) << bits;
    ASSERT_EQ(Element::FromF32(wide), bits);
    if (magnitude == format.infinity()) continue;
    // The tie with the next magnitude, and its two neighbours.
    const auto tie =
        static_cast<float>((format.ValueOf(magnitude) + format.ValueOf(magnitude + 1)) / 2);
    for (const float near : {tie, std::nextafter(tie, 0.0f), std::nextafter(tie, HUGE_VALF)}) {
      const float value = bits >= 0x8000 ? -near : near;
      ASSERT_EQ(Element::FromF32(value), format.Rounded(value)) << value;
    }
  }
  for (int round = 0; round < 300'000; ++round) {
    const float value = BitsFloat(static_cast<uint32_t>(random()));
    if (std::isnan(value)) continue;
    ASSERT_EQ(Element::FromF32(value), format.Rounded(value)) << value;
  }
  const uint32_t pair = Element::Pack(1.0f, -2.0f);
  ASSERT_EQ(pair & 0xffff, Element::FromF32(1.0f));
  ASSERT_EQ(pair >> 16, Element::FromF32(-2.0f));
}

TEST_F(EmulatedArithmeticTest, HalfIsIeee754) { CheckFormat<Half>(kHalf, random_); }
TEST_F(EmulatedArithmeticTest, BFloat16RoundsToTheNearest) {
  CheckFormat<BFloat16>(kBFloat16, random_);
}

// The same halves as the compiler's own.
TEST_F(EmulatedArithmeticTest, HalfIsTheCompilers) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    const auto own = std::bit_cast<_Float16>(static_cast<uint16_t>(bits));
    const auto wide = static_cast<float>(own);
    if (std::isnan(wide)) continue;
    ASSERT_EQ(FloatBits(Half::ToF32(static_cast<uint16_t>(bits))), FloatBits(wide)) << bits;
  }
  for (int round = 0; round < 1'000'000; ++round) {
    const float value = BitsFloat(static_cast<uint32_t>(random_()));
    if (std::isnan(value)) continue;
    ASSERT_EQ(Half::FromF32(value), std::bit_cast<uint16_t>(static_cast<_Float16>(value))) << value;
  }
}

TEST_F(EmulatedArithmeticTest, BytesArePickedBySelectors) {
  EXPECT_EQ(PermuteBytes(0x33221100, 0x77665544, 0x3210), 0x33221100u);
  EXPECT_EQ(PermuteBytes(0x33221100, 0x77665544, 0x7632), 0x77663322u);
  EXPECT_EQ(PermuteBytes(0x33221100, 0, 0x4140), 0x00110000u);
  EXPECT_EQ(PermuteBytes(0x33221100, 0x77665544, 0x0515), 0x00551155u);
}

TEST_F(EmulatedArithmeticTest, AGreatestPassesANanOn) {
  EXPECT_EQ(GreatestOrNan(1, 2), 2);
  EXPECT_EQ(GreatestOrNan(2, 1), 2);
  EXPECT_TRUE(std::isnan(GreatestOrNan(1, std::numeric_limits<float>::quiet_NaN())));
}

// a b + c, which 113 bits hold, rounded once. bfloat16's of like sizes alone: others need more
// bits.
template <class Element>
void CheckFma(const Format& format, std::mt19937_64& random) {
  const auto draw = [&]() -> uint32_t {
    const auto bits = static_cast<uint32_t>(random() & 0xffff);
    if (format.exponent_bits == 8) return (bits & 0x8fff) | 0x3000;
    return (bits & 0x7c00) == 0x7c00 ? bits & 0x83ff : bits;
  };
  for (int round = 0; round < 200'000; ++round) {
    uint32_t two[3];
    for (uint32_t& operand : two) operand = draw() | draw() << 16;
    const uint32_t result = Element::Fma2(two[0], two[1], two[2]);
    for (const int shift : {0, 16}) {
      const auto at = [&](int i) -> __float128 {
        return Element::ToF32(static_cast<uint16_t>(two[i] >> shift));
      };
      const __float128 exact = at(0) * at(1) + at(2);
      if (exact == 0) continue;  // signs of zeros: below
      ASSERT_EQ(result >> shift & 0xffff, format.Rounded(exact < 0 ? -exact : exact, exact < 0))
          << std::hex << two[0] << " " << two[1] << " " << two[2];
    }
  }
  // A third operand that is much too small to be added decides a tie; a sum of zeros.
  const auto fma = [](float a, float b, float c) {
    return Element::Fma2(Element::FromF32(a), Element::FromF32(b), Element::FromF32(c)) & 0xffff;
  };
  const float last_place = std::ldexp(1.0f, -format.mantissa_bits);
  const float least = Element::ToF32(1);
  ASSERT_EQ(fma(1.5f, 1 + last_place, least), Element::FromF32(1.5f + 2 * last_place));
  ASSERT_EQ(fma(1.5f, 1 + last_place, -least), Element::FromF32(1.5f + last_place));
  ASSERT_EQ(fma(0.0f, 1.0f, -0.0f), 0);
  ASSERT_EQ(fma(0.0f, -1.0f, -0.0f), 0x8000);
}

TEST_F(EmulatedArithmeticTest, FusedSumsOfHalvesRoundOnce) { CheckFma<Half>(kHalf, random_); }
TEST_F(EmulatedArithmeticTest, FusedSumsOfBFloat16RoundOnce) {
  CheckFma<BFloat16>(kBFloat16, random_);
}

// ---- Products ----------------------------------------------------------------------------------

struct Place {
  int row, column;
};
// PTX ISA, "Matrix Fragments for mma.m16n8k8" and "... mma.m16n8k16 with floating point type":
//   groupID = %laneid >> 2, threadID_in_group = %laneid % 4;
//   A of k16, ai: row = groupID for 0 <= i < 2 || 4 <= i < 6, else groupID + 8;
//                 col = threadID_in_group * 2 + (i & 1) for i < 4, + 8 for i >= 4;
//   B of k16, bi: row = threadID_in_group * 2 + (i & 1) for i < 2, + 8 for i >= 2; col = groupID;
//   A of k8: row = groupID for i < 2, else groupID + 8; col = threadID_in_group * 2 + (i & 1);
//   B of k8: row = threadID_in_group * 2 + i; col = groupID;
//   C, D: row = groupID for i < 2, else groupID + 8; col = threadID_in_group * 2 + (i & 1).
Place PlaceOfA(int k, int lane, int i) {
  const int group = lane >> 2, member = lane % 4;
  if (k == 8) return {i < 2 ? group : group + 8, member * 2 + (i & 1)};
  return {i < 2 || (4 <= i && i < 6) ? group : group + 8,
          i < 4 ? member * 2 + (i & 1) : member * 2 + (i & 1) + 8};
}
Place PlaceOfB(int k, int lane, int i) {
  const int group = lane >> 2, member = lane % 4;
  if (k == 8) return {member * 2 + i, group};
  return {i < 2 ? member * 2 + (i & 1) : member * 2 + (i & 1) + 8, group};
}
Place PlaceOfC(int lane, int i) {
  return {i < 2 ? lane >> 2 : (lane >> 2) + 8, lane % 4 * 2 + (i & 1)};
}

struct TiledProduct {
  int k;
  float a[16][16] = {}, b[16][8] = {}, c[16][8] = {};
};

// D of every warp's product, all in one block.
template <class Element>
std::vector<TiledProduct> Multiply(const std::vector<TiledProduct>& products) {
  std::vector<TiledProduct> results = products;
  const int warps = static_cast<int>(products.size());
  emulated::RunGrid({{}, warps * kWarpLanes, 0}, nullptr, [&] {
    const TiledProduct& from = products[static_cast<size_t>(Warp())];
    const int k = from.k, lane = Lane();
    uint32_t a[4] = {}, b[2] = {};
    for (int i = 0; i < k / 2; i += 2) {
      const Place low = PlaceOfA(k, lane, i), high = PlaceOfA(k, lane, i + 1);
      a[i / 2] = Element::Pack(from.a[low.row][low.column], from.a[high.row][high.column]);
    }
    for (int i = 0; i < k / 4; i += 2) {
      const Place low = PlaceOfB(k, lane, i), high = PlaceOfB(k, lane, i + 1);
      b[i / 2] = Element::Pack(from.b[low.row][low.column], from.b[high.row][high.column]);
    }
    float d[4];
    for (int i = 0; i < 4; ++i) {
      d[i] = from.c[PlaceOfC(lane, i).row][PlaceOfC(lane, i).column];
    }
    if constexpr (std::is_same_v<Element, Half>) {
      if (k == 8) Element::Mma8(d, a[0], a[1], b[0]);
    }
    if (k == 16) Element::Mma16(d, a, b[0], b[1]);
    for (int i = 0; i < 4; ++i) {
      results[static_cast<size_t>(Warp())].c[PlaceOfC(lane, i).row][PlaceOfC(lane, i).column] =
          d[i];
    }
  });
  return results;
}

void ExpectPlainProduct(const TiledProduct& from, const TiledProduct& found) {
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      float expected = from.c[row][column];  // of small integers: exact
      for (int i = 0; i < from.k; ++i) expected += from.a[row][i] * from.b[i][column];
      ASSERT_EQ(found.c[row][column], expected) << "row " << row << ", column " << column;
    }
  }
}

template <class Element>
void CheckProducts(int k, std::mt19937_64& random) {
  // Every element of A alone: it meets the right row of B and no other, and stands where it should.
  for (int row = 0; row < 16; ++row) {
    std::vector<TiledProduct> products;
    for (int i = 0; i < k; ++i) {
      TiledProduct product = {.k = k};
      product.a[row][i] = 1;
      for (int j = 0; j < k; ++j) {
        for (int column = 0; column < 8; ++column) {
          product.b[j][column] = static_cast<float>(j * 8 + column + 1);
        }
      }
      products.push_back(product);
    }
    const std::vector<TiledProduct> found = Multiply<Element>(products);
    for (size_t i = 0; i < found.size(); ++i) ExpectPlainProduct(products[i], found[i]);
  }
  for (int round = 0; round < 20; ++round) {
    std::vector<TiledProduct> products(3, TiledProduct{.k = k});
    std::uniform_int_distribution<int> number(-9, 9);
    for (TiledProduct& product : products) {
      for (auto& row : product.a) {
        for (float& value : row) value = static_cast<float>(number(random));
      }
      for (auto& row : product.b) {
        for (float& value : row) value = static_cast<float>(number(random));
      }
      for (auto& row : product.c) {
        for (float& value : row) value = static_cast<float>(number(random));
      }
    }
    emulated::Options options = emulated::GetOptions();
    options.seed = random();
    emulated::SetOptions(options);
    const std::vector<TiledProduct> found = Multiply<Element>(products);
    for (size_t i = 0; i < found.size(); ++i) ExpectPlainProduct(products[i], found[i]);
  }
}

TEST_F(EmulatedArithmeticTest, Mma16x8x8IsTheProductOfPtxFragments) {
  CheckProducts<Half>(8, random_);
}
TEST_F(EmulatedArithmeticTest, Mma16x8x16IsTheProductOfPtxFragments) {
  CheckProducts<Half>(16, random_);
  CheckProducts<BFloat16>(16, random_);
  emulated::SetOptions({.compute_capability = 75});
  CheckProducts<Half>(16, random_);
}

// Each value of the type times one, as an element of A and of B: subnormal ones, infinities and
// NaNs, too.
template <class Element>
void CheckFactors(int k) {
  constexpr int kWarps = 32, kOfWarp = 8;
  for (int first = 0; first < 0x10000; first += kWarps * kOfWarp) {
    const auto value = [&](size_t warp, int i) {
      return Element::ToF32(static_cast<uint16_t>(first + static_cast<int>(warp) * kOfWarp + i));
    };
    std::vector<TiledProduct> in_a(kWarps, TiledProduct{.k = k}), in_b = in_a;
    for (size_t warp = 0; warp < kWarps; ++warp) {
      in_a[warp].b[0][0] = in_b[warp].a[0][0] = 1;
      for (int i = 0; i < kOfWarp; ++i) in_a[warp].a[i][0] = in_b[warp].b[0][i] = value(warp, i);
    }
    const std::vector<TiledProduct> of_a = Multiply<Element>(in_a), of_b = Multiply<Element>(in_b);
    for (size_t warp = 0; warp < kWarps; ++warp) {
      for (int i = 0; i < kOfWarp; ++i) {
        const float expected = value(warp, i);
        for (const float found : {of_a[warp].c[i][0], of_b[warp].c[0][i]}) {
          ASSERT_TRUE(found == expected || (std::isnan(found) && std::isnan(expected)))
              << found << ", expected " << expected;
        }
      }
    }
  }
}

TEST_F(EmulatedArithmeticTest, ProductsTakeEveryValue) {
  CheckFactors<Half>(8);
  CheckFactors<Half>(16);
  CheckFactors<BFloat16>(16);
}

// Products are summed wide and rounded once: a sum in halves would lose the small ones.
TEST_F(EmulatedArithmeticTest, MmaAccumulatesInFloat32) {
  TiledProduct product = {.k = 16};
  for (int i = 0; i < 16; ++i) {
    product.a[0][i] = i == 0 ? 2048 : 1;
    product.b[i][0] = 1;
  }
  product.c[0][0] = 1;
  EXPECT_EQ(Multiply<Half>({product})[0].c[0][0], 2048 + 15 + 1);
}

}  // namespace
}  // namespace baton::backend::cuda
