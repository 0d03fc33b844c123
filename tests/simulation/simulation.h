// A whole cluster in one thread: what a seed makes of it, and whether it kept its promises.
#ifndef BATON_TESTS_SIMULATION_SIMULATION_H_
#define BATON_TESTS_SIMULATION_SIMULATION_H_

#include <cstdint>
#include <map>
#include <string>

#include "tests/simulation/bug.h"
#include "tests/simulation/clients.h"
#include "tests/simulation/world.h"

namespace baton::simulation {

struct Outcome {
  std::string failure;  // empty: all promises were kept
  Clients::Counts clients;
  std::map<std::string, int> failed_by_reason;  // of calls to routers
  int resumed = 0;  // Decode calls that went on from tokens of the answer
  int64_t preemptions = 0;
  int64_t accepted_drafts = 0;
  int64_t events = 0;
  Micros time = 0;
  bool ok() const { return failure.empty(); }
  void Add(const Outcome& other);
};

// The same for the same arguments, on every machine. Promises:
// - After every turn of every loop, pool, cache and scheduler agree with themselves and each other.
// - Every answer is a prefix of the oracle's at all times, in tokens and in text, and all of it
//   where it is finished; a failure never looks like a finish.
// - Every stream, transfer and answer has exactly one end.
// - A call fails with a reason that docs/errors.md has for what was broken or bounded: where
// nothing
//   was, or where workers only died while others lived, none fails but what can never fit.
// - Every request ends by its deadline; with time enough to outlive all faults, and a client that
//   asks again where it may, it ends well.
// - Afterwards, within bounded time, nothing runs, waits, is active or held anywhere, and what
// deaths
//   took from a retry budget is back.
Outcome Simulate(uint64_t seed, Bug bug = Bug::kNone);

// A broken invariant ends the process: from now on it says the seed first.
void SaySeedOnAbort();

}  // namespace baton::simulation

#endif  // BATON_TESTS_SIMULATION_SIMULATION_H_
