// Values of a JSON body, each of the type that its field takes.
#ifndef BATON_ROUTER_HTTP_JSON_READERS_H_
#define BATON_ROUTER_HTTP_JSON_READERS_H_

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/algorithm/container.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/base/error.h"
#include "common/base/request_limits.h"
#include "common/base/status_macros.h"
#include "common/json/json.h"

namespace baton::router {

using json::Scalar;
using json::Value;

inline absl::Status WrongType(absl::string_view field, absl::string_view expected) {
  return InvalidField("WRONG_TYPE", field, absl::StrCat(expected, " expected"));
}

inline absl::Status Unsupported(absl::string_view field, absl::string_view why) {
  return InvalidField("UNSUPPORTED_FIELD", field, why);
}

inline bool IsScalar(const Value& value, Scalar::Kind kind) {
  return value.kind == Value::Kind::kScalar && value.scalar.kind == kind;
}
inline bool IsArray(const Value& value) { return value.kind == Value::Kind::kArray; }
inline bool IsObject(const Value& value) { return value.kind == Value::Kind::kObject; }

// The member of an object; null if it is absent or null.
inline const Value* FindSet(const Value& object, absl::string_view key) {
  const Value* value = object.Find(key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

// UNKNOWN_FIELD for a member that is not null and none of `known`.
inline absl::Status CheckMembers(absl::string_view name, const Value& object,
                                 absl::Span<const absl::string_view> known) {
  for (size_t i = 0; i < object.keys.size(); ++i) {
    if (object.items[i].is_null() || absl::c_linear_search(known, object.keys[i])) continue;
    const std::string field = absl::StrCat(name, ".", json::Printable(object.keys[i]));
    return InvalidField("UNKNOWN_FIELD", field,
                        absl::StrCat("unknown field ", json::Quoted(object.keys[i])));
  }
  return absl::OkStatus();
}

inline absl::StatusOr<std::string> Text(absl::string_view field, const Value& value) {
  if (!IsScalar(value, Scalar::Kind::kString)) return WrongType(field, "a string");
  return value.scalar.text;
}

// The text of a member that must be there.
inline absl::StatusOr<std::string> RequiredText(absl::string_view at, const Value& object,
                                                absl::string_view key) {
  const std::string field = absl::StrCat(at, ".", key);
  const Value* value = FindSet(object, key);
  if (value == nullptr) return InvalidField("MISSING_FIELD", field, "required");
  return Text(field, *value);
}

inline absl::StatusOr<bool> Bool(absl::string_view field, const Value& value) {
  if (!IsScalar(value, Scalar::Kind::kBool)) return WrongType(field, "true or false");
  return value.scalar.boolean;
}

inline absl::StatusOr<float> Number(absl::string_view field, const Value& value) {
  if (!IsScalar(value, Scalar::Kind::kInteger) && !IsScalar(value, Scalar::Kind::kReal)) {
    return WrongType(field, "a number");
  }
  if (!(std::abs(value.scalar.real) <= std::numeric_limits<float>::max())) {
    return OutOfRange(field, absl::StrCat(value.scalar.real), "a number of 32 bits expected");
  }
  return static_cast<float>(value.scalar.real);
}

inline bool IsNumber(const Scalar& scalar) {
  return scalar.kind == Scalar::Kind::kInteger || scalar.kind == Scalar::Kind::kReal;
}

// A whole number may be written as 16.0 or 1.6e1, up to 2^53: a larger double does not show which
// number was written.
inline absl::StatusOr<int64_t> Integer(absl::string_view field, const Scalar& scalar) {
  constexpr double kMostExact = 9007199254740992.0;
  if (scalar.kind == Scalar::Kind::kInteger) return scalar.integer;
  if (scalar.kind != Scalar::Kind::kReal || std::trunc(scalar.real) != scalar.real) {
    return WrongType(field, "a whole number");
  }
  if (std::abs(scalar.real) <= kMostExact) return static_cast<int64_t>(scalar.real);
  return OutOfRange(field, absl::StrCat(scalar.real), "a whole number of 64 bits expected");
}
inline absl::StatusOr<int64_t> Integer(absl::string_view field, const Value& value) {
  if (value.kind != Value::Kind::kScalar) return WrongType(field, "a whole number");
  return Integer(field, value.scalar);
}

template <class ScalarOrValue>
absl::StatusOr<int32_t> Int32(absl::string_view field, const ScalarOrValue& value) {
  BATON_ASSIGN_OR_RETURN(const int64_t integer, Integer(field, value));
  BATON_RETURN_IF_ERROR(CheckRange(field, integer, std::numeric_limits<int32_t>::min(),
                                   std::numeric_limits<int32_t>::max()));
  return static_cast<int32_t>(integer);
}

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_JSON_READERS_H_
