#include "tests/testing/seed.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <set>
#include <string>

#include "tests/testing/child_process.h"

namespace baton::testing {
namespace {

TEST(TestSeedTest, IsOneForAllTestsOfTheProcess) {
  EXPECT_EQ(TestSeed(), TestSeed());
  EXPECT_EQ(std::to_string(TestSeed()), std::getenv(kSeedVariable));
}

TEST(TestSeedTest, StreamsAreApart) {
  constexpr uint32_t kStreams = 1000;  // two of so many are equal in one of 8,000 runs
  std::set<uint32_t> seeds;
  for (uint32_t stream = 0; stream < kStreams; ++stream) seeds.insert(TestSeed(stream));
  EXPECT_GE(seeds.size(), kStreams - 2);
  EXPECT_EQ(TestSeed(7), TestSeed(7));
}

TEST(TestSeedTest, TheChild) {
  ParentEnd parent;
  if (!parent) GTEST_SKIP() << "a part of another test";
  const uint32_t seeds[] = {TestSeed(), TestSeed(3)};
  parent.Send(seeds, sizeof(seeds));
}

// The child is alone in its process, which has no seed but its parent's.
TEST(TestSeedTest, AChildHasTheSeedOfItsParent) {
  ChildProcess child("TestSeedTest.TheChild", "");
  uint32_t seeds[2] = {};
  ASSERT_TRUE(child.Receive(seeds, sizeof(seeds)));
  EXPECT_EQ(seeds[0], TestSeed());
  EXPECT_EQ(seeds[1], TestSeed(3));
  EXPECT_EQ(child.Wait(), 0);
}

TEST(TestSeedDeathTest, ASeedIsANumber) {
  setenv(kSeedVariable, "many", 1);
  EXPECT_DEATH(seed_internal::FirstSeed(), "BATON_TEST_SEED is \"many\", expected a number");
  setenv(kSeedVariable, "4294967296", 1);
  EXPECT_DEATH(seed_internal::FirstSeed(), "expected a number below 2\\^32");
  setenv(kSeedVariable, std::to_string(TestSeed()).c_str(), 1);
}

}  // namespace
}  // namespace baton::testing
