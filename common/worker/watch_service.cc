#include "common/worker/watch_service.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/named_thread.h"
#include "common/base/rpc/grpc_status.h"
#include "common/base/rpc/server_stream.h"
#include "common/worker/call_gate.h"

namespace baton::worker {
namespace {

using internal::v1::WatchResponse;

constexpr absl::Duration kMinInterval = absl::Milliseconds(20);

}  // namespace

absl::Status ShuttingDown() {
  return MakeError(absl::StatusCode::kUnavailable, "DRAINING", "this worker is shutting down");
}

class WatchService::Watcher final : public ServerStream<WatchResponse, WatchResponse> {
 public:
  Watcher(const internal::v1::WorkerCard& card, const CacheJournal& journal)
      : report(card, journal) {}
  bool gone() const { return gone_; }

  // Touched by the service's thread alone.
  WatchReport report;
  std::optional<absl::Duration> first_report;  // when it was sent
  bool behind = false;  // was not told the last news, as it was still reading those before

 private:
  void Encode(WatchResponse item, WatchResponse* message) override { *message = std::move(item); }
  void OnPeerGone() override { gone_ = true; }
  std::atomic<bool> gone_{false};
};

WatchService::WatchService(internal::v1::WorkerCard card, const CacheJournal& journal,
                           const Clock& clock, security::SharedSecret* secret)
    : card_(std::move(card)), journal_(journal), clock_(clock), secret_(secret) {
  load_.counts.total = load_.counts.free = card_.total_blocks();
  load_.free_blocks = card_.total_blocks();
  thread_ = NamedThread("watch", [this] { Run(); });
}

WatchService::~WatchService() { Stop(); }

void WatchService::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  // A drain and a stop may come here at once.
  absl::MutexLock lock(&join_mutex_);
  if (thread_.joinable()) thread_.join();
}

void WatchService::SetControls(WorkerControls controls) {
  absl::MutexLock lock(&mutex_);  // Run() reads them
  controls_ = std::move(controls);
}

void WatchService::OnAccepted(std::function<std::optional<int>()> routers,
                              std::function<void()> accepted) {
  absl::MutexLock lock(&mutex_);
  accepting_routers_ = std::move(routers);
  on_accepted_ = std::move(accepted);
}

std::function<void()> WatchService::TakeOnAccepted() {
  if (!on_accepted_) return nullptr;
  const std::optional<int> wanted = accepting_routers_();
  if (!wanted) return nullptr;
  const absl::Duration now = clock_.SinceStart();
  const auto accepted = [now](const std::shared_ptr<Watcher>& watcher) {
    return !watcher->gone() && watcher->idle() && watcher->first_report &&
           now - *watcher->first_report >= kAcceptedAfter;
  };
  if (std::count_if(watchers_.begin(), watchers_.end(), accepted) < *wanted) {
    return nullptr;
  }
  return std::exchange(on_accepted_, nullptr);
}

void WatchService::Publish(const WorkerLoad& load) {
  absl::MutexLock lock(&mutex_);
  load_ = load;
  news_ = true;
}

grpc::ServerWriteReactor<WatchResponse>* WatchService::Watch(
    grpc::CallbackServerContext* context, const internal::v1::WatchRequest* request) {
  auto watcher = std::make_shared<Watcher>(card_, journal_);
  if (absl::Status allowed = CheckCall(secret_, *context); !allowed.ok()) {
    BATON_LOG(Debug) << "watch by " << context->peer() << " refused: " << allowed.message();
    watcher->Finish(ToGrpcStatus(allowed));
    return Watcher::Open(std::move(watcher));
  }
  BATON_LOG(Info) << "watched by " << request->watcher() << " at " << context->peer();
  absl::MutexLock lock(&mutex_);
  if (stopping_) {
    watcher->Finish(ToGrpcStatus(ShuttingDown()));
  } else {
    watchers_.push_back(watcher);
    news_ = true;
  }
  return Watcher::Open(std::move(watcher));
}

grpc::ServerUnaryReactor* WatchService::GetBlockCounts(
    grpc::CallbackServerContext* context, const internal::v1::GetBlockCountsRequest* request,
    internal::v1::GetBlockCountsResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  if (absl::Status allowed = CheckCall(secret_, *context); !allowed.ok()) {
    reactor->Finish(ToGrpcStatus(allowed));
    return reactor;
  }
  {
    absl::MutexLock lock(&mutex_);
    response->set_total(load_.counts.total);
    response->set_free(load_.counts.free);
    response->set_active(load_.counts.active);
    response->set_cached(load_.counts.cached);
    response->set_held(load_.counts.held);
    response->set_open_transfers(load_.open_transfers);
  }
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

absl::Status WatchService::CheckEpoch(uint64_t epoch) const {
  if (epoch == card_.epoch()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kUnavailable, "STALE_EPOCH",
                   "the worker was restarted since the router last heard of it");
}

grpc::ServerUnaryReactor* WatchService::SetDraining(grpc::CallbackServerContext* context,
                                                    const internal::v1::SetDrainingRequest* request,
                                                    internal::v1::SetDrainingResponse* response) {
  const DrainWait call = {context, context->DefaultReactor(), response};
  absl::Status status = CheckCall(secret_, *context);
  if (status.ok()) status = CheckEpoch(request->epoch());
  if (status.ok()) {
    status = controls_.set_draining(
        request->draining(),
        [this, call, wait = request->wait() && request->draining()] { OnDrainingSet(call, wait); });
  }
  if (!status.ok()) call.reactor->Finish(ToGrpcStatus(status));
  return call.reactor;
}

void WatchService::OnDrainingSet(const DrainWait& call, bool wait) {
  absl::MutexLock lock(&mutex_);
  if (wait && stopping_) return call.reactor->Finish(ToGrpcStatus(ShuttingDown()));
  if (wait) {
    drain_waits_.push_back(call);
    news_ = true;
    return;
  }
  *call.response->mutable_load() = ToProto(Load(), clock_.SinceStart());
  call.reactor->Finish(grpc::Status::OK);
}

WorkerLoad WatchService::Load() const {
  WorkerLoad load = load_;
  load.drained = load.drained && (!controls_.no_open_calls || controls_.no_open_calls());
  return load;
}

void WatchService::EndDrainWaits(const WorkerLoad& load) {
  for (auto it = drain_waits_.begin(); it != drain_waits_.end();) {
    grpc::Status status = grpc::Status::OK;
    if (stopping_) {
      status = ToGrpcStatus(ShuttingDown());
    } else if (it->context->IsCancelled()) {
      status = grpc::Status::CANCELLED;
    } else if (!load.draining) {
      status = ToGrpcStatus(MakeError(absl::StatusCode::kAborted, "UNDRAINED",
                                      "the worker was undrained before it was drained"));
    } else if (load.drained) {
      *it->response->mutable_load() = ToProto(load, clock_.SinceStart());
    } else {
      ++it;
      continue;
    }
    it->reactor->Finish(status);
    it = drain_waits_.erase(it);
  }
}

grpc::ServerUnaryReactor* WatchService::FlushCache(grpc::CallbackServerContext* context,
                                                   const internal::v1::FlushCacheRequest* request,
                                                   internal::v1::FlushCacheResponse* response) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  absl::Status status = CheckCall(secret_, *context);
  if (status.ok()) status = CheckEpoch(request->epoch());
  if (!status.ok()) {
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }
  controls_.flush_cache([reactor, response](int dropped) {
    BATON_LOG(Info) << "an operator flushed the prefix cache: " << dropped << " blocks dropped";
    response->set_dropped_blocks(dropped);
    reactor->Finish(grpc::Status::OK);
  });
  return reactor;
}

void WatchService::Run() {
  absl::Duration last = clock_.SinceStart();
  absl::Duration last_report = last;
  bool behind = false;   // any watcher is
  bool closing = false;  // only open calls keep the worker from being drained
  while (true) {
    std::vector<std::shared_ptr<Watcher>> watchers;
    std::vector<std::shared_ptr<Watcher>> gone;
    WorkerLoad load;
    std::function<void()> on_accepted;
    bool stopping, all;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(this, &WatchService::HasNews),
                              behind || closing ? kMinInterval : kHeartbeat);
      const absl::Duration rest = kMinInterval - (clock_.SinceStart() - last);
      if (rest > absl::ZeroDuration()) {
        mutex_.AwaitWithTimeout(absl::Condition(&stopping_), rest);
      }
      last = clock_.SinceStart();
      load = Load();
      // The two clocks may differ by a little.
      all = news_ || last - last_report >= kHeartbeat - kMinInterval || (closing && load.drained);
      closing = load_.drained && !load.drained;
      if (all) last_report = last;
      news_ = false;
      stopping = stopping_;
      EndDrainWaits(load);
      on_accepted = TakeOnAccepted();
      for (auto it = watchers_.begin(); it != watchers_.end();) {
        const bool drop = stopping || (*it)->gone();
        (drop ? gone : watchers).push_back(*it);
        it = drop ? watchers_.erase(it) : std::next(it);
      }
    }
    for (const auto& watcher : gone) watcher->Finish(ToGrpcStatus(ShuttingDown()));
    if (stopping) return;
    if (on_accepted) on_accepted();
    behind = false;
    for (const auto& watcher : watchers) {
      if (all || watcher->behind) watcher->behind = !Report(*watcher, load);
      behind = behind || watcher->behind;
    }
  }
}

bool WatchService::Report(Watcher& watcher, const WorkerLoad& load) {
  // A slow watcher gets the sum of what it missed once it has read what is under way.
  if (!watcher.idle()) return false;
  if (!watcher.first_report) watcher.first_report = clock_.SinceStart();
  for (WatchResponse& response : watcher.report.Next(load, clock_.SinceStart())) {
    watcher.Push(std::move(response));
  }
  return true;
}

}  // namespace baton::worker
