#include "common/worker/worker_loop.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/named_thread.h"

namespace baton::worker {
namespace {

std::unique_ptr<kv::RadixCache> MakeCache(const WorkerLoopOptions& options,
                                          const engine::Engine& engine, const Clock& clock,
                                          kv::BlockPool& pool) {
  if (!options.enable_prefix_caching) return nullptr;
  return std::make_unique<kv::RadixCache>(
      pool, engine.kv_layout().block_tokens,
      kv::RetentionLimits{options.max_retained_share, clock, options.max_snapshot_share,
                          options.superseded_first});
}

}  // namespace

absl::Status DrainingError(absl::string_view role) {
  return MakeError(absl::StatusCode::kUnavailable, "DRAINING",
                   absl::StrCat("this ", role, " worker drains"));
}

WorkerLoop::WorkerLoop(const WorkerLoopOptions& options, const std::string& role,
                       engine::Engine& engine, CacheJournal& journal, const Clock& clock,
                       WorkerMetrics& metrics, KvExchangeMetrics& kv_exchange,
                       std::function<void(const WorkerLoad&)> publish)
    : engine_(engine),
      clock_(clock),
      mid_step_(std::make_shared<MidStepMailbox>(mailbox_, options.own_thread)),
      pool_(engine.kv_pool().block_count, engine.kv_layout().Shape()),
      cache_(MakeCache(options, engine, clock, pool_)),
      holder_(options.kv_holder, engine.kv_layout(), pool_, cache_.get(), mid_step_, kv_exchange),
      options_(options),
      role_(role),
      journal_(journal),
      publish_(std::move(publish)) {
  if (cache_ == nullptr) return;
  cache_->SetListener([&metrics, &journal](kv::CacheChange change) {
    journal.Record(change);
    if (!change.added) metrics.BlocksEvicted(1);
  });
}

WorkerLoop::~WorkerLoop() { BATON_CHECK(!thread_.joinable()) << "the loop has not been stopped"; }

void WorkerLoop::StartThread() {
  if (options_.own_thread) thread_ = NamedThread("worker-loop", [this] { Run(); });
}

void WorkerLoop::SetDraining(bool draining, std::function<void()> applied) {
  RefuseNew(draining);
  const bool posted = mailbox_->Post([this, draining, applied] {
    draining_ = draining || stopping_ || ended_;
    holder_.SetDraining(draining_);
    Publish();
    applied();
  });
  if (!posted) applied();
}

void WorkerLoop::FlushCache(std::function<void(int)> done) {
  const bool posted = mailbox_->Post([this, done] {
    const int dropped = cache_ != nullptr ? cache_->Clear() : 0;
    FlushFurtherCaches();
    Publish();
    done(dropped);
  });
  if (!posted) done(0);
}

void WorkerLoop::Stop() {
  if (!options_.own_thread) {
    EndAll();
  } else if (thread_.joinable()) {
    mailbox_->Post([this] { stopping_ = true; });
    thread_.join();
  }
  mid_step_->Stop();
}

void WorkerLoop::Run() {
  Publish();  // the pool, before any request
  bool stepped = false;
  // Without a step to run, the loop waits for a message or the next heartbeat.
  while (!stopping_) stepped = TakeTurn(stepped ? absl::ZeroDuration() : UntilNextHeartbeat());
  EndAll();
}

bool WorkerLoop::Turn(absl::Duration wait) {
  BATON_CHECK(!options_.own_thread);
  return !ended_ && TakeTurn(wait);
}

void WorkerLoop::TakeMessages() {
  mailbox_->RunPending(absl::ZeroDuration());
  last_accepted_at_ = clock_.SinceStart();
}

bool WorkerLoop::TakeTurn(absl::Duration wait) {
  mailbox_->RunPending(wait);
  last_accepted_at_ = clock_.SinceStart();
  if (stopping_) return false;
  const bool stepped = Work();
  Publish();
  return stepped;
}

void WorkerLoop::EndAll() {
  if (ended_) return;
  ended_ = true;
  draining_ = true;
  holder_.SetDraining(true);
  mailbox_->RunPending(absl::ZeroDuration());
  EndRequests();
  mailbox_->RunPending(absl::ZeroDuration());
  // Blocks are freed after their last writer has stopped, channels after their last call.
  while (!quiet()) {
    BATON_CHECK(options_.own_thread) << "stopped with open transfers";
    mailbox_->RunPending(absl::InfiniteDuration());
  }
  mailbox_->Close();
  mailbox_->RunPending(absl::ZeroDuration());
  // Frames still in gRPC's buffers read memory that the engine owns, which outlives the server.
  holder_.ReleaseAll();
  OnEnded();
}

void WorkerLoop::CheckIntegrity() const {
  pool_.CheckIntegrity();
  if (cache_ != nullptr) cache_->CheckIntegrity();
}

void WorkerLoop::Publish() {
  WorkerLoad load;
  load.counts = pool_.counts();
  load.free_blocks = load.counts.free + (cache_ != nullptr ? cache_->evictable_page_count() : 0);
  load.retained_blocks = cache_ != nullptr ? cache_->retained_block_count() : 0;
  const bool recurrent = pool_.shape().recurrent && cache_ != nullptr;
  load.snapshots = recurrent ? cache_->snapshot_count() : 0;
  load.draining = draining_;
  load.last_accepted_at = last_accepted_at_;
  load.read_at = clock_.SinceStart();
  FillLoad(&load);
  publish_(load);
  OnPublished(load);
}

}  // namespace baton::worker
