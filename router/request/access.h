// Who makes a call, and what follows from it: the tenant, its namespace in the prefix caches, the
// right to call admin RPCs.
#ifndef BATON_ROUTER_REQUEST_ACCESS_H_
#define BATON_ROUTER_REQUEST_ACCESS_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "baton/v1/inference.pb.h"
#include "common/base/trace_context.h"
#include "common/security/api_keys.h"
#include "common/security/shared_secret.h"
#include "router/request/request_bytes.h"

namespace baton::router {

struct Caller {
  // The tenant of the caller's API key. Without one the router has no keys, and a request names its
  // tenant itself.
  std::optional<std::string> tenant;
  bool admin = true;
  security::KeyLimits limits;
  // The fields from here on belong to the call, not to the key: its id, in case it is refused
  // before its request is read; the trace that it is in; whether its endpoint is for chats; the
  // length of an answer whose request sets none (0: as its class says).
  std::string request_id = {};
  TraceContext trace = {};
  bool chat = false;
  int default_max_tokens = 0;
  // Bytes of the call's request, shared by the calls of one request's prompts; null: they do not
  // count.
  std::shared_ptr<RequestBytes::Share> held = nullptr;
};

// Thread-safe.
class Access {
 public:
  // Without keys, every caller may do everything. `worker_secret`, which may be null, must outlive
  // it: with keys, a caller that has it may do everything too, as it might at the workers
  // themselves. `baton up` asks for the workers' states so.
  explicit Access(std::unique_ptr<security::ApiKeys> keys = nullptr,
                  security::SharedSecret* worker_secret = nullptr)
      : keys_(std::move(keys)), worker_secret_(worker_secret) {}

  bool has_keys() const { return keys_ != nullptr; }

  // From the call's headers `authorization` and kWorkerSecretHeader. UNAUTHENTICATED,
  // INVALID_API_KEY, without a valid key.
  absl::StatusOr<Caller> Authenticate(absl::string_view authorization,
                                      absl::string_view worker_secret) const;

 private:
  const std::unique_ptr<security::ApiKeys> keys_;
  security::SharedSecret* const worker_secret_;
};

// PERMISSION_DENIED, NOT_ADMIN.
absl::Status CheckAdmin(const Caller& caller);

// The tenant that a call is about, if it names `named`, which may be empty: the caller's, or
// without one the named one. An operator may name any. PERMISSION_DENIED, TENANT_MISMATCH,
// otherwise.
absl::StatusOr<std::string> TenantOf(const Caller& caller, absl::string_view named);

// Sets the request's tenant to the caller's, and its cache_salt to a hash of tenant and cache_salt:
// so a salt divides the tenant's namespace only, and no salt leads into that of another tenant.
// PERMISSION_DENIED, TENANT_MISMATCH, if the request names another tenant. Nothing for a caller
// without a tenant. REQUIRES: the request has passed CheckRequest.
absl::Status BindToTenant(const Caller& caller, v1::GenerateRequest* request);

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_ACCESS_H_
