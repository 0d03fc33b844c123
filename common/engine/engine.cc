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
#include "common/engine/device_draws.h"
#include "common/engine/engine_shape.h"
#include "common/engine/memory_plan.h"
#include "common/model/checkpoint.h"
#include "common/model/convert.h"
#include "common/model/numerics.h"
#include "common/model/weights.h"

namespace baton::engine {
namespace {

class ModelEngine final : public Engine {
 public:
  absl::Status Initialize(const EngineOptions& options);
  std::vector<StepResult> Step(const Batch& batch, model::LayerObserver* observer) override;
  bool RunsAhead(const Batch& batch) const override;
  void Launch(const Batch& batch) override;
  std::vector<StepResult> Collect() override;
  void CopyPages(absl::Span<const int32_t> sources, absl::Span<const int32_t> targets) override {
    backend_->CopyBlocks(pool_, sources, targets);
    if (copier_ != nullptr) backend_->RecordEvent()->Wait();  // it may write to the sources next
  }
  void ReadPages(absl::Span<const int32_t> pages, std::byte* host) override {
    for (size_t i = 0; i < pages.size(); ++i) {
      backend_->CopyToHost(host + i * page_bytes(), pool_.Chunk(pages[i], 0), page_bytes());
    }
  }
  void WritePages(absl::Span<const int32_t> pages, const std::byte* host) override {
    for (size_t i = 0; i < pages.size(); ++i) {
      backend_->CopyToDevice(pool_.Chunk(pages[i], 0), host + i * page_bytes(), page_bytes());
    }
    if (copier_ != nullptr) backend_->RecordEvent()->Wait();  // it may read the pages next
  }
  absl::StatusOr<std::shared_ptr<backend::DeviceLinks>> MakeDeviceLinks() override {
    return backend_->MakeDeviceLinks(pool_);
  }
  std::string Description() const override {
    const std::string device = backend_->Description();
    return has_arena_ ? absl::StrCat(device, "; ", plan_.ToString()) : device;
  }
  std::string DeviceKind() const override {
    const int layers = plan_.experts_on_host;
    return layers == 0
               ? backend_->Kind()
               : absl::StrCat(backend_->Kind(), ", experts of ", layers, " layers on the host");
  }

 private:
  // A row whose logits are wanted.
  struct WantedRow {
    size_t entry;
    int row;  // of the entry
  };

  struct Launched {
    std::vector<StepResult> results;
    DeviceDraws draws;
    std::vector<int> draw_of;  // each entry's, by number; -1: none
    std::unique_ptr<backend::Event> end;
  };

  absl::Status MakeBackend(const EngineOptions& options);
  absl::Status PlanMemory(const EngineOptions& options);
  absl::Status MakePool(const EngineOptions& options);
  void WarmUp(EngineOptions::WarmUp what);
  // Collects the batch's rows; wanted_ has those of its logits.
  void Gather(const Batch& batch);
  // Enqueues the forward pass of what was gathered.
  backend::Tensor Forward(absl::Span<const backend::SampleRow> draws,
                          model::LayerObserver* observer);
  void AddEntry(const BatchEntry& entry, size_t index);
  // What is wanted of row `wanted` - `first` of `logits`: now, which returns true, or when draws_
  // run.
  bool UseRow(size_t wanted, size_t first, const backend::Tensor& logits, const Batch& batch,
              std::vector<StepResult>& results);
  // Returns the hidden state of the row `wanted` of wanted_.
  std::vector<float> HiddenState(int wanted);
  // logits_ are of the entry's row.
  void UseLogits(const BatchEntry& entry, int row, StepResult& result) const;
  size_t page_bytes() const { return static_cast<size_t>(pool_.block_stride_bytes); }

  // Destroyed in reverse order: the backend outlives what it made.
  std::unique_ptr<backend::Backend> backend_;
  std::unique_ptr<backend::Buffer> pool_memory_;
  std::unique_ptr<backend::KvCopier> copier_;
  std::unique_ptr<model::Transformer> transformer_;
  EngineShape shape_;
  MemoryPlan plan_;
  bool has_arena_ = false;  // the plan bounds what fits
  // Scratch of Step, kept to avoid allocation.
  std::vector<int32_t> tokens_;
  std::vector<int32_t> drawn_;  // of tokens_, or empty
  std::vector<backend::SequenceRows> sequences_;
  std::vector<int32_t> logit_rows_;
  std::vector<WantedRow> wanted_;  // one a logit row
  std::vector<float> logits_;      // of one row
  DeviceDraws draws_;
  std::deque<Launched> launched_;  // oldest first; draws refer to results
};

absl::Status ModelEngine::Initialize(const EngineOptions& options) {
  BATON_ASSIGN_OR_RETURN(config_,
                         model::LoadModelConfig(options.model_dir, options.generation_overrides));
  config_.load_bits = options.weight_bits;
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
  model::TransformerOptions transformer_options;
  transformer_options.max_batch_tokens = limits.max_rows;
  transformer_options.max_logit_rows = limits.max_logit_rows;
  transformer_options.max_positions = limits.max_positions;
  transformer_options.experts_on_host = plan_.experts_on_host;
  transformer_options.progress = options.progress;
  BATON_ASSIGN_OR_RETURN(transformer_, model::Transformer::Load(options.model_dir, config_,
                                                                transformer_options, *backend_));
  BATON_RETURN_IF_ERROR(MakePool(options));
  WarmUp(options.warm_up);
  return absl::OkStatus();
}

absl::Status ModelEngine::MakeBackend(const EngineOptions& options) {
  BATON_ASSIGN_OR_RETURN(backend_, options.make_backend ? options.make_backend(options.backend)
                                                        : backend::MakeBackend(options.backend));
  return absl::OkStatus();
}

absl::Status ModelEngine::PlanMemory(const EngineOptions& options) {
  MemoryDemand demand = DemandOf(config_, shape_, options, backend_->activation_dtype());
  demand.scratch = {.gate_up = backend_->needs_gate_up(),
                    .experts_at_once = backend_->experts_at_once()};
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
  Step({.entries = {entry}}, nullptr);
}

void ModelEngine::Gather(const Batch& batch) {
  tokens_.clear();
  drawn_.clear();
  sequences_.clear();
  logit_rows_.clear();
  wanted_.clear();
  for (size_t i = 0; i < batch.entries.size(); ++i) AddEntry(batch.entries[i], i);
  BATON_CHECK(!tokens_.empty());
  BATON_CHECK_LE(tokens_.size(), static_cast<size_t>(shape_.limits.max_rows));
  BATON_CHECK_LE(sequences_.size(), static_cast<size_t>(max_num_seqs_));
}

backend::Tensor ModelEngine::Forward(absl::Span<const backend::SampleRow> draws,
                                     model::LayerObserver* observer) {
  backend::RaggedBatch ragged;
  ragged.tokens = tokens_;
  ragged.drawn = drawn_;
  ragged.sequences = sequences_;
  ragged.logit_rows = logit_rows_;
  ragged.draws = draws;
  return transformer_->Forward(ragged, pool_, observer);
}

bool ModelEngine::RunsAhead(const Batch& batch) const {
  return backend_->samples_on_device() &&
         std::all_of(batch.entries.begin(), batch.entries.end(), [](const BatchEntry& entry) {
           if (entry.prompt_logprobs || !entry.labels.empty() || entry.embed ||
               !entry.drafts.empty()) {
             return false;
           }
           const int last = static_cast<int>(entry.tokens.size()) - 1;
           return !entry.sample || (entry.draws == 1 && DeviceDraws::Suffice(entry, last) &&
                                    model::Validate(*entry.sampling).ok());
         });
}

void ModelEngine::Launch(const Batch& batch) {
  BATON_CHECK_LT(launched_.size(), size_t{kMaxLaunched});
  BATON_CHECK(RunsAhead(batch));
  Gather(batch);
  Launched& step = launched_.emplace_back();
  step.results.resize(batch.entries.size());
  step.draw_of.assign(batch.entries.size(), -1);
  for (size_t i = 0; i < wanted_.size(); ++i) {
    const size_t entry = wanted_[i].entry;
    step.draw_of[entry] = static_cast<int>(step.draws.rows().size());
    step.draws.Add(batch.entries[entry], /*drafted=*/0, static_cast<int>(i), logit_rows_[i],
                   step.results[entry]);
  }
  const backend::Tensor logits = Forward(step.draws.rows(), nullptr);
  step.draws.Enqueue(*backend_, logits, config_.token_count);
  step.end = backend_->RecordEvent();
}

std::vector<StepResult> ModelEngine::Collect() {
  BATON_CHECK(!launched_.empty());
  Launched& step = launched_.front();
  step.draws.Collect(*backend_);
  step.end->Wait();
  std::vector<StepResult> results = std::move(step.results);
  launched_.pop_front();
  return results;
}

std::vector<StepResult> ModelEngine::Step(const Batch& batch, model::LayerObserver* observer) {
  BATON_CHECK(launched_.empty()) << "a step is in flight";
  Gather(batch);
  backend::Tensor logits = Forward({}, observer);
  std::vector<StepResult> results(batch.entries.size());
  // Padding rows of the embedding (ids that the tokenizer lacks) are never drawn.
  logits_.resize(config_.token_count);
  size_t first = 0;      // wanted row that logits row 0 is of
  bool awaited = false;  // the step, by reading its logits
  for (size_t i = 0; i < wanted_.size(); ++i) {
    if (i == first + static_cast<size_t>(logits.rows)) {
      awaited |= draws_.Run(*backend_, logits, config_.token_count, max_num_seqs_);
      first = i;
      logits = transformer_->MoreLogits(static_cast<int>(first));
    }
    awaited |= UseRow(i, first, logits, batch, results);
  }
  awaited |= draws_.Run(*backend_, logits, config_.token_count, max_num_seqs_);
  if (!awaited) backend_->RecordEvent()->Wait();
  return results;
}

bool ModelEngine::UseRow(size_t wanted, size_t first, const backend::Tensor& logits,
                         const Batch& batch, std::vector<StepResult>& results) {
  const auto [index, row] = wanted_[wanted];
  const BatchEntry& entry = batch.entries[index];
  // Drafts that are computed before the row.
  const int drafted = row + 1 - static_cast<int>(entry.tokens.size());
  const bool embeds = entry.embed && drafted == 0;
  if (embeds) results[index].hidden_state = HiddenState(static_cast<int>(wanted));
  if (embeds && !entry.sample && entry.labels.empty() && !entry.prompt_logprobs) return true;
  const size_t logit_row = wanted - first;
  if (backend_->samples_on_device() && DeviceDraws::Suffice(entry, row)) {
    draws_.Add(entry, drafted, static_cast<int>(logit_row), sequences_[index].first_row + row,
               results[index]);
    return false;
  }
  if (drafted > 0 && !DraftsAreDrawn(entry, drafted, results[index].tokens)) return false;
  const float* source =
      static_cast<const float*>(logits.data) + static_cast<int64_t>(logit_row) * logits.row_stride;
  backend_->CopyToHost(logits_.data(), source, logits_.size() * sizeof(float));
  UseLogits(entry, row, results[index]);
  return true;
}

std::vector<float> ModelEngine::HiddenState(int wanted) {
  const backend::Tensor state = transformer_->HiddenState(wanted);
  std::vector<std::byte> bytes(static_cast<size_t>(state.cols) * SizeOf(state.dtype));
  backend_->CopyToHost(bytes.data(), state.data, bytes.size());
  std::vector<float> values(static_cast<size_t>(state.cols));
  model::ToF32(bytes.data(), state.dtype, values.size(), values.data());
  return values;
}

void ModelEngine::AddEntry(const BatchEntry& entry, size_t index) {
  const int count = entry.rows();
  BATON_CHECK(!entry.tokens.empty());
  CheckDrafts(entry);
  BATON_CHECK_LE(entry.context + count, max_model_len_);
  BATON_CHECK_GE(
      static_cast<int64_t>(entry.blocks.size()) / pool_.block_tables() * layout_.block_tokens,
      entry.context + count);
  BATON_CHECK(!entry.sample || entry.sampling != nullptr);
  BATON_CHECK_LE(entry.targets.size(), entry.tokens.size());
  backend::SequenceRows rows;
  rows.first_row = static_cast<int>(tokens_.size());
  rows.row_count = count;
  rows.context = entry.context;
  rows.blocks = entry.blocks;
  rows.state = entry.state;
  rows.state_stores = entry.state_stores;
  sequences_.push_back(rows);
  tokens_.insert(tokens_.end(), entry.tokens.begin(), entry.tokens.end());
  tokens_.insert(tokens_.end(), entry.drafts.begin(), entry.drafts.end());
  if (entry.drawn_by) {
    // Two steps may be in flight: the one before this is the last.
    BATON_CHECK(!launched_.empty());
    const std::vector<int>& draw_of = launched_.back().draw_of;
    BATON_CHECK_LT(*entry.drawn_by, static_cast<int>(draw_of.size()));
    BATON_CHECK_GE(draw_of[static_cast<size_t>(*entry.drawn_by)], 0);
    drawn_.resize(tokens_.size(), backend::kNotDrawn);
    drawn_.back() = draw_of[static_cast<size_t>(*entry.drawn_by)];
  } else if (!drawn_.empty()) {
    drawn_.resize(tokens_.size(), backend::kNotDrawn);
  }
  const int targets = entry.prompt_logprobs ? static_cast<int>(entry.targets.size()) : 0;
  for (int row = 0; row < count; ++row) {
    const bool after_last = (entry.sample || !entry.labels.empty() || entry.embed) &&
                            static_cast<size_t>(row) + 1 >= entry.tokens.size();
    if (row >= targets && !after_last) continue;
    logit_rows_.push_back(rows.first_row + row);
    wanted_.push_back({index, row});
  }
}

void ModelEngine::UseLogits(const BatchEntry& entry, int row, StepResult& result) const {
  if (entry.prompt_logprobs && static_cast<size_t>(row) < entry.targets.size() &&
      result.prompt_logprobs.ok()) {
    absl::StatusOr<model::SampledToken> token =
        model::LogprobsOf(logits_, entry.targets[static_cast<size_t>(row)], *entry.prompt_logprobs);
    if (token.ok()) {
      result.prompt_logprobs->push_back(*std::move(token));
    } else {
      result.prompt_logprobs = token.status();
    }
  }
  const int drafted = row + 1 - static_cast<int>(entry.tokens.size());
  if (drafted < 0) return;
  if (!entry.labels.empty()) result.label_logprobs = model::LogprobsOf(logits_, entry.labels);
  if (!entry.sample) return;
  if (entry.beam_candidates > 0) {
    result.tokens =
        model::BestTokens(logits_, *entry.sampling, entry.history, entry.beam_candidates);
    return;
  }
  const uint64_t position = static_cast<uint64_t>(entry.context + row + 1);
  absl::StatusOr<std::vector<model::SampledToken>> drawn = model::SampleMany(
      logits_, *entry.sampling, entry.HistoryBehind(drafted), position, entry.draws);
  if (drafted == 0) {
    result.tokens = std::move(drawn);
  } else if (drawn.ok()) {  // else the next step, of which this is the first draw, fails
    result.tokens->push_back(std::move(drawn->front()));
  }
}

}  // namespace

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
