// A real router, started in this process, over scripted workers.
#ifndef BATON_TESTS_TESTING_FAKE_CLUSTER_H_
#define BATON_TESTS_TESTING_FAKE_CLUSTER_H_

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/rpc/channel.h"
#include "router/server.h"
#include "tests/testing/fake_worker.h"
#include "tests/testing/tiny_tokenizer.h"

namespace baton::testing {

// `security` is that of channel(). Made ready: the router knows all its workers when the
// constructor returns.
class FakeCluster {
 public:
  explicit FakeCluster(int prefill_count = 1, int decode_count = 1,
                       const std::function<void(router::Options*)>& adjust = nullptr,
                       const Clock& clock = Clock::Real(), const ChannelSecurity& security = {}) {
    model_dir_ = ::testing::TempDir() + "/tiny";
    WriteTinyTokenizer(model_dir_);
    tokenizer_ = *tokenizer::Tokenizer::Load(model_dir_);
    router::Options options;
    options.model_dir = model_dir_;
    options.listen = "127.0.0.1:0";
    for (int i = 0; i < prefill_count; ++i) {
      prefill_.push_back(MakeWorker(v1::WORKER_ROLE_PREFILL));
      options.prefill_workers.push_back(prefill_.back()->address());
    }
    for (int i = 0; i < decode_count; ++i) {
      decode_.push_back(MakeWorker(v1::WORKER_ROLE_DECODE));
      options.decode_workers.push_back(decode_.back()->address());
    }
    if (adjust != nullptr) adjust(&options);
    auto server = router::RouterServer::Start(options, clock);
    BATON_CHECK(server.ok()) << server.status();
    server_ = *std::move(server);
    channel_ = MakeChannel(server_->address(), kClientChannel, security);
    AwaitState([](const v1::WorkerStatus& w) { return w.state() == v1::WORKER_STATE_READY; });
  }
  // The router first: workers that go while it lives would be news to it.
  ~FakeCluster() { server_.reset(); }

  std::unique_ptr<FakeWorker> MakeWorker(v1::WorkerRole role,
                                         const std::string& address = "127.0.0.1:0") {
    return std::make_unique<FakeWorker>(FakeCard(role, tokenizer_->fingerprint()), address);
  }

  router::RouterServer& server() { return *server_; }
  std::unique_ptr<FakeWorker>& prefill(int i) { return prefill_[i]; }
  std::unique_ptr<FakeWorker>& decode(int i) { return decode_[i]; }
  // Of each worker: prefill workers answer requests for one token.
  void SetReply(const std::function<void(DecodeCall)>& reply) {
    for (auto& worker : prefill_) worker->SetReply(reply);
    for (auto& worker : decode_) worker->SetReply(reply);
  }
  const tokenizer::Tokenizer& tokenizer() const { return *tokenizer_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  std::vector<v1::WorkerStatus> Workers() {
    grpc::ClientContext context;
    v1::ListWorkersResponse response;
    const grpc::Status status = v1::AdminService::NewStub(channel_)->ListWorkers(
        &context, v1::ListWorkersRequest(), &response);
    BATON_CHECK(status.ok()) << status.error_message();
    return {response.workers().begin(), response.workers().end()};
  }

  // Asks until all workers are as wished: what the router knows comes through its streams, whose
  // arrival nothing else announces.
  bool AwaitState(const std::function<bool(const v1::WorkerStatus&)>& wished) {
    const absl::Time end = absl::Now() + kPatience;
    while (absl::Now() < end) {
      const auto workers = Workers();
      if (std::all_of(workers.begin(), workers.end(), wished)) return true;
      absl::SleepFor(absl::Milliseconds(2));
    }
    return false;
  }

 private:
  std::string model_dir_;
  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
  std::vector<std::unique_ptr<FakeWorker>> prefill_, decode_;
  std::unique_ptr<router::RouterServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
};

}  // namespace baton::testing

#endif  // BATON_TESTS_TESTING_FAKE_CLUSTER_H_
