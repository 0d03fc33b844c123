#include "common/base/shutdown_signal.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <utility>

#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/named_thread.h"

namespace baton {
namespace {

int OpenSignalFd() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  BATON_CHECK_EQ(pthread_sigmask(SIG_BLOCK, &set, nullptr), 0);
  const int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  BATON_CHECK_GE(fd, 0) << "signalfd: errno " << errno;
  return fd;
}

int OpenEventFd() {
  const int fd = eventfd(0, EFD_CLOEXEC);
  BATON_CHECK_GE(fd, 0) << "eventfd: errno " << errno;
  return fd;
}

// For poll(): -1 waits without limit.
int TimeoutMs(absl::Duration timeout) {
  if (timeout == absl::InfiniteDuration()) return -1;
  const int64_t ms = absl::ToInt64Milliseconds(absl::Ceil(timeout, absl::Milliseconds(1)));
  return static_cast<int>(std::clamp<int64_t>(ms, 0, INT_MAX));
}

}  // namespace

ShutdownSignal::ShutdownSignal(BrokenPipe broken_pipe) : fd_(OpenSignalFd()) {
  if (broken_pipe == BrokenPipe::kIgnore) signal(SIGPIPE, SIG_IGN);
}

ShutdownSignal::~ShutdownSignal() { close(fd_); }

bool ShutdownSignal::Wait(absl::Duration timeout) {
  const absl::Time end = absl::Now() + timeout;
  for (;;) {
    signalfd_siginfo taken;
    if (read(fd_, &taken, sizeof(taken)) == sizeof(taken)) return true;
    pollfd ready = {fd_, POLLIN, 0};
    const absl::Duration left = end - absl::Now();
    if (left <= absl::ZeroDuration()) return false;
    // Another ShutdownSignal may take the signal first: read() decides.
    (void)poll(&ready, 1, TimeoutMs(left));
  }
}

void ShutdownSignal::DrainOnSignal(const std::function<void()>& drain,
                                   const std::function<void()>& stop) {
  // Before the first signal: then the process may have no file descriptor left.
  absl::Notification first;
  const ShutdownWatch watch([&first, &stop] {
    if (first.HasBeenNotified()) {
      stop();
    } else {
      first.Notify();
    }
  });
  first.WaitForNotification();
  drain();
}

ShutdownWatch::ShutdownWatch(std::function<void()> on_signal) : done_fd_(OpenEventFd()) {
  thread_ = NamedThread("signals", [this, on_signal = std::move(on_signal)] {
    for (;;) {
      pollfd fds[] = {{signal_.fd(), POLLIN, 0}, {done_fd_, POLLIN, 0}};
      (void)poll(fds, 2, -1);
      if (fds[1].revents != 0) return;
      if (signal_.Wait(absl::ZeroDuration())) on_signal();
    }
  });
}

ShutdownWatch::~ShutdownWatch() {
  const uint64_t one = 1;
  (void)!write(done_fd_, &one, sizeof(one));
  thread_.join();
  close(done_fd_);
}

}  // namespace baton
