#include "cli/bench/figures.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"

namespace baton::cli {

std::string FailureOf(const absl::Status& status) {
  const std::string reason = ErrorReason(status);
  return reason.empty() ? absl::StatusCodeToString(status.code()) : reason;
}

bool Tally::Add(const Outcome& outcome) {
  if (!outcome.status.ok()) {
    const std::string failure = FailureOf(outcome.status);
    ++failed;
    ++failures[failure];
    messages.emplace(failure, outcome.status.message());
    return false;
  }
  ++completed;
  prompt_tokens += outcome.usage.prompt_tokens();
  cached_tokens += outcome.usage.cached_prompt_tokens();
  output_tokens += outcome.usage.generated_tokens();
  kv_bytes += outcome.usage.kv_bytes();
  return true;
}

std::string FailureLines(absl::string_view of, const Tally& tally) {
  std::string lines;
  for (const auto& [reason, count] : tally.failures) {
    absl::StrAppend(&lines, of, ": ", count, " failed with ", reason, ", e.g. ",
                    tally.messages.at(reason), "\n");
  }
  return lines;
}

double Tally::hit_rate() const {
  return prompt_tokens == 0
             ? 0
             : static_cast<double>(cached_tokens) / static_cast<double>(prompt_tokens);
}

Summary Summarize(const std::vector<double>& values) {
  if (values.empty()) return {};
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {mean, Percentile(values, 50), std::sqrt(squares / count)};
}

double Percentile(std::vector<double> values, double percent) {
  if (values.empty()) return 0;
  const double at = percent / 100 * static_cast<double>(values.size() - 1);
  const auto low = static_cast<ptrdiff_t>(at);
  const auto nth = values.begin() + low;
  std::nth_element(values.begin(), nth, values.end());
  if (nth + 1 == values.end()) return *nth;
  return *nth + (at - static_cast<double>(low)) * (*std::min_element(nth + 1, values.end()) - *nth);
}

RequestTimes TimesOf(const Outcome& outcome) {
  const std::vector<double>& token_s = outcome.token_s;
  RequestTimes times;
  times.ttft_ms = (token_s.front() - outcome.sent_s) * 1e3;
  times.e2el_ms = (token_s.back() - outcome.sent_s) * 1e3;
  if (token_s.size() > 1) {
    times.tpot_ms =
        (token_s.back() - token_s.front()) * 1e3 / static_cast<double>(token_s.size() - 1);
  }
  auto message = std::upper_bound(token_s.begin(), token_s.end(), token_s.front());
  for (double last_s = token_s.front(); message != token_s.end();) {
    const double now_s = *message;
    const auto next = std::upper_bound(message, token_s.end(), now_s);
    const auto fresh = next - message;
    times.itl_ms.insert(times.itl_ms.end(), fresh,
                        (now_s - last_s) * 1e3 / static_cast<double>(fresh));
    last_s = now_s;
    message = next;
  }
  return times;
}

}  // namespace baton::cli
