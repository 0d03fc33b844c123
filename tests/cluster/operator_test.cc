// What operators ask of two routers over the same workers under load: drains, flushes and cancels.
#include <gtest/gtest.h>

#include <cstdio>
#include <future>

#include "common/base/error.h"
#include "tests/cluster/replicas.h"
#include "tests/testing/seed.h"

namespace baton {
namespace {

class OperatorTest : public ReplicasTest {
 protected:
  // As `router` answers; its report may be newer than what the other one knows.
  absl::StatusOr<WorkerStatus> Drain(int router, const std::string& name) {
    grpc::ClientContext context;
    context.set_deadline(testing::TestDeadline());
    baton::v1::DrainRequest request;
    request.set_worker(Told(name));
    request.set_wait(true);
    baton::v1::DrainResponse response;
    const absl::Status status = FromGrpcStatus(
        baton::v1::AdminService::NewStub(channels_[router])->Drain(&context, request, &response));
    if (!status.ok()) return status;
    return response.worker();
  }
  absl::Status Undrain(int router, const std::string& name) {
    grpc::ClientContext context;
    context.set_deadline(testing::TestDeadline());
    baton::v1::UndrainRequest request;
    request.set_worker(Told(name));
    baton::v1::UndrainResponse response;
    return FromGrpcStatus(
        baton::v1::AdminService::NewStub(channels_[router])->Undrain(&context, request, &response));
  }
  bool AwaitWorker(int router, const std::string& name,
                   const std::function<bool(const WorkerStatus&)>& wished) {
    return Await(router, [&](const std::vector<WorkerStatus>& workers) {
      return std::any_of(workers.begin(), workers.end(), [&](const WorkerStatus& w) {
        return w.address() == Told(name) && wished(w);
      });
    });
  }
  // The router has chosen the worker for a request after `since`.
  bool Chosen(int router, const std::string& name, absl::Time since) {
    grpc::ClientContext context;
    context.set_deadline(testing::TestDeadline());
    baton::v1::ListDecisionsRequest request;
    request.set_max_decisions(1024);
    baton::v1::ListDecisionsResponse response;
    EXPECT_TRUE(baton::v1::AdminService::NewStub(channels_[router])
                    ->ListDecisions(&context, request, &response)
                    .ok());
    return std::any_of(response.decisions().begin(), response.decisions().end(),
                       [&](const auto& decision) {
                         return decision.time_unix_ms() > absl::ToUnixMillis(since) &&
                                (decision.computes_address() == Told(name) ||
                                 decision.answers_address() == Told(name));
                       });
  }
  int FlushAll(int router) {
    grpc::ClientContext context;
    context.set_deadline(testing::TestDeadline());
    baton::v1::FlushCacheResponse response;
    const grpc::Status status =
        baton::v1::AdminService::NewStub(channels_[router])->FlushCache(&context, {}, &response);
    EXPECT_TRUE(status.ok()) << status.error_message();
    int dropped = 0;
    for (const auto& worker : response.workers()) {
      EXPECT_EQ(worker.error(), "");
      dropped += worker.dropped_blocks();
    }
    return dropped;
  }
};

// One of each role at once, each asked of another router.
TEST_F(OperatorTest, WorkersAreDrainedAndComeBackUnderLoadAndNoAnswerIsLost) {
  StartAll({"p0", "p1", "d0", "d1"});
  const std::vector<Case> cases =
      MakeCases(*oracle_, 48, testing::TestSeed(54), /*max_tokens_bound=*/20);
  StartLoad(cases);
  AwaitAnswers(20);
  for (int round = 0; round < 2; ++round) {
    const std::string prefill = round == 0 ? "p0" : "p1", decode = round == 0 ? "d0" : "d1";
    auto other = std::async(std::launch::async, [&] { return Drain(1, prefill); });
    const absl::StatusOr<WorkerStatus> drained[] = {Drain(0, decode), other.get()};
    for (const auto& worker : drained) {
      ASSERT_TRUE(worker.ok()) << worker.status();
      EXPECT_EQ(worker->state(), baton::v1::WORKER_STATE_DRAINED);
    }
    const auto is_drained = [](const WorkerStatus& w) {
      return w.state() == baton::v1::WORKER_STATE_DRAINED;
    };
    for (const std::string& name : {prefill, decode}) {
      for (int moment = 0; moment < 2; ++moment) {
        const auto counts = BlockCounts(addresses_[name]);
        EXPECT_EQ(counts.free() + counts.cached(), counts.total()) << name;
        EXPECT_EQ(counts.open_transfers(), 0) << name;
        for (int i = 0; i < kRouters; ++i) ASSERT_TRUE(AwaitWorker(i, name, is_drained)) << name;
        const absl::Time known = absl::Now();
        AwaitAnswers(20);  // of the others
        for (int i = 0; i < kRouters; ++i) EXPECT_FALSE(Chosen(i, name, known)) << name;
      }
      ASSERT_TRUE(Undrain(round, name).ok());
    }
    const absl::Time undrained = absl::Now();
    for (const std::string& name : {prefill, decode}) {
      for (int i = 0; i < kRouters; ++i) ASSERT_TRUE(AwaitUse(i, name, true)) << name;
      for (int i = 0; i < 200 && !Chosen(0, name, undrained); ++i) AwaitAnswers(5);
      EXPECT_TRUE(Chosen(0, name, undrained)) << name;
    }
  }
  StopLoad();
  EXPECT_EQ(failed_, 0);
  ExpectIdle();

  int cached = 0;
  for (const auto& [name, worker] : workers_) cached += BlockCounts(worker->address()).cached();
  EXPECT_GT(cached, 0);
  EXPECT_EQ(FlushAll(0), cached);
  for (const auto& [name, worker] : workers_) {
    EXPECT_EQ(BlockCounts(worker->address()).cached(), 0);
    for (int i = 0; i < kRouters; ++i) {
      EXPECT_TRUE(
          AwaitWorker(i, name, [](const WorkerStatus& w) { return w.indexed_blocks() == 0; }));
    }
  }
}

TEST_F(OperatorTest, CancelledRequestsLeaveBothRolesWithinASecond) {
  StartAll({"p0", "d0"});
  std::mt19937 random(testing::TestSeed(55));
  std::vector<std::future<Answer>> answers;
  for (int i = 0; i < 8; ++i) {
    GenerateRequest request;
    for (int k = 0; k < 400; ++k) {
      request.mutable_token_ids()->add_ids(static_cast<int32_t>(random() % kVocabulary));
    }
    request.mutable_stop()->set_max_tokens(500);
    request.mutable_stop()->set_ignore_eos(true);
    request.set_n(8);  // more than the worker runs at once: none ends before it is cancelled
    request.set_request_id("all of them");
    answers.push_back(
        std::async(std::launch::async, [this, request] { return Generate(0, request); }));
  }
  // Some decode, others are prefilled or wait.
  ASSERT_TRUE(AwaitWorker(0, "d0", [](const WorkerStatus& w) { return w.running() > 0; }));
  int cancelled = 0;
  const auto cancel = [&](int router) {
    grpc::ClientContext context;
    context.set_deadline(testing::TestDeadline());
    baton::v1::CancelRequest request;
    request.set_request_id("all of them");
    baton::v1::CancelResponse response;
    const absl::Status status =
        FromGrpcStatus(baton::v1::InferenceService::NewStub(channels_[router])
                           ->Cancel(&context, request, &response));
    cancelled += response.cancelled();
    return status;
  };
  EXPECT_EQ(ErrorReason(cancel(1)), "UNKNOWN_REQUEST") << "the other router does not have them";
  const absl::Time start = absl::Now();
  int ended_by_id = 0;
  for (auto& answer : answers) {
    // Those that the router admits after a Cancel need another one.
    while (answer.wait_for(std::chrono::seconds(0)) != std::future_status::ready) (void)cancel(0);
    const absl::Status status = answer.get().status;
    EXPECT_TRUE(status.ok() || ErrorReason(status) == "CANCELLED_BY_ID") << status;
    ended_by_id += status.ok() ? 0 : 1;
  }
  EXPECT_GT(cancelled, 0);
  EXPECT_EQ(ended_by_id, cancelled);
  for (const char* name : {"d0", "p0"}) ASSERT_TRUE(WaitUntilIdle(addresses_[name]).ok()) << name;
  const absl::Duration took = absl::Now() - start;
  std::printf("both roles were free %.0f ms after the first cancel\n",
              absl::ToDoubleMilliseconds(took));
  EXPECT_LT(took, absl::Seconds(2)) << "one second, and one for a busy machine";
  ExpectIdle();
}

}  // namespace
}  // namespace baton
