#include "common/gguf/generation_json.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/gguf/json_object.h"

namespace baton::gguf {
namespace {

constexpr absl::string_view kSampling = "general.sampling.";

// Refuses samplers that Baton does not have. Parameters that only they read are ignored, and so is
// the file's order of samplers, because Baton has its own (docs/sampling.md).
absl::Status CheckSampling(const File& file) {
  for (const absl::string_view name : {"mirostat", "xtc_probability"}) {
    const std::string key = absl::StrCat(kSampling, name);
    if (!file.IsOff(key)) return file.Unsupported(key, "found one, expected 0 or none");
  }
  const std::string last_key = absl::StrCat(kSampling, "penalty_last_n");
  BATON_ASSIGN_OR_RETURN(const auto last, file.Integer(last_key));
  BATON_ASSIGN_OR_RETURN(const auto penalty, file.Real(absl::StrCat(kSampling, "penalty_repeat")));
  if (last.value_or(-1) == -1 || penalty.value_or(1) == 1) return absl::OkStatus();
  return file.Unsupported(
      last_key, absl::StrCat("found ", *last, ", expected -1: Baton's penalty is for all tokens"));
}

}  // namespace

absl::StatusOr<std::optional<std::string>> GenerationConfigJson(const File& file) {
  constexpr std::pair<absl::string_view, absl::string_view> kFields[] = {
      {"temp", "temperature"},
      {"top_p", "top_p"},
      {"min_p", "min_p"},
      {"penalty_repeat", "repetition_penalty"},
  };
  BATON_RETURN_IF_ERROR(CheckSampling(file));
  JsonObject config;
  bool found = false;
  for (const auto& [name, field] : kFields) {
    BATON_ASSIGN_OR_RETURN(const auto value, file.Real(absl::StrCat(kSampling, name)));
    if (value) config.AddReal(field, *value);
    found |= value.has_value();
  }
  BATON_ASSIGN_OR_RETURN(const auto top_k, file.Integer(absl::StrCat(kSampling, "top_k")));
  if (top_k) config.AddInteger("top_k", *top_k);
  if (!found && !top_k) return std::nullopt;
  config.AddBool("do_sample", true);
  return config.Text();
}

}  // namespace baton::gguf
