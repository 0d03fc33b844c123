#include "cli/bench/json.h"

#include "absl/strings/str_cat.h"
#include "common/base/version.h"

namespace baton::cli {

nlohmann::ordered_json BenchHeader(const std::string& benchmark, const std::string& date,
                                   const std::string& model, const OutputOptions& output) {
  nlohmann::ordered_json json = {{"benchmark", benchmark},
                                 {"date", date},
                                 {"baton_version", std::string(Version())},
                                 {"model_id", model},
                                 {"label", nullptr}};
  if (!output.label.empty()) json["label"] = output.label;
  for (const auto& [key, value] : output.metadata) json[key] = value;
  return json;
}

nlohmann::ordered_json TallyJson(const Tally& tally) {
  return {{"completed", tally.completed},         {"failed", tally.failed},
          {"failures", tally.failures},           {"prompt_tokens", tally.prompt_tokens},
          {"cached_tokens", tally.cached_tokens}, {"computed_tokens", tally.computed_tokens()},
          {"output_tokens", tally.output_tokens}};
}

nlohmann::ordered_json SummaryJson(const std::vector<double>& values,
                                   const std::vector<double>& percentiles) {
  const Summary summary = Summarize(values);
  nlohmann::ordered_json json = {
      {"mean", summary.mean}, {"median", summary.median}, {"std", summary.std}};
  for (const double p : percentiles) json[absl::StrCat("p", p)] = Percentile(values, p);
  return json;
}

std::string Dump(const nlohmann::ordered_json& json) {
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace baton::cli
