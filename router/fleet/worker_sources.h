// The sources of a router's list of workers: its command line, a file, the DNS.
#ifndef BATON_ROUTER_FLEET_WORKER_SOURCES_H_
#define BATON_ROUTER_FLEET_WORKER_SOURCES_H_

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "common/base/rpc/name_lookup.h"
#include "router/fleet/discovery.h"

namespace baton::router {

// A list that never changes.
class StaticWorkers final : public WorkerSource {
 public:
  explicit StaticWorkers(std::vector<WorkerAddress> workers) : workers_(std::move(workers)) {}
  absl::string_view kind() const override { return "static"; }
  std::string name() const override { return "the command line"; }
  absl::Duration period() const override { return absl::InfiniteDuration(); }
  absl::Duration answer_life() const override { return absl::InfiniteDuration(); }
  bool needed_at_start() const override { return true; }
  absl::StatusOr<std::optional<std::vector<WorkerAddress>>> Look() override { return workers_; }

 private:
  const std::vector<WorkerAddress> workers_;
};

// Lines of "prefill host:port" or "decode host:port"; empty lines and text after a '#' are ignored.
// At least one decode worker is required. INVALID_ARGUMENT, naming the line.
absl::StatusOr<std::vector<WorkerAddress>> ParseWorkers(absl::string_view text);

// A regular file with such lines, each ended by a newline. New content counts once two looks in a
// row have found it, since a file may be read while it is written; the very first look counts at
// once. A writer that pauses between two lines is not detected: the safe way to replace the file is
// a rename. After a bad file, the workers of the last good one stay.
class WorkersFile final : public WorkerSource {
 public:
  static constexpr size_t kMaxBytes = 4 << 20;
  static constexpr absl::Duration kPeriod = absl::Milliseconds(250);

  explicit WorkersFile(std::string path) : path_(std::move(path)) {}
  absl::string_view kind() const override { return "file"; }
  std::string name() const override { return "the workers' file " + path_; }
  absl::Duration period() const override { return kPeriod; }
  absl::Duration answer_life() const override { return absl::InfiniteDuration(); }
  bool needed_at_start() const override { return true; }
  absl::StatusOr<std::optional<std::vector<WorkerAddress>>> Look() override;

 private:
  const std::string path_;
  std::optional<std::string> last_look_;
};

// All addresses of one name, such as a headless Service of Kubernetes, as workers of one role.
// While the name has no address, the last good answer stays for a while; while no name server
// answers, it stays: neither a restart nor an outage of name servers takes a cluster apart. At most
// one lookup is under way, and nothing waits for it, not even the destructor.
class DnsWorkers final : public WorkerSource {
 public:
  struct Limits {
    absl::Duration refresh = absl::Seconds(5);
    absl::Duration answer_life = absl::Minutes(5);  // while the name has no addresses
  };
  // Between two looks for the answer of a lookup that is under way.
  static constexpr absl::Duration kPollPeriod = absl::Milliseconds(20);

  // REQUIRES: CheckHostPort(host_port). `resolver` must outlive it.
  DnsWorkers(v1::WorkerRole role, const std::string& host_port, const Limits& limits,
             Resolver& resolver);
  absl::string_view kind() const override { return "dns"; }
  std::string name() const override { return "the DNS name " + host_; }
  absl::Duration period() const override {
    return lookup_ == nullptr ? limits_.refresh : std::min(limits_.refresh, kPollPeriod);
  }
  absl::Duration answer_life() const override { return limits_.answer_life; }
  bool needed_at_start() const override { return false; }
  absl::StatusOr<std::optional<std::vector<WorkerAddress>>> Look() override;

 private:
  const v1::WorkerRole role_;
  std::string host_, port_;
  const Limits limits_;
  Resolver& resolver_;
  std::shared_ptr<const NameLookup> lookup_;  // under way, or answered since the last look
};

}  // namespace baton::router

#endif  // BATON_ROUTER_FLEET_WORKER_SOURCES_H_
