// Seeded loads with the two shapes of sharing that matter to a router, so that the simulator needs
// no file: conversations that grow, and system prompts that many users share.
#ifndef BATON_SIMULATOR_LOAD_GENERATOR_H_
#define BATON_SIMULATOR_LOAD_GENERATOR_H_

#include <cstdint>

#include "simulator/trace.h"

namespace baton::simulator {

struct LoadShape {
  int requests = 4000;
  double mean_gap_s = 0.25;  // between requests, all sessions together; Poisson
  uint64_t seed = 1;
  // PoissonLoad's lengths are in these ranges, whose ends are not.
  int least_prompt = 64, prompt_end = 2048;
  int least_answer = 16, answer_end = 512;
};

// Agents: a session begins with one of a few long tool descriptions (by Zipf), then takes turns,
// each the whole conversation so far and some new tokens, seconds apart. One in six turns
// branches off an earlier one, as agents do that try things in parallel.
Trace AgentLoad(const LoadShape& shape);

// Many users, each with one question behind one of `shape.requests / 40` system prompts, popular by
// Zipf; of which one in three is also behind a document of the user's company.
Trace SharedPrefixLoad(const LoadShape& shape);

// ---- Loads with answers, for decode workers. Only the first shares prefixes.

// Conversations: each turn's prompt is the one before it, its answer and some new tokens, and comes
// `mean_think_s` after the time that an answer of that length should take. About so many requests.
Trace SessionLoad(const LoadShape& shape, double mean_think_s = 8);

// Prompts and answers of the shape's lengths, each factor of two as likely.
Trace PoissonLoad(const LoadShape& shape);

// `at_once` requests at one time, again and again.
Trace BurstLoad(const LoadShape& shape, int at_once);

// Most answers are short, and most tokens are in long ones: Pareto from 32 tokens on, exponent 1.2,
// cut off at 8,192.
Trace HeavyTailLoad(const LoadShape& shape);

}  // namespace baton::simulator

#endif  // BATON_SIMULATOR_LOAD_GENERATOR_H_
