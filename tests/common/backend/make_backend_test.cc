#include "common/backend/make_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <limits>

#include "common/base/error.h"

namespace baton::backend {
namespace {

TEST(ParseDeviceTest, TakesWhatTheFlagMayBe) {
  EXPECT_EQ(ParseDevice("cpu").value(), (Device{Device::Kind::kCpu, 0}));
  EXPECT_EQ(ParseDevice("auto").value(), (Device{Device::Kind::kAuto, 0}));
  EXPECT_EQ(ParseDevice("cuda").value(), (Device{Device::Kind::kCuda, 0}));
  EXPECT_EQ(ParseDevice("cuda:0").value(), (Device{Device::Kind::kCuda, 0}));
  EXPECT_EQ(ParseDevice("cuda:1023").value(), (Device{Device::Kind::kCuda, 1023}));
  for (const char* text : {"", "gpu", "CPU", "cuda:", "cuda:-1", "cuda:+1", "cuda: 1", "cuda:1024",
                           "cuda:99999999999999999999", "cuda:0x1", "cuda0", "cpu:0"}) {
    const absl::Status status = ParseDevice(text).status();
    EXPECT_EQ(ErrorReason(status), "BAD_OPTION") << text;
    EXPECT_EQ(ErrorField(status), "--device") << text;
  }
}

TEST(MakeBackendTest, TheDeviceDecides) {
  BackendOptions options;
  options.thread_count = 1;
  options.device = "cpu";
  EXPECT_EQ(MakeBackend(options).value()->Description().substr(0, 3), "cpu");
  options.device = "gpu";
  EXPECT_EQ(ErrorReason(MakeBackend(options).status()), "BAD_OPTION");
  // More GPUs than any machine has, so that it holds where there is one too.
  options.device = "cuda:1023";
  const absl::Status status = MakeBackend(options).status();
  EXPECT_THAT(ErrorReason(status), ::testing::AnyOf("NO_CUDA", "NO_DEVICE")) << status;
}

TEST(MakeBackendTest, AutoIsTheCpuWithoutCuda) {
  BackendOptions options;
  options.thread_count = 1;
  options.device = "cuda:0";
  const absl::Status status = MakeBackend(options).status();
  if (status.message().find("built without CUDA") == absl::string_view::npos) {
    GTEST_SKIP() << "this is a build with CUDA";
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("cuda-release"), absl::string_view::npos);
  options.device = "auto";
  EXPECT_EQ(MakeBackend(options).value()->Description().substr(0, 3), "cpu");
}

// What stands for the GPU is a CPU of three threads.
TEST(MakeBackendTest, AutoTakesAGpuThatCanBeUsed) {
  const auto cpu = [](int threads) {
    BackendOptions options;
    options.thread_count = threads;
    options.device = "cpu";
    return MakeBackend(options);
  };
  const auto made = [&](const absl::StatusOr<int>& gpus, const absl::Status& gpu) {
    return MakeBest(
        gpus,
        [&]() -> absl::StatusOr<std::unique_ptr<Backend>> {
          if (!gpu.ok()) return gpu;
          return cpu(3);
        },
        [&] { return cpu(1); });
  };
  const std::string on_gpu = cpu(3).value()->Description(), on_cpu = cpu(1).value()->Description();
  ASSERT_NE(on_gpu, on_cpu);
  const absl::Status old = absl::FailedPreconditionError("too old");
  EXPECT_EQ(made(1, absl::OkStatus()).value()->Description(), on_gpu);
  EXPECT_EQ(made(0, absl::OkStatus()).value()->Description(), on_cpu) << "there is none";
  EXPECT_EQ(made(old, absl::OkStatus()).value()->Description(), on_cpu) << "the driver is too old";
  EXPECT_EQ(made(1, old).value()->Description(), on_cpu) << "the GPU is too old";
  EXPECT_EQ(made(1, absl::ResourceExhaustedError("full")).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(MakeBackendTest, TheShareOfTheMemoryIsAShare) {
  for (const double share : {0.0, -0.5, 1.01, std::numeric_limits<double>::quiet_NaN()}) {
    BackendOptions options;
    options.gpu_memory_utilization = share;
    const absl::Status status = MakeBackend(options).status();
    EXPECT_EQ(ErrorField(status), "--gpu-memory-utilization") << share;
  }
}

// The metrics server's threads have stacks of 100 KiB, off which come the thread-local variables of
// all that is linked: a library with too many of those would leave them none.
TEST(MakeBackendTest, SmallThreadsStart) {
  pthread_attr_t small;
  ASSERT_EQ(pthread_attr_init(&small), 0);
  ASSERT_EQ(pthread_attr_setstacksize(&small, 102'400), 0);
  pthread_t thread;
  ASSERT_EQ(pthread_create(
                &thread, &small, [](void*) -> void* { return nullptr; }, nullptr),
            0);
  EXPECT_EQ(pthread_join(thread, nullptr), 0);
  pthread_attr_destroy(&small);
}

}  // namespace
}  // namespace baton::backend
