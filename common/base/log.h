// One line per state change, on stderr: time, level, thread's component, message.
// (Debian 12's Abseil is older than absl/log.) Never one line per token.
#ifndef BATON_COMMON_BASE_LOG_H_
#define BATON_COMMON_BASE_LOG_H_

#include <sstream>
#include <string>

#include "absl/strings/string_view.h"

namespace baton {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// Lines below this level are dropped. Thread-safe; kInfo at start.
void SetLogLevel(LogLevel level);
// "debug", "info", "warning", "error"; false for anything else.
bool ParseLogLevel(absl::string_view text, LogLevel* level);
bool LogEnabled(LogLevel level);
// The component in every line, e.g. "prefill-0". Call before the first thread starts.
void SetLogComponent(absl::string_view component);

class LogLine {
 public:
  explicit LogLine(LogLevel level) : level_(level) {}
  ~LogLine();  // writes it in one call; drops it where stderr would block; clips it at 4 KiB
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
