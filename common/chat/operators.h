// The operators of an expression, with Python's meaning, and access to attributes and items with
// that of jinja2's sandbox.
//
// Errors are Failure for what Python raises, and those of Runtime's budgets.
#ifndef BATON_COMMON_CHAT_OPERATORS_H_
#define BATON_COMMON_CHAT_OPERATORS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/chat/runtime.h"
#include "common/chat/value.h"

namespace baton::chat {

enum class Operator : uint8_t {
  kAdd,
  kSubtract,
  kMultiply,
  kDivide,
  kFloorDivide,
  kModulo,
  kPower,
  kEqual,
  kNotEqual,
  kLess,
  kLessEqual,
  kGreater,
  kGreaterEqual,
  kIn,
  kNotIn,
};

absl::StatusOr<Value> Arithmetic(Runtime& runtime, Operator op, const Value& a, const Value& b);
absl::StatusOr<Value> Negate(const Value& value);
absl::StatusOr<bool> Equal(Runtime& runtime, const Value& a, const Value& b);
// REQUIRES: op is a comparison, `in` or `not in`.
absl::StatusOr<bool> Compare(Runtime& runtime, Operator op, const Value& a, const Value& b);
absl::StatusOr<bool> Contains(Runtime& runtime, const Value& container, const Value& item);

// The items that a loop over the value visits; those of a generator are gone afterwards.
absl::StatusOr<std::vector<Value>> ItemsOf(Runtime& runtime, const Value& value);
absl::StatusOr<int64_t> LengthOf(Runtime& runtime, const Value& value);

// a.name and a[key]: undefined if there is no such attribute or item.
absl::StatusOr<Value> GetAttribute(Runtime& runtime, const Value& value, absl::string_view name);
absl::StatusOr<Value> GetItem(Runtime& runtime, const Value& value, const Value& key);
// a[start:stop:step]; each part may be None.
absl::StatusOr<Value> GetSlice(Runtime& runtime, const Value& value, const Value& start,
                               const Value& stop, const Value& step);

// Fails with what is undefined, if it is: what jinja2 does for most uses of it.
absl::Status CheckDefined(const Value& value);

}  // namespace baton::chat

#endif  // BATON_COMMON_CHAT_OPERATORS_H_
