#include "simulator/sim_decode_worker.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "common/base/check.h"

namespace baton::simulator {

namespace worker_pb = ::baton::internal::v1;

SimDecodeWorker::SimDecodeWorker(const Trace& trace, const DecodeWorkerShape& shape, uint64_t seed)
    : trace_(trace),
      shape_(shape),
      random_(seed),
      cache_(trace.block_count, shape.kv_blocks / kKvBlocksPerSimBlock),
      uses_(trace.block_count),
      is_held_(trace.block_count),
      cost_(shape.prior) {}

void SimDecodeWorker::Start(int cold_steps, int64_t cold_step_us) {
  BATON_CHECK(!alive_) << "a worker that lives was started";
  alive_ = true;
  ++epoch_;
  delta_number_ = 0;
  cold_steps_ = cold_steps;
  cold_step_us_ = cold_step_us;
  cost_ = worker::StepCost(shape_.prior);
  budget_.emplace(kKvBlockTokens, shape_.step_tokens);
}

std::vector<SimDecodeWorker::Lost> SimDecodeWorker::Kill() {
  std::vector<Lost> lost;
  for (const Sequence& s : inside_) {
    lost.push_back({s.request, Generated(s), Ran(s) > 0 ? last_step_us_ : s.last_token_us});
  }
  for (const Waiting& w : queue_) lost.push_back({w.request, w.generated_tokens, w.last_token_us});
  alive_ = stepping_ = false;
  queue_.clear();
  inside_.clear();
  by_request_.clear();
  ends_.clear();
  joining_.clear();
  first_.clear();
  prompts_.clear();
  planned_tokens_ = 0;
  cache_.Clear();
  std::fill(uses_.begin(), uses_.end(), 0);
  std::fill(is_held_.begin(), is_held_.end(), false);
  std::fill(std::begin(by_phase_), std::end(by_phase_), 0);
  added_.clear();
  removed_.clear();
  queued_tokens_ = running_tokens_ = receiving_tokens_ = 0;
  running_ = held_ = used_cached_ = active_blocks_ = 0;
  lacks_kv_ = false;
  return lost;
}

// ---- Sequences, by what is known of them.

int SimDecodeWorker::Answer(int request) const {
  return std::max(trace_.requests[request].output_tokens, 2);
}

int64_t SimDecodeWorker::Ran(const Sequence& s) const {
  return s.joined_at < 0 ? 0 : steps_ - s.joined_at;
}

// The first token comes with the prompt's KV.
int SimDecodeWorker::Generated(const Sequence& s) const {
  if (s.joined_at < 0) return s.generated_tokens;
  return std::max(s.generated_tokens, 1) + static_cast<int>(Ran(s));
}

// KV of all tokens but the last one drawn.
int SimDecodeWorker::Context(const Sequence& s) const {
  return trace_.requests[s.request].prompt_tokens + std::max(Generated(s) - 1, 0);
}

int SimDecodeWorker::OwnBlocks(const Sequence& s) const {
  return KvBlocks(Context(s)) - s.matched * kKvBlocksPerSimBlock;
}

// Running ones of a phase take their next block at the same step.
int SimDecodeWorker::Phase(const Sequence& s) const {
  const int64_t base = Context(s) - steps_;
  return static_cast<int>((base % kKvBlockTokens + kKvBlockTokens) % kKvBlockTokens);
}

// ---- Blocks.

bool SimDecodeWorker::MakeFree(int blocks) {
  const int evictable = (cache_.size() - used_cached_) * kKvBlocksPerSimBlock;
  if (free_blocks() + evictable < blocks) return false;
  while (free_blocks() < blocks) {
    const int32_t block = cache_.EvictLast();
    removed_.push_back(block);
    if (uses_[block] == 0) continue;
    is_held_[block] = true;
    ++held_;
    --used_cached_;
  }
  return true;
}

void SimDecodeWorker::StopRunning(const Sequence& s) {
  --running_;
  running_tokens_ -= Context(s);
  --by_phase_[Phase(s)];
}

// With its blocks.
void SimDecodeWorker::Remove(Sequences::iterator sequence) {
  const Sequence& s = *sequence;
  active_blocks_ -= OwnBlocks(s);
  const std::vector<int32_t>& blocks = trace_.requests[s.request].blocks;
  for (int i = 0; i < s.matched; ++i) {
    const int32_t block = blocks[i];
    if (--uses_[block] > 0) continue;
    if (is_held_[block]) {
      is_held_[block] = false;
      --held_;
    } else {
      --used_cached_;
    }
  }
  if (s.joined_at >= 0) {
    StopRunning(s);
  } else {
    receiving_tokens_ -= Context(s);
  }
  by_request_.erase(s.request);
  inside_.erase(sequence);
}

// What a sequence that has ended leaves enters the cache as far as it fits.
void SimDecodeWorker::Keep(int request) {
  std::vector<int32_t> path = trace_.requests[request].blocks;
  const std::vector<int32_t>& answer = trace_.requests[request].answer_blocks;
  path.insert(path.end(), answer.begin(), answer.end());
  int room = free_blocks() / kKvBlocksPerSimBlock;
  size_t kept = cache_.Match(path);
  const size_t had = kept;
  for (; kept < path.size(); ++kept) {
    if (!is_held_[path[kept]] && --room < 0) break;
  }
  cache_.Insert(absl::MakeConstSpan(path).first(kept), &added_, nullptr);
  for (size_t i = had; i < kept; ++i) {
    if (!is_held_[path[i]]) continue;
    is_held_[path[i]] = false;
    --held_;
    ++used_cached_;
  }
}

// ---- The life of a request.

bool SimDecodeWorker::Fits(int request) const {
  return KvBlocks(trace_.requests[request].prompt_tokens + Answer(request)) <= shape_.kv_blocks;
}

void SimDecodeWorker::Accept(int request, int generated_tokens, int64_t now_us, bool here) {
  BATON_CHECK(alive_) << "a dead worker was given a request";
  BATON_CHECK(Fits(request)) << "a request that could never finish";
  queue_.push_back({request, generated_tokens, -1, now_us, here});
  queued_tokens_ += trace_.requests[request].prompt_tokens + generated_tokens;
}

bool SimDecodeWorker::TryEnter(const Waiting& waiting, int64_t now_us,
                               std::vector<Entered>* entered) {
  Sequence s;
  s.request = waiting.request;
  s.generated_tokens = waiting.generated_tokens;
  s.last_token_us = waiting.last_token_us;
  const SimRequest& r = trace_.requests[s.request];
  s.matched = cache_.Match(r.blocks);
  const absl::Span<const int32_t> matched = absl::MakeConstSpan(r.blocks).first(s.matched);
  // In use from now on: evicting these would make no room.
  cache_.Insert(matched, nullptr, nullptr);
  const auto use = [&](int by) {
    for (int32_t block : matched) {
      used_cached_ -= uses_[block] > 0;
      uses_[block] = static_cast<uint16_t>(uses_[block] + by);
      used_cached_ += uses_[block] > 0;
    }
  };
  use(1);
  const int blocks = OwnBlocks(s), reserve = static_cast<int>(inside_.size());
  if (!MakeFree(blocks + reserve)) {
    use(-1);
    return false;
  }
  active_blocks_ += blocks;
  receiving_tokens_ += Context(s);
  const int cached = CachedTokens(r, s.matched);
  entered->push_back({s.request, Context(s), Context(s) - cached, waiting.last_token_us >= 0,
                      now_us - waiting.since_us, lacks_kv_, waiting.here});
  if (waiting.here) prompts_.push_back({s.request, cached, Context(s)});
  by_request_[s.request] = inside_.insert(inside_.end(), s);
  return true;
}

std::vector<SimDecodeWorker::Entered> SimDecodeWorker::Admit(int64_t now_us) {
  std::vector<Entered> entered;
  while (!queue_.empty() && static_cast<int>(inside_.size()) < shape_.max_num_seqs &&
         TryEnter(queue_.front(), now_us, &entered)) {
    const Waiting& w = queue_.front();
    queued_tokens_ -= trace_.requests[w.request].prompt_tokens + w.generated_tokens;
    queue_.pop_front();
  }
  lacks_kv_ = !queue_.empty() && static_cast<int>(inside_.size()) < shape_.max_num_seqs;
  return entered;
}

void SimDecodeWorker::Arrive(int request) { joining_.push_back(request); }

void SimDecodeWorker::Join(int request) {
  Sequence& s = *by_request_.at(request);
  receiving_tokens_ -= Context(s);
  s.joined_at = steps_;
  ++running_;
  running_tokens_ += Context(s);
  ++by_phase_[Phase(s)];
  ends_.emplace(steps_ + Answer(request) - Generated(s), request);
  first_.push_back({request, s.last_token_us});
}

// A block for each running sequence that needs one for the token of this step.
void SimDecodeWorker::Grow(int64_t now_us) {
  const int phase = static_cast<int>((kKvBlockTokens - steps_ % kKvBlockTokens) % kKvBlockTokens);
  while (!MakeFree(by_phase_[phase])) {
    auto last = std::prev(inside_.end());
    while (last->joined_at < 0) --last;
    const Sequence s = *last;
    const auto [begin, end] =
        ends_.equal_range(s.joined_at + Answer(s.request) - std::max(s.generated_tokens, 1));
    ends_.erase(std::find_if(begin, end, [&s](const auto& e) { return e.second == s.request; }));
    first_.erase(std::remove_if(first_.begin(), first_.end(),
                                [&s](const Joined& j) { return j.request == s.request; }),
                 first_.end());
    queue_.push_front(
        {s.request, Generated(s), Ran(s) > 0 ? last_step_us_ : s.last_token_us, now_us});
    queued_tokens_ += trace_.requests[s.request].prompt_tokens + Generated(s);
    Remove(last);
    ++preemptions_;
  }
  active_blocks_ += by_phase_[phase];
}

void SimDecodeWorker::PlanPrompts() {
  planned_tokens_ = 0;
  started_.clear();
  int budget = std::min(budget_->Tokens(), shape_.step_tokens - running_);
  for (Prompt& prompt : prompts_) {
    int count = std::min(budget, prompt.end - prompt.computed);
    if (prompt.computed + count < prompt.end) count -= count % kKvBlockTokens;
    if (count <= 0) return;
    prompt.planned = count;
    if (!std::exchange(prompt.begun, true)) started_.push_back(prompt.request);
    budget -= count;
    planned_tokens_ += count;
  }
}

double SimDecodeWorker::StepUs() const {
  if (planned_tokens_ == 0) {
    return shape_.cost.Us(running_, static_cast<double>(running_tokens_));
  }
  double us = shape_.prompt_cost.fixed_us;
  if (running_ > 0) {
    us = std::max(us, shape_.cost.fixed_us) +
         shape_.cost.Us(running_, static_cast<double>(running_tokens_)) - shape_.cost.fixed_us;
  }
  for (const Prompt& prompt : prompts_) {
    us += shape_.prompt_cost.ChunkUs(prompt.computed, prompt.planned);
  }
  return us;
}

int64_t SimDecodeWorker::Begin(int64_t now_us) {
  if (stepping_) return -1;
  first_.clear();
  for (int request : joining_) Join(request);
  joining_.clear();
  Grow(now_us);
  PlanPrompts();
  if (running_ == 0 && planned_tokens_ == 0) return -1;
  stepping_ = true;
  double us = slowness_ * StepUs() * (1 + shape_.noise * (2 * random_.Uniform() - 1));
  if (cold_steps_ > 0) {
    --cold_steps_;
    us = std::max(us, static_cast<double>(cold_step_us_));
  }
  step_ = {1, running_, running_tokens_, static_cast<int64_t>(us)};
  return now_us + step_.us;
}

SimDecodeWorker::Step SimDecodeWorker::End(int64_t now_us) {
  BATON_CHECK(stepping_) << "no step is under way that could end";
  stepping_ = false;
  Step step;
  step.us = step_.us;
  step.sequences = step_.sequences;
  step.joined = std::move(first_);
  first_.clear();
  ++steps_;
  running_tokens_ += running_;
  last_step_us_ = now_us;
  budget_->OnStep(planned_tokens_, step_.sequences, absl::Microseconds(step_.us));
  // As a real worker: the share of each in the time of a step of both is not known.
  if (planned_tokens_ == 0) Measure(step_, now_us);
  while (!ends_.empty() && ends_.begin()->first <= steps_) {
    const int request = ends_.begin()->second;
    ends_.erase(ends_.begin());
    Remove(by_request_.at(request));
    Keep(request);
    step.ended.push_back(request);
  }
  for (Prompt& prompt : prompts_) {
    prompt.computed += std::exchange(prompt.planned, 0);
    if (prompt.computed == prompt.end) step.computed.push_back(prompt.request);
  }
  std::erase_if(prompts_, [](const Prompt& prompt) { return prompt.computed == prompt.end; });
  joining_.insert(joining_.end(), step.computed.begin(), step.computed.end());
  return step;
}

void SimDecodeWorker::CheckIntegrity() const {
  int own = 0, runs = 0, used = 0, held = 0;
  int64_t running_tokens = 0, receiving_tokens = 0;
  std::vector<int> uses(uses_.size());
  for (const Sequence& s : inside_) {
    // A step under way has given the blocks that its tokens need.
    const bool ahead = stepping_ && s.joined_at >= 0 && Context(s) % kKvBlockTokens == 0;
    own += OwnBlocks(s) + (ahead ? 1 : 0);
    runs += s.joined_at >= 0;
    (s.joined_at >= 0 ? running_tokens : receiving_tokens) += Context(s);
    for (int i = 0; i < s.matched; ++i) ++uses[trace_.requests[s.request].blocks[i]];
  }
  for (size_t b = 0; b < uses.size(); ++b) {
    BATON_CHECK(uses[b] == uses_[b]) << "block " << b << " is used by " << uses[b];
    const bool cached = cache_.Contains(static_cast<int32_t>(b));
    BATON_CHECK(is_held_[b] == (uses[b] > 0 && !cached)) << "block " << b << " is held wrongly";
    used += uses[b] > 0 && cached;
    held += is_held_[b];
  }
  BATON_CHECK(own == active_blocks_ && held == held_ && used == used_cached_)
      << own << " blocks are used, not " << active_blocks_;
  BATON_CHECK(runs == running_ && running_tokens == running_tokens_ &&
              receiving_tokens == receiving_tokens_)
      << runs << " sequences run, not " << running_;
  BATON_CHECK(free_blocks() >= 0) << "more blocks are taken than there are";
  BATON_CHECK(inside_.size() <= static_cast<size_t>(shape_.max_num_seqs)) << "too many are inside";
}

// ---- Reports to routers.

void SimDecodeWorker::Measure(const MeasuredSteps& steps, int64_t now_us) {
  const worker::StepCost::Terms work = {1, static_cast<double>(steps.sequences),
                                        static_cast<double>(steps.context_tokens),
                                        shape_.cost.experts.Distinct(steps.sequences)};
  for (int i = 0; i < steps.count; ++i) {
    cost_.AddStep(work, absl::Microseconds(steps.us), absl::Microseconds(now_us));
  }
}

worker_pb::WorkerCard SimDecodeWorker::Card(const std::string& id) const {
  worker_pb::WorkerCard card =
      SimCard(v1::WORKER_ROLE_DECODE, id, epoch_, kKvBlockTokens, shape_.kv_blocks);
  card.set_kv_block_bytes(static_cast<int64_t>(shape_.kv_bytes_per_token * kKvBlockTokens));
  card.set_max_num_seqs(shape_.max_num_seqs);
  card.set_device(shape_.device);
  return card;
}

worker_pb::LoadReport SimDecodeWorker::Load(int64_t now_us) const {
  worker_pb::LoadReport load;
  load.set_running(static_cast<int>(inside_.size()));
  load.set_queued(queued());
  load.set_queued_tokens(queued_tokens_);
  load.set_free_blocks(free_blocks() + (cache_.size() - used_cached_) * kKvBlocksPerSimBlock);
  load.set_context_tokens(running_tokens_ + receiving_tokens_);
  // As long as the prompts that are computed here take, beside nothing else.
  double prompts_us = 0;
  for (const Prompt& prompt : prompts_) {
    prompts_us += shape_.prompt_cost.Us(prompt.computed, prompt.end - prompt.computed);
  }
  for (const Waiting& waiting : queue_) {
    if (waiting.here) {
      prompts_us += shape_.prompt_cost.Us(0, trace_.requests[waiting.request].prompt_tokens);
    }
  }
  load.set_remaining_work_us(static_cast<int64_t>(prompts_us));
  if (shape_.computes_prompts) {
    load.mutable_prefill_cost()->set_fixed_us(shape_.prompt_cost.fixed_us);
    load.mutable_prefill_cost()->set_token_us(shape_.prompt_cost.token_us);
    load.mutable_prefill_cost()->set_pair_us(shape_.prompt_cost.pair_us);
  }
  if (const auto cost =
          worker::ToDecodeCost(cost_, shape_.cost.experts, absl::Microseconds(now_us))) {
    *load.mutable_decode_cost() = *cost;
  }
  return load;
}

bool SimDecodeWorker::TakeDelta(worker_pb::CacheDelta* delta) {
  if (added_.empty() && removed_.empty()) return false;
  delta->Clear();
  delta->set_sequence(++delta_number_);
  ForEachKey(added_, kKvBlocksPerSimBlock, [&](kv::PrefixKey key) { delta->add_added(key); });
  ForEachKey(removed_, kKvBlocksPerSimBlock, [&](kv::PrefixKey key) { delta->add_removed(key); });
  added_.clear();
  removed_.clear();
  return true;
}

}  // namespace baton::simulator
