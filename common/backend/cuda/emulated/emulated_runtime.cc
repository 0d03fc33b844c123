#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/backend/cuda/emulated/captured_launches.h"
#include "common/backend/cuda/runtime/runtime.h"
#include "common/base/check.h"
#include "common/base/random_id.h"

namespace baton::backend::cuda {
namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

class DoneEvent final : public DeviceEvent {
 public:
  bool Done() const override { return true; }
  void Wait() const override {}
};

// All is done by the time it is made.
class HostTimePoint final : public TimePoint {
 public:
  double SecondsSince(const TimePoint& earlier) const override {
    return std::chrono::duration<double>(at_ - static_cast<const HostTimePoint&>(earlier).at_)
        .count();
  }

 private:
  const std::chrono::steady_clock::time_point at_ = std::chrono::steady_clock::now();
};

class EmulatedGraph final : public Graph {
 public:
  explicit EmulatedGraph(std::vector<std::function<void()>> launches)
      : launches_(std::move(launches)) {}
  void Launch(Stream) override {
    for (const std::function<void()>& launch : launches_) launch();
  }

 private:
  const std::vector<std::function<void()>> launches_;
};

// Nothing but launches goes into a graph.
void CheckNotCaptured(Stream stream) {
  BATON_CHECK(static_cast<emulated::EmulatedStream*>(stream)->queue == nullptr)
      << "a capture saw more than launches";
}

class EmulatedRuntime final : public Runtime {
 public:
  EmulatedRuntime(int compute_capability, size_t size_bytes, uint64_t seed)
      : options_{.compute_capability = compute_capability, .seed = seed} {
    properties_.name = absl::StrCat("emulated device");
    const uint64_t uuid[] = {RandomId64(), RandomId64()};
    std::memcpy(properties_.uuid.data(), uuid, sizeof(uuid));
    properties_.compute_capability = properties_.kernel_capability = compute_capability;
    properties_.multiprocessors = 2;
    properties_.shared_bytes = size_t{compute_capability < 80 ? 64u : 164u} << 10;
    properties_.total_bytes = properties_.free_bytes = size_bytes;
    properties_.l2_bytes = size_t{16} << 10;
  }
  const DeviceProperties& properties() const override { return properties_; }

  absl::StatusOr<void*> AllocateDevice(size_t size_bytes) override {
    absl::MutexLock lock(&mutex_);
    if (size_bytes > properties_.total_bytes - used_) {
      return absl::ResourceExhaustedError(absl::StrCat("device memory: ", size_bytes,
                                                       " bytes asked for, ",
                                                       properties_.total_bytes - used_, " free"));
    }
    used_ += size_bytes;
    return Keep(size_bytes);
  }
  absl::StatusOr<void*> AllocatePinned(size_t size_bytes) override {
    absl::MutexLock lock(&mutex_);
    return Keep(size_bytes);
  }
  Stream MakeStream() override {
    absl::MutexLock lock(&mutex_);
    streams_.push_back(std::make_unique<emulated::EmulatedStream>());
    streams_.back()->options = options_;
    return streams_.back().get();
  }

  void CopyToDevice(void* device, const void* pinned, size_t size_bytes, Stream stream) override {
    CheckNotCaptured(stream);
    if (size_bytes > 0) std::memcpy(device, pinned, size_bytes);
  }
  void CopyToHost(void* pinned, const void* device, size_t size_bytes, Stream stream) override {
    CheckNotCaptured(stream);
    if (size_bytes > 0) std::memcpy(pinned, device, size_bytes);
  }
  void Zero(void* device, size_t size_bytes, Stream stream) override {
    CheckNotCaptured(stream);
    if (size_bytes > 0) std::memset(device, 0, size_bytes);
  }
  void Synchronize(Stream stream) override { CheckNotCaptured(stream); }
  std::unique_ptr<DeviceEvent> Record(Stream stream) override {
    CheckNotCaptured(stream);
    return std::make_unique<DoneEvent>();
  }
  std::unique_ptr<Graph> Capture(Stream stream, absl::FunctionRef<void()> enqueue) override {
    return std::make_unique<EmulatedGraph>(emulated::CapturedLaunches::Capture(
        *static_cast<emulated::EmulatedStream*>(stream), enqueue));
  }
  void CopyOnDevice(void* to, const void* from, size_t size_bytes, Stream) override {
    if (size_bytes > 0) std::memcpy(to, from, size_bytes);
  }
  std::unique_ptr<TimePoint> MarkTime(Stream) override { return std::make_unique<HostTimePoint>(); }

 private:
  void* Keep(size_t size_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const size_t rounded = (size_bytes + 255) / 256 * 256 + 256;
    memory_.emplace_back(std::aligned_alloc(256, rounded));
    BATON_CHECK(memory_.back() != nullptr) << rounded << " bytes";
    std::memset(memory_.back().get(), 0xff, rounded);
    return memory_.back().get();
  }

  const emulated::Options options_;
  DeviceProperties properties_;
  absl::Mutex mutex_;
  size_t used_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::unique_ptr<void, Free>> memory_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<emulated::EmulatedStream>> streams_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Runtime> MakeEmulatedRuntime(int compute_capability, size_t size_bytes,
                                             uint64_t seed) {
  return std::make_unique<EmulatedRuntime>(compute_capability, size_bytes, seed);
}

}  // namespace baton::backend::cuda
