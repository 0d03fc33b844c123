// The real NCCL, as far as it goes without a GPU.
#include "common/backend/cuda/nccl/nccl_library.h"

#include <gtest/gtest.h>

#include "common/base/error.h"

namespace baton::backend::cuda {
namespace {

TEST(NcclLibraryTest, HasWhatIsCalled) {
  const absl::StatusOr<NcclLibrary*> nccl = LoadNccl();
  if (!nccl.ok()) GTEST_SKIP() << nccl.status();
  EXPECT_GE((*nccl)->version(), NcclLibrary::kOldestVersion);
  EXPECT_STREQ(getenv("NCCL_LAUNCH_ORDER_IMPLICIT"), "1");
}

// An id needs a network interface and no device; a communicator needs one.
TEST(NcclLibraryTest, WithoutADeviceConnectingFailsAndDoesNotHang) {
  const absl::StatusOr<NcclLibrary*> nccl = LoadNccl();
  if (!nccl.ok()) GTEST_SKIP() << nccl.status();
  EXPECT_EQ((*nccl)->Connect("too short", 0).status().code(), absl::StatusCode::kInvalidArgument);
  const absl::StatusOr<std::string> id = (*nccl)->MakeId();
  if (!id.ok()) {
    EXPECT_EQ(ErrorReason(id.status()), "NCCL") << id.status();
    return;
  }
  EXPECT_EQ(id->size(), 128u);
  EXPECT_NE(*id, (*nccl)->MakeId().value());
}

}  // namespace
}  // namespace baton::backend::cuda
