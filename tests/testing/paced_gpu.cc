#include "tests/testing/paced_gpu.h"

#include <sys/prctl.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/backend/cuda/cuda_backend.h"
#include "common/backend/cuda/emulated/captured_launches.h"
#include "common/base/check.h"
#include "common/base/error.h"

namespace baton::testing {
namespace {

using backend::cuda::DeviceEvent;
using backend::cuda::DeviceProperties;
using backend::cuda::DeviceUuid;
using backend::cuda::Graph;
using backend::cuda::MemoryHandle;
using backend::cuda::Runtime;
using backend::cuda::Stream;
namespace emulated = backend::cuda::emulated;

constexpr int kComputeCapability = 80;
constexpr size_t kMostMovedBytes = size_t{64} << 10;

class PacedEvent final : public DeviceEvent {
 public:
  PacedEvent(absl::Duration end, const PaceTimer& timer) : end_(end), timer_(timer) {}
  bool Done() const override { return timer_.Now() >= end_; }
  void Wait() const override { timer_.WaitUntil(end_); }

 private:
  const absl::Duration end_;
  const PaceTimer& timer_;
};

class PacedStream final : public emulated::LaunchQueue {
 public:
  PacedStream(absl::Duration kernel, const PaceTimer& timer) : kernel_(kernel), timer_(timer) {
    stream_.options = {.compute_capability = kComputeCapability};
    stream_.queue = this;
  }
  static PacedStream& Of(Stream stream) {
    BATON_CHECK(stream != nullptr) << "work on no stream";
    auto* const queue = static_cast<emulated::EmulatedStream*>(stream)->queue;
    auto* const paced = dynamic_cast<PacedStream*>(queue);
    BATON_CHECK(paced != nullptr) << "a capture saw more than launches";
    return *paced;
  }

  emulated::EmulatedStream& stream() { return stream_; }
  void Enqueue(const emulated::LaunchShape&, std::function<void()>) override { Take(kernel_); }
  // The stream is busy for so long, from now or from the end of what it has.
  void Take(absl::Duration time) {
    absl::MutexLock lock(&mutex_);
    end_ = std::max(timer_.Now(), end_) + time;
  }
  absl::Duration end() const {
    absl::MutexLock lock(&mutex_);
    return end_;
  }

 private:
  const absl::Duration kernel_;
  const PaceTimer& timer_;
  emulated::EmulatedStream stream_;
  mutable absl::Mutex mutex_;
  absl::Duration end_ ABSL_GUARDED_BY(mutex_);
};

class PacedGraph final : public Graph {
 public:
  explicit PacedGraph(absl::Duration time) : time_(time) {}
  bool Launch(Stream stream) override {
    PacedStream::Of(stream).Take(time_);
    return true;
  }

 private:
  const absl::Duration time_;
};

class PacedRuntime final : public Runtime {
 public:
  PacedRuntime(const PacedGpuCosts& costs, const PaceTimer& timer)
      : costs_(costs),
        timer_(timer),
        memory_(backend::cuda::MakeEmulatedRuntime(kComputeCapability,
                                                   static_cast<size_t>(costs.memory_gb * 1e9))) {}

  const DeviceProperties& properties() const override { return memory_->properties(); }
  absl::StatusOr<void*> AllocateDevice(size_t size_bytes) override {
    return Zeroed(memory_->AllocateDevice(size_bytes), size_bytes);
  }
  absl::StatusOr<void*> AllocatePinned(size_t size_bytes) override {
    return Zeroed(memory_->AllocatePinned(size_bytes), size_bytes);
  }
  Stream MakeStream() override { return MakeStream(costs_.kernel_us); }
  // KV's way has these.
  Stream MakeUrgentStream() override { return MakeStream(costs_.copy_us); }

  void CopyToDevice(void* device, const void* pinned, size_t size_bytes, Stream stream) override {
    Move(device, pinned, size_bytes, costs_.host_gb_s, stream);
  }
  void CopyToHost(void* pinned, const void* device, size_t size_bytes, Stream stream) override {
    Move(pinned, device, size_bytes, costs_.host_gb_s, stream);
  }
  void Zero(void* device, size_t size_bytes, Stream stream) override {
    if (size_bytes > 0) std::memset(device, 0, size_bytes);
    PacedStream::Of(stream).Take(absl::Microseconds(costs_.copy_us));
  }
  void Synchronize(Stream stream) override { timer_.WaitUntil(PacedStream::Of(stream).end()); }
  std::unique_ptr<DeviceEvent> Record(Stream stream) override {
    return std::make_unique<PacedEvent>(PacedStream::Of(stream).end(), timer_);
  }
  std::unique_ptr<Graph> Capture(Stream stream, absl::FunctionRef<void()> enqueue) override {
    const auto launches = emulated::CapturedLaunches::Capture(
        *static_cast<emulated::EmulatedStream*>(stream), enqueue);
    return std::make_unique<PacedGraph>(
        absl::Microseconds(costs_.node_us * static_cast<double>(launches.size())));
  }

  bool shares_memory() const override { return true; }
  absl::StatusOr<MemoryHandle> ExportMemory(void* memory) override {
    return memory_->ExportMemory(memory);
  }
  absl::StatusOr<void*> OpenPeerMemory(const MemoryHandle& handle, const DeviceUuid& device,
                                       size_t size_bytes) override {
    return memory_->OpenPeerMemory(handle, device, size_bytes);
  }
  void ClosePeerMemory(void* memory) override { memory_->ClosePeerMemory(memory); }
  absl::Status CopyFromPeer(void* to, const void* from, size_t stride_bytes, size_t row_bytes,
                            size_t rows, Stream stream) override {
    if (rows == 1) {
      Move(to, from, row_bytes, costs_.peer_gb_s, stream);
    } else {
      PacedStream::Of(stream).Take(TimeOf(row_bytes * rows, costs_.peer_gb_s));
    }
    return absl::OkStatus();
  }
  absl::Status AwaitPeerCopies(Stream stream, absl::Duration timeout) override {
    const absl::Duration end = PacedStream::Of(stream).end(), latest = timer_.Now() + timeout;
    timer_.WaitUntil(std::min(end, latest));
    if (end <= latest) return absl::OkStatus();
    return MakeError(absl::StatusCode::kDeadlineExceeded, "SHARED_MEMORY",
                     absl::StrCat("copies that take longer than ", absl::FormatDuration(timeout)));
  }

 private:
  static absl::StatusOr<void*> Zeroed(absl::StatusOr<void*> memory, size_t size_bytes) {
    if (memory.ok()) std::memset(*memory, 0, size_bytes);
    return memory;
  }
  Stream MakeStream(double kernel_us) {
    absl::MutexLock lock(&mutex_);
    streams_.push_back(std::make_unique<PacedStream>(absl::Microseconds(kernel_us), timer_));
    return &streams_.back()->stream();
  }
  absl::Duration TimeOf(size_t size_bytes, double gb_s) const {
    return absl::Microseconds(costs_.copy_us) +
           absl::Nanoseconds(static_cast<double>(size_bytes) / gb_s);
  }
  void Move(void* to, const void* from, size_t size_bytes, double gb_s, Stream stream) {
    if (size_bytes > 0 && size_bytes <= kMostMovedBytes) std::memcpy(to, from, size_bytes);
    PacedStream::Of(stream).Take(TimeOf(size_bytes, gb_s));
  }

  const PacedGpuCosts costs_;
  const PaceTimer& timer_;
  const std::unique_ptr<Runtime> memory_;
  absl::Mutex mutex_;
  std::vector<std::unique_ptr<PacedStream>> streams_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

void SleepPrecisely() {
  constexpr unsigned long kNanoseconds = 1;
  BATON_CHECK_EQ(prctl(PR_SET_TIMERSLACK, kNanoseconds, 0, 0, 0), 0);
}

void AddPacedGpuFlags(CLI::App& app, PacedGpuCosts& costs) {
  const auto set = [&costs](const std::vector<std::string>& texts) {
    const std::array<double*, 6> fields = {&costs.kernel_us, &costs.node_us,   &costs.copy_us,
                                           &costs.host_gb_s, &costs.peer_gb_s, &costs.memory_gb};
    if (texts.size() != fields.size()) return false;
    for (size_t i = 0; i < fields.size(); ++i) {
      const bool is_time = i < 3;
      // A comparison with NaN is false.
      if (!absl::SimpleAtod(texts[i], fields[i]) || !(*fields[i] >= (is_time ? 0 : 0.01)) ||
          !(*fields[i] <= (is_time ? 1e6 : 1e4))) {
        return false;
      }
    }
    return true;
  };
  app.add_option("--device-gpu", set,
                 "What the paced GPU takes: KERNEL,NODE,COPY,HOST,PEER,MEMORY: microseconds of a "
                 "kernel, a graph's node and a copy, 0 to 1e6; GB/s of copies to or from the host "
                 "and from another GPU, and its memory in GB, 0.01 to 1e4")
      ->required()
      ->delimiter(',')
      ->expected(6);
}

std::unique_ptr<Runtime> MakePacedRuntime(const PacedGpuCosts& costs, const PaceTimer& timer) {
  return std::make_unique<PacedRuntime>(costs, timer);
}

std::function<absl::StatusOr<std::unique_ptr<backend::Backend>>(const backend::BackendOptions&)>
PacedGpuMaker(const PacedGpuCosts& costs, const PaceTimer& timer) {
  return [costs, &timer](const backend::BackendOptions& options) {
    return backend::cuda::MakeBackendOn(MakePacedRuntime(costs, timer), nullptr, options);
  };
}

}  // namespace baton::testing
