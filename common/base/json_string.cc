#include "common/base/json_string.h"

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/base/utf8.h"

namespace baton {
namespace {

// Empty: the byte stands for itself.
std::string EscapeOf(char c) {
  if (c == '"') return "\\\"";
  if (c == '\\') return "\\\\";
  if (c == '\n') return "\\n";
  if (c == '\t') return "\\t";
  const auto byte = static_cast<unsigned char>(c);
  if (!absl::ascii_iscntrl(byte)) return "";
  return absl::StrCat("\\u", absl::Hex(byte, absl::kZeroPad4));
}

bool Continues(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

}  // namespace

void AppendJsonString(absl::string_view text, std::string* out, size_t max_bytes) {
  const std::string valid = ClipToUtf8(text, max_bytes);
  const size_t room = max_bytes - 2;
  size_t used = 0;
  out->push_back('"');
  for (size_t i = 0; i < valid.size();) {
    size_t end = i + 1;
    while (end < valid.size() && Continues(valid[end])) ++end;
    const std::string escape = EscapeOf(valid[i]);
    const absl::string_view next =
        escape.empty() ? absl::string_view(valid).substr(i, end - i) : escape;
    if (used + next.size() > room) break;
    used += next.size();
    out->append(next.data(), next.size());
    i = end;
  }
  out->push_back('"');
}

}  // namespace baton
