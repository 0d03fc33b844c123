// SIGTERM and SIGINT as events. Every binary treats them the same way: the first signal starts a
// drain (no new work, running work finishes), the second one stops at once. Both ways end cleanly:
// calls get a status, threads are joined, and a server exits with code 0.
#ifndef BATON_COMMON_BASE_SHUTDOWN_SIGNAL_H_
#define BATON_COMMON_BASE_SHUTDOWN_SIGNAL_H_

#include <functional>
#include <thread>

#include "absl/time/time.h"

namespace baton {

// What a write to a closed pipe does: SIGPIPE stays as it is (it ends the process, as in any shell
// pipeline), or is ignored, so that a server survives the reader of its log.
enum class BrokenPipe { kDefault, kIgnore };

// One process may have several; each signal is reported by one of them. Thread-safe.
class ShutdownSignal {
 public:
  // Blocks both signals in this thread and in those that it starts later: construct the first one
  // before any thread.
  explicit ShutdownSignal(BrokenPipe broken_pipe = BrokenPipe::kIgnore);
  ~ShutdownSignal();
  ShutdownSignal(const ShutdownSignal&) = delete;
  ShutdownSignal& operator=(const ShutdownSignal&) = delete;

  // Waits for the next signal; false after `timeout`. Equal signals that arrive before the first
  // one is reported count as one.
  bool Wait(absl::Duration timeout = absl::InfiniteDuration());

  // For poll(): readable while a signal waits to be reported.
  int fd() const { return fd_; }

  // The life of a server after its start: waits for a signal, calls `drain`, and returns when that
  // returns. A further signal meanwhile calls `stop` on another thread, which makes `drain` return.
  void DrainOnSignal(const std::function<void()>& drain, const std::function<void()>& stop);

 private:
  const int fd_;
};

// Starts a thread that calls `on_signal` for each signal, until the destructor joins it.
class ShutdownWatch {
 public:
  explicit ShutdownWatch(std::function<void()> on_signal);
  ~ShutdownWatch();
  ShutdownWatch(const ShutdownWatch&) = delete;
  ShutdownWatch& operator=(const ShutdownWatch&) = delete;

 private:
  ShutdownSignal signal_{BrokenPipe::kDefault};
  const int done_fd_;
  std::thread thread_;
};

}  // namespace baton

#endif  // BATON_COMMON_BASE_SHUTDOWN_SIGNAL_H_
