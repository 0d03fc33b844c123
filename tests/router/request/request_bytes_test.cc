#include "router/request/request_bytes.h"

#include <gtest/gtest.h>

#include <optional>
#include <utility>

namespace baton::router {
namespace {

TEST(RequestBytesTest, TheSumIsBoundedAndEndsWithTheShares) {
  int64_t seen = 0;
  RequestBytes all(100, [&](int64_t bytes) { seen = bytes; });
  RequestBytes::Share first = all.Open(), second = all.Open();
  EXPECT_TRUE(first.TryGrow(60));
  EXPECT_FALSE(second.MayGrow(41));
  EXPECT_FALSE(second.TryGrow(41));
  EXPECT_EQ(second.bytes(), 0);
  EXPECT_TRUE(second.TryGrow(40));
  EXPECT_FALSE(second.TryGrow(1));
  EXPECT_EQ(seen, 100);
  first.Shrink(10);
  EXPECT_TRUE(second.TryGrow(10));
  {
    const RequestBytes::Share moved = std::move(first);
    EXPECT_EQ(moved.bytes(), 50);
    EXPECT_EQ(seen, 100);
  }
  EXPECT_EQ(seen, 50);
  second = RequestBytes::Share();
  EXPECT_EQ(seen, 0);
}

TEST(RequestBytesTest, ARequestThatIsAloneAlwaysFits) {
  RequestBytes all(100, [](int64_t) {});
  std::optional<RequestBytes::Share> large = all.Open();
  EXPECT_TRUE(large->TryGrow(90));
  EXPECT_TRUE(large->TryGrow(90));
  RequestBytes::Share small = all.Open();
  EXPECT_FALSE(small.TryGrow(1));
  large.reset();
  EXPECT_TRUE(small.TryGrow(1));
  RequestBytes::Share none;
  EXPECT_TRUE(none.TryGrow(int64_t{1} << 40)) << "has no bound";
}

}  // namespace
}  // namespace baton::router
