// The sending end of one KV transfer. Its frames point into the blocks where the host can address
// them; otherwise they hold a copy made from the device.
#ifndef BATON_COMMON_TRANSFER_KV_SENDER_H_
#define BATON_COMMON_TRANSFER_KV_SENDER_H_

#include <grpcpp/support/byte_buffer.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "baton/internal/v1/prefill.pb.h"
#include "baton/v1/inference.pb.h"
#include "common/backend/backend.h"
#include "common/base/rpc/server_stream.h"
#include "common/kv/block_pool.h"
#include "common/kv/kv_layout.h"
#include "common/transfer/link_schedule.h"
#include "common/transfer/plane.h"

namespace baton::transfer {

// Keeps KV blocks unchanged until the last reference to this object is dropped. Frames in gRPC's
// buffers, which point into the blocks, hold references too. `release` runs on the thread that
// drops the last reference.
class PinnedBlocks {
 public:
  // `pages`: of the blocks, [table][block] (kv::BlockLease::Tables).
  PinnedBlocks(std::vector<int32_t> pages, absl::AnyInvocable<void()> release)
      : pages_(std::move(pages)), release_(std::move(release)) {}
  ~PinnedBlocks() { release_(); }
  PinnedBlocks(const PinnedBlocks&) = delete;
  PinnedBlocks& operator=(const PinnedBlocks&) = delete;
  const std::vector<int32_t>& pages() const { return pages_; }
  // Sets the pages of blocks from `first` on; `pages` are [table][block]. REQUIRES: none of these
  // blocks is in a message yet.
  void SetPages(int first, absl::Span<const int32_t> pages, int tables);

 private:
  std::vector<int32_t> pages_;
  absl::AnyInvocable<void()> release_;
};

// An item of the send queue; its frame is built when the stream is ready for it.
struct SendItem {
  enum class Kind { kAccepted, kKvChunk, kPromptLogprobs, kFirstToken, kCommit };
  Kind kind = Kind::kAccepted;
  int layer = 0;
  int layer_count = 1;
  int first_block = 0;
  int block_count = 0;  // of the frame; of the whole transfer in kAccepted
  int cached_prompt_tokens = 0;
  int32_t token_id = 0;
  int first_position = 0;
  std::vector<v1::TokenLogprobs> logprobs;  // of the first token, if requested, or of prompt tokens
  double queue_ms = 0;
  double prefill_ms = 0;
  std::shared_ptr<const PinnedBlocks> blocks;
  // Null: the blocks were written before this transfer began.
  std::shared_ptr<const backend::Event> written;
  bool known_written = false;  // the event has happened
  bool failed_over = false;    // the device link has lost the chunk: it is sent as a payload
};

// Called with the number of bytes sent, for metrics. Must be thread-safe.
using OnBytesSent = std::function<void(int64_t, Plane)>;

class DeviceLinkSender;
class ReadLease;
class SharedPoolServer;

// The blocks [first_block, end_block) of a layer, counted from the start of the prompt.
struct LayerBlocks {
  int layer = 0;
  int first_block = 0;
  int end_block = 0;
};

// What a worker's loop sees of a transfer.
class KvSender {
 public:
  virtual ~KvSender() = default;
  // block_count: blocks that will be sent.
  virtual void SendAccepted(int block_count, int cached_prompt_tokens) = 0;
  // Sends the prompt's blocks [first_block, first_block + block_count) of `layer`, counted from the
  // start of the prompt. Their pages are those of blocks->pages() at those indexes.
  virtual void SendLayer(int layer, int first_block, int block_count,
                         std::shared_ptr<const PinnedBlocks> blocks,
                         std::shared_ptr<const backend::Event> written) = 0;
  // Sends what was written before the transfer began. All is queued before the first frame of it is
  // made, so that layers which fit share frames.
  virtual void SendCached(const std::vector<LayerBlocks>& layers,
                          std::shared_ptr<const PinnedBlocks> blocks) = 0;
  virtual void SendCommit(double queue_ms, double prefill_ms) = 0;
  // How the transfer's KV is meant to cross.
  virtual Plane plane() const { return Plane::kGrpc; }
  // Call exactly once. OK: the stream ends after what has been sent. An error: it ends at once, and
  // pending items are dropped.
  virtual void Finish(const absl::Status& status) = 0;
};

// Splits each message into SendItems, and encodes an item as a frame when the transport asks for
// it. Layers and log probabilities are sent in frames of at most 1 MiB; small layers that wait
// together share one. (Where blocks are named, a frame is of up to kMostRunBytes, which it has as
// its payload if the receiver has just lost them.) Thread-safe if PushItem and PushItems are.
class FrameSender : public KvSender {
 public:
  // Large enough to amortise a message's cost, small enough to interleave with the first token.
  static constexpr int64_t kMaxPayloadBytes = 1 << 20;
  struct Options {
    uint64_t transfer_id = 0;
    uint64_t epoch = 0;  // the sender's
    kv::KvLayout layout;
    backend::KvPool pool;
    int64_t max_payload_bytes = kMaxPayloadBytes;  // of a frame that has more than one block
    std::function<void()> on_peer_gone;            // called on a gRPC thread, at most once
    OnBytesSent on_bytes_sent;
    // Orders the KV of transfers over one connection, which `link` names; null: no order.
    std::shared_ptr<LinkSchedule> schedule;
    std::string link;
    absl::Time deadline = absl::InfiniteFuture();  // the caller's
    // Set: the receiver reads KV from the pool itself.
    std::shared_ptr<ReadLease> lease;
    bool check_shared = true;  // with a checksum of what it reads; never of device memory
    bool layer_runs = false;   // the receiver takes chunks of several layers
    const SharedPoolServer* offered = nullptr;  // to a receiver that could; must outlive the sender
    // Set: KV crosses as operations of this link while it is open.
    std::shared_ptr<DeviceLinkSender> device_link;
    bool offers_device_link = false;  // to a receiver that has none to this worker
    std::function<void(const absl::Status&)> on_finish;  // before Finish; may be null
  };
  explicit FrameSender(Options options);

  void SendAccepted(int block_count, int cached_prompt_tokens) override;
  void SendLayer(int layer, int first_block, int block_count,
                 std::shared_ptr<const PinnedBlocks> blocks,
                 std::shared_ptr<const backend::Event> written) override;
  void SendCached(const std::vector<LayerBlocks>& layers,
                  std::shared_ptr<const PinnedBlocks> blocks) override;
  // Sends the log probabilities of the prompt's tokens from first_position on. Call for all of them
  // before SendFirstToken.
  void SendPromptLogprobs(int first_position, std::vector<v1::TokenLogprobs> logprobs);
  // Overtakes KV that waits to be sent, unless log probabilities of the prompt were sent: the token
  // stays behind them. `logprobs` is empty if they were not requested.
  void SendFirstToken(int32_t token_id, v1::TokenLogprobs logprobs);
  void SendCommit(double queue_ms, double prefill_ms) override;
  Plane plane() const override {
    if (options_.lease != nullptr) {
      return options_.pool.copier != nullptr ? Plane::kIpc : Plane::kShm;
    }
    return options_.device_link != nullptr ? Plane::kNccl : Plane::kGrpc;
  }

 protected:
  // Makes the item's chunks an operation of the device link, and returns its number; 0: they are
  // sent as a payload.
  virtual uint64_t Announce(const SendItem& item) { return 0; }

  // Takes a chunk of the next layer into the frame of `taken`, if it is written, the frame has
  // room, and both ends find the layers in one place: the pool behind a device is read in few
  // operations, and the slower the way is, the more layers a frame has.
  bool JoinLayers(SendItem& taken, const SendItem& next) const;
  // `urgent` items go before all others that wait.
  virtual void PushItem(SendItem item, bool urgent) = 0;
  // Pushes items in order, none of them urgent.
  virtual void PushItems(std::vector<SendItem> items) {
    for (SendItem& item : items) PushItem(std::move(item), /*urgent=*/false);
  }
  // Makes the item's frame, which refers to the item's blocks and holds them until the last slice
  // is dropped. Waits until the blocks are written; copies those in device memory. Call from one
  // thread at a time.
  void EncodeItem(SendItem item, grpc::ByteBuffer* message);
  const Options& options() const { return options_; }
  // Returns the pages of the item's blocks in its layer's table.
  absl::Span<const int32_t> PagesOf(const SendItem& item) const;
  // The frame of a chunk is void: the receiver counts the one that takes its place.
  void TakeBackChunk() { --kv_chunk_count_; }
  void CountBytes(const SendItem& item, Plane plane) const;

 private:
  // Waits until the KV of the item's frame is written, and returns it.
  std::vector<grpc::Slice> KvSlices(const SendItem& item) const;
  // Waits likewise, and names the blocks in place of a payload. False: the receiver cannot read
  // them, or not any more.
  bool NameBlocks(const SendItem& item, internal::v1::PrefillFrame::KvChunk* chunk) const;

  // Splits the blocks into items of at most one frame each.
  void SplitLayer(const LayerBlocks& part, const std::shared_ptr<const PinnedBlocks>& blocks,
                  const std::shared_ptr<const backend::Event>& written,
                  std::vector<SendItem>& items) const;

  const Options options_;
  // If true, the first token keeps its place in the queue: it must not overtake prompt log
  // probabilities.
  std::atomic<bool> sent_prompt_logprobs_{false};
  std::atomic<int> kv_chunk_count_{0};  // KV frames so far, which the receiver counts
  // The receiver has lost the blocks that it could read: all further ones are payloads.
  mutable std::atomic<bool> lost_lease_{false};
};

// Sends over a Prefill stream. gRPC holds at most one frame of it, and takes the next one when the
// receiver's window has room for that one's last 64 KiB: a receiver that does not read holds back
// the frames here, where they are items without bytes, except the next one of KV in a device, which
// is copied to the host while one is sent. Thread-safe.
class GrpcKvSender final : public ServerStream<grpc::ByteBuffer, SendItem>,
                           public FrameSender,
                           public std::enable_shared_from_this<GrpcKvSender> {
 public:
  using Options = FrameSender::Options;
  using FrameSender::FrameSender;
  ~GrpcKvSender() override;

  void SendAccepted(int block_count, int cached_prompt_tokens) override;
  void Finish(const absl::Status& status) override;

 private:
  void PushItem(SendItem item, bool urgent) override { Push(std::move(item), urgent); }
  void PushItems(std::vector<SendItem> items) override { PushAll(std::move(items)); }
  void Encode(SendItem item, grpc::ByteBuffer* message) override;
  bool Join(SendItem& taken, const SendItem& next) override { return JoinLayers(taken, next); }
  // A frame's copy from the device takes about as long as sending it.
  bool EncodesAhead(const SendItem& next) override;
  bool MayWrite(const SendItem& next) override;
  std::function<void()> OnEmpty() override;
  void OnPeerGone() override;
  uint64_t Announce(const SendItem& item) override;
  // An operation of this transfer has ended. False: its chunk may not have arrived.
  void OperationEnded(SendItem item, bool stored);

  std::atomic<LinkSchedule::Transfer> transfer_{0};  // 0: not in the order
  std::atomic<bool> peer_gone_{false};
  std::atomic<int> open_operations_{0};  // of the device link; the commit waits for them
};

}  // namespace baton::transfer

#endif  // BATON_COMMON_TRANSFER_KV_SENDER_H_
