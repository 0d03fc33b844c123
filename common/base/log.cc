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
#include "common/base/json_string.h"

namespace baton {
namespace {

std::atomic<LogLevel> g_level{LogLevel::kInfo};
std::atomic<LogFormat> g_format{LogFormat::kText};

std::string& Component() {
  static std::string* const component = new std::string();
  return *component;
}

constexpr const char* kNames[] = {"debug", "info", "warning", "error"};
// Bytes of the strings of a JSON line. What surrounds them is well below the rest of a line.
constexpr size_t kMaxJsonName = 512;
constexpr size_t kMaxJsonMessage = PIPE_BUF - 2 * kMaxJsonName - 512;

// The fields of a line. The line itself is made under Stderr's lock, which counts lost lines.
struct Fields {
  LogLevel level;
  absl::Time time;
  std::string message;
  const std::string& request_id;
  const std::string& trace_id;
};

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

std::string TextLine(const Fields& fields, int64_t lost) {
  std::string about;
  if (!fields.request_id.empty()) {
    about = absl::StrCat(
        "request ", fields.request_id,
        fields.trace_id.empty() ? "" : absl::StrCat(" (trace ", fields.trace_id, ")"), ": ");
  }
  std::string line = absl::StrCat(
      absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", fields.time, absl::UTCTimeZone()), " ",
      kNames[static_cast<int>(fields.level)], " ", Component(), Component().empty() ? "" : " ",
      WithoutControls(absl::StrCat(about, fields.message)), "\n");
  if (lost > 0) absl::StrAppend(&line, "(", lost, " lines before this one were lost)\n");
  return line;
}

std::string JsonLine(const Fields& fields, int64_t lost) {
  std::string line = absl::StrCat(
      "{\"time\":\"", absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", fields.time, absl::UTCTimeZone()),
      "\",\"severity\":\"", kNames[static_cast<int>(fields.level)], "\",\"message\":");
  AppendJsonString(fields.message, &line, kMaxJsonMessage);
  const auto add = [&line](absl::string_view name, absl::string_view value) {
    if (value.empty()) return;
    absl::StrAppend(&line, ",\"", name, "\":");
    AppendJsonString(value, &line, kMaxJsonName);
  };
  add("source", Component());
  add("request_id", fields.request_id);
  add("trace_id", fields.trace_id);
  if (lost > 0) absl::StrAppend(&line, ",\"lost_lines\":", lost);
  return line + "}\n";
}

// A full or closed stderr must not stop the server: the caller may hold a lock that all requests
// need. If poll() reports a pipe as writable, it takes PIPE_BUF bytes without blocking, as all
// writers of this process hold mutex_.
class Stderr {
 public:
  void Write(const Fields& fields) {
    absl::MutexLock lock(&mutex_);
    std::string line =
        g_format == LogFormat::kJson ? JsonLine(fields, lost_) : TextLine(fields, lost_);
    if (line.size() > PIPE_BUF) {  // text
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

void SetLogFormat(LogFormat format) { g_format = format; }

bool ParseLogFormat(absl::string_view text, LogFormat* format) {
  if (text != "text" && text != "json") return false;
  *format = text == "json" ? LogFormat::kJson : LogFormat::kText;
  return true;
}

LogLine::~LogLine() {
  TheStderr().Write({level_, absl::Now(), stream_.str(), request_id_, trace_id_});
}

}  // namespace baton
