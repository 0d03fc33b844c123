#include "common/base/exit_code.h"

#include <gtest/gtest.h>

#include "common/base/error.h"

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

TEST(ExitCodeTest, SaysWhetherToStartAServerAgain) {
  EXPECT_EQ(ExitCodeOfStart(absl::InvalidArgumentError("")), 2);
  for (const char* reason : {"NO_CUDA", "NCCL", "DEVICE_LINK", "SHARED_MEMORY"}) {
    EXPECT_EQ(ExitCodeOfStart(MakeError(absl::StatusCode::kFailedPrecondition, reason, "")), 2);
    EXPECT_EQ(ExitCodeOfStart(MakeError(absl::StatusCode::kUnavailable, reason, "")), 1);
  }
  EXPECT_EQ(
      ExitCodeOfStart(MakeError(absl::StatusCode::kFailedPrecondition, "DEVICE_UNUSABLE", "")), 1);
  EXPECT_EQ(ExitCodeOfStart(absl::NotFoundError("")), 1);
  EXPECT_EQ(ExitCodeOfStart(absl::UnavailableError("")), 1);
  EXPECT_EQ(ExitCodeOfStart(absl::ResourceExhaustedError("")), 1);
}

}  // namespace
}  // namespace baton
