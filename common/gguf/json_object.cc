#include "common/gguf/json_object.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/json_string.h"

namespace baton::gguf {

void JsonObject::AddText(absl::string_view key, absl::string_view value) {
  std::string quoted;
  AppendJsonString(value, &quoted);
  AddJson(key, quoted);
}

void JsonObject::AddInteger(absl::string_view key, int64_t value) {
  AddJson(key, absl::StrCat(value));
}

void JsonObject::AddReal(absl::string_view key, double value) {
  AddJson(key, absl::StrFormat("%.17g", value));
}

void JsonObject::AddBool(absl::string_view key, bool value) {
  AddJson(key, value ? "true" : "false");
}

void JsonObject::AddJson(absl::string_view key, absl::string_view json) {
  if (!members_.empty()) members_ += ", ";
  AppendJsonString(key, &members_);
  absl::StrAppend(&members_, ": ", json);
}

}  // namespace baton::gguf
