// The worker that may have KV of a prompt cached, as requests name it.
#ifndef BATON_COMMON_WORKER_KV_HINT_H_
#define BATON_COMMON_WORKER_KV_HINT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "baton/internal/v1/decode.pb.h"
#include "common/base/error.h"
#include "common/base/request_limits.h"
#include "common/base/status_macros.h"
#include "common/worker/request_tokens.h"

namespace baton::worker {

inline constexpr size_t kMaxWorkerRefBytes = 512;  // of its address, and of its id

// A router's hint, of a checked request.
struct KvHint {
  internal::v1::WorkerRef holder;  // its address is empty: there is no hint
  int tokens = 0;                  // of the prompt, that the holder has cached
};

// INVALID_ARGUMENT, naming the field.
inline absl::Status CheckWorkerRef(absl::string_view field, const internal::v1::WorkerRef& worker) {
  if (worker.address().empty() || worker.address().size() > kMaxWorkerRefBytes) {
    return OutOfRange(absl::StrCat(field, ".address"),
                      absl::StrCat(worker.address().size(), " bytes"),
                      absl::StrCat("1 to ", kMaxWorkerRefBytes, " expected"));
  }
  if (worker.worker_id().size() > kMaxWorkerRefBytes) {
    return OutOfRange(absl::StrCat(field, ".worker_id"),
                      absl::StrCat(worker.worker_id().size(), " bytes"),
                      absl::StrCat("at most ", kMaxWorkerRefBytes, " expected"));
  }
  return absl::OkStatus();
}

// Checks kv_holder and kv_holder_tokens of a DecodeRequest or PrefillRequest, likewise.
template <class Request>
absl::Status CheckKvHint(const Request& request) {
  if (request.has_kv_holder()) {
    BATON_RETURN_IF_ERROR(CheckWorkerRef("kv_holder", request.kv_holder()));
  }
  return CheckRange("kv_holder_tokens", request.kv_holder_tokens(), 0, TokensOf(request).size());
}

// REQUIRES: CheckKvHint is OK.
template <class Request>
KvHint ToKvHint(const Request& request) {
  return {request.kv_holder(), request.kv_holder_tokens()};
}

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_KV_HINT_H_
