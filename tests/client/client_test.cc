#include "client/cpp/client.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "common/base/error.h"
#include "tests/testing/fake_cluster.h"

namespace baton::client {
namespace {

using ::baton::testing::DecodeCall;
using ::baton::testing::FakeCluster;
using ::baton::testing::Ids;
using ::baton::testing::kEndToken;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ClientTest : public ::testing::Test {
 protected:
  GenerateRequest Request() {
    GenerateRequest request;
    request.text = "hi";
    return request;
  }
  FakeCluster cluster_;
  std::unique_ptr<Client> client_ = *Client::Create(cluster_.server().address());
};

TEST_F(ClientTest, StreamsAnAnswer) {
  GenerateRequest request = Request();
  request.return_token_ids = true;
  request.sampling.seed = 5;
  request.max_tokens = 9;
  request.stop = {"never"};
  auto stream = client_->Generate(request);
  DecodeCall decode = cluster_.decode(0)->AwaitDecode();
  EXPECT_EQ(decode.request.max_tokens(), 9);
  decode.SendTokens(Ids("a"));
  auto first = stream->Next();
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->text, "a");
  EXPECT_EQ(first->usage.prompt_tokens, 2);
  decode.Finish({'b', kEndToken}, internal::v1::DecodeResponse::FINISH_STOP);
  while (stream->Next()) {
  }
  EXPECT_TRUE(stream->status().ok()) << stream->status();
  const Completion& all = stream->completion();
  EXPECT_EQ(all.text, "ab");
  EXPECT_THAT(all.token_ids, ElementsAre('a', 'b', kEndToken));
  EXPECT_STREQ(FinishReasonName(all.finish_reason), "stop");
  EXPECT_EQ(all.seed, 5u);
  EXPECT_EQ(all.usage.generated_tokens, 3);
  EXPECT_FALSE(all.request_id.empty());
}

TEST_F(ClientTest, OnceTokenizeAndLists) {
  cluster_.decode(0)->SetReply([](DecodeCall decode) {
    decode.Finish(Ids("ok"), internal::v1::DecodeResponse::FINISH_LENGTH);
  });
  GenerateRequest request;
  request.token_ids = {'a', 'b', 'c'};
  auto once = client_->GenerateOnce(request);
  ASSERT_TRUE(once.ok()) << once.status();
  EXPECT_EQ(once->text, "ok");
  EXPECT_EQ(once->usage.prompt_tokens, 3);
  EXPECT_EQ(once->finish_reason, FinishReason::kLength);
  EXPECT_THAT(*client_->Tokenize("ab"), ElementsAre('a', 'b'));
  EXPECT_EQ(*client_->Detokenize({'a', kEndToken}), "a");
  EXPECT_EQ(*client_->Detokenize({'a', kEndToken}, false), "a<|end|>");
  auto models = client_->ListModels();
  ASSERT_TRUE(models.ok());
  EXPECT_EQ(models->at(0).id, "tiny");
  EXPECT_EQ(models->at(0).vocab_size, baton::testing::kTinyVocabSize);
  auto workers = client_->ListWorkers();
  ASSERT_TRUE(workers.ok());
  EXPECT_EQ(workers->at(0).role, "prefill");
  EXPECT_EQ(workers->at(1).role, "decode");
  EXPECT_EQ(workers->at(1).state, "ready");
}

TEST_F(ClientTest, ErrorsCarryReasonAndField) {
  GenerateRequest request = Request();
  request.sampling.temperature = 3;
  const absl::Status error = client_->GenerateOnce(request).status();
  EXPECT_EQ(error.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorReason(error), "OUT_OF_RANGE");
  EXPECT_EQ(ErrorField(error), "sampling.temperature");
  auto stream = client_->Generate(request);
  EXPECT_FALSE(stream->Next().has_value());
  EXPECT_EQ(ErrorField(stream->status()), "sampling.temperature");
}

TEST_F(ClientTest, CancelFromAnotherThreadAndByDestruction) {
  auto stream = client_->Generate(Request());
  DecodeCall decode = cluster_.decode(0)->AwaitDecode();
  std::thread other([&] { stream->Cancel(); });
  EXPECT_FALSE(stream->Next().has_value());
  other.join();
  EXPECT_EQ(stream->status().code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(decode.stream->AwaitCancelled());

  auto dropped = client_->Generate(Request());
  DecodeCall second = cluster_.decode(0)->AwaitDecode();
  dropped.reset();
  EXPECT_TRUE(second.stream->AwaitCancelled());
}

TEST(ClientWithoutRouterTest, SaysWhereItTriedToGo) {
  EXPECT_EQ(Client::Create("nowhere").status().code(), absl::StatusCode::kInvalidArgument);
  auto client = Client::Create("127.0.0.1:1");
  ASSERT_TRUE(client.ok());
  const absl::Status error = (*client)->ListModels().status();
  EXPECT_EQ(error.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(error.message()), HasSubstr("router at 127.0.0.1:1"));
}

}  // namespace
}  // namespace baton::client
