// The cluster that a benchmark loads, from its command line; and how a benchmark fails.
#ifndef BATON_BENCHMARKS_SERVING_CLUSTER_FLAGS_H_
#define BATON_BENCHMARKS_SERVING_CLUSTER_FLAGS_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cli/local_cluster.h"

namespace CLI {
class App;
}

namespace baton::benchmarks {

using cli::LocalCluster;

struct ClusterOptions : cli::ClusterOptions {
  ClusterOptions() { log_level = "warning"; }
};

// --model, --bin-dir, --worker-flags, --prefill-flags, --decode-flags, --router-flags. What the
// options have now is the flags' default.
void AddClusterFlags(CLI::App* app, ClusterOptions* options);

// "--a 1 --b 2", behind the flags that are there.
void AppendFlags(const std::string& text, std::vector<std::string>* flags);

// Started and ready; the program ends if that fails. See LocalCluster for the thread. Raises the
// limit of open files, of this process too, as far as it goes.
std::unique_ptr<LocalCluster> StartCluster(const ClusterOptions& options);

// Ends the benchmark, and the clusters with it, from any thread: the name of the program and the
// error, then exit code 1.
[[noreturn]] void Die(const absl::Status& status);

}  // namespace baton::benchmarks

#endif  // BATON_BENCHMARKS_SERVING_CLUSTER_FLAGS_H_
