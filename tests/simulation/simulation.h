// A whole cluster in one thread: what a seed makes of it, and whether it kept its promises.
#ifndef BATON_TESTS_SIMULATION_SIMULATION_H_
#define BATON_TESTS_SIMULATION_SIMULATION_H_

#include <cstdint>
#include <map>
#include <string>

#include "tests/simulation/world.h"

namespace baton::simulation {

// A bug planted, to see that it is found.
enum class Bug {
  kNone,
  kCopiesNothing,     // copy-on-write that copies nothing
  kChecksumSkipped,   // frames are believed as they come
  kPinsIgnored,       // blocks are reused while their bytes are still being sent
  kPinsLeaked,        // some blocks are never given back once they are sent
  kCommitUnheard,     // a transfer's end is lost, and its request waits for ever
  kResumeLosesToken,  // a resumed answer goes on one token too late
};

struct Outcome {
  std::string failure;  // empty: all promises were kept
  int finished = 0;
  int failed = 0;
  std::map<std::string, int> failed_by_reason;
  int cancelled = 0;
  int resumed = 0;
  int64_t tokens = 0;
  int64_t preemptions = 0;
  int64_t events = 0;
  Micros time = 0;
  bool ok() const { return failure.empty(); }
};

// The same for the same arguments, on every machine. Promises:
// - After every turn of every loop, pool, cache and scheduler agree with themselves and each other.
// - Every answer is a prefix of the oracle's at all times, and all of it where it is finished; a
//   failure never looks like a finish.
// - Every stream and transfer has exactly one end.
// - Every request ends by its deadline; with time enough to outlive all faults, it ends well.
// - Afterwards, within bounded time, nothing runs, waits, is active or held anywhere.
Outcome Simulate(uint64_t seed, Bug bug = Bug::kNone);

// A broken invariant ends the process: from now on it says the seed first.
void SaySeedOnAbort();

}  // namespace baton::simulation

#endif  // BATON_TESTS_SIMULATION_SIMULATION_H_
