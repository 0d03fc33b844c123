#include "decode_worker/waiting_queue.h"

#include <numeric>
#include <utility>

#include "common/base/check.h"

namespace baton::decode_worker {

WaitingQueue::WaitingQueue(int64_t quantum)
    : queues_{Queues{FairQueue(quantum), FairQueue(quantum)},
              Queues{FairQueue(quantum), FairQueue(quantum)},
              Queues{FairQueue(quantum), FairQueue(quantum)}} {}

void WaitingQueue::PushNew(std::unique_ptr<Sequence> sequence, bool long_context) {
  sequence->state = Sequence::State::kWaiting;
  ++count_;
  new_tokens_[static_cast<size_t>(sequence->call->priority)] +=
      static_cast<int64_t>(sequence->tokens.size());
  Queues& queues = QueuesOf(sequence->call->priority);
  (long_context ? queues.long_context : queues.ordinary).Push(std::move(sequence));
}

void WaitingQueue::PushResumed(std::unique_ptr<Sequence> sequence) {
  sequence->state = Sequence::State::kWaiting;
  ++count_;
  resumed_tokens_[static_cast<size_t>(sequence->call->priority)] +=
      static_cast<int64_t>(sequence->tokens.size());
  resumed_.emplace(sequence->Rank(), std::move(sequence));
}

Sequence* WaitingQueue::Next(const std::function<bool(const Sequence&)>& must_wait) {
  for (const Priority priority : {Priority::kHigh, Priority::kNormal, Priority::kLow}) {
    for (const auto& [rank, sequence] : resumed_) {
      if (sequence->call->priority == priority && !must_wait(*sequence)) return sequence.get();
    }
    Sequence* next = nullptr;
    for (FairQueue* queue : {&QueuesOf(priority).ordinary, &QueuesOf(priority).long_context}) {
      Sequence* head = queue->Front();
      if (head == nullptr || must_wait(*head)) continue;
      if (next == nullptr || head->submission < next->submission) next = head;
    }
    if (next != nullptr) return next;
  }
  return nullptr;
}

std::unique_ptr<Sequence> WaitingQueue::Take(const Sequence& sequence) {
  std::unique_ptr<Sequence> taken;
  const size_t priority = static_cast<size_t>(sequence.call->priority);
  const int64_t tokens = static_cast<int64_t>(sequence.tokens.size());
  if (const auto it = resumed_.find(sequence.Rank()); it != resumed_.end()) {
    taken = std::move(it->second);
    resumed_.erase(it);
    resumed_tokens_[priority] -= tokens;
  } else {
    new_tokens_[priority] -= tokens;
    Queues& queues = QueuesOf(sequence.call->priority);
    for (FairQueue* queue : {&queues.ordinary, &queues.long_context}) {
      // Popping the head charges its tenant; any other request is just removed.
      if (taken == nullptr && queue->Front() == &sequence) taken = queue->Pop();
      if (taken == nullptr) taken = queue->Remove(sequence.id);
    }
  }
  BATON_CHECK(taken.get() == &sequence) << "sequence " << sequence.id << " does not wait";
  --count_;
  return taken;
}

int64_t WaitingQueue::tokens() const {
  return std::accumulate(new_tokens_.begin(), new_tokens_.end(), int64_t{0}) +
         std::accumulate(resumed_tokens_.begin(), resumed_tokens_.end(), int64_t{0});
}

int64_t WaitingQueue::tokens_ahead(const Call& call) const {
  const int own = static_cast<int>(call.priority);
  const int first_new = own + (call.continuation ? 1 : 0);
  return std::accumulate(resumed_tokens_.begin() + own, resumed_tokens_.end(), int64_t{0}) +
         std::accumulate(new_tokens_.begin() + first_new, new_tokens_.end(), int64_t{0});
}

void WaitingQueue::Charge(Priority priority, const std::string& tenant, int64_t tokens) {
  QueuesOf(priority).ordinary.Charge(tenant, tokens);
  QueuesOf(priority).long_context.Charge(tenant, tokens);
}

std::vector<Sequence*> WaitingQueue::All() const {
  std::vector<Sequence*> all;
  for (const auto& [rank, sequence] : resumed_) all.push_back(sequence.get());
  for (const Queues& queues : queues_) {
    for (const FairQueue* queue : {&queues.ordinary, &queues.long_context}) {
      for (Sequence* sequence : queue->All()) all.push_back(sequence);
    }
  }
  return all;
}

}  // namespace baton::decode_worker
