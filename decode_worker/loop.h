// The decode worker's compute loop: admits requests, gets their prompts' KV from another worker or
// computes it here, and advances all running sequences by one token a step, or by more where drafts
// are drawn (speculation.h). Its steps also have jobs: prompts that other workers answer, and items
// to score (common/prefill/jobs.h). What cannot wait for the end of a step, another thread does in
// its place (common/worker/mid_step_mailbox.h).
#ifndef BATON_DECODE_WORKER_LOOP_H_
#define BATON_DECODE_WORKER_LOOP_H_

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/engine/engine.h"
#include "common/grammar/structured_output.h"
#include "common/prefill/jobs.h"
#include "common/transfer/device_link_client.h"
#include "common/transfer/link_meter.h"
#include "common/transfer/prefill_call.h"
#include "common/transfer/shared_pools.h"
#include "common/worker/cache_journal.h"
#include "common/worker/prompt_budget.h"
#include "common/worker/watch_service.h"
#include "common/worker/worker_loop.h"
#include "decode_worker/decode_stream.h"
#include "decode_worker/host_kv.h"
#include "decode_worker/kv_offers.h"
#include "decode_worker/load_estimate.h"
#include "decode_worker/metrics.h"
#include "decode_worker/scheduler.h"
#include "decode_worker/speculation.h"
#include "decode_worker/step_times.h"

namespace baton::decode_worker {

struct LoopOptions : worker::WorkerLoopOptions {
  SchedulerOptions scheduler;
  SpeculationOptions speculation;
  engine::Engine* draft_engine = nullptr;  // as Speculation has it
  prefill::JobsOptions jobs;
  std::string worker_id;
  KvOffersOptions kv_offers;
  int64_t host_kv_bytes = 0;  // for the KV of preempted sequences; 0: it is recomputed
  // Computes the masks of calls with a grammar. Null: there are none. Must outlive the loop.
  grammar::StructuredOutput* structured_output = nullptr;
  // The prefill workers' pools that are mapped, and the links to their devices. Null: there are
  // none. Must outlive the loop.
  transfer::SharedPools* shared_pools = nullptr;
  transfer::DeviceLinkClient* device_links = nullptr;
};

// Opens a Prefill call; PrefillCall::Start over a cached channel, or a fake.
using StartPrefill = std::function<std::shared_ptr<transfer::PrefillCall>(
    const PrefillPeer& peer, const internal::v1::PrefillRequest& request, absl::Time deadline,
    transfer::TransferPlan plan, transfer::PrefillEvents events)>;

// Submit, Cancel and OfferFrom are thread-safe. The rest is as in WorkerLoop.
class DecodeLoop final : public worker::WorkerLoop {
 public:
  // All references must outlive the loop. `publish` is called on the loop thread.
  DecodeLoop(const LoopOptions& options, engine::Engine& engine, worker::CacheJournal& journal,
             const Clock& clock, DecodeMetrics& metrics, StartPrefill start_prefill,
             std::function<void(const worker::WorkerLoad&)> publish);
  ~DecodeLoop() override { Stop(); }

  // `sequence`: the call's first choice, from which the loop forks the others once the prompt is
  // computed. The call's stream gets tokens and a finish reason for each choice, or an error. The
  // loop ends the stream (Finish) exactly once, perhaps before Submit returns: a full queue refuses
  // at once.
  void Submit(std::unique_ptr<Sequence> sequence);
  void Cancel(uint64_t call_id);
  // As KvOffers::SetSelf. Thread-safe.
  void OfferFrom(internal::v1::WorkerRef self) {
    mailbox_->Post([this, self = std::move(self)] { offers_.SetSelf(self); });
  }

  // Thread-safety is as in PrefillJobs.
  prefill::PrefillJobs& jobs() { return jobs_; }

  absl::Duration UntilNextHeartbeat() const override;

  // For tests, between calls of Turn.
  void CheckIntegrity() const override;
  const kv::BlockPool& pool() const { return pool_; }
  const DecodeScheduler& scheduler() const { return scheduler_; }
  int64_t accepted_draft_tokens() const { return accepted_draft_tokens_; }

 private:
  void RefuseNew(bool draining) override;
  bool Work() override;
  void EndRequests() override;
  bool quiet() const override;
  void OnEnded() override { jobs_.OnLoopEnded(); }
  void FlushFurtherCaches() override { speculation_.FlushCache(); }
  void FillLoad(worker::WorkerLoad* load) override;
  void OnPublished(const worker::WorkerLoad& load) override;
  void EndExpired();
  void AdmitAll();
  // Admits while a step runs: requests whose KV is brought, and no other.
  void AdmitMidStep();
  void Accept(std::unique_ptr<Sequence> sequence);
  void Refuse(const Call& call, absl::Status status);
  // Lets a new request wait in the scheduler's queue, or refuses it.
  void Enqueue(std::unique_ptr<Sequence> sequence);
  // The requests whose KV has come, or will not, go on to the scheduler's queue.
  void EnqueueBrought();
  // Its keys are those of the whole prompt.
  std::unique_ptr<prefill::Prompt> PromptOf(const Sequence& sequence) const;
  // The call's prompt is computed, and in the prefix cache.
  void OnComputedHere(const Sequence& sequence);
  void Admitted(Sequence& sequence);
  void StartTransfer(Sequence& sequence);
  // `id`: of the sequence.
  void OnFirstToken(uint64_t id, const transfer::FirstToken& first);
  void OnTransferEnd(uint64_t id, const absl::Status& status,
                     const transfer::TransferSummary& summary);
  struct InflightStep {
    std::vector<std::shared_ptr<Call>> calls;  // the calls whose sequences are in it
    int decoding = 0;                          // sequences that decode in this step
    int prompt_rows = 0;    // input tokens of prompts, preempted answers and jobs
    int prompt_tokens = 0;  // computed tokens of prompts, and of preempted answers
    bool has_jobs = false;  // the last results are theirs
    PrefillWork jobs;
    absl::Duration begin;
    absl::Duration
        ended_at;  // when the engine had the results; messages may be handled behind that
    // True: launched ahead, the device may still be computing it. False: the engine has returned
    // `results`, which the loop has not handled yet.
    bool ahead = false;
    std::vector<engine::StepResult> results;
    // Chunks whose mask could not be computed: they were drawn from all tokens, in vain.
    std::vector<std::pair<size_t, absl::Status>> mask_errors;
  };

  // Launches a step, and the one ahead if possible; completes the oldest. False: there is no step.
  bool Step();
  StepPlan PlanStep();
  // Gives the plan's chunks drafts, where they are worth their time.
  void PlanDrafts(StepPlan& plan);
  // So many drafts fit into a step of these chunks.
  int RoomForDrafts(const std::vector<Chunk>& chunks) const;
  // False: jobs have no part in the step of `plan`.
  bool PlanJobs(const StepPlan& plan);
  // With the masks of grammars, which are kept until the next call.
  engine::Batch MakeBatch(StepPlan& plan);
  void AddMasks(StepPlan& plan, engine::Batch& batch);
  // Leaves the chunk its first `count` drafts.
  void CutDrafts(size_t count, Chunk& chunk, engine::BatchEntry& entry);
  void Launch(const StepPlan& plan, engine::Batch batch, bool has_jobs);
  void LaunchAhead(StepPlan plan);
  void Complete();
  void TakeResult(const Chunk& chunk, engine::StepResult& result);
  // False after an error, which has ended the call.
  bool CollectPromptLogprobs(Call& call, engine::StepResult& result);
  // Appends the tokens that the engine sampled. For the first token of a call with several choices,
  // `tokens` has one for each choice, and the other choices are forked from `sequence` here. Of a
  // chunk with drafts, they are those that were drawn, and one more.
  void Draw(const Chunk& chunk, std::vector<model::SampledToken> tokens);
  void AdvanceBeams(Call& call, std::vector<engine::StepResult*> results,
                    std::vector<Sequence*> beams);
  // Appends tokens that were drawn one behind the other, up to a stop token, and sends them.
  // `logprobs`: none, or of each token. `drafted`: that all but the last were drafts. Returns how
  // many it appended; the sequence may have ended.
  int Append(Sequence& sequence, absl::Span<const int32_t> tokens,
             absl::Span<const v1::TokenLogprobs> logprobs, bool drafted);
  void CountGenerated(int64_t tokens);
  // Counts the drafts that one sequence had in a step.
  void CountDrafts(int64_t drafted, int64_t accepted);
  void Send(Call& call, internal::v1::DecodeResponse response);
  void EndChoice(Sequence& sequence);
  // Ends the call with all its sequences.
  void EndCall(std::shared_ptr<Call> call, const absl::Status& status);
  // Frees the sequence and its blocks. Sends nothing.
  void Drop(Sequence& sequence);
  void SendHeartbeats();
  void ReportLinks(worker::WorkerLoad& load);

  // A prompt for which KV is brought from tiers or another worker before its request waits for
  // blocks, by the number of the call.
  struct Bringing {
    std::unique_ptr<Sequence> sequence;
    std::unique_ptr<prefill::Prompt> prompt;
  };

  const LoopOptions options_;
  DecodeMetrics& metrics_;
  worker::SubmissionLimit submission_limit_;
  const StartPrefill start_prefill_;
  KvOffers offers_;
  LoadEstimate estimate_;
  worker::PromptBudget prompt_budget_;
  StepTimes step_times_;
  HostKv host_kv_;
  prefill::PrefillJobs jobs_;
  DecodeScheduler scheduler_;
  Speculation speculation_;
  std::map<uint64_t, Bringing> bringing_;
  std::optional<absl::Duration> head_waits_since_;  // a request waits, and none is admitted
  std::optional<absl::Duration> last_job_at_;       // when there were jobs
  std::deque<InflightStep> inflight_;               // oldest first, as in the scheduler
  // These are of the last batch made. Each entry with a grammar has the mask of its draw, then
  // those of the draws behind its drafts.
  std::vector<absl::StatusOr<std::vector<grammar::StructuredOutput::Mask>>> masks_;
  std::vector<std::vector<absl::Span<const uint32_t>>> masks_after_;  // behind drafts
  std::vector<std::pair<size_t, absl::Status>> mask_errors_;          // of its chunks
  absl::Duration last_completed_at_;                                  // end of the last step
  std::map<uint64_t, std::shared_ptr<Call>> calls_;  // calls that have not ended, by id
  uint64_t last_sequence_id_ = 0;
  // Prefill calls that are not closed, by a number that the loop assigns. They are kept so that
  // this thread drops the last reference to them and to their channels.
  std::map<uint64_t, std::shared_ptr<transfer::PrefillCall>> open_transfers_;
  uint64_t last_transfer_ = 0;
  // Shared with transfers, which measure on gRPC threads.
  const std::shared_ptr<transfer::LinkMeter> link_meter_;
  std::shared_ptr<const std::vector<transfer::MeasuredLink>> measured_links_;  // as last reported
  std::shared_ptr<const std::vector<worker::LinkRate>> reported_links_;        // the same
  absl::Duration drafting_;  // what the draft model took for the step being planned
  int64_t reported_preemptions_ = 0;
  int64_t swapped_preemptions_ = 0;  // of those not reported yet
  // Since the start.
  int64_t computed_prompt_tokens_ = 0;
  int64_t generated_tokens_ = 0;
  int64_t draft_tokens_ = 0;
  int64_t accepted_draft_tokens_ = 0;
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_LOOP_H_
