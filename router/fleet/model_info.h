// The model that a fleet serves.
#ifndef BATON_ROUTER_FLEET_MODEL_INFO_H_
#define BATON_ROUTER_FLEET_MODEL_INFO_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "baton/internal/v1/worker.pb.h"
#include "common/kv/block_pool.h"

namespace baton::router {

// What all established workers agree on. The first one sets it; when none is left, the next does.
struct ModelInfo {
  uint64_t fingerprint = 0;
  uint64_t kv_layout_fingerprint = 0;
  int block_tokens = 0;
  int max_model_len = 0;  // the smallest of the workers'
  kv::BlockShape block_shape;
  // Sizes of the decode workers' KV pools in pages, each one at least once; empty: none is known.
  std::vector<int> decode_pages;
  std::vector<int32_t> eos_token_ids;
  internal::v1::GenerationDefaults defaults;
  // The lowest of the workers that answer; the highest if none is known.
  internal::v1::GrammarLevel grammar_level = internal::v1::GRAMMAR_LEVEL_MESSAGES;
  std::optional<internal::v1::Embeddings> embeddings;  // nullopt: it is not made for them
};

}  // namespace baton::router

#endif  // BATON_ROUTER_FLEET_MODEL_INFO_H_
