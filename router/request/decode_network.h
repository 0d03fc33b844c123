// Decode calls to workers, without gRPC: tests bring their own network.
#ifndef BATON_ROUTER_REQUEST_DECODE_NETWORK_H_
#define BATON_ROUTER_REQUEST_DECODE_NETWORK_H_

#include <grpcpp/support/status.h>

#include <memory>

#include "absl/time/time.h"
#include "baton/internal/v1/decode.pb.h"
#include "common/base/trace_context.h"

namespace baton::router {

// Opens calls, and gives each a number. The events of one call come one at a time.
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
  // Opens a call to a worker, numbered as in Roster, which carries `trace` if that is valid. The
  // handle lives until OnStreamEnd. The call shares the listener, because its request may be
  // answered and gone before the worker's stream has ended. Never calls the listener on the thread
  // that opens.
  virtual DecodeHandle* Open(int worker, internal::v1::DecodeRequest request,
                             const TraceContext& trace, absl::Time deadline,
                             std::shared_ptr<DecodeListener> listener, int call) = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_DECODE_NETWORK_H_
