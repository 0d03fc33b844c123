// How a device's memory is divided: weights, what steps need, and KV blocks in the rest. Pure
// arithmetic: a model that does not fit is refused before it is loaded, and a plan needs no device.
#ifndef BATON_COMMON_ENGINE_MEMORY_PLAN_H_
#define BATON_COMMON_ENGINE_MEMORY_PLAN_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/backend/backend.h"
#include "common/kv/block_pool.h"
#include "common/kv/kv_layout.h"
#include "common/model/device_memory.h"
#include "common/model/model_config.h"

namespace baton::engine {

struct MemoryDemand {
  const model::ModelConfig* config = nullptr;
  backend::DType activation = backend::DType::kF32;
  backend::DType stored_embedding = backend::DType::kF32;  // its type in the file
  model::WeightFormat weights;
  backend::StepLimits limits;
  int64_t kernel_bytes = 0;  // Backend::WorkspaceBytes(limits)
  model::ScratchNeeds scratch;
  kv::KvLayout layout;  // valid
  int num_blocks = 0;   // 0: as many as kv_cache_bytes holds; of all layers
  // Layers whose experts are kept in the host's memory, as EngineOptions has it. More than there
  // are: all.
  std::optional<int> experts_on_host = 0;
  int64_t kv_cache_bytes = 0;                   // 0: the rest of free_bytes, or default_kv_bytes
  int64_t default_kv_bytes = int64_t{1} << 30;  // of the pool in host memory
  // Memory that the device has for all of this; nullopt: no bound is known.
  std::optional<int64_t> free_bytes;
};

struct MemoryPlan {
  model::WeightSizes weights;  // by kind
  int64_t weight_bytes = 0;
  int64_t rope_bytes = 0;
  int64_t activation_bytes = 0;      // tensors between the operations of a step
  int64_t kernel_bytes = 0;          // the backend's own staging and workspaces
  int experts_on_host = 0;           // layers whose experts are kept in the host's memory
  int64_t host_expert_bytes = 0;     // of the host's memory: those experts
  int64_t fetched_expert_bytes = 0;  // of the device's: StepLimits' for them
  kv::KvLayout layout;               // of a model that is served
  kv::BlockShape shape;
  int64_t page_bytes = 0;   // a block's, where it is one page
  int64_t token_bytes = 0;  // KV of one token, all layers
  int64_t page_count = 0;
  int block_tokens = 0;
  int max_positions = 0;

  int64_t kv_bytes() const { return page_count * page_bytes; }
  // Returns the tokens of the longest sequence that fits, which may exceed max_positions.
  int64_t kv_tokens() const;
  // The pages of a sequence of so many tokens while it decodes, and their bytes.
  int64_t pages_of(int64_t tokens) const;
  int64_t sequence_bytes(int64_t tokens) const { return pages_of(tokens) * page_bytes; }
  // The KV of a prompt of so many tokens that goes to the worker that answers it.
  int64_t sent_bytes(int64_t tokens) const;
  // How many sequences of `tokens` tokens, or of max_positions tokens, the pool holds at once.
  int64_t sequences_of(int64_t tokens) const;
  // "blocks" or "pages".
  const char* units() const { return shape.pages() == 1 ? "blocks" : "pages"; }
  int64_t full_sequences() const { return sequences_of(max_positions); }
  // Everything except the KV pool.
  int64_t fixed_bytes() const {
    return weight_bytes + rope_bytes + activation_bytes + kernel_bytes + fetched_expert_bytes;
  }
  // One line, for logs and `baton plan`.
  std::string ToString() const;
};

// Returns what is needed whatever the pool's size: page_count stays 0. If the demand does not say
// how many layers' experts are in the host's memory, those of all layers are.
MemoryPlan FixedMemory(const MemoryDemand& demand);

// Returns the plan with the requested pool. Without a request, the pool is the largest that fits,
// or of default_kv_bytes if no bound is known. If the demand does not say how many layers'
// experts are in the host's memory, the plan takes the smallest number that leaves room for the
// requested pool. Without a request it leaves room for one sequence of max_positions tokens or, if
// no number does, for one step's tokens. Where no bound is known, the number is 0.
// RESOURCE_EXHAUSTED (MODEL_TOO_LARGE), with every summand and what to lower, if the requested
// blocks, or else those of one step's tokens, do not fit. INVALID_ARGUMENT (KV_POOL_SIZE) for a
// pool of no block, or of 2^31 or more. REQUIRES: num_blocks and kv_cache_bytes are not negative.
absl::StatusOr<MemoryPlan> PlanMemory(const MemoryDemand& demand);

}  // namespace baton::engine

#endif  // BATON_COMMON_ENGINE_MEMORY_PLAN_H_
