// The CUDA side of runtime.h.
#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "common/backend/cuda/kernels/rope_write.h"
#include "common/backend/cuda/runtime/device_share.h"
#include "common/backend/cuda/runtime/driver_check.h"
#include "common/backend/cuda/runtime/runtime.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace baton::backend::cuda {
namespace {

constexpr int kOldest = 75;

void Check(cudaError_t error, const char* call) {
  BATON_CHECK(error == cudaSuccess) << call << ": " << cudaGetErrorString(error);
}

// An error of a call about other processes' memory, which is not this process's end.
absl::Status PeerError(absl::StatusCode code, const char* call, cudaError_t error) {
  cudaGetLastError();  // it stays this thread's last error, or else a later call reports it
  return MakeError(code, "SHARED_MEMORY", absl::StrCat(call, ": ", cudaGetErrorString(error)));
}

// Bytes of the allocation that begins at `memory`, as the driver knows them; nullopt if it does not
// say.
std::optional<size_t> AllocationBytes(void* memory) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
  if (cudaGetDriverEntryPointByVersion("cuMemGetAddressRange", &function, 12000, cudaEnableDefault,
                                       &found) != cudaSuccess ||
      found != cudaDriverEntryPointSuccess) {
    cudaGetLastError();
    return std::nullopt;
  }
  CUdeviceptr base = 0;
  size_t size_bytes = 0;
  const auto address = reinterpret_cast<CUdeviceptr>(memory);
  const auto get = reinterpret_cast<CUresult (*)(CUdeviceptr*, size_t*, CUdeviceptr)>(function);
  if (get(&base, &size_bytes, address) != CUDA_SUCCESS || base != address) return std::nullopt;
  return size_bytes;
}

DeviceUuid UuidOf(const cudaDeviceProp& properties) {
  DeviceUuid uuid;
  static_assert(sizeof(properties.uuid) == sizeof(uuid));
  std::memcpy(uuid.data(), &properties.uuid, sizeof(uuid));
  return uuid;
}

cudaStream_t Cuda(Stream stream) { return static_cast<cudaStream_t>(stream); }

// Events that are made once and recorded again and again: a prompt records one a layer.
// Thread-safe.
class EventPool {
 public:
  ~EventPool() {
    absl::MutexLock lock(&mutex_);
    for (const cudaEvent_t event : free_) cudaEventDestroy(event);
  }
  // Takes an event of the current device.
  cudaEvent_t Take() {
    absl::MutexLock lock(&mutex_);
    cudaEvent_t event = nullptr;
    if (free_.empty()) {
      // Blocking sync: a waiting thread sleeps, since workers share cores.
      Check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventBlockingSync),
            "cudaEventCreate");
    } else {
      event = free_.back();
      free_.pop_back();
    }
    return event;
  }
  // No thread waits for it any more; the device may not have reached its record yet.
  void Give(cudaEvent_t event) {
    absl::MutexLock lock(&mutex_);
    free_.push_back(event);
  }

 private:
  absl::Mutex mutex_;
  std::vector<cudaEvent_t> free_ ABSL_GUARDED_BY(mutex_);
};

// Its calls come from any thread, whose current device may be another.
class CudaEvent final : public DeviceEvent {
 public:
  CudaEvent(int index, EventPool& pool, cudaStream_t stream) : index_(index), pool_(pool) {
    Use();
    event_ = pool_.Take();
    Check(cudaEventRecord(event_, stream), "cudaEventRecord");
  }
  ~CudaEvent() override { pool_.Give(event_); }
  bool Done() const override {
    Use();
    const cudaError_t error = cudaEventQuery(event_);
    if (error == cudaErrorNotReady) {
      cudaGetLastError();  // it stays this thread's last error, or else a later call reports it
      return false;
    }
    Check(error, "cudaEventQuery");
    return true;
  }
  void Wait() const override {
    Use();
    Check(cudaEventSynchronize(event_), "cudaEventSynchronize");
  }

 private:
  void Use() const { Check(cudaSetDevice(index_), "cudaSetDevice"); }

  const int index_;
  EventPool& pool_;
  cudaEvent_t event_ = nullptr;
};

class CudaTimePoint final : public TimePoint {
 public:
  CudaTimePoint(int index, cudaStream_t stream) : index_(index) {
    Check(cudaEventCreate(&event_), "cudaEventCreate");
    Check(cudaEventRecord(event_, stream), "cudaEventRecord");
  }
  ~CudaTimePoint() override {
    Check(cudaSetDevice(index_), "cudaSetDevice");
    cudaEventDestroy(event_);
  }
  double SecondsSince(const TimePoint& earlier) const override {
    Check(cudaSetDevice(index_), "cudaSetDevice");
    Check(cudaEventSynchronize(event_), "cudaEventSynchronize");
    float milliseconds = 0;
    Check(cudaEventElapsedTime(&milliseconds, static_cast<const CudaTimePoint&>(earlier).event_,
                               event_),
          "cudaEventElapsedTime");
    return milliseconds * 1e-3;
  }

 private:
  const int index_;
  cudaEvent_t event_ = nullptr;
};

class CudaGraph final : public Graph {
 public:
  CudaGraph(int index, cudaGraphExec_t graph) : index_(index), graph_(graph) {}
  ~CudaGraph() override {
    cudaSetDevice(index_);
    cudaGraphExecDestroy(graph_);
  }
  bool Launch(Stream stream) override {
    Check(cudaSetDevice(index_), "cudaSetDevice");
    const cudaError_t error = cudaGraphLaunch(graph_, Cuda(stream));
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return false;
    }
    Check(error, "cudaGraphLaunch");
    return true;
  }

 private:
  const int index_;
  const cudaGraphExec_t graph_;
};

class CudaRuntime final : public Runtime {
 public:
  CudaRuntime(int index, DeviceProperties properties)
      : index_(index), properties_(std::move(properties)) {}
  ~CudaRuntime() override {
    Use();
    cudaDeviceSynchronize();
    absl::MutexLock lock(&mutex_);
    for (const cudaStream_t stream : streams_) cudaStreamDestroy(stream);
    for (void* memory : device_memory_) cudaFree(memory);
    for (void* memory : pinned_memory_) cudaFreeHost(memory);
  }

  const DeviceProperties& properties() const override { return properties_; }
  void UseOnThisThread() override { Use(); }

  absl::StatusOr<void*> AllocateDevice(size_t size_bytes) override {
    Use();
    void* memory = nullptr;
    if (const cudaError_t error = cudaMalloc(&memory, size_bytes); error != cudaSuccess) {
      cudaGetLastError();  // it would be reported again by the next launch
      return Exhausted(size_bytes, "device memory", error);
    }
    absl::MutexLock lock(&mutex_);
    device_memory_.push_back(memory);
    return memory;
  }
  absl::StatusOr<void*> AllocatePinned(size_t size_bytes) override {
    Use();
    void* memory = nullptr;
    if (const cudaError_t error = cudaMallocHost(&memory, size_bytes); error != cudaSuccess) {
      cudaGetLastError();
      return Exhausted(size_bytes, "pinned host memory", error);
    }
    absl::MutexLock lock(&mutex_);
    pinned_memory_.push_back(memory);
    return memory;
  }
  Stream MakeStream() override {
    Use();
    return MakeStreamOf(0);
  }
  Stream MakeUrgentStream() override {
    Use();
    int least = 0, greatest = 0;
    Check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
    return MakeStreamOf(greatest);
  }

  void CopyToDevice(void* device, const void* pinned, size_t size_bytes, Stream stream) override {
    Use();
    Check(cudaMemcpyAsync(device, pinned, size_bytes, cudaMemcpyHostToDevice, Cuda(stream)),
          "cudaMemcpyAsync to the device");
  }
  void CopyToHost(void* pinned, const void* device, size_t size_bytes, Stream stream) override {
    Use();
    Check(cudaMemcpyAsync(pinned, device, size_bytes, cudaMemcpyDeviceToHost, Cuda(stream)),
          "cudaMemcpyAsync to the host");
  }
  void Zero(void* device, size_t size_bytes, Stream stream) override {
    Use();
    Check(cudaMemsetAsync(device, 0, size_bytes, Cuda(stream)), "cudaMemsetAsync");
  }
  void Synchronize(Stream stream) override {
    Use();
    Check(cudaStreamSynchronize(Cuda(stream)), "cudaStreamSynchronize");
  }
  std::unique_ptr<DeviceEvent> Record(Stream stream) override {
    Use();
    return std::make_unique<CudaEvent>(index_, events_, Cuda(stream));
  }
  std::unique_ptr<Graph> Capture(Stream stream, absl::FunctionRef<void()> enqueue) override {
    Use();
    // Other threads' calls (a copier's, that may synchronise) are none of this capture's business.
    Check(cudaStreamBeginCapture(Cuda(stream), cudaStreamCaptureModeThreadLocal),
          "cudaStreamBeginCapture");
    enqueue();
    cudaGraph_t graph = nullptr;
    Check(cudaStreamEndCapture(Cuda(stream), &graph), "cudaStreamEndCapture");
    cudaGraphExec_t executable = nullptr;
    cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
    Check(cudaGraphDestroy(graph), "cudaGraphDestroy");
    if (error == cudaSuccess) {
      error = cudaGraphUpload(executable, Cuda(stream));
      if (error != cudaSuccess) cudaGraphExecDestroy(executable);
    }
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return nullptr;
    }
    Check(error, "cudaGraphInstantiate and cudaGraphUpload");
    return std::make_unique<CudaGraph>(index_, executable);
  }

  bool shares_memory() const override { return true; }
  absl::StatusOr<MemoryHandle> ExportMemory(void* memory) override {
    Use();
    cudaIpcMemHandle_t exported;
    if (const cudaError_t error = cudaIpcGetMemHandle(&exported, memory); error != cudaSuccess) {
      return PeerError(absl::StatusCode::kFailedPrecondition, "cudaIpcGetMemHandle", error);
    }
    MemoryHandle handle;
    static_assert(sizeof(exported) == sizeof(handle));
    std::memcpy(handle.data(), &exported, sizeof(exported));
    return handle;
  }
  absl::StatusOr<void*> OpenPeerMemory(const MemoryHandle& handle, const DeviceUuid& device,
                                       size_t size_bytes) override {
    if (absl::Status status = CheckReachable(device); !status.ok()) return status;
    Use();
    cudaIpcMemHandle_t exported;
    std::memcpy(&exported, handle.data(), sizeof(exported));
    void* memory = nullptr;
    if (const cudaError_t error =
            cudaIpcOpenMemHandle(&memory, exported, cudaIpcMemLazyEnablePeerAccess);
        error != cudaSuccess) {
      return PeerError(absl::StatusCode::kFailedPrecondition, "cudaIpcOpenMemHandle", error);
    }
    if (const std::optional<size_t> mapped = AllocationBytes(memory);
        mapped && *mapped < size_bytes) {
      ClosePeerMemory(memory);
      return MakeError(
          absl::StatusCode::kFailedPrecondition, "SHARED_MEMORY",
          absl::StrCat("a peer's device memory has ", *mapped, " bytes, expected ", size_bytes));
    }
    return memory;
  }
  void ClosePeerMemory(void* memory) override {
    Use();
    if (const cudaError_t error = cudaIpcCloseMemHandle(memory); error != cudaSuccess) {
      BATON_LOG(Warning) << PeerError(absl::StatusCode::kUnavailable, "cudaIpcCloseMemHandle",
                                      error);
    }
  }
  absl::Status CopyFromPeer(void* to, const void* from, size_t stride_bytes, size_t row_bytes,
                            size_t rows, Stream stream) override {
    Use();
    const cudaError_t error = cudaMemcpy2DAsync(to, stride_bytes, from, stride_bytes, row_bytes,
                                                rows, cudaMemcpyDefault, Cuda(stream));
    if (error == cudaSuccess) return absl::OkStatus();
    return PeerError(absl::StatusCode::kUnavailable, "cudaMemcpy2DAsync from a peer", error);
  }
  absl::Status AwaitPeerCopies(Stream stream, absl::Duration timeout) override {
    Use();
    const cudaEvent_t event = events_.Take();
    cudaError_t error = cudaEventRecord(event, Cuda(stream));
    if (error == cudaSuccess && timeout == absl::InfiniteDuration()) {
      error = cudaEventSynchronize(event);
    } else if (error == cudaSuccess) {
      error = SynchronizeWithin(event, timeout);
    }
    events_.Give(event);  // also one that has not happened: it may be recorded anew
    if (error == cudaSuccess) return absl::OkStatus();
    if (error == cudaErrorNotReady) {
      return MakeError(
          absl::StatusCode::kDeadlineExceeded, "SHARED_MEMORY",
          absl::StrCat("a copy from a peer has not ended within ", absl::FormatDuration(timeout)));
    }
    return PeerError(absl::StatusCode::kUnavailable, "waiting for a copy from a peer", error);
  }

  void CopyOnDevice(void* to, const void* from, size_t size_bytes, Stream stream) override {
    Use();
    Check(cudaMemcpyAsync(to, from, size_bytes, cudaMemcpyDeviceToDevice, Cuda(stream)),
          "cudaMemcpyAsync on the device");
  }
  std::unique_ptr<TimePoint> MarkTime(Stream stream) override {
    Use();
    return std::make_unique<CudaTimePoint>(index_, Cuda(stream));
  }

 private:
  // cudaErrorNotReady if the event has not happened in time.
  static cudaError_t SynchronizeWithin(cudaEvent_t event, absl::Duration timeout) {
    const absl::Time deadline = absl::Now() + timeout;
    while (true) {
      const cudaError_t error = cudaEventQuery(event);
      if (error != cudaErrorNotReady) return error;
      cudaGetLastError();  // which it is not for the next call
      if (absl::Now() >= deadline) return error;
      absl::SleepFor(absl::Microseconds(100));
    }
  }
  // OK for a GPU that this process does not see: cudaIpcOpenMemHandle decides.
  absl::Status CheckReachable(const DeviceUuid& device) const {
    if (device == properties_.uuid) return absl::OkStatus();
    for (int other = 0, count = DeviceCount().value_or(0); other < count; ++other) {
      cudaDeviceProp found = {};
      if (other == index_ || cudaGetDeviceProperties(&found, other) != cudaSuccess ||
          UuidOf(found) != device) {
        cudaGetLastError();
        continue;
      }
      int can = 0;
      const cudaError_t error = cudaDeviceCanAccessPeer(&can, index_, other);
      if (error == cudaSuccess && can != 0) return absl::OkStatus();
      cudaGetLastError();
      return MakeError(absl::StatusCode::kFailedPrecondition, "SHARED_MEMORY",
                       absl::StrCat("cuda:", index_, " cannot reach the memory of cuda:", other,
                                    " (", found.name, "): no peer access between them"));
    }
    return absl::OkStatus();
  }
  // The current device is a thread's: a call may come from any.
  void Use() const { Check(cudaSetDevice(index_), "cudaSetDevice"); }
  Stream MakeStreamOf(int priority) {
    cudaStream_t stream = nullptr;
    Check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, priority),
          "cudaStreamCreate");
    absl::MutexLock lock(&mutex_);
    streams_.push_back(stream);
    return stream;
  }
  absl::Status Exhausted(size_t size_bytes, const char* what, cudaError_t error) const {
    return absl::ResourceExhaustedError(absl::StrCat("cuda:", index_, " (", properties_.name,
                                                     "): ", size_bytes, " bytes of ", what, ": ",
                                                     cudaGetErrorString(error)));
  }

  const int index_;
  const DeviceProperties properties_;
  EventPool events_;
  absl::Mutex mutex_;
  std::vector<cudaStream_t> streams_ ABSL_GUARDED_BY(mutex_);
  std::vector<void*> device_memory_ ABSL_GUARDED_BY(mutex_);
  std::vector<void*> pinned_memory_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<int> DeviceCount() {
  // The driver loads each kernel at its first launch, in the middle of the first request that takes
  // it, unless it finds this before it starts. A value that is there stays.
  // Only the first call, before there are other threads, may change the environment.
  static const int set = setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
  if (set != 0) BATON_LOG(Warning) << "CUDA_MODULE_LOADING could not be set";
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess) return count;
  cudaGetLastError();
  DriverState state = {.runtime = CUDART_VERSION,
                       .no_device = error == cudaErrorNoDevice,
                       .error = cudaGetErrorString(error)};
  if (cudaDriverGetVersion(&state.driver) != cudaSuccess) state.driver = 0;
  return CountAfterError(state);
}

absl::StatusOr<std::unique_ptr<Runtime>> OpenDevice(int index) {
  BATON_ASSIGN_OR_RETURN(const int count, DeviceCount());
  if (index < 0 || index >= count) {
    return MakeError(absl::StatusCode::kNotFound, "NO_DEVICE",
                     absl::StrCat("--device cuda:", index, ": found ", count,
                                  " usable GPUs, expected at least ", index + 1));
  }
  const auto unusable = [&](const char* call, cudaError_t error) {
    cudaGetLastError();
    return MakeError(absl::StatusCode::kFailedPrecondition, "DEVICE_UNUSABLE",
                     absl::StrCat("cuda:", index, ": ", call, ": ", cudaGetErrorString(error)));
  };
  cudaDeviceProp found = {};
  if (const cudaError_t error = cudaGetDeviceProperties(&found, index); error != cudaSuccess) {
    return unusable("cudaGetDeviceProperties", error);
  }
  DeviceProperties properties;
  properties.name = found.name;
  properties.uuid = UuidOf(found);
  properties.compute_capability = found.major * 10 + found.minor;
  properties.multiprocessors = found.multiProcessorCount;
  properties.shared_bytes = found.sharedMemPerMultiprocessor;
  properties.l2_bytes = static_cast<size_t>(found.l2CacheSize);
  if (properties.compute_capability < kOldest) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "DEVICE_UNUSABLE",
                     absl::StrCat("cuda:", index, " (", found.name, ") has compute capability ",
                                  found.major, ".", found.minor, ", expected 7.5 or newer"));
  }
  if (const cudaError_t error = cudaSetDevice(index); error != cudaSuccess) {
    return unusable("cudaSetDevice", error);
  }
  // For PTX that the driver compiles for a newer chip, ptxVersion is the PTX's, by which the source
  // chose its paths.
  cudaFuncAttributes kernel = {};
  if (const cudaError_t error = cudaFuncGetAttributes(&kernel, RopeWriteKernelOfBFloat16());
      error != cudaSuccess) {
    return unusable("cudaFuncGetAttributes", error);
  }
  properties.kernel_capability = std::min(properties.compute_capability, kernel.ptxVersion);
  if (const cudaError_t error = cudaMemGetInfo(&properties.free_bytes, &properties.total_bytes);
      error != cudaSuccess) {
    return unusable("cudaMemGetInfo", error);
  }
  if (const cudaError_t error = cudaDriverGetVersion(&properties.driver); error != cudaSuccess) {
    return unusable("cudaDriverGetVersion", error);
  }
  properties.reserved_bytes = kReservedBytes;
  return std::make_unique<CudaRuntime>(index, std::move(properties));
}

}  // namespace baton::backend::cuda
