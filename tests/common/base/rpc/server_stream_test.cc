#include "common/base/rpc/server_stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>

#include "absl/synchronization/notification.h"
#include "baton/v1/inference.grpc.pb.h"
#include "common/base/rpc/channel.h"
#include "common/base/rpc/server.h"

namespace baton {
namespace {

using baton::v1::GenerateRequest;
using baton::v1::GenerateResponse;

// Writes what the test pushes.
class TextStream final : public ServerStream<GenerateResponse, std::string> {
 public:
  absl::Notification peer_gone;
  std::atomic<bool> may_write{true};

 private:
  bool MayWrite(const std::string&) override { return may_write; }
  void Encode(std::string item, GenerateResponse* message) override {
    message->set_text(std::move(item));
  }
  void OnPeerGone() override { peer_gone.Notify(); }
};

class TextService final : public baton::v1::InferenceService::CallbackService {
 public:
  std::shared_ptr<TextStream> stream = std::make_shared<TextStream>();
  absl::Notification called;

  grpc::ServerWriteReactor<GenerateResponse>* Generate(grpc::CallbackServerContext* context,
                                                       const GenerateRequest* request) override {
    auto* reactor = TextStream::Open(stream);
    called.Notify();
    return reactor;
  }
};

class ServerStreamTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto server = RpcServer::Start({}, {&service_}, {"baton.v1.InferenceService"});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = baton::v1::InferenceService::NewStub(MakeChannel(server_->address()));
  }

  TextService service_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<baton::v1::InferenceService::Stub> stub_;
};

TEST_F(ServerStreamTest, DeliversInOrderUrgentFirst) {
  // Pushed before the call is open: kept until it can be written.
  service_.stream->Push("b");
  service_.stream->Push("c");
  service_.stream->Push("d");
  service_.stream->Push("a", /*urgent=*/true);
  service_.stream->Finish(grpc::Status::OK);
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, GenerateRequest());
  std::string text;
  GenerateResponse response;
  while (reader->Read(&response)) text += response.text();
  EXPECT_TRUE(reader->Finish().ok());
  // "b" was taken for writing at once; "a" overtook those that waited.
  EXPECT_EQ(text, "bacd");
}

TEST_F(ServerStreamTest, AnErrorComesAtOnce) {
  service_.stream->Finish(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full"));
  service_.stream->Push("never");
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, GenerateRequest());
  GenerateResponse response;
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(ServerStreamTest, ACancelIsHeardAndFinishEndsTheCall) {
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, GenerateRequest());
  service_.called.WaitForNotification();
  context.TryCancel();
  service_.stream->peer_gone.WaitForNotification();
  service_.stream->Push("dropped");
  service_.stream->Finish(grpc::Status::CANCELLED);
  GenerateResponse response;
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  // Stops without waiting for any grace: nothing is left open.
  server_->Stop(absl::InfiniteDuration());
  EXPECT_EQ(service_.stream.use_count(), 1);
}

TEST_F(ServerStreamTest, ACancelEndsACallWhoseLastItemsAreHeldBack) {
  service_.stream->may_write = false;
  service_.stream->Push("held back");
  service_.stream->Finish(grpc::Status::OK);
  grpc::ClientContext context;
  auto reader = stub_->Generate(&context, GenerateRequest());
  service_.called.WaitForNotification();
  context.TryCancel();
  service_.stream->peer_gone.WaitForNotification();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  server_->Stop(absl::InfiniteDuration());
  EXPECT_EQ(service_.stream.use_count(), 1);
}

}  // namespace
}  // namespace baton
