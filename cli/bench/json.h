// What the JSON results of benchmarks share.
#ifndef BATON_CLI_BENCH_JSON_H_
#define BATON_CLI_BENCH_JSON_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/bench/figures.h"
#include "cli/bench/output.h"

namespace baton::cli {

// The first keys: benchmark, date, baton_version, model_id, label, and the metadata.
nlohmann::ordered_json BenchHeader(const std::string& benchmark, const std::string& date,
                                   const std::string& model, const OutputOptions& output);

// completed, failed, failures, and the numbers of tokens.
nlohmann::ordered_json TallyJson(const Tally& tally);

// "mean", "median", "std" and the percentiles, as "p99".
nlohmann::ordered_json SummaryJson(const std::vector<double>& values,
                                   const std::vector<double>& percentiles);

// Indented. Names that other servers gave need not be UTF-8.
std::string Dump(const nlohmann::ordered_json& json);

}  // namespace baton::cli

#endif  // BATON_CLI_BENCH_JSON_H_
