#include "common/tokenizer/json_cursor.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"

namespace baton::tokenizer {
namespace {

// The most JSON values. Vocabulary entries and merges, some as pairs, of today's largest tokenizers
// make about two million.
constexpr size_t kMaxValues = size_t{1} << 23;

absl::Status BadTokenizer(absl::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, "BAD_TOKENIZER", message);
}

std::string Shown(const json::Value& value) {
  if (value.kind == json::Value::Kind::kObject) return "an object";
  if (value.kind == json::Value::Kind::kArray) return "an array";
  return value.scalar.kind == json::Scalar::Kind::kString ? json::Quoted(value.scalar.text)
                                                          : json::ScalarText(value.scalar);
}

}  // namespace

struct JsonDocument::Parsed {
  std::string origin;
  json::Value root;
};

JsonDocument::JsonDocument(std::unique_ptr<Parsed> parsed) : parsed_(std::move(parsed)) {}
JsonDocument::JsonDocument(JsonDocument&&) noexcept = default;
JsonDocument& JsonDocument::operator=(JsonDocument&&) noexcept = default;
JsonDocument::~JsonDocument() = default;

absl::StatusOr<JsonDocument> JsonDocument::Parse(absl::string_view text, absl::string_view origin) {
  absl::StatusOr<json::Value> root = json::Parse(text, origin, kMaxValues);
  if (!root.ok()) return BadTokenizer(root.status().message());
  return JsonDocument(std::make_unique<Parsed>(Parsed{std::string(origin), *std::move(root)}));
}

JsonCursor JsonDocument::root() const {
  return JsonCursor(parsed_->root, parsed_->origin, std::string());
}

bool JsonCursor::is_null() const { return value_->is_null(); }
bool JsonCursor::is_string() const {
  return value_->kind == json::Value::Kind::kScalar &&
         value_->scalar.kind == json::Scalar::Kind::kString;
}
bool JsonCursor::is_array() const { return value_->kind == json::Value::Kind::kArray; }

absl::StatusOr<JsonCursor> JsonCursor::Get(absl::string_view key) const {
  if (value_->kind != json::Value::Kind::kObject) return Expected("an object");
  const json::Value* const member = value_->Find(key);
  if (member == nullptr) return Error(absl::StrCat("\"", key, "\" is missing"));
  return JsonCursor(*member, origin_,
                    path_.empty() ? std::string(key) : absl::StrCat(path_, ".", key));
}

std::optional<JsonCursor> JsonCursor::Find(absl::string_view key) const {
  absl::StatusOr<JsonCursor> member = Get(key);
  if (!member.ok() || member->is_null()) return std::nullopt;
  return *std::move(member);
}

absl::Status JsonCursor::AllowOnly(std::initializer_list<absl::string_view> keys) const {
  return ForEachMember([&](absl::string_view key, const JsonCursor& member) {
    if (absl::c_linear_search(keys, key)) return absl::OkStatus();
    return member.Error(absl::StrCat("not an option that is understood here, expected ",
                                     absl::StrJoin(keys, ", ")));
  });
}

absl::StatusOr<std::string> JsonCursor::String() const {
  if (!is_string()) return Expected("a string");
  return value_->scalar.text;
}

absl::StatusOr<bool> JsonCursor::Bool() const {
  if (value_->kind != json::Value::Kind::kScalar ||
      value_->scalar.kind != json::Scalar::Kind::kBool) {
    return Expected("true or false");
  }
  return value_->scalar.boolean;
}

absl::StatusOr<int64_t> JsonCursor::Integer(int64_t max) const {
  const json::Scalar& scalar = value_->scalar;
  if (value_->kind != json::Value::Kind::kScalar || scalar.kind != json::Scalar::Kind::kInteger ||
      scalar.integer < 0 || scalar.integer > max) {
    return Expected(absl::StrCat("an integer of 0 to ", max));
  }
  return scalar.integer;
}

absl::StatusOr<bool> JsonCursor::BoolOr(absl::string_view key, bool otherwise) const {
  const std::optional<JsonCursor> member = Find(key);
  if (!member) return otherwise;
  return member->Bool();
}

absl::Status JsonCursor::ForEachElement(
    absl::FunctionRef<absl::Status(const JsonCursor&)> visit) const {
  if (!is_array()) return Expected("an array");
  size_t index = 0;
  for (const json::Value& element : value_->items) {
    BATON_RETURN_IF_ERROR(
        visit(JsonCursor(element, origin_, absl::StrCat(path_, "[", index++, "]"))));
  }
  return absl::OkStatus();
}

absl::Status JsonCursor::ForEachMember(
    absl::FunctionRef<absl::Status(absl::string_view key, const JsonCursor&)> visit) const {
  if (value_->kind != json::Value::Kind::kObject) return Expected("an object");
  const std::string prefix = path_.empty() ? std::string() : absl::StrCat(path_, ".");
  for (size_t i = 0; i < value_->items.size(); ++i) {
    const std::string& key = value_->keys[i];
    BATON_RETURN_IF_ERROR(visit(
        key, JsonCursor(value_->items[i], origin_, absl::StrCat(prefix, json::Printable(key)))));
  }
  return absl::OkStatus();
}

absl::Status JsonCursor::Error(absl::string_view message) const {
  return BadTokenizer(
      absl::StrCat(origin_, ": ", path_.empty() ? "the file" : path_, ": ", message));
}

absl::Status JsonCursor::Expected(absl::string_view expected) const {
  return Error(absl::StrCat("expected ", expected, ", found ", Shown(*value_)));
}

}  // namespace baton::tokenizer
