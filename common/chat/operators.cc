#include "common/chat/operators.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/chat/format.h"
#include "common/chat/printing.h"
#include "common/chat/text.h"

namespace baton::chat {
namespace {

absl::string_view Symbol(Operator op) {
  static constexpr absl::string_view kSymbols[] = {
      "+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};
  return kSymbols[static_cast<size_t>(op)];
}

absl::Status Unsupported(Operator op, const Value& a, const Value& b) {
  return Failure(absl::StrCat("unsupported operand types for ", Symbol(op), ": '", a.type_name(),
                              "' and '", b.type_name(), "'"));
}

absl::Status Overflow() { return Failure("an integer exceeds 64 bits"); }

absl::StatusOr<Value> PowerOfIntegers(int64_t base, int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) return Failure("0 cannot be raised to a negative power");
    return Value::Float(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result)) return Overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return Overflow();
  }
  return Value::Int(result);
}

absl::StatusOr<Value> IntegerArithmetic(Operator op, int64_t a, int64_t b) {
  int64_t result = 0;
  switch (op) {
    case Operator::kAdd:
      return __builtin_add_overflow(a, b, &result) ? absl::StatusOr<Value>(Overflow())
                                                   : Value::Int(result);
    case Operator::kSubtract:
      return __builtin_sub_overflow(a, b, &result) ? absl::StatusOr<Value>(Overflow())
                                                   : Value::Int(result);
    case Operator::kMultiply:
      return __builtin_mul_overflow(a, b, &result) ? absl::StatusOr<Value>(Overflow())
                                                   : Value::Int(result);
    case Operator::kPower:
      return PowerOfIntegers(a, b);
    default:
      break;
  }
  if (b == 0) return Failure("division by zero");
  if (op == Operator::kDivide) return Value::Float(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1) return op == Operator::kModulo ? Value::Int(0) : Negate(Value::Int(a));
  const int64_t remainder = a % b;
  const bool down = remainder != 0 && (remainder < 0) != (b < 0);
  if (op == Operator::kModulo) return Value::Int(down ? remainder + b : remainder);
  return Value::Int(a / b - (down ? 1 : 0));
}

absl::StatusOr<Value> RealArithmetic(Operator op, double a, double b) {
  switch (op) {
    case Operator::kAdd:
      return Value::Float(a + b);
    case Operator::kSubtract:
      return Value::Float(a - b);
    case Operator::kMultiply:
      return Value::Float(a * b);
    case Operator::kPower:
      if (a < 0 && b != std::floor(b)) return Failure("the result is a complex number");
      if (a == 0 && b < 0) return Failure("0 cannot be raised to a negative power");
      return Value::Float(std::pow(a, b));
    default:
      break;
  }
  if (b == 0) return Failure("float division by zero");
  if (op == Operator::kDivide) return Value::Float(a / b);
  double remainder = std::fmod(a, b);
  if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
  if (op == Operator::kModulo) return Value::Float(remainder);
  return Value::Float(std::floor((a - remainder) / b + 0.5));
}

absl::StatusOr<Value> Repeat(Runtime& runtime, const Value& value, int64_t count) {
  count = std::max<int64_t>(count, 0);
  const size_t unit = value.is_string() ? value.text().size() + value.traced().trace_bytes()
                                        : value.sequence().items.size() * sizeof(Value);
  if (unit > 0 && static_cast<uint64_t>(count) > runtime.limits().max_value_bytes / unit) {
    count = static_cast<int64_t>(runtime.limits().max_value_bytes / unit) + 1;
  }
  BATON_RETURN_IF_ERROR(runtime.CheckRoom(unit * count));
  if (value.is_string()) {
    TracedText text;
    text.text.reserve(value.text().size() * count);
    for (int64_t i = 0; unit > 0 && i < count; ++i) text.Append(value.traced());
    return runtime.MakeString(std::move(text), value.is_markup());
  }
  std::vector<Value> items;
  const auto& source = value.sequence().items;
  for (int64_t i = 0; unit > 0 && i < count; ++i) {
    items.insert(items.end(), source.begin(), source.end());
  }
  return runtime.MakeSequence(value.sequence().flavor, std::move(items));
}

bool IsRepeatable(const Value& value) {
  return value.is_string() || value.IsSequence(Flavor::kList) || value.IsSequence(Flavor::kTuple);
}

absl::StatusOr<Value> Join(Runtime& runtime, const Value& a, const Value& b) {
  if (a.is_string() && b.is_string()) {
    const bool markup = a.is_markup() || b.is_markup();
    BATON_RETURN_IF_ERROR(runtime.CheckRoom(6 * (markup ? a.text().size() + b.text().size() : 0) +
                                            a.text().size() + b.text().size()));
    TracedText text;
    for (const Value* const part : {&a, &b}) text.Append(markup ? Escaped(*part) : part->traced());
    return runtime.MakeString(std::move(text), markup);
  }
  const auto joinable = [&](Flavor flavor) { return a.IsSequence(flavor) && b.IsSequence(flavor); };
  if (!joinable(Flavor::kList) && !joinable(Flavor::kTuple)) {
    return Unsupported(Operator::kAdd, a, b);
  }
  std::vector<Value> items = a.sequence().items;
  items.insert(items.end(), b.sequence().items.begin(), b.sequence().items.end());
  return runtime.MakeSequence(a.sequence().flavor, std::move(items));
}

absl::StatusOr<bool> EqualItems(Runtime& runtime, const std::vector<Value>& a,
                                const std::vector<Value>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(const bool equal, Equal(runtime, a[i], b[i]));
    if (!equal) return false;
  }
  return true;
}

absl::StatusOr<bool> EqualDicts(Runtime& runtime, const DictRep& a, const DictRep& b) {
  if (a.entries.size() != b.entries.size()) return false;
  for (const auto& [key, value] : a.entries) {
    const Value* other = b.Find(key);
    if (other == nullptr) return false;
    BATON_ASSIGN_OR_RETURN(const bool equal, Equal(runtime, value, *other));
    if (!equal) return false;
  }
  return true;
}

// a < b, or a <= b if `or_equal`.
absl::StatusOr<bool> Less(Runtime& runtime, Operator op, const Value& a, const Value& b,
                          bool or_equal) {
  BATON_RETURN_IF_ERROR(runtime.Step());
  BATON_RETURN_IF_ERROR(CheckDefined(a));
  BATON_RETURN_IF_ERROR(CheckDefined(b));
  if (a.is_integral() && b.is_integral()) {
    return or_equal ? a.integer() <= b.integer() : a.integer() < b.integer();
  }
  if (a.is_number() && b.is_number()) {
    return or_equal ? a.number() <= b.number() : a.number() < b.number();
  }
  if (a.is_string() && b.is_string()) {
    BATON_RETURN_IF_ERROR(runtime.StepForBytes(std::min(a.text().size(), b.text().size())));
    return or_equal ? a.text() <= b.text() : a.text() < b.text();
  }
  const bool lists = a.IsSequence(Flavor::kList) && b.IsSequence(Flavor::kList);
  const bool tuples = a.IsSequence(Flavor::kTuple) && b.IsSequence(Flavor::kTuple);
  if (!lists && !tuples) return Unsupported(op, a, b);
  const auto& left = a.sequence().items;
  const auto& right = b.sequence().items;
  for (size_t i = 0; i < std::min(left.size(), right.size()); ++i) {
    BATON_ASSIGN_OR_RETURN(const bool equal, Equal(runtime, left[i], right[i]));
    if (!equal) return Less(runtime, op, left[i], right[i], or_equal);
  }
  return or_equal ? left.size() <= right.size() : left.size() < right.size();
}

}  // namespace

absl::Status CheckDefined(const Value& value) {
  return value.is_undefined() ? Failure(value.text()) : absl::OkStatus();
}

absl::StatusOr<Value> Arithmetic(Runtime& runtime, Operator op, const Value& a, const Value& b) {
  BATON_RETURN_IF_ERROR(CheckDefined(a));
  if (op == Operator::kModulo && a.is_string()) return FormatPercent(runtime, a, b);
  BATON_RETURN_IF_ERROR(CheckDefined(b));
  if (a.is_integral() && b.is_integral()) return IntegerArithmetic(op, a.integer(), b.integer());
  if (a.is_number() && b.is_number()) return RealArithmetic(op, a.number(), b.number());
  if (op == Operator::kAdd) return Join(runtime, a, b);
  if (op == Operator::kMultiply && IsRepeatable(a) && b.is_integral()) {
    return Repeat(runtime, a, b.integer());
  }
  if (op == Operator::kMultiply && IsRepeatable(b) && a.is_integral()) {
    return Repeat(runtime, b, a.integer());
  }
  return Unsupported(op, a, b);
}

absl::StatusOr<Value> Negate(const Value& value) {
  BATON_RETURN_IF_ERROR(CheckDefined(value));
  if (value.is_float()) return Value::Float(-value.number());
  if (!value.is_integral()) {
    return Failure(absl::StrCat("bad operand type for unary -: '", value.type_name(), "'"));
  }
  int64_t result = 0;
  if (__builtin_sub_overflow(int64_t{0}, value.integer(), &result)) return Overflow();
  return Value::Int(result);
}

absl::StatusOr<bool> Equal(Runtime& runtime, const Value& a, const Value& b) {
  BATON_RETURN_IF_ERROR(runtime.Step());
  if (a.is_string() && b.is_string()) {
    if (a.text().size() != b.text().size()) return false;
    BATON_RETURN_IF_ERROR(runtime.StepForBytes(a.text().size()));
    return a.text() == b.text();
  }
  if (a.is_dict() && b.is_dict()) return EqualDicts(runtime, a.dict(), b.dict());
  if (a.is_sequence() && b.is_sequence()) {
    const SequenceRep& left = a.sequence();
    const SequenceRep& right = b.sequence();
    if (left.flavor != right.flavor || left.flavor == Flavor::kGenerator) return &left == &right;
    return EqualItems(runtime, left.items, right.items);
  }
  return KeysEqual(a, b);
}

absl::StatusOr<bool> Compare(Runtime& runtime, Operator op, const Value& a, const Value& b) {
  switch (op) {
    case Operator::kEqual:
      return Equal(runtime, a, b);
    case Operator::kNotEqual: {
      BATON_ASSIGN_OR_RETURN(const bool equal, Equal(runtime, a, b));
      return !equal;
    }
    case Operator::kIn:
      return Contains(runtime, b, a);
    case Operator::kNotIn: {
      BATON_ASSIGN_OR_RETURN(const bool contains, Contains(runtime, b, a));
      return !contains;
    }
    case Operator::kLess:
    case Operator::kLessEqual:
      return Less(runtime, op, a, b, op == Operator::kLessEqual);
    default:
      return Less(runtime, op, b, a, op == Operator::kGreaterEqual);
  }
}

absl::StatusOr<bool> Contains(Runtime& runtime, const Value& container, const Value& item) {
  if (container.is_string()) {
    if (!item.is_string()) {
      return Failure(absl::StrCat("'in <string>' requires a string, not ", item.type_name()));
    }
    BATON_RETURN_IF_ERROR(runtime.StepForBytes(container.text().size()));
    return FindText(container.text(), item.text()) != absl::string_view::npos;
  }
  if (container.is_dict()) {
    if (!IsHashable(item)) {
      return Failure(absl::StrCat("unhashable type: '", item.type_name(), "'"));
    }
    if (!item.is_string()) BATON_RETURN_IF_ERROR(runtime.Step(container.dict().entries.size()));
    return container.dict().Find(item) != nullptr;
  }
  BATON_ASSIGN_OR_RETURN(const std::vector<Value> items, ItemsOf(runtime, container));
  for (const Value& candidate : items) {
    BATON_ASSIGN_OR_RETURN(const bool equal, Equal(runtime, candidate, item));
    if (equal) return true;
  }
  return false;
}

absl::StatusOr<std::vector<Value>> ItemsOf(Runtime& runtime, const Value& value) {
  std::vector<Value> items;
  if (value.is_undefined()) return items;
  if (value.is_sequence()) {
    const SequenceRep& sequence = value.sequence();
    BATON_RETURN_IF_ERROR(runtime.Step(1 + sequence.items.size() / 4));
    BATON_RETURN_IF_ERROR(runtime.CheckRoom(sequence.items.size() * sizeof(Value)));
    if (sequence.flavor != Flavor::kGenerator) return sequence.items;
    items.assign(sequence.items.begin() + static_cast<ptrdiff_t>(sequence.position),
                 sequence.items.end());
    sequence.position = sequence.items.size();
    return items;
  }
  if (value.is_dict()) {
    BATON_RETURN_IF_ERROR(runtime.Step(1 + value.dict().entries.size() / 4));
    BATON_RETURN_IF_ERROR(runtime.CheckRoom(value.dict().entries.size() * sizeof(Value)));
    for (const auto& entry : value.dict().entries) items.push_back(entry.first);
    return items;
  }
  if (!value.is_string()) {
    return Failure(absl::StrCat("'", value.type_name(), "' object is not iterable"));
  }
  const std::string& text = value.text();
  for (size_t at = 0; at < text.size();) {
    const size_t start = at;
    NextCodePoint(text, &at);
    BATON_ASSIGN_OR_RETURN(
        Value item, runtime.MakeString(
                        PartOf(value.traced(), absl::string_view(text).substr(start, at - start))));
    items.push_back(std::move(item));
  }
  return items;
}

absl::StatusOr<int64_t> LengthOf(Runtime& runtime, const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.is_string()) {
    if (value.string().ascii) return static_cast<int64_t>(value.text().size());
    BATON_RETURN_IF_ERROR(runtime.StepForBytes(value.text().size()));
    return static_cast<int64_t>(CodePointCount(value.text()));
  }
  if (value.is_dict()) return static_cast<int64_t>(value.dict().entries.size());
  if (value.is_sequence() && !value.IsSequence(Flavor::kGenerator)) {
    return static_cast<int64_t>(value.sequence().items.size());
  }
  return Failure(absl::StrCat("object of type '", value.type_name(), "' has no len()"));
}

}  // namespace baton::chat
