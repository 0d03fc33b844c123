// A cluster of real processes on loopback, each of which can be killed, stopped, resumed and
// started again at its address, with a TcpProxy between them.
#ifndef BATON_TESTS_CLUSTER_FAULTS_PROCESS_CLUSTER_H_
#define BATON_TESTS_CLUSTER_FAULTS_PROCESS_CLUSTER_H_

#include <grpcpp/grpcpp.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "baton/internal/v1/worker.grpc.pb.h"
#include "baton/v1/admin.grpc.pb.h"
#include "tests/cluster/faults/process.h"
#include "tests/cluster/faults/tcp_proxy.h"

namespace baton::testing {

struct ClusterOptions {
  std::string model_dir = "models/demo";
  std::string bin_dir;
  int prefill_workers = 2;
  int decode_workers = 2;
  int routers = 1;
  std::vector<std::string> worker_flags;
  std::vector<std::string> prefill_flags;  // beside worker_flags
  std::vector<std::string> decode_flags;
  std::vector<std::string> router_flags;
  std::vector<std::string> more_decode_addresses;  // told to routers beside the cluster's own
  uint64_t seed = 1;
};

// Processes are called "prefill-0", "decode-1", "router-0", … . For one thread, that of its
// construction (see Process); channels and addresses may be used by any.
class ProcessCluster {
 public:
  // Started, met by every router, and ready.
  static absl::StatusOr<std::unique_ptr<ProcessCluster>> Start(const ClusterOptions& options);
  ~ProcessCluster();

  TcpProxy& proxy() { return *proxy_; }
  // Of the process itself; tests talk to it past the proxy.
  std::string address(const std::string& name) const;
  std::string metrics_address(const std::string& name) const;
  // To the process that runs there now.
  std::shared_ptr<grpc::Channel> channel(const std::string& name);
  std::vector<std::string> workers() const;  // names
  std::vector<std::string> names() const;    // routers, too

  Process& process(const std::string& name);
  void Signal(const std::string& name, int signal) { process(name).Signal(signal); }
  // By the proxy's thread, in a trip.
  pid_t pid(const std::string& name) const;
  // Kills what still runs and starts it at the same address, with `extra_flags` behind its own.
  absl::Status Restart(const std::string& name, const std::vector<std::string>& extra_flags = {});

  // What the router says of its workers.
  absl::StatusOr<std::vector<baton::v1::WorkerStatus>> Workers(const std::string& router);
  // Until the router finds all of them ready.
  absl::Status AwaitReady(const std::string& router, absl::Duration limit = absl::Seconds(60));
  // Until the router says what `wished` waits for of `worker`.
  absl::Status AwaitState(const std::string& router, const std::string& worker,
                          const std::function<bool(const baton::v1::WorkerStatus&)>& wished,
                          absl::Duration limit = absl::Seconds(60));

  // Logs are removed with the cluster unless something went wrong.
  void KeepLogs() { keep_logs_ = true; }
  const std::string& log_dir() const { return dir_; }
  // Ends other than in order or by SIGKILL, e.g. "decode-0 was killed by signal 6".
  std::vector<std::string> Crashes();

 private:
  struct Member {
    std::unique_ptr<Process> process;
    std::string binary;
    std::vector<std::string> flags;
    std::string address, metrics, proxied;
    std::shared_ptr<grpc::Channel> channel;
  };

  ProcessCluster() = default;
  absl::Status StartAll(const ClusterOptions& options);
  absl::Status StartWorkers(const ClusterOptions& options, const std::string& role, int count,
                            const std::vector<std::string>& flags);
  absl::Status Launch(const std::string& name, const std::string& listen,
                      const std::string& metrics_listen,
                      const std::vector<std::string>& extra_flags);
  absl::Status AwaitBound(const std::string& name, const std::string& address_file);
  std::string Opener(uint16_t opener_port, uint16_t listen_port) const;
  Member& member(const std::string& name);
  const Member& member(const std::string& name) const;

  std::string dir_, bin_dir_, model_dir_;
  bool keep_logs_ = false;
  std::map<std::string, Member> members_;
  mutable absl::Mutex mutex_;
  std::map<std::string, pid_t> pids_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<TcpProxy> proxy_;
};

// The directory of the product's binaries: bin/, beside that of the running test.
std::string DefaultBinDir();

}  // namespace baton::testing

#endif  // BATON_TESTS_CLUSTER_FAULTS_PROCESS_CLUSTER_H_
