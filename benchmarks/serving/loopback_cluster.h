// A cluster of real processes on loopback for a benchmark to load: with either kind of worker left
// out, flags for each role, the memory of every process, and signals, kills and restarts of each.
#ifndef BATON_BENCHMARKS_SERVING_LOOPBACK_CLUSTER_H_
#define BATON_BENCHMARKS_SERVING_LOOPBACK_CLUSTER_H_

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cli/child_process.h"
#include "common/base/rpc/address_file.h"

namespace CLI {
class App;
}

namespace baton::benchmarks {

struct ClusterOptions {
  std::string model_dir;
  std::string bin_dir;      // empty: where this program is
  int prefill_workers = 1;  // 0: decode workers compute the prompts
  int decode_workers = 1;
  int routers = 1;
  std::string worker_flags;  // of both kinds; words between blanks, like those below
  std::string prefill_flags;
  std::string decode_flags;
  std::string router_flags;
  absl::Duration ready_timeout = absl::Seconds(120);
};

// --model, --bin-dir, --worker-flags, --prefill-flags, --decode-flags, --router-flags.
void AddClusterFlags(CLI::App* app, ClusterOptions* options);

// Thread-safe, but for Restart(). Its destructor kills what still runs. Processes are called
// "prefill-0", "decode-0", ..., "router", "router-1", ....
class LoopbackCluster {
 public:
  // Returns when every router calls every worker ready. A process that ends before: its last words.
  static absl::StatusOr<std::unique_ptr<LoopbackCluster>> Start(const ClusterOptions& options);
  ~LoopbackCluster();

  const std::string& address(int router = 0) const { return addresses_[router]; }
  // "http://host:port" of its /metrics, which a restart keeps. REQUIRES: there is such a process.
  std::string metrics_url(const std::string& name) const;
  // Resident memory in bytes by process; 0 of one that has ended.
  std::vector<std::pair<std::string, int64_t>> ResidentBytes() const;
  // UNAVAILABLE with its last words, if a process has ended that was not killed by Kill().
  absl::Status CheckAlive() const;

  // Nothing, of a process that was killed.
  void Signal(const std::string& name, int signal);
  // SIGKILL; returns when the process has ended.
  void Kill(const std::string& name);
  // Starts a killed process again, at its addresses; returns when every router calls ready all
  // workers that run. For the thread that called Start(): the kernel ends a process with the thread
  // that started it.
  absl::Status Restart(const std::string& name);

 private:
  struct Member {
    std::string name;
    std::vector<std::string> command;            // without its addresses
    BoundAddresses bound;                        // empty until it listens
    std::unique_ptr<cli::ChildProcess> process;  // null: killed
  };

  explicit LoopbackCluster(ClusterOptions options) : options_(std::move(options)) {}
  absl::Status StartAll();
  absl::Status StartMember(const std::string& name, const std::string& binary,
                           std::vector<std::string> flags);
  absl::Status Launch(Member& member, const BoundAddresses& listen);
  absl::StatusOr<std::string> AwaitAddress(const std::string& name, absl::Time deadline);
  std::string AddressFile(const std::string& name) const;
  size_t Index(const std::string& name) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  Member& Find(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return members_[Index(name)];
  }
  absl::Status AwaitReady(const std::string& router, absl::Time deadline);
  // Reads what the processes write, or their pipes would fill up.
  void Listen();

  const ClusterOptions options_;
  std::string work_dir_;
  std::vector<std::string> addresses_;  // of the routers
  mutable absl::Mutex mutex_;
  std::vector<Member> members_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> stopping_{false};
  std::thread listener_;
};

// Ends the benchmark, and the clusters with it, from any thread: the name of the program and the
// error, then exit code 1.
[[noreturn]] void Die(const absl::Status& status);

}  // namespace baton::benchmarks

#endif  // BATON_BENCHMARKS_SERVING_LOOPBACK_CLUSTER_H_
