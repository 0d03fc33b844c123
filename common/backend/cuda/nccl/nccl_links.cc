#include "common/backend/cuda/nccl/nccl_links.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/backend/cuda/kernels/blocks.h"
#include "common/backend/cuda/runtime/arena.h"
#include "common/backend/cuda/runtime/device_share.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace baton::backend::cuda {
namespace {

// Bytes of one operation: as many chunks as fit. Messages of that size run at the rate of the link.
constexpr size_t kOperationBytes = size_t{4} << 20;

size_t Rounded(size_t bytes) {
  return (bytes + Arena::kAlignment - 1) / Arena::kAlignment * Arena::kAlignment;
}

}  // namespace

class NcclLinks::Link final : public DeviceLink {
 public:
  Link(std::shared_ptr<NcclLinks> links, Slot slot, NcclLibrary::Communicator communicator,
       int rank)
      : links_(std::move(links)), slot_(slot), communicator_(communicator), peer_(1 - rank) {}
  ~Link() override {
    BATON_CHECK(communicator_ == nullptr) << "a link goes without Abort";
    absl::MutexLock lock(&links_->mutex_);
    links_->free_.push_back(slot_);
  }

  State Poll() override {
    if (state_ != State::kConnecting && state_ != State::kBusy) return state_;
    // Done is asked while the device works, too: an error of the peer or the network comes this
    // way.
    const absl::StatusOr<bool> done = nccl().Done(communicator_);
    if (!done.ok()) return Fail(done.status());
    if (!*done) return state_;
    if (state_ == State::kConnecting) return state_ = State::kIdle;
    // The operation is on the stream now, and not earlier.
    if (end_ == nullptr) end_ = runtime().Record(slot_.stream);
    if (!end_->Done()) return state_;
    end_ = nullptr;
    return state_ = State::kIdle;
  }
  absl::Status error() const override { return error_; }

  void Send(SlotRange slots, absl::Span<const int32_t> pages) override {
    const size_t chunks = static_cast<size_t>(slots.count) * pages.size();
    Begin(chunks);
    LaunchGatherKv(Stage(slots, pages), static_cast<int>(pages.size()), 1, slot_.stream);
    SendStaged(chunks);
  }
  void SendStaging(int chunk_count) override {
    Begin(static_cast<size_t>(chunk_count));
    SendStaged(static_cast<size_t>(chunk_count));
  }
  void Receive(int chunk_count) override {
    Begin(static_cast<size_t>(chunk_count));
    const absl::Status status = nccl().Receive(
        communicator_, slot_.staging, static_cast<size_t>(chunk_count) * links_->chunk_bytes_,
        peer_, slot_.stream);
    if (!status.ok()) Fail(status);
  }
  void Store(SlotRange slots, absl::Span<const int32_t> pages) override {
    BATON_CHECK(state_ == State::kIdle);
    LaunchScatterKv(Stage(slots, pages), static_cast<int>(pages.size()), 1, slot_.stream);
    runtime().Record(slot_.stream)->Wait();
  }

  void Abort() override {
    nccl().Abort(std::exchange(communicator_, nullptr));
    end_ = nullptr;
    // NCCL's kernels have ended; what was enqueued around them may not have.
    runtime().Synchronize(slot_.stream);
  }

 private:
  NcclLibrary& nccl() { return links_->nccl_; }
  Runtime& runtime() { return links_->runtime_; }
  State Fail(absl::Status error) {
    error_ = std::move(error);
    return state_ = State::kFailed;
  }
  void Begin(size_t chunks) {
    BATON_CHECK(state_ == State::kIdle);
    BATON_CHECK(chunks >= 1 && chunks <= static_cast<size_t>(links_->most_chunks_)) << chunks;
    state_ = State::kBusy;
  }
  void SendStaged(size_t chunks) {
    const absl::Status status = nccl().Send(communicator_, slot_.staging,
                                            chunks * links_->chunk_bytes_, peer_, slot_.stream);
    if (!status.ok()) Fail(status);
  }
  // Enqueues the ids' way to the device. A page's slots are one chunk to the kernels: they lie one
  // behind the other.
  StageKvLaunch Stage(SlotRange slots, absl::Span<const int32_t> pages) {
    const KvPool& pool = links_->pool_;
    BATON_CHECK(slots.first >= 0 && slots.count > 0 &&
                (slots.first + slots.count) * pool.layer_stride_bytes <= pool.block_stride_bytes)
        << slots.count << " slots from " << slots.first << " on";
    BATON_CHECK_LE(static_cast<size_t>(slots.count) * pages.size(),
                   static_cast<size_t>(links_->most_chunks_));
    for (const int32_t page : pages) {
      BATON_CHECK(page >= 0 && page < pool.block_count) << "page " << page;
    }
    // The link is idle: the device has read what was there.
    std::memcpy(slot_.pinned_ids, pages.data(), pages.size() * sizeof(int32_t));
    runtime().CopyToDevice(slot_.ids, slot_.pinned_ids, pages.size() * sizeof(int32_t),
                           slot_.stream);
    return {.base = pool.base,
            .block_stride_bytes = pool.block_stride_bytes,
            .layer_stride_bytes = pool.layer_stride_bytes,
            .chunk_bytes = slots.count * pool.layer_stride_bytes,
            .first_layer = slots.first,
            .blocks = slot_.ids,
            .staging = slot_.staging};
  }

  const std::shared_ptr<NcclLinks> links_;
  const Slot slot_;
  NcclLibrary::Communicator communicator_;
  const int peer_;
  State state_ = State::kConnecting;
  std::unique_ptr<DeviceEvent> end_;  // of the operation, once it is on the stream
  absl::Status error_;
};

NcclLinks::NcclLinks(const KvPool& pool, Runtime& runtime, NcclLibrary& nccl)
    : pool_(pool),
      chunk_bytes_(static_cast<size_t>(pool.layer_stride_bytes)),
      most_chunks_(static_cast<int>(std::max<size_t>(1, kOperationBytes / chunk_bytes_))),
      runtime_(runtime),
      nccl_(nccl) {}

absl::StatusOr<std::shared_ptr<NcclLinks>> NcclLinks::Make(const KvPool& pool, Runtime& runtime,
                                                           NcclLibrary& nccl) {
  std::shared_ptr<NcclLinks> links(new NcclLinks(pool, runtime, nccl));
  BATON_RETURN_IF_ERROR(links->Allocate());
  return links;
}

absl::Status NcclLinks::Allocate() {
  const auto most = static_cast<size_t>(most_chunks_);
  const size_t id_bytes = Rounded(most * sizeof(int32_t));
  const size_t slot_bytes = id_bytes + Rounded(most * chunk_bytes_);
  BATON_ASSIGN_OR_RETURN(void* const device, runtime_.AllocateDevice(kMostLinks * slot_bytes));
  BATON_ASSIGN_OR_RETURN(void* const pinned, runtime_.AllocatePinned(kMostLinks * id_bytes));
  absl::MutexLock lock(&mutex_);
  for (size_t i = 0; i < kMostLinks; ++i) {
    Slot slot;
    slot.stream = runtime_.MakeUrgentStream();
    slot.ids = reinterpret_cast<int32_t*>(static_cast<std::byte*>(device) + i * slot_bytes);
    slot.staging = static_cast<std::byte*>(device) + i * slot_bytes + id_bytes;
    slot.pinned_ids = reinterpret_cast<int32_t*>(static_cast<std::byte*>(pinned) + i * id_bytes);
    free_.push_back(slot);
  }
  // CUDA loads a kernel at its first launch, and may wait for the device then: not while a rank of
  // another link waits there. Nothing changes: a chunk goes to staging and back.
  const Slot& slot = free_.back();
  std::memset(slot.pinned_ids, 0, sizeof(int32_t));
  runtime_.CopyToDevice(slot.ids, slot.pinned_ids, sizeof(int32_t), slot.stream);
  const StageKvLaunch launch = {.base = pool_.base,
                                .block_stride_bytes = pool_.block_stride_bytes,
                                .layer_stride_bytes = pool_.layer_stride_bytes,
                                .chunk_bytes = pool_.layer_stride_bytes,
                                .first_layer = 0,
                                .blocks = slot.ids,
                                .staging = slot.staging};
  LaunchGatherKv(launch, 1, 1, slot.stream);
  LaunchScatterKv(launch, 1, 1, slot.stream);
  runtime_.Synchronize(slot.stream);
  return absl::OkStatus();
}

std::string NcclLinks::device() const {
  const DeviceUuid& uuid = runtime_.properties().uuid;
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(uuid.data()), uuid.size()));
}

absl::StatusOr<std::string> NcclLinks::MakeId() {
  runtime_.UseOnThisThread();
  return nccl_.MakeId();
}

absl::StatusOr<std::unique_ptr<DeviceLink>> NcclLinks::Connect(const std::string& id, int rank) {
  runtime_.UseOnThisThread();
  std::optional<Slot> slot;
  {
    absl::MutexLock lock(&mutex_);
    if (!free_.empty()) {
      slot = free_.back();
      free_.pop_back();
    }
  }
  if (!slot) {
    return MakeError(absl::StatusCode::kResourceExhausted, "DEVICE_LINK",
                     absl::StrCat("this device has ", kMostLinks,
                                  " links, or some that hang while they are aborted"));
  }
  absl::StatusOr<NcclLibrary::Communicator> communicator = nccl_.Connect(id, rank);
  if (!communicator.ok()) {
    absl::MutexLock lock(&mutex_);
    free_.push_back(*slot);
    return communicator.status();
  }
  return std::make_unique<Link>(shared_from_this(), *slot, *communicator, rank);
}

}  // namespace baton::backend::cuda
