#include "router/request/grpc_worker_network.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "common/base/check.h"
#include "common/base/rpc/call_headers.h"

namespace baton::router {
namespace {

void Start(internal::v1::DecodeService::Stub& stub, grpc::ClientContext* context,
           const internal::v1::DecodeRequest& request,
           grpc::ClientReadReactor<internal::v1::DecodeResponse>* reactor) {
  stub.async()->Decode(context, &request, reactor);
}
void Start(internal::v1::PrefillService::Stub& stub, grpc::ClientContext* context,
           const internal::v1::ScoreItemsRequest& request,
           grpc::ClientReadReactor<internal::v1::ScoredItem>* reactor) {
  stub.async()->ScoreItems(context, &request, reactor);
}

void Deliver(DecodeListener& listener, int call, const internal::v1::DecodeResponse& response) {
  listener.OnDecoded(call, response);
}
void Deliver(ScoreListener& listener, int call, const internal::v1::ScoredItem& item) {
  listener.OnScored(call, item);
}

// Owns itself until OnDone.
template <class Request, class Response, class Listener, class Handle>
class WorkerStream final : public grpc::ClientReadReactor<Response>, public Handle {
 public:
  WorkerStream(Request request, std::shared_ptr<Listener> listener, int call)
      : request_(std::move(request)), listener_(std::move(listener)), call_(call) {}

  template <class Stub>
  void Open(Stub& stub, const TraceContext& trace, absl::Time deadline) {
    AddTrace(trace, &context_);
    context_.set_deadline(absl::ToChronoTime(deadline));
    Start(stub, &context_, request_, this);
    this->StartRead(&response_);
    this->StartCall();
  }

  void Cancel() override { context_.TryCancel(); }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;  // OnDone says why
    Deliver(*listener_, call_, response_);
    this->StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
    // The listener is released last. Its owner may then destroy the channel, which must not happen
    // here: the context refers to the channel, and a channel cannot end on a thread of gRPC.
    const std::shared_ptr<Listener> listener = listener_;
    listener->OnStreamEnd(call_, status);
    delete this;
  }

  grpc::ClientContext context_;
  const Request request_;
  const std::shared_ptr<Listener> listener_;
  const int call_;
  Response response_;
};

}  // namespace

void GrpcWorkerNetwork::Connect(int worker, const std::shared_ptr<grpc::Channel>& channel) {
  absl::MutexLock lock(&mutex_);
  if (worker >= static_cast<int>(stubs_.size())) stubs_.resize(worker + 1);
  stubs_[worker] = {internal::v1::DecodeService::NewStub(channel),
                    internal::v1::PrefillService::NewStub(channel)};
}

void GrpcWorkerNetwork::Disconnect(int worker) {
  absl::MutexLock lock(&mutex_);
  stubs_[worker] = Stubs();
}

GrpcWorkerNetwork::Stubs GrpcWorkerNetwork::StubsOf(int worker) {
  absl::MutexLock lock(&mutex_);
  BATON_CHECK(stubs_[worker].decode != nullptr) << "no channel to worker " << worker;
  return stubs_[worker];
}

DecodeHandle* GrpcWorkerNetwork::Open(int worker, internal::v1::DecodeRequest request,
                                      const TraceContext& trace, absl::Time deadline,
                                      std::shared_ptr<DecodeListener> listener, int call) {
  auto* stream =
      new WorkerStream<internal::v1::DecodeRequest, internal::v1::DecodeResponse, DecodeListener,
                       DecodeHandle>(std::move(request), std::move(listener), call);
  stream->Open(*StubsOf(worker).decode, trace, deadline);
  return stream;
}

ScoreHandle* GrpcWorkerNetwork::Open(int worker, internal::v1::ScoreItemsRequest request,
                                     const TraceContext& trace, absl::Time deadline,
                                     std::shared_ptr<ScoreListener> listener, int call) {
  auto* stream =
      new WorkerStream<internal::v1::ScoreItemsRequest, internal::v1::ScoredItem, ScoreListener,
                       ScoreHandle>(std::move(request), std::move(listener), call);
  stream->Open(*StubsOf(worker).prefill, trace, deadline);
  return stream;
}

}  // namespace baton::router
