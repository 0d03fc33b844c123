// `baton up`: a whole cluster as child processes on loopback.
#ifndef BATON_CLI_UP_H_
#define BATON_CLI_UP_H_

#include <ostream>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "cli/local_cluster.h"

namespace baton::cli {

struct UpOptions {
  UpOptions() { cluster.listen = "127.0.0.1:50051"; }

  ClusterOptions cluster;  // RunUp() sets the fields about output and time
  // Where cluster.prefill_workers is from; kAuto: ChoosePrefill() sets it.
  enum class Prefill { kDefault, kGiven, kAuto };
  Prefill prefill = Prefill::kGiven;
  // Written once the cluster is ready, in the format of an address file; empty: none.
  std::string ready_file;
  // Print only one line: a JSON object with the addresses, once the cluster is ready.
  bool json = false;
  absl::Duration stop_grace = absl::Seconds(10);  // for the router, then for the workers
};

// Where a cluster of these options can be reached, and commands that try it, each a line. KEY,
// CA.pem and CLIENT.pem and .key are the caller's to fill in, where the router needs them. `http`
// may be empty: there is none.
std::string EndpointLines(const ClusterOptions& cluster, const std::string& grpc,
                          const std::string& http);

// What workers that may share a GPU are told of its memory, if the user says nothing: each has an
// equal part of what one would have. A CPU does not read it.
std::vector<std::string> GpuShareFlags(const ClusterOptions& cluster);

// Starts everything and follows the logs until a stop signal, then stops everything. Returns 0
// then, and 1, with the last lines of the process, if a child ends before the cluster is ready or a
// router ends at any time.
// Messages and logs go to `out`, with --json to `err`. Call before any other thread starts: see
// ShutdownSignal.
int RunUp(const UpOptions& options, std::ostream& out, std::ostream& err);

}  // namespace baton::cli

#endif  // BATON_CLI_UP_H_
