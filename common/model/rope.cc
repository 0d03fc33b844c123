#include "common/model/rope.h"

#include <cmath>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/config_limits.h"

namespace baton::model {
namespace {

constexpr double kDefaultTheta = 10000;  // of all four architectures, where the config has none
constexpr double kMaxTheta = 1e15;
constexpr double kMaxFactor = 1e6;

absl::Status CheckWholeHeadRotates(const JsonFields& fields) {
  BATON_ASSIGN_OR_RETURN(const auto share, fields.OptionalReal("partial_rotary_factor", 0, 1));
  if (share.value_or(1) == 1) return absl::OkStatus();
  return fields.Unsupported("partial_rotary_factor",
                            absl::StrCat("found ", *share, ", expected 1 or nothing"));
}

// Transformers 5 can give each type of layer its own frequencies.
absl::Status CheckAllLayersAlike(const JsonFields& scaling) {
  for (const char* type : {"full_attention", "sliding_attention"}) {
    if (scaling.Has(type)) {
      return scaling.Unsupported(type, "found one, expected the same for all layers");
    }
  }
  return absl::OkStatus();
}

absl::Status ScaleLinear(const JsonFields& scaling, std::vector<double>* frequencies) {
  BATON_ASSIGN_OR_RETURN(const double factor, scaling.Real("factor", 1, kMaxFactor));
  for (double& frequency : *frequencies) frequency /= factor;
  return absl::OkStatus();
}

// Long wavelengths are stretched by `factor`, short ones kept, those between blended.
absl::Status ScaleLlama3(const JsonFields& scaling, int max_positions,
                         std::vector<double>* frequencies) {
  BATON_ASSIGN_OR_RETURN(const double factor, scaling.Real("factor", 1, kMaxFactor));
  BATON_ASSIGN_OR_RETURN(const double low, scaling.Real("low_freq_factor", 1e-6, kMaxFactor));
  BATON_ASSIGN_OR_RETURN(const double high, scaling.Real("high_freq_factor", 1e-6, kMaxFactor));
  BATON_ASSIGN_OR_RETURN(const std::optional<int> original,
                         scaling.OptionalInt("original_max_position_embeddings", 1, kMaxPositions));
  if (high <= low) {
    return scaling.Invalid(
        "high_freq_factor",
        absl::StrCat("found ", high, ", expected more than low_freq_factor (", low, ")"));
  }
  const double original_positions = original.value_or(max_positions);
  for (double& frequency : *frequencies) {
    const double turns = original_positions * frequency / (2 * M_PI);  // in the original context
    if (turns > high) continue;
    const double stretched = frequency / factor;
    const double blend = turns < low ? 0 : (turns - low) / (high - low);
    frequency = (1 - blend) * stretched + blend * frequency;
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<double>> RopeInverseFrequencies(const JsonFields& config, int head_dim,
                                                           int max_positions) {
  BATON_RETURN_IF_ERROR(CheckWholeHeadRotates(config));
  BATON_ASSIGN_OR_RETURN(const auto old_scaling, config.OptionalObject("rope_scaling"));
  BATON_ASSIGN_OR_RETURN(const auto parameters, config.OptionalObject("rope_parameters"));
  // Transformers reads rope_scaling first where a config has both.
  const std::optional<JsonFields> scaling = old_scaling ? old_scaling : parameters;

  std::optional<double> theta;
  if (scaling) {
    BATON_RETURN_IF_ERROR(CheckWholeHeadRotates(*scaling));
    BATON_RETURN_IF_ERROR(CheckAllLayersAlike(*scaling));
    BATON_ASSIGN_OR_RETURN(theta, scaling->OptionalReal("rope_theta", 1, kMaxTheta));
  }
  if (!theta && parameters) {
    BATON_ASSIGN_OR_RETURN(theta, parameters->OptionalReal("rope_theta", 1, kMaxTheta));
  }
  if (!theta) {
    BATON_ASSIGN_OR_RETURN(theta, config.OptionalReal("rope_theta", 1, kMaxTheta));
  }
  std::vector<double> frequencies(static_cast<size_t>(head_dim) / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] =
        std::pow(theta.value_or(kDefaultTheta), -2.0 * static_cast<double>(i) / head_dim);
  }
  if (!scaling) return frequencies;

  BATON_ASSIGN_OR_RETURN(std::optional<std::string> type, scaling->OptionalString("rope_type"));
  const char* type_key = type ? "rope_type" : "type";
  if (!type) {
    BATON_ASSIGN_OR_RETURN(type, scaling->OptionalString("type"));
  }
  if (!type || *type == "default") return frequencies;
  if (*type == "linear") {
    BATON_RETURN_IF_ERROR(ScaleLinear(*scaling, &frequencies));
  } else if (*type == "llama3") {
    BATON_RETURN_IF_ERROR(ScaleLlama3(*scaling, max_positions, &frequencies));
  } else {
    return scaling->Unsupported(type_key, absl::StrCat("found ", json::Quoted(*type),
                                                       ", expected default, linear or llama3"));
  }
  return frequencies;
}

}  // namespace baton::model
