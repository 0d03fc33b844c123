#include "router/request/call_registry.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

#include "common/base/error.h"
#include "tests/router/call_harness.h"

namespace baton::router {
namespace {

class CountedCall final : public CancellableCall {
 public:
  bool EndWith(const absl::Status& error) override {
    error_ = error;
    return !std::exchange(cancelled_, true);
  }
  const absl::Status& error() const { return error_; }

 private:
  absl::Status error_;
  bool cancelled_ = false;
};

TEST(CallRegistryTest, FindsCallsByTenantAndId) {
  CallRegistry registry;
  const auto one = std::make_shared<CountedCall>(), twin = std::make_shared<CountedCall>(),
             other = std::make_shared<CountedCall>();
  CallRegistry::Entry a = registry.Add("t", "id", one);
  CallRegistry::Entry b = registry.Add("t", "id", twin);
  CallRegistry::Entry c = registry.Add("u", "id", other);
  EXPECT_EQ(registry.Cancel("", "id"), 0) << "the empty tenant is a tenant, too";
  EXPECT_EQ(registry.Cancel("t", "i"), 0);
  EXPECT_EQ(registry.Cancel("t", "id"), 2);
  EXPECT_EQ(registry.Cancel("t", "id"), 0) << "both have ended";
  EXPECT_EQ(registry.Cancel("u", "id"), 1) << "not by the other tenant";
  EXPECT_EQ(ErrorReason(other->error()), "CANCELLED_BY_ID");
  EXPECT_EQ(registry.size(), 3u);
}

TEST(CallRegistryTest, EndsAllCallsWithAnError) {
  CallRegistry registry;
  const auto one = std::make_shared<CountedCall>(), other = std::make_shared<CountedCall>();
  CallRegistry::Entry a = registry.Add("t", "id", one);
  CallRegistry::Entry b = registry.Add("", "", other);
  CallRegistry::Entry c = registry.Add("", "gone", std::make_shared<CountedCall>());
  const absl::Status error = absl::UnavailableError("stopped");
  EXPECT_EQ(registry.EndAll(error), 2);
  EXPECT_EQ(one->error(), error);
  EXPECT_EQ(other->error(), error);
  EXPECT_EQ(registry.EndAll(error), 0) << "both have ended";
}

TEST(CallRegistryTest, AnEntryLivesUntilItIsResetOrDestroyed) {
  CallRegistry registry;
  {
    auto call = std::make_shared<CountedCall>();
    CallRegistry::Entry a = registry.Add("", "a", call);
    CallRegistry::Entry moved = std::move(a);
    a.reset();
    EXPECT_EQ(registry.size(), 1u);
    a = registry.Add("", "b", call);
    std::swap(a, moved);
    a.reset();
    EXPECT_EQ(registry.Cancel("", "a"), 0);
    EXPECT_EQ(registry.Cancel("", "b"), 1);
    CallRegistry::Entry gone = registry.Add("", "c", std::make_shared<CountedCall>());
    EXPECT_EQ(registry.Cancel("", "c"), 0) << "the call is gone, its entry not yet";
    EXPECT_EQ(registry.size(), 2u);
  }
  EXPECT_EQ(registry.size(), 0u);
}

// Calls come and go while others cancel them: each is ended exactly once.
TEST(CallRegistryTest, AnyThreadMayCancelWhatAnotherEnds) {
  class RacedCall final : public CancellableCall {
   public:
    bool EndWith(const absl::Status&) override { return !ended.exchange(true); }
    std::atomic<bool> ended{false};
  };
  constexpr int kCalls = 2000;
  CallRegistry registry;
  std::atomic<int> by_id{0}, by_itself{0}, running{2};
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kCalls; ++i) {
        auto call = std::make_shared<RacedCall>();
        CallRegistry::Entry entry = registry.Add("", std::to_string(i % 4), call);
        if (i % 3 != 0) by_itself += call->ended.exchange(true) ? 0 : 1;
        entry.reset();
        if (i % 3 == 0) by_itself += call->ended.exchange(true) ? 0 : 1;
      }
      --running;
    });
  }
  while (running > 0) by_id += registry.Cancel("", std::to_string(by_id % 4));
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(by_id + by_itself, 2 * kCalls);
  EXPECT_EQ(registry.size(), 0u);
}

class CancelByIdTest : public testing::CallHarness {
 protected:
  v1::GenerateRequest Named(const std::string& id, const std::string& tenant = "") {
    v1::GenerateRequest request = Request();
    request.set_request_id(id);
    request.set_tenant(tenant);
    return request;
  }
};

TEST_F(CancelByIdTest, EndsAllRequestsWithTheIdAndTheirStreams) {
  testing::FakeSink& first = Start(Named("x"));
  testing::FakeSink& second = Start(Named("x"));
  testing::FakeSink& other = Start(Named("y"));
  testing::FakeSink& foreign = Start(Named("x", "another tenant"));
  stream(1).SayTokens("a");
  EXPECT_EQ(registry_.size(), 4u);
  EXPECT_EQ(registry_.Cancel("", "x"), 2);
  for (testing::FakeSink* sink : {&first, &second}) {
    EXPECT_EQ(sink->End().code(), absl::StatusCode::kCancelled);
    EXPECT_EQ(ErrorReason(sink->End()), "CANCELLED_BY_ID");
  }
  EXPECT_TRUE(stream(0).cancelled && stream(1).cancelled);
  EXPECT_FALSE(stream(2).cancelled || stream(3).cancelled);
  EXPECT_FALSE(other.ended() || foreign.ended());
  EXPECT_EQ(registry_.Cancel("", "x"), 0);
  stream(0).End(grpc::Status::CANCELLED);  // late messages are dropped
  stream(1).SayTokens("b");
  EXPECT_EQ(second.choice().text(), "a");
  EXPECT_EQ(registry_.Cancel("another tenant", "x"), 1);
  EXPECT_EQ(registry_.size(), 1u);
}

TEST_F(CancelByIdTest, EntriesEndWithTheirRequests) {
  Start(Named("x"));
  stream(0).Finish("done");
  EXPECT_EQ(registry_.size(), 0u);
  EXPECT_EQ(registry_.Cancel("", "x"), 0);
  testing::FakeSink& left = Start(Named("y"));
  call().Cancel();  // as its client leaves
  EXPECT_EQ(ErrorReason(left.End()), "CANCELLED");
  v1::GenerateRequest refused = Named("z");
  refused.set_model("another");
  EXPECT_FALSE(Start(refused).End().ok());
  EXPECT_EQ(registry_.size(), 0u);
  const std::string generated = [&] {
    testing::FakeSink& sink = Start(Request());
    stream(2).SayTokens("a");
    return sink.choice().request_id();
  }();
  EXPECT_EQ(registry_.Cancel("", generated), 1) << "ids that the router makes count, too";
}

TEST_F(CancelByIdTest, ARequestThatWaitsForAWorkerIsCancelled) {
  testing::FakeSink& sink = Start(Named("x"));
  stream(0).SayTokens("a");
  for (int worker = 2; worker < kWorkers; ++worker) {
    reporting_[worker] = false;
    LoseWatch(worker);
  }
  stream(0).End(testing::kSocketClosed);
  EXPECT_FALSE(sink.ended()) << "it waits";
  EXPECT_EQ(registry_.Cancel("", "x"), 1);
  EXPECT_EQ(ErrorReason(sink.End()), "CANCELLED_BY_ID");
  Pass(absl::Seconds(1));
  EXPECT_EQ(network_.count(), 1u);
}

using DrainingWorkerTest = testing::CallHarness;

// An operator's drain costs no retries: the refusals before the routers know of it are few.
TEST_F(DrainingWorkerTest, ItsRefusalIsNotChargedToTheRetryBudget) {
  budget_limits_ = {.share = 0, .reserve = 0, .capacity = 100};
  testing::FakeSink& sink = Start(Request());
  stream(0).End(absl::StatusCode::kUnavailable, "DRAINING");
  EXPECT_NE(stream(1).worker, stream(0).worker);
  EXPECT_EQ(budget_->level(), 0);
  stream(1).Finish("c");
  EXPECT_EQ(sink.choice().text(), "c");
  // Nor does it count as a loss: when several workers drain at once, the request waits a moment.
  testing::FakeSink& patient = Start(Request());
  for (size_t i = 2; i < 5; ++i) {
    stream(i).End(absl::StatusCode::kUnavailable, "DRAINING");
    EXPECT_FALSE(patient.ended());
    EXPECT_EQ(network_.count(), i == 2 ? 4u : i + 1) << "from the second on after a pause";
    Pass(absl::Milliseconds(200));
    ASSERT_EQ(network_.count(), i + 2);
  }
  stream(5).Finish("d");
  EXPECT_EQ(patient.choice().text(), "d");
  EXPECT_EQ(budget_->level(), 0);
  // Any other loss is.
  testing::FakeSink& lost = Start(Request());
  stream(6).End(absl::StatusCode::kUnavailable, "PROTOCOL");
  EXPECT_FALSE(lost.ended() && lost.End().ok());
  EXPECT_EQ(network_.count(), 7u) << "not asked elsewhere at once";
}

}  // namespace
}  // namespace baton::router
