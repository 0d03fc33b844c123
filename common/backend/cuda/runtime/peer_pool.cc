#include "common/backend/cuda/runtime/peer_pool.h"

#include <cstring>
#include <limits>
#include <vector>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/splitmix64.h"
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
  if (handle.allocation_bytes < kProbeBytes ||
      handle.probe_offset > handle.allocation_bytes - kProbeBytes) {
    return unfit(absl::StrCat("its probe block is at ", handle.probe_offset,
                              ", expected to be inside its allocation of ", handle.allocation_bytes,
                              " bytes"));
  }
  return absl::OkStatus();
}

// Long for a copy of some KiB, also while the driver sets up the way between two GPUs.
constexpr absl::Duration kProbeTimeout = absl::Seconds(5);

// OK if no read of a probe block is under way: one that did not end in time may have ended since.
absl::Status AwaitEarlierProbe(Runtime& runtime, PeerProbe& probe) {
  absl::MutexLock lock(&probe.mutex);
  if (!probe.hangs) return absl::OkStatus();
  if (runtime.AwaitPeerCopies(probe.stream, absl::ZeroDuration()).ok()) {
    probe.hangs = false;
    return absl::OkStatus();
  }
  return MakeError(absl::StatusCode::kUnavailable, "SHARED_MEMORY",
                   "an earlier read of a peer's probe block has not ended");
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
absl::Status Runtime::AwaitPeerCopies(Stream, absl::Duration) { return Unshared(); }

std::vector<uint64_t> ProbePattern(uint64_t seed) {
  std::vector<uint64_t> words(kProbeBytes / sizeof(uint64_t));
  for (uint64_t& word : words) word = NextSplitMix64(&seed);
  return words;
}

absl::StatusOr<std::unique_ptr<CudaPeerPool>> CudaPeerPool::Open(const PoolHandle& handle,
                                                                 const KvPool& ours,
                                                                 Runtime& runtime, PeerLane& lane,
                                                                 PeerProbe& probe) {
  BATON_RETURN_IF_ERROR(CheckHandle(handle, ours));
  // Before anything is mapped: to unmap it would wait for what hangs.
  BATON_RETURN_IF_ERROR(AwaitEarlierProbe(runtime, probe));
  BATON_ASSIGN_OR_RETURN(void* const memory, runtime.OpenPeerMemory(handle.memory, handle.device,
                                                                    handle.allocation_bytes));
  {
    absl::MutexLock lock(&lane.mutex);
    if (lane.stream == nullptr) lane.stream = runtime.MakeUrgentStream();
  }
  auto pool = absl::WrapUnique(new CudaPeerPool(handle, ours, runtime, lane, memory));
  BATON_RETURN_IF_ERROR(pool->Prove(handle, probe));
  return pool;
}

CudaPeerPool::CudaPeerPool(const PoolHandle& handle, const KvPool& ours, Runtime& runtime,
                           PeerLane& lane, void* memory)
    : ours_(ours),
      runtime_(runtime),
      lane_(lane),
      memory_(memory),
      base_(static_cast<const std::byte*>(memory) + handle.offset),
      block_count_(static_cast<int>(handle.block_count)) {}

CudaPeerPool::~CudaPeerPool() {
  if (!probe_hangs_) runtime_.ClosePeerMemory(memory_);
}

absl::Status CudaPeerPool::Prove(const PoolHandle& handle, PeerProbe& probe) {
  absl::MutexLock lock(&probe.mutex);
  if (probe.stream == nullptr) probe.stream = runtime_.MakeUrgentStream();
  // What an earlier probe left may be the same bytes.
  runtime_.Zero(probe.device, kProbeBytes, probe.stream);
  BATON_RETURN_IF_ERROR(runtime_.CopyFromPeer(
      probe.device, static_cast<const std::byte*>(memory_) + handle.probe_offset, kProbeBytes,
      kProbeBytes, 1, probe.stream));
  const absl::Status copied = runtime_.AwaitPeerCopies(probe.stream, kProbeTimeout);
  if (absl::IsDeadlineExceeded(copied)) {
    // It may still write to the probe's own memory, and read what is mapped, for as long as this
    // process lives.
    probe.hangs = probe_hangs_ = true;
    return MakeError(absl::StatusCode::kDeadlineExceeded, "SHARED_MEMORY", copied.message());
  }
  BATON_RETURN_IF_ERROR(copied);
  runtime_.CopyToHost(probe.pinned, probe.device, kProbeBytes, probe.stream);
  runtime_.Record(probe.stream)->Wait();
  const std::vector<uint64_t> expected = ProbePattern(handle.probe_seed);
  if (std::memcmp(probe.pinned, expected.data(), kProbeBytes) == 0) return absl::OkStatus();
  return MakeError(absl::StatusCode::kDataLoss, "SHARED_MEMORY",
                   "the probe block beside a peer's KV pool does not have the peer's bytes: what "
                   "this device reads is not that memory");
}

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
  absl::Status status = absl::OkStatus();
  Stream stream = nullptr;
  {
    absl::MutexLock lock(&lane_.mutex);
    stream = lane_.stream;
    status = Enqueue(slots, theirs, ours);
  }
  // Without the lock: the copies of other transfers follow these, and the device never waits for
  // the host between them. Those before one that was refused still write.
  absl::Status done = runtime_.AwaitPeerCopies(stream);
  if (status.ok()) status = std::move(done);
  if (!status.ok()) failed_ = true;
  return status;
}

absl::Status CudaPeerPool::Enqueue(SlotRange slots, absl::Span<const int32_t> theirs,
                                   absl::Span<const int32_t> ours) {
  // The slots of a page lie one behind the other.
  const int64_t in_block = slots.first * ours_.layer_stride_bytes;
  for (size_t i = 0, run; i < ours.size(); i += run) {
    run = 1;
    while (i + run < ours.size() && ours[i + run] == ours[i + run - 1] + 1 &&
           theirs[i + run] == theirs[i + run - 1] + 1) {
      ++run;
    }
    BATON_RETURN_IF_ERROR(runtime_.CopyFromPeer(
        ours_.base + ours[i] * ours_.block_stride_bytes + in_block,
        base_ + theirs[i] * ours_.block_stride_bytes + in_block,
        static_cast<size_t>(ours_.block_stride_bytes),
        static_cast<size_t>(slots.count * ours_.layer_stride_bytes), run, lane_.stream));
  }
  return absl::OkStatus();
}

}  // namespace baton::backend::cuda
