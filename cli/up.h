// `baton up`: a whole cluster as child processes on loopback.
#ifndef BATON_CLI_UP_H_
#define BATON_CLI_UP_H_

#include <ostream>
#include <string>

#include "absl/time/time.h"
#include "cli/local_cluster.h"

namespace baton::cli {

struct UpOptions {
  UpOptions() { cluster.listen = "127.0.0.1:50051"; }

  ClusterOptions cluster;  // RunUp() sets what has to do with output and time
  std::string ready_file;  // empty: none. As an address file, written once the cluster is ready
  absl::Duration stop_grace = absl::Seconds(10);  // for the router, then for the workers
};

// Starts everything and follows the logs until a stop signal, then stops everything: 0. A child
// that ends before the cluster is ready, or a router that ends at all: 1, with its last lines.
// Messages go to `out`. Call before any other thread starts: see ShutdownSignal.
int RunUp(const UpOptions& options, std::ostream& out);

}  // namespace baton::cli

#endif  // BATON_CLI_UP_H_
