#include "common/backend/cuda/runtime/peer_pool.h"

#include <limits>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace baton::backend::cuda {
namespace {

absl::Status CheckHandle(const PoolHandle& handle, const KvPool& ours) {
  const auto unfit = [](absl::string_view what) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "SHARED_MEMORY",
                     absl::StrCat("a peer's KV pool in device memory: ", what));
  };
  if (handle.block_stride_bytes != static_cast<uint64_t>(ours.block_stride_bytes) ||
      handle.layer_stride_bytes != static_cast<uint64_t>(ours.layer_stride_bytes)) {
    return unfit(absl::StrCat("its blocks are ", handle.block_stride_bytes, " bytes apart, layers ",
                              handle.layer_stride_bytes, ", expected ", ours.block_stride_bytes,
                              " and ", ours.layer_stride_bytes));
  }
  // Without a product that could overflow.
  if (handle.block_count < 1 || handle.block_count > std::numeric_limits<int32_t>::max() ||
      handle.offset > handle.allocation_bytes ||
      handle.block_count > (handle.allocation_bytes - handle.offset) / handle.block_stride_bytes) {
    return unfit(absl::StrCat(handle.block_count, " blocks of ", handle.block_stride_bytes,
                              " bytes from offset ", handle.offset,
                              " on, expected at least one, "
                              "all inside its allocation of ",
                              handle.allocation_bytes, " bytes"));
  }
  return absl::OkStatus();
}

absl::Status Unshared() {
  return MakeError(absl::StatusCode::kFailedPrecondition, "SHARED_MEMORY",
                   "this device does not share memory between processes");
}

}  // namespace

absl::StatusOr<MemoryHandle> Runtime::ExportMemory(void*) { return Unshared(); }
absl::StatusOr<void*> Runtime::OpenPeerMemory(const MemoryHandle&, const DeviceUuid&, size_t) {
  return Unshared();
}
void Runtime::ClosePeerMemory(void*) {}
absl::Status Runtime::CopyFromPeer(void*, const void*, size_t, size_t, size_t, Stream) {
  return Unshared();
}
absl::Status Runtime::AwaitPeerCopies(Stream) { return Unshared(); }

absl::StatusOr<std::unique_ptr<CudaPeerPool>> CudaPeerPool::Open(const PoolHandle& handle,
                                                                 const KvPool& ours,
                                                                 Runtime& runtime, PeerLane& lane) {
  BATON_RETURN_IF_ERROR(CheckHandle(handle, ours));
  BATON_ASSIGN_OR_RETURN(void* const memory, runtime.OpenPeerMemory(handle.memory, handle.device,
                                                                    handle.allocation_bytes));
  {
    absl::MutexLock lock(&lane.mutex);
    if (lane.stream == nullptr) lane.stream = runtime.MakeUrgentStream();
  }
  return absl::WrapUnique(new CudaPeerPool(handle, ours, runtime, lane, memory));
}

CudaPeerPool::CudaPeerPool(const PoolHandle& handle, const KvPool& ours, Runtime& runtime,
                           PeerLane& lane, void* memory)
    : ours_(ours),
      runtime_(runtime),
      lane_(lane),
      memory_(memory),
      base_(static_cast<const std::byte*>(memory) + handle.offset),
      block_count_(static_cast<int>(handle.block_count)) {}

CudaPeerPool::~CudaPeerPool() { runtime_.ClosePeerMemory(memory_); }

absl::Status CudaPeerPool::Copy(SlotRange slots, absl::Span<const int32_t> theirs,
                                absl::Span<const int32_t> ours) {
  BATON_CHECK_EQ(theirs.size(), ours.size());
  BATON_CHECK(slots.first >= 0 && slots.count > 0 &&
              (slots.first + slots.count) * ours_.layer_stride_bytes <= ours_.block_stride_bytes)
      << slots.count << " slots from " << slots.first << " on";
  for (size_t i = 0; i < ours.size(); ++i) {
    BATON_CHECK(ours[i] >= 0 && ours[i] < ours_.block_count) << "block " << ours[i];
    BATON_CHECK(theirs[i] >= 0 && theirs[i] < block_count_) << "block " << theirs[i];
  }
  if (failed_) {
    return MakeError(absl::StatusCode::kUnavailable, "SHARED_MEMORY",
                     "an earlier copy from the peer's KV pool failed");
  }
  // The slots of a page lie one behind the other.
  const int64_t in_block = slots.first * ours_.layer_stride_bytes;
  absl::MutexLock lock(&lane_.mutex);
  absl::Status status = absl::OkStatus();
  for (size_t i = 0, run; i < ours.size() && status.ok(); i += run) {
    run = 1;
    while (i + run < ours.size() && ours[i + run] == ours[i + run - 1] + 1 &&
           theirs[i + run] == theirs[i + run - 1] + 1) {
      ++run;
    }
    status = runtime_.CopyFromPeer(ours_.base + ours[i] * ours_.block_stride_bytes + in_block,
                                   base_ + theirs[i] * ours_.block_stride_bytes + in_block,
                                   static_cast<size_t>(ours_.block_stride_bytes),
                                   static_cast<size_t>(slots.count * ours_.layer_stride_bytes), run,
                                   lane_.stream);
  }
  // Those before one that was refused still write.
  absl::Status done = runtime_.AwaitPeerCopies(lane_.stream);
  if (status.ok()) status = std::move(done);
  if (!status.ok()) failed_ = true;
  return status;
}

}  // namespace baton::backend::cuda
