// baton-prefill-worker on a paced device: see paced_backend.h. Its flags are those of the real
// worker and the device's.
#include "common/worker/run_main.h"
#include "prefill_worker/options.h"
#include "prefill_worker/worker.h"
#include "tests/testing/paced_backend.h"

int main(int argc, char** argv) {
  baton::prefill_worker::PrefillOptions prefill;
  baton::testing::PacedCosts costs;
  return baton::worker::RunMain(
      argc, argv, "Baton prefill worker on a device whose steps take a modelled time: for tests.",
      "prefill",
      [&](const baton::worker::WorkerOptions& options) {
        baton::worker::WorkerOptions paced = options;
        paced.make_backend = baton::testing::PacedMaker(costs);
        return baton::prefill_worker::PrefillWorker::Start(paced, prefill);
      },
      [&](CLI::App& app) {
        baton::prefill_worker::AddPrefillFlags(app, prefill);
        baton::testing::AddPacedFlags(app, costs);
      });
}
