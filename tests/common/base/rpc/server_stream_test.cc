#include "common/base/rpc/server_stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
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
  std::atomic<bool> encodes_ahead{false};
  std::function<void()> on_empty;  // if it is set before the first item

  // Waits until an item that begins so has been encoded.
  void AwaitEncoded(char begin) {
    const auto encoded = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return encoded_.find(begin) != std::string::npos;
    };
    absl::MutexLock lock(&mutex_);
    ASSERT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&encoded), absl::Seconds(60))) << begin;
  }
  std::string encoded() const {
    absl::MutexLock lock(&mutex_);
    return encoded_;
  }

 private:
  bool MayWrite(const std::string&) override { return may_write; }
  std::function<void()> OnEmpty() override {
    if (on_empty) on_empty();
    return nullptr;
  }
  // Items that begin alike share a message, as frames do.
  bool Join(std::string& taken, const std::string& next) override {
    if (!encodes_ahead || taken[0] != next[0]) return false;
    taken += next;
    return true;
  }
  bool EncodesAhead(const std::string&) override { return encodes_ahead; }
  void Encode(std::string item, GenerateResponse* message) override {
    {
      absl::MutexLock lock(&mutex_);
      encoded_ += item[0];
    }
    message->set_text(std::move(item));
  }
  void OnPeerGone() override { peer_gone.Notify(); }

  mutable absl::Mutex mutex_;
  std::string encoded_ ABSL_GUARDED_BY(mutex_);  // the first letters
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
    stub_ = baton::v1::InferenceService::NewStub(MakeChannel(server_->address(), kClientChannel));
  }

  // Returns the call's reader when the server has the call.
  std::unique_ptr<grpc::ClientReader<GenerateResponse>> Call(grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(120));
    auto reader = stub_->Generate(&context, GenerateRequest());
    service_.called.WaitForNotification();
    return reader;
  }
  // Pushes "a", which is written, then "b", "c" and "d", which are larger than what gRPC sends
  // without a reader. Returns when "c" has been encoded, while "b" is written.
  void PushAhead() {
    service_.stream->encodes_ahead = true;
    service_.stream->may_write = false;
    for (const char item : {'a', 'b', 'c', 'd'}) {
      service_.stream->Push(std::string(item == 'a' ? 1 : 8 << 20, item));
    }
    service_.stream->may_write = true;
    service_.stream->Resume();
    service_.stream->AwaitEncoded('c');
  }
  // Reads to the end. Returns the first letters of the messages.
  std::string ReadAll(grpc::ClientReader<GenerateResponse>& reader) {
    std::string text;
    GenerateResponse response;
    while (reader.Read(&response)) text += response.text().substr(0, 1);
    return text;
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
  auto reader = Call(context);
  std::string text;
  GenerateResponse response;
  while (reader->Read(&response)) text += response.text();
  EXPECT_TRUE(reader->Finish().ok());
  // "b" was taken for writing at once; "a" overtook those that waited.
  EXPECT_EQ(text, "bacd");
}

// The first of them would go alone if it were taken as soon as it is pushed.
TEST_F(ServerStreamTest, ItemsThatArePushedTogetherCanJoin) {
  service_.stream->encodes_ahead = true;
  service_.stream->PushAll({"a1", "a2", "b1", "b2", "a3"});
  service_.stream->PushAll({});
  service_.stream->Finish(grpc::Status::OK);
  grpc::ClientContext context;
  auto reader = Call(context);
  std::vector<std::string> texts;
  GenerateResponse response;
  while (reader->Read(&response)) texts.push_back(response.text());
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(texts, (std::vector<std::string>{"a1a2", "b1b2", "a3"}));
}

TEST_F(ServerStreamTest, AnErrorComesAtOnce) {
  service_.stream->Finish(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full"));
  service_.stream->Push("never");
  grpc::ClientContext context;
  auto reader = Call(context);
  GenerateResponse response;
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(ServerStreamTest, ACancelIsHeardAndFinishEndsTheCall) {
  grpc::ClientContext context;
  auto reader = Call(context);
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
  auto reader = Call(context);
  context.TryCancel();
  service_.stream->peer_gone.WaitForNotification();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  server_->Stop(absl::InfiniteDuration());
  EXPECT_EQ(service_.stream.use_count(), 1);
}

// MayWrite does nothing for the next item that OnEmpty then takes back.
TEST_F(ServerStreamTest, NoItemComesWhileOnEmptyRuns) {
  absl::Notification emptying, pushed;
  service_.stream->on_empty = [&] {
    if (emptying.HasBeenNotified()) return;
    emptying.Notify();
    EXPECT_FALSE(pushed.WaitForNotificationWithTimeout(absl::Milliseconds(50)));
  };
  grpc::ClientContext context;
  auto reader = Call(context);
  service_.stream->Push("a");
  emptying.WaitForNotification();
  service_.stream->Push("b");
  pushed.Notify();
  service_.stream->Finish(grpc::Status::OK);
  EXPECT_EQ(ReadAll(*reader), "ab");
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(ServerStreamTest, EncodesTheNextMessageWhileOneIsSent) {
  grpc::ClientContext context;
  auto reader = Call(context);
  PushAhead();
  EXPECT_EQ(service_.stream->encoded(), "abc");  // one, and no more
  // What is encoded ahead is no reason for an urgent item to wait.
  service_.stream->Push("u", /*urgent=*/true);
  service_.stream->Finish(grpc::Status::OK);
  EXPECT_EQ(ReadAll(*reader), "abucd");
  EXPECT_TRUE(reader->Finish().ok());
  server_->Stop(absl::InfiniteDuration());
  EXPECT_EQ(service_.stream.use_count(), 1);
}

TEST_F(ServerStreamTest, AnErrorDropsWhatIsEncodedAhead) {
  grpc::ClientContext context;
  auto reader = Call(context);
  PushAhead();
  service_.stream->Finish(grpc::Status(grpc::StatusCode::RESOURCE_EXHAUSTED, "full"));
  EXPECT_EQ(ReadAll(*reader), "ab");
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  server_->Stop(absl::InfiniteDuration());
  EXPECT_EQ(service_.stream.use_count(), 1);
}

TEST_F(ServerStreamTest, ACancelDropsWhatIsEncodedAhead) {
  grpc::ClientContext context;
  auto reader = Call(context);
  PushAhead();
  context.TryCancel();
  service_.stream->peer_gone.WaitForNotification();
  service_.stream->Finish(grpc::Status::CANCELLED);
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  server_->Stop(absl::InfiniteDuration());
  EXPECT_EQ(service_.stream.use_count(), 1);
}

// What is encoded ahead is whole: others could still join the last item that waits.
TEST_F(ServerStreamTest, TheLastItemIsNotEncodedAhead) {
  grpc::ClientContext context;
  auto reader = Call(context);
  PushAhead();
  service_.stream->Push("d");
  service_.stream->Push("d");
  service_.stream->Finish(grpc::Status::OK);
  size_t bytes = 0;
  std::string text;
  GenerateResponse response;
  while (reader->Read(&response)) {
    text += response.text().substr(0, 1);
    if (response.text()[0] == 'd') bytes += response.text().size();
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(text, "abcd");
  EXPECT_EQ(bytes, (8u << 20) + 2);
}

}  // namespace
}  // namespace baton
