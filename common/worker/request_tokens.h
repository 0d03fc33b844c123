// The tokens of a request, wherever its sender has put them.
#ifndef BATON_COMMON_WORKER_REQUEST_TOKENS_H_
#define BATON_COMMON_WORKER_REQUEST_TOKENS_H_

#include <google/protobuf/repeated_field.h>

#include <cstdint>

#include "baton/internal/v1/decode.pb.h"
#include "baton/internal/v1/prefill.pb.h"

namespace baton::worker {

// A router uses fixed_tokens where it knows that the worker takes them.
inline const google::protobuf::RepeatedField<int32_t>& TokensOf(
    const internal::v1::DecodeRequest& request) {
  return request.fixed_tokens().empty() ? request.tokens() : request.fixed_tokens();
}
inline const google::protobuf::RepeatedField<int32_t>& TokensOf(
    const internal::v1::PrefillRequest& request) {
  return request.tokens();
}

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_REQUEST_TOKENS_H_
