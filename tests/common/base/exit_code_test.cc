#include "common/base/exit_code.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(ExitCodeTest, SaysWhetherToRepeatACall) {
  EXPECT_EQ(ExitCode(absl::OkStatus()), 0);
  EXPECT_EQ(ExitCode(absl::NotFoundError("")), 1);
  EXPECT_EQ(ExitCode(absl::InternalError("")), 1);
  EXPECT_EQ(ExitCode(absl::InvalidArgumentError("")), 2);
  EXPECT_EQ(ExitCode(absl::UnavailableError("")), 3);
  EXPECT_EQ(ExitCode(absl::ResourceExhaustedError("")), 3);
  EXPECT_EQ(ExitCode(absl::DeadlineExceededError("")), 4);
  EXPECT_EQ(ExitCode(absl::CancelledError("")), 130);
}

}  // namespace
}  // namespace baton
