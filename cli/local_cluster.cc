#include "cli/local_cluster.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "common/base/check.h"
#include "common/base/status_macros.h"
#include "common/security/digest.h"
#include "common/security/shared_secret.h"

namespace baton::cli {
namespace {

constexpr char kReady[] = "ready", kRefused[] = "refused";
constexpr char kAnyPort[] = "127.0.0.1:0";
const BoundAddresses kAnyPorts = {kAnyPort, kAnyPort, ""};

std::string OwnDirectory() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

std::vector<std::string> Joined(std::vector<std::string> some,
                                const std::vector<std::string>& more) {
  some.insert(some.end(), more.begin(), more.end());
  return some;
}

bool IsRouter(const std::string& name) { return absl::StartsWith(name, "router"); }

}  // namespace

LocalCluster::LocalCluster(ClusterOptions options) : options_(std::move(options)) {}

LocalCluster::~LocalCluster() {
  members_.clear();
  std::error_code ignored;
  if (!keep_logs_ && !work_dir_.empty()) std::filesystem::remove_all(work_dir_, ignored);
}

absl::Status LocalCluster::Start() {
  std::string pattern = (std::filesystem::temp_directory_path() / "baton-cluster-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot make a directory like ", pattern));
  }
  work_dir_ = pattern;
  std::error_code error;
  if (!options_.log_dir.empty()) std::filesystem::create_directories(options_.log_dir, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("logs in ", options_.log_dir, ": ", error.message()));
  }
  BATON_RETURN_IF_ERROR(WriteSecret());
  BATON_RETURN_IF_ERROR(StartWorkers("prefill", options_.prefill_workers, options_.prefill_flags));
  BATON_RETURN_IF_ERROR(StartWorkers("decode", options_.decode_workers, options_.decode_flags));
  BATON_RETURN_IF_ERROR(AwaitBound(names_));
  for (const std::string& name : workers()) {
    Member& worker = member(name);
    worker.routed = worker.bound.grpc;
    if (!options_.routed_address) continue;
    BATON_ASSIGN_OR_RETURN(worker.routed, options_.routed_address(name, worker.bound.grpc));
  }
  return StartRouters();
}

// In a file that only this user can read: a command line is everyone's to read.
absl::Status LocalCluster::WriteSecret() {
  secret_ = security::RandomToken();
  const std::string line = secret_ + "\n";
  const int file = open(SecretFile().c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  const bool written =
      file >= 0 && write(file, line.data(), line.size()) == static_cast<ssize_t>(line.size());
  if (file >= 0) close(file);
  if (written) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("cannot write ", SecretFile()));
}

std::string LocalCluster::SecretFile() const { return absl::StrCat(work_dir_, "/worker.secret"); }

ChannelSecurity LocalCluster::worker_security() const {
  const CallHeaders headers = {{security::kWorkerSecretHeader, secret_}};
  return MakeChannelSecurity({}, [headers] { return headers; });
}

absl::Status LocalCluster::StartWorkers(const std::string& role, int count,
                                        const std::vector<std::string>& flags) {
  for (int i = 0; i < count; ++i) {
    const std::string name = absl::StrCat(role, "-", i);
    std::vector<std::string> all = Joined(options_.worker_flags, flags);
    if (options_.name_workers) all = Joined(std::move(all), {"--worker-id", name});
    BATON_RETURN_IF_ERROR(
        StartMember(name, absl::StrCat("baton-", role, "-worker"), all, kAnyPorts));
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::StartRouters() {
  std::vector<std::string> flags = options_.router_flags;
  for (const std::string role : {"prefill", "decode"}) {
    std::vector<std::string> addresses;
    for (const std::string& name : workers(role)) addresses.push_back(member(name).routed);
    if (role == "decode") addresses = Joined(addresses, options_.more_decode_addresses);
    if (addresses.empty()) continue;
    flags = Joined(flags, {absl::StrCat("--", role, "-workers"), absl::StrJoin(addresses, ",")});
  }
  for (int i = 0; i < options_.routers; ++i) {
    const std::string router = i == 0 ? "router" : absl::StrCat("router-", i);
    std::vector<std::string> own = flags;
    if (options_.router_tls) own = Joined(std::move(own), {"--listen-socket", SocketFile(router)});
    BATON_RETURN_IF_ERROR(
        StartMember(router, "baton-router", own,
                    {options_.listen, options_.metrics_listen, options_.http_listen}));
    BATON_RETURN_IF_ERROR(AwaitBound({router}));
    for (const std::string& worker : workers()) {
      absl::Status refused;
      const auto ready_or_refused = [&](const client::Worker& reported) {
        if (reported.state == kRefused) {
          refused = absl::FailedPreconditionError(
              absl::StrCat("the router refuses the ", reported.role, " worker at ",
                           reported.address, ": ", reported.detail));
        }
        return reported.state == kReady || reported.state == kRefused;
      };
      BATON_RETURN_IF_ERROR(
          AwaitState(router, worker, ready_or_refused, options_.ready_timeout, names_));
      BATON_RETURN_IF_ERROR(refused);
    }
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::StartMember(const std::string& name, const std::string& binary,
                                       const std::vector<std::string>& flags,
                                       BoundAddresses listen) {
  const std::string path =
      absl::StrCat(options_.bin_dir.empty() ? OwnDirectory() : options_.bin_dir, "/", binary);
  if (access(path.c_str(), X_OK) != 0) {
    return absl::NotFoundError(absl::StrCat(path, " is not there; it belongs beside `baton`"));
  }
  std::vector<std::string> command = {path,
                                      "--model",
                                      options_.model_dir,
                                      "--address-file",
                                      AddressFile(name),
                                      "--worker-secret-file",
                                      SecretFile(),
                                      "--log-level",
                                      options_.log_level,
                                      "--log-format",
                                      options_.log_format};
  if (!options_.otlp_traces_endpoint.empty()) {
    command = Joined(std::move(command), {"--otlp-traces-endpoint", options_.otlp_traces_endpoint});
  }
  Member& member = members_[name];
  member.command = Joined(std::move(command), flags);
  for (std::string* const address : {&listen.grpc, &listen.metrics, &listen.http}) {
    if (*address != kAnyPort) continue;
    BATON_ASSIGN_OR_RETURN(PortReservation port, PortReservation::Make());
    *address = port.address();
    member.ports.push_back(std::move(port));
  }
  BATON_RETURN_IF_ERROR(Launch(name, listen, {}));
  names_.push_back(name);
  return absl::OkStatus();
}

absl::Status LocalCluster::Launch(const std::string& name, const BoundAddresses& listen,
                                  const std::vector<std::string>& extra_flags) {
  Member& launched = member(name);
  // Another process' addresses must not be taken for this one's.
  std::error_code ignored;
  std::filesystem::remove(AddressFile(name), ignored);
  std::vector<std::string> argv =
      Joined(launched.command, {"--listen", listen.grpc, "--metrics-listen", listen.metrics});
  if (!listen.http.empty()) argv = Joined(std::move(argv), {"--http-listen", listen.http});
  argv = Joined(std::move(argv), extra_flags);
  const auto log_in = [&name](const std::string& directory) {
    return directory.empty() ? directory : absl::StrCat(directory, "/", name, ".log");
  };
  if (options_.on_line) {
    BATON_ASSIGN_OR_RETURN(launched.process,
                           ChildProcess::Start(name, argv, log_in(options_.log_dir)));
  } else {
    const std::string log = log_in(options_.log_dir.empty() ? work_dir_ : options_.log_dir);
    BATON_ASSIGN_OR_RETURN(launched.process, ChildProcess::StartLogged(name, argv, log));
  }
  absl::MutexLock lock(&mutex_);
  pids_[name] = launched.process->pid();
  return absl::OkStatus();
}

absl::Status LocalCluster::AwaitBound(const std::vector<std::string>& names) {
  return Await(options_.ready_timeout, names, [&](std::string* awaited) {
    for (const std::string& name : names) {
      const auto bound = ReadAddressFile(AddressFile(name));
      *awaited = absl::StrCat(name, " does not listen");
      if (!bound) return false;
      member(name).bound = *bound;
    }
    return true;
  });
}

absl::Status LocalCluster::Await(absl::Duration limit, const std::vector<std::string>& watched,
                                 const std::function<bool(std::string*)>& done) {
  const absl::Time end = absl::Now() + limit;
  for (std::string awaited; !done(&awaited);) {
    for (const std::string& name : watched) {
      if (!process(name).running()) return EndOf(name);
    }
    if (absl::Now() >= end) return absl::DeadlineExceededError(awaited);
    if (Listen(options_.tick)) return absl::CancelledError("stopped");
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::Restart(const std::string& name,
                                   const std::vector<std::string>& extra_flags) {
  const BoundAddresses listen = member(name).bound;
  Kill(name);
  BATON_RETURN_IF_ERROR(Launch(name, listen, extra_flags));
  return AwaitBound({name});
}

void LocalCluster::Signal(const std::string& name, int signal) {
  if (member(name).process != nullptr) process(name).Signal(signal);
}

void LocalCluster::Kill(const std::string& name) { member(name).process = nullptr; }

// A router with API keys takes the secret for an operator's.
absl::StatusOr<std::unique_ptr<client::Client>> LocalCluster::ClientOf(
    const std::string& router) const {
  client::ClientOptions options;
  options.timeout = absl::Seconds(5);
  options.max_retries = 0;
  options.wait_for_ready = false;
  options.headers = {{security::kWorkerSecretHeader, secret_}};
  return client::Client::Create(
      options_.router_tls ? absl::StrCat("unix:", SocketFile(router)) : address(router), options);
}

absl::StatusOr<std::vector<client::Worker>> LocalCluster::Workers(const std::string& router) {
  BATON_ASSIGN_OR_RETURN(auto client, ClientOf(router));
  return client->ListWorkers();
}

absl::Status LocalCluster::AwaitReady(const std::string& router, absl::Duration limit) {
  for (const std::string& worker : workers()) {
    if (member(worker).process == nullptr) continue;
    BATON_RETURN_IF_ERROR(AwaitState(
        router, worker, [](const client::Worker& reported) { return reported.state == kReady; },
        limit));
  }
  return absl::OkStatus();
}

absl::Status LocalCluster::AwaitState(const std::string& router, const std::string& worker,
                                      const std::function<bool(const client::Worker&)>& wished,
                                      absl::Duration limit) {
  return AwaitState(router, worker, wished, limit, {});
}

absl::Status LocalCluster::AwaitState(const std::string& router, const std::string& worker,
                                      const std::function<bool(const client::Worker&)>& wished,
                                      absl::Duration limit,
                                      const std::vector<std::string>& watched) {
  // Not kept: a router that stops waits for connections to close.
  BATON_ASSIGN_OR_RETURN(auto client, ClientOf(router));
  return Await(limit, watched, [&](std::string* awaited) {
    *awaited = absl::StrCat(router, " reports nothing of ", worker);
    const auto reported = client->ListWorkers();
    if (!reported.ok()) *awaited = absl::StrCat(router, ": ", reported.status().message());
    for (const client::Worker& one : reported.ok() ? *reported : std::vector<client::Worker>()) {
      if (one.address != member(worker).routed) continue;
      if (wished(one)) return true;
      *awaited = absl::StrCat(router, " reports ", worker, " as ", one.state, " ", one.detail);
    }
    return false;
  });
}

bool LocalCluster::Listen(absl::Duration timeout) {
  std::vector<pollfd> fds = {{options_.stop_fd, POLLIN, 0}};
  for (const auto& [name, member] : members_) {
    if (member.process == nullptr) continue;
    if (member.process->end().empty()) fds.push_back({member.process->end_fd(), POLLIN, 0});
    fds.push_back({member.process->output_fd(), POLLIN, 0});  // poll() ignores -1
  }
  poll(fds.data(), fds.size(), static_cast<int>(absl::ToInt64Milliseconds(timeout)));
  for (auto& [name, member] : members_) {
    if (member.process == nullptr) continue;
    ReadLines(*member.process);
    (void)member.process->running();  // reaps it
  }
  return (fds[0].revents & POLLIN) != 0;
}

void LocalCluster::ReadLines(ChildProcess& process) {
  process.ReadLines([&](const std::string& line) { options_.on_line(process.name(), line); });
}

absl::Status LocalCluster::EndOf(const std::string& name) {
  ChildProcess& ended = process(name);
  ReadLines(ended);
  return absl::AbortedError(absl::StrCat(name, " ", ended.end(), ". Its last lines:\n  ",
                                         absl::StrJoin(ended.last_lines(), "\n  ")));
}

absl::Status LocalCluster::CheckAlive() {
  for (auto& [name, member] : members_) {
    if (member.process != nullptr && !member.process->running()) {
      return EndOf(name);
    }
  }
  return absl::OkStatus();
}

std::vector<std::string> LocalCluster::workers(const std::string& role) const {
  std::vector<std::string> workers;
  for (const std::string& name : names_) {
    if (!IsRouter(name) && absl::StartsWith(name, role)) workers.push_back(name);
  }
  return workers;
}

std::vector<std::string> LocalCluster::workers() const { return workers(""); }

std::string LocalCluster::AddressFile(const std::string& name) const {
  return absl::StrCat(work_dir_, "/", name, ".address");
}

std::string LocalCluster::SocketFile(const std::string& router) const {
  return absl::StrCat(work_dir_, "/", router, ".socket");
}

ChildProcess& LocalCluster::process(const std::string& name) {
  BATON_CHECK(member(name).process != nullptr) << name << " was killed";
  return *member(name).process;
}

std::map<std::string, pid_t> LocalCluster::pids() const {
  absl::MutexLock lock(&mutex_);
  return pids_;
}

LocalCluster::Member& LocalCluster::member(const std::string& name) {
  const auto found = members_.find(name);
  BATON_CHECK(found != members_.end()) << name;
  return found->second;
}

const LocalCluster::Member& LocalCluster::member(const std::string& name) const {
  return const_cast<LocalCluster*>(this)->member(name);
}

}  // namespace baton::cli
