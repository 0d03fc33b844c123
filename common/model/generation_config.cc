#include "common/model/generation_config.h"

#include <limits>
#include <optional>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/request_limits.h"
#include "common/base/status_macros.h"
#include "common/json/json.h"
#include "common/model/config_keys.h"

namespace baton::model {
namespace {

constexpr char kOverrideFlag[] = "--override-generation-config";
constexpr int kMaxTopK = 1 << 22;
constexpr int kMaxNewTokens = 1 << 30;

// Transformers samples with these only where do_sample is true.
constexpr absl::string_view kSampling[] = {"temperature", "top_p", "top_k", "min_p"};
// The other keys that are read.
constexpr absl::string_view kOthers[] = {"do_sample", "eos_token_id", "repetition_penalty",
                                         "max_new_tokens"};

// Leaves *value as it is if the key is absent.
absl::Status ReadReal(const JsonFields& fields, absl::string_view key, double lowest,
                      double highest, std::optional<float>* value) {
  BATON_ASSIGN_OR_RETURN(const auto read, fields.OptionalReal(key, lowest, highest));
  if (read) *value = static_cast<float>(*read);
  return absl::OkStatus();
}

absl::Status ReadInt(const JsonFields& fields, absl::string_view key, int lowest, int highest,
                     std::optional<int>* value) {
  BATON_ASSIGN_OR_RETURN(const auto read, fields.OptionalInt(key, lowest, highest));
  if (read) *value = read;
  return absl::OkStatus();
}

absl::Status ReadSampling(const JsonFields& fields, ModelConfig* model) {
  BATON_RETURN_IF_ERROR(ReadReal(fields, "temperature", 0, kMaxTemperature, &model->temperature));
  BATON_RETURN_IF_ERROR(ReadReal(fields, "top_p", 1e-6, 1, &model->top_p));
  BATON_RETURN_IF_ERROR(ReadReal(fields, "min_p", 0, 1, &model->min_p));
  return ReadInt(fields, "top_k", -1, kMaxTopK, &model->top_k);
}

// Reads the values that hold for greedy answers, too, as in Transformers.
absl::Status ReadOthers(const JsonFields& fields, ModelConfig* model) {
  if (fields.Has("eos_token_id")) {
    BATON_ASSIGN_OR_RETURN(model->eos_token_ids,
                           fields.Ints("eos_token_id", 0, model->vocab_size - 1));
    BATON_RETURN_IF_ERROR(CheckEosTokenIds(fields, *model));
  }
  BATON_RETURN_IF_ERROR(ReadReal(fields, "repetition_penalty", 1e-6, kMaxRepetitionPenalty,
                                 &model->repetition_penalty));
  return ReadInt(fields, "max_new_tokens", 1, kMaxNewTokens, &model->max_new_tokens);
}

// `samples`: replaces the file's do_sample, if present.
absl::Status ReadFileText(absl::string_view text, const std::string& file,
                          std::optional<bool> samples, ModelConfig* model) {
  BATON_ASSIGN_OR_RETURN(const json::Value document, json::Parse(text, file));
  BATON_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::Make(document, file));
  BATON_RETURN_IF_ERROR(ReadOthers(fields, model));
  BATON_ASSIGN_OR_RETURN(const bool do_sample, fields.Bool("do_sample", false));
  BATON_RETURN_IF_ERROR(CheckGenerationKeys(fields, samples.value_or(do_sample)));
  return samples.value_or(do_sample) ? ReadSampling(fields, model) : absl::OkStatus();
}

// A file may have keys for other programs. An operator who names a key means it to have an effect.
absl::Status CheckKeys(const json::Value& overrides, const JsonFields& fields) {
  for (const std::string& key : overrides.keys) {
    if (!absl::c_linear_search(kSampling, key) && !absl::c_linear_search(kOthers, key)) {
      return fields.Invalid(json::Printable(key), absl::StrCat("unknown, expected one of ",
                                                               absl::StrJoin(kSampling, ", "), ", ",
                                                               absl::StrJoin(kOthers, ", ")));
    }
    if (fields.IsNull(key)) return fields.Invalid(key, "found null, expected a value");
  }
  BATON_ASSIGN_OR_RETURN(const bool samples, fields.Bool("do_sample", true));
  for (const absl::string_view key : kSampling) {
    if (samples || !fields.Has(key)) continue;
    return fields.Invalid(key, "found beside do_sample false, with which no such value applies");
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckEosTokenIds(const JsonFields& fields, const ModelConfig& model) {
  if (model.eos_token_ids.size() <= kMaxEosTokenIds) return absl::OkStatus();
  return fields.Invalid("eos_token_id", absl::StrCat("found ", model.eos_token_ids.size(),
                                                     " ids, expected at most ", kMaxEosTokenIds));
}

absl::Status ReadGenerationConfig(const std::optional<std::string>& text, const std::string& file,
                                  absl::string_view overrides, ModelConfig* model) {
  BATON_ASSIGN_OR_RETURN(const json::Value document,
                         json::Parse(overrides.empty() ? "{}" : overrides, kOverrideFlag));
  BATON_ASSIGN_OR_RETURN(const JsonFields fields, JsonFields::Make(document, kOverrideFlag));
  BATON_RETURN_IF_ERROR(CheckKeys(document, fields));
  std::optional<bool> samples;
  if (fields.Has("do_sample")) {
    BATON_ASSIGN_OR_RETURN(samples, fields.Bool("do_sample", true));
  }
  if (text) BATON_RETURN_IF_ERROR(ReadFileText(*text, file, samples, model));
  BATON_RETURN_IF_ERROR(ReadOthers(fields, model));
  return ReadSampling(fields, model);
}

absl::Status CheckGenerationOverrides(absl::string_view overrides) {
  ModelConfig any;
  any.vocab_size = std::numeric_limits<int>::max();
  return ReadGenerationConfig(std::nullopt, "", overrides, &any);
}

}  // namespace baton::model
