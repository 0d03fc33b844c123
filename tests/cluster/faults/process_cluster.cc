#include "tests/cluster/faults/process_cluster.h"

#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/rpc/address_file.h"
#include "common/base/rpc/channel.h"
#include "common/base/rpc/grpc_status.h"
#include "common/base/status_macros.h"
#include "tests/cluster/faults/socket_owner.h"

namespace baton::testing {
namespace {

constexpr absl::Duration kStartLimit = absl::Seconds(60);
// Nothing announces an address file or a router's view of its workers.
constexpr absl::Duration kTick = absl::Milliseconds(5);

uint16_t PortOf(const std::string& address) {
  int port = 0;
  BATON_CHECK(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) << address;
  return static_cast<uint16_t>(port);
}

}  // namespace

std::string DefaultBinDir() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return (self.parent_path().parent_path() / "bin").string();
}

absl::StatusOr<std::unique_ptr<ProcessCluster>> ProcessCluster::Start(
    const ClusterOptions& options) {
  std::unique_ptr<ProcessCluster> cluster(new ProcessCluster());
  if (absl::Status status = cluster->StartAll(options); !status.ok()) {
    cluster->KeepLogs();
    return absl::Status(status.code(),
                        absl::StrCat(status.message(), "; logs are in ", cluster->dir_));
  }
  return cluster;
}

ProcessCluster::~ProcessCluster() {
  for (auto& [name, member] : members_) member.channel = nullptr;
  for (auto& [name, member] : members_) member.process = nullptr;
  proxy_ = nullptr;
  std::error_code ignored;
  if (!keep_logs_ && !dir_.empty()) std::filesystem::remove_all(dir_, ignored);
}

absl::Status ProcessCluster::StartAll(const ClusterOptions& options) {
  std::string pattern = (std::filesystem::temp_directory_path() / "baton-faults-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot make a directory like ", pattern));
  }
  dir_ = pattern;
  bin_dir_ = options.bin_dir.empty() ? DefaultBinDir() : options.bin_dir;
  model_dir_ = options.model_dir;
  BATON_ASSIGN_OR_RETURN(
      proxy_,
      TcpProxy::Start([this](uint16_t opener, uint16_t listen) { return Opener(opener, listen); },
                      options.seed));
  BATON_RETURN_IF_ERROR(
      StartWorkers(options, "prefill", options.prefill_workers, options.prefill_flags));
  BATON_RETURN_IF_ERROR(
      StartWorkers(options, "decode", options.decode_workers, options.decode_flags));
  std::vector<std::string> prefill, decode;
  for (const auto& [name, member] : members_) {
    (absl::StartsWith(name, "prefill") ? prefill : decode).push_back(member.proxied);
  }
  decode.insert(decode.end(), options.more_decode_addresses.begin(),
                options.more_decode_addresses.end());
  for (int i = 0; i < options.routers; ++i) {
    const std::string name = absl::StrCat("router-", i);
    Member& router = members_[name];
    router.binary = "baton-router";
    router.flags = {"--prefill-workers", absl::StrJoin(prefill, ","), "--decode-workers",
                    absl::StrJoin(decode, ",")};
    router.flags.insert(router.flags.end(), options.router_flags.begin(),
                        options.router_flags.end());
    BATON_RETURN_IF_ERROR(Launch(name, "127.0.0.1:0", "127.0.0.1:0", {}));
    BATON_RETURN_IF_ERROR(AwaitReady(name));
  }
  return absl::OkStatus();
}

absl::Status ProcessCluster::StartWorkers(const ClusterOptions& options, const std::string& role,
                                          int count, const std::vector<std::string>& flags) {
  for (int i = 0; i < count; ++i) {
    const std::string name = absl::StrCat(role, "-", i);
    Member& worker = members_[name];
    worker.binary = absl::StrCat("baton-", role, "-worker");
    worker.flags = {"--worker-id", name, "--threads", "1"};
    worker.flags.insert(worker.flags.end(), options.worker_flags.begin(),
                        options.worker_flags.end());
    worker.flags.insert(worker.flags.end(), flags.begin(), flags.end());
    BATON_RETURN_IF_ERROR(Launch(name, "127.0.0.1:0", "127.0.0.1:0", {}));
    BATON_ASSIGN_OR_RETURN(worker.proxied, proxy_->AddTarget(name, PortOf(worker.address)));
  }
  return absl::OkStatus();
}

absl::Status ProcessCluster::Launch(const std::string& name, const std::string& listen,
                                    const std::string& metrics_listen,
                                    const std::vector<std::string>& extra_flags) {
  Member& launched = member(name);
  const std::string address_file = absl::StrCat(dir_, "/", name, ".address");
  std::error_code ignored;
  std::filesystem::remove(address_file, ignored);
  std::vector<std::string> argv = {absl::StrCat(bin_dir_, "/", launched.binary),
                                   "--model",
                                   model_dir_,
                                   "--listen",
                                   listen,
                                   "--metrics-listen",
                                   metrics_listen,
                                   "--address-file",
                                   address_file};
  argv.insert(argv.end(), launched.flags.begin(), launched.flags.end());
  argv.insert(argv.end(), extra_flags.begin(), extra_flags.end());
  BATON_ASSIGN_OR_RETURN(launched.process,
                         Process::Start(argv, absl::StrCat(dir_, "/", name, ".log")));
  {
    absl::MutexLock lock(&mutex_);
    pids_[name] = launched.process->pid();
  }
  return AwaitBound(name, address_file);
}

absl::Status ProcessCluster::AwaitBound(const std::string& name, const std::string& address_file) {
  Member& awaited = member(name);
  const absl::Time end = absl::Now() + kStartLimit;
  while (absl::Now() < end) {
    if (const auto bound = ReadAddressFile(address_file)) {
      awaited.address = bound->grpc;
      awaited.metrics = bound->metrics;
      awaited.channel = MakeChannel(awaited.address);  // a new one has nothing to wait for
      return absl::OkStatus();
    }
    if (awaited.process->AwaitEnd(kTick)) {
      return absl::AbortedError(absl::StrCat(name, " ", awaited.process->end(), " at its start"));
    }
  }
  return absl::DeadlineExceededError(absl::StrCat(name, " did not start"));
}

absl::Status ProcessCluster::Restart(const std::string& name,
                                     const std::vector<std::string>& extra_flags) {
  Process& old = process(name);
  old.Signal(SIGKILL);
  old.AwaitEnd(absl::InfiniteDuration());
  return Launch(name, member(name).address, member(name).metrics, extra_flags);
}

Process& ProcessCluster::process(const std::string& name) { return *member(name).process; }

pid_t ProcessCluster::pid(const std::string& name) const {
  absl::MutexLock lock(&mutex_);
  return pids_.at(name);
}

ProcessCluster::Member& ProcessCluster::member(const std::string& name) {
  const auto found = members_.find(name);
  BATON_CHECK(found != members_.end()) << name;
  return found->second;
}

const ProcessCluster::Member& ProcessCluster::member(const std::string& name) const {
  return const_cast<ProcessCluster*>(this)->member(name);
}

std::string ProcessCluster::address(const std::string& name) const { return member(name).address; }

std::string ProcessCluster::metrics_address(const std::string& name) const {
  return member(name).metrics;
}

std::shared_ptr<grpc::Channel> ProcessCluster::channel(const std::string& name) {
  return member(name).channel;
}

std::vector<std::string> ProcessCluster::workers() const {
  std::vector<std::string> workers = names();
  workers.erase(std::remove_if(workers.begin(), workers.end(),
                               [](const auto& n) { return absl::StartsWith(n, "router"); }),
                workers.end());
  return workers;
}

std::vector<std::string> ProcessCluster::names() const {
  std::vector<std::string> names;
  for (const auto& [name, member] : members_) names.push_back(name);
  return names;
}

std::string ProcessCluster::Opener(uint16_t opener_port, uint16_t listen_port) const {
  std::map<pid_t, std::string> names;
  std::vector<pid_t> pids;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [name, pid] : pids_) {
      names[pid] = name;
      pids.push_back(pid);
    }
  }
  const auto owner = SocketOwner(opener_port, listen_port, pids);
  return owner ? names[*owner] : "unknown";
}

absl::StatusOr<std::vector<baton::v1::WorkerStatus>> ProcessCluster::Workers(
    const std::string& router) {
  grpc::ClientContext context;
  context.set_wait_for_ready(true);
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(10)));
  baton::v1::ListWorkersResponse response;
  const grpc::Status status =
      baton::v1::AdminService::NewStub(channel(router))->ListWorkers(&context, {}, &response);
  if (!status.ok()) return FromGrpcStatus(status);
  return std::vector<baton::v1::WorkerStatus>(response.workers().begin(), response.workers().end());
}

absl::Status ProcessCluster::AwaitReady(const std::string& router, absl::Duration limit) {
  for (const std::string& worker : workers()) {
    BATON_RETURN_IF_ERROR(AwaitState(
        router, worker, [](const auto& w) { return w.state() == baton::v1::WORKER_STATE_READY; },
        limit));
  }
  return absl::OkStatus();
}

absl::Status ProcessCluster::AwaitState(
    const std::string& router, const std::string& worker,
    const std::function<bool(const baton::v1::WorkerStatus&)>& wished, absl::Duration limit) {
  const absl::Time end = absl::Now() + limit;
  std::string last = "nothing";
  do {
    std::vector<baton::v1::WorkerStatus> statuses;
    BATON_ASSIGN_OR_RETURN(statuses, Workers(router));
    for (const baton::v1::WorkerStatus& status : statuses) {
      if (status.address() != member(worker).proxied) continue;
      if (wished(status)) return absl::OkStatus();
      last = status.ShortDebugString();
    }
    absl::SleepFor(kTick);
  } while (absl::Now() < end);
  return absl::DeadlineExceededError(absl::StrCat(router, " says of ", worker, ": ", last));
}

std::vector<std::string> ProcessCluster::Crashes() {
  std::vector<std::string> crashes;
  for (auto& [name, member] : members_) {
    if (member.process == nullptr || member.process->running()) continue;
    // What tests do to processes leaves KILL or a good end; all else is the process' own doing.
    if (member.process->ended_well() || member.process->end() == "was killed by signal 9") continue;
    crashes.push_back(absl::StrCat(name, " ", member.process->end()));
  }
  return crashes;
}

}  // namespace baton::testing
