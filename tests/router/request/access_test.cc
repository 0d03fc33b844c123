#include "router/request/access.h"

#include <gtest/gtest.h>

#include <set>

#include "common/base/error.h"
#include "tests/router/fake_clock.h"
#include "tests/testing/model_dir.h"

namespace baton::router {
namespace {

v1::GenerateRequest RequestOf(const std::string& tenant, const std::string& salt) {
  v1::GenerateRequest request;
  request.set_tenant(tenant);
  request.set_cache_salt(salt);
  return request;
}

std::string SaltOf(const std::string& tenant, const std::string& salt) {
  v1::GenerateRequest request = RequestOf("", salt);
  EXPECT_TRUE(BindToTenant({tenant, false, {}}, &request).ok());
  EXPECT_EQ(request.tenant(), tenant);
  return request.cache_salt();
}

TEST(Access, WithoutKeysEveryCallerMayDoEverything) {
  const auto caller = Access().Authenticate("", "");
  ASSERT_TRUE(caller.ok());
  EXPECT_TRUE(CheckAdmin(*caller).ok());
  v1::GenerateRequest request = RequestOf("any", "salt");
  EXPECT_TRUE(BindToTenant(*caller, &request).ok());
  EXPECT_EQ(request.tenant(), "any");
  EXPECT_EQ(request.cache_salt(), "salt");
}

TEST(Access, KeysSayTenantAndRights) {
  baton::testing::ModelDir dir;
  baton::testing::FakeClock clock;
  const auto user = *security::MakeApiKey("a", /*admin=*/false);
  const auto admin = *security::MakeApiKey("ops", /*admin=*/true);
  dir.Write("keys", user.line + " max-concurrent-requests=7\n" + admin.line + "\n");
  const std::string secret(32, 's');
  dir.Write("secret", secret + "\n");
  const auto worker_secret = *security::SharedSecret::Load(dir.PathOf("secret"), clock);
  const Access access(*security::ApiKeys::Load(dir.PathOf("keys"), clock), worker_secret.get());
  const auto of_user = access.Authenticate("Bearer " + user.key, "");
  ASSERT_TRUE(of_user.ok());
  EXPECT_EQ(of_user->tenant, "a");
  EXPECT_EQ(of_user->limits.max_concurrent_requests, 7);
  EXPECT_TRUE(absl::IsPermissionDenied(CheckAdmin(*of_user)));
  EXPECT_TRUE(CheckAdmin(*access.Authenticate("Bearer " + admin.key, "")).ok());
  EXPECT_TRUE(CheckAdmin(*access.Authenticate("", secret)).ok());
  EXPECT_EQ(ErrorReason(access.Authenticate("", "").status()), "INVALID_API_KEY");
  EXPECT_EQ(ErrorReason(access.Authenticate("", secret + "x").status()), "INVALID_API_KEY");
}

TEST(Access, TheTenantIsThatOfTheKey) {
  const Caller caller = {"a", false, {}};
  v1::GenerateRequest same = RequestOf("a", "");
  EXPECT_TRUE(BindToTenant(caller, &same).ok());
  v1::GenerateRequest other = RequestOf("b", "");
  const absl::Status refused = BindToTenant(caller, &other);
  EXPECT_TRUE(absl::IsPermissionDenied(refused));
  EXPECT_EQ(ErrorReason(refused), "TENANT_MISMATCH");
  EXPECT_EQ(ErrorField(refused), "tenant");
}

TEST(Access, ASaltDividesOneTenantsNamespaceOnly) {
  EXPECT_EQ(SaltOf("a", "s"), SaltOf("a", "s"));
  // A client that sends what another tenant's salt became gets that hashed again.
  const std::set<std::string> salts = {SaltOf("a", ""),
                                       SaltOf("a", "s"),
                                       SaltOf("b", ""),
                                       SaltOf("b", "s"),
                                       SaltOf("ab", "c"),
                                       SaltOf("a", "bc"),
                                       SaltOf("b", SaltOf("a", "")),
                                       ""};
  EXPECT_EQ(salts.size(), 8u);
  EXPECT_EQ(SaltOf("a", "").size(), 64u);
}

}  // namespace
}  // namespace baton::router
