#include "client/cpp/client.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <grpcpp/server_posix.h>
#include <gtest/gtest.h>

#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/rpc/channel.h"
#include "common/security/api_keys.h"
#include "tests/testing/fake_cluster.h"
#include "tests/testing/listening_socket.h"
#include "tests/testing/model_dir.h"

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

TEST(ClientAccessTest, SendsItsApiKey) {
  baton::testing::ModelDir dir;
  const security::NewKey key = *security::MakeApiKey("a", /*admin=*/true);
  dir.Write("keys", key.line + "\n");
  ChannelSecurity security;
  security.headers = [&] { return CallHeaders{{"authorization", "Bearer " + key.key}}; };
  FakeCluster cluster(
      1, 1, [&](router::Options* o) { o->api_keys = dir.PathOf("keys"); }, Clock::Real(), security);
  const std::string& address = cluster.server().address();
  ClientOptions options;
  EXPECT_TRUE(absl::IsUnauthenticated((*Client::Create(address, options))->ListModels().status()));
  options.api_key = key.key;
  const auto client = *Client::Create(address, options);
  EXPECT_TRUE(client->ListModels().ok());
  EXPECT_TRUE(client->ListWorkers().ok());
  GenerateRequest request;
  request.text = "hi";
  auto stream = client->Generate(request);
  DecodeCall decode = cluster.decode(0)->AwaitDecode();
  EXPECT_EQ(decode.request.tenant(), "a");
  decode.Finish({'b', kEndToken}, internal::v1::DecodeResponse::FINISH_STOP);
  while (stream->Next()) {
  }
  EXPECT_TRUE(stream->status().ok()) << stream->status();
}

TEST(ClientAccessTest, AnOptionThatCannotBeUsedIsAStatus) {
  ClientOptions options;
  options.tls.cert = "client.pem";
  EXPECT_EQ(ErrorReason(Client::Create("localhost:1", options).status()), "BAD_TLS_FILES");
  options.tls.cert.clear();
  options.tls.ca = "/no/such/ca.pem";
  const absl::Status status = Client::Create("localhost:1", options).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(status.message(), HasSubstr("/no/such/ca.pem"));
  options.tls.ca.clear();
  options.api_key = "key\r";
  EXPECT_EQ(ErrorReason(Client::Create("localhost:1", options).status()), "BAD_HEADER");
  options.api_key.clear();
  options.headers["X Name"] = "value";
  EXPECT_EQ(ErrorReason(Client::Create("localhost:1", options).status()), "BAD_HEADER");
}

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
  EXPECT_EQ(all.text(), "ab");
  EXPECT_THAT(all.token_ids(), ElementsAre('a', 'b', kEndToken));
  EXPECT_STREQ(FinishReasonName(all.finish_reason()), "stop");
  EXPECT_EQ(all.seed, 5u);
  EXPECT_EQ(all.usage.generated_tokens, 3);
  EXPECT_FALSE(all.request_id.empty());
  EXPECT_EQ(stream->usage().generated_tokens, 3);
}

TEST_F(ClientTest, OnceTokenizeAndLists) {
  cluster_.decode(0)->SetReply([](DecodeCall decode) {
    decode.Finish(Ids("ok"), internal::v1::DecodeResponse::FINISH_LENGTH);
  });
  GenerateRequest request;
  request.token_ids = {'a', 'b', 'c'};
  auto once = client_->GenerateOnce(request);
  ASSERT_TRUE(once.ok()) << once.status();
  EXPECT_EQ(once->text(), "ok");
  EXPECT_EQ(once->usage.prompt_tokens, 3);
  EXPECT_EQ(once->finish_reason(), FinishReason::kLength);
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
  // A field of the message that has another name in the struct.
  const auto refused = [&](const GenerateRequest& wrong) {
    const absl::Status status = client_->GenerateOnce(wrong).status();
    const auto begun = client_->Generate(wrong);
    EXPECT_FALSE(begun->Next().has_value());
    EXPECT_EQ(begun->status().message(), status.message());
    EXPECT_EQ(ErrorField(begun->status()), ErrorField(status));
    EXPECT_NE(ErrorReason(status), "");
    EXPECT_NE(ErrorRequestId(status), "");
    EXPECT_THAT(std::string(status.message()),
                ::testing::StartsWith(absl::StrCat(ErrorField(status), ": ")));
    return ErrorField(status);
  };
  request = Request();
  request.max_tokens = -1;
  EXPECT_EQ(refused(request), "max_tokens");
  request = Request();
  request.stop = {""};
  EXPECT_EQ(refused(request), "stop");
  request = Request();
  request.json_schema = "{";
  EXPECT_EQ(refused(request), "json_schema");
  request = Request();
  request.answer_texts = {"a", ""};
  EXPECT_EQ(refused(request), "answer_texts[1]");
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

// A wrong address is an error at once, long before the call's timeout of 10 minutes.
TEST(ClientConnectionTest, ARefusedConnectionNamesTheAddress) {
  EXPECT_EQ(Client::Create("nowhere").status().code(), absl::StatusCode::kInvalidArgument);
  ClientOptions options;
  options.wait_for_ready = false;
  auto client = Client::Create("127.0.0.1:1", options);
  ASSERT_TRUE(client.ok());
  const absl::Status error = (*client)->ListModels().status();
  EXPECT_EQ(error.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(error.message()), HasSubstr("router at 127.0.0.1:1"));
}

// Also while the stream still waits for its connection.
TEST(ClientConnectionTest, CancelsARequestBeforeTheRouterAnswers) {
  baton::testing::ListeningSocket socket;
  auto client = Client::Create(socket.address());
  ASSERT_TRUE(client.ok()) << client.status();
  GenerateRequest request;
  request.text = "hi";
  const auto stream = (*client)->Generate(request);
  stream->Cancel();
  EXPECT_FALSE(stream->Next().has_value());
  EXPECT_EQ(stream->status().code(), absl::StatusCode::kCancelled) << stream->status();
}

class OneModel final : public v1::InferenceService::Service {
  grpc::Status ListModels(grpc::ServerContext*, const v1::ListModelsRequest*,
                          v1::ListModelsResponse* response) override {
    response->add_models()->set_id("late");
    return grpc::Status::OK;
  }
};

// On a busy machine the system accepts a connection long before the router can answer on it. Here
// the answer comes when a later attempt with the cluster's own settings has already timed out: 1.5
// s of real time, since gRPC's connection timer takes no other clock.
TEST(ClientConnectionTest, WaitsForARouterThatIsSlowToAnswer) {
  baton::testing::ListeningSocket socket;
  auto client = Client::Create(socket.address());
  ASSERT_TRUE(client.ok()) << client.status();
  absl::StatusOr<std::vector<Model>> models;
  std::thread call([&] { models = (*client)->ListModels(); });
  const int connection = socket.Accept();

  const auto peer = MakeChannel(socket.address(), kPeerChannel);
  const auto deadline = absl::ToChronoTime(absl::Now() + baton::testing::kPatience);
  auto state = peer->GetState(/*try_to_connect=*/true);
  while (state != GRPC_CHANNEL_TRANSIENT_FAILURE && peer->WaitForStateChange(state, deadline)) {
    state = peer->GetState(true);
  }
  EXPECT_EQ(state, GRPC_CHANNEL_TRANSIENT_FAILURE);

  OneModel service;
  grpc::ServerBuilder builder;
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> router = builder.BuildAndStart();
  fcntl(connection, F_SETFL, O_NONBLOCK);
  grpc::AddInsecureChannelFromFd(router.get(), connection);
  call.join();
  ASSERT_TRUE(models.ok()) << models.status();
  EXPECT_EQ(models->at(0).id, "late");
}

}  // namespace
}  // namespace baton::client
