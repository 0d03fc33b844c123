#include "common/base/error.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(ErrorTest, CarriesReasonFieldAndRetry) {
  absl::Status status = InvalidField("TEMPERATURE", "sampling.temperature", "3 given");
  status = WithRetryAfter(std::move(status), absl::Milliseconds(1500));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "sampling.temperature: 3 given");
  EXPECT_EQ(ErrorReason(status), "TEMPERATURE");
  EXPECT_EQ(ErrorField(status), "sampling.temperature");
  EXPECT_EQ(ErrorRetryAfter(status), absl::Milliseconds(1500));
}

TEST(ErrorTest, AnnotateKeepsPayloads) {
  const absl::Status status =
      Annotate(MakeError(absl::StatusCode::kUnavailable, "NO_WORKER", "none"), "routing");
  EXPECT_EQ(status.message(), "routing: none");
  EXPECT_EQ(ErrorReason(status), "NO_WORKER");
  EXPECT_TRUE(Annotate(absl::OkStatus(), "x").ok());
}

TEST(ErrorTest, AbsentDetailsAreEmpty) {
  const absl::Status status = absl::InternalError("x");
  EXPECT_EQ(ErrorReason(status), "");
  EXPECT_EQ(ErrorField(status), "");
  EXPECT_EQ(ErrorRetryAfter(status), std::nullopt);
}

}  // namespace
}  // namespace baton
