#include "common/chat/value.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/chat/runtime.h"

namespace baton::chat {
namespace {

bool IsAsciiText(absl::string_view text) {
  uint64_t all = 0;
  size_t i = 0;
  for (; i + sizeof(uint64_t) <= text.size(); i += sizeof(uint64_t)) {
    uint64_t eight;
    std::memcpy(&eight, text.data() + i, sizeof(eight));
    all |= eight;
  }
  if ((all & 0x8080808080808080) != 0) return false;
  text.remove_prefix(i);
  return std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isascii(c); });
}

// A dict of at most so many entries, as a message is, has no table: comparing takes less time than
// making one.
constexpr size_t kMostCompared = 8;

int DepthOf(const std::vector<Value>& items) {
  int depth = 0;
  for (const Value& item : items) depth = std::max(depth, item.depth());
  return depth + 1;
}

}  // namespace

Value Value::Bool(bool b) {
  Value value(Kind::kBool);
  value.integer_ = b ? 1 : 0;
  return value;
}

Value Value::Int(int64_t i) {
  Value value(Kind::kInt);
  value.integer_ = i;
  return value;
}

Value Value::Float(double d) {
  Value value(Kind::kFloat);
  value.real_ = d;
  return value;
}

Value Value::Whole(double d, const Value& digits) {
  Value value = Float(d);
  value.rep_ = digits.rep_;
  return value;
}

Value Value::Constant(std::string text) {
  return Value(Kind::kString,
               std::make_shared<StringRep>(HeapCharge(), TracedText(std::move(text)), false));
}

const StringRep& Value::string() const { return static_cast<const StringRep&>(*rep_); }
const TracedText& Value::traced() const { return string().traced; }
const SequenceRep& Value::sequence() const { return static_cast<const SequenceRep&>(*rep_); }
const DictRep& Value::dict() const { return static_cast<const DictRep&>(*rep_); }
Object& Value::object() const {
  return const_cast<Object&>(static_cast<const Object&>(*rep_));  // objects have state
}

const std::string* Value::digits() const {
  return is_float() && rep_ != nullptr ? &string().traced.text : nullptr;
}

bool Value::IsSequence(Flavor flavor) const { return is_sequence() && sequence().flavor == flavor; }

bool Value::is_markup() const { return is_string() && string().markup; }

int Value::depth() const {
  if (is_sequence()) return sequence().depth;
  if (is_dict()) return dict().depth;
  return is_object() ? object().depth() : 0;
}

absl::string_view Value::type_name() const {
  switch (kind_) {
    case Kind::kMissing:
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInt:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return "str";
    case Kind::kSequence:
      break;
    case Kind::kDict:
      return "dict";
    case Kind::kObject:
      return object().type_name();
  }
  switch (sequence().flavor) {
    case Flavor::kList:
      return "list";
    case Flavor::kTuple:
      return "tuple";
    case Flavor::kRange:
      return "range";
    case Flavor::kKeysView:
      return "dict_keys";
    case Flavor::kValuesView:
      return "dict_values";
    case Flavor::kItemsView:
      return "dict_items";
    case Flavor::kGenerator:
      return "generator";
  }
  return "";
}

StringRep::StringRep(HeapCharge c, TracedText t, bool m)
    : Representation(std::move(c)),
      traced(std::move(t)),
      ascii(IsAsciiText(traced.text)),
      markup(m) {}

SequenceRep::SequenceRep(HeapCharge c, Flavor f, std::vector<Value> i)
    : Representation(std::move(c)), flavor(f), items(std::move(i)), depth(DepthOf(items)) {}

DictRep::DictRep(HeapCharge c, Entries e) : Representation(std::move(c)) {
  const bool is_small = e.size() <= kMostCompared;
  entries.reserve(e.size());
  if (!is_small) by_text_.reserve(e.size());
  for (auto& [key, value] : e) {
    depth = std::max({depth, key.depth() + 1, value.depth() + 1});
    if (key.is_string() && !is_small) {
      const auto [found, is_new] = by_text_.try_emplace(key.text(), entries.size());
      if (!is_new) {
        entries[found->second].second = std::move(value);
        continue;
      }
    } else if (Value* other = FindOther(key)) {
      *other = std::move(value);
      continue;
    }
    entries.emplace_back(std::move(key), std::move(value));
  }
}

Value* DictRep::FindOther(const Value& key) {
  for (auto& entry : entries) {
    if (KeysEqual(entry.first, key)) return &entry.second;
  }
  return nullptr;
}

const Value* DictRep::Find(absl::string_view key) const {
  if (entries.size() <= kMostCompared) {
    for (const auto& [other, value] : entries) {
      if (other.is_string() && other.text() == key) return &value;
    }
    return nullptr;
  }
  const auto found = by_text_.find(key);
  return found == by_text_.end() ? nullptr : &entries[found->second].second;
}

const Value* DictRep::Find(const Value& key) const {
  if (key.is_string()) return Find(key.text());
  return const_cast<DictRep*>(this)->FindOther(key);
}

absl::StatusOr<Value> Object::Attribute(Runtime&, absl::string_view) { return Value(); }

absl::StatusOr<Value> Object::Call(Runtime&, Arguments) {
  return Failure(absl::StrCat("'", type_name(), "' object is not callable"));
}

bool IsHashable(const Value& value) {
  if (value.is_dict()) return false;
  if (!value.is_sequence()) return true;
  if (value.IsSequence(Flavor::kList)) return false;
  const auto& items = value.sequence().items;
  return std::all_of(items.begin(), items.end(), IsHashable);
}

bool IsTrue(const Value& value) {
  switch (value.kind()) {
    case Kind::kMissing:
    case Kind::kUndefined:
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInt:
      return value.integer() != 0;
    case Kind::kFloat:
      return value.number() != 0;
    case Kind::kString:
      return !value.text().empty();
    case Kind::kSequence:
      return value.IsSequence(Flavor::kGenerator) || !value.sequence().items.empty();
    case Kind::kDict:
      return !value.dict().entries.empty();
    case Kind::kObject:
      return true;
  }
  return false;
}

bool KeysEqual(const Value& a, const Value& b) {
  if (a.is_integral() && b.is_integral()) return a.integer() == b.integer();
  if (a.is_number() && b.is_number()) return a.number() == b.number();
  if (a.kind() != b.kind()) return false;
  if (a.is_string()) return a.text() == b.text();
  if (a.is_none() || a.is_undefined()) return true;
  if (!a.IsSequence(Flavor::kTuple) || !b.IsSequence(Flavor::kTuple)) {
    return a.identity() == b.identity();
  }
  const auto& left = a.sequence().items;
  const auto& right = b.sequence().items;
  return std::equal(left.begin(), left.end(), right.begin(), right.end(), KeysEqual);
}

}  // namespace baton::chat
