#include "common/base/splitmix64.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

// Of the reference implementation (https://prng.di.unimi.it/splitmix64.c).
TEST(SplitMix64Test, DrawsTheReferenceSequence) {
  uint64_t state = 1234567;
  for (const uint64_t expected : {6457827717110365317u, 3203168211198807973u, 9817491932198370423u,
                                  4593380528125082431u, 16408922859458223821u}) {
    EXPECT_EQ(NextSplitMix64(&state), expected);
  }
  state = 0;
  EXPECT_EQ(NextSplitMix64(&state), 0xE220A8397B1DCDAFu);
  EXPECT_EQ(SplitMix64(0), 0xE220A8397B1DCDAFu);
}

}  // namespace
}  // namespace baton
