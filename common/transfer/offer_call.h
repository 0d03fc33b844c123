// One OfferKv call as the worker that has the KV makes it.
#ifndef BATON_COMMON_TRANSFER_OFFER_CALL_H_
#define BATON_COMMON_TRANSFER_OFFER_CALL_H_

#include <grpcpp/channel.h>

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "baton/internal/v1/kv.pb.h"

namespace baton::transfer {

// Thread-safe.
class OfferCall {
 public:
  // Called exactly once, last, on a gRPC thread: post and return. The owner must keep the call
  // until then: it has a reference to the channel, and a gRPC thread must not drop the last one.
  using OnAnswer = std::function<void(absl::StatusOr<internal::v1::OfferKvResponse::Result>)>;

  virtual ~OfferCall() = default;
  // Asks the call to end; the answer still comes. Idempotent.
  virtual void Cancel() = 0;

  // The call keeps itself alive until it is over.
  static std::shared_ptr<OfferCall> Start(const std::shared_ptr<grpc::Channel>& channel,
                                          const internal::v1::OfferKvRequest& request,
                                          absl::Time deadline, OnAnswer on_answer);
};

}  // namespace baton::transfer

#endif  // BATON_COMMON_TRANSFER_OFFER_CALL_H_
