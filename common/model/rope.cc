#include "common/model/rope.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/config_limits.h"

namespace baton::model {
namespace {

constexpr double kMaxTheta = 1e15;
constexpr double kMaxFactor = 1e6;
constexpr absl::string_view kProportional = "proportional";

absl::StatusOr<std::optional<double>> RotatedShare(const JsonFields& fields,
                                                   const RopeRequest& request) {
  BATON_ASSIGN_OR_RETURN(const auto share, fields.OptionalReal("partial_rotary_factor", 0, 1));
  if (request.partial || share.value_or(1) == 1) return share;
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

struct Parameters {
  std::optional<JsonFields> fields;  // nullopt if the config has none
  bool by_layer_type = false;        // they are those of RopeRequest::layer_type alone
};

// rope_parameters may have an object for each kind of layer, and then has nothing else.
absl::StatusOr<Parameters> ParametersOf(const JsonFields& config, const JsonFields& parameters,
                                        absl::string_view layer_type) {
  if (layer_type.empty() || parameters.Unread().empty()) return Parameters{parameters};
  for (const absl::string_view type : {kFullAttention, kSlidingAttention}) {
    if (!parameters.HasObject(type)) {
      return config.Unsupported("rope_parameters", absl::StrCat("found no object for ", type,
                                                                ", expected one for "
                                                                "each kind of layer"));
    }
    parameters.Ignore(type);
  }
  if (const std::vector<std::string> unread = parameters.Unread(); !unread.empty()) {
    return parameters.Unsupported(unread[0],
                                  "found beside objects for each kind of layer, expected none");
  }
  BATON_ASSIGN_OR_RETURN(const auto of_type, parameters.OptionalObject(layer_type));
  return Parameters{of_type, true};
}

absl::StatusOr<Parameters> FindParameters(const JsonFields& config, absl::string_view layer_type) {
  BATON_ASSIGN_OR_RETURN(const auto old, config.OptionalObject("rope_scaling"));
  BATON_ASSIGN_OR_RETURN(const auto parameters, config.OptionalObject("rope_parameters"));
  const bool has_old = old && !old->Unread().empty();
  if (has_old && parameters && !parameters->Unread().empty()) {
    return config.Invalid("rope_scaling",
                          "found one beside rope_parameters, expected one of the two");
  }
  if (has_old || !parameters) return Parameters{old};
  return ParametersOf(config, *parameters, layer_type);
}

// The type of the scaling. Without a type it is "default", and the object must have nothing to
// scale with.
absl::StatusOr<std::string> TypeOf(const JsonFields& scaling, const RopeRequest& request) {
  const bool longrope = request.longrope;
  BATON_ASSIGN_OR_RETURN(const auto type, scaling.OptionalString("rope_type"));
  BATON_ASSIGN_OR_RETURN(const auto old_type, scaling.OptionalString("type"));
  const char* key = type ? "rope_type" : "type";
  const std::string found = type ? *type : old_type.value_or("default");
  if (type && old_type && *type != *old_type) {
    return scaling.Invalid("rope_type",
                           absl::StrCat("found ", json::Quoted(*type), " beside type ",
                                        json::Quoted(*old_type), ", expected one of both"));
  }
  const char* expected = longrope               ? "default or longrope"
                         : request.proportional ? "default or proportional"
                                                : "default, linear, llama3 or yarn";
  if (!type && !old_type && scaling.Has("factor")) {
    return scaling.Unsupported(
        "rope_type", absl::StrCat("found nothing beside factor ", scaling.Found("factor"),
                                  ", expected ", longrope ? "longrope" : "linear, llama3 or yarn"));
  }
  if (found == "default" || (request.proportional && found == kProportional)) return found;
  if (longrope && (found == "longrope" || found == "su" || found == "yarn")) return "longrope";
  if (!longrope && !request.proportional &&
      (found == "linear" || found == "llama3" || found == "yarn"))
    return found;
  return scaling.Unsupported(key,
                             absl::StrCat("found ", json::Quoted(found), ", expected ", expected));
}

// The first pairs of a head turn, by the frequencies of a head that turns as a whole; the others
// stand still.
void TurnProportionally(const RopeRequest& request, double base, double factor,
                        std::vector<double>* frequencies) {
  const size_t turning = frequencies->size();
  frequencies->assign(static_cast<size_t>(request.head_dim) / 2, 0);
  for (size_t i = 0; i < turning; ++i) {
    (*frequencies)[i] = std::pow(base, -2.0 * static_cast<double>(i) / request.head_dim) / factor;
  }
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

// The magnitude of cos and sin for a context that is stretched `factor` times.
double YarnMagnitude(double factor, double scale) {
  return factor <= 1 ? 1 : 0.1 * scale * std::log(factor) + 1;
}

absl::Status ReadYarnMagnitude(const JsonFields& scaling, double factor, Rope* rope) {
  BATON_ASSIGN_OR_RETURN(const auto given, scaling.OptionalReal("attention_factor", 0, kMaxFactor));
  BATON_ASSIGN_OR_RETURN(const auto mscale, scaling.OptionalReal("mscale", 0, kMaxFactor));
  BATON_ASSIGN_OR_RETURN(const auto all, scaling.OptionalReal("mscale_all_dim", 0, kMaxFactor));
  double magnitude = YarnMagnitude(factor, 1);
  if (given) {
    magnitude = *given;
  } else if (mscale.value_or(0) > 0 && all.value_or(0) > 0) {  // one alone counts for nothing
    magnitude = YarnMagnitude(factor, *mscale) / YarnMagnitude(factor, *all);
  }
  rope->spec.factor = static_cast<float>(magnitude);
  if (all.value_or(0) > 0) rope->score_magnitude = YarnMagnitude(factor, *all);
  return absl::OkStatus();
}

// Pairs that turn often in the original context keep their frequency, those that turn seldom are
// stretched by `factor`, and those between are blended by their index.
absl::Status ScaleYarn(const JsonFields& config, const JsonFields& scaling, double theta,
                       const RopeRequest& request, Rope* rope) {
  BATON_ASSIGN_OR_RETURN(
      const auto original,
      OneOfTwo(scaling, config, "original_max_position_embeddings", 1, kMaxPositions));
  const double original_positions = original.value_or(request.max_positions);
  if (theta <= 1) {
    return config.Invalid("rope_theta", absl::StrCat("found ", theta, ", expected more than 1"));
  }
  BATON_ASSIGN_OR_RETURN(const auto given, scaling.OptionalReal("factor", 1, kMaxFactor));
  const double factor = given.value_or(std::max(1.0, request.max_positions / original_positions));
  BATON_ASSIGN_OR_RETURN(const auto fast, scaling.OptionalReal("beta_fast", 0, kMaxFactor));
  BATON_ASSIGN_OR_RETURN(const auto slow, scaling.OptionalReal("beta_slow", 0, kMaxFactor));
  BATON_ASSIGN_OR_RETURN(const bool truncates, scaling.Bool("truncate", true));
  BATON_RETURN_IF_ERROR(ReadYarnMagnitude(scaling, factor, rope));
  std::vector<double>& frequencies = rope->spec.inverse_frequencies;
  const double dims = 2 * static_cast<double>(frequencies.size());
  // The index of the pair that turns so many times in the original context.
  const auto index_of = [&](double turns) {
    return dims * std::log(original_positions / (turns * 2 * M_PI)) / (2 * std::log(theta));
  };
  const auto or_default = [](const std::optional<double>& value, double if_none) {
    return value.value_or(0) > 0 ? *value : if_none;
  };
  double low = index_of(or_default(fast, 32)), high = index_of(or_default(slow, 1));
  if (truncates) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dims - 1);
  if (low == high) high += 0.001;
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double stretched = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] *= stretched / factor + (1 - stretched);
  }
  const double extended = std::min<double>(kMaxPositions, original_positions * factor);
  rope->extended_positions = static_cast<int>(extended);
  if (!request.query_scale) return absl::OkStatus();
  scaling.Ignore("max_position_embeddings");
  BATON_ASSIGN_OR_RETURN(rope->spec.query_beta,
                         scaling.RealOr("llama_4_scaling_beta", 0, kMaxFactor, 0));
  rope->spec.query_positions = static_cast<int>(original_positions);
  return absl::OkStatus();
}

// Each frequency has its own two factors, for contexts of up to the original length and for longer.
absl::Status ScaleLong(const JsonFields& config, const JsonFields& scaling,
                       const RopeRequest& request, Rope* rope) {
  BATON_ASSIGN_OR_RETURN(
      const auto original,
      OneOfTwo(config, scaling, "original_max_position_embeddings", 2, kMaxPositions));
  if (!original) {
    return config.Invalid("original_max_position_embeddings", "found nothing, expected an integer");
  }
  BATON_ASSIGN_OR_RETURN(const auto given, scaling.OptionalReal("factor", 1e-6, kMaxFactor));
  BATON_ASSIGN_OR_RETURN(const auto magnitude,
                         scaling.OptionalReal("attention_factor", 0, kMaxFactor));
  const double factor = given.value_or(request.max_positions / *original);
  const double stretch = factor <= 1 ? 1 : std::sqrt(1 + std::log(factor) / std::log(*original));
  rope->spec.factor = static_cast<float>(magnitude.value_or(stretch));
  const std::vector<double> plain = rope->spec.inverse_frequencies;
  for (const auto& [key, out] : {std::pair("short_factor", &rope->spec.inverse_frequencies),
                                 std::pair("long_factor", &rope->long_inverse_frequencies)}) {
    BATON_ASSIGN_OR_RETURN(const std::vector<double> factors, scaling.Reals(key, 1e-6, kMaxFactor));
    if (factors.size() != plain.size()) {
      return scaling.Invalid(
          key, absl::StrCat("found ", factors.size(), " numbers, expected one for each of ",
                            plain.size(), " rotated pairs"));
    }
    *out = plain;
    for (size_t i = 0; i < factors.size(); ++i) (*out)[i] /= factors[i];
  }
  rope->original_positions = static_cast<int>(*original);
  return absl::OkStatus();
}

absl::Status Scale(const JsonFields& config, const JsonFields& scaling, double theta,
                   const RopeRequest& request, Rope* rope) {
  BATON_ASSIGN_OR_RETURN(const std::string type, TypeOf(scaling, request));
  std::vector<double>* frequencies = &rope->spec.inverse_frequencies;
  if (type == kProportional) {
    BATON_ASSIGN_OR_RETURN(const double factor, scaling.RealOr("factor", 1e-6, kMaxFactor, 1));
    TurnProportionally(request, theta, factor, frequencies);
  } else if (request.proportional &&
             frequencies->size() * 2 != static_cast<size_t>(request.head_dim)) {
    return scaling.Unsupported(
        "partial_rotary_factor",
        absl::StrCat("found ", scaling.Found("partial_rotary_factor"), " with rope_type ", type,
                     ", expected 1 or rope_type ", kProportional));
  }
  if (type == "linear") BATON_RETURN_IF_ERROR(ScaleLinear(scaling, frequencies));
  if (type == "llama3") {
    BATON_RETURN_IF_ERROR(ScaleLlama3(config, scaling, request.max_positions, frequencies));
  }
  if (type == "yarn") {
    BATON_RETURN_IF_ERROR(ScaleYarn(config, scaling, theta, request, rope));
  }
  if (type == "longrope") BATON_RETURN_IF_ERROR(ScaleLong(config, scaling, request, rope));
  // Whatever else is here is meant to change the rotation: another base for some layers, the
  // factors of another type.
  const std::vector<std::string> unread = scaling.Unread();
  if (unread.empty()) return absl::OkStatus();
  return scaling.Unsupported(unread[0], absl::StrCat("found ", scaling.Found(unread[0]),
                                                     ", expected none with rope_type ", type));
}

}  // namespace

absl::StatusOr<Rope> ReadRope(const JsonFields& config, const RopeRequest& request) {
  BATON_ASSIGN_OR_RETURN(std::optional<double> share, RotatedShare(config, request));
  BATON_ASSIGN_OR_RETURN(const Parameters parameters, FindParameters(config, request.layer_type));
  const std::optional<JsonFields>& scaling = parameters.fields;
  std::optional<double> theta;
  const absl::string_view key = parameters.by_layer_type ? "rope_theta" : request.theta_key;
  if (scaling && request.mrope) {
    for (const char* sections : {"mrope_section", "mrope_interleaved"}) scaling->Ignore(sections);
  }
  if (scaling) {
    BATON_ASSIGN_OR_RETURN(const auto inner_share, RotatedShare(*scaling, request));
    if (inner_share) share = inner_share;
    BATON_ASSIGN_OR_RETURN(theta, OneOfTwo(*scaling, config, key, 1, kMaxTheta));
  } else {
    BATON_ASSIGN_OR_RETURN(theta, config.OptionalReal(key, 1, kMaxTheta));
  }
  const double base = theta.value_or(request.default_theta);
  const double default_share = request.proportional && scaling ? 1 : request.default_share;
  int dims = static_cast<int>(request.head_dim * share.value_or(default_share));
  if (request.proportional) dims -= dims % 2;
  if (dims < 2 || dims % 2 != 0) {
    return config.Invalid(
        "partial_rotary_factor",
        absl::StrCat("found ", share.value_or(default_share), " of ", request.head_dim,
                     " dimensions, expected an even number of them"));
  }
  Rope rope;
  std::vector<double>& frequencies = rope.spec.inverse_frequencies;
  frequencies.resize(static_cast<size_t>(dims) / 2);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    frequencies[i] = std::pow(base, -2.0 * static_cast<double>(i) / dims);
  }
  if (request.proportional && !scaling) TurnProportionally(request, base, 1, &frequencies);
  if (scaling && (request.scales || parameters.by_layer_type)) {
    BATON_RETURN_IF_ERROR(Scale(config, *scaling, base, request, &rope));
  }
  return rope;
}

}  // namespace baton::model
