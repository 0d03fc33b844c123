#include "common/base/log.h"

#include <limits.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace baton {
namespace {

std::atomic<LogLevel> g_level{LogLevel::kInfo};

std::string& Component() {
  static std::string* const component = new std::string();
  return *component;
}

constexpr const char* kNames[] = {"debug", "info", "warning", "error"};

// A full or closed stderr must not stop the server: the caller may hold a lock that all requests
// need. If poll() reports a pipe as writable, it takes PIPE_BUF bytes without blocking, as all
// writers of this process hold mutex_.
class Stderr {
 public:
  void Write(std::string line) {
    absl::MutexLock lock(&mutex_);
    if (lost_ > 0) absl::StrAppend(&line, "(", lost_, " lines before this one were lost)\n");
    if (line.size() > PIPE_BUF) {
      line.resize(PIPE_BUF - 1);
      line += '\n';
    }
    pollfd stderr_ready = {STDERR_FILENO, POLLOUT, 0};
    const bool takes = poll(&stderr_ready, 1, 0) == 1 && (stderr_ready.revents & POLLOUT) != 0;
    const bool written = takes && write(STDERR_FILENO, line.data(), line.size()) > 0;
    lost_ = written ? 0 : lost_ + 1;
  }

 private:
  absl::Mutex mutex_;
  int64_t lost_ ABSL_GUARDED_BY(mutex_) = 0;
};

Stderr& TheStderr() {
  static Stderr* const the_stderr = new Stderr();
  return *the_stderr;
}

// Names in a message may come from a peer, which must not write lines or escape sequences of a
// terminal into the log.
std::string WithoutControls(std::string text) {
  const auto is_control = [](char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); };
  if (std::none_of(text.begin(), text.end(), is_control)) return text;
  std::string safe;
  for (const char c : text) {
    if (is_control(c)) {
      absl::StrAppend(&safe, "\\x", absl::Hex(static_cast<unsigned char>(c), absl::kZeroPad2));
    } else {
      safe.push_back(c);
    }
  }
  return safe;
}

}  // namespace

void SetLogLevel(LogLevel level) { g_level = level; }

bool ParseLogLevel(absl::string_view text, LogLevel* level) {
  for (int i = 0; i < 4; ++i) {
    if (text == kNames[i]) {
      *level = static_cast<LogLevel>(i);
      return true;
    }
  }
  return false;
}

bool LogEnabled(LogLevel level) { return level >= g_level.load(std::memory_order_relaxed); }

void SetLogComponent(absl::string_view component) { Component() = std::string(component); }

LogLine::~LogLine() {
  std::string line =
      absl::StrCat(absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone()), " ",
                   kNames[static_cast<int>(level_)], " ", Component(),
                   Component().empty() ? "" : " ", WithoutControls(stream_.str()), "\n");
  TheStderr().Write(std::move(line));
}

}  // namespace baton
