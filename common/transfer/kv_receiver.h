// The receiving end of one KV transfer: checks every frame and writes its blocks.
//
//   RESERVED ── first frame ──▶ RECEIVING ── verified commit ──▶ COMMITTED
//       └──────── any error ────────┴──────────────────────────▶ ABORTED
//
// A transfer reaches exactly one end. Nothing may read the blocks before COMMITTED. A repeated
// chunk is harmless: it is checked and not written again. Independent of gRPC: PrefillCall passes
// it the frames. KV comes as payloads of frames, or is read from the sender's pool (shared_pool.h).
//
// Thread: one at a time, which has a frame. Operations of a device link end on any thread.
#ifndef BATON_COMMON_TRANSFER_KV_RECEIVER_H_
#define BATON_COMMON_TRANSFER_KV_RECEIVER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "baton/internal/v1/prefill.pb.h"
#include "common/backend/kv_copier.h"
#include "common/backend/tensor.h"
#include "common/base/trace_context.h"
#include "common/kv/block_pool.h"
#include "common/kv/kv_layout.h"
#include "common/transfer/checksum.h"
#include "common/transfer/device_link_receiver.h"
#include "common/transfer/link_meter.h"
#include "common/transfer/shared_pools.h"

namespace baton::transfer {

// Label `reason` of baton_kv_transfer_failures_total.
enum class AbortReason {
  kPeerLost,
  kRefused,  // full, draining, or a bad request: the peer itself is well
  kFailed,   // the peer failed
  kChecksum,
  kLayout,
  kEpoch,
  kProtocol,
  kTimeout,
  kCancelled
};
const char* Name(AbortReason reason);
std::vector<std::string> AbortReasonNames();
// Returns the abort reason of a failed call, from the reason that MakeError put into its status.
AbortReason AbortReasonOf(const absl::Status& status);

// DATA_LOSS (PROTOCOL): the peer has sent what the protocol does not have.
absl::Status ProtocolError(absl::string_view message);

// What the receiver has requested.
struct TransferPlan {
  uint64_t transfer_id = 0;
  uint64_t sender_epoch = 0;
  kv::KvLayout layout;
  backend::KvPool pool;
  int first_block = 0;  // index in the sequence of the first block to be sent
  // The pages where sequence blocks first_block, first_block + 1, … go, [table][block]. Of layers
  // with windows, only the blocks that are needed (KvLayout::FirstNeededBlock) are sent.
  std::vector<int32_t> blocks;
  // The sequence's blocks before that of its last token; -1: all of its blocks are whole. Of a
  // layer with a window, the blocks come that a sequence needs which goes on there.
  int whole_blocks = -1;
  // Cached blocks are fetched: no first token comes, and perhaps fewer blocks than requested. The
  // chunks come behind the Accepted, which says how many.
  bool fetch = false;
  int token_count = 0;          // a first token must be below it
  std::optional<int> logprobs;  // top alternatives of the first token, if requested
  // Tokens of the prompt from the second on, if their log probabilities are requested, each with
  // prompt_logprobs top alternatives.
  std::vector<int32_t> prompt_targets;
  int prompt_logprobs = 0;
  TraceContext trace;                         // the call carries it, if it is valid
  std::shared_ptr<LinkMeter::Transfer> link;  // null: the link is not measured
  // The sender's pool, if it is mapped: its blocks may be named in place of payloads. The receiver
  // releases the transfer when it reads no more.
  std::shared_ptr<SharedPool> shared_pool;
  // Called with the sender's offer of its pool, if one comes. May be empty.
  std::function<void(SharedPoolOffer)> on_offer;
  // Chunks may come as operations of this link, if it is set.
  std::shared_ptr<DeviceLinkReceiver> device_link;
  // Called if the sender's device can be linked. May be empty.
  std::function<void()> on_device_link_offer;
};

// What the sender reports before the last layers' KV has arrived.
struct FirstToken {
  int32_t token_id = 0;
  int cached_prompt_tokens = 0;                    // 0 if the sender has not reported it yet
  v1::TokenLogprobs logprobs;                      // empty if not requested
  std::vector<v1::TokenLogprobs> prompt_logprobs;  // one for each of prompt_targets
};

struct TransferSummary {
  int cached_prompt_tokens = 0;
  int block_count = 0;  // that the sender has accepted to send
  int64_t kv_bytes = 0;
  int64_t shared_kv_bytes = 0;       // of these, read from the sender's pool
  Plane shared_plane = Plane::kShm;  // by which those came
  int64_t linked_kv_bytes = 0;       // of kv_bytes, received over a device link
  double queue_ms = 0;
  double prefill_ms = 0;
};

class KvReceiver {
 public:
  enum class Phase { kReserved, kReceiving, kCommitted, kAborted };

  explicit KvReceiver(TransferPlan plan);
  ~KvReceiver() { Abort(); }

  // An error is final and moves to ABORTED: DATA_LOSS (reasons CHECKSUM, PROTOCOL) or
  // FAILED_PRECONDITION (STALE_EPOCH, KV_LAYOUT), with both values in the message.
  absl::Status OnFrame(const internal::v1::PrefillFrame& frame, const Segments& payload);
  // When it returns, nothing writes to the blocks any more. A committed transfer stays committed.
  void Abort();

  Phase phase() const { return phase_; }
  // Set once its frame has arrived.
  const std::optional<FirstToken>& first_token() const { return first_token_; }
  const TransferSummary& summary() const { return summary_; }

 private:
  // A chunk of a frame that has been checked.
  struct Range {
    int layer = 0;
    int layer_count = 1;
    int first_index = 0;  // of the plan's blocks
    int block_count = 0;
    int64_t chunks() const { return int64_t{layer_count} * block_count; }
  };

  absl::Status CheckAndApply(const internal::v1::PrefillFrame& frame, const Segments& payload)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status OnAccepted(const internal::v1::PrefillFrame::Accepted& accepted)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status OnKvChunk(const internal::v1::PrefillFrame& frame, const Segments& payload)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Expects a chunk that has been checked and comes over the device link.
  absl::Status Expect(uint64_t operation, const Range& range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Range> RangeOf(const internal::v1::PrefillFrame::KvChunk& chunk) const;
  // How many of its chunks are marked.
  int64_t Count(const std::vector<bool>& marks, const Range& range) const;
  void Mark(const Range& range, std::vector<bool>& marks) const;
  // The range is written.
  void Received(const Range& range) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status OnPromptLogprobs(const internal::v1::PrefillFrame::PromptLogprobs& frame);
  absl::Status OnFirstToken(const internal::v1::PrefillFrame::FirstToken& first);
  absl::Status CheckLogprobs(const v1::TokenLogprobs& logprobs, int32_t token_id, int top) const;
  absl::Status OnCommit(const internal::v1::PrefillFrame::Commit& commit)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Whether the sender had a new, checked chunk when it sent the frame before.
  bool WasReady(const Range& range) const;
  int planned_blocks() const { return static_cast<int>(plan_.blocks.size()) / plan_.pool.tables; }
  // The first block of the layer that comes, as an index in the plan.
  int FirstIndex(int layer) const;
  int64_t ChunksToCome() const;
  // All layers of the range have the same ones.
  absl::Span<const int32_t> Pages(const Range& range) const;
  backend::SlotRange SlotsOf(const Range& range) const {
    return {plan_.pool.PlaceOf(range.layer).slot, range.layer_count};
  }
  size_t BytesOfBlock(const Range& range) const {
    return static_cast<size_t>(range.layer_count * plan_.layout.ChunkBytes());
  }
  // Writes the whole payload, which has been checked.
  void Write(const Range& range, const Segments& payload);
  // Copies the chunk from the sender's pool.
  absl::Status ReadShared(const internal::v1::PrefillFrame::KvChunk& chunk, const Range& range);
  // Call after Write. Looks at the lease, then at what has been written.
  absl::Status CheckShared(const internal::v1::PrefillFrame::KvChunk& chunk,
                           const Range& range) const;
  void ReleaseShared();

  std::shared_ptr<SharedPool> shared_pool_;  // the plan's, until the transfer is released
  const TransferPlan plan_;                  // without it
  Phase phase_ = Phase::kReserved;
  bool accepted_ = false;
  std::optional<FirstToken> first_token_;
  std::vector<v1::TokenLogprobs> prompt_logprobs_;  // until the first token arrives
  int block_count_;                                 // to come; of a fetch, known with the Accepted
  mutable absl::Mutex mutex_;                       // operations end beside the frames
  std::vector<bool> received_ ABSL_GUARDED_BY(mutex_);  // [layer * blocks of the plan + index]
  std::vector<bool> expected_ ABSL_GUARDED_BY(mutex_);  // likewise: an operation is to bring it
  int64_t missing_ ABSL_GUARDED_BY(mutex_);             // (layer, block) pairs not received yet
  int kv_chunk_count_ ABSL_GUARDED_BY(mutex_) = 0;      // without repetitions
  Range last_ = {.layer = -1};                          // of the last frame that had KV
  bool last_was_ready_ = false;
  TransferSummary summary_;
  std::vector<std::byte> gathered_;  // a frame's payload on its way to a device
};

}  // namespace baton::transfer

#endif  // BATON_COMMON_TRANSFER_KV_RECEIVER_H_
