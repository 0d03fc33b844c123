// Requests of one priority that wait: tenants take turns by tokens, each tenant's own are first
// come, first served.
//
// Deficit round robin (Shreedhar and Varghese, SIGCOMM 1995). A turn gives a tenant a quantum of
// tokens; its head goes when its tokens are covered. What the answer then takes is charged as it is
// generated (Charge), since nobody knows its length before: a tenant that talks a lot waits longer
// for its next turn. A tenant without waiting requests keeps a debt, but saves nothing up.
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
  // Whose turn it is; null if nobody waits. The same one until Pop, Remove or Push changes it.
  Sequence* Front();
  // Takes out what Front() returned. REQUIRES: not empty.
  std::unique_ptr<Sequence> Pop();
  // Null if it is not here.
  std::unique_ptr<Sequence> Remove(uint64_t id);
  // Tokens that a tenant has had beyond what Pop counted.
  void Charge(const std::string& tenant, int64_t tokens);

  bool empty() const { return size_ == 0; }
  int size() const { return size_; }
  size_t tenant_count() const { return tenants_.size(); }  // that wait, or are in debt
  // In no order.
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
  // Halves all debts, and forgets small ones of tenants that do not wait.
  void Forgive();
  void Leave(std::map<std::string, Tenant>::iterator tenant);

  const int64_t quantum_tokens_;
  std::map<std::string, Tenant> tenants_;  // those that wait, and those in debt
  std::list<std::string> ring_;            // tenants that wait; the front has the turn
  bool turn_begun_ = false;                // the front has had its quantum
  int size_ = 0;
};

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_FAIR_QUEUE_H_
