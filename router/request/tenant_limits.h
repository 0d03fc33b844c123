// The limits that API keys set for their tenants: requests at a time and per minute.
#ifndef BATON_ROUTER_REQUEST_TENANT_LIMITS_H_
#define BATON_ROUTER_REQUEST_TENANT_LIMITS_H_

#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/security/api_keys.h"

namespace baton::router {

// Counts by tenant: all keys of a tenant share its counts, and a request is held against the limits
// of its key. Per router: replicas share nothing. Remembers as many tenants as the file of keys has
// had. Thread-safe. Must outlive its places.
class TenantLimits {
 public:
  // A request inside, until its destructor. Move-only.
  class Place {
   public:
    Place() = default;
    Place(Place&& other) noexcept { *this = std::move(other); }
    Place& operator=(Place&& other) noexcept {
      std::swap(limits_, other.limits_);
      std::swap(tenant_, other.tenant_);
      return *this;
    }
    ~Place() {
      if (limits_ != nullptr) limits_->Leave(tenant_);
    }

   private:
    friend class TenantLimits;
    Place(TenantLimits* limits, std::string tenant) : limits_(limits), tenant_(std::move(tenant)) {}
    TenantLimits* limits_ = nullptr;
    std::string tenant_;
  };

  explicit TenantLimits(const Clock& clock) : clock_(clock) {}

  // RESOURCE_EXHAUSTED with a time to retry: TENANT_LIMIT with too many requests inside,
  // TENANT_RATE_LIMIT with too many in the last minute. The rate is a token bucket: a tenant that
  // was silent for a minute may send a minute's requests at once.
  absl::StatusOr<Place> Enter(const std::string& tenant, const security::KeyLimits& limits);

 private:
  struct Tenant {
    int inside = 0;
    double spent = 0;  // of the bucket of requests per minute, as of `last`
    absl::Duration last;
  };
  void Leave(const std::string& tenant);

  const Clock& clock_;
  absl::Mutex mutex_;
  absl::flat_hash_map<std::string, Tenant> tenants_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_TENANT_LIMITS_H_
