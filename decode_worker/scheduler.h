// Which requests the decode worker lets in, and which sequences its next step advances.
// Decides over tokens and counts: knows no gRPC, no engine.
//
//   Submit ─▶ waiting ── Admit (blocks reserved) ─▶ receiving ── Commit ─▶ running ── Remove
//
// Thread: owned by the loop; unsynchronized.
#ifndef BATON_DECODE_WORKER_SCHEDULER_H_
#define BATON_DECODE_WORKER_SCHEDULER_H_

#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/kv/block_pool.h"
#include "common/model/sampler.h"
#include "common/transfer/kv_receiver.h"

namespace baton::transfer {
class PrefillCall;
}

namespace baton::decode_worker {

class DecodeStream;

// The prefill worker that the router chose.
struct PrefillPeer {
  std::string address;
  std::string worker_id;
  uint64_t epoch = 0;
};

// One request on its way through the worker.
struct Sequence {
  uint64_t id = 0;
  std::string request_id;
  std::vector<int32_t> tokens;  // prompt, then what was generated
  int prompt_tokens = 0;
  int max_tokens = 0;           // to generate
  model::SamplingParams sampling;
  absl::flat_hash_set<int32_t> stop_token_ids;
  std::string cache_salt;
  PrefillPeer prefill;
  absl::Time deadline = absl::InfiniteFuture();
  std::shared_ptr<DecodeStream> stream;

  kv::BlockLease blocks;
  std::shared_ptr<transfer::PrefillCall> call;  // while receiving
  bool abandoned = false;  // its stream has ended, but the transfer's writer has not
  transfer::TransferSummary transfer;
  absl::Duration submitted_at;
  absl::Duration admitted_at;
  absl::Duration first_token_at;
  absl::Duration committed_at;

  int generated_tokens() const { return static_cast<int>(tokens.size()) - prompt_tokens; }
};

struct SchedulerOptions {
  int block_tokens = 16;
  int max_num_seqs = 64;         // receiving and running
  int max_queued_requests = 256;
  int64_t max_queued_tokens = 1 << 20;
};

class DecodeScheduler {
 public:
  DecodeScheduler(const SchedulerOptions& options, kv::BlockPool& pool);

  // RESOURCE_EXHAUSTED: QUEUE_FULL, or KV_POOL_TOO_SMALL if the request can never fit.
  absl::Status Submit(std::unique_ptr<Sequence> sequence);

  // The oldest waiting request if its prompt and its whole answer have blocks now; they are reserved
  // (kHeld). Reserving all of it means that nothing admitted ever runs out of blocks. Else null.
  Sequence* Admit();

  // The transfer is verified: from now on part of every batch.
  void Commit(Sequence& sequence);

  // In order of their commit; at most max_num_seqs.
  const std::list<std::unique_ptr<Sequence>>& running() const { return running_; }

  Sequence* Find(uint64_t id);
  // Takes a sequence out of wherever it is; its blocks are freed with it. Null if there is none.
  std::unique_ptr<Sequence> Remove(uint64_t id);
  std::vector<uint64_t> SequenceIds() const;

  // Sequence blocks that the prompt's KV fills.
  int PromptBlocks(const Sequence& sequence) const;

  int waiting_count() const { return static_cast<int>(waiting_.size()); }
  int receiving_count() const { return static_cast<int>(receiving_.size()); }
  int running_count() const { return static_cast<int>(running_.size()); }
  int64_t waiting_tokens() const { return waiting_tokens_; }

 private:
  int BlocksFor(int64_t tokens) const;
  int TotalBlocks(const Sequence& sequence) const;

  const SchedulerOptions options_;
  kv::BlockPool& pool_;
  std::list<std::unique_ptr<Sequence>> waiting_;
  std::list<std::unique_ptr<Sequence>> receiving_;
  std::list<std::unique_ptr<Sequence>> running_;
  int64_t waiting_tokens_ = 0;
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_SCHEDULER_H_
