// Logs to stderr, one line per state change and never one per token: time, level, component,
// message. (Debian 12 has an Abseil without absl/log.)
#ifndef BATON_COMMON_BASE_LOG_H_
#define BATON_COMMON_BASE_LOG_H_

#include <sstream>
#include <string>

#include "absl/strings/string_view.h"

namespace baton {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Drops lines below this level, which starts as kInfo. Thread-safe.
void SetLogLevel(LogLevel level);
// Accepts "debug", "info", "warning" and "error"; returns false for anything else.
bool ParseLogLevel(absl::string_view text, LogLevel* level);
bool LogEnabled(LogLevel level);
// Sets the component in every line, e.g. "prefill-0". Call it before the first thread starts.
void SetLogComponent(absl::string_view component);

class LogLine {
 public:
  explicit LogLine(LogLevel level) : level_(level) {}
  ~LogLine();  // writes the line in one call, clipped to 4 KiB; drops it if stderr would block
  std::ostream& stream() { return stream_; }

 private:
  LogLevel level_;
  std::ostringstream stream_;
};

}  // namespace baton

#define BATON_LOG(level)                                \
  if (::baton::LogEnabled(::baton::LogLevel::k##level)) \
  ::baton::LogLine(::baton::LogLevel::k##level).stream()

#endif  // BATON_COMMON_BASE_LOG_H_
