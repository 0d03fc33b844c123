#include "common/worker/router_count.h"

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/router/fake_clock.h"
#include "tests/testing/fake_resolver.h"

namespace baton::worker {
namespace {

using Addresses = std::vector<std::string>;

class RouterCountTest : public ::testing::Test {
 protected:
  // After the period in which the last answer stands.
  std::optional<int> Later(RouterCount& count) {
    clock_.Advance(RouterCount::kRefresh);
    return count.Get();
  }

  testing::FakeClock clock_;
  testing::FakeResolver resolver_;
};

TEST_F(RouterCountTest, WithoutANameItIsTheNumberAndNothingIsLookedUp) {
  RouterCount count(3, "", resolver_, clock_);
  EXPECT_EQ(count.Get(), 3);
  EXPECT_EQ(Later(count), 3);
  EXPECT_TRUE(resolver_.lookups.empty());
}

TEST_F(RouterCountTest, FollowsTheAddressesOfTheName) {
  RouterCount count(0, "routers", resolver_, clock_);
  EXPECT_EQ(count.Get(), std::nullopt) << "no router is there";
  resolver_.hosts["routers"] = Addresses{"10.0.0.1"};
  EXPECT_EQ(count.Get(), std::nullopt) << "the last answer stands for a period";
  EXPECT_EQ(resolver_.lookups.size(), 1u);
  EXPECT_EQ(Later(count), 1);
  resolver_.hosts["routers"] = Addresses{"10.0.0.1", "10.0.0.2", "10.0.0.3"};
  EXPECT_EQ(Later(count), 3);
  resolver_.hosts["routers"] = Addresses{"10.0.0.3"};
  EXPECT_EQ(Later(count), 1);
  resolver_.hosts["routers"] = Addresses{};
  EXPECT_EQ(Later(count), std::nullopt);
}

TEST_F(RouterCountTest, ARouterWithTwoKindsOfAddressesIsOne) {
  RouterCount count(0, "routers", resolver_, clock_);
  resolver_.hosts["routers"] = Addresses{"10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"};
  EXPECT_EQ(count.Get(), 2);
  resolver_.hosts["routers"] = Addresses{"10.0.0.1", "fd00::1", "fd00::2", "fd00::3"};
  EXPECT_EQ(Later(count), 3) << "one has no address of IPv4";
}

TEST_F(RouterCountTest, AtLeastAsManyAsAreAskedFor) {
  RouterCount count(2, "routers", resolver_, clock_);
  EXPECT_EQ(count.Get(), std::nullopt);
  resolver_.hosts["routers"] = Addresses{"10.0.0.1"};
  EXPECT_EQ(Later(count), 2);
  resolver_.hosts["routers"] = Addresses{"10.0.0.1", "10.0.0.2", "10.0.0.3"};
  EXPECT_EQ(Later(count), 3);
}

TEST_F(RouterCountTest, WithoutANameServerTheLastAnswerStays) {
  RouterCount count(0, "routers", resolver_, clock_);
  resolver_.hosts["routers"] = absl::UnavailableError("no name server answers");
  EXPECT_EQ(count.Get(), std::nullopt);
  resolver_.hosts["routers"] = Addresses{"10.0.0.1", "10.0.0.2"};
  EXPECT_EQ(Later(count), 2);
  resolver_.hosts["routers"] = absl::UnavailableError("no name server answers");
  EXPECT_EQ(Later(count), 2);
  resolver_.hosts.erase("routers");
  EXPECT_EQ(Later(count), std::nullopt) << "a name server says that there is none";
}

TEST_F(RouterCountTest, ALookupIsNotWaitedForAndIsTheOnlyOne) {
  RouterCount count(0, "routers", resolver_, clock_);
  resolver_.hosts["routers"] = Addresses{"10.0.0.1"};
  EXPECT_EQ(count.Get(), 1);
  resolver_.keep = true;
  resolver_.hosts["routers"] = Addresses{"10.0.0.1", "10.0.0.2"};
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Later(count), 1);
  ASSERT_EQ(resolver_.lookups.size(), 2u);
  resolver_.lookups[1]->Answer(resolver_.answers[1]);
  EXPECT_EQ(count.Get(), 2);
}

}  // namespace
}  // namespace baton::worker
