#include "common/worker/run_main.h"
#include "prefill_worker/worker.h"

int main(int argc, char** argv) {
  return baton::worker::RunMain(
      argc, argv, "Baton prefill worker: computes prompts and sends their KV to decode workers.",
      "prefill", baton::prefill_worker::PrefillWorker::Start);
}
