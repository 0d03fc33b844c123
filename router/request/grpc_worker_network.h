// Calls to workers over gRPC.
#ifndef BATON_ROUTER_REQUEST_GRPC_WORKER_NETWORK_H_
#define BATON_ROUTER_REQUEST_GRPC_WORKER_NETWORK_H_

#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "baton/internal/v1/decode.grpc.pb.h"
#include "baton/internal/v1/prefill.grpc.pb.h"
#include "router/fleet/channel_user.h"
#include "router/request/decode_network.h"
#include "router/request/score_network.h"

namespace baton::router {

// Thread-safe.
class GrpcWorkerNetwork final : public DecodeNetwork, public ScoreNetwork, public ChannelUser {
 public:
  void Connect(int worker, const std::shared_ptr<grpc::Channel>& channel) override;
  void Disconnect(int worker) override;

  DecodeHandle* Open(int worker, internal::v1::DecodeRequest request, const TraceContext& trace,
                     absl::Time deadline, std::shared_ptr<DecodeListener> listener,
                     int call) override;
  ScoreHandle* Open(int worker, internal::v1::ScoreItemsRequest request, const TraceContext& trace,
                    absl::Time deadline, std::shared_ptr<ScoreListener> listener,
                    int call) override;

 private:
  struct Stubs {
    std::shared_ptr<internal::v1::DecodeService::Stub> decode;
    std::shared_ptr<internal::v1::PrefillService::Stub> prefill;
  };
  Stubs StubsOf(int worker);

  absl::Mutex mutex_;
  // Shared with the calls that are being opened.
  std::vector<Stubs> stubs_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::router

#endif  // BATON_ROUTER_REQUEST_GRPC_WORKER_NETWORK_H_
