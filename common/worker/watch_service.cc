#include "common/worker/watch_service.h"

#include <algorithm>
#include <atomic>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/base/log.h"
#include "common/base/rpc/grpc_status.h"
#include "common/base/rpc/server_stream.h"

namespace baton::worker {
namespace {

using internal::v1::WatchResponse;

constexpr absl::Duration kHeartbeat = absl::Seconds(1);
constexpr absl::Duration kMinInterval = absl::Milliseconds(20);
constexpr size_t kKeysPerMessage = 64 * 1024;  // 512 KiB

absl::Status Draining() {
  return MakeError(absl::StatusCode::kUnavailable, "DRAINING", "this worker is shutting down");
}

}  // namespace

class WatchService::Watcher final : public ServerStream<WatchResponse, WatchResponse> {
 public:
  bool gone() const { return gone_; }

  // Touched by the service's thread alone.
  bool introduced = false;
  uint64_t journal_position = 0;
  uint64_t sequence = 0;
  bool behind = false;  // was not told the last news, as it was still reading those before

 private:
  void Encode(WatchResponse item, WatchResponse* message) override { *message = std::move(item); }
  void OnPeerGone() override { gone_ = true; }
  std::atomic<bool> gone_{false};
};

WatchService::WatchService(internal::v1::WorkerCard card, const CacheJournal& journal,
                           const Clock& clock)
    : card_(std::move(card)), journal_(journal), clock_(clock) {
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
  auto watcher = std::make_shared<Watcher>();
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
  {
    absl::MutexLock lock(&mutex_);
    response->set_total(load_.counts.total);
    response->set_free(load_.counts.free);
    response->set_active(load_.counts.active);
    response->set_cached(load_.counts.cached);
    response->set_held(load_.counts.held);
    response->set_open_transfers(load_.open_transfers);
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

void WatchService::Run() {
  absl::Duration last = clock_.SinceStart();
  absl::Duration told_all = last;
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
      all = news_ || last - told_all >= kHeartbeat - kMinInterval;
      if (all) told_all = last;
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
  std::optional<CacheJournal::Delta> delta;
  if (watcher.introduced) delta = journal_.Since(watcher.journal_position);
  if (!watcher.introduced) {
    WatchResponse response;
    *response.mutable_card() = card_;
    watcher.Push(std::move(response));
    watcher.introduced = true;
  }
  if (!delta) {
    CacheJournal::Snapshot snapshot = journal_.TakeSnapshot();
    watcher.journal_position = snapshot.position;
    ++watcher.sequence;
    for (size_t begin = 0; begin == 0 || begin < snapshot.keys.size(); begin += kKeysPerMessage) {
      const size_t end = std::min(snapshot.keys.size(), begin + kKeysPerMessage);
      WatchResponse response;
      auto* message = response.mutable_snapshot();
      message->set_sequence(watcher.sequence);
      message->mutable_keys()->Add(snapshot.keys.begin() + begin, snapshot.keys.begin() + end);
      message->set_last(end == snapshot.keys.size());
      watcher.Push(std::move(response));
    }
  } else if (!delta->added.empty() || !delta->removed.empty()) {
    watcher.journal_position = delta->next_position;
    WatchResponse response;
    auto* message = response.mutable_delta();
    message->set_sequence(++watcher.sequence);
    message->mutable_added()->Add(delta->added.begin(), delta->added.end());
    message->mutable_removed()->Add(delta->removed.begin(), delta->removed.end());
    watcher.Push(std::move(response));
  }
  WatchResponse response;
  auto* report = response.mutable_load();
  report->set_running(load.running);
  report->set_queued(load.queued);
  report->set_queued_tokens(load.queued_tokens);
  report->set_free_blocks(load.free_blocks);
  report->set_draining(load.draining);
  report->set_remaining_work_us(absl::ToInt64Microseconds(load.remaining_work));
  if (load.prefill_cost) *report->mutable_prefill_cost() = *load.prefill_cost;
  if (load.decode_cost) *report->mutable_decode_cost() = *load.decode_cost;
  report->set_context_tokens(load.context_tokens);
  const absl::Duration now = clock_.SinceStart();
  report->set_age_us(absl::ToInt64Microseconds(now - load.read_at));
  report->set_accepted_age_us(absl::ToInt64Microseconds(now - load.last_accepted_at));
  watcher.Push(std::move(response));
  return true;
}

}  // namespace baton::worker
