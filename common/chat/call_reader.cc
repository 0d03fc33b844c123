#include "common/chat/call_reader.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "common/chat/printing.h"
#include "common/chat/runtime.h"

namespace baton::chat {

bool IsBareName(absl::string_view name) {
  return !name.empty() && std::none_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_isspace(c) || c == '<' || c == '>' || c == '{' || c == '(';
  });
}

void StringWriter::Begin() {
  scanner_ = json::Scanner();
  scanner_.Push('[');
  piece_.clear();
  AddJson("\"");
}

bool StringWriter::Add(char c) {
  const bool is_plain = c != '"' && c != '\\' && static_cast<unsigned char>(c) >= 0x20;
  if (is_plain) return AddJson(absl::string_view(&c, 1));
  const std::string quoted = json::ToText(json::TextValue(std::string(1, c)));
  return AddJson(absl::string_view(quoted).substr(1, quoted.size() - 2));
}

bool StringWriter::AddJson(absl::string_view piece) {
  for (const char c : piece) {
    if (scanner_.Push(c) == json::Scanner::Event::kBroken) return false;
    piece_ += c;
  }
  return true;
}

bool StringWriter::End() { return AddJson("\""); }

std::string StringWriter::Take() {
  const size_t size = piece_.size() - scanner_.partial_bytes();
  std::string piece = piece_.substr(0, size);
  piece_.erase(0, size);
  return piece;
}

bool MemberWriter::BeginCall(absl::string_view name, CallWriter& out) {
  if (begun_) return true;
  if (!out.Begin(name)) return false;
  begun_ = true;
  out.Write("{");
  return true;
}

void MemberWriter::BeginMember(absl::string_view key, CallWriter& out) {
  skips_ = !keys_.insert(std::string(key)).second;
  Write(absl::StrCat(keys_.size() == 1 ? "" : ", ", json::ToText(json::TextValue(std::string(key))),
                     ": "),
        out);
}

void MemberWriter::Write(absl::string_view json, CallWriter& out) {
  if (!skips_) out.Write(json);
}

bool MemberWriter::WriteValue(const json::Value& value, CallWriter& out) {
  Runtime runtime(RenderLimits(), absl::UnixEpoch());
  const auto traced = runtime.FromJson(value, Origin::kTemplate);
  if (!traced.ok()) return false;
  const auto text = JsonOf(runtime, *traced, JsonStyle());
  if (!text.ok()) return false;
  Write(text->text, out);
  return true;
}

void MemberWriter::EndCall(CallWriter& out) {
  begun_ = false;
  skips_ = false;
  keys_.clear();
  out.Write("}");
  out.End();
}

}  // namespace baton::chat
