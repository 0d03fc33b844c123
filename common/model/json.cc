#include "common/model/json.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"

namespace baton::model {
namespace {

constexpr size_t kMaxDepth = 32;
constexpr size_t kMaxValues = size_t{1} << 16;
constexpr size_t kMaxNameInMessage = 120;

std::string Printable(absl::string_view name) {
  if (name.size() <= kMaxNameInMessage) return absl::CHexEscape(name);
  return absl::StrCat(absl::CHexEscape(name.substr(0, kMaxNameInMessage)), "...");
}

// Turns the parser's events into a visitor's, with the path of each.
class Walk : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Walk(JsonVisitor& visitor) : visitor_(visitor) {}
  const absl::Status& status() const { return status_; }

  bool null() override { return Scalar({}); }
  bool boolean(bool value) override {
    return Scalar({.kind = JsonScalar::Kind::kBool, .boolean = value});
  }
  bool number_integer(number_integer_t value) override {
    return Scalar(
        {.kind = JsonScalar::Kind::kInteger, .integer = value, .real = static_cast<double>(value)});
  }
  bool number_unsigned(number_unsigned_t value) override {
    if (value <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return number_integer(static_cast<int64_t>(value));
    }
    return Scalar({.kind = JsonScalar::Kind::kReal, .real = static_cast<double>(value)});
  }
  bool number_float(number_float_t value, const string_t&) override {
    return Scalar({.kind = JsonScalar::Kind::kReal, .real = value});
  }
  bool string(string_t& value) override {
    return Scalar({.kind = JsonScalar::Kind::kString, .text = std::move(value)});
  }
  bool binary(binary_t&) override { return Stop(absl::InvalidArgumentError("binary value")); }

  bool start_object(std::size_t) override { return Begin(/*is_array=*/false); }
  bool start_array(std::size_t) override { return Begin(/*is_array=*/true); }
  bool end_object() override { return End(); }
  bool end_array() override { return End(); }
  bool key(string_t& name) override {
    if (!keys_.back().insert(name).second) {
      return Stop(absl::InvalidArgumentError(
          absl::StrCat("key ", Quoted(name), " stands twice in one object")));
    }
    path_.back().key = std::move(name);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& error) override {
    return Stop(absl::InvalidArgumentError(
        absl::StrCat("not valid JSON at byte ", position, ": ", Printable(error.what()))));
  }

 private:
  bool Stop(absl::Status status) {
    if (status.ok()) return true;
    status_ = std::move(status);
    return false;
  }
  // An element of an array has no key event: each value that starts in one moves the index on.
  void EnterValue() {
    if (path_.empty() || !path_.back().in_array) return;
    JsonStep& step = path_.back();
    if (started_.back()) ++step.index;
    started_.back() = true;
  }
  bool Scalar(JsonScalar scalar) {
    EnterValue();
    return Stop(visitor_.OnScalar(path_, scalar));
  }
  bool Begin(bool is_array) {
    EnterValue();
    if (path_.size() >= kMaxDepth) {
      return Stop(absl::InvalidArgumentError(
          absl::StrCat("nested deeper than ", kMaxDepth, " at ", PathText(path_))));
    }
    if (!Stop(visitor_.OnBegin(path_, is_array))) return false;
    path_.push_back({.in_array = is_array});
    started_.push_back(false);
    keys_.emplace_back();
    return true;
  }
  bool End() {
    path_.pop_back();
    started_.pop_back();
    keys_.pop_back();
    return Stop(visitor_.OnEnd(path_));
  }

  JsonVisitor& visitor_;
  absl::Status status_;
  std::vector<JsonStep> path_;
  std::vector<bool> started_;                           // parallel to path_: an element was seen
  std::vector<absl::flat_hash_set<std::string>> keys_;  // parallel to path_
};

class TreeBuilder : public JsonVisitor {
 public:
  absl::Status OnScalar(JsonPath path, const JsonScalar& scalar) override {
    BATON_RETURN_IF_ERROR(Count(path));
    Add(path)->scalar = scalar;
    return absl::OkStatus();
  }
  absl::Status OnBegin(JsonPath path, bool is_array) override {
    BATON_RETURN_IF_ERROR(Count(path));
    JsonValue* value = Add(path);
    value->kind = is_array ? JsonValue::Kind::kArray : JsonValue::Kind::kObject;
    open_.push_back(value);
    return absl::OkStatus();
  }
  absl::Status OnEnd(JsonPath) override {
    open_.pop_back();
    return absl::OkStatus();
  }
  JsonValue Take() { return std::move(root_); }

 private:
  absl::Status Count(JsonPath path) {
    if (++count_ <= kMaxValues) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("more than ", kMaxValues, " values, at ", PathText(path)));
  }
  // Pointers in open_ stay good: only the innermost open value's items grow.
  JsonValue* Add(JsonPath path) {
    if (open_.empty()) return &root_;
    JsonValue* parent = open_.back();
    if (parent->kind == JsonValue::Kind::kObject) parent->keys.push_back(path.back().key);
    return &parent->items.emplace_back();
  }

  JsonValue root_;
  std::vector<JsonValue*> open_;
  size_t count_ = 0;
};

void AppendCanonical(const JsonValue& value, std::string* out) {
  if (value.kind == JsonValue::Kind::kScalar) {
    absl::StrAppend(out, ScalarText(value.scalar));
    return;
  }
  const bool is_object = value.kind == JsonValue::Kind::kObject;
  std::vector<size_t> order(value.items.size());
  std::iota(order.begin(), order.end(), size_t{0});
  if (is_object) {
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return value.keys[a] < value.keys[b]; });
  }
  out->push_back(is_object ? '{' : '[');
  for (size_t i : order) {
    if (is_object) absl::StrAppend(out, "\"", absl::CHexEscape(value.keys[i]), "\":");
    AppendCanonical(value.items[i], out);
    out->push_back(',');
  }
  out->push_back(is_object ? '}' : ']');
}

}  // namespace

std::string Quoted(absl::string_view name) { return absl::StrCat("\"", Printable(name), "\""); }

std::string PathText(JsonPath path) {
  std::string text;
  for (const JsonStep& step : path) {
    if (step.in_array) {
      absl::StrAppend(&text, "[", step.index, "]");
    } else {
      absl::StrAppend(&text, text.empty() ? "" : ".", Printable(step.key));
    }
  }
  return text.empty() ? "the document" : text;
}

std::string ScalarText(const JsonScalar& scalar) {
  switch (scalar.kind) {
    case JsonScalar::Kind::kNull:
      return "null";
    case JsonScalar::Kind::kBool:
      return scalar.boolean ? "true" : "false";
    case JsonScalar::Kind::kInteger:
      return absl::StrCat(scalar.integer);
    case JsonScalar::Kind::kReal:
      return absl::StrFormat("%.17g", scalar.real);
    case JsonScalar::Kind::kString:
      return absl::StrCat("\"", absl::CHexEscape(scalar.text), "\"");
  }
  return "";
}

absl::Status VisitJson(absl::string_view text, absl::string_view file, JsonVisitor& visitor) {
  Walk walk(visitor);
  if (nlohmann::json::sax_parse(text.begin(), text.end(), &walk)) return absl::OkStatus();
  return Annotate(walk.status(), file);
}

const JsonValue* JsonValue::Find(absl::string_view key) const {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i] == key) return &items[i];
  }
  return nullptr;
}

absl::StatusOr<JsonValue> ParseJson(absl::string_view text, absl::string_view file) {
  TreeBuilder builder;
  BATON_RETURN_IF_ERROR(VisitJson(text, file, builder));
  return builder.Take();
}

std::string CanonicalText(const JsonValue& value) {
  std::string text;
  AppendCanonical(value, &text);
  return text;
}

}  // namespace baton::model
