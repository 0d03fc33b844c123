// baton-router as a process: what signals do to it.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "baton/v1/admin.grpc.pb.h"
#include "baton/v1/inference.grpc.pb.h"
#include "cli/child_process.h"
#include "common/base/rpc/address_file.h"
#include "common/base/rpc/channel.h"
#include "common/tokenizer/tokenizer.h"
#include "tests/testing/fake_worker.h"
#include "tests/testing/tiny_tokenizer.h"

namespace baton::router {
namespace {

using ::baton::testing::DecodeCall;
using ::baton::testing::FakeCard;
using ::baton::testing::FakeWorker;
using ::baton::testing::Ids;
using ::baton::testing::kPatience;

// A router with one decode worker, and a request that has its first token.
class RouterMainTest : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::WriteTinyTokenizer(directory_);
    const auto tokenizer = tokenizer::Tokenizer::Load(directory_);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    worker_ =
        std::make_unique<FakeWorker>(FakeCard(v1::WORKER_ROLE_DECODE, (*tokenizer)->fingerprint()));
    auto router = cli::ChildProcess::StartLogged(
        "router",
        {BATON_BIN_DIR "/baton-router", "--model", directory_, "--listen", "127.0.0.1:0",
         "--address-file", directory_ + "/address", "--decode-workers", worker_->address(),
         // Longer than the test: nothing ends by itself.
         "--stall-timeout-ms", "3600000", "--drain-grace-ms", "3600000"},
        directory_ + "/log");
    ASSERT_TRUE(router.ok()) << router.status();
    router_ = *std::move(router);
    std::optional<BoundAddresses> bound;
    ASSERT_TRUE(Until([&] {
      bound = ReadAddressFile(directory_ + "/address");
      return bound.has_value() || !router_->running();
    }));
    ASSERT_TRUE(bound.has_value()) << router_->end();
    channel_ = MakeChannel(bound->grpc, kClientChannel);
    ASSERT_TRUE(Until([&] { return WorkerIsReady(); }));
    v1::GenerateRequest request;
    request.set_text("hi");
    context_.set_deadline(Deadline());
    answer_ = v1::InferenceService::NewStub(channel_)->Generate(&context_, request);
    call_ = worker_->AwaitDecode();
    call_.SendTokens(Ids("a"));
    ASSERT_TRUE(answer_->Read(&response_));
    // The drain has begun when a new call is refused.
    router_->Signal(SIGTERM);
    ASSERT_TRUE(Until([&] { return !TakesCalls(); }));
    ASSERT_TRUE(router_->running());
  }
  ~RouterMainTest() override {
    router_.reset();
    std::filesystem::remove_all(directory_);
  }

  // Asks again and again, as nothing announces what these tests wait for.
  static bool Until(const std::function<bool()>& done) {
    const absl::Time end = absl::Now() + kPatience;
    while (!done()) {
      if (absl::Now() > end) return false;
      absl::SleepFor(absl::Milliseconds(2));
    }
    return true;
  }

  static std::chrono::system_clock::time_point Deadline() {
    return absl::ToChronoTime(absl::Now() + kPatience);
  }

  bool WorkerIsReady() {
    grpc::ClientContext context;
    context.set_deadline(Deadline());
    v1::ListWorkersResponse response;
    const grpc::Status status =
        v1::AdminService::NewStub(channel_)->ListWorkers(&context, {}, &response);
    return status.ok() && response.workers_size() == 1 &&
           response.workers(0).state() == v1::WORKER_STATE_READY;
  }

  bool TakesCalls() {
    grpc::ClientContext context;
    context.set_deadline(Deadline());
    v1::ListModelsResponse response;
    return v1::InferenceService::NewStub(channel_)->ListModels(&context, {}, &response).ok();
  }

  grpc::Status RestOfAnswer() {
    while (answer_->Read(&response_)) {
    }
    return answer_->Finish();
  }

  const std::string directory_ = ::testing::TempDir() + absl::StrCat("/router-main-", getpid());
  std::unique_ptr<FakeWorker> worker_;
  std::unique_ptr<cli::ChildProcess> router_;
  std::shared_ptr<grpc::Channel> channel_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<v1::GenerateResponse>> answer_;
  DecodeCall call_;
  v1::GenerateResponse response_;
};

TEST_F(RouterMainTest, ASignalLetsTheAnswerFinish) {
  call_.Finish(Ids("b"), internal::v1::DecodeResponse::FINISH_LENGTH);
  const grpc::Status status = RestOfAnswer();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(router_->AwaitEnd(kPatience));
  EXPECT_TRUE(router_->ended_well()) << router_->end();
}

TEST_F(RouterMainTest, ASecondSignalStopsAtOnce) {
  router_->Signal(SIGTERM);
  EXPECT_TRUE(router_->AwaitEnd(kPatience)) << "waits for its grace";
  EXPECT_TRUE(router_->ended_well()) << router_->end();
  EXPECT_FALSE(RestOfAnswer().ok()) << "a cut answer must not look complete";
  EXPECT_TRUE(call_.stream->AwaitCancelled());
}

}  // namespace
}  // namespace baton::router
