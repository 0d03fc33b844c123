#include "router/fleet/worker_costs.h"

#include "router/fleet/card_sizes.h"

namespace baton::router {

double MeanLinkRate(const internal::v1::LoadReport& load) {
  int links = 0;
  double seconds_per_byte = 0;
  for (const internal::v1::LinkRate& link : load.links()) {
    if (!(link.bytes_per_second() > 0)) continue;
    ++links;
    seconds_per_byte += 1 / link.bytes_per_second();
  }
  return links == 0 ? 0 : links / seconds_per_byte;
}

v1::WorkerCosts WorkerCostsOf(const internal::v1::WorkerCard& card,
                              const internal::v1::LoadReport& load, double link_bytes_per_second) {
  v1::WorkerCosts costs;
  costs.set_device(card.device());
  costs.set_max_num_seqs(card.max_num_seqs());
  costs.set_max_num_batched_tokens(card.max_num_batched_tokens());
  const int block_tokens = card.kv_layout().block_tokens();
  costs.set_block_tokens(block_tokens);
  const kv::KvSizes sizes = KvSizesOf(card);
  // States of recurrent layers are not of a block, but the card counts them in its pages and bytes.
  const bool states = sizes.shape.recurrent;
  costs.set_kv_blocks(card.total_blocks() /
                      (states ? sizes.shape.full_pages : sizes.shape.pages()));
  if (block_tokens > 0) {
    const double state_bytes = states ? sizes.window_bytes : 0;
    costs.set_kv_bytes_per_token((sizes.block_bytes - state_bytes) / block_tokens);
  }
  if (load.has_prefill_cost()) {
    v1::PromptStepCost& prompt = *costs.mutable_prompt_step();
    prompt.set_fixed_us(load.prefill_cost().fixed_us());
    prompt.set_token_us(load.prefill_cost().token_us());
    prompt.set_pair_us(load.prefill_cost().pair_us());
  }
  if (load.has_decode_cost()) {
    const internal::v1::DecodeCost& fitted = load.decode_cost();
    v1::DecodeStepCost& decode = *costs.mutable_decode_step();
    decode.set_fixed_us(fitted.fixed_us());
    decode.set_sequence_us(fitted.sequence_us());
    decode.set_context_token_us(fitted.context_token_us());
    decode.set_expert_us(fitted.expert_us());
    decode.set_experts(fitted.experts());
    decode.set_experts_per_token(fitted.experts_per_token());
  }
  costs.set_link_bytes_per_second(link_bytes_per_second);
  return costs;
}

}  // namespace baton::router
