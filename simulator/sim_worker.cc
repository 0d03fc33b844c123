#include "simulator/sim_worker.h"

#include <algorithm>

#include "common/base/check.h"
#include "simulator/sim_decode_worker.h"

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

SimWorker::SimWorker(const Trace& trace, PrefillCost cost, int cache_blocks, int reported_blocks)
    : trace_(trace),
      cost_(cost),
      cache_blocks_(cache_blocks),
      reported_blocks_(reported_blocks),
      cache_(trace.block_count, cache_blocks),
      awaited_(trace.block_count) {}

void SimWorker::Start() {
  BATON_CHECK(!alive_) << "a worker that lives was started";
  alive_ = true;
  ++epoch_;
  sequence_ = 0;
}

std::vector<int> SimWorker::Kill() {
  std::vector<int> lost;
  if (running_) lost.push_back(job_.request);
  for (const Job& job : waiting_) lost.push_back(job.request);
  running_ = alive_ = false;
  waiting_.clear();
  waiting_us_ = waiting_tokens_ = 0;
  cache_.Clear();
  std::fill(awaited_.begin(), awaited_.end(), 0);
  return lost;
}

SimWorker::Job SimWorker::Estimate(int request) const {
  const SimRequest& r = trace_.requests[request];
  int matched = 0;
  while (matched < static_cast<int>(r.blocks.size()) &&
         (awaited_[r.blocks[matched]] > 0 || cache_.Contains(r.blocks[matched]))) {
    ++matched;
  }
  return {request, ServiceUs(cost_, r, matched), r.prompt_tokens - CachedTokens(r, matched)};
}

void SimWorker::Accept(int request) {
  BATON_CHECK(alive_) << "a dead worker was given a request";
  waiting_.push_back(Estimate(request));
  waiting_us_ += waiting_.back().work_us;
  waiting_tokens_ += waiting_.back().tokens;
  for (int32_t block : trace_.requests[request].blocks) ++awaited_[block];
}

int64_t SimWorker::Begin(int64_t now_us) {
  if (running_ || waiting_.empty()) return -1;
  const Job next = waiting_.front();
  waiting_.pop_front();
  waiting_us_ -= next.work_us;
  waiting_tokens_ -= next.tokens;
  const SimRequest& r = trace_.requests[next.request];
  cached_tokens_ = CachedTokens(r, cache_.Match(r.blocks));
  const int tokens = r.prompt_tokens - cached_tokens_;
  job_ = {next.request, static_cast<int64_t>(cost_.Us(cached_tokens_, tokens)), tokens};
  began_us_ = now_us;
  running_ = true;
  busy_us_ += job_.work_us;
  return now_us + job_.work_us;
}

SimWorker::Finished SimWorker::End() {
  BATON_CHECK(running_) << "nothing runs that could end";
  running_ = false;
  Finished finished{job_.request, cached_tokens_, {}, {}};
  const std::vector<int32_t>& blocks = trace_.requests[job_.request].blocks;
  for (int32_t block : blocks) --awaited_[block];
  cache_.Insert(blocks, &finished.added, &finished.removed);
  return finished;
}

SimWorker::Finished SimWorker::Fetched(int request, int blocks) {
  Finished finished{request, 0, {}, {}};
  cache_.Insert(absl::MakeConstSpan(trace_.requests[request].blocks).first(blocks), &finished.added,
                &finished.removed);
  return finished;
}

worker_pb::WorkerCard SimWorker::Card(const std::string& id) const {
  const int block_tokens = kSimBlockTokens / reported_blocks_;
  worker_pb::WorkerCard card =
      SimCard(v1::WORKER_ROLE_PREFILL, id, epoch_, block_tokens, cache_blocks_ * reported_blocks_);
  card.set_kv_block_bytes(static_cast<int64_t>(kKvBytesPerToken * block_tokens));
  return card;
}

worker_pb::CacheSnapshot SimWorker::Snapshot() const {
  worker_pb::CacheSnapshot snapshot;
  snapshot.set_sequence(sequence_);
  ForEachKey(cache_.Contents(), reported_blocks_,
             [&snapshot](kv::PrefixKey key) { snapshot.add_keys(key); });
  snapshot.set_last(true);
  return snapshot;
}

worker_pb::CacheDelta SimWorker::Delta(const Finished& finished) {
  worker_pb::CacheDelta delta;
  delta.set_sequence(++sequence_);
  ForEachKey(finished.added, reported_blocks_,
             [&delta](kv::PrefixKey key) { delta.add_added(key); });
  ForEachKey(finished.removed, reported_blocks_,
             [&delta](kv::PrefixKey key) { delta.add_removed(key); });
  return delta;
}

worker_pb::LoadReport SimWorker::Load(int64_t now_us) const {
  worker_pb::LoadReport load;
  int64_t left_us = 0, left_tokens = 0;
  int used_blocks = 0;
  if (running_) {
    left_us = job_.work_us - (now_us - began_us_);
    left_tokens = job_.tokens * left_us / std::max<int64_t>(job_.work_us, 1);
    used_blocks = trace_.requests[job_.request].prompt_tokens / kSimBlockTokens + 1;
  }
  load.set_running(running_ ? 1 : 0);
  load.set_queued(static_cast<int>(waiting_.size()));
  load.set_queued_tokens(left_tokens + waiting_tokens_);
  load.set_free_blocks(std::max(cache_blocks_ - used_blocks, 0) * reported_blocks_);
  load.set_remaining_work_us(left_us + waiting_us_);
  load.mutable_prefill_cost()->set_fixed_us(cost_.fixed_us);
  load.mutable_prefill_cost()->set_token_us(cost_.token_us);
  load.mutable_prefill_cost()->set_pair_us(cost_.pair_us);
  return load;
}

}  // namespace baton::simulator
