#include "cli/bench/judge_report.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/bench/json.h"
#include "cli/bench/plot.h"

namespace baton::cli {
namespace {

using JudgeObject = nlohmann::ordered_json;

JudgeObject NumberOrNull(const std::optional<double>& number) {
  return number ? JudgeObject(*number) : JudgeObject();
}

std::optional<double> MedianOf(const std::vector<double>& values) {
  if (values.empty()) return std::nullopt;
  return Percentile(values, 50);
}

std::vector<double> ValuesOf(const std::map<int, double>& by_round) {
  std::vector<double> values;
  for (const auto& [round, value] : by_round) values.push_back(value);
  return values;
}

void Add(const Outcome& outcome, JudgeFigures* figures) {
  if (!figures->tally.Add(outcome)) return;
  const double latency_ms = (outcome.ended_s - outcome.sent_s) * 1e3;
  figures->latency_ms.push_back(latency_ms);
  if (outcome.has_first()) figures->ttft_ms.push_back(TimesOf(outcome).ttft_ms);
  const v1::Timings& timings = outcome.timings;
  figures->queue_ms += timings.queue_ms();
  figures->prefill_ms += timings.prefill_ms();
  figures->kv_transfer_ms += timings.kv_transfer_ms();
  figures->decode_ms += timings.decode_ms();
  figures->other_ms += latency_ms - timings.queue_ms() - timings.prefill_ms() -
                       timings.kv_transfer_ms() - timings.decode_ms();
}

// Returns figures.end() if there are none.
template <class Figures>
auto Find(Figures& figures, const std::string& server, const std::string& verdict,
          const std::string& prefix) {
  return absl::c_find_if(figures, [&](const JudgeFigures& f) {
    return f.server == server && f.verdict == verdict && f.prefix == prefix;
  });
}

// A peer reports no stages, nor does Score.
bool HasStages(const JudgeFigures& f) { return f.server == "baton" && f.verdict != "score"; }

double ShareOf(double part, double whole) { return whole > 0 ? part / whole : 0; }

double SumOf(const JudgeFigures& f) { return absl::c_accumulate(f.latency_ms, 0.0); }

// The time per warm item over the time to compute its tokens, for verdicts of one token.
std::optional<double> WarmRatio(const JudgeFigures& f, const std::optional<double>& compute_ms) {
  const std::optional<double> item_ms = MedianOf(ValuesOf(f.item_ms));
  if (f.prefix != "warm" || f.verdict == "text" || !item_ms || !compute_ms) return std::nullopt;
  return *item_ms / *compute_ms;
}

JudgeObject ToJson(const JudgeFigures& f, const std::optional<double>& compute_ms,
                   const std::vector<double>& percentiles) {
  JudgeObject json = {{"server", f.server}, {"verdict", f.verdict}, {"prefix", f.prefix}};
  json.update(TallyJson(f.tally));
  json["item_ms_by_round"] = ValuesOf(f.item_ms);
  const std::optional<double> item_ms = MedianOf(ValuesOf(f.item_ms));
  json["item_ms"] = NumberOrNull(item_ms);
  json["items_per_s"] = item_ms && *item_ms > 0 ? JudgeObject(1e3 / *item_ms) : JudgeObject();
  json["latency_ms"] = SummaryJson(f.latency_ms, percentiles);
  json["ttft_ms"] = SummaryJson(f.ttft_ms, percentiles);
  json["warm_item_to_compute"] = NumberOrNull(WarmRatio(f, compute_ms));
  if (!HasStages(f)) return json;
  const double whole = SumOf(f);
  json["stage_shares"] = {{"queue", ShareOf(f.queue_ms, whole)},
                          {"prefill", ShareOf(f.prefill_ms, whole)},
                          {"kv_transfer", ShareOf(f.kv_transfer_ms, whole)},
                          {"decode", ShareOf(f.decode_ms, whole)},
                          {"other", ShareOf(f.other_ms, whole)}};
  return json;
}

std::string Row(const JudgeFigures& f, const std::vector<double>& percentiles) {
  const double item_ms = MedianOf(ValuesOf(f.item_ms)).value_or(0);
  std::string row =
      absl::StrFormat("%-6s %-7s %-6s %6d %6d %9.2f %9.1f", f.server, f.verdict, f.prefix,
                      f.tally.completed, f.tally.failed, item_ms > 0 ? 1e3 / item_ms : 0, item_ms);
  for (const double p : percentiles) {
    absl::StrAppendFormat(&row, " %9.1f", Percentile(f.latency_ms, p));
  }
  absl::StrAppendFormat(&row, " %9.1f %8d %8d", Percentile(f.ttft_ms, 50), f.tally.cached_tokens,
                        f.tally.computed_tokens());
  if (HasStages(f)) {
    const double whole = SumOf(f);
    for (const double part :
         {f.queue_ms, f.prefill_ms, f.kv_transfer_ms, f.decode_ms, f.other_ms}) {
      absl::StrAppendFormat(&row, " %8.1f", 100 * ShareOf(part, whole));
    }
  }
  return row + "\n";
}

// The kinds of requests that both servers got.
std::vector<const JudgeFigures*> Shared(const std::vector<JudgeFigures>& figures) {
  std::vector<const JudgeFigures*> shared;
  for (const JudgeFigures& f : figures) {
    if (f.server == "baton" && f.prefix != "rubric" &&
        !PeerRatios(figures, f.verdict, f.prefix).empty()) {
      shared.push_back(&f);
    }
  }
  return shared;
}

std::map<std::string, std::optional<double>> ComputeMs(const JudgeResult& result) {
  return {{"baton", ComputeItemMs(result, "baton")}, {"peer", ComputeItemMs(result, "peer")}};
}

}  // namespace

std::vector<JudgeFigures> CollectJudge(const JudgeResult& result) {
  std::vector<JudgeFigures> all;
  for (const JudgePhase& phase : result.phases) {
    auto figures = Find(all, phase.server, phase.verdict, phase.prefix);
    if (figures == all.end()) {
      figures = all.insert(all.end(), JudgeFigures());
      figures->server = phase.server;
      figures->verdict = phase.verdict;
      figures->prefix = phase.prefix;
    }
    const int before = figures->tally.completed;
    for (const Outcome& outcome : phase.outcomes) Add(outcome, &*figures);
    const int completed = figures->tally.completed - before;
    if (completed > 0) figures->item_ms[phase.round] = phase.wall_s * 1e3 / completed;
  }
  return all;
}

std::optional<double> ComputeItemMs(const JudgeResult& result, const std::string& server) {
  std::vector<double> differences_ms;
  for (const JudgePhase& cold : result.phases) {
    if (cold.server != server || cold.prefix != "cold") continue;
    for (const JudgePhase& rubric : result.phases) {
      if (rubric.server != server || rubric.prefix != "rubric" || rubric.verdict != cold.verdict ||
          rubric.round != cold.round) {
        continue;
      }
      for (size_t i = 0; i < std::min(cold.outcomes.size(), rubric.outcomes.size()); ++i) {
        const Outcome &with = cold.outcomes[i], &without = rubric.outcomes[i];
        if (!with.status.ok() || !without.status.ok()) continue;
        differences_ms.push_back(
            ((with.ended_s - with.sent_s) - (without.ended_s - without.sent_s)) * 1e3);
      }
    }
  }
  const std::optional<double> median = MedianOf(differences_ms);
  return median && *median > 0 ? median : std::nullopt;
}

std::vector<double> PeerRatios(const std::vector<JudgeFigures>& figures, const std::string& verdict,
                               const std::string& prefix) {
  const auto ours = Find(figures, "baton", verdict, prefix);
  const auto theirs = Find(figures, "peer", verdict, prefix);
  std::vector<double> ratios;
  if (ours == figures.end() || theirs == figures.end()) return ratios;
  for (const auto& [round, item_ms] : ours->item_ms) {
    const auto found = theirs->item_ms.find(round);
    if (found != theirs->item_ms.end()) ratios.push_back(found->second / item_ms);
  }
  return ratios;
}

std::string FormatJudge(const JudgeResult& result, const JudgeOptions& options) {
  const std::vector<JudgeFigures> figures = CollectJudge(result);
  std::string out = absl::StrFormat(
      "Judge benchmark of %s: %d shared + %d own tokens, long verdicts of %d\n"
      "%d rounds of %d warm items, %d at once, and %d cold ones; seed %d\n\n",
      result.model, options.shape.shared_tokens, options.shape.own_tokens, options.verdict_tokens,
      options.rounds, options.items, options.concurrency, options.cold_items, options.seed);
  absl::StrAppendFormat(&out, "%-6s %-7s %-6s %6s %6s %9s %9s", "server", "verdict", "prefix",
                        "done", "failed", "items/s", "ms/item");
  for (const double p : options.percentiles) {
    absl::StrAppendFormat(&out, " %9s", absl::StrCat("p", p, " ms"));
  }
  absl::StrAppendFormat(&out, " %9s %8s %8s %8s %8s %8s %8s %8s\n", "TTFT p50", "cached",
                        "computed", "queue %", "prefill", "transfer", "decode", "other");
  for (const JudgeFigures& f : figures) absl::StrAppend(&out, Row(f, options.percentiles));
  absl::StrAppend(&out, "\n");
  for (const JudgeFigures& f : figures) {
    absl::StrAppend(&out, FailureLines(absl::StrCat(f.server, ", verdict ", f.verdict, ", ",
                                                    f.prefix, " prefix"),
                                       f.tally));
  }
  for (const auto& [server, compute_ms] : ComputeMs(result)) {
    if (!compute_ms) continue;
    absl::StrAppendFormat(&out, "%s computes %d tokens behind %d in %.1f ms", server,
                          options.shape.own_tokens, options.shape.shared_tokens, *compute_ms);
    for (const JudgeFigures& f : figures) {
      const std::optional<double> ratio = WarmRatio(f, compute_ms);
      if (f.server != server || !ratio) continue;
      absl::StrAppendFormat(&out, "; a warm item (%s) takes %.2f times that", f.verdict, *ratio);
    }
    absl::StrAppend(&out, "\n");
  }
  for (const JudgeFigures* f : Shared(figures)) {
    const std::vector<double> ratios = PeerRatios(figures, f->verdict, f->prefix);
    absl::StrAppendFormat(&out,
                          "peer's time / Baton's, verdict %s, %s prefix: median %.2f (%.2f to "
                          "%.2f in %d rounds)\n",
                          f->verdict, f->prefix, Percentile(ratios, 50), Percentile(ratios, 0),
                          Percentile(ratios, 100), ratios.size());
  }
  return out;
}

std::string JudgeJson(const JudgeResult& result, const JudgeOptions& options) {
  const std::vector<JudgeFigures> figures = CollectJudge(result);
  JudgeObject json = BenchHeader("judge", result.date, result.model, options.output);
  json["seed"] = options.seed;
  json["prompts"] = options.shape.texts ? "texts" : "token_ids";
  json["shared_tokens"] = options.shape.shared_tokens;
  json["own_tokens"] = options.shape.own_tokens;
  json["verdict_tokens"] = options.verdict_tokens;
  json["rounds"] = options.rounds;
  json["items"] = options.items;
  json["cold_items"] = options.cold_items;
  json["concurrency"] = options.concurrency;
  json["peer"] = JudgeObject();
  if (!options.peer.empty()) {
    json["peer"] = {{"url", options.peer},
                    {"model_id", result.peer_model},
                    {"version", result.peer_version.empty() ? JudgeObject()
                                                            : JudgeObject(result.peer_version)}};
  }
  const auto compute_ms = ComputeMs(result);
  for (const auto& [server, ms] : compute_ms) json["compute_item_ms"][server] = NumberOrNull(ms);
  json["results"] = JudgeObject::array();
  for (const JudgeFigures& f : figures) {
    json["results"].push_back(ToJson(f, compute_ms.at(f.server), options.percentiles));
  }
  json["peer_to_baton"] = JudgeObject::array();
  for (const JudgeFigures* f : Shared(figures)) {
    const std::vector<double> ratios = PeerRatios(figures, f->verdict, f->prefix);
    json["peer_to_baton"].push_back({{"verdict", f->verdict},
                                     {"prefix", f->prefix},
                                     {"median", Percentile(ratios, 50)},
                                     {"by_round", ratios}});
  }
  return Dump(json);
}

std::string JudgePlot(const JudgeResult& result, const JudgeOptions& options) {
  const std::vector<JudgeFigures> figures = CollectJudge(result);
  Chart rates{"Warm items a second", "round", "items a second", {}};
  for (const JudgeFigures& f : figures) {
    if (f.prefix != "warm") continue;
    Series series;
    series.name = absl::StrCat(f.server, ", ", f.verdict);
    for (const auto& [round, item_ms] : f.item_ms) {
      series.points.emplace_back(round + 1, 1e3 / item_ms);
    }
    rates.series.push_back(std::move(series));
  }
  std::vector<Chart> charts = {std::move(rates)};
  for (const std::string& verdict : options.verdicts) {
    Chart chart{absl::StrCat("Latency, verdict ", verdict), "milliseconds", "% of items", {}};
    for (const JudgeFigures& f : figures) {
      if (f.verdict != verdict || f.prefix == "rubric") continue;
      chart.series.push_back(Distribution(absl::StrCat(f.server, ", ", f.prefix), f.latency_ms));
    }
    charts.push_back(std::move(chart));
  }
  return RenderSvg(charts, 2);
}

}  // namespace baton::cli
