#include "common/backend/cuda/runtime/driver_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/error.h"

namespace baton::backend::cuda {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kError[] = "CUDA driver version is insufficient for CUDA runtime version";

TEST(DriverCheckTest, AMachineWithoutAGpuHasNone) {
  EXPECT_EQ(CountAfterError({.driver = 0, .runtime = 13000, .error = kError}).value(), 0);
  EXPECT_EQ(
      CountAfterError({.driver = 13000, .runtime = 13000, .no_device = true, .error = "no device"})
          .value(),
      0);
}

TEST(DriverCheckTest, AnOldDriverIsNamedWithWhatIsNeeded) {
  const absl::Status status =
      CountAfterError({.driver = 12080, .runtime = 13000, .error = kError}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrorReason(status), "DEVICE_UNUSABLE");
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("CUDA up to 12.8"), HasSubstr("expected 13.0 or newer"),
                    HasSubstr("driver 580 or newer"), HasSubstr("cuda-compat-13-0"),
                    HasSubstr("--device cpu")));
  EXPECT_THAT(
      std::string(
          CountAfterError({.driver = 11040, .runtime = 12090, .error = kError}).status().message()),
      AllOf(HasSubstr("CUDA up to 11.4"), HasSubstr("expected 12.0 or newer"),
            HasSubstr("driver 525 or newer"), HasSubstr("cuda-compat-12-9")));
}

TEST(DriverCheckTest, AnythingElseIsSaidAsCudaSaysIt) {
  const absl::Status status =
      CountAfterError({.driver = 13000, .runtime = 13010, .error = "system not yet initialized"})
          .status();
  EXPECT_EQ(ErrorReason(status), "DEVICE_UNUSABLE");
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("system not yet initialized"), HasSubstr("driver for CUDA 13.0"),
                    HasSubstr("CUDA 13.1")));
}

}  // namespace
}  // namespace baton::backend::cuda
