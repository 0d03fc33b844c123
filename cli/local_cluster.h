// `baton up`: a whole cluster as child processes on loopback.
#ifndef BATON_CLI_LOCAL_CLUSTER_H_
#define BATON_CLI_LOCAL_CLUSTER_H_

#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "cli/child_process.h"
#include "client/cpp/client.h"
#include "common/base/rpc/address_file.h"
#include "common/base/shutdown_signal.h"

namespace baton::cli {

struct UpOptions {
  std::string model_dir;
  int prefill_workers = 1;
  int decode_workers = 1;
  std::string listen = "127.0.0.1:50051";  // the router's
  std::string metrics_listen = "127.0.0.1:0";
  std::string log_dir;     // empty: no log files
  std::string ready_file;  // empty: none. As an address file, written once the cluster is ready
  std::string bin_dir;     // empty: where this program is
  // Given to every worker as they are, e.g. {"--block-size", "16"}.
  std::vector<std::string> worker_flags;
  // Given to every process.
  std::string log_level = "info";
  absl::Duration stop_grace = absl::Seconds(10);  // for the router, then for the workers
};

// For one thread. Construct it before any other thread starts: see ShutdownSignal.
class LocalCluster {
 public:
  // Everything that people read goes to `out`.
  LocalCluster(UpOptions options, std::ostream& out);
  ~LocalCluster();

  // Starts everything and follows its logs until a stop signal, then stops everything: 0. A child
  // that ends before the cluster is ready, or a router that ends at all: 1, with its last words.
  int Run();

 private:
  struct Member {
    std::string address_file;
    std::optional<BoundAddresses> bound;
    std::unique_ptr<ChildProcess> process;
    bool end_told = false;
  };

  absl::Status StartWorkers();
  absl::Status StartRouter();
  absl::Status StartMember(const std::string& name, const std::string& binary,
                           std::vector<std::string> flags);
  // One step towards readiness, if it can be made now.
  absl::Status Advance();
  absl::Status CheckReady();
  // Waits for output, a signal or `timeout`; prints output. True if a stop signal came.
  bool Listen(absl::Duration timeout);
  absl::Status CheckAlive();
  void StopAll();
  void StopMembers(size_t first, size_t last);
  void PrintLine(const std::string& name, const std::string& line);
  void PrintEndpoints();

  const UpOptions options_;
  std::ostream& out_;
  const bool in_place_progress_;
  bool progress_shown_ = false;
  std::string work_dir_;
  ShutdownSignal signals_{BrokenPipe::kDefault};
  std::vector<Member> members_;  // prefill workers, decode workers, then the router
  size_t worker_count_ = 0;
  bool router_started_ = false;
  std::unique_ptr<client::Client> client_;  // of the router, to see when it is ready
  bool ready_ = false;
};

}  // namespace baton::cli

#endif  // BATON_CLI_LOCAL_CLUSTER_H_
