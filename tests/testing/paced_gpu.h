// A GPU that takes its time and computes nothing: every kernel, copy and node of a graph occupies
// its stream for a given time, so a worker launches, waits, gathers, copies and sends as it does on
// a real one, while its cores are free. For benchmarks of what lies around the kernels. Answers
// mean nothing: every draw gives token 0.
//
// Copies of up to 64 KiB move their bytes (batches, tables, the probe of a shared pool); longer
// ones, those of weights and KV, do not.
#ifndef BATON_TESTS_TESTING_PACED_GPU_H_
#define BATON_TESTS_TESTING_PACED_GPU_H_

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "common/backend/backend.h"
#include "common/backend/backend_options.h"
#include "common/backend/cuda/runtime/runtime.h"
#include "tests/testing/paced_backend.h"

namespace baton::testing {

struct PacedGpuCosts {
  double kernel_us = 0;    // of a step that is launched kernel by kernel, as prompts are
  double node_us = 0;      // of a recorded step
  double copy_us = 0;      // of each copy and each kernel of KV's way, besides the bytes
  double host_gb_s = 1;    // between the device and the host
  double peer_gb_s = 1;    // from another device's memory
  double memory_gb = 0.5;  // of the device
};

// Sleeps of the calling thread, and of those that it starts from now on, end within microseconds of
// their time, where Linux adds 50. For the first line of main().
void SleepPrecisely();

// Adds --device-gpu, which is required. `costs` outlives `app`.
void AddPacedGpuFlags(CLI::App& app, PacedGpuCosts& costs);

// `timer` outlives the runtime and its events. Other processes of the same user can open its
// memory.
std::unique_ptr<backend::cuda::Runtime> MakePacedRuntime(const PacedGpuCosts& costs,
                                                         const PaceTimer& timer);

// For WorkerOptions.make_backend: the CUDA backend on such a device.
std::function<absl::StatusOr<std::unique_ptr<backend::Backend>>(const backend::BackendOptions&)>
PacedGpuMaker(const PacedGpuCosts& costs, const PaceTimer& timer = PaceTimer::Real());

}  // namespace baton::testing

#endif  // BATON_TESTS_TESTING_PACED_GPU_H_
