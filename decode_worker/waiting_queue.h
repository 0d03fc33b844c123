// The requests that have no blocks: new ones in fair queues, and resumed ones, which were preempted
// here or are continuations of a lost worker's requests.
//
// The order: higher priorities first; within one, resumed requests by age; then new ones, fair
// between tenants (fair_queue.h). Long-context requests have separate queues, so that a
// request that waits for its share of the pool does not delay others. Of two queues, the one with
// the older head is next.
//
// Thread: owned by the loop; unsynchronized.
#ifndef BATON_DECODE_WORKER_WAITING_QUEUE_H_
#define BATON_DECODE_WORKER_WAITING_QUEUE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "decode_worker/fair_queue.h"
#include "decode_worker/sequence.h"

namespace baton::decode_worker {

class WaitingQueue {
 public:
  explicit WaitingQueue(int64_t fair_quantum_tokens);

  void PushNew(std::unique_ptr<Sequence> sequence, bool long_context);
  void PushResumed(std::unique_ptr<Sequence> sequence);
  // Returns the next request that does not match `must_wait`; null if there is none. Tries only the
  // head of a fair queue.
  Sequence* Next(const std::function<bool(const Sequence&)>& must_wait);
  // Removes and returns the sequence. REQUIRES: it is queued here.
  std::unique_ptr<Sequence> Take(const Sequence& sequence);
  // Charges a tenant tokens beyond its prompts.
  void Charge(Priority priority, const std::string& tenant, int64_t tokens);

  int count() const { return count_; }
  int64_t tokens() const;
  // Tokens of the requests before a new one of this call.
  int64_t tokens_ahead(const Call& call) const;
  std::vector<Sequence*> All() const;

 private:
  struct Queues {
    FairQueue ordinary;
    FairQueue long_context;
  };
  Queues& QueuesOf(Priority priority) { return queues_[static_cast<size_t>(priority)]; }

  std::array<Queues, 3> queues_;                                                      // by Priority
  std::map<std::tuple<int, uint64_t, uint32_t>, std::unique_ptr<Sequence>> resumed_;  // by rank
  int count_ = 0;
  std::array<int64_t, 3> new_tokens_ = {};  // by Priority
  std::array<int64_t, 3> resumed_tokens_ = {};
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_WAITING_QUEUE_H_
