// A cluster of real processes with a TcpProxy between them.
#ifndef BATON_TESTS_CLUSTER_FAULTS_PROCESS_CLUSTER_H_
#define BATON_TESTS_CLUSTER_FAULTS_PROCESS_CLUSTER_H_

#include <grpcpp/grpcpp.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "cli/local_cluster.h"
#include "tests/cluster/faults/tcp_proxy.h"

namespace baton::testing {

struct ClusterOptions : cli::ClusterOptions {
  ClusterOptions();
  uint64_t seed = 1;  // of the proxy
  // Routers read a list of the workers, which Start() makes, from this file, too; empty: from none.
  std::string workers_file;
};

// Routers and workers reach workers through the proxy; tests talk to all processes directly.
class ProcessCluster : public cli::LocalCluster {
 public:
  // Every router reports every worker as ready. The logs of what does not start are kept.
  static absl::StatusOr<std::unique_ptr<ProcessCluster>> Start(ClusterOptions options);

  TcpProxy& proxy() { return *proxy_; }
  // To the process that runs there now. For any thread, while that process is not restarted.
  std::shared_ptr<grpc::Channel> channel(const std::string& name);
  // Ends other than in order or by SIGKILL, e.g. "decode-0 was killed by signal 6".
  std::vector<std::string> Crashes();

 private:
  explicit ProcessCluster(const ClusterOptions& options) : LocalCluster(options) {}
  std::string Opener(uint16_t opener_port, uint16_t listen_port) const;

  std::unique_ptr<TcpProxy> proxy_;
  absl::Mutex channels_mutex_;
  std::map<std::string, std::pair<pid_t, std::shared_ptr<grpc::Channel>>> channels_
      ABSL_GUARDED_BY(channels_mutex_);
};

}  // namespace baton::testing

#endif  // BATON_TESTS_CLUSTER_FAULTS_PROCESS_CLUSTER_H_
