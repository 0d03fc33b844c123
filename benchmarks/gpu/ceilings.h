// The device's best bandwidth and matrix rate, measured in the run that is compared with them.
#ifndef BATON_BENCHMARKS_GPU_CEILINGS_H_
#define BATON_BENCHMARKS_GPU_CEILINGS_H_

#include "benchmarks/gpu/bench_device.h"
#include "benchmarks/gpu/shapes.h"

namespace baton::gpu_bench {

// Copies and reads of grid.copy_bytes, a large product in each type, and copies to and from the
// host: a row each.
void MeasureCeilings(BenchDevice& device, const Grid& grid);

}  // namespace baton::gpu_bench

#endif  // BATON_BENCHMARKS_GPU_CEILINGS_H_
