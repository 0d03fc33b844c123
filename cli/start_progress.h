// The output of the processes of `baton up`, with one line of progress for each worker that starts.
#ifndef BATON_CLI_START_PROGRESS_H_
#define BATON_CLI_START_PROGRESS_H_

#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "cli/screen.h"
#include "common/base/clock.h"

namespace baton::cli {

// One thread.
//
// On a terminal the workers that start are a block of lines below all others, drawn again when one
// of them gets on. In a log, each has the line with which it begins to load weights, and while that
// takes longer another one every 10 seconds.
class StartProgress {
 public:
  // `terminal`: the size of the terminal that `out` is; nullopt: `out` is a log.
  StartProgress(std::ostream& out, std::optional<ScreenSize> terminal,
                const Clock& clock = Clock::Real());

  // These workers start now.
  void Begin(const std::vector<std::string>& workers);
  // Prints a line that the process `name` wrote, or shows what it says of a worker's progress.
  void Line(const std::string& name, const std::string& line);
  // Prints a line of no process.
  void Print(absl::string_view line);
  // No worker starts any more: what is left of the block is erased.
  void End();

 private:
  struct Worker {
    std::string name;
    int percent = -1;  // of its weights that are loaded; -1: none yet
    absl::Duration next = -absl::InfiniteDuration();  // a log: when another line may be printed
  };

  void Erase();
  void Draw();
  std::string Text(const Worker& worker) const;

  std::ostream& out_;
  const std::optional<ScreenSize> terminal_;
  const Clock& clock_;
  std::vector<Worker> starting_;
  int drawn_ = 0;  // lines of the block on the terminal
};

}  // namespace baton::cli

#endif  // BATON_CLI_START_PROGRESS_H_
