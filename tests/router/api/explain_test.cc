// Explain and ListDecisions as an operator calls them.
#include "router/api/explain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "baton/v1/admin.grpc.pb.h"
#include "common/base/error.h"
#include "common/base/rpc/grpc_status.h"
#include "common/kv/prefix_key.h"
#include "tests/testing/fake_cluster.h"

namespace baton::router {
namespace {

using ::baton::testing::DecodeCall;
using ::baton::testing::FakeCluster;
using ::baton::testing::Ids;

constexpr char kPrompt[] = "0123456789abcdef0123456789abcdef!";

class ExplainTest : public ::testing::Test {
 protected:
  ExplainTest() {
    cluster_.decode(0)->SetReply([](DecodeCall call) {
      internal::v1::DecodeResponse response;
      for (int32_t id : Ids("x")) response.add_token_ids(id);
      response.mutable_usage()->set_cached_prompt_tokens(16);
      call.stream->Send(response);
      call.Finish(Ids("y"), internal::v1::DecodeResponse::FINISH_LENGTH);
    });
    const auto keys = kv::PrefixKeys(kv::RootPrefixKey(0xA0DE1, "", ""), Ids(kPrompt), 16);
    cluster_.prefill(1)->TellDelta(1, {keys.begin(), keys.end()}, {});
    warm_ = cluster_.AwaitState([&](const v1::WorkerStatus& w) {
      return w.address() != cluster_.prefill(1)->address() || w.indexed_blocks() == 2;
    });
  }
  absl::Status Explain(const std::string& text, v1::Decision* decision) {
    v1::ExplainRequest request;
    request.mutable_request()->set_text(text);
    request.mutable_request()->set_request_id("asked");
    grpc::ClientContext context;
    v1::ExplainResponse response;
    const grpc::Status status = admin_->Explain(&context, request, &response);
    *decision = response.decision();
    return FromGrpcStatus(status);
  }
  absl::StatusOr<std::vector<v1::Decision>> Decisions(const std::string& id, int max) {
    v1::ListDecisionsRequest request;
    request.set_request_id(id);
    request.set_max_decisions(max);
    grpc::ClientContext context;
    v1::ListDecisionsResponse response;
    const grpc::Status status = admin_->ListDecisions(&context, request, &response);
    if (!status.ok()) return FromGrpcStatus(status);
    return std::vector<v1::Decision>(response.decisions().begin(), response.decisions().end());
  }
  void Generate(const std::string& id) {
    v1::GenerateOnceRequest request;
    request.mutable_request()->set_text(kPrompt);
    request.mutable_request()->set_request_id(id);
    grpc::ClientContext context;
    v1::GenerateOnceResponse response;
    const grpc::Status status = v1::InferenceService::NewStub(cluster_.channel())
                                    ->GenerateOnce(&context, request, &response);
    ASSERT_TRUE(status.ok()) << status.error_message();
  }

  FakeCluster cluster_{2, 1};
  std::unique_ptr<v1::AdminService::Stub> admin_ = v1::AdminService::NewStub(cluster_.channel());
  bool warm_ = false;
};

TEST_F(ExplainTest, TellsWhereARequestWouldGoAndSendsNothing) {
  ASSERT_TRUE(warm_);
  v1::Decision decision;
  ASSERT_TRUE(Explain(kPrompt, &decision).ok());
  EXPECT_EQ(decision.request_id(), "asked");
  EXPECT_EQ(decision.prompt_tokens(), 33);
  EXPECT_EQ(decision.computes_address(), cluster_.prefill(1)->address());
  EXPECT_EQ(decision.answers_address(), cluster_.decode(0)->address());
  EXPECT_EQ(decision.predicted_cached_tokens(), 32);
  EXPECT_EQ(decision.prefill_candidates(), 2);
  EXPECT_GT(decision.time_unix_ms(), 0);
  EXPECT_FALSE(decision.decision().empty());
  EXPECT_EQ(cluster_.decode(0)->decode_count(), 0);
  EXPECT_TRUE(Decisions("", 0)->empty()) << "an answer to a question is no decision";
}

TEST_F(ExplainTest, FailsAsTheRequestWould) {
  v1::Decision decision;
  EXPECT_EQ(ErrorReason(Explain("", &decision)), "EMPTY_PROMPT");
  EXPECT_EQ(ErrorReason(Explain(std::string(500, 'x'), &decision)), "PROMPT_TOO_LONG");
}

TEST_F(ExplainTest, DecisionsAreKeptWithWhatCameOfThem) {
  ASSERT_TRUE(warm_);
  Generate("one");
  Generate("two");
  const auto all = Decisions("", 0);
  ASSERT_TRUE(all.ok());
  ASSERT_EQ(all->size(), 2u);
  EXPECT_EQ((*all)[0].request_id(), "two");
  const auto one = Decisions("one", 0);
  ASSERT_EQ(one->size(), 1u);
  EXPECT_EQ((*one)[0].predicted_cached_tokens(), 32);
  EXPECT_EQ((*one)[0].actual_cached_tokens(), 16) << "the worker knows better";
  EXPECT_GT((*one)[0].actual_ttft_seconds(), 0);
  EXPECT_EQ(Decisions("", 1)->size(), 1u);
  EXPECT_EQ(ErrorReason(Decisions("", -1).status()), "OUT_OF_RANGE");
  EXPECT_EQ(ErrorReason(Decisions("", 1025).status()), "OUT_OF_RANGE");
}

}  // namespace
}  // namespace baton::router
