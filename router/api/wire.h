// Messages to and from gRPC's byte buffers. Baton parses requests itself, because gRPC answers one
// that does not parse, such as one with text that is not UTF-8, with an empty UNIMPLEMENTED.
#ifndef BATON_ROUTER_API_WIRE_H_
#define BATON_ROUTER_API_WIRE_H_

#include <google/protobuf/message.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>

#include <functional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "router/request/router_parts.h"

namespace baton::router {

// INVALID_ARGUMENT if the bytes are not a message of this type; names the field whose text is not
// UTF-8.
absl::Status ParseRequest(const grpc::ByteBuffer& bytes, google::protobuf::Message* message);

grpc::ByteBuffer ToBytes(const google::protobuf::Message& message);

// Both are for the sink of a call. UnreadAnswers::Answer ends the call with CutBehind; a write may
// make no progress for as long as StallLimit.
std::function<void()> CutBehind(grpc::CallbackServerContext* context, const RouterParts& parts);
absl::Duration StallLimit(const RouterParts& parts);

}  // namespace baton::router

#endif  // BATON_ROUTER_API_WIRE_H_
