#include "common/security/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "tests/router/fake_clock.h"
#include "tests/testing/model_dir.h"

namespace baton::security {
namespace {

using ::testing::HasSubstr;

const std::string kHash(64, 'a');

TEST(ApiKeys, ParsesLines) {
  const std::string other(64, 'B');
  const auto keys = ParseApiKeys(
      absl::StrCat("\xEF\xBB\xBF# keys of the cluster\n\nsha256:", kHash,
                   " tenant=team-a/x  # the first\n  sha256:", other,
                   "\ttenant=b admin max-concurrent-requests=3 requests-per-minute=60\r\n"));
  ASSERT_TRUE(keys.ok()) << keys.status();
  ASSERT_EQ(keys->size(), 2u);
  const ApiKey& first = keys->at(*FromHex(kHash));
  EXPECT_EQ(first.tenant, "team-a/x");
  EXPECT_FALSE(first.admin);
  EXPECT_EQ(first.limits.max_concurrent_requests, 0);
  const ApiKey& second = keys->at(*FromHex(other));
  EXPECT_TRUE(second.admin);
  EXPECT_EQ(second.limits.max_concurrent_requests, 3);
  EXPECT_EQ(second.limits.requests_per_minute, 60);
  EXPECT_EQ(ParseApiKeys("")->size(), 0u);
}

TEST(ApiKeys, RefusesBadLinesAndNamesThem) {
  const std::string good = absl::StrCat("sha256:", kHash, " tenant=a\n");
  const std::string bad[] = {
      "baton-AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA tenant=a\n",  // a key, not its hash
      "sha256:abc tenant=a\n",
      absl::StrCat("sha256:", std::string(64, 'c'), "\n"),
      absl::StrCat("sha256:", std::string(64, 'c'), " tenant=\n"),
      absl::StrCat("sha256:", std::string(64, 'c'), " tenant=a tenant=b\n"),
      absl::StrCat("sha256:", std::string(64, 'c'), " tenant=a\"b\n"),
      absl::StrCat("sha256:", std::string(64, 'c'), " tenant=", std::string(129, 't'), "\n"),
      absl::StrCat("sha256:", std::string(64, 'c'), " tenant=a administrator\n"),
      absl::StrCat("sha256:", std::string(64, 'c'), " tenant=a requests-per-minute=0\n"),
      absl::StrCat("sha256:", std::string(64, 'c'), " tenant=a requests-per-minute=1e3\n"),
      good,  // twice
  };
  for (const std::string& line : bad) {
    const absl::Status status = ParseApiKeys(good + line).status();
    EXPECT_EQ(ErrorReason(status), "BAD_API_KEYS") << line;
    EXPECT_THAT(status.message(), HasSubstr("line 2")) << line;
    EXPECT_THAT(status.message(), ::testing::Not(HasSubstr("baton-"))) << line;
  }
  EXPECT_THAT(ParseApiKeys(good.substr(0, good.size() - 1)).status().message(),
              HasSubstr("newline"));
}

TEST(ApiKeys, BoundsTheNumberOfKeys) {
  std::string text;
  for (size_t i = 0; i <= kMaxKeys; ++i) {
    if (i == kMaxKeys) {
      EXPECT_TRUE(ParseApiKeys(text).ok());
    }
    absl::StrAppend(&text, "sha256:", absl::Hex(i, absl::kZeroPad16), std::string(48, '0'),
                    " tenant=a\n");
  }
  EXPECT_THAT(ParseApiKeys(text).status().message(), HasSubstr("more than 10000"));
}

class ApiKeyFileTest : public ::testing::Test {
 protected:
  void Write(const std::string& text) { dir_.Write("keys", text); }
  std::unique_ptr<ApiKeys> Load() {
    auto keys = ApiKeys::Load(dir_.PathOf("keys"), clock_);
    EXPECT_TRUE(keys.ok()) << keys.status();
    return keys.ok() ? *std::move(keys) : nullptr;
  }
  static std::string Bearer(const NewKey& key) { return "Bearer " + key.key; }

  baton::testing::ModelDir dir_;
  baton::testing::FakeClock clock_;
  const NewKey a_ = *MakeApiKey("a", /*admin=*/false);
  const NewKey b_ = *MakeApiKey("b", /*admin=*/true);
};

TEST_F(ApiKeyFileTest, FindsAKeyByItsHash) {
  Write(a_.line + "\n" + b_.line + "\n");
  const auto keys = Load();
  EXPECT_EQ(keys->Find(Bearer(a_))->tenant, "a");
  EXPECT_EQ(keys->Find("bearer  " + b_.key)->tenant, "b");
  EXPECT_TRUE(keys->Find(Bearer(b_))->admin);
  for (const std::string& wrong :
       {std::string(), std::string("Bearer"), std::string("Bearer "), "Basic " + a_.key, a_.key,
        Bearer(a_) + "x", "Bearer " + a_.line.substr(7, 64),
        "Bearer " + std::string(100'000, 'x')}) {
    const absl::Status status = keys->Find(wrong).status();
    EXPECT_TRUE(absl::IsUnauthenticated(status)) << wrong.substr(0, 100);
    EXPECT_EQ(ErrorReason(status), "INVALID_API_KEY");
    EXPECT_THAT(status.message(), ::testing::Not(HasSubstr(a_.key)));
  }
}

TEST_F(ApiKeyFileTest, ReloadsAtTheNextPeriod) {
  Write(a_.line + "\n");
  const auto keys = Load();
  EXPECT_FALSE(keys->Find(Bearer(b_)).ok());
  Write(b_.line + "\n");
  EXPECT_FALSE(keys->Find(Bearer(b_)).ok());  // not looked yet
  clock_.Advance(ReloadedFile::kPeriod);
  EXPECT_TRUE(keys->Find(Bearer(b_)).ok());
  EXPECT_FALSE(keys->Find(Bearer(a_)).ok());  // revoked
}

TEST_F(ApiKeyFileTest, KeepsTheLastGoodFile) {
  Write(a_.line + "\n");
  const auto keys = Load();
  Write(b_.line + "\nnonsense\n");
  clock_.Advance(ReloadedFile::kPeriod);
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(keys->Find(Bearer(a_)).ok());
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("line 2"));
  EXPECT_FALSE(keys->Find(Bearer(b_)).ok());
  std::filesystem::remove(dir_.PathOf("keys"));
  clock_.Advance(ReloadedFile::kPeriod);
  EXPECT_TRUE(keys->Find(Bearer(a_)).ok());
  Write("");  // good, and without a key
  clock_.Advance(ReloadedFile::kPeriod);
  EXPECT_FALSE(keys->Find(Bearer(a_)).ok());
}

TEST_F(ApiKeyFileTest, NeedsAGoodFileAtStart) {
  EXPECT_EQ(ErrorReason(ApiKeys::Load(dir_.PathOf("none"), clock_).status()), "BAD_API_KEYS");
  Write("nonsense\n");
  EXPECT_THAT(ApiKeys::Load(dir_.PathOf("keys"), clock_).status().message(), HasSubstr("line 1"));
  Write(std::string(kMaxKeyFileBytes + 1, '\n'));
  EXPECT_THAT(ApiKeys::Load(dir_.PathOf("keys"), clock_).status().message(), HasSubstr("longer"));
}

TEST(ApiKeys, NewKeyNeedsATenant) {
  EXPECT_FALSE(MakeApiKey("", false).ok());
  EXPECT_FALSE(MakeApiKey("a b", false).ok());
}

}  // namespace
}  // namespace baton::security
