// Calls of any gRPC method, for tests that try all of them.
#ifndef BATON_TESTS_TESTING_GENERIC_CALL_H_
#define BATON_TESTS_TESTING_GENERIC_CALL_H_

#include <google/protobuf/descriptor.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/rpc/grpc_status.h"

namespace baton::testing {

// The end of a call with an empty request; DEADLINE_EXCEEDED after a minute.
inline absl::Status CallOnce(const std::shared_ptr<grpc::Channel>& channel,
                             const std::string& method) {
  grpc::GenericStub stub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  grpc::CompletionQueue queue;
  const auto stream = stub.PrepareCall(&context, method, &queue);
  const auto await = [&queue] {
    void* tag;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  stream->StartCall(nullptr);
  await();
  stream->WriteLast(grpc::ByteBuffer(nullptr, 0), grpc::WriteOptions(), nullptr);
  await();
  grpc::ByteBuffer answer;
  do {
    stream->Read(&answer, nullptr);
  } while (await());
  grpc::Status status;
  stream->Finish(&status, nullptr);
  await();
  return FromGrpcStatus(status);
}

// "/package.Service/Method" for every method that a file describes.
inline std::vector<std::string> MethodsOf(const google::protobuf::FileDescriptor* file) {
  std::vector<std::string> methods;
  for (int s = 0; s < file->service_count(); ++s) {
    for (int m = 0; m < file->service(s)->method_count(); ++m) {
      methods.push_back(absl::StrCat("/", file->service(s)->full_name(), "/",
                                     file->service(s)->method(m)->name()));
    }
  }
  return methods;
}

}  // namespace baton::testing

#endif  // BATON_TESTS_TESTING_GENERIC_CALL_H_
