// What the requests of a tenant may ask for, what the router fills in, and which workers serve
// them: the flags of the router, and a file of classes that is read again when it changes.
//
// API keys (common/security) say who calls, and how many requests a tenant may send; a class says
// how large and how urgent each request may be.
#ifndef BATON_ROUTER_REQUEST_REQUEST_CLASS_H_
#define BATON_ROUTER_REQUEST_REQUEST_CLASS_H_

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "baton/v1/inference.pb.h"
#include "common/base/clock.h"
#include "common/security/reloaded_file.h"

namespace baton::router {

struct Options;
struct RouterParts;

// Numbers that are 0 set nothing.
struct RequestClass {
  int max_context_tokens = 0;  // of prompt and answer together; the model's context binds, too
  int max_output_tokens = 0;   // of each choice; a request for more is refused
  int default_max_tokens = 0;  // of a request that sets none
  v1::Priority default_priority = v1::PRIORITY_UNSPECIFIED;
  v1::Priority max_priority = v1::PRIORITY_HIGH;
  absl::Duration ttft_slo;         // requests that would miss it are refused, as by --ttft-slo-ms
  absl::Duration inter_token_slo;  // for the mean time between tokens; counted, not enforced
  std::string pool;                // empty: workers of no pool
  bool spill = true;               // without room in the pool, other workers serve the request
};

// By tenant. `fallback` is that of all other tenants.
struct ClassTable {
  absl::flat_hash_map<std::string, std::shared_ptr<const RequestClass>> tenants;
  std::shared_ptr<const RequestClass> fallback;
};

inline constexpr size_t kMaxClassFileBytes = 4 << 20;
inline constexpr size_t kMaxClasses = 1'000;

// The class of all tenants of a router without a file of classes.
RequestClass ClassOfFlags(const Options& options);

// JSON: {"classes": {NAME: {FIELD: VALUE, ...}}, "tenants": {TENANT: NAME}, "default": NAME}; all
// three may be absent. docs/policy.md lists the fields. Fields that a class lacks are those of
// `flags`; of two limits for the output, the lower one holds. INVALID_ARGUMENT, BAD_CLASSES, naming
// `file` and the line or the field.
absl::StatusOr<ClassTable> ParseClasses(absl::string_view text, absl::string_view file,
                                        const RequestClass& flags);

// Thread-safe.
class RequestClasses {
 public:
  // INVALID_ARGUMENT if the file cannot be read or parsed. `clock` must outlive it.
  static absl::StatusOr<std::unique_ptr<RequestClasses>> Load(const std::string& path,
                                                              RequestClass flags,
                                                              const Clock& clock);

  // From now on, called for each change that leaves the file unusable, under the lock. Before the
  // first call of Of.
  void SetOnBadFile(std::function<void()> on_bad_file) {
    absl::MutexLock lock(&mutex_);
    on_bad_file_ = std::move(on_bad_file);
  }

  // Looks at the file at most once a second. A file that turns bad is logged, and the classes of
  // the last good one stay. Never null.
  std::shared_ptr<const RequestClass> Of(absl::string_view tenant);

 private:
  RequestClasses(const std::string& path, RequestClass flags, const Clock& clock)
      : flags_(std::move(flags)), file_(path, kMaxClassFileBytes, "BAD_CLASSES", clock) {}
  // Reads the file if it has changed, and returns what is wrong with it.
  absl::Status Read() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const RequestClass flags_;
  absl::Mutex mutex_;
  security::ReloadedFile file_ ABSL_GUARDED_BY(mutex_);
  ClassTable table_ ABSL_GUARDED_BY(mutex_);
  std::function<void()> on_bad_file_ ABSL_GUARDED_BY(mutex_);
};

RequestClass ClassOf(const RouterParts& parts, absl::string_view tenant);

// Fills in the priority. INVALID_ARGUMENT, PRIORITY_LIMIT or OUTPUT_LIMIT, if the request asks for
// more than the class allows.
absl::Status ApplyClass(const RequestClass& request_class, v1::GenerateRequest* request);

// Where a prompt of so many tokens goes: the class' pool, else that of long prompts.
std::string PoolFor(const RequestClass& request_class, const Options& options, int prompt_tokens);

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_REQUEST_CLASS_H_
