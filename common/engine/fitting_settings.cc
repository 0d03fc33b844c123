#include "common/engine/fitting_settings.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"

namespace baton::engine {
namespace {

constexpr int kFewestBatchedTokens = 256;
constexpr int kShortestModelLen = 512;
constexpr double kHighUtilization = 0.95;

// A value of a setting.
struct Step {
  std::string flags;
  std::function<void(ServingQuestion*)> apply;
};
// The values of a setting, from the one that changes the least on.
using Kind = std::vector<Step>;

std::optional<FittingSetting> Fits(const ServingQuestion& question, const std::string& flags) {
  const absl::StatusOr<ServingPlan> plan = PlanServing(question);
  if (!plan.ok() || !plan->refusal.ok() || plan->sequences == 0) return std::nullopt;
  return FittingSetting{flags, plan->context, plan->sequences};
}

// A worker's --weights makes the same format.
Step Weights(int bits) {
  return {absl::StrCat("--weights int", bits), [bits](ServingQuestion* question) {
            question->weights =
                model::WeightFormat{.bits = bits, .group_size = 32, .symmetric = true};
          }};
}

Step KvDtype(kv::KvDtype dtype) {
  return {absl::StrCat("--kv-cache-dtype ", kv::KvDtypeName(dtype)),
          [dtype](ServingQuestion* question) { question->engine.kv_dtype = dtype; }};
}

// A number of EngineOptions, halved again and again.
Kind Halves(const char* flag, int EngineOptions::*number, int value, int fewest) {
  Kind kind;
  for (int half = value / 2; half >= fewest; half /= 2) {
    kind.push_back({absl::StrCat(flag, " ", half), [number, half](ServingQuestion* question) {
                      question->engine.*number = half;
                    }});
  }
  return kind;
}

Kind ModelLengths(const ServingQuestion& question, int max_positions) {
  Kind kind;
  for (int half = max_positions / 2; half >= kShortestModelLen; half /= 2) {
    std::string flags = absl::StrCat("--max-model-len ", half);
    if (question.context && half < *question.context) absl::StrAppend(&flags, " --context ", half);
    kind.push_back({std::move(flags), [half](ServingQuestion* other) {
                      other->engine.max_model_len = half;
                      if (other->context) other->context = std::min(*other->context, half);
                    }});
  }
  return kind;
}

std::vector<Kind> KindsFor(const ServingQuestion& question, const ServingPlan& plan) {
  std::vector<Kind> kinds;
  const EngineOptions& engine = question.engine;
  for (const int bits : {8, 4}) {
    if (!plan.weights.quantized() || plan.weights.bits > bits) kinds.push_back({Weights(bits)});
  }
  // Only what takes fewer bits than the KV has.
  if (!engine.kv_dtype) {
    kinds.push_back({KvDtype(kv::KvDtype::kInt8), KvDtype(kv::KvDtype::kInt4)});
  } else if (*engine.kv_dtype != kv::KvDtype::kInt4) {
    kinds.push_back({KvDtype(kv::KvDtype::kInt4)});
  }
  if (engine.experts_on_host == 0) {
    kinds.push_back({{"--experts-on-host auto", [](ServingQuestion* other) {
                        other->engine.experts_on_host = std::nullopt;
                      }}});
  }
  if (engine.num_blocks > 0 || engine.kv_cache_bytes > 0) {
    kinds.push_back({{"--num-blocks 0 --kv-cache-memory 0", [](ServingQuestion* other) {
                        other->engine.num_blocks = 0;
                        other->engine.kv_cache_bytes = 0;
                      }}});
  }
  kinds.push_back(Halves("--max-num-batched-tokens", &EngineOptions::max_num_batched_tokens,
                         engine.max_num_batched_tokens, kFewestBatchedTokens));
  kinds.push_back(Halves("--max-num-seqs", &EngineOptions::max_num_seqs, engine.max_num_seqs, 1));
  kinds.push_back(ModelLengths(question, plan.memory.max_positions));
  if (engine.backend.gpu_memory_utilization < kHighUtilization) {
    kinds.push_back(
        {{absl::StrCat("--gpu-memory-utilization ", kHighUtilization), [](ServingQuestion* other) {
            other->engine.backend.gpu_memory_utilization = kHighUtilization;
          }}});
  }
  return kinds;
}

// The longest sequence of which the pool holds one.
std::optional<FittingSetting> ShorterContext(ServingQuestion question, const std::string& flags) {
  const std::optional<int> context = std::exchange(question.context, 1);
  const absl::StatusOr<ServingPlan> plan = PlanServing(question);
  if (!plan.ok() || !plan->refusal.ok()) return std::nullopt;
  const int64_t longest = std::min<int64_t>(plan->memory.kv_tokens(), plan->memory.max_positions);
  question.context = context;
  if (longest < 1 || longest >= ContextOf(question, plan->memory.max_positions)) {
    return std::nullopt;
  }
  question.context = static_cast<int>(longest);
  return Fits(question, absl::StrCat(flags, flags.empty() ? "" : " ", "--context ", longest));
}

std::vector<FittingSetting> Try(const ServingQuestion& question, const std::vector<Kind>& kinds,
                                const std::string& beside) {
  std::vector<FittingSetting> fitting;
  for (const Kind& kind : kinds) {
    for (const Step& step : kind) {
      ServingQuestion other = question;
      step.apply(&other);
      const std::string flags = absl::StrCat(beside, beside.empty() ? "" : " ", step.flags);
      std::optional<FittingSetting> fits = Fits(other, flags);
      if (!fits) continue;
      fitting.push_back(*std::move(fits));
      break;
    }
  }
  if (std::optional<FittingSetting> shorter = ShorterContext(question, beside)) {
    fitting.push_back(*std::move(shorter));
  }
  return fitting;
}

}  // namespace

std::vector<FittingSetting> SettingsThatFit(const ServingQuestion& question,
                                            const ServingPlan& plan) {
  if (!plan.served() || (plan.refusal.ok() && plan.sequences > 0)) return {};
  ServingQuestion asked = question;
  asked.batches.clear();  // only memory is asked for
  asked.prompts.clear();
  const std::vector<Kind> kinds = KindsFor(asked, plan);
  std::vector<FittingSetting> fitting = Try(asked, kinds, "");
  if (!fitting.empty() || (plan.weights.quantized() && plan.weights.bits <= 4)) return fitting;
  const Step int4 = Weights(4);
  int4.apply(&asked);
  const std::vector<Kind> others(kinds.begin() + (plan.weights.quantized() ? 1 : 2), kinds.end());
  return Try(asked, others, int4.flags);
}

}  // namespace baton::engine
