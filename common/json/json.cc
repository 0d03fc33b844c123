#include "common/json/json.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/error.h"
#include "common/base/json_string.h"
#include "common/base/status_macros.h"
#include "common/json/reader.h"
#include "nlohmann/json.hpp"

namespace baton::json {
namespace {

constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxNameInMessage = 120;

// Passes the reader's events to a visitor, with the path of each.
class Walk : public Events {
 public:
  explicit Walk(Visitor& visitor) : visitor_(visitor) {}
  const absl::Status& status() const { return status_; }

  bool OnValue(Scalar scalar) override {
    EnterValue();
    return Stop(visitor_.OnScalar(path(), std::move(scalar)));
  }
  bool OnBegin(bool is_array) override {
    EnterValue();
    if (depth_ >= kMaxDepth) {
      return Stop(absl::InvalidArgumentError(
          absl::StrCat("nested deeper than ", kMaxDepth, " at ", PathText(path()))));
    }
    if (!Stop(visitor_.OnBegin(path(), is_array))) return false;
    if (depth_ == path_.size()) {
      path_.emplace_back();
      levels_.emplace_back();
    }
    Step& step = path_[depth_];
    step.in_array = is_array;
    step.index = 0;
    step.key.clear();
    levels_[depth_].Clear();
    ++depth_;
    return true;
  }
  bool OnEnd() override {
    --depth_;
    return Stop(visitor_.OnEnd(path()));
  }
  bool OnKey(std::string name) override {
    if (!levels_[depth_ - 1].AddKey(name)) {
      return Stop(absl::InvalidArgumentError(
          absl::StrCat("key ", Quoted(name), " appears twice in one object")));
    }
    path_[depth_ - 1].key = std::move(name);
    return true;
  }

 private:
  // What an open value has had so far.
  class Level {
   public:
    void Clear() {
      started = false;
      few_.clear();
      many_.clear();
    }
    // False if the object has it already.
    bool AddKey(const std::string& name) {
      if (few_.size() < kFew) {
        if (std::find(few_.begin(), few_.end(), name) != few_.end()) return false;
        few_.push_back(name);
        return true;
      }
      if (many_.empty()) many_.insert(few_.begin(), few_.end());
      return many_.insert(name).second;
    }

    bool started = false;  // an element was seen

   private:
    static constexpr size_t kFew = 8;
    std::vector<std::string> few_;           // the first keys, which take no hashing
    absl::flat_hash_set<std::string> many_;  // all keys, where there are more
  };

  Path path() const { return absl::MakeConstSpan(path_).first(depth_); }
  bool Stop(absl::Status status) {
    if (status.ok()) return true;
    status_ = std::move(status);
    return false;
  }
  // An element of an array has no key event: each value that starts in one increments the index.
  void EnterValue() {
    if (depth_ == 0 || !path_[depth_ - 1].in_array) return;
    if (levels_[depth_ - 1].started) ++path_[depth_ - 1].index;
    levels_[depth_ - 1].started = true;
  }

  Visitor& visitor_;
  absl::Status status_;
  // The first depth_ of these are open; the others wait to be used again.
  std::vector<Step> path_;
  std::vector<Level> levels_;  // parallel to path_
  size_t depth_ = 0;
};

void AppendCanonical(const Value& value, std::string* out) {
  if (value.kind == Value::Kind::kScalar) {
    absl::StrAppend(out, ScalarText(value.scalar));
    return;
  }
  const bool is_object = value.kind == Value::Kind::kObject;
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

void AppendText(const Value& value, std::string* out) {
  if (value.kind == Value::Kind::kScalar) {
    if (value.scalar.kind == Scalar::Kind::kString) return AppendJsonString(value.scalar.text, out);
    const bool is_real = value.scalar.kind == Scalar::Kind::kReal && value.scalar.text.empty();
    out->append(is_real ? nlohmann::json(value.scalar.real).dump() : ScalarText(value.scalar));
    return;
  }
  const bool is_object = value.kind == Value::Kind::kObject;
  out->push_back(is_object ? '{' : '[');
  for (size_t i = 0; i < value.items.size(); ++i) {
    if (i > 0) out->push_back(',');
    if (is_object) {
      AppendJsonString(value.keys[i], out);
      out->push_back(':');
    }
    AppendText(value.items[i], out);
  }
  out->push_back(is_object ? '}' : ']');
}

}  // namespace

std::string Printable(absl::string_view name) {
  if (name.size() <= kMaxNameInMessage) return absl::Utf8SafeCHexEscape(name);
  return absl::StrCat(absl::CHexEscape(name.substr(0, kMaxNameInMessage)), "...");
}

std::string Quoted(absl::string_view name) { return absl::StrCat("\"", Printable(name), "\""); }

std::string PathText(Path path) {
  std::string text;
  for (const Step& step : path) {
    if (step.in_array) {
      absl::StrAppend(&text, "[", step.index, "]");
    } else {
      absl::StrAppend(&text, text.empty() ? "" : ".", Printable(step.key));
    }
  }
  return text.empty() ? "the document" : text;
}

std::string ScalarText(const Scalar& scalar) {
  switch (scalar.kind) {
    case Scalar::Kind::kNull:
      return "null";
    case Scalar::Kind::kBool:
      return scalar.boolean ? "true" : "false";
    case Scalar::Kind::kInteger:
      return absl::StrCat(scalar.integer);
    case Scalar::Kind::kReal:
      return scalar.text.empty() ? absl::StrFormat("%.17g", scalar.real) : scalar.text;
    case Scalar::Kind::kString:
      return absl::StrCat("\"", absl::CHexEscape(scalar.text), "\"");
  }
  return "";
}

absl::Status Visit(absl::string_view text, absl::string_view file, Visitor& visitor) {
  Walk walk(visitor);
  std::string problem;
  switch (Read(text, walk, &problem)) {
    case ReadResult::kRead:
      break;
    case ReadResult::kStopped:
      return Annotate(walk.status(), file);
    case ReadResult::kMalformed:
      return Annotate(absl::InvalidArgumentError(problem), file);
  }
  return absl::OkStatus();
}

Value TextValue(std::string text) {
  Value value;
  value.scalar.kind = Scalar::Kind::kString;
  value.scalar.text = std::move(text);
  return value;
}

Value BoolValue(bool boolean) {
  Value value;
  value.scalar.kind = Scalar::Kind::kBool;
  value.scalar.boolean = boolean;
  return value;
}

Value ArrayValue() {
  Value value;
  value.kind = Value::Kind::kArray;
  return value;
}

Value ObjectValue() {
  Value value;
  value.kind = Value::Kind::kObject;
  return value;
}

Value& AddMember(absl::string_view key, Value value, Value* object) {
  object->kind = Value::Kind::kObject;
  object->keys.emplace_back(key);
  return object->items.emplace_back(std::move(value));
}

int64_t CountValues(const Value& value) {
  int64_t count = 1;
  for (const Value& item : value.items) count += CountValues(item);
  return count;
}

const Value* Value::Find(absl::string_view key) const {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i] == key) return &items[i];
  }
  return nullptr;
}

Value* Value::Find(absl::string_view key) {
  return const_cast<Value*>(std::as_const(*this).Find(key));
}

absl::Status TreeBuilder::OnScalar(Path path, Scalar&& scalar) {
  BATON_RETURN_IF_ERROR(Count(path));
  Add(path)->scalar = std::move(scalar);
  return absl::OkStatus();
}

absl::Status TreeBuilder::OnBegin(Path path, bool is_array) {
  BATON_RETURN_IF_ERROR(Count(path));
  Value* value = Add(path);
  value->kind = is_array ? Value::Kind::kArray : Value::Kind::kObject;
  open_.push_back(value);
  return absl::OkStatus();
}

absl::Status TreeBuilder::OnEnd(Path) {
  open_.pop_back();
  return absl::OkStatus();
}

absl::Status TreeBuilder::Count(Path path) {
  if (++count_ <= max_values_) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("more than ", max_values_, " values, at ", PathText(path)));
}

// Pointers in open_ stay valid: only the innermost open value's items grow.
Value* TreeBuilder::Add(Path path) {
  if (open_.empty()) return &root_;
  Value* parent = open_.back();
  if (parent->kind == Value::Kind::kObject) parent->keys.push_back(path.back().key);
  return &parent->items.emplace_back();
}

absl::StatusOr<Value> Parse(absl::string_view text, absl::string_view file, size_t max_values) {
  TreeBuilder builder(max_values);
  BATON_RETURN_IF_ERROR(Visit(text, file, builder));
  return builder.Take();
}

std::string ToText(const Value& value) {
  std::string text;
  AppendText(value, &text);
  return text;
}

std::string CanonicalText(const Value& value) {
  std::string text;
  AppendCanonical(value, &text);
  return text;
}

}  // namespace baton::json
