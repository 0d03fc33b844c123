#include "prefill_worker/scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"

namespace baton::prefill_worker {

PrefillScheduler::PrefillScheduler(const SchedulerOptions& options, kv::BlockPool& pool,
                                   kv::RadixCache* cache)
    : options_(options), pool_(pool), cache_(cache) {
  BATON_CHECK_GE(options.max_num_batched_tokens, options.block_tokens);
}

int PrefillScheduler::BlocksFor(int64_t tokens) const {
  return static_cast<int>((tokens + options_.block_tokens - 1) / options_.block_tokens);
}

absl::Status PrefillScheduler::Submit(std::unique_ptr<PrefillJob> job) {
  const int64_t tokens = static_cast<int64_t>(job->tokens.size());
  BATON_CHECK_GE(tokens, 1);
  if (BlocksFor(tokens) > pool_.counts().total) {
    return MakeError(absl::StatusCode::kResourceExhausted, "KV_POOL_TOO_SMALL",
                     absl::StrCat("the prompt of ", tokens, " tokens needs ", BlocksFor(tokens),
                                  " KV blocks, the prefill worker has ", pool_.counts().total));
  }
  // The bounds are on what waits: a lone prompt is let in however long it is.
  if (!waiting_.empty() && (waiting_count() >= options_.max_queued_requests ||
                            waiting_tokens_ + tokens > options_.max_queued_tokens)) {
    return MakeError(
        absl::StatusCode::kResourceExhausted, "QUEUE_FULL",
        absl::StrCat("the prefill worker's queue holds ", waiting_count(), " requests and ",
                     waiting_tokens_, " tokens, its bounds are ", options_.max_queued_requests,
                     " and ", options_.max_queued_tokens));
  }
  waiting_tokens_ += tokens;
  waiting_.push_back(std::move(job));
  return absl::OkStatus();
}

std::vector<PrefillJob*> PrefillScheduler::StartJobs() {
  std::vector<PrefillJob*> started;
  while (!waiting_.empty() && running_count() < options_.max_num_seqs &&
         TryStart(*waiting_.front())) {
    waiting_tokens_ -= static_cast<int64_t>(waiting_.front()->tokens.size());
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    started.push_back(running_.back().get());
  }
  return started;
}

bool PrefillScheduler::TryStart(PrefillJob& job) {
  const int tokens = static_cast<int>(job.tokens.size());
  kv::Match match;
  // At least the last token is computed: its logits are the answer's first token.
  if (cache_ != nullptr && !job.prompt_logprobs) {
    match = cache_->MatchPrefix(job.root, job.tokens, tokens - 1);
  }
  const int missing = BlocksFor(tokens) - match.blocks.size();
  const int lacking = missing - pool_.counts().free;
  if (lacking > 0) {
    // Take nothing unless it is enough: a job that waits must not empty the cache for others.
    if (cache_ == nullptr || cache_->evictable_block_count() < lacking) return false;
    cache_->Evict(lacking);
  }
  absl::StatusOr<kv::BlockLease> fresh = pool_.Acquire(missing, kv::BlockUse::kActive);
  if (!fresh.ok()) return false;
  job.blocks = std::move(match.blocks);
  job.blocks.Append(*std::move(fresh));
  job.cached_tokens = match.tokens;
  job.computed_tokens = match.tokens;
  return true;
}

std::vector<Chunk> PrefillScheduler::NextBatch() const {
  std::vector<Chunk> chunks;
  int budget = options_.max_num_batched_tokens;
  for (const std::unique_ptr<PrefillJob>& job : running_) {
    int count = std::min(budget, job->remaining_tokens());
    if (count < job->remaining_tokens()) count -= count % options_.block_tokens;
    if (count <= 0) continue;  // computed already, or less than a block is left of the budget
    chunks.push_back({job.get(), job->computed_tokens, job->computed_tokens + count});
    budget -= count;
  }
  return chunks;
}

void PrefillScheduler::Computed(const Chunk& chunk) {
  BATON_CHECK_EQ(chunk.job->computed_tokens, chunk.begin);
  chunk.job->computed_tokens = chunk.end;
}

void PrefillScheduler::Donate(const PrefillJob& job) {
  BATON_CHECK_EQ(job.remaining_tokens(), 0);
  if (cache_ != nullptr) cache_->Insert(job.root, job.tokens, job.blocks);
}

std::unique_ptr<PrefillJob> PrefillScheduler::Remove(uint64_t id) {
  const auto is_job = [id](const std::unique_ptr<PrefillJob>& job) { return job->id == id; };
  if (auto it = std::find_if(running_.begin(), running_.end(), is_job); it != running_.end()) {
    std::unique_ptr<PrefillJob> job = std::move(*it);
    running_.erase(it);
    return job;
  }
  if (auto it = std::find_if(waiting_.begin(), waiting_.end(), is_job); it != waiting_.end()) {
    std::unique_ptr<PrefillJob> job = std::move(*it);
    waiting_tokens_ -= static_cast<int64_t>(job->tokens.size());
    waiting_.erase(it);
    return job;
  }
  return nullptr;
}

std::vector<uint64_t> PrefillScheduler::JobIds() const {
  std::vector<uint64_t> ids;
  for (const std::unique_ptr<PrefillJob>& job : running_) ids.push_back(job->id);
  for (const std::unique_ptr<PrefillJob>& job : waiting_) ids.push_back(job->id);
  return ids;
}

int64_t PrefillScheduler::queued_tokens() const {
  int64_t tokens = waiting_tokens_;
  for (const std::unique_ptr<PrefillJob>& job : running_) tokens += job->remaining_tokens();
  return tokens;
}

}  // namespace baton::prefill_worker
