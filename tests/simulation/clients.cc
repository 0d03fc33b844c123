#include "tests/simulation/clients.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"

namespace baton::simulation {
namespace {

// As far as the client's own transport notices.
absl::Status LateStatus() { return absl::DeadlineExceededError("the deadline passed"); }

}  // namespace

void Clients::Submit(RequestSpec spec) {
  auto request = std::make_shared<Request>();
  requests_.push_back(request);
  request->spec = std::move(spec);
  request->id = absl::StrCat("request-", ++request_count_);
  request->expected = std::make_shared<const Expected>(Oracle(request->spec));
  request->next_router = static_cast<size_t>(request_count_);
  ++open_requests_;
  world_.At(request->spec.start, [this, request] { Ask(request); });
  const auto give_up = [this, request] { GiveUp(request); };
  world_.At(request->spec.deadline, give_up);
  if (request->spec.cancel_at >= 0) world_.At(request->spec.cancel_at, give_up);
}

void Clients::Ask(const std::shared_ptr<Request>& request) {
  if (request->ended) return;
  // Its router died before it heard of that.
  if (request->given_up) return End(*request, absl::CancelledError("by the client"));
  Router& router = *routers_[request->next_router++ % routers_.size()];
  if (!router.alive()) {
    // Refused by its host.
    return AskAgain(request, world_.random.Time(10 * kMillisecond, 500 * kMillisecond));
  }
  ++counts_.calls;
  request->judge = std::make_shared<Judge>(
      world_, may_fail_, request->spec, request->expected, request->id,
      [this, weak = std::weak_ptr<Request>(request)](const absl::Status& status) {
        if (auto ended = weak.lock()) OnEnd(ended, status);
      });
  request->router = &router;
  request->call = router.Take(ToProto(request->spec, request->id), request->spec.deadline,
                              request->spec.reads, request->judge, [this, request] {
                                ++counts_.lost_routers;
                                request->router = nullptr;
                                AskAgain(request, world_.random.Time(100, 30 * kMillisecond));
                              });
}

void Clients::AskAgain(const std::shared_ptr<Request>& request, Micros after) {
  world_.At(world_.now() + after, [this, request] { Ask(request); });
}

void Clients::GiveUp(const std::shared_ptr<Request>& request) {
  if (request->ended || request->given_up) return;
  request->given_up = true;
  if (request->router == nullptr) {
    // Between two calls.
    return End(*request, world_.now() >= request->spec.deadline
                             ? LateStatus()
                             : absl::CancelledError("by the client"));
  }
  request->judge->OnCancelled();
  request->router->Cancel(request->call);
}

void Clients::OnEnd(const std::shared_ptr<Request>& request, const absl::Status& status) {
  const RequestSpec& spec = request->spec;
  const Judge& judge = *request->judge;
  request->router = nullptr;
  counts_.tokens += judge.tokens();
  counts_.heartbeats += judge.heartbeats();
  // No simulated request ends a process, so a request that the router blames for deaths may be sent
  // again.
  const bool lost = absl::IsUnavailable(status) || absl::IsResourceExhausted(status) ||
                    ErrorReason(status) == "WORKERS_DIED";
  if (!status.ok() && !absl::IsCancelled(status)) {
    const std::string reason = ErrorReason(status);
    ++failed_by_reason_[reason.empty() ? absl::StatusCodeToString(status.code()) : reason];
  }
  if (lost && judge.begun()) ++counts_.cut;
  if (lost && spec.asks_again && !request->given_up && !CanNeverFit(spec, may_fail_, status)) {
    const absl::Duration told = ErrorRetryAfter(status).value_or(absl::Milliseconds(100));
    AskAgain(request, absl::ToInt64Microseconds(told) + world_.random.Time(0, 50 * kMillisecond));
    return;
  }
  End(*request, status);
}

void Clients::End(Request& request, const absl::Status& status) {
  request.ended = true;
  --open_requests_;
  if (status.ok()) {
    ++counts_.finished;
    return;
  }
  // What fails while word of the client's going is on its way is of no interest any more.
  const bool late = world_.now() >= request.spec.deadline;
  if (request.given_up && !late) {
    ++counts_.cancelled;
    return;
  }
  ++counts_.failed;
  const bool never_fits = CanNeverFit(request.spec, may_fail_, status);
  if (never_fits) ++counts_.never_fit;
  if (late) ++counts_.late;
  const bool ample = request.spec.deadline - request.spec.start >= kAmpleTime;
  // At its deadline, whether or not the client would ask again, it hung.
  if (ample && (request.spec.asks_again || late) && !never_fits) {
    world_.Fail(absl::StrCat(request.id, " failed with time enough: ", status.ToString()));
  }
}

}  // namespace baton::simulation
