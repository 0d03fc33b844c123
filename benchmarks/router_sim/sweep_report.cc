#include "benchmarks/router_sim/sweep_report.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/svg_plot.h"

namespace baton::simulator::sweeps {
namespace {

using cli::Chart;
using cli::RenderSvg;
using cli::Series;

constexpr double kNear = 1.05;
constexpr double kHighestPlotted = 2;

double Best(const std::vector<CellResult>& results, const Figure& figure) {
  double best = std::numeric_limits<double>::infinity();
  for (const CellResult& r : results) {
    if (r.unanswered == 0) best = std::min(best, figure.of(r));
  }
  return best;
}

std::string Value(const CellResult& result, const Figure& figure, double best) {
  if (result.unanswered > 0) return absl::StrFormat("%d unanswered", result.unanswered);
  const double value = figure.of(result);
  const char* mark = value <= best * kNear ? "**" : "";
  return absl::StrFormat("%s%.3g%s", mark, value, mark);
}

std::string DecodeCellTable(const Cell& cell, const std::vector<NamedPolicy>& policies,
                            const std::vector<CellResult>& results, bool timings) {
  const DecodeTier& tier = cell.scenario.decode;
  std::string out = absl::StrFormat(
      "\n**%s** (%d requests, %d sequences and %d blocks of %d tokens a worker)\n\n"
      "| policy | mean ITL ms | p99 ms | p99 of requests' means ms | tokens/s | wait s | "
      "first gap s | imbalance | idle beside busy | preemptions |",
      CellName(cell), cell.trace->requests.size(), tier.shape.max_num_seqs, tier.shape.kv_blocks,
      kKvBlockTokens);
  absl::StrAppend(&out, timings ? " ns a decision |\n" : "\n",
                  "|---|---|---|---|---|---|---|---|---|---|", timings ? "---|\n" : "\n");
  const double best_mean = Best(results, kMeanItl), best_p99 = Best(results, kP99Itl);
  for (size_t p = 0; p < policies.size(); ++p) {
    const DecodeFigures& d = results[p].decode;
    absl::StrAppendFormat(&out,
                          "| %s | %s | %s | %.3g | %.0f | %.3g | %.3g | %.2f | %.1f %% | %d |",
                          policies[p].name, Value(results[p], kMeanItl, best_mean),
                          Value(results[p], kP99Itl, best_p99), d.p99_request_itl_s * 1e3,
                          d.tokens_per_s, d.mean_wait_s, d.mean_first_gap_s, d.imbalance,
                          100 * d.idle_beside_loaded_share, d.preemptions);
    if (timings) absl::StrAppendFormat(&out, " %.0f |", results[p].ns_per_decision);
    absl::StrAppend(&out, "\n");
  }
  return out;
}

}  // namespace

const Figure kMeanTtft = {"mean TTFT s", [](const CellResult& r) { return r.mean_ttft_s; }};
const Figure kMeanItl = {"mean ITL ms",
                         [](const CellResult& r) { return r.decode.mean_itl_s * 1e3; }};
const Figure kP99Itl = {"p99 ITL ms", [](const CellResult& r) { return r.decode.p99_itl_s * 1e3; }};

std::vector<PolicySummary> Summarize(const std::vector<Cell>& cells, int policies,
                                     const std::vector<std::vector<CellResult>>& results,
                                     const Figure& figure) {
  std::vector<PolicySummary> summaries(policies);
  for (int p = 0; p < policies; ++p) {
    double logs = 0;
    int compared = 0;
    for (size_t c = 0; c < cells.size(); ++c) {
      if (results[c][p].unanswered > 0) continue;
      const double ratio = figure.of(results[c][p]) / Best(results[c], figure);
      logs += std::log(ratio);
      ++compared;
      summaries[p].near_best += ratio <= kNear;
      if (ratio > summaries[p].worst_ratio) {
        summaries[p].worst_ratio = ratio;
        summaries[p].worst_cell = CellName(cells[c]);
      }
    }
    if (compared > 0) summaries[p].mean_ratio = std::exp(logs / compared);
  }
  return summaries;
}

std::string CellTable(const Cell& cell, const std::vector<NamedPolicy>& policies,
                      const std::vector<CellResult>& results, bool timings) {
  if (cell.scenario.decode.workers > 0) return DecodeCellTable(cell, policies, results, timings);
  const double ceiling = InfiniteCacheHitRate(*cell.trace);
  std::string out = absl::StrFormat(
      "\n**%s** (%d requests, caches of %d blocks, an infinite cache hits %.3f)\n\n"
      "| policy | mean TTFT s | p99 s | hit | hit ÷ ceiling | within %g s | busy variation | "
      "index KiB |",
      CellName(cell), cell.trace->requests.size(), cell.scenario.cache_blocks, ceiling,
      cell.scenario.slo_s);
  absl::StrAppend(&out, timings ? " ns a decision |\n" : "\n", "|---|---|---|---|---|---|---|---|",
                  timings ? "---|\n" : "\n");
  const double best = Best(results, kMeanTtft);
  for (size_t p = 0; p < policies.size(); ++p) {
    const CellResult& r = results[p];
    absl::StrAppendFormat(&out, "| %s | %s | %.3g | %.3f | %.2f | %.1f %% | %.3f | %d |",
                          policies[p].name, Value(r, kMeanTtft, best), r.p99_ttft_s, r.hit_rate,
                          ceiling > 0 ? r.hit_rate / ceiling : 0, 100 * r.goodput, r.busy_variation,
                          r.index_bytes / 1024);
    if (timings) absl::StrAppendFormat(&out, " %.0f |", r.ns_per_decision);
    absl::StrAppend(&out, "\n");
  }
  return out;
}

std::string SummaryTable(const std::vector<Cell>& cells, const std::vector<NamedPolicy>& policies,
                         const std::vector<std::vector<CellResult>>& results,
                         const Figure& figure) {
  const auto summaries = Summarize(cells, static_cast<int>(policies.size()), results, figure);
  std::string out = absl::StrFormat(
      "\n| policy | worst ratio to the best | in the cell | mean ratio | within 5 %% of the best, "
      "of "
      "%d cells |\n|---|---|---|---|---|\n",
      cells.size());
  for (size_t p = 0; p < policies.size(); ++p) {
    const PolicySummary& s = summaries[p];
    absl::StrAppendFormat(&out, "| %s | %.2f | %s | %.2f | %d |\n", policies[p].name, s.worst_ratio,
                          s.worst_cell, s.mean_ratio, s.near_best);
  }
  return out;
}

std::string FigureTable(const std::vector<Cell>& cells, const std::vector<NamedPolicy>& policies,
                        const std::vector<std::vector<CellResult>>& results, const Figure& figure) {
  std::string out = absl::StrCat("\n| ", figure.name, " |"), rule = "|---|";
  for (const NamedPolicy& policy : policies) {
    absl::StrAppend(&out, " ", policy.name, " |");
    rule += "---|";
  }
  absl::StrAppend(&out, "\n", rule, "\n");
  for (size_t c = 0; c < cells.size(); ++c) {
    absl::StrAppend(&out, "| ", CellName(cells[c]), " |");
    const double best = Best(results[c], figure);
    for (const CellResult& r : results[c]) {
      absl::StrAppend(&out, " ", Value(r, figure, best), " |");
    }
    absl::StrAppend(&out, "\n");
  }
  return out;
}

std::string SpeedPlot(const std::vector<Cell>& cells, const std::vector<NamedPolicy>& policies,
                      const std::vector<std::vector<CellResult>>& results) {
  std::map<std::string, Chart> charts;
  for (size_t c = 0; c < cells.size(); ++c) {
    if (!cells[c].note.empty()) continue;
    const Scenario& s = cells[c].scenario;
    const std::string title = absl::StrFormat("%s, %d workers, %d router%s", cells[c].trace->name,
                                              s.workers, s.routers, s.routers == 1 ? "" : "s");
    Chart& chart = charts[title];
    chart.title = title;
    chart.x_label = "replay speed";
    chart.y_label = "mean TTFT / the best policy's";
    chart.series.resize(policies.size());
    const double best = Best(results[c], kMeanTtft);
    for (size_t p = 0; p < policies.size(); ++p) {
      chart.series[p].name = policies[p].name;
      const double ratio = results[c][p].mean_ttft_s / best;
      // One that diverges would flatten all others.
      if (ratio <= kHighestPlotted) chart.series[p].points.push_back({s.speed, ratio});
    }
  }
  std::vector<Chart> plotted;
  for (auto& [title, chart] : charts) {
    size_t most = 0;
    for (Series& series : chart.series) {
      std::sort(series.points.begin(), series.points.end());
      most = std::max(most, series.points.size());
    }
    chart.series.erase(std::remove_if(chart.series.begin(), chart.series.end(),
                                      [](const Series& s) { return s.points.empty(); }),
                       chart.series.end());
    if (most > 1) plotted.push_back(std::move(chart));
  }
  return RenderSvg(plotted);
}

}  // namespace baton::simulator::sweeps
