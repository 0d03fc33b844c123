// One real process of a cluster under test: started, signalled, awaited, never orphaned.
#ifndef BATON_TESTS_CLUSTER_FAULTS_PROCESS_H_
#define BATON_TESTS_CLUSTER_FAULTS_PROCESS_H_

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace baton::testing {

// For one thread, which must outlive the process: the kernel kills the child when the thread that
// started it ends, so that no child survives a test, however that ends.
class Process {
 public:
  // Runs argv[0]; both its outputs are appended to `log_path`.
  static absl::StatusOr<std::unique_ptr<Process>> Start(const std::vector<std::string>& argv,
                                                        const std::string& log_path);
  // Kills and reaps it if it still runs.
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  // Of a process that has ended: nothing.
  void Signal(int signal);
  // Waits for its end and reaps it. False if it still runs at the end of `limit`.
  bool AwaitEnd(absl::Duration limit);
  bool running() { return !AwaitEnd(absl::ZeroDuration()); }
  // Once it has ended: "exited with code 0", "was killed by signal 9".
  const std::string& end() const { return end_; }
  bool ended_well() const { return ended_well_; }

 private:
  Process(pid_t pid, int pidfd) : pid_(pid), pidfd_(pidfd) {}

  const pid_t pid_;
  int pidfd_;
  std::string end_;
  bool ended_well_ = false;
};

}  // namespace baton::testing

#endif  // BATON_TESTS_CLUSTER_FAULTS_PROCESS_H_
