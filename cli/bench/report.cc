#include "cli/bench/report.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/bench/json.h"

namespace baton::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

constexpr int kWidth = 50;

struct Metric {
  const char* name;   // in JSON keys
  const char* label;  // in lines
  const char* title;
};
// In the order of kBenchMetrics.
constexpr Metric kMetrics[] = {
    {"ttft", "TTFT", "Time to First Token"},
    {"tpot", "TPOT", "Time per Output Token (excl. 1st token)"},
    {"itl", "ITL", "Inter-token Latency"},
    {"e2el", "E2EL", "End-to-end Latency"},
    {"client_queue_time", "Client Queue Time", "Client-side Queueing"},
    {"e2el_including_client_queue", "E2EL incl. Client Queue",
     "Queue-inclusive End-to-end Latency"},
};

// What both forms of the report show.
struct Figures {
  Tally tally;
  int good = 0;  // requests that met every goal
  double peak_tokens_per_s = 0;
  std::map<std::string, std::vector<double>> values_ms;  // by Metric::name
};

bool MeetsGoals(const RequestTimes& times, const std::map<std::string, double>& goals_ms) {
  const std::map<std::string, double> of_request = {
      {"ttft", times.ttft_ms}, {"tpot", times.tpot_ms}, {"e2el", times.e2el_ms}};
  return absl::c_all_of(goals_ms, [&](const auto& goal) {
    const auto found = of_request.find(goal.first);
    return found == of_request.end() || found->second <= goal.second;
  });
}

void AddTimes(const Outcome& outcome, const ReportOptions& options, Figures* f) {
  const RequestTimes times = TimesOf(outcome);
  const double queue_ms = (outcome.sent_s - outcome.due_s) * 1e3;
  auto& values = f->values_ms;
  values["ttft"].push_back(times.ttft_ms);
  if (outcome.token_s.size() > 1) values["tpot"].push_back(times.tpot_ms);
  values["itl"].insert(values["itl"].end(), times.itl_ms.begin(), times.itl_ms.end());
  values["e2el"].push_back(times.e2el_ms);
  values["client_queue_time"].push_back(queue_ms);
  values["e2el_including_client_queue"].push_back(times.e2el_ms + queue_ms);
  if (MeetsGoals(times, options.goodput_ms)) ++f->good;
}

Figures Collect(const BenchResult& result, const ReportOptions& options) {
  Figures f;
  for (const Outcome& outcome : result.outcomes) {
    if (f.tally.Add(outcome) && outcome.has_first()) AddTimes(outcome, options, &f);
  }
  const std::vector<double> tokens = TokensPerSecond(result.outcomes, result.start_s);
  if (!tokens.empty()) f.peak_tokens_per_s = *absl::c_max_element(tokens);
  return f;
}

std::string Centered(const std::string& text, char fill) {
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

double PerSecond(double count, double duration_s) {
  return duration_s > 0 ? count / duration_s : 0;
}

std::string Section(const Metric& metric, const std::vector<double>& values_ms,
                    const std::vector<double>& percentiles) {
  const Summary s = Summarize(values_ms);
  std::string section = absl::StrCat(
      Centered(metric.title, '-'), Line(absl::StrCat("Mean ", metric.label, " (ms):"), s.mean),
      Line(absl::StrCat("Median ", metric.label, " (ms):"), s.median));
  for (const double p : percentiles) {
    absl::StrAppend(&section, Line(absl::StrCat("P", p, " ", metric.label, " (ms):"),
                                   Percentile(values_ms, p)));
  }
  return section;
}

bool IsChosen(const Metric& metric, const ReportOptions& options) {
  return absl::c_linear_search(options.metrics, metric.name);
}

// The values of each request, in vLLM's units: seconds.
void AddDetails(const BenchResult& result, OrderedJson* json) {
  for (const char* key : {"input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times",
                          "queue_times", "generated_texts", "errors"}) {
    (*json)[key] = OrderedJson::array();
  }
  for (const Outcome& outcome : result.outcomes) {
    const bool timed = outcome.status.ok() && outcome.has_first();
    RequestTimes times = timed ? TimesOf(outcome) : RequestTimes();
    for (double& itl : times.itl_ms) itl /= 1e3;
    (*json)["input_lens"].push_back(outcome.usage.prompt_tokens());
    (*json)["output_lens"].push_back(outcome.status.ok() ? outcome.usage.generated_tokens() : 0);
    (*json)["ttfts"].push_back(times.ttft_ms / 1e3);
    (*json)["itls"].push_back(times.itl_ms);
    (*json)["latencies"].push_back(times.e2el_ms / 1e3);
    (*json)["start_times"].push_back(outcome.sent_s - result.start_s);
    (*json)["queue_times"].push_back(outcome.sent_s - outcome.due_s);
    (*json)["generated_texts"].push_back(outcome.text);
    (*json)["errors"].push_back(outcome.status.ok() ? ""
                                                    : absl::StrCat(FailureOf(outcome.status), ": ",
                                                                   outcome.status.message()));
  }
}

}  // namespace

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

std::vector<double> TokensPerSecond(const std::vector<Outcome>& outcomes, double start_s) {
  std::vector<double> tokens;
  for (const Outcome& outcome : outcomes) {
    if (!outcome.status.ok()) continue;
    for (const double token_s : outcome.token_s) {
      const auto second = static_cast<size_t>(std::max(0.0, token_s - start_s));
      if (second >= tokens.size()) tokens.resize(second + 1);
      ++tokens[second];
    }
  }
  return tokens;
}

std::string FormatReport(const BenchResult& result, const ReportOptions& options) {
  const Figures f = Collect(result, options);
  const Tally& tally = f.tally;
  const double duration_s = result.duration_s;
  std::string report = Centered(" Serving Benchmark Result ", '=');
  absl::StrAppend(&report, Line("Successful requests:", int64_t{tally.completed}),
                  Line("Failed requests:", int64_t{tally.failed}));
  if (result.max_concurrency) {
    absl::StrAppend(&report,
                    Line("Maximum request concurrency:", int64_t{*result.max_concurrency}));
  }
  if (std::isfinite(result.request_rate)) {
    absl::StrAppend(&report, Line("Request rate configured (RPS):", result.request_rate));
  }
  absl::StrAppend(&report, Line("Benchmark duration (s):", duration_s),
                  Line("Total input tokens:", tally.prompt_tokens),
                  Line("Total generated tokens:", tally.output_tokens),
                  Line("Request throughput (req/s):", PerSecond(tally.completed, duration_s)));
  if (!options.goodput_ms.empty()) {
    absl::StrAppend(&report, Line("Request goodput (req/s):", PerSecond(f.good, duration_s)));
  }
  absl::StrAppend(
      &report,
      Line("Output token throughput (tok/s):",
           PerSecond(static_cast<double>(tally.output_tokens), duration_s)),
      Line("Peak output token throughput (tok/s):", f.peak_tokens_per_s),
      Line("Peak concurrent requests:", static_cast<double>(PeakConcurrency(result.outcomes))),
      Line("Total Token throughput (tok/s):",
           PerSecond(static_cast<double>(tally.prompt_tokens + tally.output_tokens), duration_s)));
  for (const Metric& metric : kMetrics) {
    if (!IsChosen(metric, options)) continue;
    const auto values = f.values_ms.find(metric.name);
    absl::StrAppend(
        &report,
        Section(metric, values == f.values_ms.end() ? std::vector<double>() : values->second,
                options.percentiles));
  }
  absl::StrAppend(&report, Centered("Prefix Cache and KV Transfer", '-'),
                  Line("Cached input tokens:", tally.cached_tokens),
                  Line("Prefix cache hit rate (%):", tally.hit_rate() * 100),
                  Line("KV bytes moved:", tally.kv_bytes));
  if (tally.failed > 0) absl::StrAppend(&report, Centered("Failures by Reason", '-'));
  for (const auto& [reason, count] : tally.failures) {
    absl::StrAppend(&report, Line(absl::StrCat(reason, ":"), int64_t{count}), "  e.g. ",
                    tally.messages.at(reason), "\n");
  }
  absl::StrAppend(&report, std::string(kWidth, '='), "\n");
  return report;
}

std::string ReportJson(const BenchResult& result, const ReportOptions& options) {
  const Figures f = Collect(result, options);
  const Tally& tally = f.tally;
  const double duration_s = result.duration_s;
  OrderedJson json = {{"date", result.date},
                      {"endpoint_type", result.backend},
                      {"backend", result.backend},
                      {"label", result.label.empty() ? OrderedJson() : OrderedJson(result.label)},
                      {"model_id", result.model},
                      {"tokenizer_id", result.model},
                      {"num_prompts", result.num_prompts}};
  for (const auto& [key, value] : result.metadata) json[key] = value;
  json["request_rate"] =
      std::isfinite(result.request_rate) ? OrderedJson(result.request_rate) : OrderedJson("inf");
  json["burstiness"] =
      std::isfinite(result.burstiness) ? OrderedJson(result.burstiness) : OrderedJson("inf");
  json["max_concurrency"] =
      result.max_concurrency ? OrderedJson(*result.max_concurrency) : OrderedJson();
  json["duration"] = duration_s;
  json["completed"] = tally.completed;
  json["failed"] = tally.failed;
  json["failures"] = tally.failures;
  json["total_input_tokens"] = tally.prompt_tokens;
  json["total_cached_input_tokens"] = tally.cached_tokens;
  json["prefix_cache_hit_rate"] = tally.hit_rate();
  json["total_output_tokens"] = tally.output_tokens;
  json["kv_bytes"] = tally.kv_bytes;
  json["request_throughput"] = PerSecond(tally.completed, duration_s);
  json["request_goodput"] =
      options.goodput_ms.empty() ? OrderedJson() : OrderedJson(PerSecond(f.good, duration_s));
  json["output_throughput"] = PerSecond(static_cast<double>(tally.output_tokens), duration_s);
  json["total_token_throughput"] =
      PerSecond(static_cast<double>(tally.prompt_tokens + tally.output_tokens), duration_s);
  json["max_output_tokens_per_s"] = f.peak_tokens_per_s;
  json["max_concurrent_requests"] = PeakConcurrency(result.outcomes);
  if (options.detailed) AddDetails(result, &json);
  for (const Metric& metric : kMetrics) {
    if (!IsChosen(metric, options)) continue;
    const auto found = f.values_ms.find(metric.name);
    const std::vector<double> values =
        found == f.values_ms.end() ? std::vector<double>() : found->second;
    const Summary s = Summarize(values);
    json[absl::StrCat("mean_", metric.name, "_ms")] = s.mean;
    json[absl::StrCat("median_", metric.name, "_ms")] = s.median;
    json[absl::StrCat("std_", metric.name, "_ms")] = s.std;
    for (const double p : options.percentiles) {
      json[absl::StrCat("p", p, "_", metric.name, "_ms")] = Percentile(values, p);
    }
  }
  return Dump(json);
}

}  // namespace baton::cli
