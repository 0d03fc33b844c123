#include "common/security/reloaded_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include "common/base/error.h"
#include "tests/router/fake_clock.h"
#include "tests/testing/model_dir.h"

namespace baton::security {
namespace {

class ReloadedFileTest : public ::testing::Test {
 protected:
  std::optional<std::string> Look() {
    clock_.Advance(ReloadedFile::kPeriod);
    auto content = file_.Look();
    EXPECT_TRUE(content.ok()) << content.status();
    return content.ok() ? *content : std::nullopt;
  }

  baton::testing::ModelDir dir_;
  baton::testing::FakeClock clock_;
  ReloadedFile file_{dir_.PathOf("f"), 16, "BAD_FILE", clock_};
};

TEST_F(ReloadedFileTest, ReturnsContentOnceForEachChange) {
  dir_.Write("f", "one");
  EXPECT_EQ(Look(), "one");
  EXPECT_EQ(Look(), std::nullopt);
  dir_.Write("f", "longer");
  EXPECT_EQ(*file_.Look(), std::nullopt);  // within the period
  EXPECT_EQ(Look(), "longer");
  // A rename, the safe way to replace a file: another inode, perhaps with an old time.
  dir_.Write("g", "longer");
  std::filesystem::rename(dir_.PathOf("g"), dir_.PathOf("f"));
  EXPECT_EQ(Look(), "longer");
  EXPECT_EQ(Look(), std::nullopt);
}

// As Kubernetes replaces a mounted secret.
TEST_F(ReloadedFileTest, FollowsALinkToAnotherFile) {
  dir_.Write("v1", "one");
  dir_.Write("v2", "two");
  std::filesystem::create_symlink("v1", dir_.PathOf("f"));
  EXPECT_EQ(Look(), "one");
  std::filesystem::create_symlink("v2", dir_.PathOf("new"));
  std::filesystem::rename(dir_.PathOf("new"), dir_.PathOf("f"));
  EXPECT_EQ(Look(), "two");
}

TEST_F(ReloadedFileTest, ReportsAnErrorOnce) {
  EXPECT_EQ(ErrorReason(file_.Look().status()), "BAD_FILE");
  EXPECT_EQ(Look(), std::nullopt);
  dir_.Write("f", std::string(17, 'x'));
  clock_.Advance(ReloadedFile::kPeriod);
  EXPECT_EQ(ErrorReason(file_.Look().status()), "BAD_FILE");
  EXPECT_EQ(Look(), std::nullopt);
  dir_.Write("f", "good");
  EXPECT_EQ(Look(), "good");
  std::filesystem::remove(dir_.PathOf("f"));
  clock_.Advance(ReloadedFile::kPeriod);
  EXPECT_FALSE(file_.Look().ok());
  dir_.Write("f", "good");
  EXPECT_EQ(Look(), "good");
}

TEST_F(ReloadedFileTest, DoesNotWaitForTheWriterOfAPipe) {
  ASSERT_EQ(mkfifo(dir_.PathOf("f").c_str(), 0600), 0);
  EXPECT_EQ(ErrorReason(file_.Look().status()), "BAD_FILE");
}

}  // namespace
}  // namespace baton::security
