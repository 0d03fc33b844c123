#include "common/transfer/offer_call.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "baton/internal/v1/kv.grpc.pb.h"
#include "common/base/rpc/grpc_status.h"

namespace baton::transfer {
namespace {

class GrpcOfferCall final : public OfferCall, public grpc::ClientUnaryReactor {
 public:
  GrpcOfferCall(const std::shared_ptr<grpc::Channel>& channel, internal::v1::OfferKvRequest request,
                OnAnswer on_answer)
      : stub_(internal::v1::KvService::NewStub(channel)),
        request_(std::move(request)),
        on_answer_(std::move(on_answer)) {}

  void Begin(std::shared_ptr<GrpcOfferCall> self, absl::Time deadline) {
    self_ = std::move(self);
    context_.set_deadline(absl::ToChronoTime(deadline));
    stub_->async()->OfferKv(&context_, &request_, &response_, this);
    StartCall();
  }

  void Cancel() override { context_.TryCancel(); }

 private:
  void OnDone(const grpc::Status& status) override {
    const OnAnswer on_answer = on_answer_;
    absl::StatusOr<internal::v1::OfferKvResponse::Result> answer = response_.result();
    if (!status.ok()) answer = FromGrpcStatus(status);
    std::shared_ptr<GrpcOfferCall> self = std::move(self_);
    self.reset();  // may be the last reference: no member is touched below
    on_answer(std::move(answer));
  }

  const std::unique_ptr<internal::v1::KvService::Stub> stub_;
  grpc::ClientContext context_;
  const internal::v1::OfferKvRequest request_;
  internal::v1::OfferKvResponse response_;
  const OnAnswer on_answer_;
  std::shared_ptr<GrpcOfferCall> self_;
};

}  // namespace

std::shared_ptr<OfferCall> OfferCall::Start(const std::shared_ptr<grpc::Channel>& channel,
                                            const internal::v1::OfferKvRequest& request,
                                            absl::Time deadline, OnAnswer on_answer) {
  auto call = std::make_shared<GrpcOfferCall>(channel, request, std::move(on_answer));
  call->Begin(call, deadline);
  return call;
}

}  // namespace baton::transfer
