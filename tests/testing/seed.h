// The seed of randomised tests, and the only place in tests that draws one from the system.
//
//   std::mt19937 random(testing::TestSeed());
//
// It is the environment variable BATON_TEST_SEED, or else a new one for each process; a test that
// asks for it prints it. So this draws what the test drew, whichever tests ran before it:
//
//   BATON_TEST_SEED=SEED build/cpu-release/tests/PROGRAM --gtest_filter=TEST
//
// scripts/test --repeat N runs every test that asks, N times, with a new seed each time.
#ifndef BATON_TESTS_TESTING_SEED_H_
#define BATON_TESTS_TESTING_SEED_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <random>
#include <string>

#include "absl/strings/numbers.h"
#include "common/base/check.h"
#include "common/base/splitmix64.h"

namespace baton::testing {

inline constexpr char kSeedVariable[] = "BATON_TEST_SEED";

namespace seed_internal {

inline uint32_t FirstSeed() {
  uint32_t seed = 0;
  if (const char* text = std::getenv(kSeedVariable); text != nullptr) {
    BATON_CHECK(absl::SimpleAtoi(text, &seed))
        << kSeedVariable << " is \"" << text << "\", expected a number below 2^32";
    return seed;
  }
  seed = std::random_device()();
  // Processes that a test starts with the same program inherit the seed: they play a part of the
  // same test.
  setenv(kSeedVariable, std::to_string(seed).c_str(), /*overwrite=*/1);
  return seed;
}

// The seed is drawn before main(), and so before any thread reads the environment.
inline const uint32_t kSeed = FirstSeed();

}  // namespace seed_internal

// The same for all tests of a process. A test with several generators gives each one a stream of
// its own: the seed of stream 0 is the process's, others are derived from it and independent.
inline uint32_t TestSeed(uint32_t stream = 0) {
  static std::atomic<const ::testing::TestInfo*> printed = nullptr;
  const ::testing::TestInfo* test = ::testing::UnitTest::GetInstance()->current_test_info();
  const uint32_t seed = seed_internal::kSeed;
  if (printed.exchange(test) != test) {
    std::printf("[   SEED   ] %s=%u\n", kSeedVariable, seed);
    std::fflush(stdout);  // a broken invariant ends the process without a flush
  }
  if (stream == 0) return seed;
  return static_cast<uint32_t>(SplitMix64(uint64_t{seed} << 32 | stream));
}

}  // namespace baton::testing

#endif  // BATON_TESTS_TESTING_SEED_H_
