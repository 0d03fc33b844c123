// What the reports of all benchmarks are made of: how requests ended, what they cost, and
// statistics.
#ifndef BATON_CLI_BENCH_FIGURES_H_
#define BATON_CLI_BENCH_FIGURES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "cli/load_generator.h"

namespace baton::cli {

// The reason of a failed request, or else the name of its code.
std::string FailureOf(const absl::Status& status);

// How requests ended, and the tokens of those that were answered.
struct Tally {
  int completed = 0;
  int failed = 0;
  std::map<std::string, int> failures;          // by FailureOf
  std::map<std::string, std::string> messages;  // of one failure for each reason
  int64_t prompt_tokens = 0, cached_tokens = 0, output_tokens = 0;
  int64_t kv_bytes = 0;

  // True if the request was answered.
  bool Add(const Outcome& outcome);
  double hit_rate() const;  // cached of prompt tokens; 0 without any
  int64_t computed_tokens() const { return prompt_tokens - cached_tokens; }
};

// A line for each reason of failed requests, `of` such a kind; empty if none failed.
std::string FailureLines(absl::string_view of, const Tally& tally);

struct Summary {
  double mean = 0;
  double median = 0;
  double std = 0;  // of the values themselves, as numpy.std
};
// All zero for no values.
Summary Summarize(const std::vector<double>& values);

// As numpy.percentile: linear interpolation between the two nearest values. 0 for no values.
double Percentile(std::vector<double> values, double percent);

// The times of one request in milliseconds, from its sending on. REQUIRES: a token came.
struct RequestTimes {
  double ttft_ms = 0;
  double tpot_ms = 0;  // 0 for a single token
  double e2el_ms = 0;  // to the last token
  // Per token, not per message: the tokens of one message share the time since the last message.
  std::vector<double> itl_ms;
};
RequestTimes TimesOf(const Outcome& outcome);

}  // namespace baton::cli

#endif  // BATON_CLI_BENCH_FIGURES_H_
