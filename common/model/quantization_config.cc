// ParseQuantization.
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "common/backend/quantized.h"
#include "common/base/status_macros.h"
#include "common/model/config_keys.h"
#include "common/model/quantization.h"

namespace baton::model {
namespace {

constexpr int kMaxGroup = 1 << 20;
constexpr int kMaxBits = 32;

absl::StatusOr<int> ParseGroupSize(const JsonFields& fields) {
  BATON_ASSIGN_OR_RETURN(const int size,
                         fields.Int("group_size", WeightQuantization::kAllColumns, kMaxGroup));
  if (size != 0) return size;
  return fields.Invalid("group_size", "found 0, expected a number of columns, or -1 for all");
}

absl::Status ExpectText(const JsonFields& fields, absl::string_view key,
                        absl::Span<const absl::string_view> expected) {
  BATON_ASSIGN_OR_RETURN(const auto found, fields.OptionalString(key));
  if (!found) return absl::OkStatus();
  for (absl::string_view each : expected) {
    if (absl::EqualsIgnoreCase(*found, each)) return absl::OkStatus();
  }
  return fields.Unsupported(
      key, absl::StrCat("found ", json::Quoted(*found), ", expected ", json::Quoted(expected[0])));
}

// GPTQModel has two names for the layout.
absl::StatusOr<bool> ZerosAreLessOne(const JsonFields& fields) {
  std::optional<bool> less_one;
  for (const char* key : {"checkpoint_format", "format"}) {
    BATON_RETURN_IF_ERROR(ExpectText(fields, key, {"gptq", "gptq_v2"}));
    BATON_ASSIGN_OR_RETURN(const auto layout, fields.OptionalString(key));
    if (!layout) continue;
    const bool found = !absl::EqualsIgnoreCase(*layout, "gptq_v2");
    if (less_one.value_or(found) != found) {
      return fields.Invalid(key, absl::StrCat("found ", json::Quoted(*layout),
                                              ", expected what checkpoint_format says"));
    }
    less_one = found;
  }
  return less_one.value_or(true);
}

// Checks GPTQModel's settings of single modules. Modules of "-:PATTERN" are not quantised, which
// the tensors show; others have other bits or groups.
absl::Status CheckOverrides(const JsonFields& fields) {
  BATON_ASSIGN_OR_RETURN(const auto dynamic, fields.OptionalObject("dynamic"));
  if (!dynamic) return absl::OkStatus();
  for (const std::string& pattern : dynamic->Unread()) {
    if (absl::StartsWith(pattern, "-:")) continue;
    return dynamic->Unsupported(json::Printable(pattern),
                                "found one, expected the same settings for all modules");
  }
  return absl::OkStatus();
}

absl::StatusOr<WeightQuantization> ParseGptq(const JsonFields& fields) {
  WeightQuantization quantization;
  quantization.format = WeightQuantization::Format::kGptq;
  BATON_ASSIGN_OR_RETURN(quantization.bits, fields.Int("bits", 1, kMaxBits));
  if (quantization.bits != 4 && quantization.bits != 8) {
    return fields.Unsupported("bits",
                              absl::StrCat("found ", quantization.bits, ", expected 4 or 8"));
  }
  BATON_ASSIGN_OR_RETURN(quantization.group_size, ParseGroupSize(fields));
  BATON_ASSIGN_OR_RETURN(quantization.reordered, fields.Bool("desc_act", false));
  BATON_ASSIGN_OR_RETURN(quantization.zeros_less_one, ZerosAreLessOne(fields));
  BATON_RETURN_IF_ERROR(ExpectText(fields, "pack_dtype", {"int32"}));
  BATON_RETURN_IF_ERROR(CheckOverrides(fields));
  BATON_ASSIGN_OR_RETURN(const bool marlin, fields.Bool("is_marlin_format", false));
  if (marlin) return fields.Unsupported("is_marlin_format", "found true, expected false");
  return quantization;
}

absl::StatusOr<WeightQuantization> ParseAwq(const JsonFields& fields) {
  WeightQuantization quantization;
  quantization.format = WeightQuantization::Format::kAwq;
  BATON_ASSIGN_OR_RETURN(quantization.bits, fields.Int("bits", 1, kMaxBits));
  if (quantization.bits != 4) {
    return fields.Unsupported("bits", absl::StrCat("found ", quantization.bits, ", expected 4"));
  }
  BATON_ASSIGN_OR_RETURN(quantization.group_size, ParseGroupSize(fields));
  for (const char* key : {"version", "checkpoint_format", "format"}) {
    BATON_RETURN_IF_ERROR(ExpectText(fields, key, {"gemm"}));
  }
  BATON_RETURN_IF_ERROR(ExpectText(fields, "pack_dtype", {"int32"}));
  BATON_ASSIGN_OR_RETURN(const bool zero_point, fields.Bool("zero_point", true));
  if (!zero_point) return fields.Unsupported("zero_point", "found false, expected true");
  quantization.zeros_less_one = false;
  return quantization;
}

// gpt-oss: its experts, which the tensors show.
absl::StatusOr<WeightQuantization> ParseMxfp4(const JsonFields& fields) {
  for (const char* key : {"modules_to_not_convert", "dequantize"}) fields.Ignore(key);
  WeightQuantization quantization;
  quantization.format = WeightQuantization::Format::kMxfp4;
  quantization.fp4 = true;
  quantization.bits = 4;
  quantization.group_size = backend::kFp4Group;
  return quantization;
}

// common/gguf writes this section; a model's own config.json has none of this kind.
absl::StatusOr<WeightQuantization> ParseGguf(const JsonFields& fields) {
  WeightQuantization quantization;
  quantization.format = WeightQuantization::Format::kGguf;
  BATON_ASSIGN_OR_RETURN(quantization.bits, fields.Int("bits", 4, 8));
  BATON_ASSIGN_OR_RETURN(quantization.group_size, ParseGroupSize(fields));
  BATON_ASSIGN_OR_RETURN(quantization.fp4, fields.Bool("fp4", false));
  return quantization;
}

}  // namespace

absl::StatusOr<std::optional<WeightQuantization>> ParseQuantization(const JsonFields& config) {
  BATON_ASSIGN_OR_RETURN(const auto fields, config.OptionalObject("quantization_config"));
  if (!fields) return std::optional<WeightQuantization>();
  BATON_ASSIGN_OR_RETURN(const auto method, fields->OptionalString("quant_method"));
  const auto parse = method == "gptq"    ? ParseGptq
                     : method == "awq"   ? ParseAwq
                     : method == "gguf"  ? ParseGguf
                     : method == "mxfp4" ? ParseMxfp4
                                         : nullptr;
  if (parse != nullptr) {
    BATON_ASSIGN_OR_RETURN(const WeightQuantization quantization, parse(*fields));
    BATON_RETURN_IF_ERROR(CheckQuantizationKeys(*fields));
    return quantization;
  }
  return fields->Unsupported(
      "quant_method", absl::StrCat("found ", method ? json::Quoted(*method) : "nothing",
                                   ", expected \"gptq\", \"awq\" or \"mxfp4\", or weights in f32, "
                                   "bf16 or f16 without a quantization_config"));
}

}  // namespace baton::model
