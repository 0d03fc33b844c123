// baton-grammar PARENT_PID MEMORY_BYTES: started by a worker, with sockets at kControlFd and
// kMaskFd (grammar_process.h). Not for use by hand.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <thread>

#include "common/base/exit_code.h"
#include "common/base/version.h"
#include "common/grammar/grammar_process.h"
#include "common/grammar/program/grammar_server.h"

namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kBounded = false;  // sanitizers reserve terabytes of addresses
#else
constexpr bool kBounded = true;
#endif

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
  std::thread masks([&server] { server.ServeMasks(kMaskFd); });
  server.ServeControl(kControlFd);
  // The worker is gone, and a mask may take long.
  _exit(baton::kExitOk);
}
