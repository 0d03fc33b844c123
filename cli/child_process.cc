#include "cli/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"

namespace baton::cli {
namespace {

constexpr size_t kLastLines = 20;       // shown if the child dies
constexpr size_t kMaxLineBytes = 8192;  // a longer line is cut in two

// Between fork and exec: async-signal-safe calls only.
[[noreturn]] void BecomeChild(char* const argv[], int output_fd, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // it died before the line above
  // Ctrl-C goes to the whole terminal group; the parent signals its children itself, in order.
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(output_fd, STDOUT_FILENO);
  dup2(output_fd, STDERR_FILENO);
  syscall(SYS_close_range, 3u, ~0u, 0u);  // a parent's socket kept open here would never be cut
  execv(argv[0], argv);
  const char message[] = "cannot be executed\n";
  (void)!write(STDERR_FILENO, message, sizeof(message) - 1);
  _exit(127);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Start(
    const std::string& name, const std::vector<std::string>& argv, const std::string& log_path) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) {
    return absl::ResourceExhaustedError(absl::StrCat("no pipe for ", name, ": ", strerror(errno)));
  }
  fcntl(fds[0], F_SETFL, O_NONBLOCK);
  return Fork(name, argv, fds[1], fds[0], log_path);
}

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::StartLogged(
    const std::string& name, const std::vector<std::string>& argv, const std::string& log_path) {
  const int fd = open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) {
    return absl::UnavailableError(absl::StrCat("cannot write ", log_path, ": ", strerror(errno)));
  }
  return Fork(name, argv, fd, -1, log_path);
}

absl::StatusOr<std::unique_ptr<ChildProcess>> ChildProcess::Fork(
    const std::string& name, const std::vector<std::string>& argv, int child_fd, int output_fd,
    const std::string& log_path) {
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) BecomeChild(arguments.data(), child_fd, parent);
  const int pidfd = pid < 0 ? -1 : static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  const std::string error = strerror(errno);
  close(child_fd);
  if (pidfd < 0) {
    if (output_fd >= 0) close(output_fd);
    if (pid > 0) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    return absl::ResourceExhaustedError(absl::StrCat("cannot start ", name, ": ", error));
  }
  return std::unique_ptr<ChildProcess>(new ChildProcess(name, pid, pidfd, output_fd, log_path));
}

ChildProcess::ChildProcess(std::string name, pid_t pid, int pidfd, int output_fd,
                           std::string log_path)
    : name_(std::move(name)),
      pid_(pid),
      pidfd_(pidfd),
      output_fd_(output_fd),
      logged_(output_fd < 0),
      log_path_(std::move(log_path)) {
  if (!logged_ && !log_path_.empty()) log_.open(log_path_, std::ios::trunc);
}

ChildProcess::~ChildProcess() {
  Signal(SIGKILL);
  AwaitEnd(absl::InfiniteDuration());
  close(pidfd_);
  if (output_fd_ >= 0) close(output_fd_);
}

void ChildProcess::ReadLines(const std::function<void(const std::string&)>& on_line) {
  char buffer[4096];
  while (output_fd_ >= 0) {
    const ssize_t count = read(output_fd_, buffer, sizeof(buffer));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return;  // nothing more for now
    if (count == 0) {
      close(output_fd_);
      output_fd_ = -1;
    }
    partial_line_.append(buffer, count);
    for (size_t end;
         (end = partial_line_.find('\n')) != std::string::npos ||
         (!partial_line_.empty() && (count == 0 || partial_line_.size() > kMaxLineBytes));) {
      const std::string line = partial_line_.substr(0, end);
      partial_line_.erase(0, end == std::string::npos ? end : end + 1);
      KeepLine(line);
      on_line(line);
    }
  }
}

void ChildProcess::KeepLine(const std::string& line) {
  last_lines_.push_back(line);
  if (last_lines_.size() > kLastLines) last_lines_.pop_front();
  if (log_.is_open()) log_ << line << "\n" << std::flush;
}

std::vector<std::string> ChildProcess::last_lines() const {
  std::deque<std::string> lines = last_lines_;
  std::ifstream log;
  if (logged_) log.open(log_path_);
  for (std::string line; std::getline(log, line);) {
    lines.push_back(line);
    if (lines.size() > kLastLines) lines.pop_front();
  }
  return {lines.begin(), lines.end()};
}

void ChildProcess::Signal(int signal) {
  if (end_.empty()) kill(pid_, signal);  // not reaped yet, so the number is still its own
}

bool ChildProcess::AwaitEnd(absl::Duration limit) {
  if (!end_.empty()) return true;
  const bool forever = limit == absl::InfiniteDuration();
  pollfd wait = {pidfd_, POLLIN, 0};
  const int timeout_ms = forever ? -1 : static_cast<int>(absl::ToInt64Milliseconds(limit));
  int ready;
  do {
    ready = poll(&wait, 1, timeout_ms);
  } while (ready < 0 && errno == EINTR);
  if (ready == 0) return false;
  int status = 0;
  BATON_CHECK_EQ(waitpid(pid_, &status, 0), pid_);
  ended_well_ = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  end_ = WIFSIGNALED(status) ? absl::StrCat("was killed by signal ", WTERMSIG(status))
                             : absl::StrCat("exited with code ", WEXITSTATUS(status));
  return true;
}

}  // namespace baton::cli
