#include "benchmarks/gpu/model_cases.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmarks/gpu/bench_device.h"
#include "benchmarks/gpu/kernel_cases.h"
#include "benchmarks/gpu/open_device.h"
#include "benchmarks/gpu/random_checkpoint.h"
#include "benchmarks/gpu/random_numbers.h"
#include "benchmarks/gpu/row.h"
#include "common/base/status_macros.h"
#include "common/engine/engine.h"
#include "common/model/model_costs.h"

namespace baton::gpu_bench {
namespace {

constexpr int kWarmSteps = 3;
constexpr char kTooLarge[] = "the model does not fit the device";
constexpr size_t kFilledBytes = size_t{32} << 20;

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// An engine and sequences whose cache holds random numbers.
class ModelBench {
 public:
  static absl::StatusOr<std::unique_ptr<ModelBench>> Load(const Grid& grid, const ModelShape& model,
                                                          const std::string& scratch,
                                                          bool experts_on_host) {
    constexpr int kAllLayers = std::numeric_limits<int>::max();
    const int host_layers = experts_on_host ? kAllLayers : 0;
    auto bench = std::make_unique<ModelBench>();
    BATON_ASSIGN_OR_RETURN(const auto checkpoint, RandomCheckpoint::Write(model, scratch));
    engine::EngineOptions options;
    options.model_dir = checkpoint->folder();
    options.backend.device = "cuda:0";
    options.block_tokens = kBlockTokens;
    options.max_num_batched_tokens = grid.step_rows;
    options.max_num_seqs = grid.batches.back();
    options.max_model_len = std::min(
        model.max_positions,
        std::max(grid.contexts.back() + grid.steps + kWarmSteps + 1, grid.prompts.back()) + 1);
    options.experts_on_host = host_layers;
    options.make_backend = MakeEngineBackend;
    if (IsEmulated()) options.num_blocks = 64;
    BATON_ASSIGN_OR_RETURN(bench->engine_, engine::Engine::Load(options));
    bench->costs_ = model::CostsOf(bench->engine_->config(), host_layers);
    bench->format_.bits = model.bits;
    bench->format_.group_size = model.group_size;
    bench->tokens_.resize(static_cast<size_t>(options.max_model_len));
    for (size_t i = 0; i < bench->tokens_.size(); ++i) {
      bench->tokens_[i] =
          static_cast<int32_t>(uint64_t{2654435761u} * (i + 1) %
                               static_cast<uint64_t>(bench->engine_->config().token_count));
    }
    return bench;
  }

  // False if the pool is too small. `tokens`: of each sequence.
  bool MakeSequences(int count, int tokens) {
    const int blocks = (tokens + kBlockTokens - 1) / kBlockTokens;
    const int total = count * blocks;
    if (total > engine_->kv_pool().block_count) return false;
    std::vector<kv::BlockId> ids(static_cast<size_t>(total));
    std::iota(ids.begin(), ids.end(), 0);
    FillTo(total);
    std::shuffle(ids.begin(), ids.end(), std::mt19937(1));
    sequences_.clear();
    for (int i = 0; i < count; ++i) {
      sequences_.emplace_back(ids.begin() + i * blocks, ids.begin() + (i + 1) * blocks);
    }
    return true;
  }

  // Seconds of a step of one token a sequence, behind `context` tokens and more as steps go by.
  struct StepSeconds {
    // From one step's tokens to the next one's, where each is launched before the tokens of the one
    // before are known.
    double ahead = 0;
    double alone = 0;
  };
  StepSeconds Decode(int context, int steps) {
    std::vector<double> ahead, alone;
    if (engine_->RunsAhead(DecodeBatch(context, false))) {
      engine_->Launch(DecodeBatch(context, false));
      Clock::time_point begin;
      for (int step = 1; step <= kWarmSteps + steps; ++step) {
        engine_->Launch(DecodeBatch(context + step, true));
        CheckTokens(engine_->Collect());
        const Clock::time_point now = Clock::now();
        if (step > kWarmSteps) ahead.push_back(std::chrono::duration<double>(now - begin).count());
        begin = now;
      }
      CheckTokens(engine_->Collect());
    }
    for (int step = 0; step < kWarmSteps + steps; ++step) {
      const engine::Batch batch = DecodeBatch(context + step, false);
      const auto begin = Clock::now();
      CheckTokens(engine_->Step(batch));
      if (step >= kWarmSteps) alone.push_back(SecondsSince(begin));
    }
    StepSeconds seconds;
    seconds.alone = Median(std::move(alone));
    seconds.ahead = ahead.empty() ? seconds.alone : Median(std::move(ahead));
    return seconds;
  }

  // Of tokens [cached, prompt) of the first sequence, the next token's draw included.
  double Prefill(int prompt, int cached) {
    const auto begin = Clock::now();
    for (int at = cached; at < prompt;) {
      const int count = std::min(prompt - at, engine_->max_num_batched_tokens());
      engine::Batch batch;
      batch.entries.push_back(Entry(sequences_[0], at, count, at + count == prompt));
      const std::vector<engine::StepResult> results = engine_->Step(batch);
      if (at + count == prompt) CheckTokens(results);
      at += count;
    }
    return SecondsSince(begin);
  }

  const model::ModelCosts& costs() const { return costs_; }
  const model::WeightFormat& format() const { return format_; }
  backend::DType dtype() const { return engine_->kv_pool().dtype; }
  int64_t tokens_that_fit() const { return int64_t{engine_->kv_pool().block_count} * kBlockTokens; }

 private:
  engine::BatchEntry Entry(const std::vector<kv::BlockId>& blocks, int context, int count,
                           bool sample) const {
    engine::BatchEntry entry;
    entry.tokens = absl::MakeConstSpan(tokens_).subspan(static_cast<size_t>(context),
                                                        static_cast<size_t>(count));
    entry.context = context;
    entry.blocks = blocks;
    entry.sample = sample;
    entry.sampling = &greedy_;
    return entry;
  }
  // drawn: the tokens are those that the step before draws.
  engine::Batch DecodeBatch(int context, bool drawn) const {
    engine::Batch batch;
    for (const auto& blocks : sequences_) {
      batch.entries.push_back(Entry(blocks, context, 1, true));
      if (drawn) batch.entries.back().drawn_by = static_cast<int>(batch.entries.size()) - 1;
    }
    return batch;
  }
  static void CheckTokens(const std::vector<engine::StepResult>& results) {
    for (const engine::StepResult& result : results) {
      BATON_CHECK(result.tokens.ok()) << result.tokens.status();
    }
  }
  void FillTo(int blocks) {
    const auto block_bytes = static_cast<size_t>(engine_->kv_pool().block_stride_bytes);
    const size_t at_once = std::max<size_t>(1, kFilledBytes / block_bytes);
    if (chunk_.empty()) chunk_ = RandomHalves(at_once * block_bytes / 2, dtype());
    while (filled_ < blocks) {
      const int count = std::min(static_cast<int>(at_once), blocks - filled_);
      std::vector<kv::BlockId> ids(static_cast<size_t>(count));
      std::iota(ids.begin(), ids.end(), filled_);
      engine_->WritePages(ids, reinterpret_cast<const std::byte*>(chunk_.data()));
      filled_ += count;
    }
  }

  std::unique_ptr<engine::Engine> engine_;
  model::ModelCosts costs_;
  model::WeightFormat format_;
  const model::SamplingParams greedy_ = {.temperature = 0};
  std::vector<int32_t> tokens_;
  std::vector<uint16_t> chunk_;
  int filled_ = 0;
  std::vector<std::vector<kv::BlockId>> sequences_;
};

// Rows of each step that a prompt takes.
std::vector<int> ChunksOf(int tokens, int step_rows) {
  std::vector<int> chunks;
  for (int at = 0; at < tokens; at += step_rows) chunks.push_back(std::min(tokens - at, step_rows));
  return chunks;
}

// Seconds that a step of so many rows spends in products, the LM head apart, and the LM head's;
// infinite where there is no memory for them.
struct PromptProducts {
  std::map<int, double> of_rows;
  double lm_head = 0;

  double Of(int tokens, int step_rows) const {
    double sum = lm_head;
    for (const int rows : ChunksOf(tokens, step_rows)) sum += of_rows.at(rows);
    return sum;
  }
};

absl::StatusOr<PromptProducts> MeasureProducts(const Grid& grid, const ModelShape& model) {
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<BenchDevice> device,
                         BenchDevice::Open(grid, Mode::kMeasure));
  PromptProducts products;
  products.lm_head = ProductSeconds(*device, 1, LmHead(model));
  for (const int prompt : grid.prompts) {
    for (const int cached : {0, prompt / 2}) {
      for (const int rows : ChunksOf(prompt - cached, grid.step_rows)) {
        if (products.of_rows.contains(rows)) continue;
        double sum = 0;
        for (const MatrixShape& matrix : LayerMatrices(model)) {
          sum += matrix.count * ProductSeconds(*device, rows, matrix);
        }
        products.of_rows[rows] = sum;
      }
    }
  }
  return products;
}

// The name of a model whose experts are in the host's memory, or on the device.
std::string NameOf(const ModelShape& model, bool experts_on_host) {
  return experts_on_host ? absl::StrCat(model.name, ", experts on the host") : model.name;
}

absl::Status TimeStepsWith(const Grid& grid, const ModelShape& model, const std::string& scratch,
                           bool experts_on_host) {
  const auto loaded = ModelBench::Load(grid, model, scratch, experts_on_host);
  // A figure that this device cannot give: no failure.
  const bool fits = !absl::IsResourceExhausted(loaded.status());
  if (fits && !loaded.ok()) return loaded.status();
  for (const int context : grid.contexts) {
    for (const int batch : grid.batches) {
      Row row("steps", "step");
      row.Text("model", NameOf(model, experts_on_host))
          .Number("batch", batch)
          .Number("context", context);
      if (!fits) {
        row.Text("skipped", kTooLarge).Print();
        continue;
      }
      const std::unique_ptr<ModelBench>& bench = *loaded;
      row.Text("dtype", Name(bench->dtype()));
      if (!bench->MakeSequences(batch, context + kWarmSteps + grid.steps + 1)) {
        row.Text("skipped", absl::StrCat("the pool holds ", bench->tokens_that_fit(), " tokens"))
            .Print();
        continue;
      }
      // What the plan of `baton plan` says of the step in the middle.
      const int64_t seen = context + kWarmSteps + grid.steps / 2;
      const model::StepBytes bytes = model::DecodeStepBytes(
          bench->costs(), bench->format(), bench->dtype(), SizeOf(bench->dtype()), batch, seen);
      if (experts_on_host) row.Number("link_bytes", bytes.host);
      const Work floor = {bytes.total(), model::DecodeStepFlops(bench->costs(), batch, seen)};
      const ModelBench::StepSeconds seconds = bench->Decode(context, grid.steps);
      row.Number("alone_seconds", seconds.alone).Took(seconds.ahead, floor).Print();
    }
  }
  return absl::OkStatus();
}

absl::Status TimePrefillWith(const Grid& grid, const ModelShape& model, const std::string& scratch,
                             bool experts_on_host) {
  const bool quantized = model.bits > 0;
  // Before the engine takes the device's memory. What others' products take is no measure of those
  // that make their weights first.
  PromptProducts products;
  if (!quantized) {
    BATON_ASSIGN_OR_RETURN(products, MeasureProducts(grid, model));
  }
  const auto loaded = ModelBench::Load(grid, model, scratch, experts_on_host);
  const bool fits = !absl::IsResourceExhausted(loaded.status());
  if (fits && !loaded.ok()) return loaded.status();
  for (const int prompt : quantized ? grid.quantized_prompts : grid.prompts) {
    for (const int cached : {0, prompt / 2}) {
      Row row("prefill", "prefill");
      row.Text("model", NameOf(model, experts_on_host))
          .Number("tokens", prompt)
          .Number("cached", cached);
      if (!fits) {
        row.Text("skipped", kTooLarge).Print();
        continue;
      }
      const std::unique_ptr<ModelBench>& bench = *loaded;
      row.Text("dtype", Name(bench->dtype()));
      if (!bench->MakeSequences(1, prompt)) {
        row.Text("skipped", "the pool is too small").Print();
        continue;
      }
      bench->Prefill(prompt, cached);
      std::vector<double> seconds;
      for (int round = 0; round < grid.rounds; ++round) {
        seconds.push_back(bench->Prefill(prompt, cached));
      }
      // The weights, once.
      const model::StepBytes bytes =
          model::DecodeStepBytes(bench->costs(), bench->format(), bench->dtype(),
                                 SizeOf(bench->dtype()), prompt - cached, 0);
      if (experts_on_host) {
        double link_bytes = 0;
        for (const int rows : ChunksOf(prompt - cached, grid.step_rows)) {
          link_bytes += model::DecodeStepBytes(bench->costs(), bench->format(), bench->dtype(),
                                               SizeOf(bench->dtype()), rows, 0)
                            .host;
        }
        row.Number("link_bytes", link_bytes);
      }
      const Work floor = {bytes.weights, model::PrefillFlops(bench->costs(), prompt, cached)};
      if (!quantized) {
        const double alone = products.Of(prompt - cached, grid.step_rows);
        if (std::isfinite(alone)) row.Number("products_seconds", alone);
      }
      row.Took(Median(std::move(seconds)), floor).Print();
    }
  }
  return absl::OkStatus();
}

// Each model, and those with experts with all of them in the host's memory, too.
using TimeModel = absl::Status (*)(const Grid&, const ModelShape&, const std::string&, bool);
absl::Status TimeBoth(TimeModel time, const Grid& grid, const ModelShape& model,
                      const std::string& scratch) {
  BATON_RETURN_IF_ERROR(time(grid, model, scratch, false));
  return model.experts == 0 ? absl::OkStatus() : time(grid, model, scratch, true);
}

}  // namespace

absl::Status TimeSteps(const Grid& grid, const ModelShape& model, const std::string& scratch) {
  return TimeBoth(TimeStepsWith, grid, model, scratch);
}

absl::Status TimePrefill(const Grid& grid, const ModelShape& model, const std::string& scratch) {
  return TimeBoth(TimePrefillWith, grid, model, scratch);
}

}  // namespace baton::gpu_bench
