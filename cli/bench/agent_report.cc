#include "cli/bench/agent_report.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/bench/json.h"
#include "cli/bench/plot.h"

namespace baton::cli {
namespace {

void AddTurn(const AgentTurn& turn, AgentFigures* figures) {
  const Outcome& outcome = turn.outcome;
  if (!figures->tally.Add(outcome)) return;
  if (outcome.has_first()) figures->ttft_ms.push_back(TimesOf(outcome).ttft_ms);
  figures->recomputed_tokens +=
      std::max(0, turn.known_tokens - outcome.usage.cached_prompt_tokens());
}

nlohmann::ordered_json FiguresJson(const AgentFigures& f, const std::vector<double>& percentiles) {
  nlohmann::ordered_json json = TallyJson(f.tally);
  json["hit_rate"] = f.tally.hit_rate();
  json["recomputed_tokens"] = f.recomputed_tokens;
  json["ttft_ms"] = SummaryJson(f.ttft_ms, percentiles);
  return json;
}

std::string FiguresRow(const std::string& name, const AgentFigures& f,
                       const std::vector<double>& percentiles) {
  std::string row = absl::StrFormat("%-6s %6d %6d %9d %9d %7.1f %10d", name, f.tally.completed,
                                    f.tally.failed, f.tally.prompt_tokens, f.tally.cached_tokens,
                                    100 * f.tally.hit_rate(), f.recomputed_tokens);
  for (const double p : percentiles) {
    absl::StrAppendFormat(&row, " %9.1f", Percentile(f.ttft_ms, p));
  }
  return row + "\n";
}

}  // namespace

AgentFigures CollectAgent(const AgentPass& pass) {
  AgentFigures figures;
  for (const AgentTurn& turn : pass.turns) AddTurn(turn, &figures);
  return figures;
}

std::map<int, AgentFigures> CollectTurns(const AgentPass& pass) {
  std::map<int, AgentFigures> figures;
  for (const AgentTurn& turn : pass.turns) AddTurn(turn, &figures[turn.turn]);
  return figures;
}

std::string FormatAgent(const AgentResult& result, const AgentOptions& options) {
  std::string out = absl::StrFormat("Agent benchmark of %s: %d conversations", result.model,
                                    result.conversations);
  if (result.shared_tokens > 0) {
    absl::StrAppendFormat(&out, " behind %d shared tokens", result.shared_tokens);
  }
  absl::StrAppendFormat(&out, "; seed %d\n", options.conversations.seed);
  if (result.turns_left_out > 0) {
    absl::StrAppendFormat(&out, "%d turns are left out: the model's context is too short\n",
                          result.turns_left_out);
  }
  for (const AgentPass& pass : result.passes) {
    absl::StrAppendFormat(&out, "\nretention %s: %.1f s", pass.retention, pass.duration_s);
    if (pass.turns_skipped > 0) {
      absl::StrAppendFormat(&out, "; %d turns not sent after a failed one", pass.turns_skipped);
    }
    absl::StrAppendFormat(&out, "\n%-6s %6s %6s %9s %9s %7s %10s", "turn", "done", "failed",
                          "prompt", "cached", "hits %", "recomputed");
    for (const double p : options.percentiles) {
      absl::StrAppendFormat(&out, " %9s", absl::StrCat("TTFT p", p));
    }
    absl::StrAppend(&out, "\n");
    for (const auto& [turn, figures] : CollectTurns(pass)) {
      absl::StrAppend(&out, FiguresRow(absl::StrCat(turn + 1), figures, options.percentiles));
    }
    const AgentFigures all = CollectAgent(pass);
    absl::StrAppend(&out, FiguresRow("all", all, options.percentiles),
                    FailureLines(absl::StrCat("retention ", pass.retention), all.tally));
  }
  return absl::StrCat(out, "Tokens; TTFT in milliseconds.\n");
}

std::string AgentJson(const AgentResult& result, const AgentOptions& options) {
  const ConversationOptions& asked = options.conversations;
  nlohmann::ordered_json json = BenchHeader("agent", result.date, result.model, options.output);
  json["seed"] = asked.seed;
  json["conversations"] = result.conversations;
  json["turns"] = asked.turns;
  json["turns_left_out"] = result.turns_left_out;
  if (asked.trace.empty()) {
    json["tools_tokens"] = asked.tools_tokens;
    json["user_tokens"] = asked.user_tokens;
    json["answer_tokens"] = asked.answer_tokens;
    json["range_ratio"] = asked.range_ratio;
    json["think_time_s"] = asked.think_s;
  } else {
    json["trace"] = asked.trace;
    json["trace_length_divisor"] = asked.length_divisor;
    json["min_turns"] = asked.min_turns;
  }
  json["request_rate"] = std::isfinite(asked.rate) ? nlohmann::ordered_json(asked.rate)
                                                   : nlohmann::ordered_json("inf");
  json["max_concurrency"] = options.max_concurrency;
  json["retention_priority"] = options.retention_priority;
  json["retention_ttl_ms"] = options.retention_ttl_ms;
  json["results"] = nlohmann::ordered_json::array();
  for (const AgentPass& pass : result.passes) {
    nlohmann::ordered_json of_pass = {{"retention", pass.retention},
                                      {"duration_s", pass.duration_s},
                                      {"turns_skipped", pass.turns_skipped}};
    of_pass.update(FiguresJson(CollectAgent(pass), options.percentiles));
    of_pass["turns"] = nlohmann::ordered_json::array();
    for (const auto& [turn, figures] : CollectTurns(pass)) {
      nlohmann::ordered_json of_turn = {{"turn", turn + 1}};
      of_turn.update(FiguresJson(figures, options.percentiles));
      of_pass["turns"].push_back(std::move(of_turn));
    }
    json["results"].push_back(std::move(of_pass));
  }
  return Dump(json);
}

std::string AgentPlot(const AgentResult& result, const AgentOptions& options) {
  Chart ttft{"Time to first token by turn", "turn", "milliseconds", {}};
  Chart hits{"Prompt tokens found in a prefix cache", "turn", "%", {}};
  Chart all{"Time to first token", "milliseconds", "% of turns", {}};
  for (const AgentPass& pass : result.passes) {
    const std::map<int, AgentFigures> turns = CollectTurns(pass);
    for (const double p : options.percentiles) {
      Series series;
      series.name = absl::StrCat("p", p, ", retention ", pass.retention);
      for (const auto& [turn, f] : turns) {
        series.points.emplace_back(turn + 1, Percentile(f.ttft_ms, p));
      }
      ttft.series.push_back(std::move(series));
    }
    Series rates;
    rates.name = absl::StrCat("hit rate, retention ", pass.retention);
    for (const auto& [turn, f] : turns)
      rates.points.emplace_back(turn + 1, 100 * f.tally.hit_rate());
    hits.series.push_back(std::move(rates));
    all.series.push_back(
        Distribution(absl::StrCat("retention ", pass.retention), CollectAgent(pass).ttft_ms));
  }
  return RenderSvg({ttft, hits, all}, 3);
}

}  // namespace baton::cli
