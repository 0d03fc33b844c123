#include "common/grammar/program/cpu_limit.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include <iostream>

#include "common/base/check.h"
#include "common/base/exit_code.h"

namespace baton::grammar {

CpuLimit::CpuLimit() {
  sigevent event = {};
  event.sigev_notify = SIGEV_SIGNAL;
  event.sigev_signo = SIGPROF;
  if (timer_create(CLOCK_THREAD_CPUTIME_ID, &event, &timer_) == 0) return;
  // Without a limit a client's schema could compute without end.
  std::cerr << "baton-grammar: no timer: " << strerror(errno) << "\n";
  _exit(kExitFailure);
}

CpuLimit::~CpuLimit() { timer_delete(timer_); }

void CpuLimit::Set(uint64_t milliseconds) {
  itimerspec limit = {};
  limit.it_value.tv_sec = static_cast<time_t>(milliseconds / 1000);
  limit.it_value.tv_nsec = static_cast<long>(milliseconds % 1000 * 1'000'000);
  BATON_CHECK_EQ(timer_settime(timer_, 0, &limit, nullptr), 0);
}

}  // namespace baton::grammar
