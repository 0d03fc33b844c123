#include "common/worker/watch_service.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/rpc/grpc_status.h"
#include "common/base/rpc/server_stream.h"
#include "common/worker/call_gate.h"

namespace baton::worker {
namespace {

using internal::v1::WatchResponse;

constexpr absl::Duration kHeartbeat = absl::Seconds(1);
constexpr absl::Duration kMinInterval = absl::Milliseconds(20);

absl::Status Draining() {
  return MakeError(absl::StatusCode::kUnavailable, "DRAINING", "this worker is shutting down");
}

}  // namespace

class WatchService::Watcher final : public ServerStream<WatchResponse, WatchResponse> {
 public:
  Watcher(const internal::v1::WorkerCard& card, const CacheJournal& journal)
      : report(card, journal) {}
  bool gone() const { return gone_; }

  // Touched by the service's thread alone.
  WatchReport report;
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
  thread_ = std::thread([this] { Run(); });
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
    watcher->Finish(ToGrpcStatus(Draining()));
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

void WatchService::Run() {
  absl::Duration last = clock_.SinceStart();
  absl::Duration last_report = last;
  bool behind = false;  // any watcher is
  while (true) {
    std::vector<std::shared_ptr<Watcher>> watchers;
    std::vector<std::shared_ptr<Watcher>> gone;
    WorkerLoad load;
    bool stopping, all;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(this, &WatchService::HasNews),
                              behind ? kMinInterval : kHeartbeat);
      const absl::Duration rest = kMinInterval - (clock_.SinceStart() - last);
      if (rest > absl::ZeroDuration()) {
        mutex_.AwaitWithTimeout(absl::Condition(&stopping_), rest);
      }
      last = clock_.SinceStart();
      // The two clocks may differ by a little.
      all = news_ || last - last_report >= kHeartbeat - kMinInterval;
      if (all) last_report = last;
      news_ = false;
      stopping = stopping_;
      load = load_;
      for (auto it = watchers_.begin(); it != watchers_.end();) {
        const bool drop = stopping || (*it)->gone();
        (drop ? gone : watchers).push_back(*it);
        it = drop ? watchers_.erase(it) : std::next(it);
      }
    }
    for (const auto& watcher : gone) watcher->Finish(ToGrpcStatus(Draining()));
    if (stopping) return;
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
  for (WatchResponse& response : watcher.report.Next(load, clock_.SinceStart())) {
    watcher.Push(std::move(response));
  }
  return true;
}

}  // namespace baton::worker
