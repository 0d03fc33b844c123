// Writes a JSON object member by member.
#ifndef BATON_COMMON_GGUF_JSON_OBJECT_H_
#define BATON_COMMON_GGUF_JSON_OBJECT_H_

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace baton::gguf {

class JsonObject {
 public:
  void AddText(absl::string_view key, absl::string_view value);  // valid UTF-8
  void AddInteger(absl::string_view key, int64_t value);
  void AddReal(absl::string_view key, double value);  // finite; every bit of it is kept
  void AddBool(absl::string_view key, bool value);
  void AddJson(absl::string_view key, absl::string_view json);

  std::string Text() const { return "{" + members_ + "}"; }

 private:
  std::string members_;
};

}  // namespace baton::gguf

#endif  // BATON_COMMON_GGUF_JSON_OBJECT_H_
