// What an operator asks of workers through a router, over real gRPC: drains, flushes, loads,
// cancels.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "common/base/error.h"
#include "common/base/rpc/grpc_status.h"
#include "tests/router/generate_client.h"
#include "tests/testing/fake_cluster.h"
#include "tests/testing/http_client.h"

namespace baton::router {
namespace {

using ::baton::testing::Call;
using ::baton::testing::DecodeCall;
using ::baton::testing::FakeCluster;
using ::baton::testing::FakeWorker;
using ::baton::testing::Prompt;
using ::testing::HasSubstr;

class WorkerAdminTest : public ::testing::Test {
 protected:
  template <class Stub, class Request, class Response>
  absl::Status Ask(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                   Stub& stub, const Request& request, Response* response,
                   absl::Duration timeout = testing::kPatience) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    return FromGrpcStatus((stub.*method)(&context, request, response));
  }
  absl::StatusOr<v1::WorkerStatus> Drain(const std::string& worker, bool wait = false,
                                         absl::Duration timeout = testing::kPatience) {
    v1::DrainRequest request;
    request.set_worker(worker);
    request.set_wait(wait);
    v1::DrainResponse response;
    const absl::Status status =
        Ask(&v1::AdminService::Stub::Drain, *admin_, request, &response, timeout);
    if (!status.ok()) return status;
    return response.worker();
  }
  absl::StatusOr<v1::WorkerStatus> Undrain(const std::string& worker) {
    v1::UndrainRequest request;
    request.set_worker(worker);
    v1::UndrainResponse response;
    const absl::Status status = Ask(&v1::AdminService::Stub::Undrain, *admin_, request, &response);
    if (!status.ok()) return status;
    return response.worker();
  }
  absl::StatusOr<v1::FlushCacheResponse> Flush(const std::string& worker = "") {
    v1::FlushCacheRequest request;
    request.set_worker(worker);
    v1::FlushCacheResponse response;
    const absl::Status status =
        Ask(&v1::AdminService::Stub::FlushCache, *admin_, request, &response);
    if (!status.ok()) return status;
    return response;
  }
  v1::GetLoadsResponse Loads() {
    v1::GetLoadsResponse response;
    const absl::Status status =
        Ask(&v1::AdminService::Stub::GetLoads, *admin_, v1::GetLoadsRequest(), &response);
    EXPECT_TRUE(status.ok()) << status;
    return response;
  }
  absl::StatusOr<int> Cancel(const std::string& id, const std::string& tenant = "") {
    v1::CancelRequest request;
    request.set_request_id(id);
    request.set_tenant(tenant);
    v1::CancelResponse response;
    const absl::Status status =
        Ask(&v1::InferenceService::Stub::Cancel, *inference_, request, &response);
    if (!status.ok()) return status;
    return response.cancelled();
  }
  bool AwaitState(const std::string& address, v1::WorkerState state) {
    return cluster_.AwaitState(
        [&](const v1::WorkerStatus& w) { return w.address() != address || w.state() == state; });
  }

  int taken_[2] = {0, 0};
  FakeCluster cluster_{1, 2, [](Options* options) { options->http_listen = "127.0.0.1:0"; }};
  const std::unique_ptr<v1::AdminService::Stub> admin_ =
      v1::AdminService::NewStub(cluster_.channel());
  const std::unique_ptr<v1::InferenceService::Stub> inference_ =
      v1::InferenceService::NewStub(cluster_.channel());
};

TEST_F(WorkerAdminTest, DrainsByAddressAndUndrainsById) {
  const std::string address = cluster_.decode(0)->address();
  cluster_.decode(0)->TellLoad(/*running=*/2, /*queued=*/1, 0);
  auto worker = Drain(address);
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_EQ(worker->address(), address);
  EXPECT_EQ(worker->state(), v1::WORKER_STATE_DRAINING);
  EXPECT_EQ(worker->running(), 2);
  EXPECT_EQ(worker->queued(), 1);
  ASSERT_TRUE(AwaitState(address, v1::WORKER_STATE_DRAINING));
  internal::v1::WatchResponse drained;
  drained.mutable_load()->set_draining(true);
  drained.mutable_load()->set_drained(true);
  cluster_.decode(0)->Tell(drained);
  ASSERT_TRUE(AwaitState(address, v1::WORKER_STATE_DRAINED));
  // New requests go to the other one.
  Call call(cluster_, Prompt("hello"));
  cluster_.decode(1)->AwaitDecode().Finish({1}, internal::v1::DecodeResponse::FINISH_LENGTH);
  call.Rest();
  EXPECT_TRUE(call.End().ok());
  EXPECT_EQ(cluster_.decode(0)->decode_count(), 0);

  worker = Undrain(worker->worker_id());
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_EQ(worker->state(), v1::WORKER_STATE_READY);
  EXPECT_TRUE(AwaitState(address, v1::WORKER_STATE_READY));
}

TEST_F(WorkerAdminTest, AWaitEndsWhenTheWorkerIsDrainedOrAtTheDeadline) {
  FakeWorker& prefill = *cluster_.prefill(0);
  prefill.TellLoad(1, 0, 0);
  do {  // the deadline may pass before a busy machine has brought the call to the worker
    const absl::Status late =
        Drain(prefill.address(), /*wait=*/true, absl::Milliseconds(50)).status();
    ASSERT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded) << late;
  } while (prefill.drain_waits() == 0);
  EXPECT_TRUE(AwaitState(prefill.address(), v1::WORKER_STATE_DRAINING)) << "the drain goes on";
  const int before = prefill.drain_waits();
  auto wait = std::async(std::launch::async, [&] { return Drain(prefill.address(), true); });
  while (prefill.drain_waits() == before) std::this_thread::yield();
  EXPECT_EQ(wait.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  internal::v1::WatchResponse drained;
  drained.mutable_load()->set_draining(true);
  drained.mutable_load()->set_drained(true);
  prefill.Tell(drained);
  const auto worker = wait.get();
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_EQ(worker->state(), v1::WORKER_STATE_DRAINED);
}

TEST_F(WorkerAdminTest, AWaitEndsWithTheWorkerOrTheRouter) {
  FakeWorker& decode = *cluster_.decode(0);
  for (const bool router_ends : {false, true}) {
    FakeWorker& worker = router_ends ? *cluster_.decode(1) : decode;
    worker.TellLoad(1, 0, 0);
    auto wait = std::async(std::launch::async,
                           [&] { return Drain(worker.address(), /*wait=*/true).status(); });
    while (worker.drain_waits() == 0) std::this_thread::yield();
    if (router_ends) {
      cluster_.server().Drain(absl::ZeroDuration());
      EXPECT_FALSE(wait.get().ok());
    } else {
      cluster_.decode(0).reset();
      // Answered in its end, or not at all.
      const absl::Status status = wait.get();
      EXPECT_TRUE(status.ok() || ErrorReason(status) == "WORKER_LOST") << status;
    }
  }
}

TEST_F(WorkerAdminTest, UnknownAndUnreachedWorkersAreErrors) {
  for (const absl::Status& status :
       {Drain("10.0.0.1:7").status(), Undrain("no-such-worker").status(),
        Flush("no-such-worker").status(), Drain("").status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kNotFound) << status;
    EXPECT_EQ(ErrorReason(status), "UNKNOWN_WORKER");
  }
}

TEST_F(WorkerAdminTest, FlushesOneWorkerOrAll) {
  const auto one = Flush(cluster_.decode(0)->address());
  ASSERT_TRUE(one.ok()) << one.status();
  ASSERT_EQ(one->workers_size(), 1);
  EXPECT_EQ(one->workers(0).address(), cluster_.decode(0)->address());
  EXPECT_EQ(one->workers(0).role(), v1::WORKER_ROLE_DECODE);
  EXPECT_EQ(one->workers(0).dropped_blocks(), FakeWorker::kFlushedBlocks);
  const std::string gone = cluster_.decode(1)->address();
  cluster_.decode(1).reset();
  const auto all = Flush();
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_EQ(all->workers_size(), 3);
  for (const v1::FlushedCache& worker : all->workers()) {
    const bool reached = worker.address() != gone;
    EXPECT_EQ(worker.error().empty(), reached) << worker.error();
    EXPECT_EQ(worker.dropped_blocks(), reached ? FakeWorker::kFlushedBlocks : 0);
  }
}

TEST_F(WorkerAdminTest, LoadsAreThoseLastReportedAndTheRoutersOwn) {
  internal::v1::WatchResponse event;
  internal::v1::LoadReport& load = *event.mutable_load();
  load.set_running(3);
  load.set_queued(2);
  load.set_queued_tokens(700);
  load.set_context_tokens(4000);
  load.set_remaining_work_us(1500);
  load.set_active_blocks(10);
  load.set_cached_blocks(20);
  load.set_held_blocks(4);
  load.set_retained_blocks(7);
  load.set_open_transfers(2);
  load.set_age_us(5'000'000);
  load.set_computed_prompt_tokens(9000);
  load.set_generated_tokens(600);
  load.set_draft_tokens(500);
  load.set_accepted_draft_tokens(400);
  cluster_.decode(1)->Tell(event);
  v1::GetLoadsResponse loads;
  const auto find = [&] {
    loads = Loads();
    for (const v1::WorkerLoad& worker : loads.workers()) {
      if (worker.address() == cluster_.decode(1)->address()) return worker;
    }
    return v1::WorkerLoad();
  };
  while (find().running() != 3) std::this_thread::yield();
  // The other one is idle.
  Call call(cluster_, Prompt("hello"));
  DecodeCall decode = cluster_.decode(0)->AwaitDecode();
  const v1::WorkerLoad worker = find();
  EXPECT_EQ(loads.workers_size(), 3);
  EXPECT_EQ(worker.role(), v1::WORKER_ROLE_DECODE);
  EXPECT_EQ(worker.state(), v1::WORKER_STATE_READY);
  EXPECT_EQ(worker.queued(), 2);
  EXPECT_EQ(worker.queued_tokens(), 700);
  EXPECT_EQ(worker.context_tokens(), 4000);
  EXPECT_EQ(worker.remaining_work_ms(), 1.5);
  EXPECT_EQ(worker.total_blocks(), 64);
  EXPECT_EQ(worker.free_blocks(), 30);
  EXPECT_EQ(worker.cached_blocks(), 20);
  EXPECT_EQ(worker.active_blocks(), 10);
  EXPECT_EQ(worker.held_blocks(), 4);
  EXPECT_EQ(worker.retained_blocks(), 7);
  EXPECT_EQ(worker.open_transfers(), 2);
  EXPECT_GE(worker.age_ms(), 5000) << "the worker's numbers were old when they were sent";
  EXPECT_EQ(worker.computed_prompt_tokens(), 9000);
  EXPECT_EQ(worker.generated_tokens(), 600);
  EXPECT_EQ(worker.draft_tokens(), 500);
  EXPECT_EQ(worker.accepted_draft_tokens(), 400);
  EXPECT_NE(worker.epoch(), 0u);
  EXPECT_EQ(loads.router().requests(), 1);
  EXPECT_EQ(loads.router().prompt_tokens(), 5);
  EXPECT_EQ(loads.router().requests_before_first_token(), 1);
  EXPECT_GT(loads.router().max_requests(), 1);
  EXPECT_GT(loads.router().max_prompt_tokens(), 5);
  decode.Finish({1}, internal::v1::DecodeResponse::FINISH_LENGTH);
  call.Rest();
  EXPECT_FALSE(loads.has_totals()) << "this router has no /metrics";
}

TEST(RouterTotalsTest, AreThoseOfTheMetrics) {
  FakeCluster cluster(1, 1, [](Options* options) {
    options->metrics_listen = "127.0.0.1:0";
    options->max_inflight_requests = 1;
  });
  Call call(cluster, Prompt("hello"));
  DecodeCall decode = cluster.decode(0)->AwaitDecode();
  Call refused(cluster, Prompt("hello"));
  EXPECT_EQ(ErrorReason(refused.End()), "TOO_MANY_REQUESTS");
  decode.SendTokens({1});
  decode.Finish({1, 1}, internal::v1::DecodeResponse::FINISH_LENGTH);
  call.Rest();
  EXPECT_TRUE(call.End().ok());
  grpc::ClientContext context;
  v1::GetLoadsResponse loads;
  ASSERT_TRUE(v1::AdminService::NewStub(cluster.channel())
                  ->GetLoads(&context, v1::GetLoadsRequest(), &loads)
                  .ok());
  const v1::RouterTotals& totals = loads.totals();
  EXPECT_NE(totals.epoch(), 0u);
  EXPECT_EQ(totals.requests(), 2);
  EXPECT_EQ(totals.rejections(), 1);
  EXPECT_EQ(totals.prompt_tokens(), 5);
  EXPECT_EQ(totals.cached_prompt_tokens(), 0);
  for (const auto& [histogram, values] : {std::pair(&totals.time_to_first_token(), uint64_t{1}),
                                          std::pair(&totals.inter_token_latency(), uint64_t{2})}) {
    ASSERT_GT(histogram->bounds_s_size(), 0);
    ASSERT_EQ(histogram->counts_size(), histogram->bounds_s_size() + 1);
    EXPECT_EQ(histogram->counts(histogram->bounds_s_size()), values);
  }
}

TEST_F(WorkerAdminTest, CancelsCallsOfGrpcAndHttpAlike) {
  v1::GenerateRequest request = Prompt("hello");
  request.set_request_id("mine");
  Call grpc_call(cluster_, request);
  const auto take = [&] {  // whichever worker has it
    while (true) {
      for (int i : {0, 1}) {
        if (cluster_.decode(i)->decode_count() > taken_[i]) {
          ++taken_[i];
          return cluster_.decode(i)->AwaitDecode();
        }
      }
      std::this_thread::yield();
    }
  };
  DecodeCall first = take();
  testing::HttpClient http(cluster_.server().http_address());
  http.Post("/v1/completions", R"({"model":"tiny","prompt":"hello","max_tokens":5})",
            "X-Request-Id: mine\r\n");
  DecodeCall second = take();
  EXPECT_EQ(*Cancel("mine"), 2);
  EXPECT_EQ(ErrorReason(grpc_call.End()), "CANCELLED_BY_ID");
  const testing::HttpReply reply = http.Read();
  EXPECT_EQ(reply.status, 499);
  EXPECT_THAT(reply.body, HasSubstr("cancelled_by_id"));
  EXPECT_TRUE(first.stream->AwaitCancelled());
  EXPECT_TRUE(second.stream->AwaitCancelled());
  const absl::Status again = Cancel("mine").status();
  EXPECT_EQ(again.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ErrorReason(again), "UNKNOWN_REQUEST");
  EXPECT_EQ(ErrorReason(Cancel("").status()), "BAD_REQUEST_ID");
  EXPECT_EQ(ErrorReason(Cancel("x\n").status()), "BAD_REQUEST_ID");
  EXPECT_EQ(ErrorReason(Cancel("x", "\n").status()), "BAD_TENANT");
}

// A decode worker answers a request for one token by itself, which leaves the prompt in its cache.
TEST(WarmPrefixTest, WithoutPrefillWorkersDecodeWorkersKeepThePrefix) {
  FakeCluster cluster(0, 2);
  cluster.SetReply([](DecodeCall call) {
    EXPECT_FALSE(call.request.has_prefill());
    call.Finish({'x'}, internal::v1::DecodeResponse::FINISH_LENGTH);
  });
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + testing::kPatience));
  v1::WarmPrefixRequest request;
  request.set_text("what many prompts begin with");
  v1::WarmPrefixResponse response;
  const grpc::Status status =
      v1::AdminService::NewStub(cluster.channel())->WarmPrefix(&context, request, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  std::vector<std::string> addresses;
  for (const auto& worker : response.prefix().workers()) {
    EXPECT_EQ(worker.error(), "");
    addresses.push_back(worker.address());
  }
  EXPECT_THAT(addresses, ::testing::UnorderedElementsAre(cluster.decode(0)->address(),
                                                         cluster.decode(1)->address()));
}

}  // namespace
}  // namespace baton::router
