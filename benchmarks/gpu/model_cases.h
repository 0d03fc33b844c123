// Whole models through the engine: decode steps and prompts.
#ifndef BATON_BENCHMARKS_GPU_MODEL_CASES_H_
#define BATON_BENCHMARKS_GPU_MODEL_CASES_H_

#include <string>

#include "absl/status/status.h"
#include "benchmarks/gpu/shapes.h"

namespace baton::gpu_bench {

// A random checkpoint of the model is written to `scratch`, and removed.
absl::Status TimeSteps(const Grid& grid, const ModelShape& model, const std::string& scratch);
// And the prompts' matrix products, each measured alone. Not of quantised models.
absl::Status TimePrefill(const Grid& grid, const ModelShape& model, const std::string& scratch);

}  // namespace baton::gpu_bench

#endif  // BATON_BENCHMARKS_GPU_MODEL_CASES_H_
