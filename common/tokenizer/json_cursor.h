// Typed reading of a tokenizer.json. Errors: INVALID_ARGUMENT with reason "BAD_TOKENIZER", naming
// the file, the path inside it, what was expected and what was found. Thread-safe once parsed.
#ifndef BATON_COMMON_TOKENIZER_JSON_CURSOR_H_
#define BATON_COMMON_TOKENIZER_JSON_CURSOR_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/json/json.h"

namespace baton::tokenizer {

class JsonDocument;

// One value and its path in the document. Valid as long as the document.
class JsonCursor {
 public:
  bool is_null() const;
  bool is_string() const;
  bool is_array() const;

  // Returns the member `key`; an error if this is no object or has no such member.
  absl::StatusOr<JsonCursor> Get(absl::string_view key) const;
  // Returns the member `key` if it is present and not null.
  std::optional<JsonCursor> Find(absl::string_view key) const;
  // Refuses an object that has other members: an option that is not understood changes the result.
  absl::Status AllowOnly(std::initializer_list<absl::string_view> keys) const;

  absl::StatusOr<std::string> String() const;
  absl::StatusOr<bool> Bool() const;
  // Returns an integer from 0 to max.
  absl::StatusOr<int64_t> Integer(int64_t max) const;
  // Returns the member `key`, or `otherwise` if it is absent or null.
  absl::StatusOr<bool> BoolOr(absl::string_view key, bool otherwise) const;

  // Both stop at the first error, and return one if this is no array, or no object.
  absl::Status ForEachElement(absl::FunctionRef<absl::Status(const JsonCursor&)> visit) const;
  absl::Status ForEachMember(
      absl::FunctionRef<absl::Status(absl::string_view key, const JsonCursor&)> visit) const;

  // "<file>: <path>: <message>"
  absl::Status Error(absl::string_view message) const;
  // "<file>: <path>: expected <expected>, found <this value, shortened>"
  absl::Status Expected(absl::string_view expected) const;

 private:
  friend class JsonDocument;
  JsonCursor(const json::Value& value, absl::string_view origin, std::string path)
      : value_(&value), origin_(origin), path_(std::move(path)) {}

  const json::Value* value_;
  absl::string_view origin_;
  std::string path_;
};

class JsonDocument {
 public:
  // Refuses what json::Parse refuses, with a size bound far above the largest tokenizers.
  static absl::StatusOr<JsonDocument> Parse(absl::string_view text, absl::string_view origin);

  JsonDocument(JsonDocument&&) noexcept;
  JsonDocument& operator=(JsonDocument&&) noexcept;
  ~JsonDocument();

  JsonCursor root() const;

 private:
  struct Parsed;
  explicit JsonDocument(std::unique_ptr<Parsed> parsed);

  std::unique_ptr<Parsed> parsed_;
};

}  // namespace baton::tokenizer

#endif  // BATON_COMMON_TOKENIZER_JSON_CURSOR_H_
