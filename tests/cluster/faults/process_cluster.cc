#include "tests/cluster/faults/process_cluster.h"

#include <filesystem>
#include <fstream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/rpc/channel.h"
#include "common/base/status_macros.h"
#include "tests/cluster/faults/socket_owner.h"

namespace baton::testing {
namespace {

uint16_t PortOf(const std::string& address) {
  int port = 0;
  BATON_CHECK(absl::SimpleAtoi(address.substr(address.rfind(':') + 1), &port)) << address;
  return static_cast<uint16_t>(port);
}

// bin/, beside the directory of the running test.
std::string ProductsDirectory() {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  return (self.parent_path().parent_path() / "bin").string();
}

}  // namespace

ClusterOptions::ClusterOptions() {
  model_dir = "models/demo";
  prefill_workers = decode_workers = 2;
  name_workers = true;
  tick = absl::Milliseconds(5);  // what rows measure is not much longer
}

absl::StatusOr<std::unique_ptr<ProcessCluster>> ProcessCluster::Start(ClusterOptions options) {
  std::unique_ptr<ProcessCluster> cluster;
  if (options.bin_dir.empty()) options.bin_dir = ProductsDirectory();
  std::vector<std::string>& flags = options.worker_flags;
  flags.insert(flags.end(), {"--threads", "1"});
  // Rows that strike within a transfer count its bytes in the proxy.
  if (std::find(flags.begin(), flags.end(), "--kv-transport") == flags.end()) {
    flags.insert(flags.end(), {"--kv-transport", "grpc"});
  }
  // Faults strike pairs: each prompt is a transfer.
  options.router_flags.insert(options.router_flags.end(), {"--max-local-prefill-tokens", "0"});
  std::ofstream list;
  if (!options.workers_file.empty()) {
    options.router_flags.insert(options.router_flags.end(),
                                {"--workers-file", options.workers_file});
    list.open(options.workers_file);
  }
  // Called by Start() below, and not after it.
  options.routed_address = [&](const std::string& name,
                               const std::string& address) -> absl::StatusOr<std::string> {
    BATON_ASSIGN_OR_RETURN(const std::string routed,
                           cluster->proxy_->AddTarget(name, PortOf(address)));
    if (!options.workers_file.empty()) {
      list << name.substr(0, name.find('-')) << ' ' << routed << std::endl;
      if (!list) return absl::UnavailableError("cannot write " + options.workers_file);
    }
    return routed;
  };
  cluster.reset(new ProcessCluster(options));
  BATON_ASSIGN_OR_RETURN(
      cluster->proxy_,
      TcpProxy::Start([raw = cluster.get()](
                          uint16_t opener, uint16_t listen) { return raw->Opener(opener, listen); },
                      options.seed));
  if (absl::Status status = cluster->LocalCluster::Start(); !status.ok()) {
    cluster->KeepLogs();
    return absl::Status(status.code(),
                        absl::StrCat(status.message(), "; logs are in ", cluster->work_dir()));
  }
  return cluster;
}

std::shared_ptr<grpc::Channel> ProcessCluster::channel(const std::string& name) {
  const pid_t now = pid(name);
  absl::MutexLock lock(&channels_mutex_);
  auto& [of, channel] = channels_[name];
  // A new one has no failed attempts to connect to wait for.
  if (of != now) channel = MakeChannel(address(name), kPeerChannel, worker_security());
  of = now;
  return channel;
}

std::string ProcessCluster::Opener(uint16_t opener_port, uint16_t listen_port) const {
  std::map<pid_t, std::string> names;
  std::vector<pid_t> candidates;
  for (const auto& [name, pid] : pids()) {
    names[pid] = name;
    candidates.push_back(pid);
  }
  const auto owner = SocketOwner(opener_port, listen_port, candidates);
  return owner ? names[*owner] : "unknown";
}

std::vector<std::string> ProcessCluster::Crashes() {
  std::vector<std::string> crashes;
  for (const std::string& name : names()) {
    cli::ChildProcess& one = process(name);
    // What tests do to processes leaves KILL or a good end; all else is the process' own doing.
    if (one.running() || one.ended_well() || one.end() == "was killed by signal 9") continue;
    crashes.push_back(absl::StrCat(name, " ", one.end()));
  }
  return crashes;
}

}  // namespace baton::testing
