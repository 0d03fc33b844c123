#include "common/transfer/kv_sender.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <vector>

#include "absl/synchronization/notification.h"
#include "baton/internal/v1/prefill.grpc.pb.h"
#include "common/base/rpc/server.h"
#include "common/transfer/checksum.h"

namespace baton::transfer {
namespace {

using internal::v1::PrefillFrame;

// A Prefill method whose sender the test drives.
class SenderService final : public internal::v1::PrefillService::WithRawCallbackMethod_Prefill<
                                internal::v1::PrefillService::Service> {
 public:
  std::shared_ptr<GrpcKvSender> sender;

  grpc::ServerWriteReactor<grpc::ByteBuffer>* Prefill(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request) override {
    return GrpcKvSender::Open(sender);
  }
};

class KvSenderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    GrpcKvSender::Options options;
    options.transfer_id = 5;
    options.epoch = 6;
    service_.sender = std::make_shared<GrpcKvSender>(std::move(options));
    auto server = RpcServer::Start({}, {&service_}, {"baton.internal.v1.PrefillService"});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }

  // All frames as an ordinary Protobuf client reads them, each checksum verified. What the sender
  // has been given before the call waits for it.
  std::vector<PrefillFrame> ReadAll() {
    auto stub = internal::v1::PrefillService::NewStub(MakeChannel(server_->address()));
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    auto reader = stub->Prefill(&context, {});
    std::vector<PrefillFrame> frames;
    PrefillFrame frame;
    while (reader->Read(&frame)) {
      EXPECT_EQ(frame.checksum(), FrameChecksum(frame, {}));
      frames.push_back(frame);
    }
    const grpc::Status status = reader->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return frames;
  }

  static std::vector<v1::TokenLogprobs> Logprobs(int count) {
    std::vector<v1::TokenLogprobs> all(count);
    for (int i = 0; i < count; ++i) {
      all[i].set_token_id(100000 + i);
      all[i].set_logprob(-1);
      for (int k = 0; k < 20; ++k) {
        all[i].add_top()->set_token_id(150000);
        all[i].mutable_top(k)->set_logprob(-2);
      }
    }
    return all;
  }

  SenderService service_;
  std::unique_ptr<RpcServer> server_;
};

TEST_F(KvSenderTest, PromptLogprobsComeInOrderInBoundedFramesBeforeTheFirstToken) {
  constexpr int kFirst = 9000, kSecond = 3;
  service_.sender->SendAccepted(0, 0);
  service_.sender->SendPromptLogprobs(1, Logprobs(kFirst));
  service_.sender->SendPromptLogprobs(1 + kFirst, Logprobs(kSecond));
  service_.sender->SendFirstToken(7, Logprobs(1)[0]);
  service_.sender->SendCommit(1, 2);
  service_.sender->Finish(absl::OkStatus());
  const std::vector<PrefillFrame> frames = ReadAll();
  int position = 1;
  size_t i = 1;
  ASSERT_TRUE(frames[0].has_accepted());
  for (; i < frames.size() && frames[i].has_prompt_logprobs(); ++i) {
    EXPECT_LE(frames[i].ByteSizeLong(), 1u << 20);
    EXPECT_EQ(frames[i].prompt_logprobs().first_position(), position);
    for (const v1::TokenLogprobs& logprobs : frames[i].prompt_logprobs().logprobs()) {
      const int index = position - 1 < kFirst ? position - 1 : position - 1 - kFirst;
      ASSERT_EQ(logprobs.token_id(), 100000 + index);
      EXPECT_EQ(logprobs.top_size(), 20);
      ++position;
    }
  }
  EXPECT_EQ(position, 1 + kFirst + kSecond);
  EXPECT_GE(i, 4u) << "more than a frame's worth";
  ASSERT_EQ(frames.size(), i + 2);
  EXPECT_EQ(frames[i].first_token().token_id(), 7);
  EXPECT_EQ(frames[i].first_token().logprobs().top_size(), 20);
  EXPECT_TRUE(frames[i + 1].has_commit());
}

TEST_F(KvSenderTest, AFirstTokenAloneOvertakesWhatWaits) {
  service_.sender->SendAccepted(0, 0);
  service_.sender->SendCommit(1, 2);
  service_.sender->SendFirstToken(7, {});
  service_.sender->Finish(absl::OkStatus());
  const std::vector<PrefillFrame> frames = ReadAll();
  ASSERT_EQ(frames.size(), 3u);
  // The first was taken for writing at once.
  EXPECT_TRUE(frames[0].has_accepted());
  EXPECT_EQ(frames[1].first_token().token_id(), 7);
  EXPECT_TRUE(frames[2].has_commit());
}

}  // namespace
}  // namespace baton::transfer
