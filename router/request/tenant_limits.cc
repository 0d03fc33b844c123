#include "router/request/tenant_limits.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"

namespace baton::router {
namespace {

// Requests leave at times that the limit does not know.
constexpr absl::Duration kRetryWhenFull = absl::Seconds(1);

}  // namespace

absl::StatusOr<TenantLimits::Place> TenantLimits::Enter(const std::string& tenant,
                                                        const security::KeyLimits& limits) {
  absl::MutexLock lock(&mutex_);
  Tenant& counts = tenants_[tenant];
  if (limits.max_concurrent_requests > 0 && counts.inside >= limits.max_concurrent_requests) {
    return WithRetryAfter(MakeError(absl::StatusCode::kResourceExhausted, "TENANT_LIMIT",
                                    absl::StrCat(counts.inside, " requests of tenant ", tenant,
                                                 " are running, and its API key allows ",
                                                 limits.max_concurrent_requests)),
                          kRetryWhenFull);
  }
  if (limits.requests_per_minute > 0) {
    const absl::Duration now = clock_.SinceStart();
    const double per_second = limits.requests_per_minute / 60.0;
    const double refilled = absl::ToDoubleSeconds(now - counts.last) * per_second;
    const double spent = std::max(0.0, counts.spent - refilled);
    if (spent + 1 > limits.requests_per_minute) {
      return WithRetryAfter(
          MakeError(absl::StatusCode::kResourceExhausted, "TENANT_RATE_LIMIT",
                    absl::StrCat("the API key of tenant ", tenant, " allows ",
                                 limits.requests_per_minute, " requests per minute")),
          absl::Seconds((spent + 1 - limits.requests_per_minute) / per_second));
    }
    counts.spent = spent + 1;
    counts.last = now;
  }
  ++counts.inside;
  return Place(this, tenant);
}

void TenantLimits::Leave(const std::string& tenant) {
  absl::MutexLock lock(&mutex_);
  --tenants_.at(tenant).inside;
}

}  // namespace baton::router
