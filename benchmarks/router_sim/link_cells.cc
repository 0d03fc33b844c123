#include "benchmarks/router_sim/link_cells.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "benchmarks/router_sim/decode_cells.h"
#include "common/base/status_macros.h"
#include "simulator/load_generator.h"
#include "simulator/sim_links.h"

namespace baton::simulator::sweeps {
namespace {

constexpr int kWorkers = 8, kRouters = 4;
constexpr size_t kRequests = 3000;
// The generated load says nothing of answers.
constexpr int kAnswerTokens = 64;
// A million tokens: what a GPU with 80 GB has beside an 8B model, and in host memory.
constexpr int kPoolBlocks = 65'536;

}  // namespace

absl::StatusOr<LinkSweep> MakeLinkSweep(const LinkSweepOptions& options) {
  LinkSweep sweep;
  std::vector<int> cache_blocks;
  for (const Trace* whole : options.recorded) {
    Trace trace = *whole;
    trace.requests.resize(std::min(trace.requests.size(), kRequests));
    sweep.traces.push_back(std::move(trace));
    cache_blocks.push_back(4096);
  }
  LoadShape shape;
  shape.seed = options.seed;
  shape.requests = static_cast<int>(kRequests);
  shape.mean_gap_s = 0.06;
  sweep.traces.push_back(AgentLoad(shape));
  cache_blocks.push_back(1024);
  for (Trace& trace : sweep.traces) {
    for (SimRequest& request : trace.requests) {
      if (request.output_tokens == 0) request.output_tokens = kAnswerTokens;
    }
  }
  for (const std::string& rates : options.rates) {
    absl::StatusOr<LinkMatrix> links = ParseLinkRates(rates, kWorkers, kWorkers, options.seed);
    BATON_RETURN_IF_ERROR(links.status());
    for (size_t t = 0; t < sweep.traces.size(); ++t) {
      for (const double speed : {0.7, 1.0}) {
        Cell& cell = sweep.cells.emplace_back();
        cell.trace = &sweep.traces[t];
        cell.scenario.seed = options.seed;
        cell.scenario.speed = speed;
        cell.scenario.workers = kWorkers;
        cell.scenario.routers = kRouters;
        cell.scenario.cache_blocks = cache_blocks[t];
        cell.scenario.decode.workers = kWorkers;
        cell.scenario.decode.shape = GpuShape();
        cell.scenario.decode.shape.kv_blocks = kPoolBlocks;
        cell.scenario.decode.links = *links;
        cell.note = absl::StrFormat("x%g, %s", speed, rates);
      }
    }
  }
  return sweep;
}

std::string LinkTable(const std::vector<Cell>& cells, const std::vector<NamedPolicy>& policies,
                      const std::vector<std::vector<CellResult>>& results) {
  std::string table =
      "| cell | policy | TTFT s: p50 | p99 | second token s: p50 | p99 | whole answer s: mean |\n"
      "|---|---|---|---|---|---|---|\n";
  for (size_t c = 0; c < cells.size(); ++c) {
    for (size_t p = 0; p < policies.size(); ++p) {
      const CellResult& r = results[c][p];
      absl::StrAppendFormat(&table, "| %s | %s | %.3g | %.3g | %.3g | %.3g | %s |\n",
                            CellName(cells[c]), policies[p].name, r.p50_ttft_s, r.p99_ttft_s,
                            r.p50_second_s, r.p99_second_s,
                            r.unanswered > 0 ? absl::StrCat(r.unanswered, " unanswered")
                                             : absl::StrFormat("%.3g", r.mean_answer_s));
    }
  }
  return table;
}

}  // namespace baton::simulator::sweeps
