// A child process: started, listened to, stopped, never orphaned.
#ifndef BATON_CLI_CHILD_PROCESS_H_
#define BATON_CLI_CHILD_PROCESS_H_

#include <sys/types.h>

#include <deque>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace baton::cli {

// For use by one thread, which must outlive the process: the kernel kills the child when the thread
// that started it ends.
class ChildProcess {
 public:
  // Runs argv[0] with both its outputs in one pipe. `log_path`, unless empty, gets a copy of what
  // ReadLines() reads.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const std::string& name,
                                                             const std::vector<std::string>& argv,
                                                             const std::string& log_path);
  // Runs argv[0]; both its outputs are appended to `log_path`. There is nothing to read.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> StartLogged(
      const std::string& name, const std::vector<std::string>& argv, const std::string& log_path);
  // Kills and reaps it if it still runs.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  const std::string& name() const { return name_; }
  pid_t pid() const { return pid_; }
  int output_fd() const { return output_fd_; }  // for poll(); -1 after the end of the output
  int end_fd() const { return pidfd_; }  // for poll(): can be read once the process has ended

  // Hands whole lines of what can be read now, without blocking, to `on_line`.
  void ReadLines(const std::function<void(const std::string& line)>& on_line);
  // Does nothing to a process that has ended.
  void Signal(int signal);
  // Waits for the end and reaps it. False if the process still runs at the end of `limit`.
  bool AwaitEnd(absl::Duration limit);
  bool running() { return !AwaitEnd(absl::ZeroDuration()); }

  // "exited with code 1", "was killed by signal 9"; empty while it runs.
  const std::string& end() const { return end_; }
  bool ended_well() const { return ended_well_; }
  // The last lines of its output: of what ReadLines() has read, or of the log.
  std::vector<std::string> last_lines() const;

 private:
  ChildProcess(std::string name, pid_t pid, int pidfd, int output_fd, std::string log_path);
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Fork(const std::string& name,
                                                            const std::vector<std::string>& argv,
                                                            int child_fd, int output_fd,
                                                            const std::string& log_path);
  void KeepLine(const std::string& line);

  const std::string name_;
  const pid_t pid_;
  const int pidfd_;
  int output_fd_;
  const bool logged_;
  const std::string log_path_;
  std::ofstream log_;  // copy of what is read from the pipe
  std::string partial_line_;
  std::deque<std::string> last_lines_;
  std::string end_;
  bool ended_well_ = false;
};

}  // namespace baton::cli

#endif  // BATON_CLI_CHILD_PROCESS_H_
