// Moves KV chunks from one device's pool to another's, through a communicator of two ranks: what
// NCCL does. common/backend/cuda/nccl implements it; tests have a fake that misbehaves.
//
// Nothing here touches a pool beside the calls: an operation sends from, and receives into, staging
// memory of the link. A link whose peer hangs spoils its staging and nothing else.
#ifndef BATON_COMMON_BACKEND_DEVICE_LINK_H_
#define BATON_COMMON_BACKEND_DEVICE_LINK_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/backend/kv_copier.h"

namespace baton::backend {

// One end. At most one operation is in progress.
//
// Thread: one at a time. Only Abort and the destructor may block for longer than a copy on the own
// device takes.
class DeviceLink {
 public:
  enum class State {
    kConnecting,  // the other end has not answered yet
    kIdle,
    kBusy,    // an operation is in progress
    kFailed,  // for good; error() says why
  };

  // REQUIRES: Abort has returned. Frees the staging memory.
  virtual ~DeviceLink() = default;
  virtual State Poll() = 0;
  virtual absl::Status error() const = 0;

  // All four REQUIRE State::kIdle, and at most DeviceLinks::most_chunks() chunks: as many as the
  // slots and pages have together.
  // Copies the pages' chunks of the slots into staging and sends that. The pages may change once
  // the link is idle again. REQUIRES: the chunks are written.
  virtual void Send(SlotRange slots, absl::Span<const int32_t> pages) = 0;
  // Sends so many chunks of staging with whatever they hold: the pool, which a step may be writing,
  // is not read.
  virtual void SendStaging(int chunk_count) = 0;
  // Receives so many chunks into staging.
  virtual void Receive(int chunk_count) = 0;
  // Copies the chunks received last into the pages, and waits until that is done.
  virtual void Store(SlotRange slots, absl::Span<const int32_t> pages) = 0;

  // Ends what is in progress. When it returns, neither end of this link touches its memory any
  // more. A library that hangs does not return. Call exactly once, last.
  virtual void Abort() = 0;
};

// A device that can be linked with others. Thread-safe. Links keep it alive.
class DeviceLinks {
 public:
  virtual ~DeviceLinks() = default;
  // The device, the same in every process that uses it. A device cannot be linked with itself.
  virtual std::string device() const = 0;
  // Both ends must have the same.
  virtual int version() const = 0;
  virtual int most_chunks() const = 0;  // of one operation
  virtual int most_links() const = 0;   // at a time: they have memory of the device
  // What both ends of a link pass to Connect. Made by rank 0.
  virtual absl::StatusOr<std::string> MakeId() = 0;
  // Begins to connect; the link's Poll goes on. RESOURCE_EXHAUSTED if there are most_links().
  virtual absl::StatusOr<std::unique_ptr<DeviceLink>> Connect(const std::string& id, int rank) = 0;
};

}  // namespace baton::backend

#endif  // BATON_COMMON_BACKEND_DEVICE_LINK_H_
