// baton-decode-worker on a paced device: see paced_backend.h. Its flags are those of the real
// worker and the device's.
#include "common/worker/run_main.h"
#include "decode_worker/options.h"
#include "decode_worker/worker.h"
#include "tests/testing/paced_backend.h"

int main(int argc, char** argv) {
  baton::decode_worker::DecodeOptions decode;
  baton::testing::PacedCosts costs;
  return baton::worker::RunMain(
      argc, argv, "Baton decode worker on a device whose steps take a modelled time: for tests.",
      "decode",
      [&](const baton::worker::WorkerOptions& options) {
        baton::worker::WorkerOptions paced = options;
        paced.make_backend = baton::testing::PacedMaker(costs);
        return baton::decode_worker::DecodeWorker::Start(paced, decode);
      },
      [&](CLI::App& app) {
        baton::decode_worker::AddDecodeFlags(app, decode);
        baton::testing::AddPacedFlags(app, costs);
      });
}
