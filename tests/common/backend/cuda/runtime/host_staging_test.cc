#include "common/backend/cuda/runtime/host_staging.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <utility>
#include <vector>

#include "tests/common/backend/cuda/delayed_runtime.h"
#include "tests/testing/seed.h"

namespace baton::backend::cuda {
namespace {

constexpr size_t kStagedBytes = 8 << 20;

// On a device that does all at once, and on one that does nothing before it must.
class StagingOnBothTest : public ::testing::TestWithParam<bool> {
 protected:
  StagingOnBothTest() {
    if (GetParam()) {
      runtime_ = std::make_unique<DelayedRuntime>(80, kStagedBytes);
    } else {
      runtime_ = MakeEmulatedRuntime(80, kStagedBytes, 0);
    }
    stream_ = runtime_->MakeStream();
  }
  size_t Number(size_t low, size_t high) {
    return std::uniform_int_distribution<size_t>(low, high)(random_);
  }
  std::vector<char> Bytes(size_t size) {
    std::vector<char> bytes(size);
    for (char& byte : bytes) byte = static_cast<char>(random_());
    return bytes;
  }
  std::unique_ptr<HostStaging> Make(size_t half_bytes) {
    return HostStaging::Make(half_bytes, *runtime_, stream_).value();
  }

  const uint64_t seed_ = testing::TestSeed();
  std::mt19937_64 random_{seed_};
  std::unique_ptr<Runtime> runtime_;
  Stream stream_ = nullptr;
};

// Copies one behind the other, through halves that are used again and again: as if the device were
// a vector.
TEST_P(StagingOnBothTest, CopiesInOrder) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 20; ++round) {
    const auto staging = Make(Number(1, 300));
    const size_t size = Number(1, 5000);
    auto* device = static_cast<char*>(runtime_->AllocateDevice(size).value());
    std::vector<char> expected = Bytes(size);
    staging->CopyToDevice(device, expected.data(), size);
    for (int step = 0; step < 30; ++step) {
      const size_t at = Number(0, size), count = Number(0, size - at);
      if (Number(0, 2) == 0) {
        std::vector<char> found(count);
        staging->CopyToHost(found.data(), device + at, count);
        ASSERT_EQ(found, std::vector<char>(expected.begin() + static_cast<ptrdiff_t>(at),
                                           expected.begin() + static_cast<ptrdiff_t>(at + count)));
      } else {
        std::vector<char> bytes = Bytes(count);
        if (count > 0) std::memcpy(expected.data() + at, bytes.data(), count);
        if (Number(0, 1)) {
          staging->CopyToDevice(device + at, bytes.data(), count);
        } else {
          size_t next = 0;
          staging->FillDevice(device + at, count, [&](size_t offset, size_t part, void* to) {
            ASSERT_EQ(offset, next) << "parts in order";
            ASSERT_LE(part, staging->half_bytes());
            std::memcpy(to, bytes.data() + offset, part);
            next += part;
          });
          ASSERT_EQ(next, count);
        }
        // The host memory is the caller's again.
        std::fill(bytes.begin(), bytes.end(), 'x');
      }
    }
    std::vector<char> found(size);
    staging->CopyToHost(found.data(), device, size);
    ASSERT_EQ(found, expected) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(Runtimes, StagingOnBothTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "delayed" : "at_once"; });

TEST(HostStagingTest, OnlyTheHalfThatIsNeededIsWaitedFor) {
  DelayedRuntime runtime(80, kStagedBytes);
  const Stream stream = runtime.MakeStream();
  const auto staging = HostStaging::Make(16, runtime, stream).value();
  auto* device = static_cast<char*>(runtime.AllocateDevice(64).value());
  const std::vector<char> bytes(48, 'a');
  const auto before = runtime.Record(stream);
  staging->CopyToDevice(device, bytes.data(), 32);
  const auto two = runtime.Record(stream);
  EXPECT_TRUE(before->Done());
  EXPECT_NE(device[0], 'a') << "two halves are filled without a wait";
  EXPECT_FALSE(two->Done());
  staging->CopyToDevice(device + 32, bytes.data(), 16);
  EXPECT_EQ(device[0], 'a') << "the third part waits for the first's half";
  EXPECT_NE(device[16], 'a');
  EXPECT_FALSE(two->Done());
  runtime.Synchronize(stream);
  EXPECT_TRUE(two->Done());
  EXPECT_EQ(std::vector<char>(device, device + 48), bytes);
}

TEST(HostStagingTest, PinnedMemoryThatIsNotThereIsAnError) {
  class Poor final : public Runtime {
   public:
    const DeviceProperties& properties() const override { return device_->properties(); }
    absl::StatusOr<void*> AllocateDevice(size_t size) override {
      return device_->AllocateDevice(size);
    }
    absl::StatusOr<void*> AllocatePinned(size_t size) override {
      if (--left_ < 0) return absl::ResourceExhaustedError("no pinned memory");
      return device_->AllocatePinned(size);
    }
    Stream MakeStream() override { return nullptr; }
    void CopyToDevice(void*, const void*, size_t, Stream) override {}
    void CopyToHost(void*, const void*, size_t, Stream) override {}
    void Zero(void*, size_t, Stream) override {}
    void Synchronize(Stream) override {}
    std::unique_ptr<DeviceEvent> Record(Stream stream) override { return device_->Record(stream); }
    std::unique_ptr<Graph> Capture(Stream stream, absl::FunctionRef<void()> enqueue) override {
      return device_->Capture(stream, enqueue);
    }

   private:
    int left_ = 1;
    std::unique_ptr<Runtime> device_ = MakeEmulatedRuntime(80, 4096, 0);
  } runtime;
  EXPECT_EQ(HostStaging::Make(16, runtime, nullptr).status().code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace baton::backend::cuda
