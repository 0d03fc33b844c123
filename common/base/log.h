// Logs to stderr, one line per state change and never one per token: time, level, component and
// message, as text or as a JSON object. (Debian 12 has an Abseil without absl/log.)
#ifndef BATON_COMMON_BASE_LOG_H_
#define BATON_COMMON_BASE_LOG_H_

#include <sstream>
#include <string>

#include "absl/strings/string_view.h"
#include "common/base/trace_context.h"

namespace baton {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// kJson: one object a line, with the members time (RFC 3339, UTC), severity, message and, where
// they are known, source (the component), request_id and trace_id. It is valid JSON whatever bytes
// the message has.
enum class LogFormat { kText, kJson };

// Drops lines below this level, which starts as kInfo. Thread-safe.
void SetLogLevel(LogLevel level);
// Accepts "debug", "info", "warning" and "error"; returns false for anything else.
bool ParseLogLevel(absl::string_view text, LogLevel* level);
bool LogEnabled(LogLevel level);
// Starts as kText. Thread-safe.
void SetLogFormat(LogFormat format);
// Accepts "text" and "json"; returns false for anything else.
bool ParseLogFormat(absl::string_view text, LogFormat* format);
// Sets the component in every line, e.g. "prefill-0". Call it before the first thread starts.
void SetLogComponent(absl::string_view component);

class LogLine {
 public:
  explicit LogLine(LogLevel level) : level_(level) {}
  // A line about one request, which text begins with. An invalid context is left out.
  LogLine(LogLevel level, absl::string_view request_id, const TraceContext& trace = {})
      : level_(level),
        request_id_(request_id),
        trace_id_(trace.valid() ? TraceIdText(trace) : std::string()) {}
  ~LogLine();  // writes the line in one call, clipped to 4 KiB; drops it if stderr would block
  std::ostream& stream() { return stream_; }

 private:
  const LogLevel level_;
  const std::string request_id_;
  const std::string trace_id_;
  std::ostringstream stream_;
};

}  // namespace baton

#define BATON_LOG(level)                                \
  if (::baton::LogEnabled(::baton::LogLevel::k##level)) \
  ::baton::LogLine(::baton::LogLevel::k##level).stream()

// Takes a request id, and perhaps a TraceContext.
#define BATON_REQUEST_LOG(level, ...)                   \
  if (::baton::LogEnabled(::baton::LogLevel::k##level)) \
  ::baton::LogLine(::baton::LogLevel::k##level, __VA_ARGS__).stream()

#endif  // BATON_COMMON_BASE_LOG_H_
