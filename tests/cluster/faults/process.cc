#include "tests/cluster/faults/process.h"

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

namespace baton::testing {
namespace {

// Between fork and exec: async-signal-safe calls only.
[[noreturn]] void BecomeChild(char* const argv[], int log_fd, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // it died before the line above
  setpgid(0, 0);                        // Ctrl-C is the parent's to handle
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  dup2(log_fd, STDOUT_FILENO);
  dup2(log_fd, STDERR_FILENO);
  syscall(SYS_close_range, 3u, ~0u, 0u);  // a socket of ours kept open there would never be cut
  execv(argv[0], argv);
  const char message[] = "cannot be executed\n";
  (void)!write(STDERR_FILENO, message, sizeof(message) - 1);
  _exit(127);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Process>> Process::Start(const std::vector<std::string>& argv,
                                                        const std::string& log_path) {
  const int log_fd = open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log_fd < 0) {
    return absl::UnavailableError(absl::StrCat("cannot write ", log_path, ": ", strerror(errno)));
  }
  std::vector<char*> arguments;
  for (const std::string& argument : argv) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) BecomeChild(arguments.data(), log_fd, parent);
  close(log_fd);
  if (pid < 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start ", argv[0], ": ", strerror(errno)));
  }
  const int pidfd = static_cast<int>(syscall(SYS_pidfd_open, pid, 0));
  if (pidfd < 0) {
    const std::string error = strerror(errno);
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return absl::UnavailableError(absl::StrCat("pidfd_open of ", argv[0], ": ", error));
  }
  return std::unique_ptr<Process>(new Process(pid, pidfd));
}

Process::~Process() {
  Signal(SIGKILL);
  AwaitEnd(absl::InfiniteDuration());
  close(pidfd_);
}

void Process::Signal(int signal) {
  if (end_.empty()) kill(pid_, signal);  // not reaped yet, so the number is still its own
}

bool Process::AwaitEnd(absl::Duration limit) {
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

}  // namespace baton::testing
