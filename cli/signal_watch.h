// Ctrl-C and SIGTERM as something to poll for, instead of something that happens anywhere.
#ifndef BATON_CLI_SIGNAL_WATCH_H_
#define BATON_CLI_SIGNAL_WATCH_H_

#include <functional>
#include <thread>

namespace baton::cli {

// Blocks SIGINT and SIGTERM for this thread and those it starts. Call before the first thread.
void BlockStopSignals();

// A descriptor that can be read when one of them has come; the caller closes it.
int OpenStopSignalFd();

// Calls `on_signal` once, on its own thread, when one of them comes while it lives.
class SignalWatch {
 public:
  explicit SignalWatch(std::function<void()> on_signal);
  ~SignalWatch();

 private:
  int signal_fd_;
  int done_fd_;
  std::thread thread_;
};

}  // namespace baton::cli

#endif  // BATON_CLI_SIGNAL_WATCH_H_
