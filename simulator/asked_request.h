// What a simulation with decode workers knows of a request that has come.
#ifndef BATON_SIMULATOR_ASKED_REQUEST_H_
#define BATON_SIMULATOR_ASKED_REQUEST_H_

#include <cstdint>

#include "simulator/sim_router.h"

namespace baton::simulator {

// Times are those of the simulation, -1 for what has not happened.
struct AskedRequest {
  int64_t at_us = 0;
  int router = 0;
  SimRoute route;
  int failed = -1;                        // worker where it was before
  uint64_t attempt = 0;                   // at a pair
  bool prefilling = false, told = false;  // told: the router knows of this attempt's first token
  int generated_tokens = 0;               // by earlier attempts
  int64_t moved_tokens = 0, moved_us = 0;
  int64_t slot_us = 0, kv_us = 0;  // waited for, in decode workers' queues
  int64_t entered_us = 0;          // its decode worker, to have its prompt computed
  int64_t began_us = 0;            // of its prompt's computing
  int64_t first_token_us = -1, second_token_us = -1, last_token_us = -1;  // last: of the lost
};

}  // namespace baton::simulator

#endif  // BATON_SIMULATOR_ASKED_REQUEST_H_
