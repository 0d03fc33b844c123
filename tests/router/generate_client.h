// A client's end of one Generate call, and what tests ask of it.
#ifndef BATON_TESTS_ROUTER_GENERATE_CLIENT_H_
#define BATON_TESTS_ROUTER_GENERATE_CLIENT_H_

#include <gtest/gtest.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/rpc/grpc_status.h"
#include "router/request/response_sink.h"
#include "tests/testing/fake_cluster.h"

namespace baton::testing {

class Call {
 public:
  Call(FakeCluster& cluster, const v1::GenerateRequest& request,
       absl::Duration timeout = absl::InfiniteDuration())
      : Call(cluster.channel(), request, timeout) {}
  Call(const std::shared_ptr<grpc::Channel>& channel, const v1::GenerateRequest& request,
       absl::Duration timeout = absl::InfiniteDuration())
      : stub_(v1::InferenceService::NewStub(channel)) {
    if (timeout != absl::InfiniteDuration()) {
      context_.set_deadline(std::chrono::system_clock::now() + absl::ToChronoNanoseconds(timeout));
    }
    reader_ = stub_->Generate(&context_, request);
  }

  v1::GenerateResponse Next() {
    v1::GenerateResponse response;
    EXPECT_TRUE(reader_->Read(&response));
    return response;
  }
  // Everything up to the end, merged.
  v1::GenerateResponse Rest() {
    v1::GenerateResponse all, response;
    while (reader_->Read(&response)) router::MergeDelta(response, &all);
    return all;
  }
  // The same by choice.
  std::map<int, v1::GenerateResponse> RestByChoice() {
    std::map<int, v1::GenerateResponse> all;
    v1::GenerateResponse response;
    while (reader_->Read(&response)) router::MergeDelta(response, &all[response.choice()]);
    return all;
  }
  absl::Status End() {
    v1::GenerateResponse response;
    EXPECT_FALSE(reader_->Read(&response)) << response.ShortDebugString();
    return FromGrpcStatus(reader_->Finish());
  }
  // Blocks until the server has sent its headers.
  void AwaitHeaders() { reader_->WaitForInitialMetadata(); }
  void Cancel() { context_.TryCancel(); }

 private:
  std::unique_ptr<v1::InferenceService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> reader_;
};

inline v1::GenerateRequest Prompt(const std::string& text) {
  v1::GenerateRequest request;
  request.set_text(text);
  return request;
}

// Answers on all decode workers: the n-th call, whoever gets it, as told.
class Replies {
 public:
  Replies(FakeCluster& cluster, int decode_count, std::function<void(int, DecodeCall)> reply) {
    for (int i = 0; i < decode_count; ++i) {
      cluster.decode(i)->SetReply([this, reply](DecodeCall call) {
        int n;
        {
          absl::MutexLock lock(&mutex_);
          n = static_cast<int>(requests_.size());
          requests_.push_back(call.request);
        }
        reply(n, std::move(call));
      });
    }
  }
  std::vector<internal::v1::DecodeRequest> requests() {
    absl::MutexLock lock(&mutex_);
    return requests_;
  }

 private:
  absl::Mutex mutex_;
  std::vector<internal::v1::DecodeRequest> requests_ ABSL_GUARDED_BY(mutex_);
};

inline const grpc::Status kGone(grpc::StatusCode::UNAVAILABLE, "gone");

}  // namespace baton::testing

#endif  // BATON_TESTS_ROUTER_GENERATE_CLIENT_H_
