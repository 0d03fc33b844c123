// One prompt that a worker computes for its sink.
#ifndef BATON_COMMON_PREFILL_JOB_H_
#define BATON_COMMON_PREFILL_JOB_H_

#include <algorithm>
#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "baton/v1/inference.pb.h"
#include "common/kv/block_pool.h"
#include "common/model/sampler.h"
#include "common/prefill/job_sink.h"
#include "common/prefill/prompt.h"
#include "common/worker/retention.h"

namespace baton::prefill {

// The order of work: the lower rank goes first. See scheduler.h for the rule.
struct Rank {
  int class_order = 0;  // HIGH before NORMAL before LOW
  int64_t key = 0;      // tokens to compute, plus those the worker had computed at its arrival
  uint64_t id = 0;
  auto operator<=>(const Rank&) const = default;
};

class JobTrace;

// What a job computes instead of drawing a token: the scores of labels after its prompt, or the
// prompt's embedding.
struct Scoring {
  std::vector<std::vector<int32_t>> labels;  // none empty; none for an embedding, else 1 or more
  std::vector<int32_t> first_tokens;         // of each label
  std::shared_ptr<ScoreSink> sink;

  // Set by the scheduler and the loop.
  kv::BlockLease label_blocks;  // see label_rows.h
  std::vector<std::vector<float>> logprobs;

  bool embeds() const { return labels.empty(); }
};

// The KV that a job sends to a worker which lacks it.
struct KvTransfer {
  std::shared_ptr<transfer::KvSender> sender;
  int first_block = 0;                             // the receiver has those before it
  std::shared_ptr<transfer::PinnedBlocks> pinned;  // set by the loop, once the job runs
};

struct PrefillJob : Prompt {
  uint64_t id = 0;
  std::shared_ptr<JobTrace> trace;  // null: not sampled. Ended by the sink
  std::string tenant;               // whose fair share of the worker it takes
  v1::Priority priority = v1::PRIORITY_NORMAL;
  model::SamplingParams sampling;
  int prompt_tokens = 0;            // how many of `tokens`; the rest is the answer so far
  std::vector<int32_t> suppressed;  // not to be drawn as the first token
  worker::PromptRetention retention;
  // One of the two: labels are scored after the prompt, or a token is drawn.
  std::unique_ptr<Scoring> scoring;
  std::shared_ptr<TokenSink> token_sink;
  std::optional<KvTransfer> transfer;  // nullopt: its KV stays here

  // Set when it starts.
  kv::BlockLease blocks;
  int window_end = 0;  // the first block without window pages, in pools that have them
  // The blocks whose states later prompts may go on from, in pools with states: the last one that
  // they could match, and the last one that was cached when the job started, without a snapshot.
  std::vector<int> snapshots;
  int cached_tokens = 0;
  int computed_tokens = 0;  // cached ones included
  absl::Duration submitted_at;
  absl::Duration started_at;
  absl::Duration computing;  // the steps so far that had a chunk of it

  // The scheduler's state.
  int64_t arrival_work = 0;   // tokens that the worker had computed when the job arrived
  int pending_from = 0;       // the first block that PendingBlocks lists, while it lists the job
  int expected_tokens = 0;    // still to compute: neither cached nor computed by another job
  int label_tokens = 0;       // to compute behind the prompt
  Rank rank;                  // valid while the job waits
  uint64_t start_order = 0;   // 1 or more once the job runs
  int64_t passed_tokens = 0;  // tokens of jobs that started before it while it had no blocks

  // The same prompt again would find so many blocks cached: its last token is always computed. Of
  // layers with windows, the receiver of its KV gets what is needed from there on.
  int reusable_blocks(int block_tokens) const { return (size() - 1) / block_tokens; }
  int remaining_tokens() const { return size() - computed_tokens; }
  bool running() const { return start_order != 0; }
  // For queues and estimates; labels included.
  int tokens_to_compute() const {
    return (running() ? remaining_tokens() : expected_tokens) + label_tokens;
  }
  std::shared_ptr<JobSink> sink() const {
    if (scoring != nullptr) return scoring->sink;
    return token_sink;
  }
  // Once it runs.
  int blocks_to_send() const {
    return transfer ? std::max(0, blocks.size() - transfer->first_block) : 0;
  }
};

}  // namespace baton::prefill

#endif  // BATON_COMMON_PREFILL_JOB_H_
