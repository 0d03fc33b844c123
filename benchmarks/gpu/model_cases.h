// Whole models through the engine: decode steps and prompts.
#ifndef BATON_BENCHMARKS_GPU_MODEL_CASES_H_
#define BATON_BENCHMARKS_GPU_MODEL_CASES_H_

#include <string>

#include "absl/status/status.h"
#include "benchmarks/gpu/shapes.h"

namespace baton::gpu_bench {

// Writes a random checkpoint of the model to `scratch`, and removes it.
absl::Status TimeSteps(const Grid& grid, const ModelShape& model, const std::string& scratch);
// Times prompts, and their matrix products alone; not of quantised models.
absl::Status TimePrefill(const Grid& grid, const ModelShape& model, const std::string& scratch);

}  // namespace baton::gpu_bench

#endif  // BATON_BENCHMARKS_GPU_MODEL_CASES_H_
