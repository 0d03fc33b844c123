#include "tests/simulation/transfer.h"

#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/error.h"
#include "common/transfer/checksum.h"
#include "common/transfer/frame_codec.h"

namespace baton::simulation {
namespace {

std::string BytesOf(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  BATON_CHECK(buffer.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

void DoNothing() {}

}  // namespace

SimKvSender::SimKvSender(Options options, World& world, const FrameFaults& faults,
                         std::shared_ptr<Stream> stream, std::weak_ptr<SimPrefillCall> call,
                         std::function<void()> wake)
    : FrameSender(std::move(options)),
      world_(world),
      faults_(faults),
      stream_(std::move(stream)),
      call_(std::move(call)),
      wake_(std::move(wake)) {}

void SimKvSender::PushItem(transfer::SendItem item, bool urgent) {
  if (broken_ || finish_) return;
  if (faults_.pins_ignored && item.blocks != nullptr) {
    item.blocks =
        std::make_shared<transfer::PinnedBlocks>(std::vector(item.blocks->pages()), &DoNothing);
  }
  if (faults_.pins_leaked && item.blocks != nullptr && world_.random.Chance(0.05)) {
    world_.At(world_.now() + 1000 * kSecond, [pins = item.blocks] {});
  }
  if (urgent) {
    items_.push_front(std::move(item));
  } else {
    items_.push_back(std::move(item));
  }
  Continue();
}

void SimKvSender::Finish(const absl::Status& status) {
  if (finish_) world_.Fail("a transfer was finished twice");
  finish_ = status;
  if (!status.ok()) items_.clear();
  wake_();  // what the loop let go of comes back to it as a message
  Continue();
}

// A frame is built when the stream is ready for it, its bytes leave a little later, and until then
// they are the blocks' own.
void SimKvSender::Continue() {
  if (busy_ || broken_ || (items_.empty() && !finish_)) return;
  busy_ = true;
  world_.At(world_.now() + world_.random.Time(5, 400),
            [self = shared_from_this()] { self->WriteNext(); });
}

void SimKvSender::WriteNext() {
  busy_ = false;
  if (broken_) return;
  if (!items_.empty()) {
    leaving_.emplace();
    EncodeItem(std::move(items_.front()), &*leaving_);
    items_.pop_front();
    busy_ = true;
    world_.At(world_.now() + world_.random.Time(0, 200), [self = shared_from_this()] {
      if (!self->leaving_) return;
      std::string bytes = BytesOf(*self->leaving_);
      self->leaving_.reset();
      self->SendBytes(std::move(bytes));
      self->wake_();  // a pin may have been dropped
      self->busy_ = false;
      self->Continue();
    });
    return;
  }
  if (delayed_) SendBytes(*std::exchange(delayed_, std::nullopt));
  broken_ = true;  // nothing may follow
  stream_->Send(1, [call = call_, status = *finish_] {
    if (const auto live = call.lock()) live->OnStatus(status);
  });
}

void SimKvSender::SendBytes(std::string bytes) {
  Random& random = world_.random;
  if (random.Chance(faults_.flip)) {
    bytes[static_cast<size_t>(random.Below(static_cast<int>(bytes.size())))] ^=
        static_cast<char>(1 << random.Below(8));
  }
  if (random.Chance(faults_.truncate)) {
    bytes.resize(static_cast<size_t>(random.Below(static_cast<int>(bytes.size()))));
  }
  if (random.Chance(faults_.lose)) return;
  if (!delayed_ && random.Chance(faults_.reorder)) {
    delayed_ = std::move(bytes);
    return;
  }
  const auto send = [this](std::string frame) {
    stream_->Send(1, [call = call_, frame = std::move(frame)] {
      if (const auto live = call.lock()) live->OnFrame(frame);
    });
  };
  if (random.Chance(faults_.duplicate)) send(bytes);
  send(std::move(bytes));
  if (delayed_) send(*std::exchange(delayed_, std::nullopt));
}

void SimKvSender::DropItems() {
  broken_ = true;
  items_.clear();
  leaving_.reset();
}

void SimKvSender::PeerGone() {
  if (broken_) return;
  DropItems();
  if (options().on_peer_gone) options().on_peer_gone();
  wake_();
}

void SimKvSender::Kill() {
  wake_ = [] {};
  DropItems();
}

SimPrefillCall::SimPrefillCall(World& world, const FrameFaults& faults,
                               std::shared_ptr<Stream> stream, transfer::TransferPlan plan,
                               transfer::PrefillEvents events, std::function<void()> wake)
    : world_(world),
      faults_(faults),
      stream_(std::move(stream)),
      receiver_(std::move(plan)),
      events_(std::move(events)),
      wake_(std::move(wake)) {}

void SimPrefillCall::Begin(absl::Time deadline, std::function<void()> accept,
                           std::function<void()> peer_gone) {
  peer_gone_ = std::move(peer_gone);
  stream_->OnLost(0, [self = shared_from_this()] {
    self->Done(MakeError(absl::StatusCode::kUnavailable, "PREFILL_LOST", "the connection broke"));
  });
  stream_->Send(0, std::move(accept));
  const Micros due = absl::ToInt64Microseconds(deadline - absl::UnixEpoch());
  world_.At(due, [weak = weak_from_this()] {
    const auto self = weak.lock();
    if (self == nullptr || self->done_) return;
    self->Abandon(absl::DeadlineExceededError("the deadline passed"), 0);
  });
}

void SimPrefillCall::Cancel() {
  Abandon(absl::CancelledError("cancelled by the decode worker"), world_.random.Time(1, 300));
}

// Ends the call on this side after a moment, on the other when word of it comes there.
void SimPrefillCall::Abandon(const absl::Status& status, Micros delay) {
  if (done_ || abandoned_) return;
  abandoned_ = true;
  stream_->Send(0, peer_gone_);
  world_.At(world_.now() + delay, [self = shared_from_this(), status] { self->Done(status); });
}

void SimPrefillCall::OnFrame(const std::string& bytes) {
  if (done_ || refused_ || deaf_) return;
  const bool had_token = receiver_.first_token().has_value();
  grpc::Slice slice(bytes);
  absl::StatusOr<transfer::DecodedFrame> decoded =
      transfer::DecodeFrame(grpc::ByteBuffer(&slice, 1));
  absl::Status status;
  if (!decoded.ok()) {
    receiver_.Abort();
    status = MakeError(absl::StatusCode::kDataLoss, "PROTOCOL", decoded.status().message());
  } else {
    if (faults_.checksum_skipped) {
      decoded->frame.set_checksum(transfer::FrameChecksum(decoded->frame, decoded->payload));
    }
    status = receiver_.OnFrame(decoded->frame, decoded->payload);
  }
  if (!status.ok()) {
    refused_ = true;
    End(status);
    Abandon(status, world_.random.Time(1, 300));
    return;
  }
  if (!had_token && receiver_.first_token()) {
    events_.on_first_token(*receiver_.first_token());
    wake_();
  }
  if (receiver_.phase() != transfer::KvReceiver::Phase::kCommitted) return;
  deaf_ = faults_.commit_unheard && world_.random.Chance(0.02);
  if (!deaf_) End(absl::OkStatus());
}

void SimPrefillCall::OnStatus(const absl::Status& status) {
  if (done_ || deaf_) return;
  Done(!status.ok() ? status
                    : MakeError(absl::StatusCode::kDataLoss, "PROTOCOL",
                                "the prefill worker ended the stream without a commit"));
}

void SimPrefillCall::Kill() {
  wake_ = [] {};
  Done(absl::CancelledError("this process is gone"));
}

void SimPrefillCall::End(const absl::Status& status) {
  if (ended_) return;
  ended_ = true;
  events_.on_end(status, receiver_.summary());
  wake_();
}

void SimPrefillCall::Done(const absl::Status& status) {
  if (done_) return;
  done_ = true;
  const auto self = shared_from_this();  // Close drops the stream's hold on us
  receiver_.Abort();
  End(status.ok() ? absl::UnknownError("no status") : status);
  stream_->Close(0);  // what was sent, such as word that we are gone, still gets through
  events_.on_closed();
  events_ = {};
  wake_();
}

}  // namespace baton::simulation
