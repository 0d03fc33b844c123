#include "benchmarks/serving/load_report.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "cli/svg_plot.h"
#include "common/base/check.h"
#include "common/base/error.h"

namespace baton::benchmarks {
namespace {

using cli::Chart;
using cli::RenderSvg;
using cli::Series;

// A refusal leaves this share of the time that the caller had.
constexpr double kRefusedBefore = 0.9;
// Told apart in a level's memory: its first, middle and last part.
constexpr int kParts = 10;

double Mebibytes(double bytes) { return bytes / (1 << 20); }

std::string Milliseconds(double value) {
  if (std::isnan(value)) return "–";
  return value < 10 ? absl::StrFormat("%.1f", value) : absl::StrFormat("%.0f", value);
}

double MedianBytes(const std::vector<MemorySample>& samples, const std::string& process,
                   double begin_s, double end_s) {
  std::vector<double> bytes;
  for (const MemorySample& sample : samples) {
    const auto found = sample.resident_bytes.find(process);
    if (sample.at_s >= begin_s && sample.at_s <= end_s && found != sample.resident_bytes.end()) {
      bytes.push_back(static_cast<double>(found->second));
    }
  }
  return Percentile(bytes, 0.5);
}

}  // namespace

double Percentile(std::vector<double> values, double fraction) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  std::sort(values.begin(), values.end());
  const double at = fraction * static_cast<double>(values.size() - 1);
  const size_t low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, values.size() - 1);
  return values[low] + (at - static_cast<double>(low)) * (values[high] - values[low]);
}

bool Slo::Met(const Outcome& outcome) const {
  return outcome.status.ok() && outcome.has_first() &&
         outcome.elapsed_s() <= finish_s(outcome.max_tokens);
}

bool Slo::FirstTokenMet(const Outcome& outcome) const {
  return Met(outcome) && outcome.ttft_s() <= ttft_s;
}

Fate FateOf(const Outcome& outcome) {
  if (outcome.status.ok()) return Fate::kAnswered;
  const bool early = outcome.ended_s - outcome.sent_s < kRefusedBefore * outcome.timeout_s;
  switch (outcome.status.code()) {
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kUnavailable:
      return outcome.has_first() ? Fate::kFailed : Fate::kRefused;
    case absl::StatusCode::kDeadlineExceeded:
      return early && !outcome.has_first() ? Fate::kRefused : Fate::kExpired;
    default:
      return Fate::kFailed;
  }
}

std::vector<double> GapsMs(const Outcome& outcome) {
  std::vector<double> gaps;
  for (size_t i = 1; i < outcome.token_s.size(); ++i) {
    gaps.push_back((outcome.token_s[i] - outcome.token_s[i - 1]) * 1e3);
  }
  return gaps;
}

LevelFigures Summarize(const std::vector<Outcome>& outcomes, const Slo& slo, double begin_s,
                       double end_s) {
  LevelFigures f;
  f.window_s = end_s - begin_s;
  std::vector<double> refusal_ms, retry_ms, ttft_ms, gap_ms, lag_ms;
  int64_t good_tokens = 0;
  for (const Outcome& outcome : outcomes) {
    lag_ms.push_back((outcome.sent_s - outcome.due_s) * 1e3);
    if (outcome.ended_s < begin_s || outcome.ended_s > end_s) continue;
    ++f.ended;
    const Fate fate = FateOf(outcome);
    f.answered += fate == Fate::kAnswered;
    f.refused += fate == Fate::kRefused;
    f.expired += fate == Fate::kExpired;
    f.failed += fate == Fate::kFailed;
    if (fate == Fate::kAnswered) {
      ttft_ms.push_back(outcome.ttft_s() * 1e3);
      for (double gap : GapsMs(outcome)) gap_ms.push_back(gap);
    } else {
      ++f.reasons[ReasonOf(outcome.status)];
      f.messages.emplace(ReasonOf(outcome.status), std::string(outcome.status.message()));
    }
    if (fate == Fate::kRefused) {
      refusal_ms.push_back((outcome.ended_s - outcome.sent_s) * 1e3);
      if (const auto retry = ErrorRetryAfter(outcome.status)) {
        ++f.refused_with_retry;
        retry_ms.push_back(absl::ToDoubleMilliseconds(*retry));
      }
    }
    f.good_ttft += slo.FirstTokenMet(outcome);
    if (slo.Met(outcome)) {
      ++f.good;
      good_tokens += static_cast<int64_t>(outcome.tokens.size());
    }
  }
  f.goodput = f.goodput_low = f.goodput_high = f.good / f.window_s;
  f.goodput_ttft = f.good_ttft / f.window_s;
  f.goodput_tokens = static_cast<double>(good_tokens) / f.window_s;
  f.refusal_p50_ms = Percentile(refusal_ms, 0.5);
  f.refusal_p99_ms = Percentile(refusal_ms, 0.99);
  f.retry_p50_ms = Percentile(retry_ms, 0.5);
  f.ttft_p50_ms = Percentile(ttft_ms, 0.5);
  f.ttft_p99_ms = Percentile(ttft_ms, 0.99);
  f.gap_p50_ms = Percentile(gap_ms, 0.5);
  f.gap_p99_ms = Percentile(gap_ms, 0.99);
  f.send_lag_p99_ms = Percentile(lag_ms, 0.99);
  return f;
}

LevelFigures MedianOf(const std::vector<LevelFigures>& rounds) {
  BATON_CHECK(!rounds.empty());
  LevelFigures all = rounds.front();
  all.rounds = static_cast<int>(rounds.size());
  for (size_t i = 1; i < rounds.size(); ++i) {
    const LevelFigures& f = rounds[i];
    all.window_s += f.window_s;
    for (int LevelFigures::*count :
         {&LevelFigures::ended, &LevelFigures::answered, &LevelFigures::good,
          &LevelFigures::good_ttft, &LevelFigures::refused, &LevelFigures::expired,
          &LevelFigures::failed, &LevelFigures::refused_with_retry}) {
      all.*count += f.*count;
    }
    for (const auto& [reason, count] : f.reasons) all.reasons[reason] += count;
    all.messages.insert(f.messages.begin(), f.messages.end());
    all.goodput_low = std::min(all.goodput_low, f.goodput);
    all.goodput_high = std::max(all.goodput_high, f.goodput);
  }
  for (double LevelFigures::*figure :
       {&LevelFigures::goodput, &LevelFigures::goodput_ttft, &LevelFigures::goodput_tokens,
        &LevelFigures::refusal_p50_ms, &LevelFigures::refusal_p99_ms, &LevelFigures::retry_p50_ms,
        &LevelFigures::ttft_p50_ms, &LevelFigures::ttft_p99_ms, &LevelFigures::gap_p50_ms,
        &LevelFigures::gap_p99_ms, &LevelFigures::send_lag_p99_ms}) {
    std::vector<double> values;
    for (const LevelFigures& f : rounds) {
      if (!std::isnan(f.*figure)) values.push_back(f.*figure);  // NaN: the round had none
    }
    all.*figure = Percentile(values, 0.5);
  }
  return all;
}

std::string GoodputTable(const std::vector<LevelFigures>& levels) {
  double peak = 0;
  for (const LevelFigures& f : levels) peak = std::max(peak, f.goodput);
  std::string out =
      "| load | offered /s | answered | in time | expired | failed | refused | goodput /s | of "
      "peak | first token in time, too | goodput tokens/s |\n"
      "|---|---|---|---|---|---|---|---|---|---|---|\n";
  for (const LevelFigures& f : levels) {
    const std::string range =
        f.rounds > 1 ? absl::StrFormat(" (%.2f–%.2f)", f.goodput_low, f.goodput_high) : "";
    absl::StrAppendFormat(
        &out, "| %g× | %.2f | %d | %d | %d | %d | %d | %.2f%s | %.0f %% | %.2f | %.0f |\n",
        f.multiple, f.offered_rate, f.answered, f.good, f.expired, f.failed, f.refused, f.goodput,
        range, peak > 0 ? 100 * f.goodput / peak : 0.0, f.goodput_ttft, f.goodput_tokens);
  }
  return out;
}

std::string LatencyTable(const std::vector<LevelFigures>& levels) {
  std::string out =
      "| load | TTFT p50 | p99 | inter-token p50 | p99 | time to refuse p50 | p99 | with RetryInfo "
      "| told to wait, p50 | sent late, p99 |\n|---|---|---|---|---|---|---|---|---|---|\n";
  for (const LevelFigures& f : levels) {
    absl::StrAppendFormat(
        &out, "| %g× | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n", f.multiple,
        Milliseconds(f.ttft_p50_ms), Milliseconds(f.ttft_p99_ms), Milliseconds(f.gap_p50_ms),
        Milliseconds(f.gap_p99_ms), Milliseconds(f.refusal_p50_ms), Milliseconds(f.refusal_p99_ms),
        f.refused == 0 ? "–" : absl::StrCat(f.refused_with_retry, " of ", f.refused),
        Milliseconds(f.retry_p50_ms), Milliseconds(f.send_lag_p99_ms));
  }
  return absl::StrCat(out, "\nTimes in milliseconds.\n");
}

std::string ReasonTable(const std::vector<LevelFigures>& levels) {
  std::map<std::string, std::string> messages;
  for (const LevelFigures& f : levels) messages.insert(f.messages.begin(), f.messages.end());
  if (messages.empty()) return "";
  std::string out = "| not answered | ", rule = "|---|", rows;
  for (const LevelFigures& f : levels) {
    absl::StrAppendFormat(&out, "%g× | ", f.multiple);
    absl::StrAppend(&rule, "---|");
  }
  for (const auto& [reason, message] : messages) {
    absl::StrAppend(&rows, "| ", reason, " |");
    for (const LevelFigures& f : levels) {
      const auto found = f.reasons.find(reason);
      absl::StrAppend(&rows, " ", found == f.reasons.end() ? 0 : found->second, " |");
    }
    absl::StrAppend(&rows, " e.g. ", message, " |\n");
  }
  return absl::StrCat(out, "|\n", rule, "---|\n", rows);
}

std::string MemoryTable(const std::vector<MemorySample>& samples,
                        const std::vector<LevelSpan>& spans) {
  std::vector<std::string> names;
  for (const MemorySample& sample : samples) {
    for (const auto& [name, bytes] : sample.resident_bytes) {
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  std::string out = absl::StrCat("| load | ", absl::StrJoin(names, " | "), " |\n|---|");
  for (size_t i = 0; i < names.size(); ++i) absl::StrAppend(&out, "---|");
  for (const LevelSpan& span : spans) {
    absl::StrAppendFormat(&out, "\n| %g× |", span.multiple);
    const double part_s = (span.end_s - span.begin_s) / kParts;
    for (const std::string& name : names) {
      std::vector<std::string> values;
      for (int part : {0, kParts / 2, kParts - 1}) {
        const double begin_s = span.begin_s + part * part_s;
        values.push_back(absl::StrFormat(
            "%.1f", Mebibytes(MedianBytes(samples, name, begin_s, begin_s + part_s))));
      }
      absl::StrAppend(&out, " ", absl::StrJoin(values, ", "), " |");
    }
  }
  return absl::StrCat(out,
                      "\n\nResident MiB in the first, a middle and the last tenth of a level.\n");
}

std::string LoadPlot(const std::vector<LevelFigures>& levels,
                     const std::vector<MemorySample>& samples) {
  Chart goodput{"Goodput under load", "load, multiples of saturation", "requests a second", {}};
  Series good{"by their deadline", {}}, ttft{"first token in time, too", {}},
      goal{"90 % of peak", {}, true};
  Chart refusals{"Time to refuse", "load, multiples of saturation", "milliseconds", {}};
  Series p50{"p50", {}}, p99{"p99", {}}, bound{"goal: p99 ≤ 50 ms", {}, true};
  double peak = 0;
  for (const LevelFigures& f : levels) {
    good.points.emplace_back(f.multiple, f.goodput);
    ttft.points.emplace_back(f.multiple, f.goodput_ttft);
    p50.points.emplace_back(f.multiple, f.refusal_p50_ms);
    p99.points.emplace_back(f.multiple, f.refusal_p99_ms);
    peak = std::max(peak, f.goodput);
  }
  for (const LevelFigures& f : levels) {
    goal.points.emplace_back(f.multiple, 0.9 * peak);
    bound.points.emplace_back(f.multiple, 50);
  }
  goodput.series = {good, ttft, goal};
  refusals.series = {p50, p99, bound};
  Chart memory{"Memory", "seconds", "resident MiB", {}};
  std::map<std::string, Series> by_process;
  for (const MemorySample& sample : samples) {
    for (const auto& [name, bytes] : sample.resident_bytes) {
      by_process[name].points.emplace_back(sample.at_s - samples.front().at_s,
                                           Mebibytes(static_cast<double>(bytes)));
    }
  }
  for (auto& [name, series] : by_process) {
    series.name = name;
    memory.series.push_back(std::move(series));
  }
  return RenderSvg({goodput, refusals, memory});
}

}  // namespace baton::benchmarks
