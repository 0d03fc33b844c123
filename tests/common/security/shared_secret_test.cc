#include "common/security/shared_secret.h"

#include <gtest/gtest.h>

#include "common/base/error.h"
#include "tests/router/fake_clock.h"
#include "tests/testing/model_dir.h"

namespace baton::security {
namespace {

const std::string kOld(32, 'o'), kNew(43, 'n');

TEST(SharedSecret, ParsesLines) {
  EXPECT_EQ(*ParseSecrets(kOld + "\n" + kNew + "\n"), (std::vector<std::string>{kOld, kNew}));
  EXPECT_EQ(*ParseSecrets("\xEF\xBB\xBF" + kOld + "\n"), (std::vector<std::string>{kOld}));
  for (const std::string& bad :
       {std::string(), std::string("\n"), kOld, std::string(31, 'x') + "\n",
        std::string(513, 'x') + "\n", kOld + " x\n", kOld + "\n\n",
        kOld + "\n" + kOld + "\n" + kOld + "\n" + kOld + "\n" + kOld + "\n"}) {
    EXPECT_EQ(ErrorReason(ParseSecrets(bad).status()), "BAD_WORKER_SECRET") << bad;
  }
}

TEST(SharedSecret, ChangesWithoutABreak) {
  baton::testing::ModelDir dir;
  baton::testing::FakeClock clock;
  const auto write = [&](const std::string& text) {
    dir.Write("secret", text);
    clock.Advance(ReloadedFile::kPeriod);
  };
  write(kOld + "\n");
  auto secret = *SharedSecret::Load(dir.PathOf("secret"), clock);
  EXPECT_EQ(secret->current(), kOld);
  EXPECT_TRUE(secret->Check(kOld).ok());
  for (const std::string& wrong : {std::string(), kNew, kOld + "x", kOld.substr(1)}) {
    const absl::Status refused = secret->Check(wrong);
    EXPECT_TRUE(absl::IsUnauthenticated(refused));
    EXPECT_EQ(ErrorReason(refused), "WRONG_WORKER_SECRET");
  }
  write(kOld + "\n" + kNew + "\n");
  EXPECT_TRUE(secret->Check(kNew).ok());
  EXPECT_EQ(secret->current(), kOld);
  write(kNew + "\n" + kOld + "\n");
  EXPECT_EQ(secret->current(), kNew);
  EXPECT_TRUE(secret->Check(kOld).ok());
  write(kNew + "\n");
  EXPECT_FALSE(secret->Check(kOld).ok());
  write("short\n");  // logged; the last good one stays
  EXPECT_TRUE(secret->Check(kNew).ok());
}

}  // namespace
}  // namespace baton::security
