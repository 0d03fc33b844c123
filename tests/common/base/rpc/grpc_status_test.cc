#include "common/base/rpc/grpc_status.h"

#include <gtest/gtest.h>

#include <string>

#include "common/base/error.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"

namespace baton {
namespace {

TEST(GrpcStatusTest, RoundTripKeepsEverything) {
  absl::Status status = InvalidField("MAX_TOKENS", "stop.max_tokens", "0 given");
  status = WithRetryAfter(std::move(status), absl::Milliseconds(2250));
  const absl::Status back = FromGrpcStatus(ToGrpcStatus(status));
  EXPECT_EQ(back.code(), status.code());
  EXPECT_EQ(back.message(), status.message());
  EXPECT_EQ(ErrorReason(back), "MAX_TOKENS");
  EXPECT_EQ(ErrorField(back), "stop.max_tokens");
  EXPECT_EQ(ErrorRetryAfter(back), absl::Milliseconds(2250));
}

TEST(GrpcStatusTest, DetailsAreTheStandardOnes) {
  const grpc::Status status =
      ToGrpcStatus(MakeError(absl::StatusCode::kUnavailable, "NO_WORKER", "none is ready"));
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  ASSERT_EQ(details.details_size(), 1);
  EXPECT_EQ(details.details(0).type_url(), "type.googleapis.com/google.rpc.ErrorInfo");
  google::rpc::ErrorInfo info;
  ASSERT_TRUE(details.details(0).UnpackTo(&info));
  EXPECT_EQ(info.domain(), "baton");
}

TEST(GrpcStatusTest, GarbageDetailsAreDropped) {
  const absl::Status back =
      FromGrpcStatus(grpc::Status(grpc::StatusCode::INTERNAL, "boom", "\xff\xff\xff"));
  EXPECT_EQ(back.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(back.message(), "boom");
}

TEST(GrpcStatusTest, LongMessagesAreClippedNotLost) {
  const grpc::Status status = ToGrpcStatus(absl::InternalError(std::string(100'000, 'x')));
  EXPECT_LT(status.error_message().size(), 4096u);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INTERNAL);
}

TEST(GrpcStatusTest, AMessageCutAnywhereOrNoTextAtAllKeepsItsReason) {
  const std::string euro = "\xE2\x82\xAC";
  for (int shift = 0; shift < 3; ++shift) {
    std::string message(shift, 'x');
    for (int i = 0; i < 1000; ++i) message += euro;
    const absl::Status back =
        FromGrpcStatus(ToGrpcStatus(InvalidField("OUT_OF_RANGE", "n", message)));
    EXPECT_EQ(ErrorReason(back), "OUT_OF_RANGE") << shift;
    EXPECT_EQ(ErrorField(back), "n") << shift;
  }
  const absl::Status back =
      FromGrpcStatus(ToGrpcStatus(MakeError(absl::StatusCode::kInternal, "IO", "file \xFF\xC3")));
  EXPECT_EQ(ErrorReason(back), "IO");
  EXPECT_EQ(back.message(), "file ??");
}

}  // namespace
}  // namespace baton
