// The part of GgufConfig that reads how positions are rotated.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status_macros.h"
#include "common/gguf/documents.h"
#include "common/json/json.h"
#include "common/model/architecture.h"
#include "common/model/gguf_config.h"
#include "common/model/rope.h"

namespace baton::model {
namespace {

constexpr absl::string_view kShortFactors = "rope_factors_short.weight";
constexpr absl::string_view kLongFactors = "rope_factors_long.weight";

std::string NumberList(const std::vector<double>& numbers) {
  return absl::StrCat("[",
                      absl::StrJoin(numbers, ", ",
                                    [](std::string* out, double number) {
                                      absl::StrAppendFormat(out, "%.17g", number);
                                    }),
                      "]");
}

}  // namespace

// A factor without a type is linear, as in llama.cpp. Llama 3's scaling is a tensor
// (kRopeFactorsName).
absl::Status GgufConfig::AddRopeScaling() {
  BATON_ASSIGN_OR_RETURN(const auto type, file_.Text(Key("rope.scaling.type")));
  if (type == "yarn") return AddYarn();
  if (type && *type != "linear" && *type != "none" && *type != "longrope") {
    return file_.Unsupported(
        Key("rope.scaling.type"),
        absl::StrCat("found ", json::Quoted(*type), ", expected linear, yarn, longrope or none"));
  }
  BATON_ASSIGN_OR_RETURN(auto factor, file_.Real(Key("rope.scaling.factor")));
  BATON_ASSIGN_OR_RETURN(const auto old_factor, file_.Real(Key("rope.scale_linear")));
  if (factor && old_factor && *factor != *old_factor) {
    return file_.Invalid(Key("rope.scaling.factor"),
                         absl::StrCat("found ", *factor, " beside ", Key("rope.scale_linear"), " ",
                                      *old_factor, ", expected one of both"));
  }
  if (!factor) factor = old_factor;
  if (type == "longrope" || HasLongRope()) return absl::OkStatus();  // AddLongRope reads it
  BATON_ASSIGN_OR_RETURN(const auto magnitude, file_.Real(Key("rope.scaling.attn_factor")));
  if (magnitude.value_or(1) != 1) {
    return file_.Unsupported(Key("rope.scaling.attn_factor"),
                             absl::StrCat("found ", *magnitude, ", expected 1 or none"));
  }
  if (factor.value_or(0) == 0 || (type && *type == "none")) return absl::OkStatus();
  rope_.AddText("rope_type", "linear");
  rope_.AddReal("factor", *factor);
  return absl::OkStatus();
}

absl::Status GgufConfig::AddYarn() {
  rope_.AddText("rope_type", "yarn");
  for (const auto& [key, field] : {std::pair("rope.scaling.factor", "factor"),
                                   {"rope.scaling.yarn_beta_fast", "beta_fast"},
                                   {"rope.scaling.yarn_beta_slow", "beta_slow"}}) {
    BATON_ASSIGN_OR_RETURN(const auto value, Real(key));
    if (value) rope_.AddReal(field, *value);
  }
  BATON_ASSIGN_OR_RETURN(const auto original,
                         file_.Integer(Key("rope.scaling.original_context_length")));
  if (original) rope_.AddInteger("original_max_position_embeddings", *original);
  BATON_ASSIGN_OR_RETURN(const auto magnitude, Real("rope.scaling.yarn_attn_factor"));
  if (magnitude) rope_.AddReal("attention_factor", *magnitude);
  return absl::OkStatus();
}

absl::Status GgufConfig::AddYarnMagnitude() {
  BATON_ASSIGN_OR_RETURN(const auto multiplier, Real("rope.scaling.yarn_log_multiplier"));
  if (multiplier.value_or(0) == 0) return absl::OkStatus();
  rope_.AddReal("mscale", 1);
  rope_.AddReal("mscale_all_dim", *multiplier);
  return absl::OkStatus();
}

absl::Status GgufConfig::AddLongRope() {
  reads_longrope_ = true;
  BATON_ASSIGN_OR_RETURN(const auto type, file_.Text(Key("rope.scaling.type")));
  if (!HasLongRope() && type != "longrope") return absl::OkStatus();
  rope_.AddText("rope_type", "longrope");
  for (const auto& [field, name] :
       {std::pair("short_factor", kShortFactors), {"long_factor", kLongFactors}}) {
    const gguf::Tensor* tensor = file_.FindTensor(name);
    if (tensor == nullptr || tensor->type->name != "F32" || tensor->extents.size() != 1 ||
        tensor->extents[0] > kLargestHeadDim / 2) {
      return file_.Invalid(name, absl::StrCat("found ", tensor == nullptr ? "nothing" : "another",
                                              ", expected an F32 tensor of at most ",
                                              kLargestHeadDim / 2, " factors"));
    }
    BATON_ASSIGN_OR_RETURN(const absl::string_view bytes, file_.BytesOf(*tensor));
    std::vector<double> factors(bytes.size() / sizeof(float));
    for (size_t i = 0; i < factors.size(); ++i) {
      float factor = 0;
      std::memcpy(&factor, bytes.data() + i * sizeof(float), sizeof(float));
      if (!(factor > 0 && std::isfinite(factor))) {
        return file_.Invalid(name, "found a factor that is no positive number");
      }
      factors[i] = factor;
    }
    rope_.AddJson(field, NumberList(factors));
  }
  BATON_ASSIGN_OR_RETURN(const int64_t original, Required("rope.scaling.original_context_length"));
  config_.AddInteger("original_max_position_embeddings", original);
  BATON_ASSIGN_OR_RETURN(const auto magnitude, Real("rope.scaling.attn_factor"));
  rope_.AddReal("attention_factor", magnitude.value_or(1));
  return absl::OkStatus();
}

absl::Status GgufConfig::AddProportionalRopes(int64_t head_dim) {
  constexpr float kStands = 1e30f;  // what converters write for a pair that does not turn
  if (rope_.Text() != gguf::JsonObject().Text()) {
    return Unsupported("rope.scaling.factor", "found a scaling, expected none");
  }
  const gguf::Tensor* tensor = file_.FindTensor(gguf::kRopeFactorsName);
  const auto pairs = static_cast<uint64_t>(head_dim / 2);
  if (tensor == nullptr || tensor->type->name != "F32" ||
      tensor->extents != std::vector<uint64_t>{pairs}) {
    return file_.Invalid(gguf::kRopeFactorsName,
                         absl::StrCat("found ", tensor == nullptr ? "nothing" : "another",
                                      ", expected an F32 tensor of ", pairs, " factors"));
  }
  BATON_ASSIGN_OR_RETURN(const absl::string_view bytes, file_.BytesOf(*tensor));
  uint64_t turning = 0;
  for (uint64_t i = 0; i < pairs; ++i) {
    float factor = 0;
    std::memcpy(&factor, bytes.data() + i * sizeof(float), sizeof(float));
    if (factor == 1 && turning == i) {
      ++turning;
    } else if (factor != kStands) {
      return file_.Unsupported(
          gguf::kRopeFactorsName,
          absl::StrFormat("found %g for pair %d, expected ones and behind them %g", factor, i,
                          kStands));
    }
  }
  gguf::JsonObject full, sliding, both;
  full.AddText("rope_type", "proportional");
  full.AddReal("rope_theta", *theta_);
  // A little more, as the reader cuts off what is behind the point.
  const double share = (2 * static_cast<double>(turning) + 0.25) / static_cast<double>(head_dim);
  full.AddReal("partial_rotary_factor", std::min(share, 1.0));
  BATON_ASSIGN_OR_RETURN(const auto theta, Real("rope.freq_base_swa"));
  sliding.AddText("rope_type", "default");
  sliding.AddReal("rope_theta", theta.value_or(10000));
  both.AddJson("full_attention", full.Text());
  both.AddJson("sliding_attention", sliding.Text());
  config_.AddJson("rope_parameters", both.Text());
  has_ropes_ = true;
  return absl::OkStatus();
}

absl::Status GgufConfig::CheckRopeSections() const {
  const std::string key = Key("rope.dimension_sections");
  if (!file_.Has(key)) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const auto sections, file_.IntegerList(key));
  BATON_ASSIGN_OR_RETURN(const auto rotated, Integer("rope.dimension_count"));
  // Pairs take turns: the first, fourth and so on belong to the first section while it has any.
  const uint64_t pairs = static_cast<uint64_t>(rotated.value_or(head_dim_)) / 2;
  for (uint64_t pair = 0; pair < pairs; ++pair) {
    const uint64_t section = pair % 3;
    if (section < sections->size() && sections->At(section) > static_cast<int64_t>(pair / 3)) {
      continue;
    }
    return file_.Unsupported(key, absl::StrCat("found none of the first three sections for pair ",
                                               pair, " of ", pairs, ", expected one"));
  }
  return absl::OkStatus();
}

bool GgufConfig::HasLongRope() const {
  return file_.FindTensor(kShortFactors) != nullptr || file_.FindTensor(kLongFactors) != nullptr;
}

absl::Status GgufConfig::FinishRope() {
  BATON_ASSIGN_OR_RETURN(const auto type, file_.Text(Key("rope.scaling.type")));
  if ((type == "longrope" || HasLongRope()) && !reads_longrope_) {
    return file_.Unsupported(HasLongRope() ? std::string(kLongFactors) : Key("rope.scaling.type"),
                             absl::StrCat("found longrope, expected none in ", architecture_.gguf));
  }
  if (has_ropes_) return absl::OkStatus();
  if (rope_parameters_) {
    rope_.AddReal("rope_theta", *theta_);
    config_.AddJson("rope_parameters", rope_.Text());
    return absl::OkStatus();
  }
  config_.AddReal("rope_theta", *theta_);
  if (rope_.Text() != gguf::JsonObject().Text()) config_.AddJson("rope_scaling", rope_.Text());
  return absl::OkStatus();
}

}  // namespace baton::model
