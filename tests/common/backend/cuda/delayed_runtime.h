// An emulated device as lazy as a GPU may be: copies and launches wait in their streams until the
// host waits for them. Pinned memory that is rewritten too early, freed operands and missing waits
// for events show as wrong data.
#ifndef BATON_TESTS_COMMON_BACKEND_CUDA_DELAYED_RUNTIME_H_
#define BATON_TESTS_COMMON_BACKEND_CUDA_DELAYED_RUNTIME_H_

#include <atomic>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/backend/cuda/emulated/captured_launches.h"
#include "common/backend/cuda/runtime/runtime.h"
#include "common/base/check.h"

namespace baton::backend::cuda {

// Work runs on the host thread that waits for it, and no further than that thread waits for.
class DelayedRuntime final : public Runtime {
 public:
  DelayedRuntime(int compute_capability, size_t size_bytes, uint64_t seed = 0)
      : options_{.compute_capability = compute_capability, .seed = seed},
        memory_(MakeEmulatedRuntime(compute_capability, size_bytes, seed)),
        properties_(memory_->properties()) {}
  ~DelayedRuntime() override {
    for (const auto& queue : queues_) Synchronize(&queue->stream);
  }

  const DeviceProperties& properties() const override { return properties_; }
  // For tests of devices that there are none of.
  DeviceProperties& mutable_properties() { return properties_; }
  absl::StatusOr<void*> AllocateDevice(size_t size_bytes) override {
    return memory_->AllocateDevice(size_bytes);
  }
  absl::StatusOr<void*> AllocatePinned(size_t size_bytes) override {
    if (size_bytes > pinned_left_) return absl::ResourceExhaustedError("no more can be pinned");
    pinned_left_ -= size_bytes;
    return memory_->AllocatePinned(size_bytes);
  }
  // Calls of one thread: pinned memory that can be had from now on.
  void AllowPinned(size_t size_bytes) { pinned_left_ = size_bytes; }
  Stream MakeStream() override {
    absl::MutexLock lock(&mutex_);
    queues_.push_back(std::make_unique<Queue>(mutex_, options_));
    return &queues_.back()->stream;
  }

  void CopyToDevice(void* device, const void* pinned, size_t size_bytes, Stream stream) override {
    ++copies_to_device_;
    if (before_copy_to_device_) before_copy_to_device_();
    QueueOf(stream).Add([=] { Copy(device, pinned, size_bytes); });
  }
  void CopyToHost(void* pinned, const void* device, size_t size_bytes, Stream stream) override {
    QueueOf(stream).Add([=] { Copy(pinned, device, size_bytes); });
  }
  void Zero(void* device, size_t size_bytes, Stream stream) override {
    QueueOf(stream).Add([=] {
      if (size_bytes > 0) std::memset(device, 0, size_bytes);
    });
  }
  void Synchronize(Stream stream) override {
    absl::MutexLock lock(&mutex_);
    Queue& queue = QueueOf(stream);
    queue.RunTo(queue.enqueued);
  }
  std::unique_ptr<DeviceEvent> Record(Stream stream) override {
    absl::MutexLock lock(&mutex_);
    Queue& queue = QueueOf(stream);
    return std::make_unique<StreamPoint>(*this, queue, queue.enqueued);
  }
  std::unique_ptr<Graph> Capture(Stream stream, absl::FunctionRef<void()> enqueue) override {
    if (graphs_ == most_graphs_) return nullptr;
    ++graphs_;
    auto launches = emulated::CapturedLaunches::Capture(
        *static_cast<emulated::EmulatedStream*>(stream), enqueue);
    graph_nodes_ = static_cast<int>(launches.size());
    return std::make_unique<DelayedGraph>(std::move(launches), *this);
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
    if (refuse_peer_copy_-- == 0) return absl::UnavailableError("refused");
    if (lose_peer_copies_) return absl::OkStatus();
    QueueOf(stream).Add([=] {
      for (size_t row = 0; row < rows; ++row) {
        Copy(static_cast<std::byte*>(to) + row * stride_bytes,
             static_cast<const std::byte*>(from) + row * stride_bytes, row_bytes);
      }
    });
    return absl::OkStatus();
  }
  absl::Status AwaitPeerCopies(Stream stream, absl::Duration timeout) override {
    if (hang_peer_copies_ && timeout != absl::InfiniteDuration()) {
      return absl::DeadlineExceededError("HangPeerCopies");
    }
    Synchronize(stream);
    return absl::OkStatus();
  }
  // The copy behind so many others is refused when it is enqueued.
  void RefusePeerCopyAfter(int copies) { refuse_peer_copy_ = copies; }
  // From now on they write nothing, or have no end for those that wait for a limited time.
  void LosePeerCopies(bool lose) { lose_peer_copies_ = lose; }
  void HangPeerCopies(bool hang) { hang_peer_copies_ = hang; }
  int copies_to_device() const { return copies_to_device_; }
  // Called by who copies. Not while someone may.
  void BeforeCopyToDevice(std::function<void()> call) { before_copy_to_device_ = std::move(call); }
  void AllowGraphs(int most) { most_graphs_ = most; }
  // Later launches find no memory.
  void AllowGraphLaunches(int most) { most_graph_launches_ = most; }
  int graphs() const { return graphs_; }
  int graph_launches() const { return graph_launches_; }
  int graph_nodes() const { return graph_nodes_; }  // of the last one that was captured

 private:
  struct Queue final : emulated::LaunchQueue {
    Queue(absl::Mutex& m, const emulated::Options& options)
        : mutex(m), stream{.options = options, .queue = this} {}
    void Enqueue(const emulated::LaunchShape&, std::function<void()> run) override {
      Add(std::move(run));
    }
    void Add(std::function<void()> run) ABSL_LOCKS_EXCLUDED(mutex) {
      absl::MutexLock lock(&mutex);
      work.push_back(std::move(run));
      ++enqueued;
    }
    // Until so many of all that was ever enqueued are done.
    void RunTo(size_t count) {
      mutex.AssertHeld();
      while (done < count) {
        const std::function<void()> run = std::move(work.front());
        work.pop_front();
        run();
        ++done;
      }
    }
    absl::Mutex& mutex;  // the runtime's: one thread at a time computes
    emulated::EmulatedStream stream;
    std::deque<std::function<void()>> work;
    size_t enqueued = 0, done = 0;
  };

  class DelayedGraph final : public Graph {
   public:
    DelayedGraph(std::vector<std::function<void()>> launches, DelayedRuntime& runtime)
        : launches_(std::move(launches)), runtime_(runtime) {}
    bool Launch(Stream stream) override {
      if (++runtime_.graph_launches_ > runtime_.most_graph_launches_) return false;
      for (const std::function<void()>& launch : launches_) QueueOf(stream).Add(launch);
      return true;
    }

   private:
    const std::vector<std::function<void()>> launches_;
    DelayedRuntime& runtime_;
  };

  class StreamPoint final : public DeviceEvent {
   public:
    StreamPoint(DelayedRuntime& runtime, Queue& queue, size_t count)
        : runtime_(runtime), queue_(queue), count_(count) {}
    bool Done() const override {
      absl::MutexLock lock(&runtime_.mutex_);
      return queue_.done >= count_;
    }
    void Wait() const override {
      absl::MutexLock lock(&runtime_.mutex_);
      queue_.RunTo(count_);
    }

   private:
    DelayedRuntime& runtime_;
    Queue& queue_;
    const size_t count_;
  };

  static Queue& QueueOf(Stream stream) {
    BATON_CHECK(stream != nullptr) << "work on no stream";
    auto* const queue = dynamic_cast<Queue*>(static_cast<emulated::EmulatedStream*>(stream)->queue);
    BATON_CHECK(queue != nullptr) << "a capture saw more than launches";
    return *queue;
  }
  static void Copy(void* to, const void* from, size_t size_bytes) {
    if (size_bytes > 0) std::memcpy(to, from, size_bytes);
  }

  const emulated::Options options_;
  const std::unique_ptr<Runtime> memory_;
  size_t pinned_left_ = SIZE_MAX;
  DeviceProperties properties_;
  std::atomic<int> most_graphs_{1 << 20}, most_graph_launches_{1 << 20};
  std::atomic<int> refuse_peer_copy_{-1};
  std::atomic<bool> lose_peer_copies_{false}, hang_peer_copies_{false};
  std::atomic<int> graphs_{0}, graph_launches_{0}, graph_nodes_{0}, copies_to_device_{0};
  std::function<void()> before_copy_to_device_;
  absl::Mutex mutex_;
  std::vector<std::unique_ptr<Queue>> queues_;
};

}  // namespace baton::backend::cuda

#endif  // BATON_TESTS_COMMON_BACKEND_CUDA_DELAYED_RUNTIME_H_
