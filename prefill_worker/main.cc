#include "common/worker/run_main.h"
#include "prefill_worker/options.h"
#include "prefill_worker/worker.h"

int main(int argc, char** argv) {
  baton::prefill_worker::PrefillOptions prefill;
  return baton::worker::RunMain(
      argc, argv, "Baton prefill worker: computes prompts and sends their KV to decode workers.",
      "prefill",
      [&prefill](const baton::worker::WorkerOptions& options) {
        return baton::prefill_worker::PrefillWorker::Start(options, prefill);
      },
      [&prefill](CLI::App& app) { baton::prefill_worker::AddPrefillFlags(app, prefill); });
}
