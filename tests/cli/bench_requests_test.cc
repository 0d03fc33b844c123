// What the benchmarks ask a router for, as a scripted one sees it.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/inference.grpc.pb.h"
#include "cli/bench_agent.h"
#include "common/base/exit_code.h"

namespace baton::cli {
namespace {

// Every answer is as long as was asked for.
class ScriptedRouter : public v1::InferenceService::Service {
 public:
  ScriptedRouter() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  std::vector<v1::GenerateRequest> generated() {
    absl::MutexLock lock(&mutex_);
    return generated_;
  }

  grpc::Status ListModels(grpc::ServerContext*, const v1::ListModelsRequest*,
                          v1::ListModelsResponse* response) override {
    response->add_models()->set_id("scripted");
    response->mutable_models(0)->set_vocab_size(100);
    return grpc::Status::OK;
  }

  grpc::Status Generate(grpc::ServerContext*, const v1::GenerateRequest* request,
                        grpc::ServerWriter<v1::GenerateResponse>* stream) override {
    {
      absl::MutexLock lock(&mutex_);
      generated_.push_back(*request);
    }
    v1::GenerateResponse response;
    for (int i = 0; i < request->stop().max_tokens(); ++i) response.add_token_ids(7);
    response.mutable_usage()->set_prompt_tokens(request->token_ids().ids_size());
    response.mutable_usage()->set_generated_tokens(request->stop().max_tokens());
    response.set_finish_reason(v1::FINISH_REASON_LENGTH);
    stream->Write(response);
    return grpc::Status::OK;
  }

 private:
  absl::Mutex mutex_;
  std::vector<v1::GenerateRequest> generated_ ABSL_GUARDED_BY(mutex_);
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;  // the last member: its threads use the others
};

TEST(BenchRequestsTest, AnAgentAsksForTheRetentionOfEachPass) {
  ScriptedRouter router;
  AgentOptions options;
  options.target.address = router.address();
  options.conversations.conversations = 2;
  options.conversations.turns = 2;
  options.conversations.tools_tokens = 30;
  options.conversations.think_s = 0;
  options.retentions = {"off", "tools", "prompts"};
  options.retention_priority = 9;
  options.retention_ttl_ms = 1234;
  options.output.json = true;
  std::ostringstream out, err;
  ASSERT_EQ(RunAgent(options, out, err), kExitOk) << err.str();
  const auto results = nlohmann::json::parse(out.str())["results"];
  ASSERT_EQ(results.size(), 3u);
  EXPECT_EQ(results[1]["retention"], "tools");
  EXPECT_EQ(results[1]["prompt_tokens"], results[0]["prompt_tokens"]);
  const std::vector<v1::GenerateRequest> sent = router.generated();
  ASSERT_EQ(sent.size(), 12u);
  for (size_t i = 0; i < sent.size(); ++i) {
    const v1::GenerateRequest& request = sent[i];
    // Those of a pass share a salt that the other passes do not have.
    EXPECT_EQ(request.cache_salt() == sent.front().cache_salt(), i < 4);
    EXPECT_EQ(request.cache_salt() == sent.back().cache_salt(), i >= 8);
    ASSERT_EQ(request.has_retention(), i >= 4);
    if (i < 4) continue;
    EXPECT_EQ(request.retention().priority(), 9);
    EXPECT_EQ(request.retention().ttl_ms(), 1234);
    EXPECT_EQ(request.retention().has_until_token(), i < 8);
    EXPECT_EQ(request.retention().until_token(), i < 8 ? 30 : 0);
  }
}

}  // namespace
}  // namespace baton::cli
