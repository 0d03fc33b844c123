#include "common/prefill/scheduler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/request_limits.h"
#include "common/kv/snapshots.h"
#include "common/prefill/label_rows.h"
#include "common/worker/throughput.h"

namespace baton::prefill {

PrefillScheduler::PrefillScheduler(const SchedulerOptions& options, kv::BlockPool& pool,
                                   kv::RadixCache* cache)
    : options_(options), pool_(pool), cache_(cache), pending_(options.block_tokens) {
  BATON_CHECK_GE(options.max_num_batched_tokens, options.block_tokens);
  BATON_CHECK_GE(options.max_num_seqs, 1);
}

int PrefillScheduler::BlocksFor(int64_t tokens) const {
  return static_cast<int>((tokens + options_.block_tokens - 1) / options_.block_tokens);
}

int64_t PrefillScheduler::PagesOf(const PrefillJob& job) const {
  const int labels = job.scoring ? LabelBlocks(job, options_.block_tokens) : 0;
  return pool_.shape().PagesOf(BlocksFor(job.size()), WindowBlocksOf(job)) +
         int64_t{labels} * pool_.shape().pages();
}

int PrefillScheduler::WindowBlocksOf(const PrefillJob& job) const {
  return pool_.shape().ComputedWindows(
      BlocksFor(job.size()), BlocksFor(options_.max_num_batched_tokens) + 1, pool_.counts().total);
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
int PrefillScheduler::ExpectedTokens(const PrefillJob& job, int cached_blocks) const {
  const int matchable = MatchableBlocks(job);
  int blocks = cached_blocks;
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

int64_t PrefillScheduler::TokensBefore(const PrefillJob& job) const {
  int64_t higher = 0, own = 0;
  std::map<std::string, int64_t> others;
  const auto count = [&](const PrefillJob& other, const Rank& rank) {
    const int64_t tokens = other.tokens_to_compute();
    if (rank.class_order < job.rank.class_order) {
      higher += tokens;
    } else if (rank.class_order == job.rank.class_order && other.tenant != job.tenant) {
      others[other.tenant] += tokens;
    } else if (rank < job.rank) {
      own += tokens;
    }
  };
  for (const std::unique_ptr<PrefillJob>& other : running_) {
    count(*other, RankOf(*other, other->remaining_tokens()));
  }
  for (const auto& [rank, other] : waiting_) count(*other, rank);
  int64_t tokens = higher + own;
  for (const auto& [tenant, theirs] : others) {
    tokens += std::min(theirs, own + job.tokens_to_compute());
  }
  return tokens;
}

void PrefillScheduler::Join(const PrefillJob& job) {
  const auto [tenant, is_new] = tenants_.try_emplace(job.tenant);
  ++tenant->second.jobs;
  if (!is_new) return;
  std::optional<int64_t> least;
  for (const auto& [name, other] : tenants_) {
    if (name != job.tenant) least = std::min(least.value_or(other.served), other.served);
  }
  tenant->second.served = least.value_or(0);
}

void PrefillScheduler::Quit(const PrefillJob& job) {
  const auto tenant = tenants_.find(job.tenant);
  BATON_CHECK(tenant != tenants_.end());
  if (--tenant->second.jobs == 0) tenants_.erase(tenant);
}

absl::Status PrefillScheduler::CheckAdmission(const PrefillJob& job, absl::Time now,
                                              std::optional<double> tokens_per_second) const {
  if (PagesOf(job) > pool_.counts().total) {
    return MakeError(absl::StatusCode::kResourceExhausted, "KV_POOL_TOO_SMALL",
                     absl::StrCat("the prompt of ", job.size(), " tokens needs ", PagesOf(job),
                                  pool_.shape().windowed() ? " KV pages" : " KV blocks",
                                  ", this worker has ", pool_.counts().total));
  }
  // The bounds are on the queue: an empty one accepts a prompt of any length.
  if (!waiting_.empty() &&
      (waiting_requests() >= options_.max_queued_requests ||
       waiting_tokens_ + job.tokens_to_compute() > options_.max_queued_tokens)) {
    absl::Status full =
        MakeError(absl::StatusCode::kResourceExhausted, "QUEUE_FULL",
                  absl::StrCat("this worker's queue of prompts holds ", waiting_requests(),
                               " requests and ", waiting_tokens_, " tokens, its bounds are ",
                               options_.max_queued_requests, " and ", options_.max_queued_tokens));
    return WithRetryAfter(std::move(full), worker::RetryAfter(queued_tokens(), tokens_per_second));
  }
  const int64_t before = TokensBefore(job);
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
  const int cached = CachedBlocks(*job);
  job->expected_tokens = ExpectedTokens(*job, cached);
  // What another job is about to compute may yet fall to this one, so it counts for the rank.
  job->rank = RankOf(*job, job->size() - cached * options_.block_tokens);
  absl::Status admitted = CheckAdmission(*job, now, tokens_per_second);
  if (!admitted.ok()) return admitted;
  waiting_tokens_ += job->tokens_to_compute();
  waiting_items_ += job->scoring != nullptr ? 1 : 0;
  pending_.Add(job.get(), cached);
  Join(*job);
  const Rank rank = job->rank;
  const bool is_new = waiting_.emplace(rank, std::move(job)).second;
  BATON_CHECK(is_new) << "two jobs of id " << rank.id;
  return absl::OkStatus();
}

// One step's plan: serves jobs in order, running and waiting ones alike, until the budget is spent.
class PrefillScheduler::Planner {
 public:
  Planner(PrefillScheduler& scheduler, const StepRoom& room)
      : scheduler_(scheduler),
        room_(room),
        budget_(std::min(room.tokens, scheduler.options_.max_num_batched_tokens)) {
    scheduler_.blocked_ = scheduler_.held_up_ = nullptr;
    // In order of their start: those that started first are first to get what they lack.
    for (const std::unique_ptr<PrefillJob>& job : scheduler_.running_) scheduler_.MoveWindows(*job);
  }

  StepPlan Plan() {
    // All jobs by class and tenant, the running ones first.
    std::map<int, std::map<std::string, Queue>> classes;
    for (const std::unique_ptr<PrefillJob>& job : scheduler_.running_) {
      const Rank rank = scheduler_.RankOf(*job, job->remaining_tokens());
      classes[rank.class_order][job->tenant].jobs.emplace_back(rank, job.get());
    }
    for (auto& [class_order, tenants] : classes) {
      for (auto& [tenant, queue] : tenants) {
        std::sort(queue.jobs.begin(), queue.jobs.end());
        queue.running = queue.jobs.size();
      }
    }
    for (const auto& [rank, job] : scheduler_.waiting_) {
      classes[rank.class_order][job->tenant].jobs.emplace_back(rank, job.get());
    }
    for (auto& [class_order, tenants] : classes) {
      for (auto& [tenant, queue] : tenants) {
        const auto waiting = queue.jobs.begin() + static_cast<std::ptrdiff_t>(queue.running);
        std::inplace_merge(queue.jobs.begin(), waiting, queue.jobs.end());
      }
      ServeFairly(tenants);
    }
    // Only now, so that the order does not change while it is iterated.
    for (const auto& [job, blocks] : cached_more_) scheduler_.NoteCached(*job, blocks);
    for (const Chunk& chunk : plan_.chunks) scheduler_.PlaceStates(chunk);
    return std::move(plan_);
  }

 private:
  // A tenant's jobs in rank order.
  struct Queue {
    std::vector<std::pair<Rank, PrefillJob*>> jobs;
    size_t running = 0;
    size_t next = 0;
  };

  void ServeFairly(std::map<std::string, Queue>& tenants) {
    while (!tenants.empty() && budget_ > 0) {
      const auto least = std::min_element(
          tenants.begin(), tenants.end(),
          [this](const auto& a, const auto& b) { return Served(a.first) < Served(b.first); });
      auto& [tenant, queue] = *least;
      PrefillJob& job = *queue.jobs[queue.next++].second;
      const int before = budget_;
      if (job.running()) {
        Serve(job);
      } else {
        Visit(job);
      }
      planned_[tenant] += before - budget_;
      if (queue.next == queue.jobs.size()) tenants.erase(least);
    }
  }
  // Returns the tokens computed for the tenant, with those that this plan gives it.
  int64_t Served(const std::string& tenant) const {
    const auto planned = planned_.find(tenant);
    return scheduler_.tenants_.at(tenant).served +
           (planned != planned_.end() ? planned->second : 0);
  }

  // The next waiting job: starts it, or serves the job that it waits for.
  void Visit(PrefillJob& job) {
    if (job.fetching) return;
    const int block_tokens = scheduler_.options_.block_tokens;
    const int cached = scheduler_.CachedBlocks(job);
    scheduler_.pending_.ListFrom(&job, cached);  // some may have been evicted meanwhile
    if (cached < scheduler_.MatchableBlocks(job)) {
      if (PrefillJob* leader = scheduler_.pending_.Leader(job, cached); leader != nullptr) {
        if (!leader->running()) return;
        const int shared = std::min(scheduler_.pending_.SharedBlocks(job, *leader),
                                    scheduler_.MatchableBlocks(job));
        if (scheduler_.pool_.shape().recurrent) {
          kv::AddSnapshot(shared, scheduler_.options_.tier_segment_blocks, leader->snapshots);
        }
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
    if (closed_ || budget_ < std::min(remaining, block_tokens)) return;
    const int running = scheduler_.running_count();
    if (running >= std::min(room_.jobs, scheduler_.options_.max_num_seqs) ||
        scheduler_.running_pages_ + scheduler_.PagesOf(job) > room_.pages) {
      if (scheduler_.held_up_ == nullptr) scheduler_.held_up_ = &job;
      return;
    }
    if (running >= room_.free_jobs || !scheduler_.TryAllocate(job, room_.spare_pages)) {
      if (scheduler_.held_up_ == nullptr) scheduler_.held_up_ = &job;
      if (scheduler_.blocked_ == nullptr) scheduler_.blocked_ = &job;
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
    if (scheduler_.pool_.shape().recurrent) {
      // Others keep states from it.
      if (!kv::HasSpare(job.computed_tokens, scheduler_.options_.block_tokens, job.blocks)) return;
    } else if (scheduler_.pool_.shape().windowed()) {
      limit = std::min(limit, job.window_end * scheduler_.options_.block_tokens);
    }
    int count = std::min(budget_, std::min(limit, job.size()) - begin);
    if (begin + count < job.size()) count -= count % scheduler_.options_.block_tokens;
    if (count <= 0) return;  // planned already, or less than a block is left of the budget
    budget_ -= count;
    // Rows of labels are computed when the prompt is: so many fewer prompts end in this step.
    if (begin + count == job.size()) budget_ -= job.label_tokens;
    if (chunk == plan_.chunks.end()) {
      plan_.chunks.push_back({&job, begin, begin + count});
    } else {
      chunk->end += count;
    }
  }

  PrefillScheduler& scheduler_;
  const StepRoom room_;
  StepPlan plan_;
  int budget_;
  bool closed_ = false;             // an unfit job has been passed often enough
  std::vector<PrefillJob*> unfit_;  // visited without enough free blocks
  std::vector<std::pair<PrefillJob*, int>> cached_more_;  // than their rank knows
  std::map<std::string, int64_t> planned_;                // tokens of this plan, by tenant
};

StepPlan PrefillScheduler::NextStep(const StepRoom& room) { return Planner(*this, room).Plan(); }

void PrefillScheduler::MoveToRunning(PrefillJob& job) {
  pending_.Remove(&job);
  waiting_tokens_ -= job.tokens_to_compute();
  waiting_items_ -= job.scoring != nullptr ? 1 : 0;
  ForgetHeldUp(job);
  running_pages_ += PagesOf(job);
  auto node = waiting_.extract(job.rank);
  job.computed_tokens = job.cached_tokens;
  job.start_order = ++starts_;
  pending_.Add(&job, job.cached_tokens / options_.block_tokens);
  running_.push_back(std::move(node.mapped()));
}

void PrefillScheduler::ForgetHeldUp(const PrefillJob& job) {
  if (blocked_ == &job) blocked_ = nullptr;
  if (held_up_ == &job) held_up_ = nullptr;
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
  pending_.Add(&job, cached_blocks);
}

void PrefillScheduler::Computed(const Chunk& chunk) {
  PrefillJob& job = *chunk.job;
  BATON_CHECK_EQ(job.computed_tokens, chunk.begin);
  pending_.Computed(&job, chunk.end / options_.block_tokens);
  job.computed_tokens = chunk.end;
  work_ += chunk.end - chunk.begin;
  tenants_.at(job.tenant).served += chunk.end - chunk.begin;
}

std::unique_ptr<PrefillJob> PrefillScheduler::Remove(uint64_t id) {
  const auto is_job = [id](const auto& job) { return job->id == id; };
  std::unique_ptr<PrefillJob> job;
  if (auto it = std::find_if(running_.begin(), running_.end(), is_job); it != running_.end()) {
    pending_.Remove(it->get());
    job = std::move(*it);
    running_.erase(it);
    running_pages_ -= PagesOf(*job);
    Quit(*job);
    return job;
  }
  const auto it = std::find_if(waiting_.begin(), waiting_.end(),
                               [&](const auto& entry) { return is_job(entry.second); });
  if (it == waiting_.end()) return nullptr;
  pending_.Remove(it->second.get());
  job = std::move(it->second);
  ForgetHeldUp(*job);
  waiting_.erase(it);
  waiting_tokens_ -= job->tokens_to_compute();
  waiting_items_ -= job->scoring != nullptr ? 1 : 0;
  Quit(*job);
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
  int64_t pages = 0;
  for (const std::unique_ptr<PrefillJob>& job : running_) pages += PagesOf(*job);
  BATON_CHECK_EQ(pages, running_pages_);
  pending_.CheckIntegrity(jobs);
  std::map<std::string, int> of_tenants;
  for (const PrefillJob* job : jobs) ++of_tenants[job->tenant];
  BATON_CHECK_EQ(of_tenants.size(), tenants_.size());
  for (const auto& [tenant, count] : of_tenants) BATON_CHECK_EQ(tenants_.at(tenant).jobs, count);
}

}  // namespace baton::prefill
