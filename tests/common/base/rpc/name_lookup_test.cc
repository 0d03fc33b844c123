#include "common/base/rpc/name_lookup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/error.h"
#include "tests/testing/ipv6.h"

namespace baton {
namespace {

using ::testing::ElementsAre;

constexpr absl::Duration kLookupPatience = absl::Seconds(20);

HostAddresses Resolved(Resolver& resolver, const std::string& host) {
  const auto lookup = resolver.Resolve(host);
  return lookup->Await(kLookupPatience).value_or(absl::DeadlineExceededError("no answer"));
}

TEST(SystemResolverTest, NumbersAreTheirOwnAndNamesThatCannotBeDoNotResolve) {
  SystemResolver resolver;
  EXPECT_THAT(*Resolved(resolver, "127.0.0.1"), ElementsAre("127.0.0.1"));
  if (testing::HasIpv6()) {
    EXPECT_THAT(*Resolved(resolver, "::1"), ElementsAre("::1"));
  }
  // No name server is asked for it: RFC 6761 reserves it, and it has an empty label.
  const auto none = Resolved(resolver, "no..such.name.invalid");
  EXPECT_EQ(ErrorReason(none.status()), "NAME_NOT_RESOLVED");
}

}  // namespace
}  // namespace baton
