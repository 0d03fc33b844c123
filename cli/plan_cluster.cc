#include "cli/plan_cluster.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/generate.h"
#include "common/base/exit_code.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace baton::cli {
namespace {

using simulator::Bottleneck;
using simulator::BottleneckText;
using simulator::CellResult;
using simulator::ClusterCell;
using simulator::ClusterPlan;
using simulator::ClusterQuestion;
using simulator::SimRequest;
using simulator::Trace;

constexpr double kGbit = 1e9 / 8;  // bytes
constexpr double kDefaultLinkGbits = 10;
constexpr absl::Duration kRouterTimeout = absl::Seconds(30);
constexpr int kGeneratedRequests = 2000;

// What a load amounts to.
struct LoadFigures {
  double seconds = 0, requests_per_s = 0, prompt_tokens_per_s = 0, answer_tokens_per_s = 0;
};
LoadFigures FiguresOf(const Trace& trace, double speed) {
  LoadFigures figures;
  double prompt = 0, answer = 0;
  for (const SimRequest& r : trace.requests) {
    prompt += r.prompt_tokens;
    answer += r.output_tokens;
  }
  const double us =
      static_cast<double>(trace.requests.back().at_us - trace.requests.front().at_us) / speed;
  figures.seconds = us * 1e-6;
  const double seconds = std::max(figures.seconds, 1e-6);
  figures.requests_per_s = static_cast<double>(trace.requests.size()) / seconds;
  figures.prompt_tokens_per_s = prompt / seconds;
  figures.answer_tokens_per_s = answer / seconds;
  return figures;
}

// Returns the bottlenecks of the objectives that the size does not keep; "-" if it keeps both.
std::string FailedBy(const ClusterCell& cell) {
  if (cell.holds()) return "-";
  std::vector<std::string> parts;
  if (!cell.first_token_holds) parts.push_back(BottleneckText(cell.first_token_bottleneck));
  if (!cell.gap_holds && cell.gap_bottleneck != Bottleneck::kNone) {
    parts.push_back(BottleneckText(cell.gap_bottleneck));
  }
  std::string text = parts[0];
  if (parts.size() > 1) absl::StrAppend(&text, "; ", parts[1]);
  return text;
}

std::string CostsText(const ClusterCosts& costs, const ClusterQuestion& question) {
  const simulator::PrefillCost& p = costs.prefill;
  const simulator::DecodeCost& d = costs.decode;
  std::string text = absl::StrFormat(
      "costs: %s\n"
      "  prefill step of up to %d tokens: %.4g ms + %.4g us a token + %.4g us a pair of tokens; "
      "pool of %d tokens\n"
      "  decode step of up to %d sequences: %.4g ms + %.4g us a sequence + %.4g us a token of "
      "context",
      costs.source, costs.prefill_step_tokens, p.fixed_us / 1e3, p.token_us, p.pair_us,
      costs.prefill_kv_tokens, costs.decode_max_num_seqs, d.fixed_us / 1e3, d.sequence_us,
      d.context_token_us);
  if (d.experts.experts > 0) {
    absl::StrAppendFormat(&text, " + %.4g us an expert of %d, %d a token", d.expert_us,
                          d.experts.experts, d.experts.per_token);
  }
  absl::StrAppendFormat(&text,
                        "; pool of %d tokens\n  links of %.4g Gbit/s (%s), %.0f bytes of KV a "
                        "token\n",
                        costs.decode_kv_tokens, question.link_bytes_per_second / kGbit,
                        question.link_bytes_per_second == costs.link_bytes_per_second
                            ? "measured"
                            : "as stated or assumed",
                        costs.kv_bytes_per_token);
  return text;
}

nlohmann::ordered_json ToJson(const ClusterCell& cell) {
  const CellResult& r = cell.result;
  return {{"prefill", cell.prefill},
          {"decode", cell.decode},
          {"price", cell.price},
          {"holds", cell.holds()},
          {"ttft_p50_ms", r.p50_ttft_s * 1e3},
          {"ttft_p99_ms", r.p99_ttft_s * 1e3},
          {"inter_token_p50_ms", r.decode.p50_gap_s * 1e3},
          {"inter_token_p99_ms", r.decode.p99_gap_s * 1e3},
          {"goodput", r.goodput},
          {"prefill_busy", r.prefill_busy},
          {"decode_slots_used", r.decode.slots_used},
          {"decode_kv_used", r.decode.kv_used},
          {"preemptions", r.decode.preemptions},
          {"unanswered", r.unanswered},
          {"fails_by", cell.holds() ? "" : FailedBy(cell)}};
}

absl::StatusOr<ClusterCosts> CostsFor(const ClusterPlanOptions& options,
                                      const engine::ServingQuestion& question) {
  if (!options.costs_of.empty()) {
    return FetchCosts(options.costs_of, options.access, kRouterTimeout);
  }
  if (!options.costs_file.empty()) return ReadCosts(options.costs_file);
  return FloorCosts(question, options.efficiency);
}

absl::Status SaveCosts(const std::string& path, const ClusterCosts& costs) {
  std::ofstream file(path, std::ios::trunc);
  file << CostsJson(costs) << "\n";
  file.close();
  if (file) return absl::OkStatus();
  return absl::UnknownError(absl::StrCat("cannot write ", path));
}

absl::StatusOr<bool> Run(const ClusterPlanOptions& options, const engine::ServingQuestion& serving,
                         bool json, std::ostream& out, std::ostream& err) {
  BATON_ASSIGN_OR_RETURN(const Trace trace, LoadOf(options));
  BATON_ASSIGN_OR_RETURN(const ClusterCosts costs, CostsFor(options, serving));
  if (!options.save_costs.empty()) {
    BATON_RETURN_IF_ERROR(SaveCosts(options.save_costs, costs));
  }
  const ClusterQuestion question = QuestionOf(options, costs);
  int simulated = 0;
  const auto progress = [&](const ClusterCell& cell) {
    err << absl::StrFormat("baton plan: simulated size %d: %d prefill and %d decode workers, %s\n",
                           ++simulated, cell.prefill, cell.decode,
                           cell.holds() ? "holds" : "does not hold")
        << std::flush;
  };
  BATON_ASSIGN_OR_RETURN(const ClusterPlan plan, simulator::PlanCluster(trace, question, progress));
  out << (json ? ClusterPlanJson(plan, trace, question, costs) + "\n"
               : ClusterPlanTable(plan, trace, question, costs))
      << std::flush;
  return plan.cheapest.has_value();
}

}  // namespace

absl::StatusOr<Trace> LoadOf(const ClusterPlanOptions& options) {
  Trace trace;
  if (options.trace.empty()) {
    simulator::LoadShape shape = options.shape;
    shape.mean_gap_s = 1 / options.rate;
    shape.requests = options.requests > 0 ? options.requests : kGeneratedRequests;
    // Before it is generated, as the microseconds of the last requests might overflow.
    const double load_s = shape.requests / options.rate / options.speed;
    if (load_s > simulator::kLongestLoad_s) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%d requests at --rate %g take about %.0f s at --speed %g, expected at most %.0f s (a "
          "week)",
          shape.requests, options.rate, load_s, options.speed, simulator::kLongestLoad_s));
    }
    trace = simulator::PoissonLoad(shape);
    trace.name = "the generated load";
  } else {
    BATON_ASSIGN_OR_RETURN(trace, simulator::ReadMooncakeTrace(options.trace, options.trace));
    if (options.requests > 0 && static_cast<int>(trace.requests.size()) > options.requests) {
      trace.requests.resize(options.requests);
    }
  }
  if (trace.requests.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(options.trace, " has no request, expected one or more lines"));
  }
  const int64_t first_us = trace.requests.front().at_us;
  for (size_t i = 0; i < trace.requests.size(); ++i) {
    SimRequest& request = trace.requests[i];
    request.at_us -= first_us;
    if (request.output_tokens > 0) continue;
    if (options.answer_tokens == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("request ", i + 1, " of ", options.trace,
                       " has no output_length above 0, expected one, or --answer-tokens for such "
                       "requests"));
    }
    request.output_tokens = options.answer_tokens;
  }
  return trace;
}

ClusterQuestion QuestionOf(const ClusterPlanOptions& options, const ClusterCosts& costs) {
  ClusterQuestion question;
  simulator::Scenario& scenario = question.scenario;
  scenario.speed = options.speed;
  scenario.routers = options.routers;
  scenario.seed = options.shape.seed;
  scenario.cost = costs.prefill;
  scenario.prefill_step_tokens = costs.prefill_step_tokens;
  scenario.prefill_most_jobs = costs.prefill_max_num_seqs;
  scenario.cache_blocks = static_cast<int>(
      std::min<int64_t>(costs.prefill_kv_tokens / simulator::kSimBlockTokens, 1 << 24));
  scenario.kv_bytes_per_token = costs.kv_bytes_per_token;
  scenario.slo_s = options.slo_ttft_ms * 1e-3;
  scenario.slo_gap_s = options.slo_inter_token_ms * 1e-3;
  simulator::DecodeWorkerShape& shape = scenario.decode.shape;
  shape.cost = costs.decode;
  shape.max_num_seqs = costs.decode_max_num_seqs;
  shape.kv_blocks = static_cast<int>(
      std::min<int64_t>(costs.decode_kv_tokens / simulator::kKvBlockTokens, 1 << 28));
  shape.kv_bytes_per_token = costs.kv_bytes_per_token;
  shape.step_tokens = costs.prefill_step_tokens;
  shape.prior = {std::max(costs.decode.fixed_us, 1e-3), costs.decode.sequence_us,
                 costs.decode.context_token_us, costs.decode.expert_us};
  // What a preempted sequence lacks is computed anew at the pace of a prefill worker.
  scenario.decode.ample_prefill = costs.prefill;
  question.link_bytes_per_second = options.link_gbits > 0            ? options.link_gbits * kGbit
                                   : costs.link_bytes_per_second > 0 ? costs.link_bytes_per_second
                                                                     : kDefaultLinkGbits * kGbit;
  question.prefill_price = options.prefill_price;
  question.decode_price = options.decode_price;
  question.most_prefill = options.most_prefill;
  question.most_decode = options.most_decode;
  question.max_local_prefill_tokens = options.max_local_prefill_tokens;
  return question;
}

std::string ClusterPlanTable(const ClusterPlan& plan, const Trace& trace,
                             const ClusterQuestion& question, const ClusterCosts& costs) {
  const simulator::Scenario& scenario = question.scenario;
  const LoadFigures load = FiguresOf(trace, scenario.speed);
  std::string text = absl::StrFormat(
      "load: %d requests in %.1f s: %.3g a second, with %.4g prompt and %.4g answer tokens a "
      "second; at most %.0f %% of the prompt tokens cached\n%s"
      "objectives: 99 %% of first tokens within %.4g ms, 99 %% of gaps between tokens within %.4g "
      "ms\n\n"
      "prefill decode   price  TTFT ms: p50      p99  gap ms: p50     p99  goodput    busy  slots "
      "    KV  fails by\n",
      trace.requests.size(), load.seconds, load.requests_per_s, load.prompt_tokens_per_s,
      load.answer_tokens_per_s, 100 * simulator::InfiniteCacheHitRate(trace),
      CostsText(costs, question), scenario.slo_s * 1e3, scenario.slo_gap_s * 1e3);
  for (size_t i = 0; i < plan.cells.size(); ++i) {
    const ClusterCell& cell = plan.cells[i];
    const CellResult& r = cell.result;
    const bool best = plan.cheapest == static_cast<int>(i);
    absl::StrAppendFormat(
        &text, "%7d %6d %7.4g %13.1f %8.1f %12.2f %7.2f %6.1f %% %5.0f %% %4.0f %% %4.0f %%  %s\n",
        cell.prefill, cell.decode, cell.price, r.p50_ttft_s * 1e3, r.p99_ttft_s * 1e3,
        r.decode.p50_gap_s * 1e3, r.decode.p99_gap_s * 1e3, 100 * r.goodput, 100 * r.prefill_busy,
        100 * r.decode.slots_used, 100 * r.decode.kv_used,
        best ? "- (the cheapest)" : FailedBy(cell));
  }
  absl::StrAppend(&text,
                  "\nbusy: of the time of prefill workers; slots, KV: of the sequences and blocks "
                  "of decode workers.\n");
  if (!plan.cheapest) {
    absl::StrAppendFormat(&text, "no size of up to %d prefill and %d decode workers keeps them\n",
                          question.most_prefill, question.most_decode);
    return text;
  }
  const ClusterCell& best = plan.cells[*plan.cheapest];
  absl::StrAppendFormat(&text, "cheapest: %d prefill and %d decode workers, price %.4g\n",
                        best.prefill, best.decode, best.price);
  if (plan.without_prefill != Bottleneck::kNone) {
    absl::StrAppend(&text, "  with one prefill worker less, ", BottleneckText(plan.without_prefill),
                    "\n");
  }
  if (plan.without_decode != Bottleneck::kNone) {
    absl::StrAppend(&text, "  with one decode worker less, ", BottleneckText(plan.without_decode),
                    "\n");
  }
  return text;
}

std::string ClusterPlanJson(const ClusterPlan& plan, const Trace& trace,
                            const ClusterQuestion& question, const ClusterCosts& costs) {
  const LoadFigures load = FiguresOf(trace, question.scenario.speed);
  nlohmann::ordered_json json;
  json["load"] = {{"requests", trace.requests.size()},
                  {"seconds", load.seconds},
                  {"requests_per_second", load.requests_per_s},
                  {"prompt_tokens_per_second", load.prompt_tokens_per_s},
                  {"answer_tokens_per_second", load.answer_tokens_per_s},
                  {"most_cached_share", simulator::InfiniteCacheHitRate(trace)}};
  json["costs"] = nlohmann::ordered_json::parse(CostsJson(costs));
  json["link_bytes_per_second"] = question.link_bytes_per_second;
  json["objectives"] = {{"ttft_p99_ms", question.scenario.slo_s * 1e3},
                        {"inter_token_p99_ms", question.scenario.slo_gap_s * 1e3}};
  json["least_prefill"] = plan.least_prefill;
  json["sizes"] = nlohmann::ordered_json::array();
  for (const ClusterCell& cell : plan.cells) json["sizes"].push_back(ToJson(cell));
  json["cheapest"] = nullptr;
  if (plan.cheapest) {
    const ClusterCell& best = plan.cells[*plan.cheapest];
    json["cheapest"] = {
        {"prefill", best.prefill},
        {"decode", best.decode},
        {"price", best.price},
        {"one_prefill_less",
         plan.without_prefill == Bottleneck::kNone ? "" : BottleneckText(plan.without_prefill)},
        {"one_decode_less",
         plan.without_decode == Bottleneck::kNone ? "" : BottleneckText(plan.without_decode)}};
  }
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

int RunClusterPlan(const ClusterPlanOptions& options, const engine::ServingQuestion& question,
                   bool json, std::ostream& out, std::ostream& err) {
  SetLogLevel(LogLevel::kError);  // of simulated workers that join
  const absl::StatusOr<bool> found = Run(options, question, json, out, err);
  if (!found.ok()) {
    err << "baton plan: " << Describe(found.status()) << std::endl;
    // Without a router, the GPU's memory is what is exhausted, so a later call fails, too.
    const bool too_large = options.costs_of.empty() && absl::IsResourceExhausted(found.status());
    return too_large ? kExitFailure : ExitCode(found.status());
  }
  if (*found) return kExitOk;
  err << "baton plan: no size keeps the objectives" << std::endl;
  return kExitFailure;
}

}  // namespace baton::cli
