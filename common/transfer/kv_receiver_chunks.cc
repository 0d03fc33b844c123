// The part of the receiver that takes chunks of KV: checks what a frame says of them, and writes
// them into the pool.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/backend/backend.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/transfer/kv_receiver.h"

namespace baton::transfer {
namespace {

int64_t SizeOf(const Segments& payload) {
  int64_t size = 0;
  for (absl::Span<const char> segment : payload) size += static_cast<int64_t>(segment.size());
  return size;
}

// Hands out a segmented payload as consecutive pieces.
class PayloadReader {
 public:
  explicit PayloadReader(const Segments& payload) : payload_(payload) {}
  void Read(std::byte* target, size_t size) {
    while (size > 0) {
      BATON_CHECK_LT(segment_, payload_.size());
      const absl::Span<const char> segment = payload_[segment_];
      const size_t count = std::min(size, segment.size() - offset_);
      std::memcpy(target, segment.data() + offset_, count);
      target += count;
      size -= count;
      offset_ += count;
      if (offset_ == segment.size()) {
        ++segment_;
        offset_ = 0;
      }
    }
  }

 private:
  const Segments& payload_;
  size_t segment_ = 0;
  size_t offset_ = 0;
};

}  // namespace

absl::Span<const int32_t> KvReceiver::Pages(const Range& range) const {
  const int first = plan_.pool.PlaceOf(range.layer).table * planned_blocks() + range.first_index;
  return absl::MakeConstSpan(plan_.blocks)
      .subspan(static_cast<size_t>(first), static_cast<size_t>(range.block_count));
}

int64_t KvReceiver::Count(const std::vector<bool>& marks, const Range& range) const {
  int64_t count = 0;
  for (int layer = range.layer; layer < range.layer + range.layer_count; ++layer) {
    const auto begin = marks.begin() + int64_t{planned_blocks()} * layer + range.first_index;
    count += std::count(begin, begin + range.block_count, true);
  }
  return count;
}

void KvReceiver::Mark(const Range& range, std::vector<bool>& marks) const {
  for (int layer = range.layer; layer < range.layer + range.layer_count; ++layer) {
    const auto begin = marks.begin() + int64_t{planned_blocks()} * layer + range.first_index;
    std::fill(begin, begin + range.block_count, true);
  }
}

absl::StatusOr<KvReceiver::Range> KvReceiver::RangeOf(
    const internal::v1::PrefillFrame::KvChunk& chunk) const {
  const int64_t layer_count = std::max(1, chunk.layer_count());
  const int64_t first_index = int64_t{chunk.first_block()} - plan_.first_block;
  const int64_t count = chunk.block_count();
  const bool has_layers = chunk.layer() >= 0 && chunk.layer_count() >= 0 &&
                          chunk.layer() + layer_count <= plan_.layout.layers;
  if (has_layers &&
      plan_.pool.LayersTogether(chunk.layer(), static_cast<int>(layer_count)) != layer_count) {
    return ProtocolError(absl::StrCat("chunk of ", layer_count, " layers from ", chunk.layer(),
                                      " on, which do not lie together"));
  }
  int least_index = 0;
  for (int64_t i = 0; has_layers && i < layer_count; ++i) {
    least_index = std::max(least_index, FirstIndex(chunk.layer() + static_cast<int>(i)));
  }
  if (!has_layers || count < 1 || first_index < least_index || first_index + count > block_count_) {
    return ProtocolError(
        absl::StrCat("chunk of ", layer_count, " layers from ", chunk.layer(), " on, blocks ",
                     chunk.first_block(), " to ", int64_t{chunk.first_block()} + count,
                     " is outside layers 0 to ", plan_.layout.layers, ", blocks ",
                     plan_.first_block + least_index, " to ", plan_.first_block + block_count_));
  }
  const Range range = {chunk.layer(), static_cast<int>(layer_count), static_cast<int>(first_index),
                       static_cast<int>(count)};
  const int64_t bytes = range.chunks() * plan_.layout.ChunkBytes();
  if (layer_count > 1 && bytes > kMostRunBytes) {
    return ProtocolError(absl::StrCat("chunk of ", layer_count, " layers has ", bytes,
                                      " bytes, expected at most ", kMostRunBytes));
  }
  return range;
}

absl::Status KvReceiver::OnKvChunk(const internal::v1::PrefillFrame& frame,
                                   const Segments& payload) {
  const internal::v1::PrefillFrame::KvChunk& chunk = frame.kv_chunk();
  BATON_ASSIGN_OR_RETURN(const Range range, RangeOf(chunk));
  const int64_t expected_bytes = range.chunks() * static_cast<int64_t>(plan_.layout.ChunkBytes());
  const bool shared = chunk.shared_blocks_size() > 0;
  const bool linked = chunk.operation() != 0;
  if (shared + linked + !payload.empty() > 1) {
    return ProtocolError("a chunk with two of blocks, an operation and a payload");
  }
  if (!shared && !linked && SizeOf(payload) != expected_bytes) {
    return ProtocolError(absl::StrCat("chunk of ", range.chunks(), " blocks of layers has ",
                                      SizeOf(payload), " bytes, expected ", expected_bytes));
  }
  const int64_t known = Count(received_, range);
  if (known == range.chunks() && !linked) return absl::OkStatus();  // a repetition
  if (known != 0) {
    return ProtocolError("a chunk overlaps an earlier one, or an operation repeats one");
  }
  last_was_ready_ = WasReady(range);
  last_ = range;
  if (linked) return Expect(chunk.operation(), range);
  if (shared) {
    BATON_RETURN_IF_ERROR(ReadShared(chunk, range));
    BATON_RETURN_IF_ERROR(CheckShared(chunk, range));
    summary_.shared_kv_bytes += expected_bytes;
    summary_.shared_plane = shared_pool_->plane();
  } else {
    Write(range, payload);
  }
  Received(range);
  return absl::OkStatus();
}

void KvReceiver::Received(const Range& range) {
  missing_ -= range.chunks() - Count(received_, range);
  Mark(range, received_);
  ++kv_chunk_count_;
  summary_.kv_bytes += range.chunks() * plan_.layout.ChunkBytes();
}

absl::Status KvReceiver::Expect(uint64_t number, const Range& range) {
  if (plan_.device_link == nullptr) {
    return ProtocolError("an operation of a link that is not there");
  }
  if (range.chunks() > plan_.device_link->most_chunks()) {
    return ProtocolError(absl::StrCat("an operation of ", range.chunks(),
                                      " chunks, expected at most ",
                                      plan_.device_link->most_chunks()));
  }
  if (Count(expected_, range) > 0) {
    return ProtocolError("two operations are to bring the same blocks");
  }
  Mark(range, expected_);
  DeviceLinkReceiver::Operation operation;
  const absl::Span<const int32_t> pages = Pages(range);
  operation.slots = SlotsOf(range);
  operation.pages.assign(pages.begin(), pages.end());
  // Abort makes the link forget it before this goes.
  operation.on_end = [this, range](bool stored) {
    absl::MutexLock lock(&mutex_);
    if (!stored) return;  // it comes as a payload
    // Or has come, if the prefill worker has given up the link before this one.
    if (Count(received_, range) > 0) return;
    Received(range);
    summary_.linked_kv_bytes += range.chunks() * plan_.layout.ChunkBytes();
  };
  plan_.device_link->Expect(number, plan_.transfer_id, std::move(operation));
  return absl::OkStatus();
}

absl::Status KvReceiver::ReadShared(const internal::v1::PrefillFrame::KvChunk& chunk,
                                    const Range& range) {
  if (shared_pool_ == nullptr) return ProtocolError("blocks of a pool that is not mapped");
  if (chunk.shared_blocks_size() != chunk.block_count()) {
    return ProtocolError(absl::StrCat("chunk of ", chunk.block_count(), " blocks names ",
                                      chunk.shared_blocks_size()));
  }
  const int64_t block_count = shared_pool_->block_count();
  for (const int32_t block : chunk.shared_blocks()) {
    if (block < 0 || block >= block_count) {
      return ProtocolError(
          absl::StrCat("block ", block, " of the sender's pool, expected 0 to ", block_count - 1));
    }
  }
  if (shared_pool_->plane() == Plane::kIpc) {
    if (chunk.shared_checksum() != 0) return ProtocolError("a checksum of bytes in device memory");
    const absl::Status copied =
        shared_pool_->Copy(SlotsOf(range), chunk.shared_blocks(), Pages(range));
    if (copied.ok()) return copied;
    return MakeError(
        absl::StatusCode::kUnavailable, "PREFILL_LOST",
        absl::StrCat("KV transfer: reading the prefill worker's pool: ", copied.message()));
  }
  Segments blocks;
  blocks.reserve(static_cast<size_t>(range.block_count));
  for (const int32_t block : chunk.shared_blocks()) {
    blocks.emplace_back(
        reinterpret_cast<const char*>(shared_pool_->Chunk(block, SlotsOf(range).first)),
        BytesOfBlock(range));
  }
  Write(range, blocks);
  return absl::OkStatus();
}

absl::Status KvReceiver::CheckShared(const internal::v1::PrefillFrame::KvChunk& chunk,
                                     const Range& range) const {
  if (!shared_pool_->LeaseStands(chunk.lease_slot(), chunk.lease())) {
    return MakeError(absl::StatusCode::kUnavailable, "PREFILL_LOST",
                     "KV transfer: the prefill worker took its blocks back before they were read");
  }
  if (chunk.shared_checksum() == 0) return absl::OkStatus();
  Segments written;
  if (plan_.pool.copier != nullptr) {
    written.emplace_back(reinterpret_cast<const char*>(gathered_.data()), gathered_.size());
  } else {
    for (const int32_t page : Pages(range)) {
      written.emplace_back(
          reinterpret_cast<const char*>(plan_.pool.Chunk(page, SlotsOf(range).first)),
          BytesOfBlock(range));
    }
  }
  if (const uint64_t checksum = PayloadChecksum(written); checksum != chunk.shared_checksum()) {
    return MakeError(
        absl::StatusCode::kDataLoss, "CHECKSUM",
        absl::StrCat("KV read from the prefill worker's pool has checksum ", absl::Hex(checksum),
                     ", expected ", absl::Hex(chunk.shared_checksum())));
  }
  return absl::OkStatus();
}

bool KvReceiver::WasReady(const Range& range) const {
  if (first_token_) return true;
  const int64_t end = int64_t{plan_.first_block} + range.first_index + range.block_count;
  if (end * plan_.layout.block_tokens <= summary_.cached_prompt_tokens) return true;
  // A layer that takes several frames. With one layer, and behind a frame that had all of them, the
  // next chunk of the prompt goes on there, too, when it has been computed.
  return plan_.layout.attention_layers() > 1 && range.layer_count == 1 && last_.layer_count == 1 &&
         range.layer == last_.layer && range.first_index == last_.first_index + last_.block_count;
}

void KvReceiver::Write(const Range& range, const Segments& payload) {
  PayloadReader reader(payload);
  const backend::KvPool& pool = plan_.pool;
  const absl::Span<const int32_t> pages = Pages(range);
  const backend::SlotRange slots = SlotsOf(range);
  if (pool.copier != nullptr) {
    gathered_.resize(pages.size() * BytesOfBlock(range));
    reader.Read(gathered_.data(), gathered_.size());
    pool.copier->Write(slots, pages, gathered_.data());
    return;
  }
  for (const int32_t page : pages) reader.Read(pool.Chunk(page, slots.first), BytesOfBlock(range));
}

}  // namespace baton::transfer
