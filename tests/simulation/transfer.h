// The two ends of a Prefill call over the simulated network: real items, frames, checksums and a
// real receiver; only the stream is not gRPC's.
#ifndef BATON_TESTS_SIMULATION_TRANSFER_H_
#define BATON_TESTS_SIMULATION_TRANSFER_H_

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "common/transfer/kv_receiver.h"
#include "common/transfer/kv_sender.h"
#include "common/transfer/prefill_call.h"
#include "tests/simulation/world.h"

namespace baton::simulation {

// How frames are spoilt on the way, and which bugs are planted.
struct FrameFaults {
  double flip = 0;  // one bit of a frame
  double truncate = 0;
  double lose = 0;
  double duplicate = 0;
  double reorder = 0;             // two neighbours
  bool checksum_skipped = false;  // a planted bug: the receiver believes every frame
  bool pins_ignored = false;    // a planted bug: blocks are given back before their bytes have left
  bool pins_leaked = false;     // a planted bug: some blocks sent are never given back
  bool commit_unheard = false;  // a planted bug: some transfers end without a word to their caller

  void EndSpoiling() { flip = truncate = lose = duplicate = reorder = 0; }
};

class SimPrefillCall;

// The prefill worker's end.
class SimKvSender final : public transfer::FrameSender,
                          public std::enable_shared_from_this<SimKvSender> {
 public:
  // `wake` is called when the worker's loop may have something to do.
  SimKvSender(Options options, World& world, const FrameFaults& faults,
              std::shared_ptr<Stream> stream, std::weak_ptr<SimPrefillCall> call,
              std::function<void()> wake);

  void Finish(const absl::Status& status) override;
  // The caller cancelled, or the connection broke.
  void PeerGone();
  // The process is gone, and its memory with it.
  void Kill();
  bool finished() const { return finish_.has_value(); }

 private:
  void PushItem(transfer::SendItem item, bool urgent) override;
  void Continue();
  void WriteNext();
  void SendBytes(std::string bytes);
  void DropItems();

  World& world_;
  const FrameFaults& faults_;
  const std::shared_ptr<Stream> stream_;
  const std::weak_ptr<SimPrefillCall> call_;
  std::function<void()> wake_;
  std::deque<transfer::SendItem> items_;
  std::optional<grpc::ByteBuffer> leaving_;  // its bytes are still in the blocks
  std::optional<std::string> delayed_;       // overtaken by the next frame
  std::optional<absl::Status> finish_;
  bool busy_ = false;
  bool broken_ = false;
};

// The decode worker's end; what GrpcPrefillCall does with the events of a gRPC call.
class SimPrefillCall final : public transfer::PrefillCall,
                             public std::enable_shared_from_this<SimPrefillCall> {
 public:
  SimPrefillCall(World& world, const FrameFaults& faults, std::shared_ptr<Stream> stream,
                 transfer::TransferPlan plan, transfer::PrefillEvents events,
                 std::function<void()> wake);

  // `accept` runs at the prefill worker.
  void Begin(absl::Time deadline, std::function<void()> accept, std::function<void()> peer_gone);
  void Cancel() override;
  // The process goes: the call ends here and now.
  void Kill();
  void OnFrame(const std::string& bytes);
  void OnStatus(const absl::Status& status);
  bool done() const { return done_; }

 private:
  void Abandon(const absl::Status& status, Micros delay);
  void Done(const absl::Status& status);
  void End(const absl::Status& status);

  World& world_;
  const FrameFaults& faults_;
  const std::shared_ptr<Stream> stream_;
  transfer::KvReceiver receiver_;
  transfer::PrefillEvents events_;
  std::function<void()> wake_;
  std::function<void()> peer_gone_;
  bool refused_ = false;  // a frame; nothing is read any more
  bool deaf_ = false;     // by a planted bug
  bool abandoned_ = false;
  bool ended_ = false;
  bool done_ = false;
};

}  // namespace baton::simulation

#endif  // BATON_TESTS_SIMULATION_TRANSFER_H_
