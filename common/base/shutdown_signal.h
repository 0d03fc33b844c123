// SIGTERM and SIGINT as events of the main thread: the first asks to drain, the second to stop now.
#ifndef BATON_COMMON_BASE_SHUTDOWN_SIGNAL_H_
#define BATON_COMMON_BASE_SHUTDOWN_SIGNAL_H_

#include "absl/time/time.h"

namespace baton {

class ShutdownSignal {
 public:
  // Blocks both signals in this thread and in those started after it: construct it first in main().
  ShutdownSignal();
  // True once a signal has come, false after `timeout`. Each signal is reported once.
  bool Wait(absl::Duration timeout = absl::InfiniteDuration());
};

}  // namespace baton

#endif  // BATON_COMMON_BASE_SHUTDOWN_SIGNAL_H_
