// Decode calls to workers, and the network that they go through.
#ifndef BATON_ROUTER_REQUEST_DECODE_STREAM_H_
#define BATON_ROUTER_REQUEST_DECODE_STREAM_H_

#include <grpcpp/grpcpp.h>

#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "baton/internal/v1/decode.grpc.pb.h"

namespace baton::router {

// Who has opened calls. Told of each by the number that it gave it; one call's events come one at a
// time.
class DecodeListener {
 public:
  virtual ~DecodeListener() = default;
  virtual void OnDecoded(int call, const internal::v1::DecodeResponse& response) = 0;
  // The call is gone when this returns.
  virtual void OnStreamEnd(int call, const grpc::Status& status) = 0;
};

class DecodeHandle {
 public:
  // Ends the call at once, and with it all that the workers hold for it. Not after OnStreamEnd.
  virtual void Cancel() = 0;

 protected:
  ~DecodeHandle() = default;
};

// Thread-safe.
class DecodeNetwork {
 public:
  virtual ~DecodeNetwork() = default;
  // Opens a call to a worker, numbered as in Membership; it lives until OnStreamEnd. It shares the
  // listener, because the request behind it may have been answered, and left by all others, before
  // the worker's stream has ended. Never calls the listener on the thread that opens.
  virtual DecodeHandle* Open(int worker, internal::v1::DecodeRequest request, absl::Time deadline,
                             std::shared_ptr<DecodeListener> listener, int call) = 0;
};

class GrpcDecodeNetwork final : public DecodeNetwork {
 public:
  // The way to a worker, before the first call to it. It takes the place of one to an earlier
  // worker of that number, to which no calls are left.
  void Connect(int worker, const std::shared_ptr<grpc::Channel>& channel);
  void Disconnect(int worker);

  DecodeHandle* Open(int worker, internal::v1::DecodeRequest request, absl::Time deadline,
                     std::shared_ptr<DecodeListener> listener, int call) override;

 private:
  absl::Mutex mutex_;
  // Shared with the calls that are being opened.
  std::vector<std::shared_ptr<internal::v1::DecodeService::Stub>> stubs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_DECODE_STREAM_H_
