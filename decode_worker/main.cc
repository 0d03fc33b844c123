#include "common/worker/run_main.h"
#include "decode_worker/server.h"

int main(int argc, char** argv) {
  return baton::worker::RunMain(
      argc, argv, "Baton decode worker: receives prompts' KV and generates the answers.", "decode",
      baton::decode_worker::DecodeWorker::Start);
}
