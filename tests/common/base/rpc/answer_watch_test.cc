#include "common/base/rpc/answer_watch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "baton/v1/inference.grpc.pb.h"
#include "common/base/rpc/channel.h"
#include "common/base/rpc/server.h"
#include "tests/router/fake_clock.h"
#include "tests/testing/unread_call.h"

namespace baton {
namespace {

using ::baton::testing::UnreadCall;
using ::testing::HasSubstr;

constexpr absl::Duration kAnswerPatience = absl::Seconds(60);  // the test expects far less
constexpr absl::Duration kAnswerLimit = absl::Milliseconds(400);
constexpr char kDetokenize[] = "/baton.v1.InferenceService/Detokenize";

class LargeAnswers final : public v1::InferenceService::CallbackService {
 public:
  // The answer has as many bytes as the first id says.
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override {
    response->set_text(std::string(request->token_ids(0), 'a'));
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
};

class AnswerWatchTest : public ::testing::Test {
 protected:
  AnswerWatchTest() {
    RpcServerOptions options;
    options.write_stall_timeout = kAnswerLimit;
    options.clock = &clock_;
    options.on_stalled = [this] { ++stalled_; };
    server_ = *RpcServer::Start(options, {&service_}, {v1::InferenceService::service_full_name()});
  }
  static v1::DetokenizeRequest Bytes(int bytes) {
    v1::DetokenizeRequest request;
    request.add_token_ids(bytes);
    return request;
  }
  bool AwaitStalled(int calls) {
    const absl::Time patience = absl::Now() + kAnswerPatience;
    while (stalled_ < calls && absl::Now() < patience) {
      clock_.Advance(kAnswerLimit / 4);
      absl::SleepFor(absl::Milliseconds(1));
    }
    return stalled_ == calls;
  }

  testing::SteppedClock clock_;
  LargeAnswers service_;
  std::atomic<int> stalled_ = 0;
  std::unique_ptr<RpcServer> server_;
};

TEST_F(AnswerWatchTest, AnAnswerThatIsNotReadEndsAndOthersDoNot) {
  UnreadCall unread(server_->address(), kDetokenize, Bytes(1 << 20));
  UnreadCall read(server_->address(), kDetokenize, Bytes(1 << 20));
  EXPECT_TRUE(read.Rest().ok());
  EXPECT_TRUE(AwaitStalled(1));
  const absl::Status end = unread.Rest();
  EXPECT_EQ(end.code(), absl::StatusCode::kAborted) << end;
  EXPECT_THAT(std::string(end.message()), HasSubstr("READER_STALLED"));
  UnreadCall next(server_->address(), kDetokenize, Bytes(10));
  EXPECT_TRUE(next.Rest().ok());
}

}  // namespace
}  // namespace baton
