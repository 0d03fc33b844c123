#include "router/request/access.h"

#include <cstdint>

#include "common/base/error.h"

namespace baton::router {
namespace {

// The length keeps ("ab", "c") and ("a", "bc") apart; the prefix keeps this hash apart from others.
std::string TenantSalt(const std::string& tenant, const std::string& cache_salt) {
  std::string bytes = "baton tenant cache salt";
  for (int shift = 0; shift < 64; shift += 8) {
    bytes.push_back(static_cast<char>(static_cast<uint64_t>(tenant.size()) >> shift));
  }
  bytes += tenant;
  bytes += cache_salt;
  return security::ToHex(security::Sha256(bytes));
}

absl::Status TenantMismatch() {
  return WithDetails(MakeError(absl::StatusCode::kPermissionDenied, "TENANT_MISMATCH",
                               "tenant: the API key is another tenant's; expected no tenant, or "
                               "that of the key"),
                     "", "tenant", std::nullopt);
}

}  // namespace

absl::StatusOr<Caller> Access::Authenticate(absl::string_view authorization,
                                            absl::string_view worker_secret) const {
  if (keys_ == nullptr) return Caller();
  if (!worker_secret.empty() && worker_secret_ != nullptr &&
      worker_secret_->Check(worker_secret).ok()) {
    return Caller();
  }
  absl::StatusOr<security::ApiKey> key = keys_->Find(authorization);
  if (!key.ok()) return key.status();
  return Caller{std::move(key->tenant), key->admin, key->limits};
}

absl::Status CheckAdmin(const Caller& caller) {
  if (caller.admin) return absl::OkStatus();
  return MakeError(absl::StatusCode::kPermissionDenied, "NOT_ADMIN",
                   "this call is for operators: expected an API key with the word admin");
}

absl::StatusOr<std::string> TenantOf(const Caller& caller, absl::string_view named) {
  if (!caller.tenant || (caller.admin && !named.empty())) return std::string(named);
  if (named.empty() || named == *caller.tenant) return *caller.tenant;
  return TenantMismatch();
}

absl::Status BindToTenant(const Caller& caller, v1::GenerateRequest* request) {
  if (!caller.tenant) return absl::OkStatus();
  if (!request->tenant().empty() && request->tenant() != *caller.tenant) return TenantMismatch();
  request->set_tenant(*caller.tenant);
  request->set_cache_salt(TenantSalt(*caller.tenant, request->cache_salt()));
  return absl::OkStatus();
}

}  // namespace baton::router
