#include "cli/local_cluster.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/cpp/client.h"
#include "common/base/status_macros.h"

namespace baton::cli {
namespace {

// How often start-up looks for address files and readiness, which nothing announces.
constexpr absl::Duration kStartTick = absl::Milliseconds(50);
constexpr absl::Duration kIdleTick = absl::Seconds(1);

std::string OwnDirectory() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

}  // namespace

LocalCluster::LocalCluster(UpOptions options, std::ostream& out)
    : options_(std::move(options)), out_(out), in_place_progress_(isatty(STDOUT_FILENO) == 1) {}

LocalCluster::~LocalCluster() {
  members_.clear();
  std::error_code ignored;
  if (!work_dir_.empty()) std::filesystem::remove_all(work_dir_, ignored);
}

int LocalCluster::Run() {
  absl::Status status = StartWorkers();
  while (status.ok()) {
    if (Listen(ready_ ? kIdleTick : kStartTick)) {
      out_ << "Stopping." << std::endl;
      StopAll();
      return 0;
    }
    status = CheckAlive();
    if (status.ok() && !ready_) status = Advance();
  }
  out_ << "baton up: " << status.message() << std::endl;
  StopAll();
  return 1;
}

absl::Status LocalCluster::StartWorkers() {
  std::string pattern = (std::filesystem::temp_directory_path() / "baton-up-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) {
    return absl::UnavailableError(absl::StrCat("cannot make a directory like ", pattern));
  }
  work_dir_ = pattern;
  std::error_code error;
  if (!options_.log_dir.empty()) std::filesystem::create_directories(options_.log_dir, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("--log-dir ", options_.log_dir, ": ", error.message()));
  }
  std::vector<std::string> flags = {"--listen", "127.0.0.1:0", "--metrics-listen", "127.0.0.1:0"};
  flags.insert(flags.end(), options_.worker_flags.begin(), options_.worker_flags.end());
  for (int i = 0; i < options_.prefill_workers; ++i) {
    BATON_RETURN_IF_ERROR(StartMember(absl::StrCat("prefill-", i), "baton-prefill-worker", flags));
  }
  for (int i = 0; i < options_.decode_workers; ++i) {
    BATON_RETURN_IF_ERROR(StartMember(absl::StrCat("decode-", i), "baton-decode-worker", flags));
  }
  worker_count_ = members_.size();
  return absl::OkStatus();
}

absl::Status LocalCluster::StartRouter() {
  std::vector<std::string> prefill, decode;
  for (size_t i = 0; i < worker_count_; ++i) {
    const bool is_prefill = static_cast<int>(i) < options_.prefill_workers;
    (is_prefill ? prefill : decode).push_back(members_[i].bound->grpc);
  }
  router_started_ = true;
  return StartMember("router", "baton-router",
                     {"--listen", options_.listen, "--metrics-listen", options_.metrics_listen,
                      "--prefill-workers", absl::StrJoin(prefill, ","), "--decode-workers",
                      absl::StrJoin(decode, ","), "--drain-grace-ms",
                      absl::StrCat(absl::ToInt64Milliseconds(options_.stop_grace) / 2)});
}

absl::Status LocalCluster::StartMember(const std::string& name, const std::string& binary,
                                       std::vector<std::string> flags) {
  const std::string bin_dir = options_.bin_dir.empty() ? OwnDirectory() : options_.bin_dir;
  const std::string path = absl::StrCat(bin_dir, "/", binary);
  if (access(path.c_str(), X_OK) != 0) {
    return absl::NotFoundError(absl::StrCat(path, " is not there; it belongs beside `baton`"));
  }
  Member member;
  member.address_file = absl::StrCat(work_dir_, "/", name, ".address");
  std::vector<std::string> argv = {
      path,          "--model",         options_.model_dir, "--address-file", member.address_file,
      "--log-level", options_.log_level};
  argv.insert(argv.end(), flags.begin(), flags.end());
  const std::string log =
      options_.log_dir.empty() ? "" : absl::StrCat(options_.log_dir, "/", name, ".log");
  BATON_ASSIGN_OR_RETURN(member.process, ChildProcess::Start(name, argv, log));
  members_.push_back(std::move(member));
  return absl::OkStatus();
}

absl::Status LocalCluster::Advance() {
  bool all_bound = true;
  for (Member& member : members_) {
    if (!member.bound) member.bound = ReadAddressFile(member.address_file);
    all_bound = all_bound && member.bound.has_value();
  }
  if (!all_bound) return absl::OkStatus();
  return router_started_ ? CheckReady() : StartRouter();
}

absl::Status LocalCluster::CheckReady() {
  if (client_ == nullptr) {
    // Kept from call to call, so that a slow router has more than one call's time to answer.
    BATON_ASSIGN_OR_RETURN(client_,
                           client::Client::Create(members_.back().bound->grpc, {absl::Seconds(1)}));
  }
  const auto workers = client_->ListWorkers();
  if (!workers.ok()) return absl::OkStatus();  // not yet
  for (const client::Worker& worker : *workers) {
    if (worker.state == "refused") {
      return absl::FailedPreconditionError(absl::StrCat("the router refuses the ", worker.role,
                                                        " worker at ", worker.address, ": ",
                                                        worker.detail));
    }
    if (worker.state != "ready") return absl::OkStatus();
  }
  ready_ = true;
  PrintEndpoints();
  if (options_.ready_file.empty()) return absl::OkStatus();
  return WriteAddressFile(options_.ready_file, *members_.back().bound);
}

bool LocalCluster::Listen(absl::Duration timeout) {
  std::vector<pollfd> fds = {{signals_.fd(), POLLIN, 0}};
  for (const Member& member : members_) {
    if (member.process->output_fd() >= 0) fds.push_back({member.process->output_fd(), POLLIN, 0});
  }
  poll(fds.data(), fds.size(), static_cast<int>(absl::ToInt64Milliseconds(timeout)));
  for (Member& member : members_) {
    member.process->ReadLines(
        [&](const std::string& line) { PrintLine(member.process->name(), line); });
    member.process->Reap();
  }
  return signals_.Wait(absl::ZeroDuration());
}

absl::Status LocalCluster::CheckAlive() {
  for (Member& member : members_) {
    ChildProcess& process = *member.process;
    if (process.running()) continue;
    const bool fatal = !ready_ || &member == &members_.back();
    if (fatal) {
      return absl::AbortedError(absl::StrCat(process.name(), " ", process.end(),
                                             ". Its last lines:\n  ",
                                             absl::StrJoin(process.last_lines(), "\n  ")));
    }
    // What a cluster is for.
    if (!member.end_told) {
      out_ << "baton up: " << process.name() << " " << process.end() << "; the others go on"
           << std::endl;
    }
    member.end_told = true;
  }
  return absl::OkStatus();
}

void LocalCluster::StopAll() {
  // The router first: what runs may finish while the workers are still there.
  if (members_.size() > worker_count_) StopMembers(worker_count_, members_.size());
  StopMembers(0, members_.size());
}

void LocalCluster::StopMembers(size_t first, size_t last) {
  const auto any_runs = [&] {
    return std::any_of(members_.begin() + first, members_.begin() + last,
                       [](const Member& member) { return member.process->running(); });
  };
  const auto signal_all = [&](int signal) {
    for (size_t i = first; i < last; ++i) members_[i].process->Signal(signal);
  };
  signal_all(SIGTERM);
  const absl::Time end = absl::Now() + options_.stop_grace;
  while (any_runs() && absl::Now() < end) {
    if (Listen(kStartTick)) signal_all(SIGTERM);  // their second: they stop at once
  }
  if (!any_runs()) return;
  signal_all(SIGKILL);
  while (any_runs()) Listen(kStartTick);
}

void LocalCluster::PrintLine(const std::string& name, const std::string& line) {
  const bool progress = in_place_progress_ && absl::StrContains(line, "loading weights");
  if (progress) {
    out_ << "\r\033[K[" << name << "] " << line << std::flush;
  } else {
    out_ << (progress_shown_ ? "\n" : "") << "[" << name << "] " << line << std::endl;
  }
  progress_shown_ = progress;
}

void LocalCluster::PrintEndpoints() {
  const std::string address = members_.back().bound->grpc;
  out_ << "\nBaton is ready: gRPC at " << address << "\n"
       << "  try: baton generate \"Hello\" --address " << address << "\n"
       << "  metrics:\n";
  for (const Member& member : members_) {
    if (member.bound->metrics.empty()) continue;
    out_ << "    " << member.process->name() << "  http://" << member.bound->metrics
         << "/metrics\n";
  }
  out_ << "Ctrl-C stops it.\n" << std::endl;
}

}  // namespace baton::cli
