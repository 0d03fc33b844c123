// Where a router may be told who its workers are: its command line, a file, the DNS.
#ifndef BATON_ROUTER_WORKER_SOURCES_H_
#define BATON_ROUTER_WORKER_SOURCES_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "router/discovery.h"

namespace baton::router {

// OK for "host:port", "[v6]:port"; else an error that says what it is.
absl::Status CheckHostPort(absl::string_view address);

// What never changes.
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

// Lines of "prefill host:port" or "decode host:port"; empty ones and what follows a '#' count for
// nothing. At least one decode worker. INVALID_ARGUMENT, naming the line.
absl::StatusOr<std::vector<WorkerAddress>> ParseWorkers(absl::string_view text);

// A file with such lines. A new content counts once two looks have found it, so that one which is
// being written is not taken for whole; the first look at all needs no second. A bad file leaves
// the workers of the last good one.
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

class Resolver {
 public:
  virtual ~Resolver() = default;
  // The addresses of a host as numbers, "10.0.0.1" or "fe80::1", each once. NOT_FOUND if it has
  // none, UNAVAILABLE if that cannot be known now. May block as long as the system's resolver.
  virtual absl::StatusOr<std::vector<std::string>> Resolve(const std::string& host) = 0;
};

// getaddrinfo: the hosts file, then the DNS, with the time-outs of resolv.conf.
class SystemResolver final : public Resolver {
 public:
  absl::StatusOr<std::vector<std::string>> Resolve(const std::string& host) override;
};

// All addresses of one name, such as a headless Service of Kubernetes, as workers of one role. An
// empty or failed answer leaves the last good one for a while: a name server that restarts must not
// take a cluster apart.
class DnsWorkers final : public WorkerSource {
 public:
  struct Limits {
    absl::Duration refresh = absl::Seconds(5);
    absl::Duration answer_life = absl::Minutes(5);
  };
  // REQUIRES: CheckHostPort(host_port). `resolver` must outlive it.
  DnsWorkers(v1::WorkerRole role, const std::string& host_port, const Limits& limits,
             Resolver& resolver);
  absl::string_view kind() const override { return "dns"; }
  std::string name() const override { return "the DNS name " + host_; }
  absl::Duration period() const override { return limits_.refresh; }
  absl::Duration answer_life() const override { return limits_.answer_life; }
  bool needed_at_start() const override { return false; }
  absl::StatusOr<std::optional<std::vector<WorkerAddress>>> Look() override;

 private:
  const v1::WorkerRole role_;
  std::string host_, port_;
  const Limits limits_;
  Resolver& resolver_;
};

}  // namespace baton::router

#endif  // BATON_ROUTER_WORKER_SOURCES_H_
