// The decode worker's one compute thread: admits requests, has their prompts prefilled elsewhere,
// and advances all running sequences by one token a step.
#ifndef BATON_DECODE_WORKER_LOOP_H_
#define BATON_DECODE_WORKER_LOOP_H_

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "common/base/clock.h"
#include "common/base/mailbox.h"
#include "common/engine/engine.h"
#include "common/transfer/prefill_call.h"
#include "common/worker/watch_service.h"
#include "decode_worker/metrics.h"
#include "decode_worker/scheduler.h"
#include "decode_worker/stream.h"

namespace baton::decode_worker {

struct LoopOptions {
  SchedulerOptions scheduler;
  std::string worker_id;
};

// Opens a Prefill call; PrefillCall::Start over a cached channel, or a fake.
using StartPrefill = std::function<std::shared_ptr<transfer::PrefillCall>(
    const PrefillPeer& peer, const internal::v1::PrefillRequest& request, absl::Time deadline,
    transfer::TransferPlan plan, transfer::PrefillEvents events)>;

// Submit and Cancel are thread-safe; everything else happens on the loop's own thread.
class DecodeLoop {
 public:
  // All references must outlive the loop. `publish` is called on the loop thread.
  DecodeLoop(const LoopOptions& options, engine::Engine& engine, const Clock& clock,
             DecodeMetrics& metrics, StartPrefill start_prefill,
             std::function<void(const worker::WorkerLoad&)> publish);
  ~DecodeLoop();

  // The sequence's stream gets tokens and a finish, or a status; Finished exactly once.
  void Submit(std::unique_ptr<Sequence> sequence);
  void Cancel(uint64_t sequence_id);
  // Refuses new requests with UNAVAILABLE; those inside go on.
  void Drain();
  // Ends all requests with UNAVAILABLE, waits for their transfers' last writers, joins the thread.
  // Idempotent.
  void Stop();

 private:
  void Run();
  void Accept(std::unique_ptr<Sequence> sequence);
  void StartTransfer(Sequence& sequence);
  void OnFirstToken(uint64_t id, const transfer::FirstToken& first);
  void OnTransferEnd(uint64_t id, const absl::Status& status,
                     const transfer::TransferSummary& summary);
  bool Step();
  void Append(Sequence& sequence, int32_t token);
  void End(uint64_t id, const absl::Status& status);
  void Publish();

  engine::Engine& engine_;
  const LoopOptions options_;
  const Clock& clock_;
  DecodeMetrics& metrics_;
  const StartPrefill start_prefill_;
  const std::function<void(const worker::WorkerLoad&)> publish_;
  kv::BlockPool pool_;
  DecodeScheduler scheduler_;
  int open_calls_ = 0;  // Prefill calls not closed yet
  bool draining_ = false;
  bool stopping_ = false;
  // Shared with transfers under way, whose last event may come late.
  const std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  std::thread thread_;
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_LOOP_H_
