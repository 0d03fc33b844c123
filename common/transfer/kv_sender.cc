#include "common/transfer/kv_sender.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>

#include "absl/types/span.h"
#include "baton/internal/v1/prefill.pb.h"
#include "common/base/check.h"
#include "common/base/rpc/grpc_status.h"
#include "common/transfer/checksum.h"
#include "common/transfer/device_link_sender.h"
#include "common/transfer/frame_codec.h"
#include "common/transfer/shared_pool_server.h"

namespace baton::transfer {
namespace {

// Bytes of a frame of prompt log probabilities, its other fields left out.
constexpr size_t kMaxLogprobBytes = (1 << 20) - 256;
constexpr size_t kMaxFieldHeaderBytes = 6;

using BlocksPin = std::shared_ptr<const PinnedBlocks>;

void DropPin(void* pin) { delete static_cast<BlocksPin*>(pin); }
void DropCopy(void* bytes) { delete[] static_cast<std::byte*>(bytes); }

}  // namespace

void PinnedBlocks::SetPages(int first, absl::Span<const int32_t> pages, int tables) {
  const size_t stride = pages_.size() / static_cast<size_t>(tables);
  const size_t count = pages.size() / static_cast<size_t>(tables);
  BATON_CHECK_LE(static_cast<size_t>(first) + count, stride);
  for (size_t table = 0; table < static_cast<size_t>(tables); ++table) {
    std::copy_n(pages.begin() + table * count, count,
                pages_.begin() + table * stride + static_cast<size_t>(first));
  }
}

FrameSender::FrameSender(Options options) : options_(std::move(options)) {}

void FrameSender::SendAccepted(int block_count, int cached_prompt_tokens) {
  SendItem item;
  item.kind = SendItem::Kind::kAccepted;
  item.block_count = block_count;
  item.cached_prompt_tokens = cached_prompt_tokens;
  PushItem(std::move(item), /*urgent=*/false);
}

void FrameSender::SendLayer(int layer, int first_block, int block_count, BlocksPin blocks,
                            std::shared_ptr<const backend::Event> written) {
  std::vector<SendItem> items;
  SplitLayer({layer, first_block, first_block + block_count}, blocks, written, items);
  PushItems(std::move(items));
}

void FrameSender::SendCached(const std::vector<LayerBlocks>& layers, BlocksPin blocks) {
  std::vector<SendItem> items;
  for (const LayerBlocks& part : layers) SplitLayer(part, blocks, nullptr, items);
  PushItems(std::move(items));
}

void FrameSender::SplitLayer(const LayerBlocks& part, const BlocksPin& blocks,
                             const std::shared_ptr<const backend::Event>& written,
                             std::vector<SendItem>& items) const {
  const int64_t chunk_bytes = static_cast<int64_t>(options_.layout.ChunkBytes());
  // As much as a frame may have: parts of layers follow each other, and are not joined.
  const int64_t most = options_.lease != nullptr ? kMostRunBytes : options_.max_payload_bytes;
  const int per_frame = options_.device_link != nullptr
                            ? options_.device_link->most_chunks()
                            : static_cast<int>(std::max<int64_t>(1, most / chunk_bytes));
  for (int begin = part.first_block; begin < part.end_block; begin += per_frame) {
    SendItem& item = items.emplace_back();
    item.kind = SendItem::Kind::kKvChunk;
    item.layer = part.layer;
    item.first_block = begin;
    item.block_count = std::min(per_frame, part.end_block - begin);
    item.blocks = blocks;
    item.written = written;
  }
}

bool FrameSender::JoinLayers(SendItem& taken, const SendItem& next) const {
  if (!options_.layer_runs) return false;
  const DeviceLinkSender* const link = options_.device_link.get();
  // What a link has lost goes as it was: its frame has a payload, whose size is bounded.
  if (link != nullptr && (!link->takes_layer_runs() || taken.failed_over || next.failed_over)) {
    return false;
  }
  const int count = taken.layer_count;
  const bool follows = taken.kind == SendItem::Kind::kKvChunk &&
                       next.kind == SendItem::Kind::kKvChunk && next.layer == taken.layer + count &&
                       next.first_block == taken.first_block &&
                       next.block_count == taken.block_count && next.blocks == taken.blocks;
  if (!follows || options_.pool.LayersTogether(taken.layer, count + 1) == count) return false;
  const int64_t chunks = (count + 1) * int64_t{taken.block_count};
  if (link != nullptr && link->open()) {
    if (chunks > link->most_chunks()) return false;
  } else {
    const bool named = options_.lease != nullptr && !lost_lease_;
    const int64_t most = named ? kMostRunBytes : options_.max_payload_bytes;
    if (chunks * options_.layout.ChunkBytes() > most) return false;
  }
  // The device is asked as little as can be: the stream's lock is held.
  const bool same = next.written == taken.written;
  if (!same && next.written != nullptr && !next.written->Done()) return false;
  ++taken.layer_count;
  if (same) return true;
  if (!taken.known_written) {
    taken.known_written = taken.written == nullptr || taken.written->Done();
  }
  if (taken.known_written) taken.written = next.written;  // which has happened
  return true;
}

void FrameSender::SendPromptLogprobs(int first_position, std::vector<v1::TokenLogprobs> logprobs) {
  sent_prompt_logprobs_ = true;
  size_t begin = 0;
  while (begin < logprobs.size()) {
    SendItem item;
    item.kind = SendItem::Kind::kPromptLogprobs;
    item.first_position = first_position + static_cast<int>(begin);
    size_t bytes = 0;
    for (; begin < logprobs.size(); ++begin) {
      // The tag and length around it count, too.
      bytes += logprobs[begin].ByteSizeLong() + kMaxFieldHeaderBytes;
      if (!item.logprobs.empty() && bytes > kMaxLogprobBytes) break;
      item.logprobs.push_back(std::move(logprobs[begin]));
    }
    PushItem(std::move(item), /*urgent=*/false);
  }
}

void FrameSender::SendFirstToken(int32_t token_id, v1::TokenLogprobs logprobs) {
  SendItem item;
  item.kind = SendItem::Kind::kFirstToken;
  item.token_id = token_id;
  item.logprobs.push_back(std::move(logprobs));
  PushItem(std::move(item), /*urgent=*/!sent_prompt_logprobs_);
}

void FrameSender::SendCommit(double queue_ms, double prefill_ms) {
  SendItem item;
  item.kind = SendItem::Kind::kCommit;
  item.queue_ms = queue_ms;
  item.prefill_ms = prefill_ms;
  PushItem(std::move(item), /*urgent=*/false);
}

GrpcKvSender::~GrpcKvSender() {
  if (options().device_link != nullptr) options().device_link->Withdraw(options().transfer_id);
  if (transfer_ != 0) options().schedule->Leave(transfer_);
}

void GrpcKvSender::SendAccepted(int block_count, int cached_prompt_tokens) {
  // Names of blocks need no link.
  if (options().schedule != nullptr && options().lease == nullptr) {
    transfer_ = options().schedule->Join(options().link,
                                         options().layout.NeededBytes(0, block_count, block_count),
                                         options().deadline);
  }
  FrameSender::SendAccepted(block_count, cached_prompt_tokens);
}

bool GrpcKvSender::EncodesAhead(const SendItem& next) {
  return next.kind == SendItem::Kind::kKvChunk && options().pool.copier != nullptr &&
         options().lease == nullptr && options().device_link == nullptr &&
         (next.written == nullptr || next.known_written || next.written->Done());
}

bool GrpcKvSender::MayWrite(const SendItem& next) {
  // What the device link may lose comes again before the commit.
  if (next.kind == SendItem::Kind::kCommit) return open_operations_ == 0;
  if (next.kind != SendItem::Kind::kKvChunk) return true;
  const auto resume = [weak = weak_from_this()] {
    if (const auto self = weak.lock()) self->Resume();
  };
  if (transfer_ != 0 && !options().schedule->MaySend(transfer_, resume)) return false;
  return options().device_link == nullptr || next.failed_over ||
         options().device_link->MayAnnounce(resume);
}

void GrpcKvSender::OnPeerGone() {
  peer_gone_ = true;
  if (options().device_link != nullptr) options().device_link->Withdraw(options().transfer_id);
  if (options().on_peer_gone) options().on_peer_gone();
}

uint64_t GrpcKvSender::Announce(const SendItem& item) {
  if (options().device_link == nullptr || item.failed_over) return 0;
  if (!options().device_link->open()) return 0;
  if (item.written != nullptr) item.written->Wait();
  const absl::Span<const int32_t> pages = PagesOf(item);
  ++open_operations_;
  const uint64_t number = options().device_link->Announce(
      options().transfer_id, {{options().pool.PlaceOf(item.layer).slot, item.layer_count},
                              {pages.begin(), pages.end()},
                              item.blocks,
                              [weak = weak_from_this(), item](bool stored) {
                                if (const auto self = weak.lock())
                                  self->OperationEnded(item, stored);
                              }});
  if (number == 0) --open_operations_;
  // OnPeerGone may have come while the layer was computed: the frame will not be read.
  if (peer_gone_) options().device_link->Withdraw(options().transfer_id);
  return number;
}

void GrpcKvSender::OperationEnded(SendItem item, bool stored) {
  if (stored) {
    CountBytes(item, Plane::kNccl);
  } else {
    TakeBackChunk();
    item.failed_over = true;
    PutBack(std::move(item));
  }
  --open_operations_;
  Resume();
}

std::function<void()> GrpcKvSender::OnEmpty() {
  return transfer_ == 0 ? nullptr : options().schedule->Pause(transfer_);
}

void GrpcKvSender::Encode(SendItem item, grpc::ByteBuffer* message) {
  // Others may use the link while this layer is computed.
  if (transfer_ != 0 && item.written != nullptr && !item.written->Done()) {
    if (const auto next = options().schedule->Pause(transfer_)) next();
  }
  EncodeItem(std::move(item), message);
}

void GrpcKvSender::Finish(const absl::Status& status) {
  if (options().on_finish) options().on_finish(status);
  ServerStream::Finish(ToGrpcStatus(status));
}

absl::Span<const int32_t> FrameSender::PagesOf(const SendItem& item) const {
  const std::vector<int32_t>& pages = item.blocks->pages();
  const int64_t blocks = static_cast<int64_t>(pages.size()) / options_.pool.tables;
  BATON_CHECK_LE(int64_t{item.first_block} + item.block_count, blocks);
  const int64_t first = options_.pool.PlaceOf(item.layer).table * blocks + item.first_block;
  const auto of_item = absl::MakeConstSpan(pages).subspan(static_cast<size_t>(first),
                                                          static_cast<size_t>(item.block_count));
  for (const int32_t page : of_item) BATON_CHECK_GE(page, 0) << "layer " << item.layer;
  return of_item;
}

std::vector<grpc::Slice> FrameSender::KvSlices(const SendItem& item) const {
  const backend::KvPool& pool = options_.pool;
  const size_t chunk_bytes = static_cast<size_t>(options_.layout.ChunkBytes());
  const absl::Span<const int32_t> pages = PagesOf(item);
  const int slot = pool.PlaceOf(item.layer).slot;
  std::vector<grpc::Slice> slices;
  if (pool.copier != nullptr) {
    const size_t bytes = item.layer_count * pages.size() * chunk_bytes;
    auto copy = std::make_unique_for_overwrite<std::byte[]>(bytes);
    pool.copier->Read({slot, item.layer_count}, pages, item.written.get(), copy.get());
    slices.emplace_back(copy.release(), bytes, &DropCopy);
    return slices;
  }
  if (item.written != nullptr) item.written->Wait();
  for (const int32_t page : pages) {
    slices.emplace_back(pool.Chunk(page, slot), item.layer_count * chunk_bytes, &DropPin,
                        new BlocksPin(item.blocks));
  }
  return slices;
}

bool FrameSender::NameBlocks(const SendItem& item,
                             internal::v1::PrefillFrame::KvChunk* chunk) const {
  if (options_.lease == nullptr) return false;
  if (!options_.lease->Keep(item.blocks)) {
    lost_lease_ = true;
    return false;
  }
  if (item.written != nullptr) item.written->Wait();
  const absl::Span<const int32_t> pages = PagesOf(item);
  chunk->mutable_shared_blocks()->Add(pages.begin(), pages.end());
  chunk->set_lease_slot(options_.lease->slot());
  chunk->set_lease(options_.lease->number());
  const backend::KvPool& pool = options_.pool;
  // A checksum of device memory would bring the bytes to the host, which sharing saves.
  if (!options_.check_shared || pool.copier != nullptr) return true;
  const size_t chunk_bytes = static_cast<size_t>(options_.layout.ChunkBytes());
  Segments payload;
  payload.reserve(pages.size());
  const int slot = pool.PlaceOf(item.layer).slot;
  for (const int32_t page : pages) {
    payload.emplace_back(reinterpret_cast<const char*>(pool.Chunk(page, slot)),
                         item.layer_count * chunk_bytes);
  }
  chunk->set_shared_checksum(PayloadChecksum(payload));
  return true;
}

void FrameSender::CountBytes(const SendItem& item, Plane plane) const {
  if (!options_.on_bytes_sent) return;
  const int64_t chunks = int64_t{item.layer_count} * item.block_count;
  options_.on_bytes_sent(chunks * options_.layout.ChunkBytes(), plane);
}

void FrameSender::EncodeItem(SendItem item, grpc::ByteBuffer* message) {
  internal::v1::PrefillFrame frame;
  frame.set_transfer_id(options_.transfer_id);
  frame.set_epoch(options_.epoch);
  std::vector<grpc::Slice> slices;
  Segments payload;
  switch (item.kind) {
    case SendItem::Kind::kAccepted:
      frame.mutable_accepted()->set_kv_layout_fingerprint(options_.layout.Fingerprint());
      frame.mutable_accepted()->set_block_count(item.block_count);
      frame.mutable_accepted()->set_cached_prompt_tokens(item.cached_prompt_tokens);
      if (options_.offered != nullptr) {
        internal::v1::SharedMemoryOffer* offer = frame.mutable_accepted()->mutable_shared_memory();
        offer->set_socket(options_.offered->socket());
        offer->set_token(options_.offered->token());
        offer->set_device(options_.offered->plane() == Plane::kIpc);
      }
      frame.mutable_accepted()->set_device_link(options_.offers_device_link);
      break;
    case SendItem::Kind::kKvChunk:
      frame.mutable_kv_chunk()->set_layer(item.layer);
      if (item.layer_count > 1) frame.mutable_kv_chunk()->set_layer_count(item.layer_count);
      frame.mutable_kv_chunk()->set_first_block(item.first_block);
      frame.mutable_kv_chunk()->set_block_count(item.block_count);
      ++kv_chunk_count_;
      if (NameBlocks(item, frame.mutable_kv_chunk())) {
        CountBytes(item, plane());
      } else if (const uint64_t operation = Announce(item); operation != 0) {
        frame.mutable_kv_chunk()->set_operation(operation);
      } else {
        slices = KvSlices(item);
        CountBytes(item, Plane::kGrpc);
      }
      for (const grpc::Slice& slice : slices) {
        payload.emplace_back(reinterpret_cast<const char*>(slice.begin()), slice.size());
      }
      break;
    case SendItem::Kind::kFirstToken:
      frame.mutable_first_token()->set_token_id(item.token_id);
      *frame.mutable_first_token()->mutable_logprobs() = std::move(item.logprobs[0]);
      break;
    case SendItem::Kind::kPromptLogprobs:
      frame.mutable_prompt_logprobs()->set_first_position(item.first_position);
      for (v1::TokenLogprobs& logprobs : item.logprobs) {
        *frame.mutable_prompt_logprobs()->add_logprobs() = std::move(logprobs);
      }
      break;
    case SendItem::Kind::kCommit:
      frame.mutable_commit()->set_kv_chunk_count(kv_chunk_count_);
      frame.mutable_commit()->set_queue_ms(item.queue_ms);
      frame.mutable_commit()->set_prefill_ms(item.prefill_ms);
      break;
  }
  frame.set_checksum(FrameChecksum(frame, payload));
  *message = EncodeFrame(frame, std::move(slices));
}

}  // namespace baton::transfer
