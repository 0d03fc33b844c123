// Prefill and decode workers of a simulation: the real loops over a hash engine, turned when there
// is something to do, killed, frozen and started again with a new epoch.
#ifndef BATON_TESTS_SIMULATION_WORKER_H_
#define BATON_TESTS_SIMULATION_WORKER_H_

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "baton/internal/v1/decode.pb.h"
#include "baton/internal/v1/worker.pb.h"
#include "common/prefill/loop.h"
#include "common/worker/cache_journal.h"
#include "common/worker/watch_report.h"
#include "decode_worker/loop.h"
#include "tests/simulation/hash_engine.h"
#include "tests/simulation/transfer.h"
#include "tests/simulation/world.h"

namespace baton::simulation {

// One stream of reports to a router.
struct Watcher {
  std::shared_ptr<Stream> stream;
  std::function<void(const internal::v1::WatchResponse&)> deliver;  // runs at the router
  worker::WatchReport report;
};

class Worker {
 public:
  Worker(World& world, v1::WorkerRole role, std::string address, const FrameFaults& faults);
  virtual ~Worker() = default;

  int node() const { return node_; }
  v1::WorkerRole role() const { return role_; }
  const std::string& address() const { return address_; }
  uint64_t epoch() const { return card_.epoch(); }
  bool alive() const { return world_.alive(node_); }

  // A process at this address, with a new epoch.
  void Start();
  // kill -9, or the whole machine goes.
  void Kill(bool machine_gone);
  // As an operator asks for it.
  virtual void SetDraining(bool draining) = 0;
  // Nothing runs or waits, no block is active or held.
  virtual bool Idle() const = 0;
  virtual std::string Describe() const = 0;

  void Watch(std::shared_ptr<Stream> stream,
             std::function<void(const internal::v1::WatchResponse&)> deliver);
  // Something may have come for the loop.
  void Wake();
  // A Prefill call has come.
  void AcceptPrefill(const std::string& request, absl::Time deadline,
                     std::shared_ptr<Stream> stream, std::weak_ptr<SimPrefillCall> call);

 protected:
  virtual void StartLoop() = 0;
  virtual void KillLoop() = 0;
  virtual bool TurnLoop() = 0;
  // After a turn without a step: when to turn again unless woken before.
  virtual Micros NextTurnAfter() const = 0;
  virtual const engine::Engine& engine() const = 0;
  virtual prefill::PrefillJobs& jobs() = 0;
  virtual bool caches_prefixes() const = 0;
  virtual bool serves_prefill() const = 0;
  void Publish(const worker::WorkerLoad& load);

  World& world_;
  const v1::WorkerRole role_;
  const std::string address_;
  const FrameFaults& faults_;
  std::unique_ptr<worker::CacheJournal> journal_;
  worker::WorkerLoad load_;

 private:
  void ScheduleTurn(Micros when);
  void RunTurn(uint64_t ticket);
  void ScheduleReport(Micros when);
  void Report();

  const int node_;
  internal::v1::WorkerCard card_;
  uint64_t life_ = 0;  // how often it was started
  Micros busy_until_ = 0;
  Micros turn_at_ = -1;  // of the turn scheduled; -1: none
  uint64_t turn_ticket_ = 0;
  int idle_turns_ = 0;
  Micros report_at_ = -1;
  Micros last_report_ = 0;
  std::list<Watcher> watchers_;
  std::list<std::weak_ptr<SimKvSender>> senders_;
  uint64_t last_job_ = 0;
};

class PrefillWorker final : public Worker {
 public:
  PrefillWorker(World& world, std::string address, const HashEngineOptions& engine,
                const prefill::LoopOptions& loop, const FrameFaults& faults);
  ~PrefillWorker() override;

  void SetDraining(bool draining) override { loop_->SetDraining(draining), Wake(); }
  bool Idle() const override;
  std::string Describe() const override;

 private:
  void StartLoop() override;
  void KillLoop() override;
  bool TurnLoop() override;
  Micros NextTurnAfter() const override { return -1; }
  const engine::Engine& engine() const override { return *engine_; }
  prefill::PrefillJobs& jobs() override { return loop_->jobs(); }
  bool caches_prefixes() const override { return loop_options_.enable_prefix_caching; }
  bool serves_prefill() const override { return true; }

  const HashEngineOptions engine_options_;
  const prefill::LoopOptions loop_options_;
  std::unique_ptr<HashEngine> engine_;
  std::unique_ptr<prefill::PrefillLoop> loop_;
};

class SimDecodeStream;

class DecodeWorker final : public Worker {
 public:
  using FindWorker = std::function<Worker*(const std::string& address)>;
  // What the router's end of a Decode call hears.
  struct Caller {
    std::function<void(const internal::v1::DecodeResponse&)> response;
    std::function<void(const absl::Status&)> status;
  };
  DecodeWorker(World& world, std::string address, const HashEngineOptions& engine,
               const decode_worker::LoopOptions& loop, const FrameFaults& faults,
               FindWorker find_worker, bool serves_prefill = false,
               const HashEngineOptions& draft_engine = {});
  ~DecodeWorker() override;

  // A Decode call has come.
  void Accept(const internal::v1::DecodeRequest& request, absl::Time deadline,
              std::shared_ptr<Stream> stream, Caller caller);
  void SetDraining(bool draining) override { loop_->SetDraining(draining), Wake(); }
  bool Idle() const override;
  std::string Describe() const override;
  int64_t preemptions() const { return preemptions_ + (loop_ ? LivePreemptions() : 0); }
  int64_t accepted_drafts() const {
    return accepted_drafts_ + (loop_ ? loop_->accepted_draft_tokens() : 0);
  }

 private:
  void StartLoop() override;
  void KillLoop() override;
  bool TurnLoop() override;
  Micros NextTurnAfter() const override;
  const engine::Engine& engine() const override { return *engine_; }
  prefill::PrefillJobs& jobs() override { return loop_->jobs(); }
  bool caches_prefixes() const override { return loop_options_.enable_prefix_caching; }
  bool serves_prefill() const override { return serves_prefill_; }
  int64_t LivePreemptions() const { return loop_->scheduler().preemption_count(); }
  std::shared_ptr<transfer::PrefillCall> StartPrefill(const decode_worker::PrefillPeer& peer,
                                                      internal::v1::PrefillRequest request,
                                                      absl::Time deadline,
                                                      transfer::TransferPlan plan,
                                                      transfer::PrefillEvents events);

  const HashEngineOptions engine_options_;
  const HashEngineOptions draft_engine_options_;  // of a model that drafts, if the loop has one
  const decode_worker::LoopOptions loop_options_;
  const FindWorker find_worker_;
  const bool serves_prefill_;
  std::unique_ptr<HashEngine> engine_;
  std::unique_ptr<HashEngine> draft_engine_;
  std::unique_ptr<decode_worker::DecodeLoop> loop_;
  std::list<std::shared_ptr<SimPrefillCall>> calls_;
  uint64_t last_call_ = 0;
  int64_t preemptions_ = 0;  // of earlier lives
  int64_t accepted_drafts_ = 0;
};

}  // namespace baton::simulation

#endif  // BATON_TESTS_SIMULATION_WORKER_H_
