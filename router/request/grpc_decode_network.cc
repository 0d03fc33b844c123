#include "router/request/grpc_decode_network.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "common/base/check.h"
#include "common/base/rpc/call_headers.h"

namespace baton::router {
namespace {

// Owns itself until OnDone.
class DecodeStream final : public grpc::ClientReadReactor<internal::v1::DecodeResponse>,
                           public DecodeHandle {
 public:
  DecodeStream(internal::v1::DecodeRequest request, std::shared_ptr<DecodeListener> listener,
               int call)
      : request_(std::move(request)), listener_(std::move(listener)), call_(call) {}

  void Open(internal::v1::DecodeService::Stub& stub, const TraceContext& trace,
            absl::Time deadline) {
    AddTrace(trace, &context_);
    context_.set_deadline(absl::ToChronoTime(deadline));
    stub.async()->Decode(&context_, &request_, this);
    StartRead(&response_);
    StartCall();
  }

  void Cancel() override { context_.TryCancel(); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;  // OnDone says why
    listener_->OnDecoded(call_, response_);
    StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
    // The listener is released last. Its owner may then destroy the channel, which must not happen
    // here: the context refers to the channel, and a channel cannot end on a thread of gRPC.
    const std::shared_ptr<DecodeListener> listener = listener_;
    listener->OnStreamEnd(call_, status);
    delete this;
  }

  grpc::ClientContext context_;
  const internal::v1::DecodeRequest request_;
  const std::shared_ptr<DecodeListener> listener_;
  const int call_;
  internal::v1::DecodeResponse response_;
};

}  // namespace

void GrpcDecodeNetwork::Connect(int worker, const std::shared_ptr<grpc::Channel>& channel) {
  absl::MutexLock lock(&mutex_);
  if (worker >= static_cast<int>(stubs_.size())) stubs_.resize(worker + 1);
  stubs_[worker] = internal::v1::DecodeService::NewStub(channel);
}

void GrpcDecodeNetwork::Disconnect(int worker) {
  absl::MutexLock lock(&mutex_);
  stubs_[worker] = nullptr;
}

DecodeHandle* GrpcDecodeNetwork::Open(int worker, internal::v1::DecodeRequest request,
                                      const TraceContext& trace, absl::Time deadline,
                                      std::shared_ptr<DecodeListener> listener, int call) {
  std::shared_ptr<internal::v1::DecodeService::Stub> stub;
  {
    absl::MutexLock lock(&mutex_);
    stub = stubs_[worker];
  }
  BATON_CHECK(stub != nullptr) << "no channel to worker " << worker;
  auto* stream = new DecodeStream(std::move(request), std::move(listener), call);
  stream->Open(*stub, trace, deadline);
  return stream;
}

}  // namespace baton::router
