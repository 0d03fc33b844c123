// How fast KV comes from each prefill worker: bytes a second of the link, without the time in which
// the prefill worker computed.
//
// The time between two frames is the link's only if the second was ready to be sent when the first
// arrived: else it is mostly the time of computing a layer. The receiver knows that a frame was
// ready in three cases (KvReceiver):
//   - its blocks were cached at the prefill worker, which sends those before it computes;
//   - it goes on where the last frame of the same layer ended: a layer is handed over as a whole;
//   - the first token has arrived, which is drawn after all layers and overtakes KV that waits.
// The last one is what measures a slow link: most of a prompt's KV still waits at its first token.
// All other gaps are left out, those of a link that is busy all the same included.
//
// Transfers over one link share it. So a link's busy time is the union of what its transfers saw,
// and all bytes that came in it count, whichever transfer they belong to. Frames are timed on the
// gRPC threads that receive them, before they are checked and copied; a decode step that runs
// meanwhile delays the loop and not them. A frame is read while the one before it is copied, and
// its time is when its own turn comes: where copying takes longer than the link does, it is the
// rate. A frame that gRPC had received before it was asked for counts as fast: at most the receive
// window of a stream.
#ifndef BATON_COMMON_TRANSFER_LINK_METER_H_
#define BATON_COMMON_TRANSFER_LINK_METER_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

namespace baton::transfer {

// The process at the other end of a link.
struct LinkPeer {
  std::string worker_id;
  uint64_t epoch = 0;

  friend bool operator==(const LinkPeer& a, const LinkPeer& b) {
    return a.epoch == b.epoch && a.worker_id == b.worker_id;
  }
};

struct MeasuredLink {
  LinkPeer peer;
  double bytes_per_second = 0;
  absl::Duration measured_at;  // by the meter's clock
};

// Thread-safe. Its transfers keep it alive.
class LinkMeter : public std::enable_shared_from_this<LinkMeter> {
 public:
  // Peers come from requests, so their number is bounded: the least recently used is dropped.
  static constexpr size_t kMaxPeers = 256;
  static constexpr size_t kMaxReported = 32;
  static constexpr size_t kMaxIdBytes = 256;
  // Less than this says nothing: it is a few writes to a socket's buffer.
  static constexpr int64_t kLeastBytes = 256 << 10;
  // The weight of a measurement halves in this time.
  static constexpr absl::Duration kHalfLife = absl::Seconds(10);

  // `clock` must outlive the meter and its transfers.
  explicit LinkMeter(const Clock& clock) : clock_(clock) {}

  class Transfer;
  // A transfer from that peer begins. Null if the peer has no id, or one of absurd length: the
  // transfer is not measured.
  std::unique_ptr<Transfer> Begin(const LinkPeer& peer);

  // `bytes` came from the peer while the link was busy for so long. Ignored where they say nothing.
  void Add(const LinkPeer& peer, int64_t bytes, absl::Duration busy);

  // The links that were measured, the last one first, at most kMaxReported. The same object until
  // something has changed; null until something was measured.
  std::shared_ptr<const std::vector<MeasuredLink>> Measured() const;

 private:
  // A moment, and the bytes that had come over the link until then, those of all transfers.
  struct Mark {
    absl::Duration at;
    int64_t bytes = 0;
  };
  // Kept by its transfers when it is dropped from the list: what they add then goes nowhere.
  struct Link {
    LinkPeer peer;
    Mark last;      // of any frame
    Mark measured;  // what came until then is measured or left out
    // Sums over the committed transfers, older ones with less weight.
    double bytes = 0;
    double seconds = 0;
    absl::Duration measured_at;
  };

  std::shared_ptr<Link> Find(const LinkPeer& peer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Count(const std::shared_ptr<Link>& link, int64_t bytes, absl::Duration busy)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Clock& clock_;
  mutable absl::Mutex mutex_;
  std::list<std::shared_ptr<Link>> links_ ABSL_GUARDED_BY(mutex_);  // the last used first
  mutable std::shared_ptr<const std::vector<MeasuredLink>> report_ ABSL_GUARDED_BY(mutex_);
  mutable bool changed_ ABSL_GUARDED_BY(mutex_) = false;
};

// The frames of one transfer. Its calls must come one after another, on any thread.
class LinkMeter::Transfer {
 public:
  Transfer(std::shared_ptr<LinkMeter> meter, std::shared_ptr<Link> link)
      : meter_(std::move(meter)), link_(std::move(link)) {}

  // The time, for the calls below.
  absl::Duration Now() const { return meter_->clock_.SinceStart(); }
  // A frame without KV arrived.
  void OnFrame(absl::Duration at) { OnKv(at, 0, /*was_ready=*/false); }
  // A frame with KV arrived. was_ready: it could be sent as soon as the frame before it was.
  void OnKv(absl::Duration at, int64_t bytes, bool was_ready);
  // The transfer is whole. What it has measured counts from now on.
  void Committed();

 private:
  const std::shared_ptr<LinkMeter> meter_;
  const std::shared_ptr<Link> link_;  // the meter's lock guards what is in it
  std::optional<Mark> last_;          // of its last frame
  int64_t bytes_ = 0;
  absl::Duration busy_;
};

}  // namespace baton::transfer

#endif  // BATON_COMMON_TRANSFER_LINK_METER_H_
