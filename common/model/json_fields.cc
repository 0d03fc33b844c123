#include "common/model/json_fields.h"

#include <limits>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace baton::model {
namespace {

std::string FoundText(const json::Value* found) {
  if (found == nullptr) return "nothing";
  if (found->kind == json::Value::Kind::kArray) return "a list";
  if (found->kind == json::Value::Kind::kObject) return "an object";
  if (found->scalar.kind == json::Scalar::Kind::kString) return json::Quoted(found->scalar.text);
  return json::ScalarText(found->scalar);
}

bool IsScalar(const json::Value* value, json::Scalar::Kind kind) {
  return value != nullptr && value->kind == json::Value::Kind::kScalar &&
         value->scalar.kind == kind;
}

// Of a number, or of what Transformers 5 writes where JSON has none: {"__float__": "Infinity"}.
std::optional<double> RealOf(const json::Value* value) {
  if (IsScalar(value, json::Scalar::Kind::kInteger) || IsScalar(value, json::Scalar::Kind::kReal)) {
    return value->scalar.real;
  }
  const json::Value* text = value == nullptr ? nullptr : value->Find("__float__");
  if (!IsScalar(text, json::Scalar::Kind::kString) || text->scalar.text != "Infinity") {
    return std::nullopt;
  }
  return std::numeric_limits<double>::infinity();
}

bool IsOff(const json::Value& value) {
  if (value.kind != json::Value::Kind::kScalar) return value.items.empty();
  switch (value.scalar.kind) {
    case json::Scalar::Kind::kNull:
      return true;
    case json::Scalar::Kind::kBool:
      return !value.scalar.boolean;
    case json::Scalar::Kind::kString:
      return value.scalar.text.empty();
    default:
      return value.scalar.real == 0;
  }
}

}  // namespace

absl::StatusOr<JsonFields> JsonFields::Make(const json::Value& value, std::string file) {
  if (value.kind != json::Value::Kind::kObject) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": found ", FoundText(&value), ", expected an object"));
  }
  return JsonFields(value, std::move(file), "");
}

const json::Value* JsonFields::Find(absl::string_view key) const {
  Ignore(key);
  const json::Value* value = object_->Find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

bool JsonFields::Has(absl::string_view key) const { return Find(key) != nullptr; }

bool JsonFields::IsNull(absl::string_view key) const {
  Ignore(key);
  const json::Value* value = object_->Find(key);
  return value != nullptr && value->is_null();
}

bool JsonFields::HasText(absl::string_view key) const {
  return IsScalar(Find(key), json::Scalar::Kind::kString);
}

bool JsonFields::HasObject(absl::string_view key) const {
  const json::Value* value = Find(key);
  return value != nullptr && value->kind == json::Value::Kind::kObject;
}

std::vector<std::string> JsonFields::Unread() const {
  std::vector<std::string> unread;
  for (size_t i = 0; i < object_->keys.size(); ++i) {
    if (!asked_for_->contains(object_->keys[i]) && !IsOff(object_->items[i])) {
      unread.push_back(object_->keys[i]);
    }
  }
  return unread;
}

std::optional<double> JsonFields::NumberOf(absl::string_view key) const {
  const json::Value* value = Find(key);
  if (!IsScalar(value, json::Scalar::Kind::kInteger) &&
      !IsScalar(value, json::Scalar::Kind::kReal)) {
    return std::nullopt;
  }
  return value->scalar.real;
}

std::string JsonFields::Found(absl::string_view key) const { return FoundText(Find(key)); }

std::string JsonFields::Message(absl::string_view key, absl::string_view message) const {
  return absl::StrCat(file_, ": ", prefix_, key, ": ", message);
}

absl::Status JsonFields::Invalid(absl::string_view key, absl::string_view message) const {
  return absl::InvalidArgumentError(Message(key, message));
}

absl::Status JsonFields::Unsupported(absl::string_view key, absl::string_view message) const {
  return absl::UnimplementedError(Message(key, message));
}

absl::Status JsonFields::Mismatch(absl::string_view key, const json::Value* found,
                                  absl::string_view expected) const {
  return Invalid(key, absl::StrCat("found ", FoundText(found), ", expected ", expected));
}

absl::StatusOr<int> JsonFields::ToInt(absl::string_view key, const json::Value* value, int lowest,
                                      int highest) const {
  if (!IsScalar(value, json::Scalar::Kind::kInteger) || value->scalar.integer < lowest ||
      value->scalar.integer > highest) {
    return Mismatch(key, value, absl::StrCat("an integer in [", lowest, ", ", highest, "]"));
  }
  return static_cast<int>(value->scalar.integer);
}

absl::StatusOr<int> JsonFields::Int(absl::string_view key, int lowest, int highest) const {
  return ToInt(key, Find(key), lowest, highest);
}

absl::StatusOr<std::optional<int>> JsonFields::OptionalInt(absl::string_view key, int lowest,
                                                           int highest) const {
  if (!Has(key)) return std::nullopt;
  return ToInt(key, Find(key), lowest, highest);
}

absl::StatusOr<double> JsonFields::ToReal(absl::string_view key, const json::Value* value,
                                          double lowest, double highest) const {
  const std::optional<double> number = RealOf(value);
  if (!number || !(*number >= lowest && *number <= highest)) {
    return Mismatch(key, value, absl::StrCat("a number in [", lowest, ", ", highest, "]"));
  }
  return *number;
}

absl::StatusOr<double> JsonFields::Real(absl::string_view key, double lowest,
                                        double highest) const {
  return ToReal(key, Find(key), lowest, highest);
}

absl::StatusOr<std::optional<double>> JsonFields::OptionalReal(absl::string_view key, double lowest,
                                                               double highest) const {
  if (!Has(key)) return std::nullopt;
  return Real(key, lowest, highest);
}

absl::StatusOr<int> JsonFields::IntOr(absl::string_view key, int lowest, int highest,
                                      int if_absent) const {
  return Has(key) ? Int(key, lowest, highest) : if_absent;
}

absl::StatusOr<double> JsonFields::RealOr(absl::string_view key, double lowest, double highest,
                                          double if_absent) const {
  return Has(key) ? Real(key, lowest, highest) : if_absent;
}

absl::StatusOr<bool> JsonFields::Bool(absl::string_view key, bool if_absent) const {
  const json::Value* value = Find(key);
  if (value == nullptr) return if_absent;
  if (!IsScalar(value, json::Scalar::Kind::kBool)) return Mismatch(key, value, "true or false");
  return value->scalar.boolean;
}

absl::StatusOr<std::optional<std::string>> JsonFields::OptionalString(absl::string_view key) const {
  const json::Value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (!IsScalar(value, json::Scalar::Kind::kString)) return Mismatch(key, value, "a string");
  return value->scalar.text;
}

absl::StatusOr<std::optional<JsonFields>> JsonFields::OptionalObject(absl::string_view key) const {
  const json::Value* value = Find(key);
  if (value == nullptr) return std::nullopt;
  if (value->kind != json::Value::Kind::kObject) return Mismatch(key, value, "an object");
  return JsonFields(*value, file_, absl::StrCat(prefix_, key, "."));
}

absl::StatusOr<std::vector<std::string>> JsonFields::Strings(absl::string_view key) const {
  std::vector<std::string> strings;
  const json::Value* value = Find(key);
  if (value == nullptr) return strings;
  if (value->kind != json::Value::Kind::kArray) return Mismatch(key, value, "a list of strings");
  for (const json::Value& item : value->items) {
    if (!IsScalar(&item, json::Scalar::Kind::kString)) {
      return Mismatch(absl::StrCat(key, "[", strings.size(), "]"), &item, "a string");
    }
    strings.push_back(item.scalar.text);
  }
  return strings;
}

absl::StatusOr<std::vector<double>> JsonFields::Reals(absl::string_view key, double lowest,
                                                      double highest) const {
  std::vector<double> numbers;
  const json::Value* value = Find(key);
  if (value == nullptr) return numbers;
  if (value->kind != json::Value::Kind::kArray) return Mismatch(key, value, "a list of numbers");
  for (const json::Value& item : value->items) {
    BATON_ASSIGN_OR_RETURN(const double number, ToReal(absl::StrCat(key, "[", numbers.size(), "]"),
                                                       &item, lowest, highest));
    numbers.push_back(number);
  }
  return numbers;
}

absl::StatusOr<std::vector<int>> JsonFields::Ints(absl::string_view key, int lowest,
                                                  int highest) const {
  std::vector<int> numbers;
  const json::Value* value = Find(key);
  if (value == nullptr) return numbers;
  if (value->kind != json::Value::Kind::kArray) {
    BATON_ASSIGN_OR_RETURN(const int number, ToInt(key, value, lowest, highest));
    numbers.push_back(number);
    return numbers;
  }
  for (const json::Value& item : value->items) {
    BATON_ASSIGN_OR_RETURN(const int number, ToInt(absl::StrCat(key, "[", numbers.size(), "]"),
                                                   &item, lowest, highest));
    numbers.push_back(number);
  }
  return numbers;
}

std::string SpellInfinities(absl::string_view text) {
  constexpr absl::string_view kInfinity = "Infinity";
  std::string spelled;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    if (!quoted && absl::StartsWith(text.substr(i), kInfinity)) {
      const bool minus = !spelled.empty() && spelled.back() == '-';
      if (minus) spelled.pop_back();
      absl::StrAppend(&spelled, "{\"__float__\": \"", minus ? "-" : "", kInfinity, "\"}");
      i += kInfinity.size() - 1;
      continue;
    }
    spelled.push_back(text[i]);
    if (text[i] == '"') quoted = !quoted;
    if (quoted && text[i] == '\\' && i + 1 < text.size()) spelled.push_back(text[++i]);
  }
  return spelled;
}

}  // namespace baton::model
