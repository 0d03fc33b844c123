// Runs seeds and says what came of them:  baton-simulation --first 1 --seeds 10000
#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>

#include "common/base/log.h"
#include "tests/simulation/simulation.h"

int main(int argc, char** argv) {
  CLI::App app("Baton's cluster under a simulated clock and network, seed after seed");
  uint64_t first = 1;
  uint64_t count = 10'000;
  uint64_t max_failures = 10;
  bool verbose = false;
  app.add_option("--first", first, "the first seed")->capture_default_str();
  app.add_option("--seeds", count, "how many")->capture_default_str();
  app.add_option("--max-failures", max_failures, "stop after so many")->capture_default_str();
  app.add_flag("--verbose", verbose, "one line a seed, and what the workers log");
  CLI11_PARSE(app, argc, argv);
  if (!verbose) baton::SetLogLevel(baton::LogLevel::kError);
  baton::simulation::SaySeedOnAbort();
  baton::simulation::Outcome total;
  uint64_t failures = 0;
  uint64_t seed = first;
  const auto begin = std::chrono::steady_clock::now();
  for (; seed < first + count && failures < max_failures; ++seed) {
    if (verbose) std::cout << "seed " << seed << std::endl;
    const baton::simulation::Outcome outcome = baton::simulation::Simulate(seed);
    if (!outcome.ok()) {
      ++failures;
      std::cout << "seed " << seed << ": " << outcome.failure << std::endl;
    }
    total.Add(outcome);
  }
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::cout << seed - first << " seeds in " << seconds << " s, " << failures
            << " failed; requests: " << total.clients.finished << " finished, "
            << total.clients.failed << " failed (" << total.clients.never_fit << " can never fit, "
            << total.clients.late << " late), " << total.clients.cancelled << " cancelled; "
            << total.clients.calls << " calls, " << total.clients.lost_routers
            << " lost with their router, " << total.clients.cut << " cut after tokens; "
            << total.resumed << " resumptions, " << total.clients.heartbeats << " heartbeats, "
            << total.preemptions << " preemptions, " << total.clients.tokens << " tokens, "
            << total.events << " events, " << total.time / baton::simulation::kSecond
            << " s simulated" << std::endl;
  for (const auto& [reason, calls] : total.failed_by_reason) {
    std::cout << "  calls failed with " << reason << ": " << calls << std::endl;
  }
  return failures == 0 ? 0 : 1;
}
