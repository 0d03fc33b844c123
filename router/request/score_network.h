// ScoreItems calls to prefill workers, without gRPC: tests bring their own network.
#ifndef BATON_ROUTER_REQUEST_SCORE_NETWORK_H_
#define BATON_ROUTER_REQUEST_SCORE_NETWORK_H_

#include <grpcpp/support/status.h>

#include <memory>

#include "absl/time/time.h"
#include "baton/internal/v1/prefill.pb.h"
#include "common/base/trace_context.h"

namespace baton::router {

// Opens calls, and gives each a number. The events of one call come one at a time.
class ScoreListener {
 public:
  virtual ~ScoreListener() = default;
  virtual void OnScored(int call, const internal::v1::ScoredItem& item) = 0;
  // The call is gone when this returns.
  virtual void OnStreamEnd(int call, const grpc::Status& status) = 0;
};

class ScoreHandle {
 public:
  // Ends the call at once, and with it all that the worker holds for it. Not after OnStreamEnd.
  virtual void Cancel() = 0;

 protected:
  ~ScoreHandle() = default;
};

// Thread-safe. The rules are those of DecodeNetwork.
class ScoreNetwork {
 public:
  virtual ~ScoreNetwork() = default;
  virtual ScoreHandle* Open(int worker, internal::v1::ScoreItemsRequest request,
                            const TraceContext& trace, absl::Time deadline,
                            std::shared_ptr<ScoreListener> listener, int call) = 0;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_SCORE_NETWORK_H_
