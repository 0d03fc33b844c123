// Two routers over the same workers, with nothing between them, in this process; and load on both.
#ifndef BATON_TESTS_CLUSTER_REPLICAS_H_
#define BATON_TESTS_CLUSTER_REPLICAS_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "cli/port_reservation.h"
#include "common/base/check.h"
#include "common/base/rpc/channel.h"
#include "tests/cluster/faults/tcp_proxy.h"
#include "tests/cluster/whole_cluster.h"

namespace baton {

using baton::v1::WorkerStatus;

class ReplicasTest : public ::testing::Test {
 protected:
  static constexpr int kRouters = 2;

  static void SetUpTestSuite() { oracle_ = new testing::Oracle(kModelDir); }
  static void TearDownTestSuite() {
    delete oracle_;
    oracle_ = nullptr;
  }

  ReplicasTest() : file_(::testing::TempDir() + "/replicas-" + std::to_string(getpid())) {}
  ~ReplicasTest() override { std::filesystem::remove(file_); }

  // A free port, which stays this name's while what listens there is started again.
  const std::string& Reserved(const std::string& name) {
    const auto found = ports_.find(name);
    if (found != ports_.end()) return found->second.address();
    auto port = cli::PortReservation::Make();
    BATON_CHECK(port.ok()) << port.status();
    return ports_.emplace(name, *std::move(port)).first->second.address();
  }
  // "p0", "p1", …, "d0", …; on a free port, or where it was before.
  void StartWorker(const std::string& name) {
    worker::WorkerOptions options = WorkerOptions();
    options.num_blocks = 1024;  // all that the cases need: what is cached stays
    options.listen = Reserved(name);
    if (name[0] == 'p') {
      auto worker = prefill_worker::PrefillWorker::Start(options);
      ASSERT_TRUE(worker.ok()) << worker.status();
      addresses_[name] = (*worker)->address();
      workers_[name] = *std::move(worker);
    } else {
      // Prompts are found on prefill workers or nowhere, so that hits are the routers' doing.
      options.enable_prefix_caching = false;
      decode_worker::DecodeOptions decode;
      decode.local_prefill_max_tokens = 0;
      auto worker = decode_worker::DecodeWorker::Start(options, decode);
      ASSERT_TRUE(worker.ok()) << worker.status();
      addresses_[name] = (*worker)->address();
      workers_[name] = *std::move(worker);
    }
  }
  // From now on, callers reach the worker through `proxy_`.
  void PutBehindProxy(const std::string& name) {
    if (proxy_ == nullptr) {
      const auto any_process = [](uint16_t, uint16_t) { return std::string("any"); };
      auto proxy = testing::TcpProxy::Start(any_process, /*seed=*/1);
      ASSERT_TRUE(proxy.ok()) << proxy.status();
      proxy_ = *std::move(proxy);
    }
    int port = 0;
    const std::string& address = addresses_[name];
    ASSERT_TRUE(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port));
    const auto proxied = proxy_->AddTarget(name, static_cast<uint16_t>(port));
    ASSERT_TRUE(proxied.ok()) << proxied.status();
    proxied_[name] = *proxied;
  }
  // Where others are told that it is.
  std::string Told(const std::string& name) {
    return proxied_.count(name) > 0 ? proxied_[name] : addresses_[name];
  }
  void List(const std::vector<std::string>& names) {
    {
      std::ofstream out(file_ + ".new");
      for (const std::string& name : names) {
        out << (name[0] == 'p' ? "prefill " : "decode ") << Told(name) << "\n";
      }
    }
    std::filesystem::rename(file_ + ".new", file_);
    listed_ = names;
  }
  void StartRouter(int i) {
    router::Options options;
    options.model_dir = kModelDir;
    options.listen = Reserved(absl::StrCat("router", i));
    options.workers_file = file_;
    // What is cached on prefill workers is used, though demo prompts are computed again as fast.
    options.max_local_prefill_tokens = 0;
    auto server = router::RouterServer::Start(options);
    ASSERT_TRUE(server.ok()) << server.status();
    routers_[i] = *std::move(server);
    router_addresses_[i] = routers_[i]->address();
    if (channels_[i] == nullptr) channels_[i] = MakeChannel(router_addresses_[i]);
  }
  void StartAll(const std::vector<std::string>& names) {
    for (const std::string& name : names) StartWorker(name);
    List(names);
    for (int i = 0; i < kRouters; ++i) StartRouter(i);
    for (int i = 0; i < kRouters; ++i) ASSERT_TRUE(AwaitListed(i));
  }

  std::vector<WorkerStatus> Workers(int router) {
    grpc::ClientContext context;
    context.set_wait_for_ready(true);
    context.set_deadline(testing::TestDeadline());
    baton::v1::ListWorkersResponse response;
    const grpc::Status status =
        baton::v1::AdminService::NewStub(channels_[router])->ListWorkers(&context, {}, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return {response.workers().begin(), response.workers().end()};
  }
  // Until the router says it; each answer of the router is the event waited for.
  bool Await(int router, const std::function<bool(const std::vector<WorkerStatus>&)>& wished) {
    const absl::Time end = absl::Now() + absl::Minutes(2);
    while (!wished(Workers(router))) {
      if (absl::Now() > end) return false;
      std::this_thread::yield();
    }
    return true;
  }
  // All that are listed are ready, and there are no others.
  bool AwaitListed(int router) {
    return Await(router, [&](const std::vector<WorkerStatus>& workers) {
      return workers.size() == listed_.size() &&
             std::all_of(workers.begin(), workers.end(), [](const WorkerStatus& w) {
               return w.state() == baton::v1::WORKER_STATE_READY;
             });
    });
  }
  // Another process than before is there.
  bool AwaitReborn(int router, const std::string& name, uint64_t old_epoch) {
    return Await(router, [&](const std::vector<WorkerStatus>& workers) {
      return std::any_of(workers.begin(), workers.end(), [&](const WorkerStatus& w) {
        return w.address() == Told(name) && w.epoch() != old_epoch &&
               w.state() == baton::v1::WORKER_STATE_READY;
      });
    });
  }
  bool AwaitUse(int router, const std::string& name, bool used) {
    return Await(router, [&](const std::vector<WorkerStatus>& workers) {
      return std::any_of(workers.begin(), workers.end(), [&](const WorkerStatus& w) {
        if (w.address() != Told(name)) return false;
        const bool ready = w.state() == baton::v1::WORKER_STATE_READY;
        return used ? ready : !ready && w.state() != baton::v1::WORKER_STATE_SUSPECT;
      });
    });
  }
  uint64_t EpochOf(const std::string& name) {
    for (const WorkerStatus& w : Workers(0)) {
      if (w.address() == Told(name)) return w.epoch();
    }
    return 0;
  }

  Answer Generate(int router, const GenerateRequest& request) {
    auto stub = baton::v1::InferenceService::NewStub(channels_[router]);
    // Fails at once where no router is: a call that waits for one router would not try the other.
    grpc::ClientContext context;
    context.set_deadline(testing::TestDeadline());
    auto reader = stub->Generate(&context, request);
    Answer answer;
    GenerateResponse response;
    while (reader->Read(&response)) {
      answer.token_ids.insert(answer.token_ids.end(), response.token_ids().begin(),
                              response.token_ids().end());
      if (response.has_usage()) answer.usage = response.usage();
      if (response.finish_reason() != 0) answer.finish = response.finish_reason();
    }
    answer.status = FromGrpcStatus(reader->Finish());
    return answer;
  }

  // Callers of both routers, each of which turns to the other when its own fails it.
  void StartLoad(const std::vector<Case>& cases) {
    stop_ = false;
    for (int i = 0; i < 4; ++i) {
      load_.emplace_back([this, i, &cases] {
        int router = i % kRouters;
        for (size_t at = i; !stop_; ++at) {
          const Case& c = cases[at % cases.size()];
          const Answer answer = Generate(router, c.request);
          if (answer.status.ok()) {
            EXPECT_EQ(answer.token_ids, c.expected) << "case " << at % cases.size();
            ++answered_;
            router = static_cast<int>(at) % kRouters;
            continue;
          }
          ++failed_;
          // It is the router itself that went, and what it had said by then was right.
          EXPECT_TRUE(absl::IsUnavailable(answer.status) || absl::IsCancelled(answer.status))
              << answer.status;
          ASSERT_LE(answer.token_ids.size(), c.expected.size());
          EXPECT_TRUE(
              std::equal(answer.token_ids.begin(), answer.token_ids.end(), c.expected.begin()))
              << "case " << at % cases.size();
          router = (router + 1) % kRouters;
        }
      });
    }
  }
  void StopLoad() {
    stop_ = true;
    for (std::thread& client : load_) client.join();
    load_.clear();
  }
  // The load goes on: so many answers more.
  void AwaitAnswers(int64_t more) {
    const int64_t enough = answered_ + more;
    while (answered_ < enough && !HasFailure()) std::this_thread::yield();
  }

  // Cached share of the prompt tokens of all cases, asked one after the other.
  double HitRate(int router, const std::vector<Case>& cases) {
    int64_t cached = 0, all = 0;
    for (size_t i = 0; i < cases.size(); ++i) {
      const Answer answer = Generate(router, cases[i].request);
      ExpectAnswer(answer, cases[i], i);
      cached += answer.usage.cached_prompt_tokens();
      all += answer.usage.prompt_tokens();
    }
    return static_cast<double>(cached) / static_cast<double>(all);
  }

  void ExpectIdle() {
    for (const auto& [name, worker] : workers_) {
      ASSERT_TRUE(WaitUntilIdle(worker->address()).ok()) << name;
      const auto counts = BlockCounts(worker->address());
      EXPECT_EQ(counts.free() + counts.cached(), counts.total()) << name;
      EXPECT_EQ(counts.open_transfers(), 0) << name;
    }
  }

  inline static testing::Oracle* oracle_ = nullptr;
  const std::string file_;
  std::map<std::string, std::string> addresses_;
  std::map<std::string, std::unique_ptr<worker::Worker>> workers_;
  std::vector<std::string> listed_;
  std::unique_ptr<testing::TcpProxy> proxy_;
  std::map<std::string, std::string> proxied_;
  std::unique_ptr<router::RouterServer> routers_[kRouters];
  std::map<std::string, cli::PortReservation> ports_;
  std::string router_addresses_[kRouters];
  std::shared_ptr<grpc::Channel> channels_[kRouters];
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> answered_{0}, failed_{0};
  std::vector<std::thread> load_;
};

}  // namespace baton

#endif  // BATON_TESTS_CLUSTER_REPLICAS_H_
