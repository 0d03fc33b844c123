// A real prefill worker process and its signals.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "baton/internal/v1/prefill.grpc.pb.h"
#include "cli/child_process.h"
#include "common/base/error.h"
#include "common/base/rpc/address_file.h"
#include "common/base/rpc/channel.h"
#include "common/base/rpc/grpc_status.h"
#include "common/transfer/checksum.h"
#include "tests/testing/worker_client.h"

namespace baton {
namespace {

using internal::v1::PrefillFrame;
using internal::v1::PrefillRequest;

class PrefillLifecycleTest : public ::testing::Test {
 protected:
  PrefillLifecycleTest() {
    directory_ = ::testing::TempDir() + absl::StrCat("/prefill-lifecycle-", getpid());
    std::filesystem::create_directories(directory_);
  }
  ~PrefillLifecycleTest() override { std::filesystem::remove_all(directory_); }

  // Handles the child's output until `done`; false if it ends first or takes over a minute.
  bool Until(const std::function<bool()>& done) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (!done()) {
      if (std::chrono::steady_clock::now() > limit) return false;
      if (!worker_->running() && !done()) return false;
      pollfd fd = {worker_->output_fd(), POLLIN, 0};
      poll(&fd, 1, 5);
      worker_->ReadLines([](const std::string&) {});
    }
    return true;
  }

  void Start() {
    const std::string address_file = directory_ + "/address";
    auto worker = cli::ChildProcess::Start(
        "prefill",
        {BATON_BIN_DIR "/baton-prefill-worker", "--model", BATON_CHECKPOINT_DIR "/tiny-qwen3",
         "--address-file", address_file, "--num-blocks", "128", "--max-num-batched-tokens", "64",
         "--threads", "1", "--drain-grace-ms", "100000"},
        "");
    ASSERT_TRUE(worker.ok()) << worker.status();
    worker_ = *std::move(worker);
    std::optional<BoundAddresses> addresses;
    ASSERT_TRUE(Until([&] { return (addresses = ReadAddressFile(address_file)).has_value(); }));
    address_ = addresses->grpc;
    channel_ = MakeChannel(address_);
    auto watch = internal::v1::WorkerService::NewStub(channel_);
    grpc::ClientContext context;
    context.set_deadline(testing::TestDeadline());
    auto reader = watch->Watch(&context, {});
    internal::v1::WatchResponse response;
    ASSERT_TRUE(reader->Read(&response));
    card_ = response.card();
    context.TryCancel();
  }

  PrefillRequest Request() {
    PrefillRequest request;
    request.set_request_id("test");
    request.set_transfer_id(7);
    request.set_model_fingerprint(card_.model_fingerprint());
    request.set_kv_layout_fingerprint(card_.kv_layout().fingerprint());
    request.set_prefill_epoch(card_.epoch());
    // Some 400 kB of KV.
    for (int i = 0; i < 500; ++i) request.add_tokens(i % 300);
    request.mutable_sampling()->set_top_p(1);
    request.set_checksum(transfer::RequestChecksum(request));
    return request;
  }

  struct Stream {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<PrefillFrame>> reader;
    bool Read() { return reader->Read(&frame); }
    PrefillFrame frame;
  };
  std::unique_ptr<Stream> Open(const std::shared_ptr<grpc::Channel>& channel) {
    auto stream = std::make_unique<Stream>();
    stream->context.set_deadline(testing::TestDeadline());
    stream->reader =
        internal::v1::PrefillService::NewStub(channel)->Prefill(&stream->context, Request());
    return stream;
  }
  // On a connection of its own, whose window is fixed: what is not read stays with the sender.
  std::unique_ptr<Stream> OpenSlow() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    auto stream =
        Open(grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments));
    EXPECT_TRUE(stream->Read());
    EXPECT_TRUE(stream->frame.has_accepted());
    return stream;
  }

  std::string directory_;
  std::unique_ptr<cli::ChildProcess> worker_;
  std::string address_;
  std::shared_ptr<grpc::Channel> channel_;
  internal::v1::WorkerCard card_;
};

TEST_F(PrefillLifecycleTest, AWorkerReportsItsFreeBlocksBeforeItsFirstRequest) {
  Start();
  const absl::Status idle = testing::WaitUntilIdle(address_, std::chrono::seconds(10));
  EXPECT_TRUE(idle.ok()) << idle;
}

TEST_F(PrefillLifecycleTest, ASignalDrainsAndWhatRunsIsFinished) {
  Start();
  std::unique_ptr<Stream> stream = OpenSlow();
  auto watch = internal::v1::WorkerService::NewStub(channel_);
  grpc::ClientContext watching;
  watching.set_deadline(testing::TestDeadline());
  auto reports = watch->Watch(&watching, {});
  worker_->Signal(SIGTERM);
  internal::v1::WatchResponse report;
  while (reports->Read(&report) && !report.load().draining()) {
  }
  EXPECT_TRUE(report.load().draining());

  std::unique_ptr<Stream> late = Open(channel_);
  EXPECT_FALSE(late->Read());
  const absl::Status refused = FromGrpcStatus(late->reader->Finish());
  EXPECT_EQ(refused.code(), absl::StatusCode::kUnavailable) << refused;
  EXPECT_EQ(ErrorReason(refused), "DRAINING");

  EXPECT_TRUE(worker_->running()) << "left with a stream to finish";
  bool committed = false;
  while (stream->Read()) committed = stream->frame.has_commit();
  EXPECT_TRUE(committed);
  const grpc::Status status = stream->reader->Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(Until([this] { return !worker_->running(); }));
  EXPECT_TRUE(worker_->ended_well()) << worker_->end();
}

TEST_F(PrefillLifecycleTest, ASecondSignalStopsAtOnce) {
  Start();
  std::unique_ptr<Stream> stream = OpenSlow();
  worker_->Signal(SIGTERM);
  std::unique_ptr<Stream> late;
  do {  // until it drains: two signals at one moment are one
    late = Open(channel_);
  } while (late->Read());
  worker_->Signal(SIGTERM);
  EXPECT_TRUE(Until([this] { return !worker_->running(); })) << "waits for its grace";
  EXPECT_TRUE(worker_->ended_well()) << worker_->end();
  bool committed = false;
  while (stream->Read()) committed = committed || stream->frame.has_commit();
  EXPECT_FALSE(committed);
  EXPECT_FALSE(stream->reader->Finish().ok()) << "a failure must not look like a finish";
}

}  // namespace
}  // namespace baton
