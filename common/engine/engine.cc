#include "common/engine/engine.h"

#include <algorithm>
#include <deque>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/backend/make_backend.h"
#include "common/base/available_memory.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/engine/engine_shape.h"
#include "common/engine/memory_plan.h"
#include "common/engine/model_engine.h"
#include "common/model/checkpoint.h"
#include "common/model/numerics.h"
#include "common/model/weights.h"

namespace baton::engine {
namespace {

EngineOptions OptionsOfHead(EngineOptions options) {
  options.backend.gpu_memory_utilization = options.mtp_gpu_memory_utilization;
  options.backend.cuda.device_links = false;
  options.num_blocks = 0;
  options.kv_cache_bytes = options.mtp_kv_bytes;
  options.cpu_kv_cache_bytes = EngineOptions::kCpuMtpKvBytes;
  options.experts_on_host = 0;
  options.share_kv_pool = false;
  options.max_num_batched_tokens =
      std::max(64, EngineOptions::kMtpRowsOfSequence * options.max_num_seqs);
  return options;
}

model::TransformerOptions TransformerOptionsOf(const backend::StepLimits& limits) {
  model::TransformerOptions options;
  options.max_batch_tokens = limits.max_rows;
  options.max_logit_rows = limits.max_logit_rows;
  options.max_positions = limits.max_positions;
  return options;
}

}  // namespace

absl::Status ModelEngine::Initialize(const EngineOptions& options) {
  BATON_ASSIGN_OR_RETURN(config_,
                         model::LoadModelConfig(options.model_dir, options.generation_overrides));
  config_.load_bits = options.weight_bits;
  config_.loads_mtp = options.load_mtp_head;
  if (config_.loads_mtp && config_.mtp == nullptr) {
    return MakeError(absl::StatusCode::kInvalidArgument, "MTP_HEAD_MISSING",
                     absl::StrCat(options.model_dir,
                                  ": found no head for multi-token prediction, expected one in "
                                  "safetensors files, not quantised: mtp_num_hidden_layers in "
                                  "config.json without mtp_use_dedicated_embeddings, and tensors "
                                  "mtp.*, as Qwen3.5 and Qwen3-Next have them, or "
                                  "num_nextn_predict_layers and a layer behind the last one, as "
                                  "GLM-4.7-Flash has it"));
  }
  BATON_RETURN_IF_ERROR(CheckModel(config_, options));
  max_num_batched_tokens_ = options.max_num_batched_tokens;
  max_num_seqs_ = options.max_num_seqs;
  BATON_RETURN_IF_ERROR(MakeBackend(options));
  BATON_ASSIGN_OR_RETURN(shape_, ShapeOf(config_, options, backend_->activation_dtype()));
  if (const std::string numerics = backend_->Numerics();
      !numerics.empty() && !options.mix_numerics) {
    shape_.layout.numerics = absl::StrCat(numerics, " ", model::kNumericsVersion);
  }
  if (model::PinPositions(shape_.limits.max_positions, &config_)) {
    absl::StrAppend(&shape_.layout.numerics, shape_.layout.numerics.empty() ? "" : " ", "longrope");
  }
  layout_ = shape_.layout;
  const backend::StepLimits& limits = shape_.limits;
  max_model_len_ = limits.max_positions;
  BATON_RETURN_IF_ERROR(PlanMemory(options));
  BATON_RETURN_IF_ERROR(backend_->Prepare(limits));
  model::TransformerOptions transformer_options = TransformerOptionsOf(limits);
  transformer_options.experts_on_host = plan_.experts_on_host;
  transformer_options.progress = options.progress;
  BATON_ASSIGN_OR_RETURN(transformer_, model::Transformer::Load(options.model_dir, config_,
                                                                transformer_options, *backend_));
  if (config_.loads_mtp) {
    backend_->RecordEvent()->Wait();  // the head reads weights of the model on another stream
    mtp_head_ = std::make_unique<ModelEngine>();
    BATON_RETURN_IF_ERROR(mtp_head_->InitializeHead(options, *this));
  }
  BATON_RETURN_IF_ERROR(MakePool(options));
  WarmUp(options.warm_up);
  return absl::OkStatus();
}

absl::Status ModelEngine::InitializeHead(const EngineOptions& options, const ModelEngine& model) {
  const EngineOptions of_head = OptionsOfHead(options);
  config_ = model::MtpHeadConfig(model.config_);
  // A GPU's backend is prepared for one pool.
  if (model.has_arena_) {
    const absl::Status made = MakeBackend(of_head);
    if (!made.ok()) return Annotate(made, "the MTP head, of --draft-gpu-memory-utilization");
  } else {
    backend_ = model.backend_;
  }
  max_num_batched_tokens_ = of_head.max_num_batched_tokens;
  max_num_seqs_ = of_head.max_num_seqs;
  const backend::DType activation = backend_->activation_dtype();
  BATON_ASSIGN_OR_RETURN(shape_, ShapeOf(config_, of_head, activation));
  layout_ = shape_.layout;
  max_model_len_ = shape_.limits.max_positions;
  if (const absl::Status planned = PlanMemory(of_head); !planned.ok()) {
    return Annotate(planned, ErrorReason(planned) == "KV_POOL_SIZE"
                                 ? "the MTP head's KV, of --draft-kv-memory"
                                 : "the MTP head, of --draft-gpu-memory-utilization");
  }
  if (has_arena_) BATON_RETURN_IF_ERROR(backend_->Prepare(shape_.limits));
  BATON_ASSIGN_OR_RETURN(transformer_,
                         model::Transformer::LoadMtpHead(of_head.model_dir, config_,
                                                         TransformerOptionsOf(shape_.limits),
                                                         *model.transformer_, *backend_));
  BATON_RETURN_IF_ERROR(MakePool(of_head));
  if (of_head.warm_up != EngineOptions::WarmUp::kNone) WarmUp(EngineOptions::WarmUp::kPrompt);
  return absl::OkStatus();
}

absl::Status ModelEngine::MakeBackend(const EngineOptions& options) {
  backend::BackendOptions of_backend = options.backend;
  const double share = options.mtp_gpu_memory_utilization;
  const bool shares = config_.loads_mtp && !config_.is_mtp_head;
  const double all = of_backend.gpu_memory_utilization;
  const bool too_large = shares && share >= all;  // which says nothing on a CPU
  if (shares && !too_large) of_backend.gpu_memory_utilization -= share;
  BATON_ASSIGN_OR_RETURN(backend_, options.make_backend ? options.make_backend(of_backend)
                                                        : backend::MakeBackend(of_backend));
  if (too_large && backend_->FreeBytes().has_value()) {
    return InvalidField("BAD_OPTION", "--draft-gpu-memory-utilization",
                        absl::StrCat(share, " given, expected less than the ", all,
                                     " of --gpu-memory-utilization"));
  }
  return absl::OkStatus();
}

absl::Status ModelEngine::PlanMemory(const EngineOptions& options) {
  MemoryDemand demand = DemandOf(config_, shape_, options, backend_->activation_dtype());
  demand.scratch = scratch();
  // Where the device's memory is the host's, there is nothing to choose.
  if (backend_->host_packer() == nullptr) demand.experts_on_host = 0;
  const std::optional<size_t> free_bytes = backend_->FreeBytes();
  has_arena_ = free_bytes.has_value();
  if (has_arena_) {
    demand.free_bytes = static_cast<int64_t>(*free_bytes);
    demand.kernel_bytes = static_cast<int64_t>(backend_->WorkspaceBytes(demand.limits));
    BATON_ASSIGN_OR_RETURN(const model::Checkpoint checkpoint,
                           model::Checkpoint::Open(options.model_dir));
    // Where it is missing, loading says so.
    const auto embedding = model::EmbeddingDType(checkpoint, config_, backend_->activation_dtype());
    demand.stored_embedding = embedding.value_or(demand.stored_embedding);
  }
  absl::StatusOr<MemoryPlan> plan = engine::PlanMemory(demand);
  if (!plan.ok()) return Annotate(plan.status(), backend_->Description());
  plan_ = *std::move(plan);
  if (const size_t available = AvailableMemory();
      plan_.host_expert_bytes > 0 && static_cast<size_t>(plan_.host_expert_bytes) > available) {
    return MakeError(
        absl::StatusCode::kResourceExhausted, "HOST_MEMORY",
        absl::StrCat("--experts-on-host: the experts of ", plan_.experts_on_host, " layers take ",
                     plan_.host_expert_bytes, " bytes of the host's memory, expected at most the ",
                     available, " that are available to this process"));
  }
  shape_.limits.fetched_expert_bytes = plan_.fetched_expert_bytes;
  return absl::OkStatus();
}

absl::Status ModelEngine::MakePool(const EngineOptions& options) {
  const int64_t page_bytes = plan_.page_bytes;
  // The plan counts to the byte what a GPU takes. Where a device takes more or less, blocks fill
  // what is there, unless the options ask for so many.
  if (has_arena_ && options.num_blocks == 0 && options.kv_cache_bytes == 0) {
    const int64_t left = static_cast<int64_t>(*backend_->FreeBytes());
    plan_.page_count =
        std::min<int64_t>(left / page_bytes, std::numeric_limits<kv::BlockId>::max());
    if (plan_.page_count < plan_.shape.pages()) {
      return MakeError(
          absl::StatusCode::kResourceExhausted, "MODEL_TOO_LARGE",
          absl::StrCat("loading the model left ", left, " bytes of the device's, ",
                       "expected at least a KV block's ", page_bytes * plan_.shape.pages()));
    }
  }
  const int64_t page_count = plan_.page_count;
  const size_t pool_bytes = static_cast<size_t>(page_count * page_bytes);
  absl::StatusOr<std::unique_ptr<backend::Buffer>> memory =
      options.share_kv_pool ? backend_->AllocateShared(pool_bytes) : backend_->Allocate(pool_bytes);
  if (!memory.ok()) {
    return Annotate(memory.status(), absl::StrCat("KV pool of ", page_count, " ", plan_.units(),
                                                  " of ", page_bytes, " bytes"));
  }
  pool_memory_ = *std::move(memory);
  pool_.base = static_cast<std::byte*>(pool_memory_->data());
  pool_.block_stride_bytes = page_bytes;
  pool_.layer_stride_bytes = static_cast<int64_t>(layout_.ChunkBytes());
  pool_.block_count = static_cast<int>(page_count);
  pool_.kv_heads = layout_.kv_heads;
  pool_.head_dim = layout_.head_dim;
  pool_.latent_dim = layout_.latent_dim;
  pool_.block_tokens = layout_.block_tokens;
  pool_.dtype =
      layout_.dtype == kv::KvDtype::kBF16 ? backend::DType::kBF16 : backend_->activation_dtype();
  pool_.format = shape_.limits.kv_format;
  pool_.shared_file = pool_memory_->shared_file();
  if (layout_.windowed()) SetPlaces(layout_, &pool_);
  SetHeads(layout_, &pool_);
  if (pool_.heads.empty()) {
    BATON_CHECK_EQ(pool_.chunk_heads() * pool_.head_bytes(), pool_.layer_stride_bytes);
  }
  copier_ = backend_->MakeKvCopier(pool_);
  pool_.copier = copier_.get();
  return absl::OkStatus();
}

void ModelEngine::WarmUp(EngineOptions::WarmUp what) {
  if (what == EngineOptions::WarmUp::kNone || !has_arena_) return;
  if (what == EngineOptions::WarmUp::kPromptAndDecode) transformer_->WarmUp(pool_);
  // Long enough for the kernels of many rows.
  constexpr int kPromptTokens = 128;
  const int blocks = std::min((kPromptTokens + layout_.block_tokens - 1) / layout_.block_tokens,
                              (pool_.block_count - pool_.state_tables) / pool_.block_tables());
  const std::vector<int32_t> tokens(static_cast<size_t>(std::min(
      {kPromptTokens, blocks * layout_.block_tokens, max_model_len_, max_num_batched_tokens_})));
  const auto of_blocks = static_cast<size_t>(blocks * pool_.block_tables());
  std::vector<int32_t> ids(of_blocks + static_cast<size_t>(pool_.state_tables));
  std::iota(ids.begin(), ids.end(), 0);
  const auto pages = absl::MakeConstSpan(ids);
  const backend::StateStore state = {static_cast<int>(tokens.size()), pages.subspan(of_blocks)};
  model::SamplingParams sampling;
  sampling.top_p = 0.9f;
  BatchEntry entry;
  entry.tokens = tokens;
  entry.blocks = pages.first(of_blocks);
  if (layout_.recurrent()) entry.state_stores = absl::MakeConstSpan(&state, 1);
  entry.sample = true;
  entry.sampling = &sampling;
  entry.history.tokens = tokens;
  std::vector<float> hidden_before;
  if (config_.is_mtp_head) {
    hidden_before.resize(tokens.size() * static_cast<size_t>(config_.hidden_dim));
    entry.hidden_before = hidden_before;
    entry.hidden_states = true;
  }
  Step({.entries = {entry}}, nullptr);
}

absl::StatusOr<std::shared_ptr<backend::DeviceLinks>> Engine::MakeDeviceLinks() {
  return MakeError(absl::StatusCode::kFailedPrecondition, "DEVICE_LINK",
                   "this engine has no device");
}

void Engine::Launch(const Batch&) { BATON_CHECK(false) << "this engine does not run ahead"; }
std::vector<StepResult> Engine::Collect() {
  BATON_CHECK(false) << "this engine does not run ahead";
  return {};
}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Load(const EngineOptions& options) {
  auto engine = std::make_unique<ModelEngine>();
  BATON_RETURN_IF_ERROR(engine->Initialize(options));
  return engine;
}

}  // namespace baton::engine
