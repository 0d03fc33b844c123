// Seeded loads with the two shapes of sharing that matter to a router, so that the simulator needs
// no file: conversations that grow, and system prompts that many users share.
#ifndef BATON_BENCHMARKS_ROUTER_SIM_LOAD_GENERATOR_H_
#define BATON_BENCHMARKS_ROUTER_SIM_LOAD_GENERATOR_H_

#include <cstdint>

#include "benchmarks/router_sim/trace.h"

namespace baton::benchmarks {

struct LoadShape {
  int requests = 4000;
  double mean_gap_s = 0.25;  // between requests, all sessions together; Poisson
  uint64_t seed = 1;
};

// Agents: a session begins with one of a few long tool descriptions (by Zipf), then takes turns,
// each the whole conversation so far and some new tokens, seconds apart. One in six turns
// branches off an earlier one, as agents do that try things in parallel.
Trace AgentLoad(const LoadShape& shape);

// Many users, each with one question behind one of `shape.requests / 40` system prompts, popular by
// Zipf; of which one in three is also behind a document of the user's company.
Trace SharedPrefixLoad(const LoadShape& shape);

}  // namespace baton::benchmarks

#endif  // BATON_BENCHMARKS_ROUTER_SIM_LOAD_GENERATOR_H_
