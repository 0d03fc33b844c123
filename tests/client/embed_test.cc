// The SDK's embedding call, through a real router to scripted prefill workers.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "baton/v1/inference.grpc.pb.h"
#include "client/cpp/client.h"
#include "common/base/error.h"
#include "tests/testing/fake_cluster.h"

namespace baton::client {
namespace {

using ::baton::testing::FakeCluster;
using ::baton::testing::ScoreItemsCall;
using ::testing::ElementsAre;
using ::testing::FloatNear;

class EmbedClientTest : public ::testing::Test {
 protected:
  FakeCluster cluster_;
  std::unique_ptr<Client> client_ = *Client::Create(cluster_.server().address());
};

// The fake worker's state is (3, 4, 0, 12), of length 13.
TEST_F(EmbedClientTest, EachInputHasItsVector) {
  internal::v1::ScoreItemsRequest sent;
  cluster_.prefill(0)->SetScoreReply([&sent](ScoreItemsCall call) {
    sent = call.request;
    call.ScoreAll();
  });
  EmbedRequest request;
  request.priority = Priority::kLow;
  request.tenant = "team";
  request.request_id = "vectors";
  request.cache_salt = "salt";
  auto made = client_->Embed(request, {"ab", std::vector<int32_t>{'c', 'd', 'e'}});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_TRUE(sent.embed());
  EXPECT_EQ(sent.priority(), v1::PRIORITY_LOW);
  EXPECT_EQ(sent.tenant(), "team");
  EXPECT_EQ(sent.cache_salt(), "salt");
  EXPECT_EQ(made->request_id, "vectors");
  ASSERT_EQ(made->embeddings.size(), 2u);
  for (const Embedding& embedding : made->embeddings) {
    EXPECT_THAT(embedding.values,
                ElementsAre(FloatNear(3.0f / 13, 1e-6f), FloatNear(4.0f / 13, 1e-6f), 0,
                            FloatNear(12.0f / 13, 1e-6f)));
  }
  EXPECT_EQ(made->embeddings[1].prompt_tokens, 3);
  EXPECT_EQ(made->embeddings[1].cached_prompt_tokens, 0);

  request.dimensions = 2;
  made = client_->Embed(request, {"ab"});
  ASSERT_TRUE(made.ok()) << made.status();
  EXPECT_THAT(made->embeddings.at(0).values,
              ElementsAre(FloatNear(0.6f, 1e-6f), FloatNear(0.8f, 1e-6f)));
}

// A router that keeps what it is asked.
class AskedRouter final : public v1::InferenceService::Service {
 public:
  AskedRouter() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  v1::EmbedRequest Asked() {
    absl::MutexLock lock(&mutex_);
    return asked_;
  }

 private:
  grpc::Status Embed(grpc::ServerContext*, const v1::EmbedRequest* request,
                     v1::EmbedResponse*) override {
    absl::MutexLock lock(&mutex_);
    asked_ = *request;
    return grpc::Status::OK;
  }

  absl::Mutex mutex_;
  v1::EmbedRequest asked_ ABSL_GUARDED_BY(mutex_);
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST(EmbedMessageTest, SpecialTokensAreTheCallersChoice) {
  AskedRouter router;
  const auto client = *Client::Create(router.address());
  EmbedRequest request;
  for (const std::optional<bool> add : {std::optional<bool>(), {false}, {true}}) {
    request.add_special_tokens = add;
    const auto made = client->Embed(request, {"ab"});
    ASSERT_TRUE(made.ok()) << made.status();
    const v1::EmbedRequest asked = router.Asked();
    EXPECT_EQ(asked.inputs(0).text(), "ab");
    EXPECT_EQ(
        asked.has_add_special_tokens() ? std::optional(asked.add_special_tokens()) : std::nullopt,
        add);
  }
}

TEST_F(EmbedClientTest, ARefusedCallHasItsReasonAndId) {
  EmbedRequest request;
  absl::Status status = client_->Embed(request, {}).status();
  EXPECT_EQ(ErrorReason(status), "OUT_OF_RANGE") << status;
  EXPECT_EQ(ErrorField(status), "inputs");
  EXPECT_NE(ErrorRequestId(status), "");
  status = client_->Embed(request, {""}).status();
  EXPECT_EQ(ErrorReason(status), "EMPTY_PROMPT") << status;
  request.dimensions = 5;
  status = client_->Embed(request, {"a"}).status();
  EXPECT_EQ(ErrorField(status), "dimensions") << status;
}

}  // namespace
}  // namespace baton::client
