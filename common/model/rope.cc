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

// A number that may be in both objects, and is then the same.
absl::StatusOr<std::optional<double>> OneOfTwo(const JsonFields& inner, const JsonFields& outer,
                                               absl::string_view key, double lowest,
                                               double highest) {
  BATON_ASSIGN_OR_RETURN(const auto first, inner.OptionalReal(key, lowest, highest));
  BATON_ASSIGN_OR_RETURN(const auto second, outer.OptionalReal(key, lowest, highest));
  if (first && second && *first != *second) {
    return inner.Invalid(key, absl::StrCat("found ", *first, ", expected ", *second,
                                           " as beside it, or one of both"));
  }
  return first ? first : second;
}

// The object with the parameters; nullopt if the config has none.
absl::StatusOr<std::optional<JsonFields>> FindParameters(const JsonFields& config) {
  BATON_ASSIGN_OR_RETURN(const auto old, config.OptionalObject("rope_scaling"));
  BATON_ASSIGN_OR_RETURN(const auto parameters, config.OptionalObject("rope_parameters"));
  const bool has_old = old && !old->Unread().empty();
  if (has_old && parameters && !parameters->Unread().empty()) {
    return config.Invalid("rope_scaling",
                          "found one beside rope_parameters, expected one of the two");
  }
  return has_old ? old : parameters;
}

// The type of the scaling. Without a type it is "default", and the object must have nothing to
// scale with.
absl::StatusOr<std::string> TypeOf(const JsonFields& scaling) {
  BATON_ASSIGN_OR_RETURN(const auto type, scaling.OptionalString("rope_type"));
  BATON_ASSIGN_OR_RETURN(const auto old_type, scaling.OptionalString("type"));
  const char* key = type ? "rope_type" : "type";
  const std::string found = type ? *type : old_type.value_or("default");
  if (type && old_type && *type != *old_type) {
    return scaling.Invalid("rope_type",
                           absl::StrCat("found ", json::Quoted(*type), " beside type ",
                                        json::Quoted(*old_type), ", expected one of both"));
  }
  if (!type && !old_type && scaling.Has("factor")) {
    return scaling.Unsupported("rope_type",
                               absl::StrCat("found nothing beside factor ", scaling.Found("factor"),
                                            ", expected linear or llama3"));
  }
  if (found == "default" || found == "linear" || found == "llama3") return found;
  return scaling.Unsupported(
      key, absl::StrCat("found ", json::Quoted(found), ", expected default, linear or llama3"));
}

absl::Status ScaleLinear(const JsonFields& scaling, std::vector<double>* frequencies) {
  BATON_ASSIGN_OR_RETURN(const double factor, scaling.Real("factor", 1, kMaxFactor));
  for (double& frequency : *frequencies) frequency /= factor;
  return absl::OkStatus();
}

// Long wavelengths are stretched by `factor`, short ones kept, those between blended.
absl::Status ScaleLlama3(const JsonFields& config, const JsonFields& scaling, int max_positions,
                         std::vector<double>* frequencies) {
  BATON_ASSIGN_OR_RETURN(const double factor, scaling.Real("factor", 1, kMaxFactor));
  BATON_ASSIGN_OR_RETURN(const double low, scaling.Real("low_freq_factor", 1e-6, kMaxFactor));
  BATON_ASSIGN_OR_RETURN(const double high, scaling.Real("high_freq_factor", 1e-6, kMaxFactor));
  BATON_ASSIGN_OR_RETURN(
      const std::optional<double> original,
      OneOfTwo(scaling, config, "original_max_position_embeddings", 1, kMaxPositions));
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
  BATON_ASSIGN_OR_RETURN(const std::optional<JsonFields> scaling, FindParameters(config));
  constexpr absl::string_view kTheta = "rope_theta";
  std::optional<double> theta;
  if (scaling) {
    BATON_RETURN_IF_ERROR(CheckWholeHeadRotates(*scaling));
    BATON_ASSIGN_OR_RETURN(theta, OneOfTwo(*scaling, config, kTheta, 1, kMaxTheta));
  } else {
    BATON_ASSIGN_OR_RETURN(theta, config.OptionalReal(kTheta, 1, kMaxTheta));
  }
  std::vector<double> frequencies(static_cast<size_t>(head_dim) / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] =
        std::pow(theta.value_or(kDefaultTheta), -2.0 * static_cast<double>(i) / head_dim);
  }
  if (!scaling) return frequencies;
  BATON_ASSIGN_OR_RETURN(const std::string type, TypeOf(*scaling));
  if (type == "linear") BATON_RETURN_IF_ERROR(ScaleLinear(*scaling, &frequencies));
  if (type == "llama3") {
    BATON_RETURN_IF_ERROR(ScaleLlama3(config, *scaling, max_positions, &frequencies));
  }
  // Whatever else is here is meant to change the rotation: another base for some layers, the
  // factors of another type.
  const std::vector<std::string> unread = scaling->Unread();
  if (unread.empty()) return frequencies;
  return scaling->Unsupported(unread[0], absl::StrCat("found ", scaling->Found(unread[0]),
                                                      ", expected none with rope_type ", type));
}

}  // namespace baton::model
