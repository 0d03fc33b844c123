// The request for a prompt's KV, and the plan by which its transfer is checked.
#ifndef BATON_DECODE_WORKER_TRANSFER_REQUEST_H_
#define BATON_DECODE_WORKER_TRANSFER_REQUEST_H_

#include <string>

#include "baton/internal/v1/prefill.pb.h"
#include "common/engine/engine.h"
#include "common/transfer/kv_receiver.h"
#include "common/transfer/shared_pools.h"
#include "decode_worker/sequence.h"

namespace baton::decode_worker {

struct TransferRequest {
  internal::v1::PrefillRequest request;
  transfer::TransferPlan plan;
  transfer::PlaneReason plane = transfer::PlaneReason::kOff;
};

// Requests the KV of all of the sequence's tokens from computed_tokens on, for the sequence's
// blocks; through shared memory if `shared_pools` has the prefill worker's pool, and is not null.
// REQUIRES: computed_tokens is a multiple of the block's tokens.
TransferRequest MakeTransferRequest(const Sequence& sequence, const engine::Engine& engine,
                                    const std::string& worker_id,
                                    transfer::SharedPools* shared_pools);

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_TRANSFER_REQUEST_H_
