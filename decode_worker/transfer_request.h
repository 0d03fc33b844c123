// The request for a prompt's KV, and the plan by which its transfer is checked.
#ifndef BATON_DECODE_WORKER_TRANSFER_REQUEST_H_
#define BATON_DECODE_WORKER_TRANSFER_REQUEST_H_

#include <string>

#include "baton/internal/v1/prefill.pb.h"
#include "common/engine/engine.h"
#include "common/transfer/kv_receiver.h"
#include "decode_worker/sequence.h"

namespace baton::decode_worker {

struct TransferRequest {
  internal::v1::PrefillRequest request;
  transfer::TransferPlan plan;
};

// Requests the KV of all of the sequence's tokens from computed_tokens on, for the sequence's
// blocks. REQUIRES: computed_tokens is a multiple of the block's tokens.
TransferRequest MakeTransferRequest(const Sequence& sequence, const engine::Engine& engine,
                                    const std::string& worker_id);

}  // namespace baton::decode_worker

#endif  // BATON_DECODE_WORKER_TRANSFER_REQUEST_H_
