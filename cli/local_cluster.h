// A cluster of real processes on loopback, for `baton up`, benchmarks and fault tests: each process
// can be signalled, killed and started again at its addresses. Its workers refuse callers without
// the secret that each start makes.
#ifndef BATON_CLI_LOCAL_CLUSTER_H_
#define BATON_CLI_LOCAL_CLUSTER_H_

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cli/child_process.h"
#include "cli/port_reservation.h"
#include "client/cpp/client.h"
#include "common/base/rpc/address_file.h"
#include "common/base/rpc/channel.h"

namespace baton::cli {

struct ClusterOptions {
  std::string model_dir;    // --model of all processes
  std::string bin_dir;      // empty: where this program is
  int prefill_workers = 1;  // 0: decode workers compute the prompts
  int decode_workers = 1;
  int routers = 1;
  std::vector<std::string> worker_flags;   // of both kinds of workers, e.g. {"--block-size", "16"}
  std::vector<std::string> prefill_flags;  // besides worker_flags
  std::vector<std::string> decode_flags;
  std::vector<std::string> router_flags;
  // router_flags turn TLS on. Only their clients know the CA, and may need certificates: the
  // cluster calls its routers by Unix domain sockets instead.
  bool router_tls = false;
  bool name_workers = false;  // with --worker-id NAME
  // The address that routers get for a worker that listens at `address`; null: `address`.
  std::function<absl::StatusOr<std::string>(const std::string& name, const std::string& address)>
      routed_address;
  std::vector<std::string> more_decode_addresses;  // more addresses passed to routers
  std::string listen = "127.0.0.1:0";              // of every router
  std::string metrics_listen = "127.0.0.1:0";
  std::string http_listen;  // of every router; empty: no HTTP
  std::string log_level = "info";
  std::string log_format = "text";
  std::string otlp_traces_endpoint;  // of all processes; empty: as their environment has it
  std::string log_dir;               // one log for each process; empty: see on_line
  // Gets each line that a process writes, while Listen() runs. Null: logs in log_dir, or else in a
  // directory that is removed with the cluster.
  std::function<void(const std::string& name, const std::string& line)> on_line;
  int stop_fd = -1;  // once it can be read, Start() and Listen() return
  // How often address files and the routers' views of their workers are polled.
  absl::Duration tick = absl::Milliseconds(50);
  absl::Duration ready_timeout = absl::Seconds(120);
};

// Processes have the names "prefill-0", "decode-0", ..., "router", "router-1", .... Call it from
// the thread that constructs it (see ChildProcess), except pid() and pids(). The destructor kills
// the processes that still run.
class LocalCluster {
 public:
  explicit LocalCluster(ClusterOptions options);
  virtual ~LocalCluster();

  // Returns when every router reports every worker as ready. ABORTED, with the last lines of a
  // process that ends before; FAILED_PRECONDITION if a router refuses a worker; CANCELLED by
  // stop_fd. Call once.
  absl::Status Start();

  // The names of all processes that have been started, workers first; of all workers; of the
  // workers of one role.
  std::vector<std::string> names() const { return names_; }
  std::vector<std::string> workers() const;
  std::vector<std::string> workers(const std::string& role) const;
  // The process' own addresses, whatever routed_address returns. A restart keeps them.
  const std::string& address(const std::string& name) const { return member(name).bound.grpc; }
  const std::string& metrics_address(const std::string& name) const {
    return member(name).bound.metrics;
  }
  const std::string& http_address(const std::string& router) const {
    return member(router).bound.http;
  }
  // REQUIRES: Kill() has not been called since its start.
  ChildProcess& process(const std::string& name);
  // The process that was started last under this name, or under each name. Thread-safe.
  pid_t pid(const std::string& name) const { return pids().at(name); }
  std::map<std::string, pid_t> pids() const;

  // Does nothing to a process that was killed.
  void Signal(const std::string& name, int signal);
  // SIGKILL; returns when the process has ended.
  void Kill(const std::string& name);
  // Kills what still runs and starts it at the same addresses, with `extra_flags` after its own;
  // returns when it listens.
  absl::Status Restart(const std::string& name, const std::vector<std::string>& extra_flags = {});

  // Returns the workers as the router reports them.
  absl::StatusOr<std::vector<client::Worker>> Workers(const std::string& router);
  // Waits until the router reports all workers as ready, except those that Kill() has ended.
  absl::Status AwaitReady(const std::string& router, absl::Duration limit = absl::Seconds(60));
  // Waits until `wished` is true of what the router reports of `worker`.
  absl::Status AwaitState(const std::string& router, const std::string& worker,
                          const std::function<bool(const client::Worker&)>& wished,
                          absl::Duration limit = absl::Seconds(60));

  // Waits for output, the end of a process or `timeout`. True if stop_fd can be read.
  bool Listen(absl::Duration timeout);
  // Returns ABORTED with the last lines of a process that has ended.
  absl::Status EndOf(const std::string& name);
  // Returns EndOf() the first process that has ended other than by Kill(), or OK.
  absl::Status CheckAlive();

  // For channels to its workers: the cluster's secret, which Start() makes.
  ChannelSecurity worker_security() const;

  // The directory of the logs, unless log_dir is set. Removed with the cluster, unless KeepLogs().
  const std::string& work_dir() const { return work_dir_; }
  void KeepLogs() { keep_logs_ = true; }

 private:
  struct Member {
    std::vector<std::string> command;  // without its addresses
    std::vector<PortReservation> ports;
    BoundAddresses bound;              // empty until it listens
    std::string routed;                // of a worker
    std::unique_ptr<ChildProcess> process;
  };

  absl::Status StartWorkers(const std::string& role, int count,
                            const std::vector<std::string>& flags);
  absl::Status StartRouters();
  absl::Status StartMember(const std::string& name, const std::string& binary,
                           const std::vector<std::string>& flags, BoundAddresses listen);
  absl::Status Launch(const std::string& name, const BoundAddresses& listen,
                      const std::vector<std::string>& extra_flags);
  // Waits until all of them listen.
  absl::Status AwaitBound(const std::vector<std::string>& names);
  // Waits until `done`, which sets what it waits for, returns true. ABORTED if one of `watched`
  // ends before.
  absl::Status Await(absl::Duration limit, const std::vector<std::string>& watched,
                     const std::function<bool(std::string* awaited)>& done);
  absl::Status AwaitState(const std::string& router, const std::string& worker,
                          const std::function<bool(const client::Worker&)>& wished,
                          absl::Duration limit, const std::vector<std::string>& watched);
  void ReadLines(ChildProcess& process);
  absl::Status WriteSecret();
  std::string SecretFile() const;
  absl::StatusOr<std::unique_ptr<client::Client>> ClientOf(const std::string& router) const;
  std::string AddressFile(const std::string& name) const;
  std::string SocketFile(const std::string& router) const;
  Member& member(const std::string& name);
  const Member& member(const std::string& name) const;

  const ClusterOptions options_;
  std::string work_dir_;
  std::string secret_;  // random; its file is work_dir_'s
  bool keep_logs_ = false;
  std::vector<std::string> names_;
  std::map<std::string, Member> members_;
  mutable absl::Mutex mutex_;
  std::map<std::string, pid_t> pids_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::cli

#endif  // BATON_CLI_LOCAL_CLUSTER_H_
