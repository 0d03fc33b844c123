#include "decode_worker/fair_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "common/base/check.h"

namespace baton::decode_worker {
namespace {

// Debtors remembered at most: their names come from requests.
constexpr size_t kMaxTenants = 4096;

}  // namespace

void FairQueue::Push(std::unique_ptr<Sequence> sequence) {
  const std::string& name = sequence->call->tenant;
  Tenant& tenant = tenants_[name];
  if (!tenant.in_ring) {
    tenant.in_ring = true;
    ring_.push_back(name);
  }
  tenant.waiting.push_back(std::move(sequence));
  ++size_;
}

Sequence* FairQueue::Front() {
  if (size_ == 0) return nullptr;
  if (ring_.size() == 1) {
    // A lone tenant: no rounds are counted, and its debt delays nothing.
    Tenant& tenant = tenants_[ring_.front()];
    tenant.deficit = std::max<int64_t>(tenant.deficit, Cost(*tenant.waiting.front()));
    turn_begun_ = true;
    return tenant.waiting.front().get();
  }
  while (true) {
    Tenant& tenant = tenants_[ring_.front()];
    if (!turn_begun_) {
      tenant.deficit += quantum_tokens_;
      turn_begun_ = true;
    }
    Sequence* head = tenant.waiting.front().get();
    if (tenant.deficit >= Cost(*head)) return head;
    ring_.splice(ring_.end(), ring_, ring_.begin());
    turn_begun_ = false;
  }
}

std::unique_ptr<Sequence> FairQueue::Pop() {
  BATON_CHECK(Front() != nullptr);
  const auto tenant = tenants_.find(ring_.front());
  std::unique_ptr<Sequence> sequence = std::move(tenant->second.waiting.front());
  tenant->second.waiting.pop_front();
  tenant->second.deficit -= Cost(*sequence);
  --size_;
  if (tenant->second.waiting.empty()) Leave(tenant);
  return sequence;
}

std::unique_ptr<Sequence> FairQueue::Remove(uint64_t id) {
  for (auto tenant = tenants_.begin(); tenant != tenants_.end(); ++tenant) {
    std::deque<std::unique_ptr<Sequence>>& waiting = tenant->second.waiting;
    const auto it = std::find_if(
        waiting.begin(), waiting.end(),
        [id](const std::unique_ptr<Sequence>& sequence) { return sequence->id == id; });
    if (it == waiting.end()) continue;
    std::unique_ptr<Sequence> sequence = std::move(*it);
    waiting.erase(it);
    --size_;
    if (waiting.empty()) Leave(tenant);
    return sequence;
  }
  return nullptr;
}

void FairQueue::Leave(std::map<std::string, Tenant>::iterator tenant) {
  if (!ring_.empty() && ring_.front() == tenant->first) turn_begun_ = false;
  ring_.remove(tenant->first);
  tenant->second.in_ring = false;
  tenant->second.deficit = std::min<int64_t>(tenant->second.deficit, 0);
  if (tenant->second.deficit == 0) tenants_.erase(tenant);
}

void FairQueue::Charge(const std::string& tenant, int64_t tokens) {
  auto it = tenants_.find(tenant);
  if (it == tenants_.end()) {
    if (ring_.empty()) return;  // no tenant waits
    // Debts are bounded, so this ends. Only where all wait is there none to forget.
    while (tenants_.size() >= kMaxTenants && tenants_.size() > ring_.size()) Forgive();
    if (tenants_.size() >= kMaxTenants) return;
    it = tenants_.try_emplace(tenant).first;
  }
  // A debt is bounded, so that a tenant is served again within a bounded number of rounds.
  it->second.deficit = std::max(it->second.deficit - tokens, -64 * quantum_tokens_);
}

void FairQueue::Forgive() {
  for (auto it = tenants_.begin(); it != tenants_.end();) {
    Tenant& tenant = it->second;
    if (tenant.deficit < 0) tenant.deficit /= 2;
    const bool small = tenant.deficit > -quantum_tokens_;
    it = small && !tenant.in_ring ? tenants_.erase(it) : std::next(it);
  }
}

std::vector<Sequence*> FairQueue::All() const {
  std::vector<Sequence*> all;
  for (const auto& [name, tenant] : tenants_) {
    for (const std::unique_ptr<Sequence>& sequence : tenant.waiting) all.push_back(sequence.get());
  }
  return all;
}

}  // namespace baton::decode_worker
