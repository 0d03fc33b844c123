// A device's memory, streams, events and copies. Two implementations: a GPU through CUDA, and the
// CPU emulation of emulated.h, where calls return when the work is done.
//
// Thread-safe, but callers order the work of one stream. An error of the device itself (a failed
// launch, a lost GPU) ends the process with a message: later results cannot be trusted, and the
// cluster handles a dead worker.
#ifndef BATON_COMMON_BACKEND_CUDA_RUNTIME_RUNTIME_H_
#define BATON_COMMON_BACKEND_CUDA_RUNTIME_RUNTIME_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/backend/backend.h"
#include "common/backend/cuda/simt/simt.h"
#include "common/base/check.h"

namespace baton::backend::cuda {

using DeviceUuid = std::array<uint8_t, 16>;
// What another process opens an allocation with: CUDA's cudaIpcMemHandle_t.
using MemoryHandle = std::array<uint8_t, 64>;

struct DeviceProperties {
  std::string name;  // e.g. "Tesla T4"
  DeviceUuid uuid = {};
  int compute_capability = 0;  // 75 for 7.5
  // The capability that the kernels were compiled for, at most the device's.
  int kernel_capability = 0;
  int multiprocessors = 0;
  size_t shared_bytes = 0;  // shared memory of a multiprocessor
  size_t l2_bytes = 0;      // size of the L2 cache
  int driver = 0;           // the CUDA version of the driver: 13000 for 13.0
  size_t total_bytes = 0;
  size_t free_bytes = 0;      // when it was opened
  size_t reserved_bytes = 0;  // of free_bytes: left to the driver and libraries, which load kernels
};

// A point in a stream. Must not outlive the runtime.
using DeviceEvent = Event;

// The time at which a stream reached a point. Must not outlive the runtime.
class TimePoint {
 public:
  virtual ~TimePoint() = default;
  // Waits for both. REQUIRES: both are of one stream.
  virtual double SecondsSince(const TimePoint& earlier) const = 0;
};

// Captured launches, replayed as one: a CUDA graph. Must not outlive the runtime. REQUIRES: its
// launches are done when it is destroyed.
class Graph {
 public:
  virtual ~Graph() = default;
  // False if the device has no memory for it: nothing was enqueued.
  virtual bool Launch(Stream stream) = 0;
};

class Runtime {
 public:
  virtual ~Runtime() = default;
  virtual const DeviceProperties& properties() const = 0;
  // Makes this the device of libraries that the calling thread calls.
  virtual void UseOnThisThread() {}

  // Fails with RESOURCE_EXHAUSTED. The result is aligned to at least 256 bytes, and freed with the
  // runtime.
  virtual absl::StatusOr<void*> AllocateDevice(size_t size_bytes) = 0;
  // Pinned host memory; freed with the runtime.
  virtual absl::StatusOr<void*> AllocatePinned(size_t size_bytes) = 0;
  // Lives as long as the runtime.
  virtual Stream MakeStream() = 0;
  // The same with a higher priority than MakeStream()'s, if the device has priorities.
  virtual Stream MakeUrgentStream() { return MakeStream(); }

  // Enqueued; host memory must be pinned.
  virtual void CopyToDevice(void* device, const void* pinned, size_t size_bytes, Stream stream) = 0;
  virtual void CopyToHost(void* pinned, const void* device, size_t size_bytes, Stream stream) = 0;
  virtual void Zero(void* device, size_t size_bytes, Stream stream) = 0;
  // Waits for all work of the stream.
  virtual void Synchronize(Stream stream) = 0;
  virtual std::unique_ptr<DeviceEvent> Record(Stream stream) = 0;
  // Captures what `enqueue` launches on `stream`, without running it, and loads it to the device,
  // so that its first launch allocates nothing. Null if the device has no memory for it. REQUIRES:
  // `enqueue` only launches kernels, on `stream`, and each of them has been launched before, so
  // that none is loaded during the capture.
  virtual std::unique_ptr<Graph> Capture(Stream stream, absl::FunctionRef<void()> enqueue) = 0;

  // Memory of other processes of the host (CUDA IPC), for runtimes with shares_memory().
  //
  // What CUDA promises: a process that has opened an allocation reads and writes it like its own
  // until it closes it. What it does not: the exporter must not free the allocation while another
  // process has it open (undefined), so a prefill worker waits for its readers before it does. And
  // nothing says what becomes of the mapping when the exporter is killed: we expect the driver to
  // keep the memory until the last process has closed it, which tests/cuda will show on a chip.
  // Therefore errors of these calls are statuses and not the end of the process, and copies are
  // enqueued by calls that check their addresses, not by a kernel, which would fault. If the device
  // faults all the same, its context is lost, and the next call of any stream ends the process.
  virtual bool shares_memory() const { return false; }
  // REQUIRES: `memory` is from AllocateDevice. FAILED_PRECONDITION (SHARED_MEMORY) if the driver
  // refuses: under WSL, on a GPU that is cut into instances, or without a unified address space.
  virtual absl::StatusOr<MemoryHandle> ExportMemory(void* memory);
  // Maps what a process exported from GPU `device`, at least size_bytes. FAILED_PRECONDITION
  // (SHARED_MEMORY) if this GPU cannot reach that one, or the driver refuses the handle; CUDA
  // refuses one of the process itself.
  virtual absl::StatusOr<void*> OpenPeerMemory(const MemoryHandle& handle, const DeviceUuid& device,
                                               size_t size_bytes);
  // REQUIRES: from OpenPeerMemory, once for each call; no copy from it runs.
  virtual void ClosePeerMemory(void* memory);
  // Enqueues a copy of `rows` rows of row_bytes, whose starts are stride_bytes apart on both sides.
  // UNAVAILABLE (SHARED_MEMORY) if the driver refuses it.
  virtual absl::Status CopyFromPeer(void* to, const void* from, size_t stride_bytes,
                                    size_t row_bytes, size_t rows, Stream stream);
  // Waits for the stream's copies, like an event's Wait. UNAVAILABLE (SHARED_MEMORY) if one failed,
  // DEADLINE_EXCEEDED (SHARED_MEMORY) if they have not ended within `timeout`.
  virtual absl::Status AwaitPeerCopies(Stream stream,
                                       absl::Duration timeout = absl::InfiniteDuration());

  // For benchmarks; test devices need not implement them.
  virtual void CopyOnDevice(void* to, const void* from, size_t size_bytes, Stream stream) {
    BATON_CHECK(false) << "this device does not support device-to-device copies";
  }
  virtual std::unique_ptr<TimePoint> MarkTime(Stream stream) {
    BATON_CHECK(false) << "this device has no clock";
    return nullptr;
  }
};

// A device with size_bytes of memory, filled with NaNs; other emulated devices, also of other
// processes of the same user, can open it. seed: of the order in which the emulation
// runs blocks and warps.
std::unique_ptr<Runtime> MakeEmulatedRuntime(int compute_capability, size_t size_bytes,
                                             uint64_t seed = 0);

// Number of GPUs; 0 if there is no driver. Fails as CountAfterError (driver_check.h) does.
absl::StatusOr<int> DeviceCount();
// NOT_FOUND (reason NO_DEVICE), FAILED_PRECONDITION (DEVICE_UNUSABLE).
absl::StatusOr<std::unique_ptr<Runtime>> OpenDevice(int index);

}  // namespace baton::backend::cuda

#endif  // BATON_COMMON_BACKEND_CUDA_RUNTIME_RUNTIME_H_
