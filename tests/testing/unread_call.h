// A gRPC call of any method whose answer is not read before the test reads it.
#ifndef BATON_TESTS_TESTING_UNREAD_CALL_H_
#define BATON_TESTS_TESTING_UNREAD_CALL_H_

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "common/base/rpc/grpc_status.h"

namespace baton::testing {

// The connection has a small window: what does not fit into it waits in the server. One thread uses
// the call.
class UnreadCall {
 public:
  // `method`: "/package.Service/Method". Returns when the request is sent.
  UnreadCall(const std::string& address, const std::string& method,
             const google::protobuf::Message& request)
      : stub_(NarrowChannel(address)), call_(stub_.PrepareCall(&context_, method, &queue_)) {
    call_->StartCall(nullptr);
    Await();
    grpc::Slice bytes(request.SerializeAsString());
    call_->WriteLast(grpc::ByteBuffer(&bytes, 1), grpc::WriteOptions(), nullptr);
    Await();
  }
  ~UnreadCall() {
    context_.TryCancel();
    queue_.Shutdown();
    void* tag;
    bool ok;
    while (queue_.Next(&tag, &ok)) {
    }
  }
  UnreadCall(const UnreadCall&) = delete;
  UnreadCall& operator=(const UnreadCall&) = delete;

  // The next message; false at the end.
  bool Read(grpc::ByteBuffer* message) {
    call_->Read(message, nullptr);
    return Await();
  }
  // Reads what is left, and returns the call's status. Call it once.
  absl::Status Rest() {
    grpc::ByteBuffer message;
    while (Read(&message)) {
    }
    grpc::Status status;
    call_->Finish(&status, nullptr);
    Await();
    return FromGrpcStatus(status);
  }

 private:
  static std::shared_ptr<grpc::Channel> NarrowChannel(const std::string& address) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 4096);
    return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
  }
  bool Await() {
    void* tag;
    bool ok = false;
    EXPECT_TRUE(queue_.Next(&tag, &ok));
    return ok;
  }

  grpc::ClientContext context_;
  grpc::CompletionQueue queue_;
  grpc::GenericStub stub_;
  std::unique_ptr<grpc::GenericClientAsyncReaderWriter> call_;
};

}  // namespace baton::testing

#endif  // BATON_TESTS_TESTING_UNREAD_CALL_H_
