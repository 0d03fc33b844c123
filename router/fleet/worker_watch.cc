#include "router/fleet/worker_watch.h"

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/named_thread.h"
#include "common/base/random_id.h"
#include "common/base/rpc/channel.h"
#include "common/base/rpc/grpc_status.h"

namespace baton::router {
namespace {

// How often silence is judged and lost streams are tried again.
constexpr absl::Duration kTick = absl::Milliseconds(100);
constexpr absl::Duration kFirstBackoff = absl::Milliseconds(200);
// With the channel's own backoff of half a second, a worker that comes back is used within 2 s.
constexpr absl::Duration kMaxBackoff = absl::Milliseconds(500);
// A refused worker will not change its model, nor its secret: only another process at its address,
// or another file, helps.
constexpr absl::Duration kRefusedBackoff = absl::Seconds(1);

// Half to all of it: routers that lost a worker together must not come back together.
absl::Duration Jittered(absl::Duration backoff) {
  return backoff * (0.5 + 0.5 * static_cast<double>(RandomId64() >> 11) * 0x1p-53);
}

}  // namespace

// One Watch call. It has no deadline: the worker reports several times a second, and a silent
// stream is cancelled when the worker expires.
class WorkerWatch::Stream final : public grpc::ClientReadReactor<internal::v1::WatchResponse> {
 public:
  Stream(WorkerWatch& watch, int worker) : watch_(watch), worker_(worker) {}

  void Open(internal::v1::WorkerService::Stub& stub) {
    request_.set_watcher("router");
    watch_.roster_.OnStreamStarted(worker_);
    stub.async()->Watch(&context_, &request_, this);
    StartRead(&event_);
    StartCall();
  }

  void Cancel() { context_.TryCancel(); }
  // Cancels, and the roster does not hear of it: the worker is not lost.
  void Leave() {
    left_ = true;
    context_.TryCancel();
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;  // OnDone says why
    const int64_t states_before = watch_.roster_.state_version();
    absl::Status accepted = watch_.roster_.OnEvent(worker_, event_);
    if (!accepted.ok()) {
      error_ = accepted;
      context_.TryCancel();
      return;
    }
    established_ = established_ || event_.has_load() || event_.has_snapshot();
    // Busy workers report dozens of times a second: only a change of state wakes the watch before
    // its next tick.
    if (watch_.roster_.state_version() != states_before) watch_.Wake();
    StartRead(&event_);
  }

  void OnDone(const grpc::Status& status) override {
    absl::Status why = error_;
    if (why.ok()) {
      why = status.ok() ? absl::UnavailableError("the worker ended its Watch stream")
                        : FromGrpcStatus(status);
    }
    BATON_LOG(Debug) << "watch of " << watch_.roster_.address(worker_) << " ended: " << why;
    if (!left_) watch_.roster_.OnStreamLost(worker_, why);
    watch_.OnEnded(worker_, established_,
                   absl::IsFailedPrecondition(error_) || IsAccessRefused(why));
  }

 private:
  WorkerWatch& watch_;
  const int worker_;
  grpc::ClientContext context_;
  internal::v1::WatchRequest request_;
  internal::v1::WatchResponse event_;
  absl::Status error_;  // why we ended it
  std::atomic<bool> left_{false};
  bool established_ = false;
};

WorkerWatch::WorkerWatch(Roster& roster, ChannelUser& channel_user, const Clock& clock,
                         std::function<void(bool)> on_change, ChannelSecurity security)
    : roster_(roster),
      channel_user_(channel_user),
      clock_(clock),
      on_change_(std::move(on_change)),
      security_(std::move(security)) {}

WorkerWatch::~WorkerWatch() { Stop(); }

void WorkerWatch::Start() {
  thread_ = NamedThread("worker-watch", [this] { Run(); });
}

void WorkerWatch::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    wake_.Signal();
  }
  if (thread_.joinable()) thread_.join();
}

void WorkerWatch::Run() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (!awake_ && !stopping_) wake_.WaitWithTimeout(&mutex_, kTick);
      awake_ = false;
      if (stopping_) break;
      ReapEnded();
      ReleaseDeparted();
      FollowRoster();
      OpenDue();
      for (int worker : roster_.Tick()) {
        const auto found = slots_.find(worker);
        if (found != slots_.end() && found->second.stream != nullptr) {
          found->second.stream->Cancel();
        }
      }
    }
    on_change_(roster_.Ready());
  }
  absl::MutexLock lock(&mutex_);
  for (auto& [worker, slot] : slots_) {
    if (slot.stream != nullptr) slot.stream->Leave();
  }
  while (AnyOpen()) {
    ReapEnded();
    if (AnyOpen()) wake_.WaitWithTimeout(&mutex_, kTick);
  }
}

void WorkerWatch::ReapEnded() {
  for (auto& [worker, slot] : slots_) {
    if (!slot.ended) continue;
    slot.stream.reset();
    slot.ended = false;
  }
}

// The stream first, then the channel.
void WorkerWatch::ReleaseDeparted() {
  for (int worker : roster_.Departed()) {
    const auto found = slots_.find(worker);
    if (found != slots_.end() && found->second.stream != nullptr) {
      found->second.stream->Cancel();
    } else if (roster_.Release(worker) && found != slots_.end()) {
      channel_user_.Disconnect(worker);
      slots_.erase(found);
    }
  }
}

void WorkerWatch::FollowRoster() {
  // Read before the numbers: a worker that is added between the two is found again next time.
  const int64_t version = roster_.roster_version();
  if (version == roster_version_) return;
  roster_version_ = version;
  for (int worker : roster_.Watched()) {
    if (slots_.count(worker) > 0) continue;
    const std::shared_ptr<grpc::Channel> channel =
        MakeChannel(roster_.address(worker), kPeerChannel, security_);
    channel_user_.Connect(worker, channel);
    Slot& slot = slots_[worker];
    slot.stub = internal::v1::WorkerService::NewStub(channel);
    slot.retry_at = clock_.SinceStart();
    slot.backoff = kFirstBackoff;
  }
}

void WorkerWatch::OpenDue() {
  for (auto& [worker, slot] : slots_) {
    if (slot.stream != nullptr || clock_.SinceStart() < slot.retry_at) continue;
    slot.stream = std::make_unique<Stream>(*this, worker);
    slot.stream->Open(*slot.stub);
  }
}

bool WorkerWatch::AnyOpen() const {
  return std::any_of(slots_.begin(), slots_.end(),
                     [](const auto& slot) { return slot.second.stream != nullptr; });
}

void WorkerWatch::Wake() {
  absl::MutexLock lock(&mutex_);
  awake_ = true;
  wake_.Signal();
}

std::shared_ptr<internal::v1::WorkerService::Stub> WorkerWatch::Stub(int worker) {
  absl::MutexLock lock(&mutex_);
  const auto found = slots_.find(worker);
  return found == slots_.end() ? nullptr : found->second.stub;
}

void WorkerWatch::OnEnded(int worker, bool was_established, bool was_refused) {
  absl::MutexLock lock(&mutex_);
  Slot& slot = slots_.at(worker);
  if (was_established) slot.backoff = kFirstBackoff;
  const absl::Duration backoff = was_refused ? kRefusedBackoff : slot.backoff;
  slot.retry_at = clock_.SinceStart() + Jittered(backoff);
  slot.backoff = std::min(slot.backoff * 2, kMaxBackoff);
  slot.ended = true;
  awake_ = true;
  wake_.Signal();
}

}  // namespace baton::router
