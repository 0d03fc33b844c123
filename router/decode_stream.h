// One Decode call to a worker.
#ifndef BATON_ROUTER_DECODE_STREAM_H_
#define BATON_ROUTER_DECODE_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <memory>

#include "absl/time/time.h"
#include "baton/internal/v1/decode.grpc.pb.h"

namespace baton::router {

class DecodeStream final : public grpc::ClientReadReactor<internal::v1::DecodeResponse> {
 public:
  // Called on gRPC's threads, one at a time.
  class Listener {
   public:
    virtual ~Listener() = default;
    virtual void OnDecoded(const internal::v1::DecodeResponse& response) = 0;
    // The stream is gone when this returns.
    virtual void OnStreamEnd(const grpc::Status& status) = 0;
  };

  // Opens the stream; it owns itself until OnStreamEnd. It shares the listener, because the call
  // behind it may have been answered, and left by all others, before the worker's stream has ended.
  static DecodeStream* Open(internal::v1::DecodeService::Stub& stub,
                            internal::v1::DecodeRequest request, absl::Time deadline,
                            std::shared_ptr<Listener> listener);

  // Ends the stream at once, and with it all that the workers hold for it. Not after OnStreamEnd.
  void Cancel() { context_.TryCancel(); }

 private:
  explicit DecodeStream(internal::v1::DecodeRequest request, std::shared_ptr<Listener> listener)
      : request_(std::move(request)), listener_(std::move(listener)) {}
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  grpc::ClientContext context_;
  const internal::v1::DecodeRequest request_;
  const std::shared_ptr<Listener> listener_;
  internal::v1::DecodeResponse response_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_DECODE_STREAM_H_
