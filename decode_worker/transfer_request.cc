#include "decode_worker/transfer_request.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/random_id.h"
#include "common/transfer/checksum.h"
#include "common/worker/token_sampling.h"

namespace baton::decode_worker {

TransferRequest MakeTransferRequest(const Sequence& sequence, const engine::Engine& engine,
                                    const std::string& worker_id, const Planes& planes) {
  const Call& call = *sequence.call;
  const int block_tokens = engine.kv_layout().block_tokens;
  BATON_CHECK_EQ(sequence.computed_tokens % block_tokens, 0);
  const int first_block = sequence.computed_tokens / block_tokens;
  const int tokens = sequence.transferred_tokens(sequence.blocks.shape());
  TransferRequest made;
  internal::v1::PrefillRequest& request = made.request;
  request.set_request_id(call.request_id);
  request.set_transfer_id(RandomId64());
  request.set_model_fingerprint(engine.config().fingerprint);
  request.set_kv_layout_fingerprint(engine.kv_layout().Fingerprint());
  request.set_takes_layer_runs(true);
  request.set_prefill_epoch(call.prefill.epoch);
  request.set_decode_worker_id(worker_id);
  request.mutable_tokens()->Add(sequence.tokens.begin(), sequence.tokens.begin() + tokens);
  request.set_first_block(first_block);
  request.set_cache_salt(call.cache_salt);
  *request.mutable_sampling() = worker::ToProto(sequence.sampling);
  request.set_prompt_tokens(std::min(call.prompt_tokens, tokens));
  if (sequence.generated_tokens() < call.min_tokens) {
    request.mutable_suppressed_token_ids()->Add(call.stop_token_ids.begin(),
                                                call.stop_token_ids.end());
  }
  if (call.prompt_logprobs && !call.answered) request.set_prompt_logprobs(*call.prompt_logprobs);
  request.set_priority(call.priority == Priority::kHigh  ? v1::PRIORITY_HIGH
                       : call.priority == Priority::kLow ? v1::PRIORITY_LOW
                                                         : v1::PRIORITY_NORMAL);
  request.set_tenant(call.tenant);
  if (call.retention.retention.priority > 0) {
    *request.mutable_retention() = worker::ToProto(call.retention);
  }
  if (!call.kv_hint.holder.address().empty()) {
    *request.mutable_kv_holder() = call.kv_hint.holder;
    request.set_kv_holder_tokens(call.kv_hint.tokens);
  }
  transfer::TransferPlan& plan = made.plan;
  if (transfer::SharedPools* const shared_pools = planes.shared_pools; shared_pools != nullptr) {
    transfer::SharedPools::Found found = shared_pools->Find(call.prefill.epoch);
    made.plane = found.reason;
    request.mutable_shared_memory()->set_host(shared_pools->host());
    request.mutable_shared_memory()->set_device(shared_pools->opens_device_pools());
    if (found.pool != nullptr) {
      request.mutable_shared_memory()->set_connection(found.pool->connection());
    }
    plan.shared_pool = std::move(found.pool);
    plan.on_offer = [shared_pools, epoch = call.prefill.epoch](transfer::SharedPoolOffer offer) {
      shared_pools->Offer(epoch, std::move(offer));
    };
  }
  if (transfer::DeviceLinkClient* const links = planes.device_links; links != nullptr) {
    transfer::DeviceLinkClient::Found found = links->Find(call.prefill.epoch, call.prefill.address);
    made.plane = found.reason;
    request.mutable_device_link()->set_connection(found.link == nullptr ? 0
                                                                        : found.link->connection());
    plan.device_link = std::move(found.link);
    plan.on_device_link_offer = [links, epoch = call.prefill.epoch] { links->Offer(epoch); };
  }
  request.set_checksum(transfer::RequestChecksum(request));

  plan.transfer_id = request.transfer_id();
  plan.sender_epoch = call.prefill.epoch;
  plan.layout = engine.kv_layout();
  plan.pool = engine.kv_pool();
  plan.first_block = first_block;
  plan.blocks = sequence.blocks.Tables(first_block, (tokens + block_tokens - 1) / block_tokens);
  plan.whole_blocks = (tokens - 1) / block_tokens;
  plan.token_count = engine.config().token_count;
  plan.logprobs = sequence.sampling.logprobs;
  if (request.has_prompt_logprobs()) {
    plan.prompt_targets.assign(sequence.tokens.begin() + 1,
                               sequence.tokens.begin() + call.prompt_tokens);
    plan.prompt_logprobs = request.prompt_logprobs();
  }
  return made;
}

}  // namespace baton::decode_worker
