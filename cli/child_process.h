// A process of our own: started, listened to, stopped, never orphaned.
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

namespace baton::cli {

// For one thread. The kernel kills the child should this process die without stopping it.
class ChildProcess {
 public:
  // Runs argv[0] with both its outputs in one pipe. `log_path`, unless empty, gets a copy of what
  // it writes.
  static absl::StatusOr<std::unique_ptr<ChildProcess>> Start(const std::string& name,
                                                             const std::vector<std::string>& argv,
                                                             const std::string& log_path);
  // Kills it if it still runs.
  ~ChildProcess();

  const std::string& name() const { return name_; }
  pid_t pid() const { return pid_; }            // -1 after its end
  int output_fd() const { return output_fd_; }  // for poll(); -1 after the end of the output
  bool running() const { return pid_ > 0; }

  // Hands whole lines of what can be read now, without blocking, to `on_line`.
  void ReadLines(const std::function<void(const std::string& line)>& on_line);
  // Notes the end of the process if it has come.
  void Reap();
  void Signal(int signal);

  // "exited with code 1", "was killed by signal 9"; empty while it runs.
  const std::string& end() const { return end_; }
  bool ended_well() const { return ended_well_; }
  const std::deque<std::string>& last_lines() const { return last_lines_; }

 private:
  ChildProcess(std::string name, pid_t pid, int output_fd, const std::string& log_path);
  void KeepLine(const std::string& line);

  const std::string name_;
  pid_t pid_;
  int output_fd_;
  std::ofstream log_;
  std::string partial_line_;
  std::deque<std::string> last_lines_;
  std::string end_;
  bool ended_well_ = false;
};

}  // namespace baton::cli

#endif  // BATON_CLI_CHILD_PROCESS_H_
