#include "cli/plan_flags.h"

#include <CLI/CLI.hpp>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/model_directory.h"
#include "common/engine/engine_shape.h"

namespace baton::cli {
namespace {

using Compute = backend::BackendOptions::Compute;

constexpr int kMostTokens = 1 << 24;
constexpr int kMostRows = 32;  // of a table

void AddGpu(CLI::App* app, PlanFlags* flags) {
  app->add_option("--gpu", flags->gpu,
                  absl::StrCat("GPU: ", absl::StrJoin(engine::GpuNames(), ", "),
                               ", or any name with the next three flags"));
  const auto positive = CLI::Range(1e-3, 1e9);
  app->add_option("--memory-gib", flags->memory_gib,
                  "Memory of the GPU, instead of the known value")
      ->check(CLI::Range(1e-3, 1e5));
  app->add_option("--bandwidth-gbs", flags->bandwidth_gbs,
                  "Memory bandwidth, 10^9 bytes per second")
      ->check(positive);
  app->add_option("--host-gbs", flags->host_gbs,
                  "Bandwidth of the GPU's link to the host's memory, 10^9 bytes per second")
      ->check(positive);
  app->add_option("--tflops", flags->tflops,
                  "Rate of dense 16-bit matrix products, 10^12 operations per second")
      ->check(positive);
}

void AddWorkerFlags(CLI::App* app, engine::EngineOptions* engine) {
  app->add_option("--gpu-memory-utilization", engine->backend.gpu_memory_utilization,
                  "Share of the GPU's memory to use, above 0 and at most 1");
  app->add_flag("--deterministic,!--no-deterministic", engine->backend.deterministic,
                "Results that do not depend on the batch, as for a worker (default on)");
  app->add_option("--block-size", engine->block_tokens, "Tokens in a KV block")
      ->check(CLI::IsMember({16, 32, 64, 128, 256}));
  app->add_option("--num-blocks", engine->num_blocks, "Number of KV blocks; 0: as many as fit")
      ->check(CLI::Range(0, 1 << 30));
  app->add_option("--kv-cache-memory", engine->kv_cache_bytes,
                  "Size of the KV pool, e.g. 512MB; 0: all remaining memory")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/false))
      ->check(CLI::Range(int64_t{0}, int64_t{1} << 50));
  app->add_option("--max-model-len", engine->max_model_len,
                  "Longest sequence in tokens; 0: the model's limit")
      ->check(CLI::Range(0, kMostTokens));
  app->add_option("--max-num-seqs", engine->max_num_seqs, "Largest number of sequences in one step")
      ->check(CLI::Range(1, 4096));
  app->add_option("--max-num-batched-tokens", engine->max_num_batched_tokens,
                  "Largest number of tokens in one step")
      ->check(CLI::Range(16, 1 << 20));
}

}  // namespace

void AddPlan(CLI::App* app, PlanOptions* plan, PlanFlags* flags) {
  engine::ServingQuestion& question = plan->question;
  app->add_option(
         "--model", question.engine.model_dir,
         "Hugging Face directory (config.json is enough) or GGUF file of the model, or its id, or "
         "ORG/NAME/FILE.gguf, in the local Hugging Face cache")
      ->type_name("PATH");
  AddGpu(app, flags);
  app->add_option(
         "--context", question.context,
         "Tokens per sequence, prompt and answer together; default: 2048, or what the model "
         "allows if that is less")
      ->check(CLI::Range(1, kMostTokens));
  app->add_option("--batch", question.batches, "Batch sizes of decode steps, e.g. 1,8,32")
      ->delimiter(',')
      ->expected(1, kMostRows)
      ->check(CLI::Range(1, 1 << 16));
  app->add_option("--prompt-tokens", question.prompts, "Lengths of prompts, e.g. 512,2048,8192")
      ->delimiter(',')
      ->expected(1, kMostRows)
      ->check(CLI::Range(1, kMostTokens));
  app->add_option("--dtype", flags->dtype, "auto, bfloat16 or float16, as for a worker")
      ->check(CLI::IsMember({"auto", "bfloat16", "float16"}));
  app->add_option("--kv-cache-dtype", flags->kv_cache_dtype,
                  "auto, bfloat16, int8, fp8 or int4, as for a worker")
      ->check(CLI::IsMember({"auto", "bfloat16", "int8", "fp8", "int4"}));
  app->add_option("--kv-tier", flags->kv_tier,
                  "KV tiers as for a prefill worker: how much they hold, and when they pay");
  app->add_option("--weights", flags->weights,
                  "Format of the weights: auto (as in config.json), or assume 16bit, int8 or int4")
      ->check(CLI::IsMember({"auto", "16bit", "int8", "int4"}));
  app->add_option("--group-size", flags->group_size,
                  "Weights that share a scale, for int8 and int4")
      ->check(CLI::Range(1, 1 << 17));
  app->add_option("--experts-on-host", flags->experts_on_host,
                  "Layers whose experts stay in the host's memory: a number, auto or all, as for a "
                  "worker")
      ->capture_default_str();
  AddWorkerFlags(app, &question.engine);
  app->add_flag("--json", plan->json, "One JSON object instead of tables");
  AddClusterPlan(app, &plan->cluster, &flags->cluster);
}

void FinishPlan(const PlanFlags& flags, PlanOptions* plan) {
  engine::ServingQuestion& question = plan->question;
  if (plan->cluster.wanted && !FinishClusterPlan(flags.cluster, &plan->cluster)) return;
  if (question.engine.model_dir.empty()) throw CLI::RequiredError("--model");
  if (flags.gpu.empty()) throw CLI::RequiredError("--gpu");
  const absl::StatusOr<ModelDirectory> model = FindModel(question.engine.model_dir);
  if (!model.ok()) throw CLI::ValidationError("--model", std::string(model.status().message()));
  question.engine.model_dir = model->path;
  const std::optional<engine::GpuFacts> known = engine::FindGpu(flags.gpu);
  if (!known && !(flags.memory_gib && flags.bandwidth_gbs && flags.tflops)) {
    throw CLI::ValidationError(
        "--gpu",
        absl::StrCat("\"", flags.gpu, "\" is not one of ", absl::StrJoin(engine::GpuNames(), ", "),
                     ": expected --memory-gib, --bandwidth-gbs and --tflops with it"));
  }
  const std::pair<const char*, std::optional<double>> numbers[] = {
      {"--memory-gib", flags.memory_gib},
      {"--bandwidth-gbs", flags.bandwidth_gbs},
      {"--host-gbs", flags.host_gbs},
      {"--tflops", flags.tflops}};
  for (const auto& [name, value] : numbers) {
    // CLI::Range accepts NaN.
    if (value && std::isnan(*value)) throw CLI::ValidationError(name, "not a number");
  }
  const double share = question.engine.backend.gpu_memory_utilization;
  if (!(share > 0 && share <= 1)) {
    throw CLI::ValidationError("--gpu-memory-utilization", "expected above 0 and at most 1");
  }
  question.gpu = known.value_or(engine::GpuFacts{.name = flags.gpu});
  constexpr double kGiB = int64_t{1} << 30;
  if (flags.memory_gib) question.gpu.memory_bytes = static_cast<int64_t>(*flags.memory_gib * kGiB);
  if (flags.bandwidth_gbs || flags.tflops || flags.host_gbs) question.gpu.rate_source = "given";
  if (flags.bandwidth_gbs) question.gpu.bytes_per_second = *flags.bandwidth_gbs * 1e9;
  if (flags.host_gbs) question.gpu.host_link_bytes_per_second = *flags.host_gbs * 1e9;
  if (flags.tflops) question.gpu.flops_per_second = *flags.tflops * 1e12;
  const std::map<std::string, Compute> computes = {
      {"auto", Compute::kAuto}, {"bfloat16", Compute::kBF16}, {"float16", Compute::kF16}};
  question.engine.backend.compute = computes.at(flags.dtype);
  question.engine.kv_dtype = kv::ParseKvDtype(flags.kv_cache_dtype);  // auto: nullopt
  absl::StatusOr<std::vector<kv_store::TierSpec>> tiers = kv_store::ParseTiers(flags.kv_tier);
  if (!tiers.ok()) throw CLI::ValidationError("--kv-tier", std::string(tiers.status().message()));
  plan->tiers = *std::move(tiers);
  const auto experts_on_host = engine::ParseExpertsOnHost(flags.experts_on_host);
  if (!experts_on_host.ok()) {
    throw CLI::ValidationError("--experts-on-host",
                               std::string(experts_on_host.status().message()));
  }
  question.engine.experts_on_host = *experts_on_host;
  const std::map<std::string, int> bits = {{"16bit", 0}, {"int8", 8}, {"int4", 4}};
  if (flags.weights != "auto") {
    // Groups of 32 are those of a worker's --weights.
    question.weights = model::WeightFormat{.bits = bits.at(flags.weights),
                                           .group_size = flags.group_size,
                                           .symmetric = flags.group_size == 32};
  }
}

}  // namespace baton::cli
