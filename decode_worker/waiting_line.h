// The requests that have no blocks: new ones in fair queues, and resumed ones, which were preempted
// here or are continuations of what a lost worker had. Says who is next.
//
// Higher priorities first; within one, who was inside before, here or there, goes before who never
// was, by age; then tenants take turns (fair_queue.h). Long-context requests stand in queues of
// their own, so that one that must wait for its share of the pool holds up nobody else; of two
// queues, the older head is next.
//
// Thread: owned by the loop; unsynchronized.
#ifndef BATON_DECODE_WORKER_WAITING_LINE_H_
#define BATON_DECODE_WORKER_WAITING_LINE_H_

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

class WaitingLine {
 public:
  explicit WaitingLine(int64_t fair_quantum_tokens);

  void PushNew(std::unique_ptr<Sequence> sequence, bool long_context);
  void PushResumed(std::unique_ptr<Sequence> sequence);
  // Who is next, leaving out those that `must_wait`; null if nobody is left. Of the queues only the
  // heads are asked.
  Sequence* Next(const std::function<bool(const Sequence&)>& must_wait);
  // REQUIRES: it is here.
  std::unique_ptr<Sequence> Take(const Sequence& sequence);
  // Tokens that a tenant has had beyond its prompts.
  void Charge(Priority priority, const std::string& tenant, int64_t tokens);

  int count() const { return count_; }
  int64_t tokens() const;
  // Of all that do not stand behind a request of this call.
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

#endif  // BATON_DECODE_WORKER_WAITING_LINE_H_
