// A proxy for TCP that stands between the processes of a cluster and does to their connections what
// networks do: delays, narrow links, partitions, resets, flipped bits. It tells connections apart
// by who opened them, so that one pair of processes can lose each other while all others go on.
#ifndef BATON_TESTS_CLUSTER_FAULTS_TCP_PROXY_H_
#define BATON_TESTS_CLUSTER_FAULTS_TCP_PROXY_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace baton::testing {

// Bytes that go one way on the connections from `opener` to `target`. A name that ends in '*'
// stands for all that begin so.
struct Flow {
  enum class Way { kToTarget, kToOpener };
  std::string opener = "*";
  std::string target = "*";
  Way way = Way::kToTarget;
};

// What happens to a flow.
struct LinkFaults {
  absl::Duration delay;
  int64_t bytes_per_second = 0;  // 0: as fast as it goes
  bool hold = false;     // nothing passes, as if packets were lost; what waits goes on later
  double flip_rate = 0;  // share of the bytes that get one bit flipped
};

// What a trip does to its connection.
enum class TripEnd { kGoOn, kHold, kReset };

// Thread-safe. One thread moves all bytes, driven by epoll; what it buffers is bounded per
// connection.
class TcpProxy {
 public:
  // Says who opened the connection that comes from `opener_port` of this machine to `listen_port`.
  // Called by the proxy's thread.
  using Identify = std::function<std::string(uint16_t opener_port, uint16_t listen_port)>;

  static absl::StatusOr<std::unique_ptr<TcpProxy>> Start(Identify identify, uint64_t seed);
  // Resets what is open.
  ~TcpProxy();

  // Listens for `target`, which is at 127.0.0.1:`port`. Returns the address to give to openers.
  absl::StatusOr<std::string> AddTarget(const std::string& name, uint16_t port);

  // Holds for connections that are open and that will be. A later rule for the same flow replaces
  // the earlier one; of several that match, the latest set counts.
  void Set(const Flow& flow, const LinkFaults& faults);
  // No faults any more, and nothing armed. Open connections go on.
  void Heal();
  // Resets the connections of opener and target, both ends.
  void Reset(const std::string& opener, const std::string& target);

  // Once, on the first connection of `flow` about to pass more than `after_bytes`, counted from
  // now: it stops exactly there, `action` runs on the proxy's thread, and its result says what
  // becomes of the connection. A connection that is held goes on with Heal().
  using Action = std::function<TripEnd(const std::string& opener, const std::string& target)>;
  void Arm(const Flow& flow, int64_t after_bytes, Action action);
  // Drops what is armed and has not happened.
  void Disarm();

  // Passed so far, connections that have ended included.
  int64_t BytesPassed(const Flow& flow) const;
  int open_connections() const;

 private:
  struct Rule;
  struct Trip;
  struct Listener;
  struct Pipe;
  struct Connection;

  explicit TcpProxy(Identify identify, uint64_t seed);
  void Run();
  void Accept(Listener& listener) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Moves what can be moved now; false if the connection is over.
  bool Pump(Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool PumpWay(Connection& connection, Flow::Way way) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Fill(Connection& connection, Pipe& pipe) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Drain(Connection& connection, Pipe& pipe) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool TripsNow(Connection& connection, Pipe& pipe, int64_t* may_pass)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Watch(Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Close(Connection& connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  LinkFaults FaultsOf(const Connection& connection, Flow::Way way) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Time NextDue() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Wake() const;

  const Identify identify_;
  int epoll_fd_ = -1;
  int wake_fd_ = -1;
  mutable absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t random_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Listener>> listeners_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Connection>> connections_ ABSL_GUARDED_BY(mutex_);
  std::vector<Rule> rules_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<Trip>> trips_ ABSL_GUARDED_BY(mutex_);
  // By connections that have ended.
  std::map<std::tuple<std::string, std::string, Flow::Way>, int64_t> passed_before_
      ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace baton::testing

#endif  // BATON_TESTS_CLUSTER_FAULTS_TCP_PROXY_H_
