#include "common/worker/run_main.h"
#include "decode_worker/options.h"
#include "decode_worker/worker.h"

int main(int argc, char** argv) {
  baton::decode_worker::DecodeOptions decode;
  return baton::worker::RunMain(
      argc, argv, "Baton decode worker: receives prompts' KV and generates the answers.", "decode",
      [&decode](const baton::worker::WorkerOptions& options) {
        return baton::decode_worker::DecodeWorker::Start(options, decode);
      },
      [&decode](CLI::App& app) { baton::decode_worker::AddDecodeFlags(app, decode); });
}
