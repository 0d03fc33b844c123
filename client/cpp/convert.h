// Converts the structs of client.h to Protobuf messages and back.
#ifndef BATON_CLIENT_CPP_CONVERT_H_
#define BATON_CLIENT_CPP_CONVERT_H_

#include "absl/status/status.h"
#include "baton/v1/admin.pb.h"
#include "baton/v1/inference.pb.h"
#include "client/cpp/client.h"

namespace baton::client {

v1::Priority ToProto(Priority priority);
v1::GenerateRequest ToProto(const GenerateRequest& request);
FinishReason FromProto(v1::FinishReason reason);
Usage FromProto(const v1::Usage& usage);
Worker FromProto(const v1::WorkerStatus& status);

std::vector<TokenLogprobs> FromProto(
    const google::protobuf::RepeatedPtrField<v1::TokenLogprobs>& logprobs);

// Appends text and tokens to the response's choice, and replaces usage, timings and other totals.
// False, changing nothing, if `completion` has no such choice: the caller must have sized its
// choices.
bool Merge(const v1::GenerateResponse& response, Completion* completion);
Completion FromProto(v1::GenerateOnceResponse response);

// The error of `request`, with the caller's name of its field, that in GenerateRequest, where the
// message has another: "max_tokens" instead of "stop.max_tokens", and the constraint that was given
// instead of "structured_output".
absl::Status InCallersNames(const absl::Status& error, const v1::GenerateRequest& request);

}  // namespace baton::client

#endif  // BATON_CLIENT_CPP_CONVERT_H_
