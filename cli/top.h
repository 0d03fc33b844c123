// `baton top`: the workers of a cluster and the figures of its router, again and again.
#ifndef BATON_CLI_TOP_H_
#define BATON_CLI_TOP_H_

#include <cstdint>
#include <ostream>
#include <string>

#include "cli/router_flags.h"

namespace baton::cli {

struct TopOptions {
  std::string address = "127.0.0.1:50051";
  RouterAccess access;
  double interval_s = 2;       // between two calls
  int64_t frames = 0;          // after which it ends; 0: at a key or a signal
  bool once = false;           // one frame, as text even on a terminal
  bool json = false;           // one JSON object for each frame
  int64_t timeout_ms = 5'000;  // for each call
};

// On a terminal, it fills the screen until `q` or a signal; otherwise it prints frames without
// escape sequences. The first call to the router must succeed; later ones are repeated until they
// do. `out` is the standard output. Returns the exit code (common/base/exit_code.h): that of the
// last call, or kExitInterrupted after a signal.
int RunTop(const TopOptions& options, std::ostream& out, std::ostream& err);

}  // namespace baton::cli

#endif  // BATON_CLI_TOP_H_
