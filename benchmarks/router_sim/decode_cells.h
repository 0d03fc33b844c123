// The cells of the decode tier's sweep: loads by fleets by routers by how much of the fleet they
// take, and what else can differ.
#ifndef BATON_BENCHMARKS_ROUTER_SIM_DECODE_CELLS_H_
#define BATON_BENCHMARKS_ROUTER_SIM_DECODE_CELLS_H_

#include <deque>
#include <vector>

#include "benchmarks/router_sim/cell.h"

namespace baton::simulator::sweeps {

// A step costs so much whatever is in it: an 8B model on a small GPU.
DecodeWorkerShape GpuShape();
// Each sequence counts: the same on a CPU.
DecodeWorkerShape CpuShape();

// Tokens a second of a worker that is full: with as many sequences as it takes, or as the pool
// holds of the trace's requests in the middle of their answers.
double TokensPerSecond(const DecodeWorkerShape& shape, const Trace& trace);

struct DecodeSweep {
  std::deque<Trace> traces;  // of the cells
  std::vector<Cell> cells;
};

struct DecodeSweepOptions {
  bool quick = false;
  uint64_t seed = 1;
  // Traces whose beginnings are replayed, too; those without answers are not.
  std::vector<const Trace*> recorded;
};
DecodeSweep MakeDecodeSweep(const DecodeSweepOptions& options);

}  // namespace baton::simulator::sweeps

#endif  // BATON_BENCHMARKS_ROUTER_SIM_DECODE_CELLS_H_
