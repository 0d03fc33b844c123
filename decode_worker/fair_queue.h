// The waiting requests of one priority, fair between tenants by tokens; first come, first served
// within a tenant.
//
// Deficit round robin (Shreedhar and Varghese, SIGCOMM 1995). A round adds a quantum of tokens to a
// tenant's deficit counter; its first request is popped when the counter covers its tokens. The
// answer, whose length is not known before, is charged as it is generated (Charge): a tenant with
// long answers is popped less often. A tenant without waiting requests keeps a debt, no credit.
//
// Thread: owned by the loop; unsynchronized.
#ifndef BATON_DECODE_WORKER_FAIR_QUEUE_H_
#define BATON_DECODE_WORKER_FAIR_QUEUE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "decode_worker/sequence.h"

namespace baton::decode_worker {

class FairQueue {
 public:
  explicit FairQueue(int64_t quantum_tokens) : quantum_tokens_(quantum_tokens) {}

  void Push(std::unique_ptr<Sequence> sequence);
  // Returns the next request, or null if the queue is empty; the same one until Pop, Remove or
  // Push.
  Sequence* Front();
  // Removes and returns what Front() returned. REQUIRES: the queue is not empty.
  std::unique_ptr<Sequence> Pop();
  // Removes and returns a request; null if it is not here.
  std::unique_ptr<Sequence> Remove(uint64_t id);
  // Charges a tenant tokens beyond those that Pop counted.
  void Charge(const std::string& tenant, int64_t tokens);

  bool empty() const { return size_ == 0; }
  int size() const { return size_; }
  size_t tenant_count() const { return tenants_.size(); }  // with waiting requests or a debt
  // Returns all requests, in no particular order.
  std::vector<Sequence*> All() const;

 private:
  struct Tenant {
    std::deque<std::unique_ptr<Sequence>> waiting;
    int64_t deficit = 0;
    bool in_ring = false;
  };
  static int64_t Cost(const Sequence& sequence) {
    return static_cast<int64_t>(sequence.tokens.size());
  }
  // Halves all debts, and drops small ones of tenants without waiting requests.
  void Forgive();
  void Leave(std::map<std::string, Tenant>::iterator tenant);

  const int64_t quantum_tokens_;
  std::map<std::string, Tenant> tenants_;  // with waiting requests or a debt
  std::list<std::string> ring_;            // tenants with waiting requests; the front is served
  bool turn_begun_ = false;                // the front tenant has its quantum of this round
  int size_ = 0;
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_FAIR_QUEUE_H_
