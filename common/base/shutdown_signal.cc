#include "common/base/shutdown_signal.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

#include <cerrno>

#include "common/base/check.h"

namespace baton {
namespace {

sigset_t ShutdownSet() {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  return set;
}

}  // namespace

ShutdownSignal::ShutdownSignal() {
  const sigset_t set = ShutdownSet();
  BATON_CHECK_EQ(pthread_sigmask(SIG_BLOCK, &set, nullptr), 0);
  signal(SIGPIPE, SIG_IGN);  // a closed pipe or socket is an error code, not the end of the process
}

bool ShutdownSignal::Wait(absl::Duration timeout) {
  const sigset_t set = ShutdownSet();
  if (timeout == absl::InfiniteDuration()) {
    int signal_number;
    return sigwait(&set, &signal_number) == 0;
  }
  const timespec wait = absl::ToTimespec(timeout);
  int result;
  do {
    result = sigtimedwait(&set, nullptr, &wait);
  } while (result < 0 && errno == EINTR);
  return result > 0;
}

}  // namespace baton
