#include "common/worker/watch_service.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/synchronization/notification.h"
#include "common/base/error.h"
#include "common/base/rpc/channel.h"
#include "common/base/rpc/grpc_status.h"
#include "common/base/rpc/server.h"
#include "tests/router/fake_clock.h"

namespace baton::worker {
namespace {

using internal::v1::WatchResponse;

class WatchServiceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    internal::v1::WorkerCard card;
    card.set_worker_id("w1");
    card.set_epoch(9);
    card.set_total_blocks(10);
    service_ = std::make_unique<WatchService>(card, journal_, Clock::Real());
    auto server = RpcServer::Start({}, {service_.get()}, {"baton.internal.v1.WorkerService"});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    stub_ = internal::v1::WorkerService::NewStub(MakeChannel(server_->address()));
  }
  void TearDown() override { service_->Stop(); }

  CacheJournal journal_;
  std::unique_ptr<WatchService> service_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<internal::v1::WorkerService::Stub> stub_;
};

TEST_F(WatchServiceTest, CardThenSnapshotThenDeltas) {
  journal_.Record({true, 5});
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  auto reader = stub_->Watch(&context, {});
  WatchResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.card().worker_id(), "w1");
  ASSERT_TRUE(reader->Read(&response));
  ASSERT_TRUE(response.has_snapshot());
  EXPECT_TRUE(response.snapshot().last());
  ASSERT_EQ(response.snapshot().keys_size(), 1);
  uint64_t sequence = response.snapshot().sequence();
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_TRUE(response.has_load());

  std::set<uint64_t> keys = {5};
  for (uint64_t key = 100; key < 120; ++key) {
    journal_.Record({true, key});
    WorkerLoad load;
    load.running = static_cast<int>(key);
    service_->Publish(load);
  }
  while (keys.size() < 21) {
    ASSERT_TRUE(reader->Read(&response));
    if (!response.has_delta()) continue;
    EXPECT_EQ(response.delta().sequence(), ++sequence);
    keys.insert(response.delta().added().begin(), response.delta().added().end());
  }
  context.TryCancel();
}

TEST_F(WatchServiceTest, ReportsWhatWorkTakes) {
  WorkerLoad load;
  load.remaining_work = absl::Milliseconds(1500);
  load.prefill_cost.emplace().set_token_us(125);
  load.decode_cost.emplace().set_fixed_us(7100);
  load.context_tokens = 4096;
  service_->Publish(load);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  auto reader = stub_->Watch(&context, {});
  WatchResponse response;
  do {
    ASSERT_TRUE(reader->Read(&response));
  } while (!response.has_load());
  EXPECT_EQ(response.load().remaining_work_us(), 1'500'000);
  EXPECT_EQ(response.load().prefill_cost().token_us(), 125);
  EXPECT_EQ(response.load().decode_cost().fixed_us(), 7100);
  EXPECT_EQ(response.load().context_tokens(), 4096);
  load.prefill_cost.reset();
  service_->Publish(load);
  do {
    ASSERT_TRUE(reader->Read(&response));
  } while (!response.has_load());
  EXPECT_FALSE(response.load().has_prefill_cost());
  context.TryCancel();
}

TEST_F(WatchServiceTest, SilenceNeverLastsAHeartbeat) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  auto reader = stub_->Watch(&context, {});
  WatchResponse response;
  // Card, snapshot, load.
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(reader->Read(&response));
  // Then loads, with nothing published in between. Every second, as the proto promises; a router
  // suspects a worker after three.
  absl::Duration last = Clock::Real().SinceStart();
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(reader->Read(&response));
    EXPECT_TRUE(response.has_load());
    const absl::Duration now = Clock::Real().SinceStart();
    EXPECT_LT(now - last, absl::Seconds(2)) << "one second, and one for a busy machine";
    last = now;
  }
  context.TryCancel();
}

TEST(AcceptedTest, ReadyOnceRoutersHaveKeptTheirStreams) {
  testing::FakeClock clock;
  CacheJournal journal;
  WatchService service({}, journal, clock);
  auto server = RpcServer::Start({}, {&service}, {});
  ASSERT_TRUE(server.ok()) << server.status();
  const auto stub = internal::v1::WorkerService::NewStub(MakeChannel((*server)->address()));
  absl::Notification accepted;
  std::atomic<bool> known = false;
  service.OnAccepted([&] { return known ? std::optional<int>(2) : std::nullopt; },
                     [&] { accepted.Notify(); });
  // Reads until the service's thread has sent a report that it has been asked for only now, and has
  // therefore seen all that came before.
  int round = 0;
  const auto pass = [&](grpc::ClientReader<WatchResponse>& reader) {
    WorkerLoad load;
    load.running = ++round;
    service.Publish(load);
    WatchResponse response;
    while (response.load().running() != round) ASSERT_TRUE(reader.Read(&response));
  };
  grpc::ClientContext first, second;
  const auto one = stub->Watch(&first, {});
  pass(*one);
  clock.Advance(WatchService::kAcceptedAfter);
  pass(*one);
  pass(*one);
  EXPECT_FALSE(accepted.HasBeenNotified()) << "one router has accepted the worker";
  const auto two = stub->Watch(&second, {});
  pass(*two);
  pass(*two);
  EXPECT_FALSE(accepted.HasBeenNotified()) << "the second router may still refuse";
  clock.Advance(WatchService::kAcceptedAfter);
  pass(*two);
  pass(*two);
  EXPECT_FALSE(accepted.HasBeenNotified()) << "how many routers there are is not known";
  known = true;
  accepted.WaitForNotification();
  first.TryCancel();
  second.TryCancel();
  service.Stop();
}

TEST_F(WatchServiceTest, StopEndsStreamsSoThatTheServerCanStop) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  auto reader = stub_->Watch(&context, {});
  WatchResponse response;
  ASSERT_TRUE(reader->Read(&response));
  service_->Stop();
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
  server_->Stop(absl::InfiniteDuration());
}

TEST_F(WatchServiceTest, BlockCountsAreThoseLastPublished) {
  WorkerLoad load;
  load.counts.total = 10;
  load.counts.free = 4;
  load.counts.active = 3;
  load.counts.cached = 2;
  load.counts.held = 1;
  load.open_transfers = 6;
  service_->Publish(load);
  grpc::ClientContext context;
  internal::v1::GetBlockCountsResponse response;
  ASSERT_TRUE(stub_->GetBlockCounts(&context, {}, &response).ok());
  EXPECT_EQ(response.total(), 10);
  EXPECT_EQ(response.free(), 4);
  EXPECT_EQ(response.active(), 3);
  EXPECT_EQ(response.cached(), 2);
  EXPECT_EQ(response.held(), 1);
  EXPECT_EQ(response.open_transfers(), 6);
}

// Drains and flushes of a worker whose loop is the test.
class WatchServiceControlsTest : public WatchServiceTest {
 protected:
  void SetUp() override {
    WatchServiceTest::SetUp();
    service_->SetControls({[this](bool draining, std::function<void()> applied) {
                             if (refuses_) return ShuttingDown();
                             load_.draining = draining;
                             load_.drained = load_.drained && draining;
                             service_->Publish(load_);
                             applied();
                             return absl::OkStatus();
                           },
                           [](std::function<void(int)> done) { done(5); },
                           [this] { return !open_calls_; }});
  }
  // Asks on another thread, as the answer may have to be waited for.
  std::future<absl::StatusOr<internal::v1::LoadReport>> Set(bool draining, bool wait = false,
                                                            uint64_t epoch = 9) {
    return std::async(std::launch::async, [this, draining, wait, epoch] {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
      internal::v1::SetDrainingRequest request;
      request.set_epoch(epoch);
      request.set_draining(draining);
      request.set_wait(wait);
      internal::v1::SetDrainingResponse response;
      const grpc::Status status = stub_->SetDraining(&context, request, &response);
      return status.ok() ? absl::StatusOr<internal::v1::LoadReport>(response.load())
                         : FromGrpcStatus(status);
    });
  }
  // Until a report says so.
  void AwaitReport(const std::function<bool(const internal::v1::LoadReport&)>& wished) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
    auto reader = stub_->Watch(&context, {});
    WatchResponse response;
    do {
      ASSERT_TRUE(reader->Read(&response));
    } while (!response.has_load() || !wished(response.load()));
    context.TryCancel();
  }

  WorkerLoad load_;
  std::atomic<bool> open_calls_{false};
  std::atomic<bool> refuses_{false};
};

TEST_F(WatchServiceControlsTest, AnswersWithThePresentState) {
  load_.running = 2;
  const auto draining = Set(true).get();
  ASSERT_TRUE(draining.ok()) << draining.status();
  EXPECT_TRUE(draining->draining());
  EXPECT_FALSE(draining->drained());
  EXPECT_EQ(draining->running(), 2);
  const auto back = Set(false, /*wait=*/true).get();
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_FALSE(back->draining());
  EXPECT_EQ(ErrorReason(Set(true, false, /*epoch=*/8).get().status()), "STALE_EPOCH");
  refuses_ = true;
  EXPECT_EQ(ErrorReason(Set(true).get().status()), "DRAINING");
}

TEST_F(WatchServiceControlsTest, AWaitEndsWhenTheWorkerIsDrainedAndItsCallsAreClosed) {
  open_calls_ = true;
  load_.running = 1;
  auto wait = Set(true, /*wait=*/true);
  AwaitReport([](const auto& load) { return load.draining(); });
  load_.running = 0;
  load_.drained = true;
  service_->Publish(load_);
  AwaitReport([](const auto& load) { return load.draining() && load.running() == 0; });
  AwaitReport([](const auto& load) { return !load.drained(); });
  EXPECT_EQ(wait.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  open_calls_ = false;  // without any news from the loop
  const auto drained = wait.get();
  ASSERT_TRUE(drained.ok()) << drained.status();
  EXPECT_TRUE(drained->drained());
  AwaitReport([](const auto& load) { return load.drained(); });
}

TEST_F(WatchServiceControlsTest, AWaitEndsWithTheDrainOrTheWorker) {
  auto wait = Set(true, /*wait=*/true);
  AwaitReport([](const auto& load) { return load.draining(); });
  ASSERT_TRUE(Set(false).get().ok());
  EXPECT_EQ(ErrorReason(wait.get().status()), "UNDRAINED");
  wait = Set(true, /*wait=*/true);
  AwaitReport([](const auto& load) { return load.draining(); });
  service_->Stop();
  EXPECT_EQ(ErrorReason(wait.get().status()), "DRAINING");
  server_->Stop(absl::InfiniteDuration());
}

TEST_F(WatchServiceControlsTest, AFlushSaysHowManyBlocksItDropped) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  internal::v1::FlushCacheRequest request;
  request.set_epoch(9);
  internal::v1::FlushCacheResponse response;
  ASSERT_TRUE(stub_->FlushCache(&context, request, &response).ok());
  EXPECT_EQ(response.dropped_blocks(), 5);
  grpc::ClientContext late;
  late.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(1));
  request.set_epoch(8);
  EXPECT_EQ(ErrorReason(FromGrpcStatus(stub_->FlushCache(&late, request, &response))),
            "STALE_EPOCH");
}

}  // namespace
}  // namespace baton::worker
