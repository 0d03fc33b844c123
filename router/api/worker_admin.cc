// The part of AdminService that asks the workers themselves.
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/error.h"
#include "common/base/rpc/grpc_status.h"
#include "router/api/service.h"
#include "router/fleet/roster.h"
#include "router/metrics.h"
#include "router/options.h"
#include "router/request/admission.h"

namespace baton::router {
namespace {

namespace worker_pb = ::baton::internal::v1;

using WorkerStub = worker_pb::WorkerService::Stub;

// A worker's answer to an operator. An error without a reason is the transport's.
absl::Status FromAnswer(const grpc::Status& status, const std::string& address) {
  absl::Status error = FromGrpcStatus(status);
  if (error.ok() || !ErrorReason(error).empty()) return error;
  if (absl::IsDeadlineExceeded(error)) {
    return MakeError(error.code(), "DEADLINE_EXCEEDED",
                     absl::StrCat("the call's deadline passed before the worker at ", address,
                                  " was done, which goes on"));
  }
  if (absl::IsCancelled(error)) return MakeError(error.code(), "CANCELLED", "the client cancelled");
  return MakeError(absl::StatusCode::kUnavailable, "WORKER_LOST",
                   absl::StrCat("the worker at ", address, " did not answer: ", error.message()));
}

// A worker with its stub. Whatever uses the stub must be destroyed before the worker's hold,
// because only the thread that watches workers may end a channel: hence the order of members, here
// and below.
struct ReachedWorker {
  WorkerTarget target;
  std::shared_ptr<WorkerStub> stub;
};

// An error if the worker cannot be asked now.
absl::StatusOr<ReachedWorker> Reach(const Roster& roster, const WorkerStubs& stubs,
                                    absl::string_view name) {
  absl::StatusOr<WorkerTarget> target = roster.Find(name);
  if (!target.ok()) return target.status();
  std::shared_ptr<WorkerStub> stub = stubs(target->worker);
  if (stub == nullptr) {
    return MakeError(absl::StatusCode::kUnavailable, "NO_WORKER",
                     absl::StrCat("the worker at ", target->address, " is not reached yet"));
  }
  return ReachedWorker{*std::move(target), std::move(stub)};
}

// A Drain or Undrain call. Deletes itself.
class DrainCall final : public grpc::ServerUnaryReactor {
 public:
  DrainCall(const Roster& roster, ReachedWorker worker, v1::WorkerStatus* answer)
      : roster_(roster), worker_(std::move(worker)), answer_(answer) {}

  void Start(bool draining, bool wait, absl::Time deadline) {
    request_.set_epoch(worker_.target.epoch);
    request_.set_draining(draining);
    request_.set_wait(wait);
    context_.set_deadline(absl::ToChronoTime(deadline));
    worker_.stub->async()->SetDraining(&context_, &request_, &response_,
                                       [this](const grpc::Status& status) { OnAnswer(status); });
  }

 private:
  void OnCancel() override { context_.TryCancel(); }
  void OnDone() override { delete this; }

  void OnAnswer(const grpc::Status& status) {
    const absl::Status result = FromAnswer(status, worker_.target.address);
    if (result.ok()) {
      *answer_ = roster_.Status(worker_.target.worker);
      // The worker's report to this router may still be on its way.
      const worker_pb::LoadReport& load = response_.load();
      answer_->set_running(load.running());
      answer_->set_queued(load.queued());
      answer_->set_free_blocks(load.free_blocks());
      if (Serving(answer_->state())) {
        answer_->set_state(load.drained()    ? v1::WORKER_STATE_DRAINED
                           : load.draining() ? v1::WORKER_STATE_DRAINING
                                             : v1::WORKER_STATE_READY);
        answer_->clear_detail();
      }
    }
    Finish(ToGrpcStatus(result));  // OnDone may delete this meanwhile
  }

  const Roster& roster_;
  ReachedWorker worker_;
  v1::WorkerStatus* const answer_;
  grpc::ClientContext context_;
  worker_pb::SetDrainingRequest request_;
  worker_pb::SetDrainingResponse response_;
};

// A FlushCache call to one worker or all. Deletes itself.
class FlushCall final : public grpc::ServerUnaryReactor {
 public:
  FlushCall(const Roster& roster, const WorkerStubs& stubs, v1::FlushCacheResponse* answer)
      : roster_(roster), stubs_(stubs), answer_(answer) {}

  void Start(const std::vector<v1::WorkerStatus>& workers, absl::Time deadline) {
    flushes_.resize(workers.size());
    left_ = static_cast<int>(workers.size()) + 1;  // one is of this method
    for (size_t i = 0; i < workers.size(); ++i) {
      v1::FlushedCache* flushed = answer_->add_workers();
      flushed->set_address(workers[i].address());
      flushed->set_role(workers[i].role());
    }
    for (size_t i = 0; i < workers.size(); ++i) {
      v1::FlushedCache* flushed = answer_->mutable_workers(static_cast<int>(i));
      absl::StatusOr<ReachedWorker> worker = Reach(roster_, stubs_, flushed->address());
      if (!worker.ok()) {
        flushed->set_error(std::string(worker.status().message()));
        OneIsDone();
        continue;
      }
      flushes_[i] = std::make_unique<Flush>();
      Flush& flush = *flushes_[i];
      flush.worker = *std::move(worker);
      flush.request.set_epoch(flush.worker.target.epoch);
      flush.context.set_deadline(absl::ToChronoTime(deadline));
      flush.worker.stub->async()->FlushCache(&flush.context, &flush.request, &flush.response,
                                             [this, &flush, flushed](const grpc::Status& status) {
                                               OnAnswer(status, flush, flushed);
                                             });
    }
    OneIsDone();
  }

 private:
  struct Flush {
    ReachedWorker worker;
    grpc::ClientContext context;
    worker_pb::FlushCacheRequest request;
    worker_pb::FlushCacheResponse response;
  };

  // Without OnCancel: a flush takes no longer than a step.
  void OnDone() override { delete this; }

  void OnAnswer(const grpc::Status& status, Flush& flush, v1::FlushedCache* flushed) {
    const absl::Status result = FromAnswer(status, flush.worker.target.address);
    if (result.ok()) {
      flushed->set_dropped_blocks(flush.response.dropped_blocks());
    } else {
      flushed->set_error(std::string(result.message()));
    }
    OneIsDone();
  }
  void OneIsDone() {
    if (--left_ == 0) Finish(grpc::Status::OK);
  }

  const Roster& roster_;
  const WorkerStubs& stubs_;
  v1::FlushCacheResponse* const answer_;
  std::vector<std::unique_ptr<Flush>> flushes_;
  std::atomic<int> left_{0};
};

void Fill(const RouterMetrics::Histogram& from, v1::SecondsHistogram* to) {
  to->mutable_bounds_s()->Assign(from.bounds_s.begin(), from.bounds_s.end());
  to->mutable_counts()->Assign(from.counts.begin(), from.counts.end());
}

grpc::ServerUnaryReactor* Refuse(grpc::CallbackServerContext* context, const absl::Status& error) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(error));
  return reactor;
}

}  // namespace

grpc::ServerUnaryReactor* AdminService::SetDraining(grpc::CallbackServerContext* context,
                                                    const std::string& name, bool draining,
                                                    bool wait, v1::WorkerStatus* answer) {
  if (absl::Status allowed = Allow(*context); !allowed.ok()) return Refuse(context, allowed);
  absl::StatusOr<ReachedWorker> worker = Reach(parts_.roster, worker_stubs_, name);
  if (!worker.ok()) return Refuse(context, worker.status());
  auto* call = new DrainCall(parts_.roster, *std::move(worker), answer);
  call->Start(draining, wait, DeadlineOf(*context, parts_));
  return call;
}

grpc::ServerUnaryReactor* AdminService::Drain(grpc::CallbackServerContext* context,
                                              const v1::DrainRequest* request,
                                              v1::DrainResponse* response) {
  return SetDraining(context, request->worker(), true, request->wait(), response->mutable_worker());
}

grpc::ServerUnaryReactor* AdminService::Undrain(grpc::CallbackServerContext* context,
                                                const v1::UndrainRequest* request,
                                                v1::UndrainResponse* response) {
  return SetDraining(context, request->worker(), false, false, response->mutable_worker());
}

grpc::ServerUnaryReactor* AdminService::FlushCache(grpc::CallbackServerContext* context,
                                                   const v1::FlushCacheRequest* request,
                                                   v1::FlushCacheResponse* response) {
  if (absl::Status allowed = Allow(*context); !allowed.ok()) return Refuse(context, allowed);
  std::vector<v1::WorkerStatus> workers;
  if (request->worker().empty()) {
    workers = parts_.roster.List();
  } else {
    const absl::StatusOr<WorkerTarget> target = parts_.roster.Find(request->worker());
    if (!target.ok()) return Refuse(context, target.status());
    workers.push_back(parts_.roster.Status(target->worker));
  }
  auto* call = new FlushCall(parts_.roster, worker_stubs_, response);
  call->Start(workers, DeadlineOf(*context, parts_));
  return call;
}

grpc::ServerUnaryReactor* AdminService::GetLoads(grpc::CallbackServerContext* context,
                                                 const v1::GetLoadsRequest* request,
                                                 v1::GetLoadsResponse* response) {
  if (absl::Status allowed = Allow(*context); !allowed.ok()) return Refuse(context, allowed);
  for (v1::WorkerLoad& load : parts_.roster.Loads()) *response->add_workers() = std::move(load);
  const Admission::Load load = parts_.admission.load();
  v1::RouterLoad& router = *response->mutable_router();
  router.set_requests(load.inside.requests);
  router.set_max_requests(static_cast<int>(parts_.options.max_inflight_requests));
  router.set_prompt_tokens(load.inside.prompt_tokens);
  router.set_max_prompt_tokens(parts_.options.max_inflight_prompt_tokens);
  router.set_requests_before_first_token(load.before_first_token);
  if (const std::optional<RouterMetrics::Totals> counted = parts_.metrics.ReadTotals()) {
    v1::RouterTotals& totals = *response->mutable_totals();
    totals.set_epoch(epoch_);
    Fill(counted->time_to_first_token, totals.mutable_time_to_first_token());
    Fill(counted->inter_token_latency, totals.mutable_inter_token_latency());
    totals.set_requests(counted->requests);
    totals.set_rejections(counted->rejections);
    totals.set_prompt_tokens(counted->prompt_tokens);
    totals.set_cached_prompt_tokens(counted->cached_prompt_tokens);
  }
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

}  // namespace baton::router
