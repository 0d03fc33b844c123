// The main() that both workers share: flags, signals, drain.
#ifndef BATON_COMMON_WORKER_RUN_MAIN_H_
#define BATON_COMMON_WORKER_RUN_MAIN_H_

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/worker/options.h"

namespace CLI {
class App;
}

namespace baton::worker {

// A running worker as main() sees it. Thread-safe.
class WorkerServer {
 public:
  virtual ~WorkerServer() = default;
  virtual const std::string& address() const = 0;
  // NOT_SERVING, no new work; returns when running streams have finished or `grace` is over.
  virtual void Drain(absl::Duration grace) = 0;
  // Ends every stream now. Makes a Drain under way return.
  virtual void Stop() = 0;
};

using StartServer =
    std::function<absl::StatusOr<std::unique_ptr<WorkerServer>>(const WorkerOptions& options)>;

// Parses flags, starts the server, and waits for SIGTERM or SIGINT: the first drains, a second stops
// at once. `add_flags` adds those that only this worker has. Returns the process's exit status: 0 after a signal, 1 if it could not start.
int RunMain(int argc, char** argv, const std::string& description, const std::string& component,
            const StartServer& start, const std::function<void(CLI::App&)>& add_flags = nullptr);

}  // namespace baton::worker

#endif  // BATON_COMMON_WORKER_RUN_MAIN_H_
