#include "router/request/tenant_limits.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "common/base/error.h"
#include "tests/router/fake_clock.h"

namespace baton::router {
namespace {

class TenantLimitsTest : public ::testing::Test {
 protected:
  baton::testing::FakeClock clock_;
  TenantLimits limits_{clock_};
};

TEST_F(TenantLimitsTest, BoundsRequestsAtATimePerTenant) {
  const security::KeyLimits two = {2, 0};
  std::optional<TenantLimits::Place> first = *limits_.Enter("a", two);
  const auto second = limits_.Enter("a", two);
  ASSERT_TRUE(second.ok());
  const absl::Status refused = limits_.Enter("a", two).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused));
  EXPECT_EQ(ErrorReason(refused), "TENANT_LIMIT");
  EXPECT_TRUE(ErrorRetryAfter(refused));
  EXPECT_TRUE(limits_.Enter("b", two).ok());
  EXPECT_TRUE(limits_.Enter("a", {}).ok());  // another key of the tenant, without limits
  first.reset();
  EXPECT_TRUE(limits_.Enter("a", two).ok());
}

TEST_F(TenantLimitsTest, BoundsRequestsPerMinute) {
  const security::KeyLimits sixty = {0, 60};
  for (int i = 0; i < 60; ++i) ASSERT_TRUE(limits_.Enter("a", sixty).ok()) << i;
  clock_.Advance(absl::Milliseconds(400));
  const absl::Status refused = limits_.Enter("a", sixty).status();
  EXPECT_EQ(ErrorReason(refused), "TENANT_RATE_LIMIT");
  ASSERT_TRUE(ErrorRetryAfter(refused));
  EXPECT_LE(*ErrorRetryAfter(refused), absl::Milliseconds(601));
  EXPECT_GE(*ErrorRetryAfter(refused), absl::Milliseconds(599));
  EXPECT_TRUE(limits_.Enter("b", sixty).ok());
  clock_.Advance(absl::Milliseconds(601));
  EXPECT_TRUE(limits_.Enter("a", sixty).ok());
  EXPECT_FALSE(limits_.Enter("a", sixty).ok());
  // However long it is silent, a minute's worth at once and no more.
  clock_.Advance(absl::Hours(1));
  for (int i = 0; i < 60; ++i) ASSERT_TRUE(limits_.Enter("a", sixty).ok()) << i;
  EXPECT_FALSE(limits_.Enter("a", sixty).ok());
}

}  // namespace
}  // namespace baton::router
