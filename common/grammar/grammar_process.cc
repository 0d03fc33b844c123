#include "common/grammar/grammar_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/grammar/frames.h"

extern char** environ;

namespace baton::grammar {
namespace {

struct SocketPair {
  int parent = -1;
  int child = -1;
  ~SocketPair() {
    if (parent >= 0) close(parent);
    if (child >= 0) close(child);
  }
  bool Open() {
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) return false;
    parent = fds[0];
    // Above the child's numbers, so that one dup2 does not replace the source of the other.
    child = fcntl(fds[1], F_DUPFD_CLOEXEC, std::max(kControlFd, kMaskFd) + 1);
    close(fds[1]);
    return child >= 0;
  }
};

// posix_spawn with the two sockets; returns an errno.
int Spawn(const ProcessOptions& options, int control_fd, int mask_fd, pid_t* pid) {
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_init(&actions);
  posix_spawnattr_init(&attributes);
  posix_spawn_file_actions_adddup2(&actions, control_fd, kControlFd);
  posix_spawn_file_actions_adddup2(&actions, mask_fd, kMaskFd);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setpgroup(&attributes, 0);  // Ctrl-C is for the worker, which then ends it
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  const std::string parent = absl::StrCat(getpid());
  const std::string memory = absl::StrCat(options.memory_bytes);
  char* const argv[] = {const_cast<char*>(options.program.c_str()),
                        const_cast<char*>(parent.c_str()), const_cast<char*>(memory.c_str()),
                        nullptr};
  const int error = posix_spawn(pid, options.program.c_str(), &actions, &attributes, argv, environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

std::atomic<uint64_t> last_number = 0;

}  // namespace

GrammarProcess::GrammarProcess(pid_t pid, int control_fd, int mask_fd)
    : pid_(pid), control_fd_(control_fd), mask_fd_(mask_fd), number_(++last_number) {}

void WriteStatus(const absl::Status& status, FrameWriter& writer) {
  const std::string reason = ErrorReason(status);
  writer.Text(status.ok()      ? ""
              : reason.empty() ? "SCHEMA_INVALID"
                               : absl::string_view(reason))
      .Text(status.message());
}

absl::Status ReadStatus(FrameReader& reader) {
  const absl::string_view reason = reader.Text();
  const absl::string_view message = reader.Text();
  if (!reader.ok()) return absl::UnavailableError("the grammar process sent a malformed reply");
  if (reason.empty()) return absl::OkStatus();
  return InvalidField(reason, "structured_output", message);
}

absl::StatusOr<std::shared_ptr<GrammarProcess>> GrammarProcess::Start(
    const ProcessOptions& options) {
  SocketPair control, masks;
  if (!control.Open() || !masks.Open()) {
    return absl::UnavailableError(
        absl::StrCat("no sockets for ", options.program, ": ", strerror(errno)));
  }
  pid_t pid = -1;
  if (const int error = Spawn(options, control.child, masks.child, &pid); error != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot start ", options.program, ": ", strerror(error)));
  }
  std::shared_ptr<GrammarProcess> process(
      new GrammarProcess(pid, std::exchange(control.parent, -1), std::exchange(masks.parent, -1)));
  FrameWriter hello;
  hello.Number(static_cast<uint64_t>(Request::kHello))
      .Text(options.model_dir)
      .Number(static_cast<uint64_t>(options.token_count))
      .Ids(options.end_token_ids)
      .Number(static_cast<uint64_t>(absl::ToInt64Milliseconds(options.compile_cpu_limit)))
      .Number(static_cast<uint64_t>(absl::ToInt64Milliseconds(options.mask_cpu_limit)));
  close(std::exchange(control.child, -1));  // else the end of the child would not be seen
  close(std::exchange(masks.child, -1));
  BATON_RETURN_IF_ERROR(process->Control(hello.bytes(), options.start_limit).status());
  return process;
}

GrammarProcess::~GrammarProcess() {
  Kill();
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) continue;
  close(control_fd_);
  close(mask_fd_);
}

// Not reaped before the destructor, so the number is still the process's.
void GrammarProcess::Kill() { kill(pid_, SIGKILL); }

bool GrammarProcess::EndedAtCpuLimit() {
  Kill();
  siginfo_t end = {};
  while (waitid(P_PID, static_cast<id_t>(pid_), &end, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
    continue;
  }
  return end.si_code == CLD_KILLED && end.si_status == SIGPROF;
}

absl::StatusOr<std::string> GrammarProcess::Control(const std::string& request,
                                                    absl::Duration limit) {
  absl::MutexLock lock(&mutex_);
  const absl::Status sent = SendFrame(control_fd_, request, limit);
  const absl::StatusOr<std::string> reply =
      sent.ok() ? ReceiveFrame(control_fd_, limit) : absl::StatusOr<std::string>(sent);
  if (!reply.ok()) {
    Kill();
    return reply.status();
  }
  FrameReader reader(*reply);
  BATON_RETURN_IF_ERROR(ReadStatus(reader));
  return std::string(reader.Text());
}

absl::Status GrammarProcess::Load(uint64_t grammar_id, const std::string& serialized,
                                  absl::Duration limit) {
  {
    absl::MutexLock lock(&loaded_mutex_);
    if (loaded_.contains(grammar_id)) return absl::OkStatus();
  }
  FrameWriter request;
  request.Number(static_cast<uint64_t>(Request::kLoad)).Number(grammar_id).Text(serialized);
  BATON_RETURN_IF_ERROR(Control(request.bytes(), limit).status());
  absl::MutexLock lock(&loaded_mutex_);
  loaded_.insert(grammar_id);
  return absl::OkStatus();
}

void GrammarProcess::Unload(uint64_t grammar_id, absl::Duration limit) {
  {
    absl::MutexLock lock(&loaded_mutex_);
    if (loaded_.erase(grammar_id) == 0) return;
  }
  FrameWriter request;
  request.Number(static_cast<uint64_t>(Request::kUnload)).Number(grammar_id);
  // A process that does not answer is replaced by the next that needs it.
  Control(request.bytes(), limit).IgnoreError();
}

}  // namespace baton::grammar
