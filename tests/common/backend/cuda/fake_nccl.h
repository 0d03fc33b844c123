// NCCL within this process, on devices whose memory the host can address. What is begun goes on
// only when Done is called, as slowly as the test wants.
#ifndef BATON_TESTS_COMMON_BACKEND_CUDA_FAKE_NCCL_H_
#define BATON_TESTS_COMMON_BACKEND_CUDA_FAKE_NCCL_H_

#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "common/backend/cuda/nccl/nccl_library.h"
#include "common/base/check.h"
#include "common/base/error.h"

namespace baton::backend::cuda {

// Thread-safe.
class FakeNccl final : public NcclLibrary {
 public:
  // Calls of Done that say "in progress" before each end.
  int delay = 1;
  std::optional<absl::Status> connect_error, send_error, async_error;

  int version() const override { return 22809; }
  absl::StatusOr<std::string> MakeId() override {
    absl::MutexLock lock(&mutex_);
    return absl::StrCat("id", ++ids_);
  }
  absl::StatusOr<Communicator> Connect(const std::string& id, int rank) override {
    if (connect_error) return *connect_error;
    absl::MutexLock lock(&mutex_);
    auto end = std::make_unique<End>();
    end->wire = &wires_[id];
    BATON_CHECK(!end->wire->there[rank]) << "two of one rank";
    end->wire->there[rank] = true;
    end->delay = delay;
    ends_.push_back(std::move(end));
    return ends_.back().get();
  }
  absl::StatusOr<bool> Done(Communicator communicator) override {
    if (async_error) return *async_error;
    absl::MutexLock lock(&mutex_);
    End& end = *static_cast<End*>(communicator);
    BATON_CHECK(!end.aborted);
    if (end.delay > 0) {
      --end.delay;
      return false;
    }
    Wire& wire = *end.wire;
    if (!wire.there[0] || !wire.there[1]) return false;
    if (end.sends) {
      if (wire.bytes) return false;  // the last one is not received yet
      wire.bytes = *std::exchange(end.sends, std::nullopt);
    }
    if (end.receives != nullptr) {
      if (!wire.bytes) return false;
      BATON_CHECK_EQ(wire.bytes->size(), end.size_bytes);
      std::memcpy(std::exchange(end.receives, nullptr), wire.bytes->data(), end.size_bytes);
      wire.bytes.reset();
    }
    return true;
  }
  absl::Status Send(Communicator communicator, const void* device, size_t size_bytes, int,
                    Stream) override {
    if (send_error) return *send_error;
    absl::MutexLock lock(&mutex_);
    End& end = *static_cast<End*>(communicator);
    const auto* const bytes = static_cast<const std::byte*>(device);
    end.sends.emplace(bytes, bytes + size_bytes);
    end.delay = delay;
    return absl::OkStatus();
  }
  absl::Status Receive(Communicator communicator, void* device, size_t size_bytes, int,
                       Stream) override {
    absl::MutexLock lock(&mutex_);
    End& end = *static_cast<End*>(communicator);
    end.receives = device;
    end.size_bytes = size_bytes;
    end.delay = delay;
    return absl::OkStatus();
  }
  void Abort(Communicator communicator) override {
    absl::MutexLock lock(&mutex_);
    End& end = *static_cast<End*>(communicator);
    BATON_CHECK(!end.aborted) << "aborted twice";
    end.aborted = true;
    end.receives = nullptr;
    ++aborted_;
  }
  int aborted() const {
    absl::MutexLock lock(&mutex_);
    return aborted_;
  }

 private:
  struct Wire {
    bool there[2] = {false, false};
    std::optional<std::vector<std::byte>> bytes;
  };
  struct End {
    Wire* wire = nullptr;
    int delay = 0;
    bool aborted = false;
    std::optional<std::vector<std::byte>> sends;
    void* receives = nullptr;
    size_t size_bytes = 0;
  };
  mutable absl::Mutex mutex_;
  int ids_ ABSL_GUARDED_BY(mutex_) = 0;
  int aborted_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::string, Wire> wires_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<End>> ends_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::backend::cuda

#endif  // BATON_TESTS_COMMON_BACKEND_CUDA_FAKE_NCCL_H_
