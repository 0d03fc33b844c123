// Which routing policy answers soonest? Loads replayed against simulated workers, with the router's
// own code (index, costs, policy) beside the formulas of other routers.
//
//   router_sim [--tier decode] --conversation conversation_trace.jsonl --synthetic
//   synthetic_trace.jsonl
//              [--plot routing.svg] [--quick] [--policies baton,dynamo] [--cells]
//              [--seed 2] [--pace 0.93] [--link-rates decode:1,10,10,10 racks:25,1]
//              [--fetch 1,10,25]
//
// The traces are the Mooncake FAST'25 release (JSON lines; see router_sim/trace.h). Without them
// the generated loads alone are run. Prints Markdown: the mean TTFT of every policy in every cell,
// and by how much each policy misses the best one; of the decode tier, the mean and the 99th
// percentile of the time between tokens instead.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <deque>
#include <fstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "benchmarks/router_sim/cell.h"
#include "benchmarks/router_sim/decode_cells.h"
#include "benchmarks/router_sim/link_cells.h"
#include "benchmarks/router_sim/peer_formulas.h"
#include "benchmarks/router_sim/sweep_report.h"
#include "common/base/log.h"
#include "simulator/baton_router.h"
#include "simulator/load_generator.h"

namespace baton::simulator::sweeps {
namespace {

struct Options {
  std::string conversation, synthetic;  // paths
  std::string plot;                     // path of the SVG
  std::vector<std::string> policies;    // words of names; none: all
  bool decode = false;                  // the tier
  bool quick = false;
  bool cells = false;
  int threads = 2;
  uint64_t seed = 1;
  double pace = 1;
  std::vector<std::string> link_rates;
  std::vector<double> fetch_gbit;
};

struct Load {
  Trace trace;
  int cache_blocks = 0;
  struct Fleet {
    int workers;
    std::vector<double> speeds;
  };
  std::vector<Fleet> fleets;
};

Trace Read(const std::string& path, const char* name) {
  absl::StatusOr<Trace> trace = ReadMooncakeTrace(path, name);
  if (!trace.ok()) {
    std::fprintf(stderr, "router_sim: %s\n", trace.status().ToString().c_str());
    std::exit(1);
  }
  return *std::move(trace);
}

std::deque<Load> ReadLoads(const Options& options) {
  std::deque<Load> loads;
  const auto read = [&loads](const std::string& path, const char* name, int cache_blocks,
                             std::vector<Load::Fleet> fleets) {
    if (path.empty()) return;
    loads.push_back({Read(path, name), cache_blocks, std::move(fleets)});
  };
  read(options.conversation, "conversation", 4096,
       {{8, {0.7, 0.85, 1.0, 1.2, 1.4}}, {16, {1.4, 2.0, 2.4, 2.8}}});
  read(options.synthetic, "synthetic", 1024,
       {{8, {0.7, 0.85, 1.0, 1.2, 1.4}}, {16, {1.0, 1.4, 1.8, 2.4}}});
  LoadShape shape;
  shape.seed = options.seed;
  shape.requests = 6000;
  shape.mean_gap_s = 0.06;
  loads.push_back({AgentLoad(shape), 1024, {{8, {0.7, 1.0, 1.4, 2.0}}}});
  loads.push_back({SharedPrefixLoad(shape), 1024, {{8, {0.7, 1.0, 1.4, 2.0}}}});
  return loads;
}

std::vector<Cell> MakeCells(const std::deque<Load>& loads, const Options& options) {
  std::vector<Cell> cells;
  for (const Load& load : loads) {
    Cell cell;
    cell.trace = &load.trace;
    cell.scenario.seed = options.seed;
    cell.scenario.cache_blocks = load.cache_blocks;
    for (const Load::Fleet& fleet : load.fleets) {
      for (int routers : {1, 4, 8}) {
        for (double speed : fleet.speeds) {
          if (options.quick && (speed != 1.0 || fleet.workers != 8 || routers == 8)) continue;
          cell.scenario.workers = fleet.workers;
          cell.scenario.routers = routers;
          cell.scenario.speed = speed * options.pace;
          cells.push_back(cell);
        }
      }
    }
    // What else can differ, one thing at a time.
    cell.scenario.workers = 8;
    cell.scenario.routers = 4;
    cell.scenario.speed = options.pace;
    const auto vary = [&](std::string note, auto change) {
      Cell varied = cell;
      varied.note = std::move(note);
      change(&varied.scenario);
      cells.push_back(varied);
    };
    vary("half the cache", [](Scenario* s) { s->cache_blocks /= 2; });
    vary("twice the cache", [](Scenario* s) { s->cache_blocks *= 2; });
    vary("events 200 ms late, load each 500 ms", [](Scenario* s) {
      s->event_delay_us = 200'000;
      s->report_every_us = 500'000;
    });
    const double end_s =
        static_cast<double>(load.trace.requests.back().at_us) * 1e-6 / options.pace;
    vary("a worker killed at 1/3, back at 1/2", [end_s](Scenario* s) {
      s->outages = {{2, end_s / 3, end_s / 2}};
    });
    vary("two workers join at 1/4", [end_s](Scenario* s) {
      s->workers += 2;
      s->outages = {{s->workers - 2, 0, end_s / 4}, {s->workers - 1, 0, end_s / 4}};
    });
  }
  return cells;
}

std::vector<NamedPolicy> MakePolicies(const Options& options) {
  std::vector<NamedPolicy> policies;
  policies.push_back({"Baton", MakeBatonRouter(&SimPolicy)});
  for (const PeerKind& kind : options.decode ? DecodePeerKinds() : PeerKinds()) {
    policies.push_back({kind.name, MakePeerRouter(kind)});
  }
  if (options.policies.empty()) return policies;
  std::vector<NamedPolicy> wanted;
  for (const NamedPolicy& policy : policies) {
    const std::string name = absl::AsciiStrToLower(policy.name);
    if (std::any_of(options.policies.begin(), options.policies.end(),
                    [&name](const std::string& word) {
                      return absl::StrContains(name, absl::AsciiStrToLower(word));
                    })) {
      wanted.push_back(policy);
    }
  }
  return wanted;
}

// A plot of a dozen lines shows none.
void WritePlot(const std::string& path, const std::vector<Cell>& cells,
               const std::vector<NamedPolicy>& policies,
               const std::vector<std::vector<CellResult>>& results) {
  constexpr size_t kMostLines = 6;
  const auto summaries = Summarize(cells, static_cast<int>(policies.size()), results, kMeanTtft);
  std::vector<size_t> order(policies.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(), [&summaries](size_t a, size_t b) {
    return summaries[a].mean_ratio < summaries[b].mean_ratio;
  });
  order.resize(std::min(order.size(), kMostLines));
  std::vector<NamedPolicy> lines;
  std::vector<std::vector<CellResult>> values(results.size());
  for (size_t i : order) {
    lines.push_back(policies[i]);
    for (size_t c = 0; c < results.size(); ++c) values[c].push_back(results[c][i]);
  }
  std::ofstream(path) << SpeedPlot(cells, lines, values);
}

void PrintCells(const std::vector<Cell>& cells, const std::vector<NamedPolicy>& policies,
                const std::vector<std::vector<CellResult>>& results) {
  for (size_t c = 0; c < cells.size(); ++c) {
    std::fputs(CellTable(cells[c], policies, results[c], /*timings=*/true).c_str(), stdout);
  }
}

void RunDecodeTier(const Options& options, const std::vector<NamedPolicy>& policies) {
  std::deque<Trace> recorded;
  DecodeSweepOptions of_sweep;
  of_sweep.quick = options.quick;
  of_sweep.seed = options.seed;
  for (const auto& [path, name] : {std::pair(options.conversation, "conversation"),
                                   std::pair(options.synthetic, "synthetic")}) {
    if (path.empty()) continue;
    recorded.push_back(Read(path, name));
    of_sweep.recorded.push_back(&recorded.back());
  }
  const DecodeSweep sweep = MakeDecodeSweep(of_sweep);
  const auto results = RunCells(sweep.cells, policies, options.threads);
  std::printf(
      "Simulated decode tier: continuous batching, blocks of %d tokens, events 20 ms late, load "
      "reports each 50 ms; seed %llu. Names: load, kind of worker, share of the fleet's capacity, "
      "decode workers, routers. Baton is the router's own code; all others are re-implemented "
      "formulas at default weights, not the products. Bold: within 5 %% of the best.\n",
      kKvBlockTokens, static_cast<unsigned long long>(options.seed));
  for (const Figure& figure : {kMeanItl, kP99Itl}) {
    std::printf("\n## %s\n", figure.name);
    std::fputs(SummaryTable(sweep.cells, policies, results, figure).c_str(), stdout);
    std::fputs(FigureTable(sweep.cells, policies, results, figure).c_str(), stdout);
  }
  if (options.cells) PrintCells(sweep.cells, policies, results);
}

// Baton with and without the price of links, which is all that differs.
int RunLinks(const Options& options) {
  const auto baton = [](bool hears_links) {
    return MakeBatonRouter(&SimPolicy, {.hears_links = hears_links});
  };
  const std::vector<NamedPolicy> policies = {{"links not priced", baton(false)},
                                             {"links priced", baton(true)}};
  std::deque<Trace> recorded;
  LinkSweepOptions of_sweep;
  of_sweep.rates = options.link_rates;
  of_sweep.seed = options.seed;
  for (const auto& [path, name] : {std::pair(options.conversation, "conversation"),
                                   std::pair(options.synthetic, "synthetic")}) {
    if (path.empty()) continue;
    recorded.push_back(Read(path, name));
    of_sweep.recorded.push_back(&recorded.back());
  }
  const absl::StatusOr<LinkSweep> sweep = MakeLinkSweep(of_sweep);
  if (!sweep.ok()) {
    std::fprintf(stderr, "router_sim: %s\n", sweep.status().ToString().c_str());
    return 1;
  }
  const auto results = RunCells(sweep->cells, policies, options.threads);
  std::printf(
      "Simulated prefill and decode tier. Each pair's link has one transfer at a time; layers "
      "cross "
      "while the prompt is computed. Seed %llu. Names: load, prefill and decode workers, routers, "
      "replay speed, rates in Gbit/s.\n\n",
      static_cast<unsigned long long>(options.seed));
  std::fputs(LinkTable(sweep->cells, policies, results).c_str(), stdout);
  return 0;
}

// Baton with fetches between prefill workers: without, with holders named for the workers that it
// chooses as ever, and with the time of fetches in the price.
int RunFetches(const Options& options) {
  const auto baton = [](BatonOptions of_router) { return MakeBatonRouter(&SimPolicy, of_router); };
  const std::vector<NamedPolicy> policies = {
      {"off", baton({})},
      {"named", baton({.kv_fetch = true})},
      {"priced", baton({.kv_fetch = true, .prices_fetches = true})}};
  const std::deque<Load> loads = ReadLoads(options);
  std::vector<Cell> cells;
  for (const Load& load : loads) {
    for (const Load::Fleet& fleet : load.fleets) {
      for (const double speed : {fleet.speeds.front(), fleet.speeds.back()}) {
        for (const double gbit : options.fetch_gbit) {
          Cell cell;
          cell.trace = &load.trace;
          cell.scenario.seed = options.seed;
          cell.scenario.cache_blocks = load.cache_blocks;
          cell.scenario.workers = fleet.workers;
          cell.scenario.routers = 4;
          cell.scenario.speed = speed * options.pace;
          cell.scenario.fetch_bytes_per_second = gbit * 1e9 / 8;
          cell.note = absl::StrFormat("%g Gbit/s", gbit);
          cells.push_back(cell);
        }
      }
    }
  }
  const auto results = RunCells(cells, policies, options.threads);
  std::printf(
      "Simulated prefill tier; KV of a Llama 3 8B, 128 KiB a token; each fetch has the given rate "
      "to itself. Seed %llu. Without fetches: prompt tokens computed, of these 1,000; mean and "
      "99th percentile of TTFT in ms. Then each as a share of that, with holders named, and with "
      "fetches priced.\n\n"
      "| cell | computed | mean | p99 | named: computed | mean | p99 | priced: computed | mean | "
      "p99 |\n|---|---|---|---|---|---|---|---|---|---|\n",
      static_cast<unsigned long long>(options.seed));
  for (size_t i = 0; i < cells.size(); ++i) {
    const CellResult& off = results[i][0];
    std::printf("| %s | %lld | %.0f | %.0f |", CellName(cells[i]).c_str(),
                static_cast<long long>(off.computed_tokens / 1000), off.mean_ttft_s * 1e3,
                off.p99_ttft_s * 1e3);
    for (size_t p = 1; p < policies.size(); ++p) {
      const CellResult& on = results[i][p];
      std::printf(
          " %.2f | %.2f | %.2f |",
          static_cast<double>(on.computed_tokens) / static_cast<double>(off.computed_tokens),
          on.mean_ttft_s / off.mean_ttft_s, on.p99_ttft_s / off.p99_ttft_s);
    }
    std::printf("\n");
  }
  return 0;
}

int Run(const Options& options) {
  if (!options.fetch_gbit.empty()) return RunFetches(options);
  if (!options.link_rates.empty()) return RunLinks(options);
  const std::vector<NamedPolicy> policies = MakePolicies(options);
  if (policies.empty()) {
    std::fprintf(stderr, "router_sim: no policy has such a name\n");
    return 1;
  }
  if (options.decode) {
    RunDecodeTier(options, policies);
    return 0;
  }
  const std::deque<Load> loads = ReadLoads(options);
  const std::vector<Cell> cells = MakeCells(loads, options);
  const auto results = RunCells(cells, policies, options.threads);
  std::printf(
      "Simulated prefill tier: FIFO, unbatched, blocks of %d tokens, events 20 ms late, load "
      "reports each 50 ms; seed %llu. Baton is the router's own code; all others are "
      "re-implemented "
      "formulas at default weights, not the products. Bold: within 5 %% of the best.\n",
      kSimBlockTokens, static_cast<unsigned long long>(options.seed));
  std::fputs(SummaryTable(cells, policies, results, kMeanTtft).c_str(), stdout);
  std::fputs(FigureTable(cells, policies, results, kMeanTtft).c_str(), stdout);
  if (options.cells) PrintCells(cells, policies, results);
  if (!options.plot.empty()) WritePlot(options.plot, cells, policies, results);
  return 0;
}

int Main(int argc, char** argv) {
  CLI::App app("Routing policies over simulated workers");
  app.option_defaults()->always_capture_default();
  Options options;
  app.add_option("--conversation", options.conversation, "Mooncake's conversation_trace.jsonl");
  app.add_option("--synthetic", options.synthetic, "Mooncake's synthetic_trace.jsonl");
  app.add_option("--plot", options.plot, "Where to write the SVG (prefill tier)");
  app.add_option("--policies", options.policies, "Words of the names wanted")->delimiter(',');
  std::string tier = "prefill";
  app.add_option("--tier", tier, "Whose workers are simulated")
      ->check(CLI::IsMember({"prefill", "decode"}));
  app.add_flag("--quick", options.quick, "Fewer speeds, fleets and routers");
  app.add_flag("--cells", options.cells, "A table of all that is measured, for each cell");
  app.add_option("--threads", options.threads)->check(CLI::Range(1, 256));
  app.add_option("--seed", options.seed, "Of generated loads, ties, and whom a request comes to");
  app.add_option("--pace", options.pace,
                 "Times each replay speed (prefill tier): cells that nothing was fitted on")
      ->check(CLI::Range(0.1, 10.0));
  app.add_option("--link-rates", options.link_rates,
                 "Gbit/s between prefill and decode workers, by turns: decode:1,10,10,10, "
                 "prefill:..., pairs:... (drawn), racks:WITHIN,ACROSS. Runs these cells instead, "
                 "with and without the price of links");
  app.add_option("--fetch", options.fetch_gbit,
                 "Gbit/s of a fetch between prefill workers. Runs these cells instead, with and "
                 "without fetches")
      ->delimiter(',')
      ->check(CLI::Range(0.01, 1000.0));
  CLI11_PARSE(app, argc, argv);
  options.decode = tier == "decode";
  SetLogLevel(LogLevel::kError);  // of workers that come and go, as told to
  return Run(options);
}

}  // namespace
}  // namespace baton::simulator::sweeps

int main(int argc, char** argv) { return baton::simulator::sweeps::Main(argc, argv); }
