#include "simulator/sim_worker.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/check.h"

namespace baton::simulator {

namespace worker_pb = ::baton::internal::v1;

worker_pb::WorkerCard SimCard(v1::WorkerRole role, const std::string& id, uint64_t epoch,
                              int block_tokens, int total_blocks) {
  worker_pb::WorkerCard card;
  card.set_role(role);
  card.set_worker_id(id);
  card.set_epoch(epoch);
  card.set_model("simulated");
  card.set_model_fingerprint(1);
  card.mutable_kv_layout()->set_block_tokens(block_tokens);
  card.mutable_kv_layout()->set_fingerprint(1);
  card.set_max_model_len(1 << 24);
  card.set_max_num_seqs(1);
  card.set_total_blocks(total_blocks);
  card.set_prefix_caching(true);
  card.set_tokenizer_fingerprint(1);
  return card;
}

SimWorker::SimWorker(const Trace& trace, const PrefillWorkerShape& shape)
    : trace_(trace),
      shape_(shape),
      cache_(trace.block_count, shape.cache_blocks),
      awaited_(trace.block_count) {}

void SimWorker::Start() {
  BATON_CHECK(!alive_) << "a worker that lives was started";
  alive_ = true;
  ++epoch_;
  sequence_ = 0;
}

std::vector<int> SimWorker::Kill() {
  std::vector<int> lost;
  for (const Jobs* jobs : {&running_, &waiting_}) {
    for (const auto& [rank, job] : *jobs) lost.push_back(job.request);
  }
  stepping_ = alive_ = false;
  waiting_.clear();
  running_.clear();
  started_.clear();
  waiting_us_ = waiting_tokens_ = 0;
  pool_blocks_ = 0;
  cache_.Clear();
  std::fill(awaited_.begin(), awaited_.end(), 0);
  return lost;
}

SimWorker::Rank SimWorker::RankOf(const Job& job, uint64_t order) const {
  if (shape_.step_tokens == 0) return {0, order};
  return {Tokens(job) - job.computed + job.arrival_work, order};
}

void SimWorker::Expect(Job* job) const {
  const SimRequest& r = trace_.requests[job->request];
  int matched = 0;
  while (matched < static_cast<int>(r.blocks.size()) &&
         (awaited_[r.blocks[matched]] > 0 || cache_.Contains(r.blocks[matched]))) {
    ++matched;
  }
  job->expected = r.prompt_tokens - CachedTokens(r, matched);
  job->expected_us = ServiceUs(shape_.cost, r, matched);
}

void SimWorker::Accept(int request) {
  BATON_CHECK(alive_) << "a dead worker was given a request";
  const SimRequest& r = trace_.requests[request];
  Job job;
  job.request = request;
  job.arrival_work = work_;
  job.computed = CachedTokens(r, cache_.Match(r.blocks));
  Expect(&job);
  waiting_us_ += job.expected_us;
  waiting_tokens_ += job.expected;
  const uint64_t order = ++order_;
  waiting_.emplace(RankOf(job, order), job);
  for (int32_t block : r.blocks) ++awaited_[block];
}

// The running job that computes the first block that `job` lacks; null: none does.
SimWorker::Job* SimWorker::Leader(const Job& job) {
  const std::vector<int32_t>& blocks = trace_.requests[job.request].blocks;
  const size_t lacking = job.computed / kSimBlockTokens;
  if (lacking >= blocks.size()) return nullptr;
  for (auto& [rank, other] : running_) {
    const std::vector<int32_t>& others = trace_.requests[other.request].blocks;
    if (lacking < others.size() && others[lacking] == blocks[lacking]) return &other;
  }
  return nullptr;
}

// Plans the job's tokens up to `limit`, as far as the budget goes. False: it got none.
bool SimWorker::Plan(Job* job, int limit, int* budget) {
  const int begin = job->computed + job->planned;
  int count = std::min(*budget, std::min(limit, Tokens(*job)) - begin);
  if (begin + count < Tokens(*job)) count -= count % shape_.chunk_tokens;
  if (count <= 0) return false;
  job->planned += count;
  *budget -= count;
  return true;
}

void SimWorker::PlanStep() {
  const bool whole = shape_.step_tokens == 0;
  int budget = whole ? std::numeric_limits<int>::max() : shape_.step_tokens;
  const size_t most_jobs = whole ? 1 : shape_.most_jobs;
  std::vector<std::pair<Rank, Job*>> running;
  for (auto& [rank, job] : running_) running.emplace_back(RankOf(job, rank.second), &job);
  std::sort(running.begin(), running.end());
  size_t next = 0;
  auto waiting = waiting_.begin();
  while (budget > 0 && (next < running.size() || waiting != waiting_.end())) {
    if (next < running.size() &&
        (waiting == waiting_.end() || running[next].first < waiting->first)) {
      Plan(running[next++].second, std::numeric_limits<int>::max(), &budget);
      continue;
    }
    const auto visited = waiting++;
    Job& job = visited->second;
    const SimRequest& r = trace_.requests[job.request];
    job.computed = CachedTokens(r, cache_.Match(r.blocks));
    if (Job* leader = Leader(job); leader != nullptr) {
      size_t shared = 0;
      const std::vector<int32_t>& others = trace_.requests[leader->request].blocks;
      while (shared < std::min(r.blocks.size(), others.size()) &&
             r.blocks[shared] == others[shared]) {
        ++shared;
      }
      Plan(leader, static_cast<int>(shared) * kSimBlockTokens, &budget);
      continue;
    }
    const bool fits = running_.size() < most_jobs &&
                      (running_.empty() || pool_blocks_ + PoolBlocks(job) <= shape_.cache_blocks);
    if (!fits || budget < std::min(Tokens(job) - job.computed, shape_.chunk_tokens)) {
      if (whole) return;
      continue;
    }
    job.cached = job.computed;
    waiting_us_ -= job.expected_us;
    waiting_tokens_ -= job.expected;
    pool_blocks_ += PoolBlocks(job);
    started_.push_back(job.request);
    const Rank key = {0, visited->first.second};
    Job& begun = running_.emplace(key, job).first->second;
    waiting_.erase(visited);
    Plan(&begun, std::numeric_limits<int>::max(), &budget);
    if (whole) return;
  }
}

double SimWorker::StepUs() const {
  double us = shape_.cost.fixed_us;
  for (const auto& [rank, job] : running_) {
    us += shape_.cost.ChunkUs(job.computed, job.planned);
  }
  return us;
}

int64_t SimWorker::Begin(int64_t now_us) {
  if (stepping_ || (waiting_.empty() && running_.empty())) return -1;
  started_.clear();
  PlanStep();
  began_us_ = now_us;
  step_us_ = static_cast<int64_t>(StepUs());
  stepping_ = true;
  busy_us_ += step_us_;
  return now_us + step_us_;
}

// A block that came and went in one step, or went and came, has not changed.
void SimWorker::Settle(CacheChanges* changes) {
  if (changes->added.empty() || changes->removed.empty()) return;
  std::sort(changes->added.begin(), changes->added.end());
  std::sort(changes->removed.begin(), changes->removed.end());
  CacheChanges settled;
  std::set_difference(changes->added.begin(), changes->added.end(), changes->removed.begin(),
                      changes->removed.end(), std::back_inserter(settled.added));
  std::set_difference(changes->removed.begin(), changes->removed.end(), changes->added.begin(),
                      changes->added.end(), std::back_inserter(settled.removed));
  *changes = std::move(settled);
}

SimWorker::Step SimWorker::End() {
  BATON_CHECK(stepping_) << "no step is under way that could end";
  stepping_ = false;
  Step step;
  for (auto it = running_.begin(); it != running_.end();) {
    Job& job = it->second;
    const std::vector<int32_t>& blocks = trace_.requests[job.request].blocks;
    const int planned = std::exchange(job.planned, 0);
    job.computed += planned;
    work_ += planned;
    const bool ends = job.computed == Tokens(job);
    if (planned > 0) {
      // A prompt that shares nothing has no blocks.
      const size_t whole =
          std::min(blocks.size(), static_cast<size_t>(job.computed / kSimBlockTokens));
      cache_.Insert(absl::MakeConstSpan(blocks).first(whole), &step.changes.added,
                    &step.changes.removed);
    }
    if (!ends) {
      ++it;
      continue;
    }
    for (int32_t block : blocks) --awaited_[block];
    pool_blocks_ -= PoolBlocks(job);
    step.ended.push_back({job.request, job.cached});
    it = running_.erase(it);
  }
  Settle(&step.changes);
  return step;
}

SimWorker::CacheChanges SimWorker::Fetched(int request, int blocks) {
  CacheChanges changes;
  cache_.Insert(absl::MakeConstSpan(trace_.requests[request].blocks).first(blocks), &changes.added,
                &changes.removed);
  return changes;
}

worker_pb::WorkerCard SimWorker::Card(const std::string& id) const {
  const int block_tokens = kSimBlockTokens / shape_.reported_blocks;
  worker_pb::WorkerCard card = SimCard(v1::WORKER_ROLE_PREFILL, id, epoch_, block_tokens,
                                       shape_.cache_blocks * shape_.reported_blocks);
  card.set_kv_block_bytes(static_cast<int64_t>(shape_.kv_bytes_per_token * block_tokens));
  return card;
}

worker_pb::CacheSnapshot SimWorker::Snapshot() const {
  worker_pb::CacheSnapshot snapshot;
  snapshot.set_sequence(sequence_);
  ForEachKey(cache_.Contents(), shape_.reported_blocks,
             [&snapshot](kv::PrefixKey key) { snapshot.add_keys(key); });
  snapshot.set_last(true);
  return snapshot;
}

worker_pb::CacheDelta SimWorker::Delta(const CacheChanges& changes) {
  worker_pb::CacheDelta delta;
  delta.set_sequence(++sequence_);
  ForEachKey(changes.added, shape_.reported_blocks,
             [&delta](kv::PrefixKey key) { delta.add_added(key); });
  ForEachKey(changes.removed, shape_.reported_blocks,
             [&delta](kv::PrefixKey key) { delta.add_removed(key); });
  return delta;
}

worker_pb::LoadReport SimWorker::Load(int64_t now_us) const {
  worker_pb::LoadReport load;
  // Of the step under way, as much is left as of its time.
  const int64_t step_left_us =
      stepping_ ? std::max<int64_t>(step_us_ - (now_us - began_us_), 0) : 0;
  int64_t left_tokens = 0;
  double left_us = static_cast<double>(step_left_us);
  for (const auto& [rank, job] : running_) {
    left_tokens += job.planned * step_left_us / std::max<int64_t>(step_us_, 1);
    const int after = job.computed + job.planned;
    left_tokens += Tokens(job) - after;
    left_us += shape_.cost.ChunkUs(after, Tokens(job) - after);
  }
  load.set_running(static_cast<int>(running_.size()));
  load.set_queued(static_cast<int>(waiting_.size()));
  load.set_queued_tokens(left_tokens + waiting_tokens_);
  load.set_free_blocks(std::max(shape_.cache_blocks - pool_blocks_, 0) * shape_.reported_blocks);
  load.set_remaining_work_us(static_cast<int64_t>(left_us) + waiting_us_);
  load.mutable_prefill_cost()->set_fixed_us(shape_.cost.fixed_us);
  load.mutable_prefill_cost()->set_token_us(shape_.cost.token_us);
  load.mutable_prefill_cost()->set_pair_us(shape_.cost.pair_us);
  return load;
}

}  // namespace baton::simulator
