// The main() that both workers share: flags, signals, drain.
#ifndef BATON_COMMON_WORKER_RUN_MAIN_H_
#define BATON_COMMON_WORKER_RUN_MAIN_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/worker/options.h"
#include "common/worker/worker.h"

namespace CLI {
class App;
}

namespace baton::worker {

using StartWorker =
    std::function<absl::StatusOr<std::unique_ptr<Worker>>(const WorkerOptions& options)>;

// Parses flags, starts the worker, and waits for SIGTERM or SIGINT: the first drains, a second
// stops at once. `component` is the role: the program is baton-COMPONENT-worker. `add_flags` adds
// the flags that only this worker has. Returns the process's exit code: kExitOk after a signal,
// that of ExitCodeOfStart if the worker could not start, kExitUsage for another wrong flag.
int RunMain(int argc, char** argv, const std::string& description, const std::string& component,
            const StartWorker& start, const std::function<void(CLI::App&)>& add_flags = nullptr);

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_RUN_MAIN_H_
