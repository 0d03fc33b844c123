#include "common/engine/serving_plan.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/backend/cuda/plan/workspace_sizes.h"
#include "common/backend/cuda/products/products.h"
#include "common/backend/cuda/runtime/device_share.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/engine/engine_shape.h"
#include "common/model/checkpoint.h"
#include "common/model/weights.h"

namespace baton::engine {
namespace {

constexpr int kDefaultContext = 2048;

struct Link {
  const char* name;
  double bytes_per_second;
};
// On the label: the payload is a little less.
constexpr Link kLinks[] = {
    {"1 GbE", 0.125e9},  {"10 GbE", 1.25e9},       {"25 GbE", 3.125e9},
    {"100 GbE", 12.5e9}, {"PCIe 3 x16", 15.754e9},
};

// What config.json says, in one form for all models.
struct Model {
  model::ModelCosts costs;
  model::WeightFormat weights;               // of the question, else of config.json
  std::optional<model::ModelConfig> config;  // if the engine serves it on a GPU
  absl::Status unserved;
};

absl::StatusOr<Model> ReadModel(const std::string& model_dir,
                                const std::optional<model::WeightFormat>& weights) {
  Model model;
  absl::StatusOr<model::ModelConfig> config = model::ReadModelConfig(model_dir);
  if (config.ok()) {
    model.costs = model::CostsOf(*config);
    model.config = *std::move(config);
  } else if (absl::IsUnimplemented(config.status())) {
    model.unserved = config.status();
  } else {
    return config.status();
  }
  BATON_ASSIGN_OR_RETURN(const json::Value document, model::ReadConfigJson(model_dir));
  BATON_ASSIGN_OR_RETURN(const model::JsonFields fields,
                         model::JsonFields::Make(document, model::ConfigName(model_dir)));
  if (!config.ok()) {
    BATON_ASSIGN_OR_RETURN(model.costs, model::ParseCosts(fields));
  }
  if (weights) {
    model.weights = *weights;
  } else {
    BATON_ASSIGN_OR_RETURN(model.weights, model::ParseWeightFormat(fields));
  }
  return model;
}

// Where the weights are there, as the worker has it; else what config.json says.
absl::StatusOr<backend::DType> StoredEmbedding(const std::string& model_dir,
                                               const model::ModelConfig& config,
                                               backend::DType activation) {
  const absl::StatusOr<model::Checkpoint> checkpoint = model::Checkpoint::Open(model_dir);
  if (absl::IsNotFound(checkpoint.status())) return config.weight_dtype;
  BATON_RETURN_IF_ERROR(checkpoint.status());
  return model::EmbeddingDType(*checkpoint, config, activation).value_or(config.weight_dtype);
}

// As ModelEngine and MakeBackendOn do with the device there.
absl::Status PlanServed(const ServingQuestion& question, const model::ModelConfig& config,
                        ServingPlan* plan) {
  const EngineOptions& options = question.engine;
  BATON_RETURN_IF_ERROR(CheckModel(config, options));
  BATON_ASSIGN_OR_RETURN(const EngineShape shape, ShapeOf(config, options, plan->activation));
  BATON_RETURN_IF_ERROR(backend::cuda::CheckSupported(shape.limits));
  plan->context = ContextOf(question, shape.limits.max_positions);
  if (plan->context > shape.limits.max_positions) {
    return InvalidField("MAX_MODEL_LEN_TOO_LONG", "--context",
                        absl::StrCat(plan->context, " given, but sequences have at most ",
                                     shape.limits.max_positions, " tokens"));
  }
  const size_t products = options.backend.deterministic ? 0 : backend::cuda::kCublasWorkspaceBytes;
  MemoryDemand demand = DemandOf(config, shape, options, plan->activation);
  demand.weights = plan->weights;
  demand.scratch = {.gate_up = !options.backend.deterministic, .experts_at_once = true};
  demand.free_bytes = plan->arena_bytes;
  demand.kernel_bytes = static_cast<int64_t>(
      backend::cuda::WorkspaceSizes::For(shape.limits, plan->activation, products).total());
  BATON_ASSIGN_OR_RETURN(demand.stored_embedding,
                         StoredEmbedding(options.model_dir, config, plan->activation));
  const absl::StatusOr<MemoryPlan> memory = PlanMemory(demand);
  if (!memory.ok() && !absl::IsResourceExhausted(memory.status())) return memory.status();
  plan->refusal = memory.status();
  plan->memory = memory.ok() ? *memory : FixedMemory(demand);
  plan->costs = model::CostsOf(config, plan->memory.experts_on_host);
  if (plan->memory.experts_on_host > 0 && !(question.gpu.host_link_bytes_per_second > 0)) {
    return InvalidField(
        "BAD_OPTION", "--gpu",
        absl::StrCat(question.gpu.name, " is not in the table: expected --host-gbs, ",
                     "as experts are kept in the host's memory"));
  }
  plan->kv_dtype = shape.layout.dtype;
  if (!memory.ok()) return absl::OkStatus();
  demand.experts_on_host = memory->experts_on_host;
  for (const std::optional<kv::KvDtype> dtype :
       {std::optional<kv::KvDtype>(), std::optional(kv::KvDtype::kInt8),
        std::optional(kv::KvDtype::kFp8), std::optional(kv::KvDtype::kInt4)}) {
    EngineOptions other = options;
    other.kv_dtype = dtype;
    const absl::StatusOr<EngineShape> with = ShapeOf(config, other, plan->activation);
    if (!with.ok()) continue;  // heads of an odd size
    demand.layout = with->layout;
    const absl::StatusOr<MemoryPlan> fits = PlanMemory(demand);
    if (!fits.ok()) continue;
    plan->kv_dtypes.push_back({with->layout.dtype, fits->token_bytes, fits->kv_tokens(),
                               fits->sequences_of(plan->context)});
  }
  return absl::OkStatus();
}

// Weights in the activations' type, and KV in what they leave: no engine's workspaces are known.
absl::Status PlanUnserved(const ServingQuestion& question, ServingPlan* plan) {
  if (question.engine.kv_dtype) {
    return InvalidField(
        "BAD_OPTION", "--kv-cache-dtype",
        absl::StrCat(kv::KvDtypeName(*question.engine.kv_dtype),
                     " given, expected auto for a model that Baton does not serve"));
  }
  if (question.engine.experts_on_host != 0) {
    return InvalidField("BAD_OPTION", "--experts-on-host",
                        "expected 0 for a model that Baton does not serve");
  }
  const model::ModelCosts& costs = plan->costs;
  const auto element = static_cast<int64_t>(SizeOf(plan->activation));
  const double matrix_element = model::BytesPerElement(plan->weights, plan->activation);
  MemoryPlan& memory = plan->memory;
  const auto matrices = [&](int64_t elements) {
    return static_cast<int64_t>(static_cast<double>(elements) * matrix_element);
  };
  memory.weights.embedding.Add(costs.vocab_size * costs.hidden_dim * element);
  memory.weights.lm_head.Add(costs.vocab_size * costs.hidden_dim * element);
  for (const model::LayerCosts& layer : costs.layers) {
    memory.weights.attention.Add(matrices(layer.attention_elements));
    memory.weights.feed_forward.Add(
        matrices(layer.ffn_elements + layer.experts * layer.expert_elements));
    memory.weights.vectors.Add(layer.vector_elements * int64_t{sizeof(float)});
  }
  memory.weight_bytes = memory.weights.total().device_bytes;
  memory.block_tokens = question.engine.block_tokens;
  memory.token_bytes = costs.kv_elements() * element;
  memory.page_bytes = memory.token_bytes * memory.block_tokens;
  memory.max_positions =
      question.engine.max_model_len > 0 ? question.engine.max_model_len : costs.max_positions;
  memory.page_count =
      std::max<int64_t>(0, plan->arena_bytes - memory.weight_bytes) / memory.page_bytes;
  return absl::OkStatus();
}

// Its share of scales and zeros included.
double KvElementBytes(const ServingPlan& plan) {
  return static_cast<double>(plan.memory.token_bytes) /
         static_cast<double>(plan.costs.kv_elements());
}

double HostMs(const ServingPlan& plan, const model::StepBytes& bytes) {
  return bytes.host == 0 ? 0 : bytes.host / plan.gpu.host_link_bytes_per_second * 1e3;
}

DecodeFloor DecodeAt(const ServingPlan& plan, int batch) {
  DecodeFloor floor;
  floor.batch = batch;
  floor.fits = batch <= plan.sequences;
  floor.bytes = model::DecodeStepBytes(plan.costs, plan.weights, plan.activation,
                                       KvElementBytes(plan), batch, plan.context);
  floor.flops = model::DecodeStepFlops(plan.costs, batch, plan.context);
  floor.memory_ms = floor.bytes.total() / plan.gpu.bytes_per_second * 1e3;
  floor.matrix_ms = floor.flops / plan.gpu.flops_per_second * 1e3;
  floor.host_ms = HostMs(plan, floor.bytes);
  return floor;
}

// step_tokens: the tokens of the largest step.
PrefillFloor PrefillOf(const ServingPlan& plan, int tokens, int step_tokens) {
  PrefillFloor floor;
  floor.tokens = tokens;
  floor.flops = model::PrefillFlops(plan.costs, tokens);
  floor.matrix_ms = floor.flops / plan.gpu.flops_per_second * 1e3;
  const auto bytes_of = [&](int rows) {
    return model::DecodeStepBytes(plan.costs, plan.weights, plan.activation, 0, rows, 0);
  };
  floor.memory_ms = bytes_of(tokens).weights / plan.gpu.bytes_per_second * 1e3;
  for (int at = 0; at < tokens; at += step_tokens) {
    floor.host_ms += HostMs(plan, bytes_of(std::min(step_tokens, tokens - at)));
  }
  floor.kv_bytes = plan.memory.sent_bytes(tokens);
  const auto over = [&](const char* link, double bytes_per_second) {
    TransferTime time;
    time.link = link;
    time.ms = static_cast<double>(floor.kv_bytes) / bytes_per_second * 1e3;
    const auto layers = static_cast<double>(plan.costs.layers.size());
    time.exposed_ms = std::max(time.ms / layers, time.ms - floor.floor_ms() * (1 - 1 / layers));
    floor.transfers.push_back(std::move(time));
  };
  for (const Link& link : kLinks) over(link.name, link.bytes_per_second);
  if (plan.gpu.nvlink_bytes_per_second > 0) over("NVLink", plan.gpu.nvlink_bytes_per_second);
  return floor;
}

absl::Status CheckQuestion(const ServingQuestion& question) {
  const GpuFacts& gpu = question.gpu;
  if (gpu.memory_bytes <= 0 || !(gpu.bytes_per_second > 0) || !(gpu.flops_per_second > 0)) {
    return InvalidField("BAD_OPTION", "--gpu",
                        absl::StrCat(gpu.name,
                                     " is not in the table: expected --memory-gib, "
                                     "--bandwidth-gbs and --tflops"));
  }
  const double share = question.engine.backend.gpu_memory_utilization;
  if (!(share > 0 && share <= 1)) {
    return InvalidField("BAD_OPTION", "--gpu-memory-utilization",
                        absl::StrCat(share, " given, expected more than 0 and at most 1"));
  }
  return absl::OkStatus();
}

}  // namespace

int ContextOf(const ServingQuestion& question, int max_positions) {
  return question.context.value_or(std::min(kDefaultContext, max_positions));
}

absl::StatusOr<ServingPlan> PlanServing(const ServingQuestion& question) {
  BATON_RETURN_IF_ERROR(CheckQuestion(question));
  BATON_ASSIGN_OR_RETURN(const Model model, ReadModel(question.engine.model_dir, question.weights));
  ServingPlan plan;
  plan.costs = model.costs;
  plan.gpu = question.gpu;
  plan.context = ContextOf(question, kDefaultContext);
  plan.weights = model.weights;
  plan.refusal = model.unserved;
  BATON_ASSIGN_OR_RETURN(
      plan.activation,
      backend::cuda::ChooseDType(question.engine.backend.compute, question.gpu.compute_capability));
  plan.arena_bytes = static_cast<int64_t>(
      backend::cuda::ArenaBytes(static_cast<size_t>(question.gpu.memory_bytes),
                                static_cast<size_t>(question.gpu.memory_bytes),
                                static_cast<size_t>(question.gpu.reserved_bytes),
                                question.engine.backend.gpu_memory_utilization));
  if (model.config) {
    BATON_RETURN_IF_ERROR(PlanServed(question, *model.config, &plan));
  } else {
    BATON_RETURN_IF_ERROR(PlanUnserved(question, &plan));
  }
  plan.max_num_seqs = question.engine.max_num_seqs;
  plan.sequences = plan.memory.sequences_of(plan.context);
  for (const int batch : question.batches) plan.decode.push_back(DecodeAt(plan, batch));
  for (const int tokens : question.prompts) {
    plan.prefill.push_back(PrefillOf(plan, tokens, question.engine.max_num_batched_tokens));
  }
  return plan;
}

}  // namespace baton::engine
