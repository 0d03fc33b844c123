#include "cli/plan.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/generate.h"
#include "common/base/error.h"
#include "common/base/exit_code.h"

namespace baton::cli {
namespace {

using engine::DecodeFloor;
using engine::PrefillFloor;
using engine::ServingPlan;
using engine::TransferTime;

struct Part {
  const char* name;
  int64_t bytes;
};
// Everything in the GPU's memory but the KV pool.
std::vector<Part> PartsOf(const ServingPlan& plan) {
  const engine::MemoryPlan& memory = plan.memory;
  std::vector<Part> parts = {{"embedding", memory.weights.embedding.device_bytes},
                             {"attention", memory.weights.attention.device_bytes},
                             {"feed_forward", memory.weights.feed_forward.device_bytes},
                             {"norms_and_biases", memory.weights.vectors.device_bytes},
                             {"lm_head", memory.weights.lm_head.device_bytes}};
  if (plan.served()) {
    parts.push_back({"rope_tables", memory.rope_bytes});
    parts.push_back({"activations", memory.activation_bytes});
    parts.push_back({"kernel_workspaces", memory.kernel_bytes});
    if (memory.experts_on_host > 0) {
      parts.push_back({"fetched_experts", memory.fetched_expert_bytes});
    }
  }
  return parts;
}

std::string WeightsText(const ServingPlan& plan) {
  const std::string activation = backend::Name(plan.activation);
  if (!plan.weights.quantized()) return activation;
  if (plan.weights.mxfp4) return absl::StrCat("experts MXFP4, the rest ", activation);
  return absl::StrCat("int", plan.weights.bits, " in groups of ", plan.weights.group_size,
                      ", the rest ", activation);
}

std::string MiB(int64_t bytes) {
  return absl::StrFormat("%10.1f MiB", static_cast<double>(bytes) / (1 << 20));
}

std::string MemorySection(const ServingPlan& plan) {
  const engine::MemoryPlan& memory = plan.memory;
  std::string text = absl::StrFormat("\nmemory: %s of %s of %s\n", MiB(plan.arena_bytes),
                                     MiB(plan.gpu.memory_bytes), plan.gpu.name);
  for (const Part& part : PartsOf(plan)) {
    absl::StrAppendFormat(&text, "  %-20s %s\n", part.name, MiB(part.bytes));
  }
  absl::StrAppendFormat(&text, "  %-20s %s\n", "KV pool", MiB(memory.kv_bytes()));
  if (memory.experts_on_host > 0) {
    absl::StrAppendFormat(&text,
                          "in the host's memory: the experts of %d of %d layers, %s; those that a "
                          "step needs cross a link of %.1f GB/s before they are multiplied with\n",
                          memory.experts_on_host, static_cast<int>(plan.costs.layers.size()),
                          absl::StripAsciiWhitespace(MiB(memory.host_expert_bytes)),
                          plan.gpu.host_link_bytes_per_second / 1e9);
  }
  absl::StrAppendFormat(
      &text, "%d bytes of KV per token (%s); %d blocks of %d tokens: %d tokens\n",
      memory.token_bytes, plan.costs.attention,
      memory.page_count / (memory.shape.recurrent ? memory.shape.full_pages : memory.shape.pages()),
      memory.block_tokens, memory.kv_tokens());
  if (memory.shape.recurrent) {
    absl::StrAppendFormat(&text,
                          "a state of the %d recurrent layers takes %d pages of %d bytes; a "
                          "sequence has its own and the one behind its last whole block\n",
                          static_cast<int>(memory.layout.states.size()), memory.shape.window_pages,
                          memory.page_bytes);
  } else if (memory.shape.windowed()) {
    absl::StrAppendFormat(&text,
                          "a block has %d pages of %d bytes for layers that see all tokens, and "
                          "for the last %d blocks "
                          "of a sequence %d more\n",
                          memory.shape.full_pages, memory.page_bytes, memory.shape.window_blocks,
                          memory.shape.window_pages);
  }
  absl::StrAppendFormat(&text, "a sequence of %d tokens takes %s\n", plan.context,
                        absl::StripAsciiWhitespace(MiB(memory.sequence_bytes(plan.context))));
  for (const engine::KvDtypePlan& row : plan.kv_dtypes) {
    absl::StrAppendFormat(&text, "  %-9s KV: %8d bytes per token, %9d tokens, %6d sequences\n",
                          kv::KvDtypeName(row.dtype), row.token_bytes, row.tokens, row.sequences);
  }
  absl::StrAppendFormat(
      &text, "%d sequences of %d tokens fit%s\n", plan.sequences, plan.context,
      plan.sequences > plan.max_num_seqs
          ? absl::StrCat("; --max-num-seqs lets ", plan.max_num_seqs, " run at a time")
          : "");
  return text;
}

struct TierPlan {
  std::string name;
  int64_t tokens = 0;    // that it holds; 0: only the server knows
  double crossover = 0;  // bytes a second above which loading beats computing at the floor
};

// The tokens in front of a segment, which its value has too, are not counted, nor are states.
std::vector<TierPlan> TiersOf(const ServingPlan& plan,
                              const std::vector<kv_store::TierSpec>& tiers) {
  std::vector<TierPlan> rows;
  if (plan.memory.token_bytes == 0) return rows;
  double crossover = 0;
  for (const PrefillFloor& p : plan.prefill) {
    crossover = std::max(crossover, static_cast<double>(p.kv_bytes) / p.floor_ms() * 1e3);
  }
  for (const kv_store::TierSpec& tier : tiers) {
    using Kind = kv_store::TierSpec::Kind;
    const char* name = tier.kind == Kind::kHost   ? "host"
                       : tier.kind == Kind::kFile ? "file"
                                                  : "redis";
    rows.push_back({name, tier.bytes / plan.memory.token_bytes, crossover});
  }
  return rows;
}

std::string TierSection(const ServingPlan& plan, const std::vector<kv_store::TierSpec>& tiers) {
  const std::vector<TierPlan> rows = TiersOf(plan, tiers);
  if (rows.empty()) return "";
  std::string text = "\nKV tiers of a prefill worker\n";
  for (const TierPlan& row : rows) {
    absl::StrAppendFormat(
        &text, "  %-6s %s\n", row.name,
        row.tokens > 0 ? absl::StrCat(row.tokens, " tokens") : "as much as its server keeps");
  }
  absl::StrAppendFormat(&text,
                        "loading beats computing at the floor from %.2f GB/s on, and earlier the "
                        "slower the engine is\n",
                        rows.front().crossover / 1e9);
  return text;
}

const char* LimitOf(const DecodeFloor& d) {
  if (d.host_ms > std::max(d.memory_ms, d.matrix_ms)) return "host link";
  return d.memory_ms >= d.matrix_ms ? "memory" : "matrix";
}

std::string DecodeSection(const ServingPlan& plan) {
  std::string text = absl::StrFormat("\ndecode step, context %d\n  %6s %10s %10s %10s %10s\n",
                                     plan.context, "batch", "GB", "floor ms", "tokens/s", "limit");
  for (const DecodeFloor& d : plan.decode) {
    absl::StrAppendFormat(&text, "  %6d %10.3f %10.2f %10.1f %10s%s\n", d.batch,
                          d.bytes.total() / 1e9, d.floor_ms(), d.max_tokens_per_second(),
                          LimitOf(d), d.fits ? "" : "  does not fit");
  }
  return text;
}

std::string PrefillSection(const ServingPlan& plan) {
  std::string text = "\nprefill, and the transfer of its KV: ms (not hidden by prefill)\n";
  absl::StrAppendFormat(&text, "  %6s %10s %9s", "tokens", "floor ms", "KV MB");
  if (!plan.prefill.empty()) {
    for (const TransferTime& t : plan.prefill[0].transfers) {
      absl::StrAppendFormat(&text, " %16s", t.link);
    }
  }
  absl::StrAppend(&text, "\n");
  for (const PrefillFloor& p : plan.prefill) {
    absl::StrAppendFormat(&text, "  %6d %10.1f %9.1f", p.tokens, p.floor_ms(),
                          static_cast<double>(p.kv_bytes) / 1e6);
    for (const TransferTime& t : p.transfers) {
      absl::StrAppendFormat(&text, " %16s", absl::StrFormat("%.1f (%.1f)", t.ms, t.exposed_ms));
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

// Empty if it fits, or is not served.
std::string FittingSection(const ServingPlan& plan,
                           const std::vector<engine::FittingSetting>& fitting) {
  if (!plan.served() || (plan.refusal.ok() && plan.sequences > 0)) return "";
  if (fitting.empty()) return "\nno smaller weights, KV, steps or context make it fit\n";
  std::string text = "\none of these settings makes it fit\n";
  for (const engine::FittingSetting& setting : fitting) {
    absl::StrAppendFormat(&text, "  %-40s %6d sequences of %d tokens\n", setting.flags,
                          setting.sequences, setting.context);
  }
  return text;
}

nlohmann::ordered_json ToJson(const DecodeFloor& d) {
  return {{"batch", d.batch},
          {"fits", d.fits},
          {"weight_bytes", d.bytes.weights},
          {"kv_bytes", d.bytes.kv},
          {"host_bytes", d.bytes.host},
          {"flops", d.flops},
          {"memory_ms", d.memory_ms},
          {"matrix_ms", d.matrix_ms},
          {"host_ms", d.host_ms},
          {"floor_ms", d.floor_ms()},
          {"tokens_per_second", d.max_tokens_per_second()}};
}

nlohmann::ordered_json ToJson(const PrefillFloor& p) {
  nlohmann::ordered_json json = {{"tokens", p.tokens},       {"flops", p.flops},
                                 {"matrix_ms", p.matrix_ms}, {"memory_ms", p.memory_ms},
                                 {"host_ms", p.host_ms},     {"floor_ms", p.floor_ms()},
                                 {"kv_bytes", p.kv_bytes}};
  json["transfers"] = nlohmann::ordered_json::array();
  for (const TransferTime& t : p.transfers) {
    json["transfers"].push_back({{"link", t.link}, {"ms", t.ms}, {"exposed_ms", t.exposed_ms}});
  }
  return json;
}

}  // namespace

std::string PlanTable(const ServingPlan& plan, const std::vector<kv_store::TierSpec>& tiers,
                      const std::vector<engine::FittingSetting>& fitting) {
  std::string text =
      absl::StrFormat("%s, %.2f G parameters, weights %s\n%s: %.0f GB/s, %.0f TFLOPS (%s)\n",
                      plan.costs.architecture, static_cast<double>(plan.costs.parameters()) / 1e9,
                      WeightsText(plan), plan.gpu.name, plan.gpu.bytes_per_second / 1e9,
                      plan.gpu.flops_per_second / 1e12, plan.gpu.rate_source);
  return absl::StrCat(text, MemorySection(plan), TierSection(plan, tiers), DecodeSection(plan),
                      PrefillSection(plan),
                      "\nFloors are computed, not measured: lower bounds for any engine",
                      plan.memory.experts_on_host > 0
                          ? " that copies experts from the host when tokens have chosen them"
                          : "",
                      ".\n", FittingSection(plan, fitting));
}

std::string PlanJson(const ServingPlan& plan, const std::vector<kv_store::TierSpec>& tiers,
                     const std::vector<engine::FittingSetting>& fitting) {
  const engine::MemoryPlan& memory = plan.memory;
  nlohmann::ordered_json json;
  json["architecture"] = plan.costs.architecture;
  json["attention"] = plan.costs.attention;
  json["parameters"] = plan.costs.parameters();
  json["weights"] = {
      {"bits", plan.weights.quantized() ? plan.weights.bits
                                        : static_cast<int>(8 * SizeOf(plan.activation))},
      {"group_size", plan.weights.quantized() ? plan.weights.group_size : 0},
      {"dtype", backend::Name(plan.activation)}};
  json["gpu"] = {{"name", plan.gpu.name},
                 {"memory_bytes", plan.gpu.memory_bytes},
                 {"bytes_per_second", plan.gpu.bytes_per_second},
                 {"flops_per_second", plan.gpu.flops_per_second},
                 {"host_link_bytes_per_second", plan.gpu.host_link_bytes_per_second},
                 {"rates", plan.gpu.rate_source}};
  json["served"] = plan.served();
  json["fits"] = plan.refusal.ok();
  json["refusal"] = nullptr;
  if (!plan.refusal.ok()) {
    json["refusal"] = {{"reason", ErrorReason(plan.refusal)},
                       {"message", std::string(plan.refusal.message())}};
  }
  json["fitting_settings"] = nlohmann::ordered_json::array();
  for (const engine::FittingSetting& setting : fitting) {
    json["fitting_settings"].push_back(
        {{"flags", setting.flags}, {"context", setting.context}, {"sequences", setting.sequences}});
  }
  nlohmann::ordered_json& sizes = json["memory"];
  sizes["available_bytes"] = plan.arena_bytes;
  for (const Part& part : PartsOf(plan)) sizes[absl::StrCat(part.name, "_bytes")] = part.bytes;
  sizes["weight_bytes"] = memory.weight_bytes;
  sizes["fixed_bytes"] = memory.fixed_bytes();
  sizes["kv_bytes"] = memory.kv_bytes();
  sizes["experts_on_host"] = memory.experts_on_host;
  sizes["host_expert_bytes"] = memory.host_expert_bytes;
  sizes["kv_bytes_per_token"] = memory.token_bytes;
  if (plan.kv_dtype) sizes["kv_cache_dtype"] = kv::KvDtypeName(*plan.kv_dtype);
  sizes["kv_cache_dtypes"] = nlohmann::ordered_json::array();
  for (const engine::KvDtypePlan& row : plan.kv_dtypes) {
    sizes["kv_cache_dtypes"].push_back({{"dtype", kv::KvDtypeName(row.dtype)},
                                        {"kv_bytes_per_token", row.token_bytes},
                                        {"tokens", row.tokens},
                                        {"sequences", row.sequences}});
  }
  sizes["block_tokens"] = memory.block_tokens;
  sizes["block_bytes"] = memory.token_bytes * memory.block_tokens;
  sizes["block_count"] = memory.page_count / memory.shape.pages();
  sizes["page_bytes"] = memory.page_bytes;
  sizes["page_count"] = memory.page_count;
  sizes["sequence_bytes"] = memory.sequence_bytes(plan.context);
  sizes["max_model_len"] = memory.max_positions;
  for (const TierPlan& tier : TiersOf(plan, tiers)) {
    nlohmann::ordered_json entry = {{"tier", tier.name}};
    if (tier.tokens > 0) entry["tokens"] = tier.tokens;
    entry["crossover_bytes_per_second"] = tier.crossover;
    json["kv_tiers"].push_back(std::move(entry));
  }
  json["context"] = plan.context;
  json["sequences"] = plan.sequences;
  json["max_num_seqs"] = plan.max_num_seqs;
  json["decode"] = nlohmann::ordered_json::array();
  for (const DecodeFloor& d : plan.decode) json["decode"].push_back(ToJson(d));
  json["prefill"] = nlohmann::ordered_json::array();
  for (const PrefillFloor& p : plan.prefill) json["prefill"].push_back(ToJson(p));
  return json.dump();
}

int RunPlan(const PlanOptions& options, std::ostream& out, std::ostream& err) {
  if (options.cluster.wanted) {
    return RunClusterPlan(options.cluster, options.question, options.json, out, err);
  }
  const absl::StatusOr<ServingPlan> plan = engine::PlanServing(options.question);
  if (!plan.ok()) {
    err << "baton plan: " << Describe(plan.status()) << std::endl;
    // Otherwise the model's files are what is wrong.
    return absl::StartsWith(ErrorField(plan.status()), "--") ? kExitUsage : kExitFailure;
  }
  const std::vector<engine::FittingSetting> fitting =
      engine::SettingsThatFit(options.question, *plan);
  out << (options.json ? PlanJson(*plan, options.tiers, fitting) + "\n"
                       : PlanTable(*plan, options.tiers, fitting))
      << std::flush;
  if (plan->refusal.ok()) return kExitOk;
  err << "baton plan: " << Describe(plan->refusal) << std::endl;
  return kExitFailure;
}

}  // namespace baton::cli
