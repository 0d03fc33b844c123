// JSON of untrusted files: strict, bounded, and never the last of two equal keys.
#ifndef BATON_COMMON_MODEL_JSON_H_
#define BATON_COMMON_MODEL_JSON_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace baton::model {

struct JsonScalar {
  // Whole numbers are kInteger if an int64 holds them, else kReal.
  enum class Kind : uint8_t { kNull, kBool, kInteger, kReal, kString };
  Kind kind = Kind::kNull;
  bool boolean = false;
  int64_t integer = 0;
  double real = 0;  // of both kinds of number
  std::string text = "";
};

// A step into an object (its key) or an array (its index).
struct JsonStep {
  bool in_array = false;
  size_t index = 0;
  std::string key = "";
};
using JsonPath = absl::Span<const JsonStep>;

// "model.vocab", "added_tokens[3].id"; keys escaped, long ones cut: fit for a message.
std::string PathText(JsonPath path);
std::string ScalarText(const JsonScalar& scalar);
// A name out of an untrusted file, in quotes, escaped and cut.
std::string Quoted(absl::string_view name);

// Sees a text value by value, without a tree in memory; an error stops the walk. `path` is that of
// the value (empty: the root) and lives for the call.
class JsonVisitor {
 public:
  virtual ~JsonVisitor() = default;
  virtual absl::Status OnScalar(JsonPath path, const JsonScalar& scalar) = 0;
  virtual absl::Status OnBegin(JsonPath path, bool is_array) = 0;
  virtual absl::Status OnEnd(JsonPath path) { return absl::OkStatus(); }
};

// INVALID_ARGUMENT, naming `file`, if `text` is not JSON, has a key twice in one object, or nests
// deeper than 32; else what the visitor returned, prefixed with `file`.
absl::Status VisitJson(absl::string_view text, absl::string_view file, JsonVisitor& visitor);

// A whole small document.
struct JsonValue {
  enum class Kind : uint8_t { kScalar, kArray, kObject };
  Kind kind = Kind::kScalar;
  JsonScalar scalar;
  std::vector<std::string> keys;  // of an object, parallel to `items`
  std::vector<JsonValue> items;

  const JsonValue* Find(absl::string_view key) const;  // null if absent or no object
  bool is_null() const { return kind == Kind::kScalar && scalar.kind == JsonScalar::Kind::kNull; }
};

// As VisitJson; INVALID_ARGUMENT also for more than 2^16 values.
absl::StatusOr<JsonValue> ParseJson(absl::string_view text, absl::string_view file);

// The same text for equal documents: keys sorted, no white space.
std::string CanonicalText(const JsonValue& value);

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_JSON_H_
