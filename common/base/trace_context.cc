#include "common/base/trace_context.h"

#include <algorithm>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace baton {
namespace {

constexpr size_t kTraceparentBytes = 55;  // of version 00; later versions may append fields
constexpr size_t kMaxStateBytes = 512;
constexpr size_t kMaxStateMembers = 32;
constexpr size_t kMaxKeyBytes = 256;
constexpr size_t kMaxValueBytes = 256;

// Reads all of `text` as lower-case hex digits. Upper-case ones are malformed here.
bool ReadHex(absl::string_view text, uint64_t* value) {
  *value = 0;
  for (const char c : text) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit && !(c >= 'a' && c <= 'f')) return false;
    *value = *value << 4 | static_cast<uint64_t>(digit ? c - '0' : c - 'a' + 10);
  }
  return true;
}

bool IsKeyCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '*' ||
         c == '/' || c == '@';
}

bool IsValueCharacter(char c) { return c >= ' ' && c <= '~' && c != ',' && c != '='; }

bool IsMember(absl::string_view member) {
  const size_t equals = member.find('=');
  if (equals == absl::string_view::npos || equals == 0 || equals > kMaxKeyBytes) return false;
  const absl::string_view key = member.substr(0, equals);
  const absl::string_view value = member.substr(equals + 1);
  const bool begins = absl::ascii_islower(static_cast<unsigned char>(key[0])) ||
                      absl::ascii_isdigit(static_cast<unsigned char>(key[0]));
  return begins && std::all_of(key.begin(), key.end(), IsKeyCharacter) && !value.empty() &&
         value.size() <= kMaxValueBytes &&
         std::all_of(value.begin(), value.end(), IsValueCharacter);
}

bool IsTracestate(absl::string_view state) {
  if (state.size() > kMaxStateBytes) return false;
  size_t members = 0;
  for (absl::string_view member : absl::StrSplit(state, ',')) {
    member = absl::StripAsciiWhitespace(member);
    if (member.empty()) continue;  // allowed between commas
    if (++members > kMaxStateMembers || !IsMember(member)) return false;
  }
  return members > 0;
}

}  // namespace

TraceContext ParseTraceContext(absl::string_view traceparent, absl::string_view tracestate) {
  const absl::string_view text = traceparent;
  if (text.size() < kTraceparentBytes) return {};
  uint64_t version, high, low, span, flags;
  if (text[2] != '-' || text[35] != '-' || text[52] != '-' ||
      !ReadHex(text.substr(0, 2), &version) || !ReadHex(text.substr(3, 16), &high) ||
      !ReadHex(text.substr(19, 16), &low) || !ReadHex(text.substr(36, 16), &span) ||
      !ReadHex(text.substr(53, 2), &flags)) {
    return {};
  }
  if (version == 0xff || (high | low) == 0 || span == 0) return {};
  if (text.size() > kTraceparentBytes && (version == 0 || text[kTraceparentBytes] != '-')) {
    return {};
  }
  TraceContext context{high, low, span, 0, ""};
  context.flags = flags & (TraceContext::kSampled | TraceContext::kRandomTraceId);
  if (IsTracestate(tracestate)) context.state = std::string(tracestate);
  return context;
}

std::string TraceIdText(const TraceContext& context) {
  return absl::StrCat(SpanIdText(context.trace_high), SpanIdText(context.trace_low));
}

std::string SpanIdText(uint64_t span_id) {
  return absl::StrCat(absl::Hex(span_id, absl::kZeroPad16));
}

std::string Traceparent(const TraceContext& context) {
  return absl::StrCat("00-", TraceIdText(context), "-", SpanIdText(context.span_id), "-",
                      absl::Hex(context.flags, absl::kZeroPad2));
}

}  // namespace baton
