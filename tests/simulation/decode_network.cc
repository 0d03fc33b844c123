#include "tests/simulation/decode_network.h"

#include <utility>

#include "common/base/rpc/grpc_status.h"
#include "common/worker/request_tokens.h"

namespace baton::simulation {

using internal::v1::DecodeRequest;
using internal::v1::DecodeResponse;

// The router's end of one call. What a cancelled call still receives before its end is delivered,
// as over gRPC.
class SimDecodeNetwork::Call final : public router::DecodeHandle,
                                     public std::enable_shared_from_this<Call> {
 public:
  Call(SimDecodeNetwork& network, uint64_t id, bool resumed, bool continuation,
       std::shared_ptr<router::DecodeListener> listener, int number)
      : network_(&network),
        id_(id),
        resumed_(resumed),
        continuation_(continuation),
        listener_(std::move(listener)),
        number_(number) {}

  void Begin(DecodeWorker* target, DecodeRequest request, absl::Time deadline) {
    World& world = network_->world_;
    stream_ = world.Open(network_->node_, target->node());
    const std::weak_ptr<Call> weak = weak_from_this();
    stream_->OnLost(0, [weak] {
      if (const auto call = weak.lock()) call->End({grpc::StatusCode::UNAVAILABLE, "broken"});
    });
    DecodeWorker::Caller caller;
    caller.response = [weak](const DecodeResponse& response) {
      if (const auto call = weak.lock()) call->OnResponse(response);
    };
    caller.status = [weak](const absl::Status& status) {
      if (const auto call = weak.lock()) call->End(ToGrpcStatus(status));
    };
    stream_->Send(0, [target, request = std::move(request), deadline,
                      stream = std::weak_ptr<Stream>(stream_), caller = std::move(caller)] {
      if (const auto live = stream.lock()) target->Accept(request, deadline, live, caller);
    });
    world.AtNode(network_->node_, absl::ToInt64Microseconds(deadline - absl::UnixEpoch()), [weak] {
      if (const auto call = weak.lock()) {
        call->BreakOff();
        call->End({grpc::StatusCode::DEADLINE_EXCEEDED, "deadline"});
      }
    });
  }

  void Cancel() override {
    BreakOff();
    World& world = network_->world_;
    world.AtNode(network_->node_, world.now() + world.random.Time(0, 2 * kMillisecond),
                 [weak = weak_from_this()] {
                   const auto call = weak.lock();
                   if (call != nullptr) call->End(grpc::Status::CANCELLED);
                 });
  }

  // The router's process is gone; its streams are the World's to end.
  void Forget() {
    network_ = nullptr;
    listener_ = nullptr;
  }

 private:
  void BreakOff() {
    if (network_ == nullptr) return;
    stream_->Send(0, [stream = std::weak_ptr<Stream>(stream_)] {
      if (const auto live = stream.lock()) live->Break(0, 0);
    });
  }

  void OnResponse(const DecodeResponse& response) {
    if (network_ == nullptr) return;
    const auto self = shared_from_this();
    const bool says_more =
        !response.token_ids().empty() && response.finish() == DecodeResponse::FINISH_UNSPECIFIED;
    if (network_->bug_ == Bug::kResumeLosesToken && resumed_ && says_more) {
      resumed_ = false;
      DecodeResponse empty = response;
      empty.clear_token_ids();
      empty.clear_logprobs();
      listener_->OnDecoded(number_, empty);
      return;
    }
    listener_->OnDecoded(number_, response);
    const bool twice = network_ != nullptr && network_->bug_ == Bug::kMessageTwice && says_more &&
                       network_->world_.random.Chance(0.02);
    if (twice) listener_->OnDecoded(number_, response);
  }

  void End(const grpc::Status& status) {
    if (network_ == nullptr) return;
    SimDecodeNetwork& network = *std::exchange(network_, nullptr);
    const auto self = shared_from_this();
    stream_->Close(0);
    const auto listener = std::exchange(listener_, nullptr);
    if (network.bug_ == Bug::kTicketLeaked && network.world_.random.Chance(0.05)) {
      network.leaked_calls_.push_back(listener);
    }
    if (network.bug_ == Bug::kHoldLeaked && continuation_) {
      network.leaked_holds_.emplace_back(&network.line_, network.world_.SinceStart());
    }
    network.calls_.erase(id_);
    listener->OnStreamEnd(number_, status);
  }

  SimDecodeNetwork* network_;  // null once the call has ended
  const uint64_t id_;
  bool resumed_;
  const bool continuation_;
  std::shared_ptr<router::DecodeListener> listener_;
  const int number_;
  std::shared_ptr<Stream> stream_;
};

SimDecodeNetwork::~SimDecodeNetwork() {
  for (const auto& [id, call] : calls_) call->Forget();
}

router::DecodeHandle* SimDecodeNetwork::Open(int worker, DecodeRequest request, const TraceContext&,
                                             absl::Time deadline,
                                             std::shared_ptr<router::DecodeListener> listener,
                                             int number) {
  const size_t target = static_cast<size_t>(worker - first_worker_);
  ++counts_.calls[target];
  const bool resumed = worker::TokensOf(request).size() > request.prompt_tokens();
  counts_.resumed += resumed ? 1 : 0;
  if (resumed && bug_ == Bug::kResumeRestarts) {
    (request.fixed_tokens().empty() ? request.mutable_tokens() : request.mutable_fixed_tokens())
        ->Truncate(request.prompt_tokens());
  }
  const uint64_t id = ++last_call_;
  auto call = std::make_shared<Call>(*this, id, resumed, request.continuation(),
                                     std::move(listener), number);
  calls_.emplace(id, call);
  call->Begin(workers_[target], std::move(request), deadline);
  return call.get();
}

}  // namespace baton::simulation
