// Divides the items that scoring calls may have at prefill workers: tenants have equal shares, and
// so have the calls of a tenant.
//
// Requests of Generate wait at decode workers, whose queues are fair between tenants. Scoring needs
// no decode worker, so the router bounds what each tenant has in the prefill workers' queues.
#ifndef BATON_ROUTER_REQUEST_ITEM_SHARES_H_
#define BATON_ROUTER_REQUEST_ITEM_SHARES_H_

#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"

namespace baton::router {

// Per router: replicas share nothing. Thread-safe. Must outlive its shares.
class ItemShares {
 public:
  // What one call has, until the share's destructor. Move-only.
  class Share {
   public:
    Share() = default;
    Share(Share&& other) noexcept { *this = std::move(other); }
    Share& operator=(Share&& other) noexcept {
      std::swap(shares_, other.shares_);
      std::swap(tenant_, other.tenant_);
      return *this;
    }
    ~Share() {
      if (shares_ != nullptr) shares_->Leave(tenant_);
    }

    // The call's part of the whole: above 0, at most 1. Calls that come and go change it. REQUIRES:
    // the share is from Join().
    double fraction() const { return shares_->Fraction(tenant_); }

   private:
    friend class ItemShares;
    Share(ItemShares* shares, std::string tenant) : shares_(shares), tenant_(std::move(tenant)) {}
    ItemShares* shares_ = nullptr;
    std::string tenant_;
  };

  Share Join(const std::string& tenant) {
    absl::MutexLock lock(&mutex_);
    ++calls_[tenant];
    return Share(this, tenant);
  }

 private:
  void Leave(const std::string& tenant) {
    absl::MutexLock lock(&mutex_);
    const auto found = calls_.find(tenant);
    if (--found->second == 0) calls_.erase(found);
  }
  double Fraction(const std::string& tenant) const {
    absl::MutexLock lock(&mutex_);
    return 1.0 / (static_cast<double>(calls_.size()) * calls_.at(tenant));
  }

  mutable absl::Mutex mutex_;
  absl::flat_hash_map<std::string, int> calls_ ABSL_GUARDED_BY(mutex_);  // by tenant, 1 or more
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_ITEM_SHARES_H_
