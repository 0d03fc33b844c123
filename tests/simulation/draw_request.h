// What clients ask for, drawn.
#ifndef BATON_TESTS_SIMULATION_DRAW_REQUEST_H_
#define BATON_TESTS_SIMULATION_DRAW_REQUEST_H_

#include "tests/simulation/oracle.h"
#include "tests/simulation/world.h"

namespace baton::simulation {

struct RequestDraw {
  Micros earliest = 0;
  Micros spread = 0;  // over which requests begin
  int families = 1;   // of prompts that begin alike
  bool calm = false;  // time enough, and clients that read
};

RequestSpec DrawRequest(Random& random, const RequestDraw& draw);

}  // namespace baton::simulation

#endif  // BATON_TESTS_SIMULATION_DRAW_REQUEST_H_
