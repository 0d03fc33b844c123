#include "common/chat/runtime.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"

namespace baton::chat {
namespace {

absl::Status LimitError(absl::string_view message) {
  return MakeError(absl::StatusCode::kResourceExhausted, "CHAT_TEMPLATE_LIMIT", message);
}

// Some templates put a message's role into a special token ('<|' ~ role ~ '|>'). The roles of
// OpenAI's API are words that a template could list as well, so they count as its text. Another
// role is the request's text: it might be "endoftext".
bool IsKnownRole(absl::string_view key, const json::Value& value) {
  static constexpr absl::string_view kRoles[] = {"system",    "developer", "user",
                                                 "assistant", "tool",      "function"};
  return key == "role" && value.kind == json::Value::Kind::kScalar &&
         value.scalar.kind == json::Scalar::Kind::kString &&
         std::find(std::begin(kRoles), std::end(kRoles), value.scalar.text) != std::end(kRoles);
}

}  // namespace

absl::Status Failure(absl::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, "CHAT_TEMPLATE_FAILED", message);
}

absl::Status Runtime::Step(size_t steps) {
  if (steps > limits_.max_steps - steps_) {
    return LimitError(absl::StrCat("the template takes more than ", limits_.max_steps, " steps"));
  }
  steps_ += steps;
  return absl::OkStatus();
}

absl::Status Runtime::CheckRoom(size_t bytes) const {
  if (heap_.live_bytes <= limits_.max_value_bytes &&
      bytes <= limits_.max_value_bytes - heap_.live_bytes) {
    return absl::OkStatus();
  }
  return LimitError(
      absl::StrCat("the template's values take more than ", limits_.max_value_bytes, " bytes"));
}

absl::Status Runtime::Level::Check() const {
  if (runtime_.level_ <= runtime_.limits_.max_depth) return absl::OkStatus();
  return LimitError(
      absl::StrCat("the template nests deeper than ", runtime_.limits_.max_depth, " levels"));
}

absl::StatusOr<Value> Runtime::MakeString(TracedText text, bool markup) {
  BATON_RETURN_IF_ERROR(StepForBytes(text.size() + text.trace_bytes()));
  const size_t bytes = sizeof(StringRep) + text.text.capacity() + text.trace_bytes();
  BATON_RETURN_IF_ERROR(CheckRoom(bytes));
  return Value(Kind::kString, std::make_shared<StringRep>(Charge(bytes), std::move(text), markup));
}

absl::StatusOr<Value> Runtime::MakeSequence(Flavor flavor, std::vector<Value> items) {
  BATON_RETURN_IF_ERROR(Step(1 + items.size() / 4));
  const size_t bytes = sizeof(SequenceRep) + items.capacity() * sizeof(Value);
  BATON_RETURN_IF_ERROR(CheckRoom(bytes));
  auto rep = std::make_shared<SequenceRep>(Charge(bytes), flavor, std::move(items));
  if (rep->depth > kMaxValueDepth) return LimitError("lists nest too deep");
  return Value(Kind::kSequence, std::move(rep));
}

absl::StatusOr<Value> Runtime::MakeDict(DictRep::Entries entries) {
  size_t other_keys = 0;
  for (const auto& [key, value] : entries) {
    if (!IsHashable(key)) return Failure(absl::StrCat("unhashable type: '", key.type_name(), "'"));
    if (!key.is_string()) ++other_keys;
  }
  BATON_RETURN_IF_ERROR(Step(1 + entries.size() * (1 + other_keys)));
  const size_t bytes =
      sizeof(DictRep) + entries.size() * (2 * sizeof(Value) + 2 * sizeof(absl::string_view));
  BATON_RETURN_IF_ERROR(CheckRoom(bytes));
  auto rep = std::make_shared<DictRep>(Charge(bytes), std::move(entries));
  if (rep->depth > kMaxValueDepth) return LimitError("dicts nest too deep");
  return Value(Kind::kDict, std::move(rep));
}

Value Runtime::MakeUndefined(std::string message) {
  const size_t bytes = sizeof(StringRep) + message.size();
  return Value(Kind::kUndefined,
               std::make_shared<StringRep>(Charge(bytes), TracedText(std::move(message)), false));
}

Value Runtime::Adopt(std::unique_ptr<Object> object) {
  const Object* const raw = adopted_.emplace_back(std::move(object)).get();
  return Value(Kind::kObject, std::shared_ptr<const Representation>(std::shared_ptr<void>(), raw));
}

absl::StatusOr<Value> Runtime::MakeName(std::string text, Origin origin) {
  // More than the messages of a chat have; each is compared with.
  constexpr size_t kMostNames = 16;
  for (const Value& name : names_) {
    if (name.text() == text && name.traced().origin() == origin) return name;
  }
  if (!IsUtf8(text)) return Failure("a key of a variable is not UTF-8");
  BATON_ASSIGN_OR_RETURN(Value made, MakeString(TracedText(std::move(text), origin)));
  if (names_.size() < kMostNames) names_.push_back(made);
  return made;
}

absl::StatusOr<Value> Runtime::FromJson(json::Value json, Origin origin, int depth) {
  if (depth > kMaxValueDepth) return LimitError("the variables nest too deep");
  if (json.kind == json::Value::Kind::kScalar) {
    switch (json.scalar.kind) {
      case json::Scalar::Kind::kNull:
        return Value::None();
      case json::Scalar::Kind::kBool:
        return Value::Bool(json.scalar.boolean);
      case json::Scalar::Kind::kInteger:
        return Value::Int(json.scalar.integer);
      case json::Scalar::Kind::kReal: {
        if (json.scalar.text.empty()) return Value::Float(json.scalar.real);
        BATON_ASSIGN_OR_RETURN(const Value digits,
                               MakeString(TracedText(std::move(json.scalar.text), origin)));
        return Value::Whole(json.scalar.real, digits);
      }
      case json::Scalar::Kind::kString:
        break;
    }
    variable_bytes_ += json.scalar.text.size();
    if (!IsUtf8(json.scalar.text)) return Failure("a variable is not UTF-8");
    return MakeString(TracedText(std::move(json.scalar.text), origin));
  }
  BATON_RETURN_IF_ERROR(CheckRoom(json.items.size() * sizeof(Value)));
  std::vector<Value> items;
  items.reserve(json.items.size());
  const bool is_object = json.kind == json::Value::Kind::kObject;
  for (size_t i = 0; i < json.items.size(); ++i) {
    Value value;
    if (is_object && i < json.keys.size() && IsKnownRole(json.keys[i], json.items[i])) {
      BATON_ASSIGN_OR_RETURN(value,
                             MakeName(std::move(json.items[i].scalar.text), Origin::kTemplate));
    } else {
      BATON_ASSIGN_OR_RETURN(value, FromJson(std::move(json.items[i]), origin, depth + 1));
    }
    items.push_back(std::move(value));
  }
  if (!is_object) return MakeList(std::move(items));
  DictRep::Entries entries;
  entries.reserve(items.size());
  for (size_t i = 0; i < items.size() && i < json.keys.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(Value key, MakeName(std::move(json.keys[i]), origin));
    entries.emplace_back(std::move(key), std::move(items[i]));
  }
  return MakeDict(std::move(entries));
}

absl::StatusOr<std::vector<Value>> BindArguments(absl::string_view callee, Arguments arguments,
                                                 absl::Span<const absl::string_view> names,
                                                 size_t required) {
  if (arguments.positional.size() > names.size()) {
    return Failure(absl::StrCat(callee, " takes at most ", names.size(), " arguments, found ",
                                arguments.positional.size()));
  }
  std::vector<Value> bound = std::move(arguments.positional);
  bound.resize(names.size());
  for (auto& [name, value] : arguments.named) {
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      return Failure(absl::StrCat(callee, " has no argument '", json::Printable(name), "'"));
    }
    Value& place = bound[found - names.begin()];
    if (!place.is_missing()) {
      return Failure(absl::StrCat(callee, " got its argument '", name, "' twice"));
    }
    place = std::move(value);
  }
  for (size_t i = 0; i < required; ++i) {
    if (bound[i].is_missing()) {
      return Failure(absl::StrCat(callee, " needs an argument '", names[i], "'"));
    }
  }
  return bound;
}

}  // namespace baton::chat
