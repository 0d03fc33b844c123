#include "cli/bench_report.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/error.h"

namespace baton::cli {
namespace {

constexpr int kWidth = 50;

double Percentile(const std::vector<double>& sorted, double fraction) {
  const double at = fraction * static_cast<double>(sorted.size() - 1);
  const size_t low = static_cast<size_t>(std::floor(at));
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

// What both forms of the report show.
struct Figures {
  int completed = 0;
  int failed = 0;
  std::map<std::string, int> failures;
  std::map<std::string, std::string> messages;  // one for each reason
  int64_t input_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;
  int64_t kv_bytes = 0;
  std::vector<double> ttft_ms, tpot_ms, itl_ms, e2el_ms;
};

// REQUIRES: a token came.
void AddTimes(const Outcome& outcome, Figures* f) {
  const std::vector<double>& token_s = outcome.token_s;
  const double answer_s = token_s.back() - token_s.front();
  f->ttft_ms.push_back((token_s.front() - outcome.sent_s) * 1e3);
  f->e2el_ms.push_back((token_s.back() - outcome.sent_s) * 1e3);
  if (token_s.size() > 1) {
    f->tpot_ms.push_back(answer_s * 1e3 / static_cast<double>(token_s.size() - 1));
  }
  // Tokens that came in one message share the time since the last one.
  auto message = std::upper_bound(token_s.begin(), token_s.end(), token_s.front());
  for (double last_s = token_s.front(); message != token_s.end();) {
    const double now_s = *message;
    const auto next = std::upper_bound(message, token_s.end(), now_s);
    const auto fresh = next - message;
    f->itl_ms.insert(f->itl_ms.end(), fresh, (now_s - last_s) * 1e3 / static_cast<double>(fresh));
    last_s = now_s;
    message = next;
  }
}

Figures Collect(const BenchResult& result) {
  Figures f;
  for (const Outcome& outcome : result.outcomes) {
    if (!outcome.status.ok()) {
      const std::string reason = ErrorReason(outcome.status);
      const std::string failure =
          reason.empty() ? absl::StatusCodeToString(outcome.status.code()) : reason;
      ++f.failed;
      ++f.failures[failure];
      f.messages.emplace(failure, outcome.status.message());
      continue;
    }
    ++f.completed;
    f.input_tokens += outcome.usage.prompt_tokens();
    f.cached_tokens += outcome.usage.cached_prompt_tokens();
    f.output_tokens += outcome.usage.generated_tokens();
    f.kv_bytes += outcome.usage.kv_bytes();
    if (outcome.has_first()) AddTimes(outcome, &f);
  }
  return f;
}

std::string Centered(const std::string& title, char fill) {
  const std::string text = absl::StrCat(title);
  const int left = (kWidth - static_cast<int>(text.size())) / 2;
  const int right = kWidth - static_cast<int>(text.size()) - left;
  return absl::StrCat(std::string(left, fill), text, std::string(right, fill), "\n");
}

std::string Line(const std::string& name, int64_t value) {
  return absl::StrFormat("%-40s %-10d\n", name, value);
}

std::string Line(const std::string& name, double value) {
  return absl::StrFormat("%-40s %-10.2f\n", name, value);
}

std::string Section(const std::string& title, const std::string& metric,
                    const std::vector<double>& values_ms) {
  const Summary s = Summarize(values_ms);
  return absl::StrCat(Centered(title, '-'), Line(absl::StrCat("Mean ", metric, " (ms):"), s.mean),
                      Line(absl::StrCat("Median ", metric, " (ms):"), s.median),
                      Line(absl::StrCat("P90 ", metric, " (ms):"), s.p90),
                      Line(absl::StrCat("P99 ", metric, " (ms):"), s.p99));
}

double PerSecond(double count, double duration_s) {
  return duration_s > 0 ? count / duration_s : 0;
}

void AddSummary(const std::string& name, const std::vector<double>& values_ms,
                nlohmann::ordered_json* json) {
  const Summary s = Summarize(values_ms);
  (*json)[absl::StrCat("mean_", name, "_ms")] = s.mean;
  (*json)[absl::StrCat("median_", name, "_ms")] = s.median;
  (*json)[absl::StrCat("p90_", name, "_ms")] = s.p90;
  (*json)[absl::StrCat("p99_", name, "_ms")] = s.p99;
}

}  // namespace

Summary Summarize(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return {sum / static_cast<double>(values.size()), Percentile(values, 0.5),
          Percentile(values, 0.9), Percentile(values, 0.99)};
}

int PeakConcurrency(const std::vector<Outcome>& outcomes) {
  std::vector<std::pair<double, int>> changes;
  for (const Outcome& outcome : outcomes) {
    changes.emplace_back(outcome.sent_s, +1);
    changes.emplace_back(outcome.ended_s, -1);
  }
  std::sort(changes.begin(), changes.end());  // an end before a start of the same moment
  int running = 0, peak = 0;
  for (const auto& [when, change] : changes) peak = std::max(peak, running += change);
  return peak;
}

std::string FormatReport(const BenchResult& result) {
  const Figures f = Collect(result);
  const double duration_s = result.duration_s;
  std::string report = Centered(" Serving Benchmark Result ", '=');
  absl::StrAppend(
      &report, Line("Successful requests:", int64_t{f.completed}),
      Line("Failed requests:", int64_t{f.failed}),
      Line("Maximum request concurrency:", int64_t{result.concurrency}),
      Line("Benchmark duration (s):", duration_s), Line("Total input tokens:", f.input_tokens),
      Line("Total cached input tokens:", f.cached_tokens),
      Line("Total generated tokens:", f.output_tokens), Line("Total KV bytes moved:", f.kv_bytes),
      Line("Request throughput (req/s):", PerSecond(f.completed, duration_s)),
      Line("Output token throughput (tok/s):",
           PerSecond(static_cast<double>(f.output_tokens), duration_s)));
  absl::StrAppend(
      &report, Line("Peak concurrent requests:", int64_t{PeakConcurrency(result.outcomes)}),
      Line("Total Token throughput (tok/s):",
           PerSecond(static_cast<double>(f.input_tokens + f.output_tokens), duration_s)));
  absl::StrAppend(&report, Section("Time to First Token", "TTFT", f.ttft_ms),
                  Section("Time per Output Token (excl. 1st token)", "TPOT", f.tpot_ms),
                  Section("Inter-token Latency", "ITL", f.itl_ms),
                  Section("End-to-end Latency", "E2EL", f.e2el_ms));
  if (f.failed > 0) absl::StrAppend(&report, Centered("Failures by Reason", '-'));
  for (const auto& [reason, count] : f.failures) {
    absl::StrAppend(&report, Line(absl::StrCat(reason, ":"), int64_t{count}), "  e.g. ",
                    f.messages.at(reason), "\n");
  }
  absl::StrAppend(&report, std::string(kWidth, '='), "\n");
  return report;
}

std::string ReportJson(const BenchResult& result) {
  const Figures f = Collect(result);
  const double duration_s = result.duration_s;
  nlohmann::ordered_json json = {
      {"backend", "baton"},
      {"model_id", result.model},
      {"num_prompts", result.outcomes.size()},
      {"max_concurrency", result.concurrency},
      {"duration", duration_s},
      {"completed", f.completed},
      {"failed", f.failed},
      {"failures", f.failures},
      {"total_input_tokens", f.input_tokens},
      {"total_cached_input_tokens", f.cached_tokens},
      {"total_output_tokens", f.output_tokens},
      {"kv_bytes", f.kv_bytes},
      {"request_throughput", PerSecond(f.completed, duration_s)},
      {"output_throughput", PerSecond(static_cast<double>(f.output_tokens), duration_s)},
      {"total_token_throughput",
       PerSecond(static_cast<double>(f.input_tokens + f.output_tokens), duration_s)},
      {"max_concurrent_requests", PeakConcurrency(result.outcomes)},
  };
  AddSummary("ttft", f.ttft_ms, &json);
  AddSummary("tpot", f.tpot_ms, &json);
  AddSummary("itl", f.itl_ms, &json);
  AddSummary("e2el", f.e2el_ms, &json);
  return json.dump(2);
}

}  // namespace baton::cli
