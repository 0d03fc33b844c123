#include "prefill_worker/scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/request_limits.h"
#include "common/worker/throughput.h"
#include "prefill_worker/label_rows.h"

namespace baton::prefill_worker {

PrefillScheduler::PrefillScheduler(const SchedulerOptions& options, kv::BlockPool& pool,
                                   kv::RadixCache* cache)
    : options_(options), pool_(pool), cache_(cache), pending_(options.block_tokens) {
  BATON_CHECK_GE(options.max_num_batched_tokens, options.block_tokens);
  BATON_CHECK_GE(options.max_num_seqs, 1);
}

int PrefillScheduler::BlocksFor(int64_t tokens) const {
  return static_cast<int>((tokens + options_.block_tokens - 1) / options_.block_tokens);
}

int PrefillScheduler::BlocksOf(const PrefillJob& job) const {
  const int labels = job.scoring ? LabelBlocks(job, options_.block_tokens) : 0;
  return BlocksFor(job.size()) + labels;
}

int PrefillScheduler::waiting_requests() const {
  return waiting_count() - waiting_items_ +
         (waiting_items_ + kMaxScoredItems - 1) / kMaxScoredItems;
}

// At least the last token is computed: its logits are the answer's first token.
int PrefillScheduler::MatchableBlocks(const PrefillJob& job) const {
  if (cache_ == nullptr || job.prompt_logprobs) return 0;
  return (job.size() - 1) / options_.block_tokens;
}

int PrefillScheduler::CachedBlocks(const PrefillJob& job) const {
  const int matchable = MatchableBlocks(job);
  if (matchable == 0) return 0;
  return cache_->Peek(job.root, job.tokens, matchable * options_.block_tokens) /
         options_.block_tokens;
}

// Without what is cached or will be computed by another in-flight job.
int PrefillScheduler::ExpectedTokens(const PrefillJob& job) const {
  const int matchable = MatchableBlocks(job);
  int blocks = CachedBlocks(job);
  while (blocks < matchable) {
    const PrefillJob* other = pending_.Other(job, blocks);
    if (other == nullptr) break;
    blocks = std::min(matchable, pending_.SharedBlocks(job, *other));
  }
  return job.size() - blocks * options_.block_tokens;
}

Rank PrefillScheduler::RankOf(const PrefillJob& job, int remaining_tokens) const {
  return Rank{v1::PRIORITY_HIGH - job.priority, remaining_tokens + job.arrival_work, job.id};
}

int64_t PrefillScheduler::TokensBefore(const Rank& rank) const {
  int64_t tokens = 0;
  for (const std::unique_ptr<PrefillJob>& job : running_) {
    if (RankOf(*job, job->remaining_tokens()) < rank) tokens += job->tokens_to_compute();
  }
  for (const auto& [other, job] : waiting_) {
    if (!(other < rank)) break;
    tokens += job->tokens_to_compute();
  }
  return tokens;
}

absl::Status PrefillScheduler::CheckAdmission(const PrefillJob& job, absl::Time now,
                                              std::optional<double> tokens_per_second) const {
  if (BlocksOf(job) > pool_.counts().total) {
    return MakeError(absl::StatusCode::kResourceExhausted, "KV_POOL_TOO_SMALL",
                     absl::StrCat("the prompt of ", job.size(), " tokens needs ", BlocksOf(job),
                                  " KV blocks, the prefill worker has ", pool_.counts().total));
  }
  // The bounds are on the queue: an empty one accepts a prompt of any length.
  if (!waiting_.empty() &&
      (waiting_requests() >= options_.max_queued_requests ||
       waiting_tokens_ + job.tokens_to_compute() > options_.max_queued_tokens)) {
    absl::Status full =
        MakeError(absl::StatusCode::kResourceExhausted, "QUEUE_FULL",
                  absl::StrCat("the prefill worker's queue holds ", waiting_requests(),
                               " requests and ", waiting_tokens_, " tokens, its bounds are ",
                               options_.max_queued_requests, " and ", options_.max_queued_tokens));
    return WithRetryAfter(std::move(full), worker::RetryAfter(queued_tokens(), tokens_per_second));
  }
  const int64_t before = TokensBefore(job.rank);
  if (before == 0 || !tokens_per_second || job.deadline == absl::InfiniteFuture()) {
    return absl::OkStatus();
  }
  const absl::Duration left = job.deadline - now;
  const double seconds = static_cast<double>(before + job.tokens_to_compute()) / *tokens_per_second;
  if (absl::Seconds(seconds) <= left) return absl::OkStatus();
  absl::Status late = MakeError(
      absl::StatusCode::kResourceExhausted, "DEADLINE_UNREACHABLE",
      absl::StrCat("before the prompt's ", job.tokens_to_compute(), " tokens, ", before,
                   " others are to be computed, in all ",
                   absl::FormatDuration(absl::Seconds(seconds)),
                   " at the present rate; the deadline is in ", absl::FormatDuration(left)));
  return WithRetryAfter(std::move(late), worker::RetryAfter(before, tokens_per_second));
}

absl::Status PrefillScheduler::Submit(std::unique_ptr<PrefillJob> job, absl::Time now,
                                      std::optional<double> tokens_per_second) {
  BATON_CHECK_GE(job->size(), 1);
  if (cache_ != nullptr) {
    job->keys =
        kv::PrefixKeys(job->root, absl::MakeConstSpan(job->tokens).first(job->cacheable_tokens()),
                       options_.block_tokens);
  }
  job->arrival_work = work_;
  job->label_tokens = job->scoring ? LabelTokens(*job) : 0;
  job->expected_tokens = ExpectedTokens(*job);
  // What another job is about to compute may yet fall to this one, so it counts for the rank.
  job->rank = RankOf(*job, job->size() - CachedBlocks(*job) * options_.block_tokens);
  absl::Status admitted = CheckAdmission(*job, now, tokens_per_second);
  if (!admitted.ok()) return admitted;
  waiting_tokens_ += job->tokens_to_compute();
  waiting_items_ += job->scoring != nullptr ? 1 : 0;
  pending_.Add(job.get());
  const Rank rank = job->rank;
  const bool is_new = waiting_.emplace(rank, std::move(job)).second;
  BATON_CHECK(is_new) << "two jobs of id " << rank.id;
  return absl::OkStatus();
}

// One step's plan: serves jobs in order, running and waiting ones alike, until the budget is spent.
class PrefillScheduler::Planner {
 public:
  explicit Planner(PrefillScheduler& scheduler)
      : scheduler_(scheduler), budget_(scheduler.options_.max_num_batched_tokens) {}

  StepPlan Plan() {
    std::vector<PrefillJob*> waiting;
    waiting.reserve(scheduler_.waiting_.size());
    for (const auto& [rank, job] : scheduler_.waiting_) waiting.push_back(job.get());
    std::vector<std::pair<Rank, PrefillJob*>> running;
    for (const std::unique_ptr<PrefillJob>& job : scheduler_.running_) {
      running.emplace_back(scheduler_.RankOf(*job, job->remaining_tokens()), job.get());
    }
    std::sort(running.begin(), running.end());
    auto next = running.begin();
    for (PrefillJob* job : waiting) {
      for (; next != running.end() && next->first < job->rank; ++next) Serve(*next->second);
      if (budget_ == 0) break;
      Visit(*job);
    }
    for (; next != running.end(); ++next) Serve(*next->second);
    // Only now, so that the order does not change while it is iterated.
    for (const auto& [job, blocks] : cached_more_) scheduler_.NoteCached(*job, blocks);
    return std::move(plan_);
  }

 private:
  // The next waiting job: starts it, or serves the job that it waits for.
  void Visit(PrefillJob& job) {
    if (job.fetching) return;
    const int block_tokens = scheduler_.options_.block_tokens;
    const int cached = scheduler_.CachedBlocks(job);
    if (cached < scheduler_.MatchableBlocks(job)) {
      if (PrefillJob* leader = scheduler_.pending_.Leader(job, cached); leader != nullptr) {
        if (!leader->running()) return;
        const int shared = std::min(scheduler_.pending_.SharedBlocks(job, *leader),
                                    scheduler_.MatchableBlocks(job));
        Serve(*leader, shared * block_tokens);
        return;
      }
    }
    if (scheduler_.RankOf(job, job.size() - cached * block_tokens) < job.rank) {
      cached_more_.emplace_back(&job, cached);
    }
    // Not before it gets something to do: a job that starts early takes its blocks from others and
    // matches less.
    const int remaining = job.size() - cached * block_tokens;
    if (closed_ || scheduler_.running_count() >= scheduler_.options_.max_num_seqs ||
        budget_ < std::min(remaining, block_tokens)) {
      return;
    }
    if (!scheduler_.TryAllocate(job)) {
      unfit_.push_back(&job);
      closed_ = job.passed_tokens >= job.size();
      return;
    }
    for (PrefillJob* unfit : unfit_) unfit->passed_tokens += job.size();
    scheduler_.MoveToRunning(job);
    plan_.started.push_back(&job);
    Serve(job);
  }

  // Plans the job's tokens up to `limit`, as far as the budget goes.
  void Serve(PrefillJob& job, int limit = std::numeric_limits<int>::max()) {
    auto chunk = std::find_if(plan_.chunks.begin(), plan_.chunks.end(),
                              [&job](const Chunk& other) { return other.job == &job; });
    const int begin = chunk == plan_.chunks.end() ? job.computed_tokens : chunk->end;
    int count = std::min(budget_, std::min(limit, job.size()) - begin);
    if (begin + count < job.size()) count -= count % scheduler_.options_.block_tokens;
    if (count <= 0) return;  // planned already, or less than a block is left of the budget
    budget_ -= count;
    if (chunk == plan_.chunks.end()) {
      plan_.chunks.push_back({&job, begin, begin + count});
    } else {
      chunk->end += count;
    }
  }

  PrefillScheduler& scheduler_;
  StepPlan plan_;
  int budget_;
  bool closed_ = false;             // an unfit job has been passed often enough
  std::vector<PrefillJob*> unfit_;  // visited without enough free blocks
  std::vector<std::pair<PrefillJob*, int>> cached_more_;  // than their rank knows
};

StepPlan PrefillScheduler::NextStep() { return Planner(*this).Plan(); }

// Allocates all of the job's blocks, or none and returns false.
bool PrefillScheduler::TryAllocate(PrefillJob& job) {
  kv::Match match;
  if (const int matchable = MatchableBlocks(job); matchable > 0) {
    match = cache_->MatchPrefix(job.root, job.tokens, matchable * options_.block_tokens);
  }
  const int missing = BlocksOf(job) - match.blocks.size();
  const int lacking = missing - pool_.counts().free;
  if (lacking > 0) {
    // Evict nothing unless it is enough: a waiting job must not empty the cache for others.
    if (cache_ == nullptr || cache_->evictable_block_count() < lacking) return false;
    cache_->Evict(lacking);
  }
  absl::StatusOr<kv::BlockLease> fresh = pool_.Acquire(missing, kv::BlockUse::kActive);
  if (!fresh.ok()) return false;
  if (job.scoring != nullptr) {
    job.scoring->label_blocks = fresh->SplitAt(BlocksFor(job.size()) - match.blocks.size());
  }
  job.blocks = std::move(match.blocks);
  job.blocks.Append(*std::move(fresh));
  job.cached_tokens = match.tokens;
  return true;
}

void PrefillScheduler::MoveToRunning(PrefillJob& job) {
  pending_.Remove(&job);
  waiting_tokens_ -= job.tokens_to_compute();
  waiting_items_ -= job.scoring != nullptr ? 1 : 0;
  auto node = waiting_.extract(job.rank);
  job.computed_tokens = job.cached_tokens;
  job.start_order = ++starts_;
  pending_.Add(&job);
  running_.push_back(std::move(node.mapped()));
}

// More of a waiting job is cached than when it was ranked.
void PrefillScheduler::NoteCached(PrefillJob& job, int cached_blocks) {
  if (job.running()) return;
  const int remaining = job.size() - cached_blocks * options_.block_tokens;
  pending_.Remove(&job);
  auto node = waiting_.extract(job.rank);
  job.rank = RankOf(job, remaining);
  node.key() = job.rank;
  waiting_.insert(std::move(node));
  pending_.Add(&job);
}

void PrefillScheduler::Computed(const Chunk& chunk) {
  PrefillJob& job = *chunk.job;
  BATON_CHECK_EQ(job.computed_tokens, chunk.begin);
  pending_.Computed(&job, chunk.begin / options_.block_tokens, chunk.end / options_.block_tokens);
  job.computed_tokens = chunk.end;
  work_ += chunk.end - chunk.begin;
}

void PrefillScheduler::InsertIntoCache(const PrefillJob& job) {
  if (cache_ == nullptr) return;
  const int tokens = std::min(job.computed_tokens, job.cacheable_tokens());
  const auto computed = absl::MakeConstSpan(job.tokens).first(tokens);
  cache_->Insert(job.root, computed, job.blocks);
  job.retention.Apply(*cache_, job.root, computed);
}

std::unique_ptr<PrefillJob> PrefillScheduler::Remove(uint64_t id) {
  const auto is_job = [id](const auto& job) { return job->id == id; };
  std::unique_ptr<PrefillJob> job;
  if (auto it = std::find_if(running_.begin(), running_.end(), is_job); it != running_.end()) {
    pending_.Remove(it->get());
    job = std::move(*it);
    running_.erase(it);
    return job;
  }
  const auto it = std::find_if(waiting_.begin(), waiting_.end(),
                               [&](const auto& entry) { return is_job(entry.second); });
  if (it == waiting_.end()) return nullptr;
  pending_.Remove(it->second.get());
  job = std::move(it->second);
  waiting_.erase(it);
  waiting_tokens_ -= job->tokens_to_compute();
  waiting_items_ -= job->scoring != nullptr ? 1 : 0;
  return job;
}

void PrefillScheduler::ForEachJob(absl::FunctionRef<void(const PrefillJob&)> visit) const {
  for (const std::unique_ptr<PrefillJob>& job : running_) visit(*job);
  for (const auto& [rank, job] : waiting_) visit(*job);
}

int64_t PrefillScheduler::queued_tokens() const {
  int64_t tokens = waiting_tokens_;
  for (const std::unique_ptr<PrefillJob>& job : running_) tokens += job->tokens_to_compute();
  return tokens;
}

PrefillWork PrefillScheduler::remaining_work() const {
  PrefillWork work;
  for (const auto& [rank, job] : waiting_) {
    work.Add(job->expected_tokens, job->size() - job->expected_tokens);
    work.Add(job->label_tokens, job->size());
  }
  for (const std::unique_ptr<PrefillJob>& job : running_) {
    work.Add(job->remaining_tokens(), job->computed_tokens);
    work.Add(job->label_tokens, job->size());
  }
  return work;
}

void PrefillScheduler::CheckIntegrity() const {
  std::vector<const PrefillJob*> jobs;
  int64_t tokens = 0;
  int items = 0;
  for (const auto& [rank, job] : waiting_) {
    BATON_CHECK(rank == job->rank && !job->running());
    BATON_CHECK(job->blocks.empty() && job->computed_tokens == 0);
    tokens += job->tokens_to_compute();
    items += job->scoring != nullptr ? 1 : 0;
    jobs.push_back(job.get());
  }
  BATON_CHECK_EQ(tokens, waiting_tokens_);
  BATON_CHECK_EQ(items, waiting_items_);
  uint64_t last_start = 0;
  for (const std::unique_ptr<PrefillJob>& job : running_) {
    BATON_CHECK_GT(job->start_order, last_start);
    last_start = job->start_order;
    BATON_CHECK_EQ(job->blocks.size(), BlocksFor(job->size()));
    jobs.push_back(job.get());
  }
  pending_.CheckIntegrity(jobs);
}

}  // namespace baton::prefill_worker
