// One call that receives KV, Prefill or FetchKv, as its receiver makes it: sends the request, feeds
// a KvReceiver, reports.
#ifndef BATON_COMMON_TRANSFER_PREFILL_CALL_H_
#define BATON_COMMON_TRANSFER_PREFILL_CALL_H_

#include <grpcpp/channel.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "baton/internal/v1/kv.pb.h"
#include "baton/internal/v1/prefill.pb.h"
#include "common/transfer/kv_receiver.h"

namespace baton::transfer {

// Callbacks. All run on gRPC threads: post and return.
struct PrefillEvents {
  // Called at most once, before on_end. Of a fetch: never.
  std::function<void(FirstToken)> on_first_token;
  // Called exactly once. OK: the transfer is committed and the blocks are whole. An error: their
  // content is of no use. Either way nothing writes to them any more.
  std::function<void(absl::Status, const TransferSummary&)> on_end;
  // Called exactly once, last, perhaps well after on_end: the stream is over, and the call no
  // longer keeps itself alive. The owner must keep the call until then: it has a reference to the
  // channel, and a gRPC thread must not drop the last one.
  std::function<void()> on_closed;
};

// Thread-safe.
class PrefillCall {
 public:
  virtual ~PrefillCall() = default;
  // Asks the call to end; on_end still comes. Idempotent.
  virtual void Cancel() = 0;

  // The call keeps itself alive until it is over. on_end may come before Start returns.
  static std::shared_ptr<PrefillCall> Start(const std::shared_ptr<grpc::Channel>& channel,
                                            const internal::v1::PrefillRequest& request,
                                            absl::Time deadline, TransferPlan plan,
                                            PrefillEvents events);
  // The same for cached blocks. REQUIRES: plan.fetch.
  static std::shared_ptr<PrefillCall> StartFetch(const std::shared_ptr<grpc::Channel>& channel,
                                                 const internal::v1::FetchKvRequest& request,
                                                 absl::Time deadline, TransferPlan plan,
                                                 PrefillEvents events);
};

}  // namespace baton::transfer

#endif  // BATON_COMMON_TRANSFER_PREFILL_CALL_H_
