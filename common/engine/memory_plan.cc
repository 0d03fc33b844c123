#include "common/engine/memory_plan.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/check.h"
#include "common/base/error.h"

namespace baton::engine {
namespace {

constexpr int kAllLayers = std::numeric_limits<int>::max();
constexpr int64_t kMostPages = std::numeric_limits<int32_t>::max();

std::string Size(int64_t bytes) {
  constexpr double kMiB = 1 << 20;
  return absl::StrFormat("%.1f MiB", static_cast<double>(bytes) / kMiB);
}

absl::Status TooLarge(const MemoryDemand& demand, const MemoryPlan& plan, int64_t free_bytes) {
  const int64_t needed = plan.fixed_bytes() + plan.kv_bytes();
  const bool pool_is_to_blame =
      plan.fixed_bytes() + plan.page_bytes * plan.shape.pages() <= free_bytes &&
      (demand.num_blocks > 0 || demand.kv_cache_bytes > 0);
  return MakeError(
      absl::StatusCode::kResourceExhausted, "MODEL_TOO_LARGE",
      absl::StrCat(
          "the model does not fit into the device's memory: weights ", Size(plan.weight_bytes),
          " (", backend::Name(demand.activation), ") + RoPE tables of ", plan.max_positions,
          " positions ", Size(plan.rope_bytes), " + activations of ", demand.limits.max_rows,
          " batch tokens and ", demand.limits.max_logit_rows, " logit rows ",
          Size(plan.activation_bytes), " + workspaces of the kernels ", Size(plan.kernel_bytes),
          plan.experts_on_host == 0 ? ""
                                    : absl::StrCat(" + room for one layer's experts from the "
                                                   "host's memory ",
                                                   Size(plan.fetched_expert_bytes)),
          " + ", plan.page_count, " KV ", plan.units(), " of ", plan.page_bytes, " bytes ",
          Size(plan.kv_bytes()), " = ", Size(needed), ", expected at most the ", Size(free_bytes),
          " that are free: ", Size(needed - free_bytes), " too much. ",
          pool_is_to_blame ? "Lower --num-blocks or --kv-cache-memory"
                           : "Lower --max-num-batched-tokens, --max-num-seqs or --max-model-len",
          plan.experts_on_host < model::ExpertLayers(*demand.config)
              ? ", keep experts in the host's memory (--experts-on-host auto)"
              : "",
          ", raise --gpu-memory-utilization, or take a larger device or a smaller model"));
}

}  // namespace

int64_t MemoryPlan::sequences_of(int64_t tokens) const {
  return page_count / std::max<int64_t>(1, pages_of(tokens));
}

int64_t MemoryPlan::pages_of(int64_t tokens) const {
  return shape.LeastPages((tokens + block_tokens - 1) / block_tokens);
}

int64_t MemoryPlan::kv_tokens() const {
  return shape.MostBlocks(page_count, shape.LeastWindows()) * block_tokens;
}

int64_t MemoryPlan::sent_bytes(int64_t tokens) const {
  const int64_t blocks = (tokens + block_tokens - 1) / block_tokens;
  return layout.windowed()
             ? layout.NeededBytes(0, static_cast<int>(blocks), static_cast<int>(blocks))
             : tokens * token_bytes;
}

std::string MemoryPlan::ToString() const {
  return absl::StrCat(
      "weights ", Size(weight_bytes),
      experts_on_host == 0 ? ""
                           : absl::StrCat(" and, in the host's memory, the experts of ",
                                          experts_on_host, " layers ", Size(host_expert_bytes)),
      ", workspaces ", Size(fixed_bytes() - weight_bytes), ", KV pool ", Size(kv_bytes()), ": ",
      page_count, " ", units(), ", ", kv_tokens(), " tokens of ", shape.windowed() ? "up to " : "",
      token_bytes, " bytes, ", full_sequences(), " sequences of ", max_positions);
}

MemoryPlan FixedMemory(const MemoryDemand& demand) {
  const model::ModelConfig& config = *demand.config;
  const backend::StepLimits& limits = demand.limits;
  MemoryPlan plan;
  plan.experts_on_host =
      std::min(demand.experts_on_host.value_or(kAllLayers), model::ExpertLayers(config));
  plan.weights = model::WeightMemory(config, demand.activation, demand.stored_embedding,
                                     demand.weights, plan.experts_on_host);
  plan.host_expert_bytes = plan.weights.host_experts.device_bytes;
  plan.fetched_expert_bytes = plan.weights.fetched_expert_bytes;
  plan.weight_bytes = plan.weights.total().device_bytes;
  plan.rope_bytes = model::RopeMemory(config, limits.max_positions).device_bytes;
  plan.activation_bytes =
      model::WorkspaceMemory(model::WorkspacesOf(config, limits.max_rows, limits.max_logit_rows,
                                                 demand.activation, demand.scratch))
          .device_bytes;
  plan.kernel_bytes = demand.kernel_bytes;
  plan.layout = demand.layout;
  plan.shape = demand.layout.Shape();
  plan.page_bytes = demand.layout.PageBytes();
  plan.block_tokens = demand.layout.block_tokens;
  plan.token_bytes =
      demand.layout.attention_layers() * demand.layout.ChunkBytes() / plan.block_tokens;
  plan.max_positions = limits.max_positions;
  return plan;
}

namespace {

// REQUIRES: demand.experts_on_host.
absl::StatusOr<MemoryPlan> PlanPool(const MemoryDemand& demand) {
  const backend::StepLimits& limits = demand.limits;
  MemoryPlan plan = FixedMemory(demand);
  const int pages_a_block = plan.shape.pages();
  // A state is no block's: each sequence needs two, and may leave snapshots.
  plan.page_count = plan.shape.recurrent && demand.num_blocks > 0
                        ? plan.shape.PagesOf(demand.num_blocks, 0) +
                              int64_t{3} * limits.max_sequences * plan.shape.window_pages
                        : int64_t{demand.num_blocks} * pages_a_block;
  if (plan.page_count == 0 && (demand.kv_cache_bytes > 0 || !demand.free_bytes)) {
    const int64_t bytes =
        demand.kv_cache_bytes > 0 ? demand.kv_cache_bytes : demand.default_kv_bytes;
    plan.page_count = bytes / plan.page_bytes;
    if (plan.page_count < pages_a_block || plan.page_count > kMostPages) {
      return InvalidField(
          "KV_POOL_SIZE", "--kv-cache-memory",
          absl::StrCat(bytes, " bytes give ", plan.page_count, " KV ", plan.units(), " of ",
                       plan.page_bytes, " bytes (", demand.layout.ToString(),
                       "): expected at least ", pages_a_block, " and fewer than 2^31"));
    }
  }
  if (plan.page_count > kMostPages ||
      plan.page_count > std::numeric_limits<int64_t>::max() / 2 / plan.page_bytes) {
    return InvalidField("KV_POOL_SIZE", "--num-blocks",
                        absl::StrCat(plan.page_count, " KV ", plan.units(), " of ", plan.page_bytes,
                                     " bytes: expected fewer than 2^31, of fewer bytes than 2^62"));
  }
  if (!demand.free_bytes) return plan;
  if (plan.page_count == 0) {
    const int64_t left = *demand.free_bytes - plan.fixed_bytes();
    const int64_t least_tokens = std::min(limits.max_rows, limits.max_positions);
    const int64_t least_blocks = (least_tokens + plan.block_tokens - 1) / plan.block_tokens;
    const int64_t least =
        plan.shape.recurrent ? plan.shape.LeastPages(least_blocks) : least_blocks * pages_a_block;
    plan.page_count = std::clamp<int64_t>(left / plan.page_bytes, least, kMostPages);
  }
  if (plan.fixed_bytes() + plan.kv_bytes() > *demand.free_bytes) {
    return TooLarge(demand, plan, *demand.free_bytes);
  }
  return plan;
}

}  // namespace

absl::StatusOr<MemoryPlan> PlanMemory(const MemoryDemand& demand) {
  BATON_CHECK_GE(demand.num_blocks, 0);
  BATON_CHECK_GE(demand.kv_cache_bytes, 0);
  MemoryDemand with = demand;
  if (demand.experts_on_host || !demand.free_bytes) {
    with.experts_on_host = demand.experts_on_host.value_or(0);
    return PlanPool(with);
  }
  const bool asks_for_pool = demand.num_blocks > 0 || demand.kv_cache_bytes > 0;
  const int layers = model::ExpertLayers(*demand.config);
  absl::StatusOr<MemoryPlan> least, plan;  // least: the first that has any pool
  for (int count = 0; count <= layers; ++count) {
    with.experts_on_host = count;
    plan = PlanPool(with);
    if (plan.ok() ? asks_for_pool || plan->full_sequences() > 0
                  : !absl::IsResourceExhausted(plan.status())) {
      return plan;
    }
    if (plan.ok() && !least.ok()) least = plan;
  }
  return least.ok() ? least : plan;
}

}  // namespace baton::engine
