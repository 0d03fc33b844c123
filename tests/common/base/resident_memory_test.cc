#include "common/base/resident_memory.h"

#include <gtest/gtest.h>
#include <unistd.h>

namespace baton {
namespace {

TEST(ResidentBytesTest, SeesOurOwnAndThatOfNoOther) {
  EXPECT_GT(ResidentBytesOf(getpid()), 1 << 20);
  EXPECT_EQ(ResidentBytesOf(-1), 0);
}

}  // namespace
}  // namespace baton
