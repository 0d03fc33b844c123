#include "common/kv_store/tier_spec.h"

#include <gtest/gtest.h>

#include "common/base/error.h"
#include "tests/common/kv_store/store_cases.h"

namespace baton::kv_store {
namespace {

TEST(TierSpecTest, KindsSizesAndAddresses) {
  EXPECT_TRUE(ParseTiers("")->empty());
  const auto tiers = ParseTiers("host:2GB,file:/var/a:b:20MiB,redis:[::1]:6380");
  ASSERT_TRUE(tiers.ok()) << tiers.status();
  ASSERT_EQ(tiers->size(), 3u);
  EXPECT_EQ((*tiers)[0].bytes, int64_t{2} << 30);
  EXPECT_EQ((*tiers)[1].directory, "/var/a:b");
  EXPECT_EQ((*tiers)[1].bytes, 20 << 20);
  EXPECT_EQ((*tiers)[2].host, "::1");
  EXPECT_EQ((*tiers)[2].port, 6380);
  EXPECT_EQ((*ParseTiers("redis:cache.example:6379"))[0].host, "cache.example");
  EXPECT_EQ((*ParseTiers("host:4096"))[0].bytes, 4096);
  EXPECT_EQ((*ParseTiers("host:1k"))[0].bytes, 1024);
}

TEST(TierSpecTest, NamesWhatIsWrong) {
  for (const char* text : {"disk:1GB",
                           "host",
                           "host:",
                           "host:0",
                           "host:-1",
                           "host:1XB",
                           "host:1BB",
                           "host:9999999TB",
                           "host:99999999999999999999",
                           "file:1GB",
                           "file::1GB",
                           "file:/x:",
                           "file:/x:1Q",
                           "redis:localhost",
                           "redis:localhost:0",
                           "redis:localhost:65536",
                           "redis::6379",
                           "host:1GB,",
                           ",",
                           "host:1GB,host:2GB",
                           "host:1GB,,file:/x:1GB"}) {
    const absl::Status status = ParseTiers(text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_EQ(ErrorField(status), "--kv-tier") << text;
  }
}

TEST(TierSpecTest, OpensInOrder) {
  const TemporaryDirectory directory;
  const auto specs =
      ParseTiers(absl::StrCat("file:", directory.path(), "/kv:1MB,host:1MB,redis:localhost:1"));
  ASSERT_TRUE(specs.ok()) << specs.status();
  const auto stores = OpenTiers(*specs, "", Clock::Real());
  ASSERT_TRUE(stores.ok()) << stores.status();
  ASSERT_EQ(stores->size(), 3u);
  EXPECT_EQ((*stores)[0]->kind(), "file");
  EXPECT_EQ((*stores)[1]->kind(), "host");
  EXPECT_EQ((*stores)[2]->kind(), "redis");
  EXPECT_TRUE(std::filesystem::is_directory(directory.path() + "/kv"));
  EXPECT_EQ(
      ErrorReason(OpenTiers(*ParseTiers("file:/proc/no/such:1MB"), "", Clock::Real()).status()),
      "KV_STORE");
}

}  // namespace
}  // namespace baton::kv_store
