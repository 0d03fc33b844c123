// baton-grammar PARENT_PID MEMORY_BYTES: started by a worker, with sockets at kControlFd and
// kMaskFd (grammar_process.h). Not for use by hand.
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <thread>

#include "common/base/exit_code.h"
#include "common/base/named_thread.h"
#include "common/base/version.h"
#include "common/grammar/grammar_process.h"
#include "common/grammar/program/grammar_server.h"

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kBounded = false;  // sanitizers reserve terabytes of addresses
#else
constexpr bool kBounded = true;
#endif

// What sched_setattr(2) takes; glibc declares it from 2.41.
struct SchedulingAttributes {
  uint32_t size = sizeof(SchedulingAttributes);
  uint32_t policy = SCHED_BATCH;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime_ns = 0, deadline_ns = 0, period_ns = 0;
};

// Where a worker's thread wants the processor that this thread has, it gets it: at once, as far as
// the kernel can (from Linux 6.12 on: after the shortest slice), and for 96.6 % of the time (the
// weights of nice 0 and 15 are 1024 and 36).
void LowerPriority() {
  SchedulingAttributes attributes;
  attributes.nice = 15;
  attributes.runtime_ns = 100'000;
  syscall(SYS_sched_setattr, 0, &attributes, 0u);
}

}  // namespace

int main(int argc, char** argv) {
  using baton::grammar::kControlFd;
  using baton::grammar::kMaskFd;
  if (argc != 3) {
    std::cerr << baton::VersionLine("baton-grammar") << "\nA part of Baton's decode worker, which "
              << "starts it.\n";
    return baton::kExitUsage;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != std::atoi(argv[1]))
    return baton::kExitFailure;  // it ended before the line above
  syscall(SYS_close_range, static_cast<unsigned>(kMaskFd + 1), ~0u, 0u);
  const rlimit no_core = {0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  const rlim_t bytes = static_cast<rlim_t>(std::atoll(argv[2]));
  const rlimit memory = {bytes, bytes};
  if (kBounded) setrlimit(RLIMIT_AS, &memory);
  baton::grammar::GrammarServer server;
  std::thread masks = baton::NamedThread("masks", [&server] { server.ServeMasks(kMaskFd); });
  // This thread compiles; the one that computes masks, for which steps wait, goes on as it is.
  LowerPriority();
  server.ServeControl(kControlFd);
  // The worker is gone, and a mask may take long.
  _exit(baton::kExitOk);
}
