// The part of Simulate (simulation.h) for cells with decode workers, alone or behind prefill
// workers. A request is sent to its pair at once. It enters the decode worker when that has room;
// then its prompt is computed, its KV moved, and it runs:
//
//   Choose ─▶ decode queue ─▶ prefill (queue) ─first token─▶ transfer ─▶ steps ─▶ last token
//
// A prompt whose route names no prefill worker is computed in the decode worker's own steps, if
// DecodeWorkerShape::computes_prompts; else at DecodeTier::ample_prefill without a queue.
#ifndef BATON_SIMULATOR_DECODE_SIMULATION_H_
#define BATON_SIMULATOR_DECODE_SIMULATION_H_

#include "simulator/simulation.h"

namespace baton::simulator {

// REQUIRES: scenario.decode.workers > 0; no outages of prefill workers; every request fits into
// every decode worker's pool.
CellResult SimulateDecode(const Trace& trace, const Scenario& scenario,
                          const MakeRouter& make_router);

}  // namespace baton::simulator

#endif  // BATON_SIMULATOR_DECODE_SIMULATION_H_
