// The request for a prompt's KV, and the plan by which its transfer is checked.
#ifndef BATON_DECODE_WORKER_TRANSFER_REQUEST_H_
#define BATON_DECODE_WORKER_TRANSFER_REQUEST_H_

#include <string>

#include "baton/internal/v1/prefill.pb.h"
#include "common/engine/engine.h"
#include "common/transfer/device_link_client.h"
#include "common/transfer/kv_receiver.h"
#include "common/transfer/shared_pools.h"
#include "decode_worker/sequence.h"

namespace baton::decode_worker {

struct TransferRequest {
  internal::v1::PrefillRequest request;
  transfer::TransferPlan plan;
  transfer::PlaneReason plane = transfer::PlaneReason::kOff;
};

// Ways besides gRPC; null: not this one.
struct Planes {
  transfer::SharedPools* shared_pools = nullptr;
  transfer::DeviceLinkClient* device_links = nullptr;
};

// Requests the KV of the sequence's transferred_tokens from computed_tokens on, for the sequence's
// blocks; over the best of `planes` that is open to the prefill worker.
// REQUIRES: computed_tokens is a multiple of the block's tokens.
TransferRequest MakeTransferRequest(const Sequence& sequence, const engine::Engine& engine,
                                    const std::string& worker_id, const Planes& planes);

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_TRANSFER_REQUEST_H_
