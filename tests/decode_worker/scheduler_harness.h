// A scheduler over a pool and a cache, without a loop: what the tests of scheduling share.
#ifndef BATON_TESTS_DECODE_WORKER_SCHEDULER_HARNESS_H_
#define BATON_TESTS_DECODE_WORKER_SCHEDULER_HARNESS_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "decode_worker/beam_search.h"
#include "decode_worker/scheduler.h"

namespace baton::decode_worker {

using State = Sequence::State;

struct Wish {
  int prompt = 16;
  int max_tokens = 1;
  bool remote = true;
  int n = 1;
  Priority priority = Priority::kNormal;
  std::string tenant = "";
  bool continuation = false;
  int first_token = 0;  // of the prompt; the others count up from it
};

// A scheduler with its pool and cache, and the events it sends.
class SchedulerHarness : public ::testing::Test {
 protected:
  void Make(int blocks, const SchedulerOptions& options = {}, bool caching = true,
            const kv::BlockShape& shape = {}) {
    pool_ = std::make_unique<kv::BlockPool>(blocks, shape);
    if (caching) cache_ = std::make_unique<kv::RadixCache>(*pool_, options.block_tokens);
    DecodeScheduler::Events events;
    events.before_preemption = [this](Sequence& s) { preempted_.push_back(s.id); };
    events.cancel_transfer = [this](Sequence& s) { cancelled_.push_back(s.id); };
    events.lent_blocks = [this] { return lent_.size(); };
    scheduler_ = std::make_unique<DecodeScheduler>(options, *pool_, cache_.get(), events);
  }

  std::unique_ptr<Sequence> Request(uint64_t id, const Wish& wish) {
    auto call = std::make_shared<Call>();
    call->id = id;
    call->prompt_tokens = call->request_tokens = wish.prompt;
    call->max_tokens = wish.max_tokens;
    call->n = call->open_choices = wish.n;
    call->priority = wish.priority;
    call->tenant = wish.tenant;
    call->continuation = wish.continuation;
    if (wish.remote) call->prefill.address = "p:1";
    auto sequence = std::make_unique<Sequence>();
    sequence->id = id;
    sequence->call = std::move(call);
    sequence->draws = wish.n;
    const int first = wish.first_token != 0 ? wish.first_token : static_cast<int>(id) * 10'000;
    for (int i = 0; i < wish.prompt; ++i) sequence->tokens.push_back(first + i);
    return sequence;
  }
  absl::Status Submit(uint64_t id, const Wish& wish) {
    return scheduler_->Submit(Request(id, wish));
  }

  // What the loop does: compute, draw a token for each sequence that has come to its end.
  StepPlan Step() {
    const StepPlan plan = scheduler_->PlanStep();
    Check();
    for (const Chunk& chunk : plan.chunks) {
      scheduler_->Computed(chunk);
      if (!chunk.draws()) continue;
      Draw(*chunk.sequence);
    }
    return plan;
  }
  void Draw(Sequence& sequence) {
    const int draws = std::exchange(sequence.draws, 1);
    std::vector<Sequence*> choices = {&sequence};
    for (int i = 1; i < draws; ++i) {
      auto fork = std::make_unique<Sequence>();
      fork->id = sequence.id * 100 + static_cast<uint64_t>(i);
      fork->call = sequence.call;
      fork->tokens = sequence.tokens;
      fork->sampling.choice = static_cast<uint32_t>(i);
      choices.push_back(scheduler_->Fork(sequence, std::move(fork)));
    }
    for (Sequence* choice : choices) {
      choice->tokens.push_back(static_cast<int>(choice->id) * 7 +
                               static_cast<int>(choice->tokens.size()));
      if (choice->generated_tokens() == choice->call->max_tokens) {
        finished_.push_back(choice->id);
        scheduler_->Remove(*choice);
      }
    }
  }
  void Commit(Sequence& sequence) {
    if (sequence.draws == 1) sequence.tokens.push_back(1);
    scheduler_->Commit(sequence);
  }
  void Check() {
    pool_->CheckIntegrity();
    if (cache_ != nullptr) cache_->CheckIntegrity();
    scheduler_->CheckIntegrity();
  }
  int Free() const {
    return pool_->counts().free + (cache_ != nullptr ? cache_->evictable_page_count() : 0);
  }

  std::unique_ptr<kv::BlockPool> pool_;
  std::unique_ptr<kv::RadixCache> cache_;
  kv::BlockLease lent_;  // to other workers' fetches
  std::unique_ptr<DecodeScheduler> scheduler_;
  std::vector<uint64_t> preempted_, cancelled_, finished_;
};

}  // namespace baton::decode_worker

#endif  // BATON_TESTS_DECODE_WORKER_SCHEDULER_HARNESS_H_
