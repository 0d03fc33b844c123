// What the backend needs of a device besides kernels: memory, streams, events, copies. Two kinds:
// a GPU through CUDA, and the CPU of emulated.h, where all is done when it returns.
//
// Thread-safe but for the order of what is enqueued on one stream. An error of the device itself (a
// launch that failed, a lost GPU) ends the process with a message: nothing computed since can be
// trusted, and the cluster knows what to do with a worker that died.
#ifndef BATON_COMMON_BACKEND_CUDA_RUNTIME_RUNTIME_H_
#define BATON_COMMON_BACKEND_CUDA_RUNTIME_RUNTIME_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "common/backend/backend.h"
#include "common/backend/cuda/simt/simt.h"
#include "common/base/check.h"

namespace baton::backend::cuda {

struct DeviceProperties {
  std::string name;            // e.g. "Tesla T4"
  int compute_capability = 0;  // 75 for 7.5
  // Of the kernels that run on it: that which they were compiled for, at most the device's.
  int kernel_capability = 0;
  int multiprocessors = 0;
  size_t shared_bytes = 0;  // shared memory of a multiprocessor
  size_t l2_bytes = 0;      // of the last cache before the memory
  int driver = 0;           // the version of CUDA that it serves: 13000 for 13.0
  size_t total_bytes = 0;
  size_t free_bytes = 0;      // when it was opened
  size_t reserved_bytes = 0;  // of these: what the driver and libraries take later, as kernels load
};

// A point of a stream. The runtime outlives it.
using DeviceEvent = Event;

// When a stream got to a point. The runtime outlives it.
class TimePoint {
 public:
  virtual ~TimePoint() = default;
  // Waits for both, which are of one stream.
  virtual double SecondsSince(const TimePoint& earlier) const = 0;
};

// Kernels with their arguments, launched again as one: a CUDA graph. The runtime outlives it; what
// it launched is over when it is destroyed.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void Launch(Stream stream) = 0;
};

class Runtime {
 public:
  virtual ~Runtime() = default;
  virtual const DeviceProperties& properties() const = 0;

  // RESOURCE_EXHAUSTED. Aligned to 256 bytes or more; freed with the runtime.
  virtual absl::StatusOr<void*> AllocateDevice(size_t size_bytes) = 0;
  // Host memory that the device copies to and from by itself; freed with the runtime.
  virtual absl::StatusOr<void*> AllocatePinned(size_t size_bytes) = 0;
  // Lives as long as the runtime.
  virtual Stream MakeStream() = 0;
  // The same, but what is enqueued on it goes before what is on MakeStream()'s, where the device
  // has a choice.
  virtual Stream MakeUrgentStream() { return MakeStream(); }

  // Enqueued; host memory must be pinned.
  virtual void CopyToDevice(void* device, const void* pinned, size_t size_bytes, Stream stream) = 0;
  virtual void CopyToHost(void* pinned, const void* device, size_t size_bytes, Stream stream) = 0;
  virtual void Zero(void* device, size_t size_bytes, Stream stream) = 0;
  // Waits for all that was enqueued.
  virtual void Synchronize(Stream stream) = 0;
  virtual std::unique_ptr<DeviceEvent> Record(Stream stream) = 0;
  // What `enqueue` launches on `stream`, which is not run now. Null if the device has no memory
  // left for a graph. REQUIRES: it launches kernels there, each launched before, and does nothing
  // else with the device.
  virtual std::unique_ptr<Graph> Capture(Stream stream, absl::FunctionRef<void()> enqueue) = 0;

  // For benchmarks: a device made for a test may lack them.
  virtual void CopyOnDevice(void* to, const void* from, size_t size_bytes, Stream stream) {
    BATON_CHECK(false) << "this device copies nothing within itself";
  }
  virtual std::unique_ptr<TimePoint> MarkTime(Stream stream) {
    BATON_CHECK(false) << "this device has no clock";
    return nullptr;
  }
};

// A device of that many bytes, which are NaNs where nothing was written. seed: emulated::Options.
std::unique_ptr<Runtime> MakeEmulatedRuntime(int compute_capability, size_t size_bytes,
                                             uint64_t seed = 0);

// Number of GPUs; 0 if the driver is missing or too old.
int DeviceCount();
// NOT_FOUND (reason NO_DEVICE), FAILED_PRECONDITION (DEVICE_UNUSABLE).
absl::StatusOr<std::unique_ptr<Runtime>> OpenDevice(int index);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_RUNTIME_RUNTIME_H_
