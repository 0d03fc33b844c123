// baton-prefill-worker on a paced GPU: see paced_gpu.h. Its flags are those of the real worker and
// the device's.
#include "common/worker/run_main.h"
#include "prefill_worker/options.h"
#include "prefill_worker/worker.h"
#include "tests/testing/paced_gpu.h"

int main(int argc, char** argv) {
  baton::testing::SleepPrecisely();
  baton::prefill_worker::PrefillOptions prefill;
  baton::testing::PacedGpuCosts costs;
  return baton::worker::RunMain(
      argc, argv, "Baton prefill worker on a GPU that takes time and computes nothing: for tests.",
      "prefill",
      [&](const baton::worker::WorkerOptions& options) {
        baton::worker::WorkerOptions paced = options;
        paced.make_backend = baton::testing::PacedGpuMaker(costs);
        return baton::prefill_worker::PrefillWorker::Start(paced, prefill);
      },
      [&](CLI::App& app) {
        baton::prefill_worker::AddPrefillFlags(app, prefill);
        baton::testing::AddPacedGpuFlags(app, costs);
      });
}
