#include "cli/top.h"

#include <grpcpp/grpcpp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "baton/v1/admin.grpc.pb.h"
#include "cli/generate.h"
#include "cli/screen.h"
#include "cli/top_frame.h"
#include "cli/top_view.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/exit_code.h"
#include "common/base/rpc/grpc_status.h"
#include "common/base/shutdown_signal.h"

namespace baton::cli {
namespace {

// Calls of GetLoads, one at a time, whose end makes a file descriptor readable.
class LoadsCalls {
 public:
  explicit LoadsCalls(const std::shared_ptr<grpc::Channel>& channel)
      : stub_(v1::AdminService::NewStub(channel)), fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    BATON_CHECK_GE(fd_, 0) << "eventfd: errno " << errno;
  }
  ~LoadsCalls() {
    if (context_ != nullptr) {
      context_->TryCancel();
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&ended_));
    }
    close(fd_);
  }
  LoadsCalls(const LoadsCalls&) = delete;
  LoadsCalls& operator=(const LoadsCalls&) = delete;

  bool running() const { return context_ != nullptr; }
  int fd() const { return fd_; }

  // REQUIRES: !running().
  void Start(absl::Duration timeout) {
    {
      absl::MutexLock lock(&mutex_);
      ended_ = false;
    }
    response_.Clear();
    context_ = std::make_unique<grpc::ClientContext>();
    context_->set_deadline(absl::ToChronoTime(absl::Now() + timeout));
    stub_->async()->GetLoads(context_.get(), &request_, &response_,
                             [this](const grpc::Status& status) {
                               absl::MutexLock lock(&mutex_);
                               status_ = FromGrpcStatus(status);
                               ended_ = true;
                               (void)eventfd_write(fd_, 1);
                             });
  }
  // REQUIRES: fd() is readable.
  absl::StatusOr<v1::GetLoadsResponse> Take() {
    eventfd_t ignored;
    (void)eventfd_read(fd_, &ignored);
    absl::MutexLock lock(&mutex_);
    BATON_CHECK(ended_);
    context_.reset();
    if (!status_.ok()) return status_;
    return std::move(response_);
  }

 private:
  const std::unique_ptr<v1::AdminService::Stub> stub_;
  const int fd_;
  const v1::GetLoadsRequest request_;
  v1::GetLoadsResponse response_;  // the call's, while it runs
  std::unique_ptr<grpc::ClientContext> context_;
  absl::Mutex mutex_;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

class Top {
 public:
  Top(const TopOptions& options, std::ostream& out, std::ostream& err)
      : options_(options), out_(out), err_(err) {
    const char* term = std::getenv("TERM");
    const bool dumb = term == nullptr || std::string_view(term) == "dumb";
    const bool terminal = isatty(STDOUT_FILENO) == 1 && !dumb && !options.json;
    color_ = terminal && ColorsWanted();
    fills_screen_ = terminal && !options.once;
    view_.utf8 = LocaleIsUtf8();
    view_.address = options.address;
    view_.zone = absl::LocalTimeZone();
  }

  int Run() {
    const absl::StatusOr<std::shared_ptr<grpc::Channel>> channel =
        RouterChannel(options_.address, options_.access);
    if (!channel.ok()) return Fail(channel.status());
    calls_.emplace(*channel);
    const absl::Duration interval = absl::Seconds(options_.interval_s);
    const int64_t count = options_.once ? 1 : options_.frames;
    int64_t shown = 0;
    absl::Duration next = clock_.SinceStart();
    for (bool first = true;;) {
      if (!calls_->running() && clock_.SinceStart() >= next) {
        next = clock_.SinceStart() + interval;
        calls_->Start(absl::Milliseconds(options_.timeout_ms));
      }
      switch (Await(next)) {
        case Event::kNothing:
          continue;
        case Event::kQuit:
          return kExitOk;
        case Event::kSignal:
          return kExitInterrupted;
        case Event::kRedraw:
          Draw();
          continue;
        case Event::kAnswer:
          break;
      }
      frame_ = frames_.Add(calls_->Take());
      if (std::exchange(first, false)) {
        if (!frame_.status.ok()) return Fail(frame_.status);
        // It has no rates: a frame for the screen, and none for a program.
        if (fills_screen_) screen_.emplace(out_);
        Draw();
        continue;
      }
      Show();
      if (++shown == count) return frame_.status.ok() ? kExitOk : Fail(frame_.status);
    }
  }

 private:
  enum class Event { kNothing, kAnswer, kQuit, kSignal, kRedraw };

  // Until `next`, or without a limit while a call runs: it ends by its deadline.
  Event Await(absl::Duration next) {
    pollfd fds[] = {{signals_.fd(), POLLIN, 0},
                    {calls_->running() ? calls_->fd() : -1, POLLIN, 0},
                    {screen_ ? screen_->keys_fd() : -1, POLLIN, 0},
                    {screen_ ? resize_.fd() : -1, POLLIN, 0}};
    int timeout_ms = -1;
    if (!calls_->running()) {
      const absl::Duration left = std::max(absl::ZeroDuration(), next - clock_.SinceStart());
      timeout_ms =
          static_cast<int>(absl::ToInt64Milliseconds(absl::Ceil(left, absl::Milliseconds(1))));
    }
    while (poll(fds, std::size(fds), timeout_ms) < 0) BATON_CHECK_EQ(errno, EINTR);
    if (fds[0].revents != 0 && signals_.Wait(absl::ZeroDuration())) return Event::kSignal;
    if (fds[1].revents != 0) return Event::kAnswer;
    if (fds[2].revents != 0) return TakeKey();
    if (fds[3].revents != 0) {
      resize_.Take();
      return Event::kRedraw;
    }
    return Event::kNothing;
  }

  Event TakeKey() {
    switch (screen_->ReadKey().value_or('\0')) {
      case 'q':
        return Event::kQuit;
      case 's':
        view_.order = view_.order == TopOrder::kRate
                          ? TopOrder::kWorker
                          : static_cast<TopOrder>(static_cast<int>(view_.order) + 1);
        return Event::kRedraw;
      case 'r':
        view_.role = view_.role == v1::WORKER_ROLE_DECODE
                         ? v1::WORKER_ROLE_UNSPECIFIED
                         : static_cast<v1::WorkerRole>(static_cast<int>(view_.role) + 1);
        return Event::kRedraw;
      case '\x0c':  // Ctrl-L
        return Event::kRedraw;
      default:
        return Event::kNothing;
    }
  }

  void Draw() {
    if (!screen_) return;
    const ScreenSize size = TerminalSize();
    view_.width = size.columns;
    view_.height = size.rows;
    std::vector<std::string> lines;
    for (const TextLine& line : TopLines(frame_, view_)) lines.push_back(LineText(line, color_));
    screen_->Draw(lines);
  }

  void Show() {
    if (screen_) return Draw();
    if (options_.json) {
      out_ << FrameJson(frame_, options_.address) << std::endl;
      return;
    }
    view_.width = TerminalSize().columns;
    for (const TextLine& line : TopLines(frame_, view_)) out_ << LineText(line, color_) << "\n";
    if (!options_.once) out_ << "\n";  // between frames
    out_ << std::flush;
  }

  int Fail(const absl::Status& status) {
    screen_.reset();
    err_ << "baton top: " << Describe(status) << std::endl;
    return ExitCode(status);
  }

  const TopOptions& options_;
  std::ostream& out_;
  std::ostream& err_;
  const Clock& clock_ = Clock::Real();
  bool color_ = false;
  bool fills_screen_ = false;
  TopView view_;
  TopFrames frames_{clock_};
  TopFrame frame_;  // the last one
  ShutdownSignal signals_{BrokenPipe::kDefault};
  ResizeSignal resize_;
  std::optional<LoadsCalls> calls_;  // while Run() runs
  std::optional<Screen> screen_;
};

}  // namespace

int RunTop(const TopOptions& options, std::ostream& out, std::ostream& err) {
  return Top(options, out, err).Run();
}

}  // namespace baton::cli
