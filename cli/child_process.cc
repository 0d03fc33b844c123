#include "cli/child_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace baton::cli {
namespace {

constexpr size_t kLastLines = 20;       // shown if the child dies
constexpr size_t kMaxLineBytes = 8192;  // a longer line is cut in two

// Between fork and exec: async-signal-safe calls only.
[[noreturn]] void BecomeChild(char* const argv[], int output_fd, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // it died before the line above
  // Ctrl-C goes to the whole terminal group; our parent tells us itself, in order.
  setpgid(0, 0);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(output_fd, STDOUT_FILENO);
  dup2(output_fd, STDERR_FILENO);
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
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) BecomeChild(arguments.data(), fds[1], parent);
  close(fds[1]);
  if (pid < 0) {
    close(fds[0]);
    return absl::ResourceExhaustedError(absl::StrCat("cannot start ", name, ": ", strerror(errno)));
  }
  fcntl(fds[0], F_SETFL, O_NONBLOCK);
  return std::unique_ptr<ChildProcess>(new ChildProcess(name, pid, fds[0], log_path));
}

ChildProcess::ChildProcess(std::string name, pid_t pid, int output_fd, const std::string& log_path)
    : name_(std::move(name)), pid_(pid), output_fd_(output_fd) {
  if (!log_path.empty()) log_.open(log_path, std::ios::trunc);
}

ChildProcess::~ChildProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
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

void ChildProcess::Reap() {
  int status = 0;
  if (pid_ <= 0 || waitpid(pid_, &status, WNOHANG) != pid_) return;
  pid_ = -1;
  ended_well_ = WIFEXITED(status) && WEXITSTATUS(status) == 0;
  end_ = WIFSIGNALED(status) ? absl::StrCat("was killed by signal ", WTERMSIG(status))
                             : absl::StrCat("exited with code ", WEXITSTATUS(status));
}

void ChildProcess::Signal(int signal) {
  if (pid_ > 0) kill(pid_, signal);
}

}  // namespace baton::cli
