// Values of a JSON body, each of the type that its field takes.
#ifndef BATON_ROUTER_HTTP_JSON_READERS_H_
#define BATON_ROUTER_HTTP_JSON_READERS_H_

#include <cmath>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
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

inline absl::StatusOr<std::string> Text(absl::string_view field, const Value& value) {
  if (!IsScalar(value, Scalar::Kind::kString)) return WrongType(field, "a string");
  return value.scalar.text;
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

inline absl::StatusOr<int64_t> Integer(absl::string_view field, const Value& value) {
  if (!IsScalar(value, Scalar::Kind::kInteger)) return WrongType(field, "a whole number");
  return value.scalar.integer;
}

inline absl::StatusOr<int32_t> Int32(absl::string_view field, const Value& value) {
  BATON_ASSIGN_OR_RETURN(const int64_t integer, Integer(field, value));
  BATON_RETURN_IF_ERROR(CheckRange(field, integer, std::numeric_limits<int32_t>::min(),
                                   std::numeric_limits<int32_t>::max()));
  return static_cast<int32_t>(integer);
}

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_JSON_READERS_H_
