#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
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
#include "common/base/error.h"
#include "common/base/random_id.h"

namespace baton::backend::cuda {
namespace {

struct Free {
  void operator()(void* memory) const { std::free(memory); }
};

// Device memory: a memory file, so that other processes can map it.
class DeviceMemory {
 public:
  explicit DeviceMemory(size_t bytes)
      : bytes_(bytes), file_(memfd_create("baton-device", MFD_CLOEXEC)) {
    BATON_CHECK(file_ >= 0) << "memfd_create: " << std::strerror(errno);
    BATON_CHECK_EQ(ftruncate(file_, static_cast<off_t>(bytes)), 0);
    data_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    BATON_CHECK(data_ != MAP_FAILED) << bytes << " bytes";
    std::memset(data_, 0xff, bytes);
  }
  // Nothing can touch it until Renew(), which makes it as it was at first.
  void Close() { BATON_CHECK_EQ(mprotect(data_, bytes_, PROT_NONE), 0); }
  void Renew() {
    BATON_CHECK_EQ(mprotect(data_, bytes_, PROT_READ | PROT_WRITE), 0);
    std::memset(data_, 0xff, bytes_);
  }
  // No other process has been told of it, and this one has made it: the child of a fork reuses none
  // of its parent's.
  bool private_to_process() const { return !exported_ && made_by_ == getpid(); }
  void set_exported() { exported_ = true; }
  ~DeviceMemory() {
    munmap(data_, bytes_);
    close(file_);
  }
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  int file() const { return file_; }

 private:
  const size_t bytes_;
  const int file_;
  const pid_t made_by_ = getpid();
  void* data_ = nullptr;
  bool exported_ = false;
};

// Memory of devices that are gone, for the next of the same size: to get pages takes ten times as
// long as to fill them, and tests make a device for each case. Thread-safe.
class SpareMemory {
 public:
  std::unique_ptr<DeviceMemory> Take(size_t bytes) {
    std::unique_ptr<DeviceMemory> memory;
    {
      absl::MutexLock lock(&mutex_);
      const auto spare = std::find_if(spares_.begin(), spares_.end(), [&](const auto& one) {
        return one->bytes() == bytes && one->private_to_process();
      });
      if (spare == spares_.end()) return std::make_unique<DeviceMemory>(bytes);
      memory = std::move(*spare);
      spares_.erase(spare);
    }
    memory->Renew();
    return memory;
  }
  void Give(std::unique_ptr<DeviceMemory> memory) {
    if (!memory->private_to_process()) return;
    memory->Close();
    absl::MutexLock lock(&mutex_);
    if (spares_.size() == kMost) spares_.erase(spares_.begin());
    spares_.push_back(std::move(memory));
  }

 private:
  static constexpr size_t kMost = 2;

  absl::Mutex mutex_;
  std::vector<std::unique_ptr<DeviceMemory>> spares_ ABSL_GUARDED_BY(mutex_);
};

SpareMemory& Spares() {
  static auto* const spares = new SpareMemory;
  return *spares;
}

// What the bytes of a MemoryHandle are here.
struct EmulatedHandle {
  static constexpr uint64_t kMagic = 0x656c646e61486d45;  // "EmHandle"
  uint64_t magic = kMagic;
  int32_t pid = 0;
  int32_t file = -1;
  uint64_t bytes = 0;
};

absl::Status PeerError(absl::StatusCode code, absl::string_view what) {
  return MakeError(code, "SHARED_MEMORY", absl::StrCat("emulated device: ", what));
}

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
  bool Launch(Stream) override {
    for (const std::function<void()>& launch : launches_) launch();
    return true;
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
    properties_.multiprocessors = emulated::kMultiprocessors;
    properties_.shared_bytes = size_t{compute_capability < 80 ? 64u : 164u} << 10;
    properties_.total_bytes = properties_.free_bytes = size_bytes;
    properties_.l2_bytes = size_t{16} << 10;
  }
  ~EmulatedRuntime() override {
    absl::MutexLock lock(&mutex_);
    for (std::unique_ptr<DeviceMemory>& memory : device_memory_) Spares().Give(std::move(memory));
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
    device_memory_.push_back(Spares().Take(Rounded(size_bytes)));
    return device_memory_.back()->data();
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
  bool shares_memory() const override { return true; }
  absl::StatusOr<MemoryHandle> ExportMemory(void* memory) override {
    absl::MutexLock lock(&mutex_);
    const auto allocated =
        std::find_if(device_memory_.begin(), device_memory_.end(),
                     [&](const auto& device_memory) { return device_memory->data() == memory; });
    BATON_CHECK(allocated != device_memory_.end()) << "not from AllocateDevice";
    (*allocated)->set_exported();
    EmulatedHandle exported;
    exported.pid = getpid();
    exported.file = (*allocated)->file();
    exported.bytes = (*allocated)->bytes();
    MemoryHandle handle = {};
    std::memcpy(handle.data(), &exported, sizeof(exported));
    return handle;
  }
  absl::StatusOr<void*> OpenPeerMemory(const MemoryHandle& handle, const DeviceUuid&,
                                       size_t size_bytes) override {
    const auto refused = [](absl::string_view what) {
      return PeerError(absl::StatusCode::kFailedPrecondition, what);
    };
    EmulatedHandle exported;
    std::memcpy(&exported, handle.data(), sizeof(exported));
    if (exported.magic != EmulatedHandle::kMagic) return refused("not a handle");
    const int file = open(absl::StrCat("/proc/", exported.pid, "/fd/", exported.file).c_str(),
                          O_RDONLY | O_CLOEXEC);
    if (file < 0) return refused(absl::StrCat("opening a handle: ", std::strerror(errno)));
    const auto map = [&]() -> absl::StatusOr<void*> {
      char name[64] = {};
      struct stat status;
      if (readlink(absl::StrCat("/proc/self/fd/", file).c_str(), name, sizeof(name) - 1) < 0 ||
          std::strncmp(name, "/memfd:baton-device", 19) != 0 || fstat(file, &status) != 0 ||
          static_cast<uint64_t>(status.st_size) != exported.bytes || size_bytes == 0 ||
          size_bytes > exported.bytes) {
        return refused(absl::StrCat("a handle of no device memory of ", size_bytes, " bytes"));
      }
      // A device could write, too. Nothing here may.
      void* const data = mmap(nullptr, exported.bytes, PROT_READ, MAP_SHARED, file, 0);
      if (data == MAP_FAILED) return refused("mapping a handle");
      return data;
    };
    const absl::StatusOr<void*> memory = map();
    close(file);
    if (memory.ok()) {
      absl::MutexLock lock(&mutex_);
      peers_.push_back({static_cast<const std::byte*>(*memory), exported.bytes});
    }
    return memory;
  }
  void ClosePeerMemory(void* memory) override {
    absl::MutexLock lock(&mutex_);
    const auto peer = std::find_if(peers_.begin(), peers_.end(),
                                   [&](const Peer& open) { return open.data == memory; });
    BATON_CHECK(peer != peers_.end()) << "not from OpenPeerMemory";
    munmap(memory, peer->bytes);
    peers_.erase(peer);
  }
  absl::Status CopyFromPeer(void* to, const void* from, size_t stride_bytes, size_t row_bytes,
                            size_t rows, Stream stream) override {
    CheckNotCaptured(stream);
    if (rows == 0) return absl::OkStatus();
    const auto* const source = static_cast<const std::byte*>(from);
    absl::MutexLock lock(&mutex_);  // it is not closed meanwhile
    const bool inside = std::any_of(peers_.begin(), peers_.end(), [&](const Peer& open) {
      return source >= open.data &&
             source + (rows - 1) * stride_bytes + row_bytes <= open.data + open.bytes;
    });
    if (!inside) return PeerError(absl::StatusCode::kUnavailable, "a copy from no peer's memory");
    for (size_t row = 0; row < rows; ++row) {
      std::memcpy(static_cast<std::byte*>(to) + row * stride_bytes, source + row * stride_bytes,
                  row_bytes);
    }
    return absl::OkStatus();
  }
  absl::Status AwaitPeerCopies(Stream stream, absl::Duration) override {
    CheckNotCaptured(stream);
    return absl::OkStatus();
  }

  void CopyOnDevice(void* to, const void* from, size_t size_bytes, Stream) override {
    if (size_bytes > 0) std::memcpy(to, from, size_bytes);
  }
  std::unique_ptr<TimePoint> MarkTime(Stream) override { return std::make_unique<HostTimePoint>(); }

 private:
  struct Peer {
    const std::byte* data = nullptr;
    size_t bytes = 0;
  };

  static size_t Rounded(size_t size_bytes) { return (size_bytes + 255) / 256 * 256 + 256; }
  void* Keep(size_t size_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const size_t rounded = Rounded(size_bytes);
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
  std::vector<std::unique_ptr<DeviceMemory>> device_memory_ ABSL_GUARDED_BY(mutex_);
  std::vector<Peer> peers_ ABSL_GUARDED_BY(mutex_);  // opened and not closed
  std::vector<std::unique_ptr<emulated::EmulatedStream>> streams_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<Runtime> MakeEmulatedRuntime(int compute_capability, size_t size_bytes,
                                             uint64_t seed) {
  return std::make_unique<EmulatedRuntime>(compute_capability, size_bytes, seed);
}

}  // namespace baton::backend::cuda
