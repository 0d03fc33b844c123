// A cluster of real processes on loopback for a benchmark to load: with either kind of worker left
// out, flags for each role, and the memory of every process.
#ifndef BATON_BENCHMARKS_SERVING_LOOPBACK_CLUSTER_H_
#define BATON_BENCHMARKS_SERVING_LOOPBACK_CLUSTER_H_

#include <sys/types.h>

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

// Thread-safe. Its destructor kills what still runs.
class LoopbackCluster {
 public:
  // Returns when every router calls every worker ready. A process that ends before: its last words.
  static absl::StatusOr<std::unique_ptr<LoopbackCluster>> Start(const ClusterOptions& options);
  ~LoopbackCluster();

  const std::string& address(int router = 0) const { return addresses_[router]; }
  // Resident memory in bytes of "prefill-0", "decode-0", ..., "router", "router-1", ...; 0 of one
  // that has ended.
  std::vector<std::pair<std::string, int64_t>> ResidentBytes() const;
  // UNAVAILABLE with its last words, if a process has ended.
  absl::Status CheckAlive() const;

 private:
  struct Member {
    std::string address_file;
    std::unique_ptr<cli::ChildProcess> process;
  };

  explicit LoopbackCluster(ClusterOptions options) : options_(std::move(options)) {}
  absl::Status StartAll();
  absl::Status StartMember(const std::string& name, const std::string& binary,
                           std::vector<std::string> flags);
  absl::StatusOr<std::string> AwaitAddress(const std::string& name, absl::Time deadline);
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

// Resident memory of a process in bytes; 0 if it cannot be read.
int64_t ResidentBytesOf(pid_t pid);

// Ends the benchmark, and the clusters with it, from any thread: the name of the program and the
// error, then exit code 1.
[[noreturn]] void Die(const absl::Status& status);

}  // namespace baton::benchmarks

#endif  // BATON_BENCHMARKS_SERVING_LOOPBACK_CLUSTER_H_
