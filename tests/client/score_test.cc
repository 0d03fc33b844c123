// The SDK's scoring calls, through a real router to scripted prefill workers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "client/cpp/client.h"
#include "common/base/error.h"
#include "tests/testing/fake_cluster.h"

namespace baton::client {
namespace {

using ::baton::testing::FakeCluster;
using ::baton::testing::ScoreItemsCall;
using ::testing::ElementsAre;

class ScoreClientTest : public ::testing::Test {
 protected:
  ScoreRequest Judge() {
    ScoreRequest request;
    request.prefix = "rubric: ";
    request.labels = {" yes", " no"};
    request.priority = Priority::kLow;
    request.tenant = "team";
    request.request_id = "judge";
    request.cache_salt = "salt";
    return request;
  }

  FakeCluster cluster_;
  std::unique_ptr<Client> client_ = *Client::Create(cluster_.server().address());
};

TEST_F(ScoreClientTest, ItemsAreScoredOrHaveAnError) {
  internal::v1::ScoreItemsRequest sent;
  cluster_.prefill(0)->SetScoreReply([&sent](ScoreItemsCall call) {
    sent = call.request;
    call.ScoreAll();
  });
  const auto scores = client_->Score(Judge(), {"a", std::string(200, 'x'), "b"});
  ASSERT_TRUE(scores.ok()) << scores.status();
  EXPECT_EQ(sent.priority(), v1::PRIORITY_LOW);
  EXPECT_EQ(sent.tenant(), "team");
  EXPECT_EQ(sent.cache_salt(), "salt");
  EXPECT_EQ(scores->request_id, "judge");
  ASSERT_EQ(scores->items.size(), 3u);
  const ItemScore& first = scores->items[0];
  EXPECT_TRUE(first.status.ok()) << first.status;
  ASSERT_EQ(first.labels.size(), 2u);
  EXPECT_EQ(first.labels[0].logprob, -4);
  EXPECT_THAT(first.labels[1].token_logprobs, ElementsAre(-1, -1, -1));
  EXPECT_EQ(first.labels[1].token_ids.size(), 3u);
  EXPECT_NEAR(first.probability.value(), 1 / (1 + std::exp(1.0)), 1e-12);
  EXPECT_EQ(first.prompt_tokens, 9);
  EXPECT_EQ(ErrorReason(scores->items[1].status), "PROMPT_TOO_LONG");
  EXPECT_TRUE(absl::IsInvalidArgument(scores->items[1].status));
  EXPECT_EQ(scores->usage.items, 3);
  EXPECT_EQ(scores->usage.failed_items, 1);
  EXPECT_EQ(scores->usage.prompt_tokens, 18);
}

TEST_F(ScoreClientTest, ARefusedCallHasItsReason) {
  ScoreRequest request = Judge();
  request.labels = {" no", " no"};
  EXPECT_EQ(ErrorReason(client_->Score(request, std::vector<std::string>{"a"}).status()),
            "DUPLICATE_LABEL");
  const auto stream = client_->Score(request, /*in_order=*/true);
  EXPECT_FALSE(stream->Next().has_value());
  EXPECT_EQ(ErrorReason(stream->status()), "DUPLICATE_LABEL") << stream->status();
  EXPECT_FALSE(stream->Next().has_value()) << "it has ended";
}

TEST_F(ScoreClientTest, AStreamGivesResultsWhileItTakesItems) {
  const auto stream = client_->Score(Judge(), /*in_order=*/true);
  for (uint64_t id = 5; id < 8; ++id) {
    ASSERT_TRUE(stream->Send({{id, absl::StrCat("item ", id)}}));
    const auto item = stream->Next();  // before the next one is sent
    ASSERT_TRUE(item.has_value()) << stream->status();
    EXPECT_EQ(item->id, id);
  }
  stream->EndItems();
  EXPECT_FALSE(stream->Next().has_value());
  EXPECT_TRUE(stream->status().ok()) << stream->status();
  EXPECT_EQ(stream->usage().items, 3);
}

TEST_F(ScoreClientTest, ACancelEndsTheWorkersStream) {
  absl::Notification asked;
  std::shared_ptr<testing::ScriptedStream<internal::v1::ScoredItem>> worker;
  cluster_.prefill(0)->SetScoreReply([&](ScoreItemsCall call) {
    worker = call.stream;
    asked.Notify();
  });
  const auto stream = client_->Score(Judge(), /*in_order=*/true);
  ASSERT_TRUE(stream->Send({{0, "item"}}));
  asked.WaitForNotification();
  stream->Cancel();
  EXPECT_FALSE(stream->Next().has_value());
  EXPECT_TRUE(absl::IsCancelled(stream->status())) << stream->status();
  EXPECT_TRUE(worker->AwaitCancelled());
}

}  // namespace
}  // namespace baton::client
