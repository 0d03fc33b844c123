// main() of tests that run on the GPU that is there: without one it says so and exits with 77.
#include <gtest/gtest.h>

#include <cstdio>

#include "common/backend/cuda/cuda_backend.h"

int main(int argc, char** argv) {
  const absl::StatusOr<int> count = baton::backend::CudaDeviceCount();
  if (count.value_or(0) == 0) {
    std::printf("skipped: no GPU here (%s)\n", count.status().ToString().c_str());
    return 77;
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
