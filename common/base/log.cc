#include "common/base/log.h"

#include <unistd.h>

#include <atomic>

#include "absl/strings/str_cat.h"
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
  std::string line = absl::StrCat(
      absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::Now(), absl::UTCTimeZone()), " ",
      kNames[static_cast<int>(level_)], " ", Component(), Component().empty() ? "" : " ",
      stream_.str(), "\n");
  // A full or closed stderr must not stop the server; there is nowhere to report it to.
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace baton
