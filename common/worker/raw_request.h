// Parses the request of a call that is registered raw because its responses are.
#ifndef BATON_COMMON_WORKER_RAW_REQUEST_H_
#define BATON_COMMON_WORKER_RAW_REQUEST_H_

#include <grpcpp/impl/codegen/proto_utils.h>
#include <grpcpp/support/byte_buffer.h>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"

namespace baton::worker {

// CANCELLED if the call ended before its request came; DATA_LOSS (MALFORMED_REQUEST) for bytes that
// are no `Request`: they were damaged on the way.
template <class Request>
absl::StatusOr<Request> ParseRequest(const grpc::ByteBuffer& bytes) {
  if (!bytes.Valid()) {
    return MakeError(absl::StatusCode::kCancelled, "CANCELLED",
                     "the call ended before its request");
  }
  Request request;
  grpc::ByteBuffer copy(bytes);  // a reference: deserializing empties its argument
  if (!grpc::SerializationTraits<Request>::Deserialize(&copy, &request).ok()) {
    return MakeError(absl::StatusCode::kDataLoss, "MALFORMED_REQUEST",
                     absl::StrCat("the message is no ", Request::descriptor()->name()));
  }
  return request;
}

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_RAW_REQUEST_H_
