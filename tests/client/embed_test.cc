// The SDK's embedding call, through a real router to scripted prefill workers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

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

TEST_F(EmbedClientTest, SpecialTokensAreTheCallersChoice) {
  cluster_.prefill(0)->SetScoreReply([](ScoreItemsCall call) { call.ScoreAll(); });
  EmbedRequest request;
  const auto tokens = [&](std::optional<bool> add) {
    request.add_special_tokens = add;
    const auto made = client_->Embed(request, {"ab"});
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? made->embeddings.at(0).prompt_tokens : -1;
  };
  EXPECT_EQ(tokens(false), 2);
  EXPECT_EQ(tokens(true), tokens(std::nullopt));
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
