#include "benchmarks/serving/loopback_cluster.h"

#include <errno.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/cpp/client.h"
#include "common/base/check.h"
#include "common/base/resident_memory.h"
#include "common/base/status_macros.h"

namespace baton::benchmarks {
namespace {

// Address files, readiness and output are looked for this often: nothing announces them.
constexpr absl::Duration kTick = absl::Milliseconds(50);

std::vector<std::string> Words(const std::string& text) {
  return absl::StrSplit(text, ' ', absl::SkipWhitespace());
}

std::string OwnDirectory() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

absl::Status EndedError(const cli::ChildProcess& process) {
  return absl::UnavailableError(absl::StrCat(process.name(), " ", process.end(),
                                             ". Its last lines:\n  ",
                                             absl::StrJoin(process.last_lines(), "\n  ")));
}

}  // namespace

void Die(const absl::Status& status) {
  std::fprintf(stderr, "%s: %s\n", program_invocation_short_name,
               std::string(status.message()).c_str());
  std::fflush(nullptr);
  // Without destructors, which would wait for threads such as this one. The kernel kills the
  // clusters' processes when this one ends.
  std::_Exit(1);
}

void AddClusterFlags(CLI::App* app, ClusterOptions* options) {
  app->add_option("--model", options->model_dir, "Hugging Face directory of the model")
      ->check(CLI::ExistingDirectory);
  app->add_option("--bin-dir", options->bin_dir, "Where baton's programs are; beside this one");
  app->add_option("--worker-flags", options->worker_flags, "For workers of both kinds");
  app->add_option("--prefill-flags", options->prefill_flags, "For prefill workers");
  app->add_option("--decode-flags", options->decode_flags, "For decode workers");
  app->add_option("--router-flags", options->router_flags, "For the router");
}

absl::StatusOr<std::unique_ptr<LoopbackCluster>> LoopbackCluster::Start(
    const ClusterOptions& options) {
  std::unique_ptr<LoopbackCluster> cluster(new LoopbackCluster(options));
  BATON_RETURN_IF_ERROR(cluster->StartAll());
  return cluster;
}

LoopbackCluster::~LoopbackCluster() {
  stopping_ = true;
  if (listener_.joinable()) listener_.join();
  {
    absl::MutexLock lock(&mutex_);
    members_.clear();
  }
  std::error_code ignored;
  if (!work_dir_.empty()) std::filesystem::remove_all(work_dir_, ignored);
}

absl::Status LoopbackCluster::StartAll() {
  std::string pattern = (std::filesystem::temp_directory_path() / "baton-bench-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot make a directory like ", pattern));
  }
  work_dir_ = pattern;
  listener_ = std::thread([this] { Listen(); });
  const absl::Time deadline = absl::Now() + options_.ready_timeout;
  std::vector<std::string> router_flags = Words(options_.router_flags);
  const auto start_workers = [&](const std::string& role, int count,
                                 const std::string& flags) -> absl::Status {
    std::vector<std::string> words = Words(options_.worker_flags), addresses;
    for (std::string& word : Words(flags)) words.push_back(std::move(word));
    for (int i = 0; i < count; ++i) {
      BATON_RETURN_IF_ERROR(
          StartMember(absl::StrCat(role, "-", i), absl::StrCat("baton-", role, "-worker"), words));
    }
    for (int i = 0; i < count; ++i) {
      BATON_ASSIGN_OR_RETURN(std::string address,
                             AwaitAddress(absl::StrCat(role, "-", i), deadline));
      addresses.push_back(std::move(address));
    }
    if (count == 0) return absl::OkStatus();
    router_flags.push_back(absl::StrCat("--", role, "-workers"));
    router_flags.push_back(absl::StrJoin(addresses, ","));
    return absl::OkStatus();
  };
  BATON_RETURN_IF_ERROR(start_workers("prefill", options_.prefill_workers, options_.prefill_flags));
  BATON_RETURN_IF_ERROR(start_workers("decode", options_.decode_workers, options_.decode_flags));
  for (int i = 0; i < options_.routers; ++i) {
    const std::string name = i == 0 ? "router" : absl::StrCat("router-", i);
    BATON_RETURN_IF_ERROR(StartMember(name, "baton-router", router_flags));
    BATON_ASSIGN_OR_RETURN(std::string address, AwaitAddress(name, deadline));
    BATON_RETURN_IF_ERROR(AwaitReady(address, deadline));
    addresses_.push_back(std::move(address));
  }
  return absl::OkStatus();
}

absl::Status LoopbackCluster::StartMember(const std::string& name, const std::string& binary,
                                          std::vector<std::string> flags) {
  const std::string path =
      absl::StrCat(options_.bin_dir.empty() ? OwnDirectory() : options_.bin_dir, "/", binary);
  if (access(path.c_str(), X_OK) != 0) {
    return absl::NotFoundError(absl::StrCat(path, " is not there; build it or set --bin-dir"));
  }
  Member member;
  member.name = name;
  // Later flags win where CLI11 takes the last; what is said here is not for callers to change.
  member.command = {
      path,          "--model", options_.model_dir, "--address-file", AddressFile(name),
      "--log-level", "warning"};
  member.command.insert(member.command.end(), flags.begin(), flags.end());
  BATON_RETURN_IF_ERROR(Launch(member, {"127.0.0.1:0", "127.0.0.1:0"}));
  absl::MutexLock lock(&mutex_);
  members_.push_back(std::move(member));
  return absl::OkStatus();
}

absl::Status LoopbackCluster::Launch(Member& member, const BoundAddresses& listen) {
  std::vector<std::string> argv = member.command;
  argv.insert(argv.end(), {"--listen", listen.grpc, "--metrics-listen", listen.metrics});
  BATON_ASSIGN_OR_RETURN(member.process, cli::ChildProcess::Start(member.name, argv, ""));
  return absl::OkStatus();
}

absl::StatusOr<std::string> LoopbackCluster::AwaitAddress(const std::string& name,
                                                          absl::Time deadline) {
  while (absl::Now() < deadline) {
    BATON_RETURN_IF_ERROR(CheckAlive());
    if (auto bound = ReadAddressFile(AddressFile(name))) {
      absl::MutexLock lock(&mutex_);
      Find(name).bound = *bound;
      return bound->grpc;
    }
    absl::SleepFor(kTick);
  }
  return absl::DeadlineExceededError(absl::StrCat(name, " does not listen"));
}

absl::Status LoopbackCluster::AwaitReady(const std::string& router, absl::Time deadline) {
  BATON_ASSIGN_OR_RETURN(auto client, client::Client::Create(router, {absl::Seconds(1)}));
  size_t expected = 0;
  {
    absl::MutexLock lock(&mutex_);
    for (const Member& member : members_) {
      expected += member.process != nullptr && !absl::StartsWith(member.name, "router");
    }
  }
  std::string state = "unknown";
  while (absl::Now() < deadline) {
    BATON_RETURN_IF_ERROR(CheckAlive());
    const auto workers = client->ListWorkers();
    size_t ready = 0;
    for (const client::Worker& worker : workers.ok() ? *workers : std::vector<client::Worker>()) {
      if (worker.state == "ready") {
        ++ready;
      } else {
        state = absl::StrCat(worker.role, " worker ", worker.state, " ", worker.detail);
      }
    }
    if (ready == expected) return absl::OkStatus();
    absl::SleepFor(kTick);
  }
  return absl::DeadlineExceededError(absl::StrCat("the cluster is not ready: ", state));
}

void LoopbackCluster::Listen() {
  while (!stopping_) {
    {
      absl::MutexLock lock(&mutex_);
      for (Member& member : members_) {
        if (member.process == nullptr) continue;
        member.process->ReadLines([](const std::string&) {});
        member.process->Reap();
      }
    }
    absl::SleepFor(kTick);
  }
}

std::vector<std::pair<std::string, int64_t>> LoopbackCluster::ResidentBytes() const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::pair<std::string, int64_t>> bytes;
  for (const Member& member : members_) {
    const bool runs = member.process != nullptr && member.process->running();
    bytes.emplace_back(member.name, runs ? ResidentBytesOf(member.process->pid()) : 0);
  }
  return bytes;
}

absl::Status LoopbackCluster::CheckAlive() const {
  absl::MutexLock lock(&mutex_);
  for (const Member& member : members_) {
    if (member.process != nullptr && !member.process->running()) {
      return EndedError(*member.process);
    }
  }
  return absl::OkStatus();
}

std::string LoopbackCluster::AddressFile(const std::string& name) const {
  return absl::StrCat(work_dir_, "/", name);
}

size_t LoopbackCluster::Index(const std::string& name) const {
  const auto found = std::find_if(members_.begin(), members_.end(),
                                  [&name](const Member& member) { return member.name == name; });
  BATON_CHECK(found != members_.end()) << name;
  return static_cast<size_t>(found - members_.begin());
}

std::string LoopbackCluster::metrics_url(const std::string& name) const {
  absl::MutexLock lock(&mutex_);
  return absl::StrCat("http://", members_[Index(name)].bound.metrics);
}

void LoopbackCluster::Signal(const std::string& name, int signal) {
  absl::MutexLock lock(&mutex_);
  if (Member& member = Find(name); member.process != nullptr) member.process->Signal(signal);
}

void LoopbackCluster::Kill(const std::string& name) {
  absl::MutexLock lock(&mutex_);
  Find(name).process = nullptr;  // kills and reaps it
  // What it wrote of its addresses must not be taken for its successor's.
  std::error_code ignored;
  std::filesystem::remove(AddressFile(name), ignored);
}

absl::Status LoopbackCluster::Restart(const std::string& name) {
  const absl::Time deadline = absl::Now() + options_.ready_timeout;
  {
    absl::MutexLock lock(&mutex_);
    Member& member = Find(name);
    BATON_CHECK(member.process == nullptr) << name << " runs";
    BATON_RETURN_IF_ERROR(Launch(member, member.bound));
  }
  BATON_RETURN_IF_ERROR(AwaitAddress(name, deadline).status());
  for (const std::string& router : addresses_) {
    BATON_RETURN_IF_ERROR(AwaitReady(router, deadline));
  }
  return absl::OkStatus();
}

}  // namespace baton::benchmarks
