// baton-decode-worker on a paced GPU: see paced_gpu.h. Its flags are those of the real worker and
// the device's.
#include "common/worker/run_main.h"
#include "decode_worker/options.h"
#include "decode_worker/worker.h"
#include "tests/testing/paced_gpu.h"

int main(int argc, char** argv) {
  baton::testing::SleepPrecisely();
  baton::decode_worker::DecodeOptions decode;
  baton::testing::PacedGpuCosts costs;
  return baton::worker::RunMain(
      argc, argv, "Baton decode worker on a GPU that takes time and computes nothing: for tests.",
      "decode",
      [&](const baton::worker::WorkerOptions& options) {
        baton::worker::WorkerOptions paced = options;
        paced.make_backend = baton::testing::PacedGpuMaker(costs);
        return baton::decode_worker::DecodeWorker::Start(paced, decode);
      },
      [&](CLI::App& app) {
        baton::decode_worker::AddDecodeFlags(app, decode);
        baton::testing::AddPacedGpuFlags(app, costs);
      });
}
