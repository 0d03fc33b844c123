#include "cli/signal_watch.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdint>

namespace baton::cli {
namespace {

sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  return signals;
}

}  // namespace

void BlockStopSignals() {
  const sigset_t signals = StopSignals();
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

int OpenStopSignalFd() {
  const sigset_t signals = StopSignals();
  return signalfd(-1, &signals, SFD_CLOEXEC | SFD_NONBLOCK);
}

SignalWatch::SignalWatch(std::function<void()> on_signal)
    : signal_fd_(OpenStopSignalFd()), done_fd_(eventfd(0, EFD_CLOEXEC)) {
  thread_ = std::thread([this, on_signal = std::move(on_signal)] {
    pollfd fds[] = {{signal_fd_, POLLIN, 0}, {done_fd_, POLLIN, 0}};
    while (poll(fds, 2, -1) < 0) {
    }
    if (fds[0].revents != 0 && fds[1].revents == 0) on_signal();
  });
}

SignalWatch::~SignalWatch() {
  const uint64_t one = 1;
  (void)!write(done_fd_, &one, sizeof(one));
  thread_.join();
  close(signal_fd_);
  close(done_fd_);
}

}  // namespace baton::cli
