#include "cli/bench/plot.h"

#include <algorithm>
#include <utility>

namespace baton::cli {
namespace {

constexpr size_t kMostPoints = 400;  // of a distribution

// Requests that run at the middle of each second.
Series Running(const std::vector<Outcome>& outcomes, double start_s, size_t seconds) {
  std::vector<int> changes(seconds + 1);
  const auto middle_after = [&](double at_s) {
    const double second = std::clamp(at_s - start_s + 0.5, 0.0, static_cast<double>(seconds));
    return static_cast<size_t>(second);
  };
  for (const Outcome& outcome : outcomes) {
    ++changes[middle_after(outcome.sent_s)];
    --changes[middle_after(outcome.ended_s)];
  }
  Series series;
  series.name = "running requests";
  int running = 0;
  for (size_t i = 0; i < seconds; ++i) {
    running += changes[i];
    series.points.emplace_back(static_cast<double>(i) + 0.5, running);
  }
  return series;
}

}  // namespace

Series Distribution(const std::string& name, std::vector<double> values) {
  std::sort(values.begin(), values.end());
  Series series;
  series.name = name;
  const size_t points = std::min(values.size(), kMostPoints);
  for (size_t i = 0; i < points; ++i) {
    const size_t at = points == 1 ? 0 : i * (values.size() - 1) / (points - 1);
    series.points.emplace_back(
        values[at], 100 * static_cast<double>(at + 1) / static_cast<double>(values.size()));
  }
  return series;
}

std::string BenchPlot(const BenchResult& result) {
  const std::vector<double> tokens = TokensPerSecond(result.outcomes, result.start_s);
  Series throughput;
  throughput.name = "output tokens a second";
  for (size_t i = 0; i < tokens.size(); ++i) {
    throughput.points.emplace_back(static_cast<double>(i) + 0.5, tokens[i]);
  }
  std::vector<double> ttft_ms, itl_ms;
  for (const Outcome& outcome : result.outcomes) {
    if (!outcome.status.ok() || !outcome.has_first()) continue;
    const RequestTimes times = TimesOf(outcome);
    ttft_ms.push_back(times.ttft_ms);
    itl_ms.insert(itl_ms.end(), times.itl_ms.begin(), times.itl_ms.end());
  }
  return RenderSvg(
      {{"Output token throughput", "seconds", "tokens a second", {throughput}},
       {"Running requests",
        "seconds",
        "requests",
        {Running(result.outcomes, result.start_s, tokens.size())}},
       {"Time to first token", "milliseconds", "% of requests", {Distribution("TTFT", ttft_ms)}},
       {"Inter-token latency", "milliseconds", "% of tokens", {Distribution("ITL", itl_ms)}}},
      2);
}

}  // namespace baton::cli
