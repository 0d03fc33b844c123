// A KV pool that the host cannot address: its base points at nothing, only the copier gets there.
#ifndef BATON_TESTS_TESTING_DEVICE_KV_H_
#define BATON_TESTS_TESTING_DEVICE_KV_H_

#include <cstdint>
#include <cstring>
#include <functional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/backend/backend.h"
#include "common/base/check.h"

namespace baton::testing {

// Thread-safe.
class DeviceKv final : public backend::KvCopier {
 public:
  // Takes the place of the memory behind `pool`, which has `layers` layers.
  DeviceKv(backend::KvPool& pool, int layers) : layers_(layers) {
    // Inside the first page of the address space, which is never mapped.
    pool.base = reinterpret_cast<std::byte*>(16);
    pool.copier = this;
    pool_ = pool;
    memory_.assign(static_cast<size_t>(pool.block_stride_bytes) * pool.block_count,
                   std::byte{0xee});
  }

  void Read(backend::SlotRange slots, absl::Span<const int32_t> pages,
            const backend::Event* written, std::byte* host) override {
    if (written != nullptr) written->Wait();
    absl::MutexLock lock(&mutex_);
    ++reads_;
    for (const int32_t page : pages) {
      for (int slot = slots.first; slot < slots.first + slots.count; ++slot) {
        std::memcpy(host, Chunk(slot, page), chunk_bytes());
        host += chunk_bytes();
      }
    }
  }
  void Write(backend::SlotRange slots, absl::Span<const int32_t> pages,
             const std::byte* host) override {
    if (before_write) before_write();
    absl::MutexLock lock(&mutex_);
    ++writes_;
    for (const int32_t page : pages) {
      for (int slot = slots.first; slot < slots.first + slots.count; ++slot) {
        std::memcpy(Chunk(slot, page), host, chunk_bytes());
        host += chunk_bytes();
      }
    }
  }

  // Called by each Write, before it writes. Set it before that. May be empty.
  std::function<void()> before_write;

  // Waits until there have been so many reads. False: they do not come in time.
  bool AwaitReads(int count) const {
    const auto read = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return reads_ >= count; };
    absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&read), absl::Seconds(60));
  }

  // What is in the memory, block after block. Not while Read or Write may run.
  std::vector<std::byte>& memory() { return memory_; }
  int reads() const {
    absl::MutexLock lock(&mutex_);
    return reads_;
  }
  int writes() const {
    absl::MutexLock lock(&mutex_);
    return writes_;
  }

 private:
  size_t chunk_bytes() const { return static_cast<size_t>(pool_.layer_stride_bytes); }
  std::byte* Chunk(int layer, int32_t block) {
    BATON_CHECK(layer >= 0 && layer < layers_) << "layer " << layer;
    BATON_CHECK(block >= 0 && block < pool_.block_count) << "block " << block;
    return memory_.data() + block * pool_.block_stride_bytes + layer * pool_.layer_stride_bytes;
  }

  const int layers_;
  backend::KvPool pool_;
  std::vector<std::byte> memory_;
  mutable absl::Mutex mutex_;
  int reads_ ABSL_GUARDED_BY(mutex_) = 0;
  int writes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace baton::testing

#endif  // BATON_TESTS_TESTING_DEVICE_KV_H_
