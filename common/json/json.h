// Reading of JSON from untrusted files: strict and bounded. A key that appears twice in one object
// is an error, as parsers disagree on which one counts. Keeps the JSON library out of other
// headers.
//
// Thread-safe; a Value is immutable once parsed.
#ifndef BATON_COMMON_JSON_JSON_H_
#define BATON_COMMON_JSON_JSON_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace baton::json {

struct Scalar {
  // Whole numbers are kInteger if an int64 holds them, else kReal, and `text` has their digits.
  enum class Kind : uint8_t { kNull, kBool, kInteger, kReal, kString };
  Kind kind = Kind::kNull;
  bool boolean = false;
  int64_t integer = 0;
  double real = 0;  // of both kinds of number
  std::string text = "";  // of a string, or the digits of such a number; else empty
};

// A step into an object (its key) or an array (its index).
struct Step {
  bool in_array = false;
  size_t index = 0;
  std::string key = "";
};
using Path = absl::Span<const Step>;

// "model.vocab", "added_tokens[3].id"; keys escaped, long ones cut: fit for a message.
std::string PathText(Path path);
std::string ScalarText(const Scalar& scalar);
// A name from an untrusted file, escaped and cut to a length that fits a message; and in quotes.
std::string Printable(absl::string_view name);
std::string Quoted(absl::string_view name);

// Visits a text value by value, without a tree in memory; an error stops it. `path` is that of
// the value (empty: the root) and lives for the call.
class Visitor {
 public:
  virtual ~Visitor() = default;
  // May take the scalar's text.
  virtual absl::Status OnScalar(Path path, Scalar&& scalar) = 0;
  virtual absl::Status OnBegin(Path path, bool is_array) = 0;
  virtual absl::Status OnEnd(Path path) { return absl::OkStatus(); }
};

// INVALID_ARGUMENT, naming `file`, if `text` is not JSON, has a key twice in one object, or nests
// deeper than 64; else what the visitor returned, prefixed with `file`.
absl::Status Visit(absl::string_view text, absl::string_view file, Visitor& visitor);

// A whole small document.
struct Value {
  enum class Kind : uint8_t { kScalar, kArray, kObject };
  Kind kind = Kind::kScalar;
  Scalar scalar;
  std::vector<std::string> keys;  // of an object, parallel to `items`
  std::vector<Value> items;

  const Value* Find(absl::string_view key) const;  // null if absent or no object
  Value* Find(absl::string_view key);
  bool is_null() const { return kind == Kind::kScalar && scalar.kind == Scalar::Kind::kNull; }
};

// Values that are made, not read.
Value TextValue(std::string text);
Value BoolValue(bool boolean);
Value ArrayValue();   // an empty one
Value ObjectValue();  // one without members
// Adds a member to an object, or to a null, which becomes one. The key must be new. Returns the
// value, which the next addition may move.
Value& AddMember(absl::string_view key, Value value, Value* object);

// The value and all in it.
int64_t CountValues(const Value& value);

inline constexpr size_t kMaxValues = size_t{1} << 16;
// Errors as Visit; INVALID_ARGUMENT also for more values than `max_values`.
absl::StatusOr<Value> Parse(absl::string_view text, absl::string_view file,
                            size_t max_values = kMaxValues);

// Builds a Value from a visit of one document: from all of it, or from the values that another
// visitor passes on, which may leave out members of objects.
class TreeBuilder : public Visitor {
 public:
  explicit TreeBuilder(size_t max_values) : max_values_(max_values) {}
  // INVALID_ARGUMENT for more values than `max_values`.
  absl::Status OnScalar(Path path, Scalar&& scalar) override;
  absl::Status OnBegin(Path path, bool is_array) override;
  absl::Status OnEnd(Path path) override;
  size_t values() const { return count_; }  // so far
  Value Take() { return std::move(root_); }

 private:
  absl::Status Count(Path path);
  Value* Add(Path path);

  const size_t max_values_;
  Value root_;
  std::vector<Value*> open_;
  size_t count_ = 0;
};

// JSON, its keys in the document's order.
std::string ToText(const Value& value);

// The same text for equal documents: keys sorted, no white space.
std::string CanonicalText(const Value& value);

}  // namespace baton::json

#endif  // BATON_COMMON_JSON_JSON_H_
