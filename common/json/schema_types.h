// Which types a JSON schema allows, for values that a model writes without JSON's quotes.
//
// Stateless; thread-safe.
#ifndef BATON_COMMON_JSON_SCHEMA_TYPES_H_
#define BATON_COMMON_JSON_SCHEMA_TYPES_H_

#include <cstdint>

#include "common/json/json.h"

namespace baton::json {

// A set of types.
inline constexpr uint32_t kNullType = 1;
inline constexpr uint32_t kBooleanType = 2;
inline constexpr uint32_t kIntegerType = 4;
inline constexpr uint32_t kNumberType = 8;  // numbers, of which some are integers
inline constexpr uint32_t kStringType = 16;
inline constexpr uint32_t kArrayType = 32;
inline constexpr uint32_t kObjectType = 64;
inline constexpr uint32_t kAnyType = 127;

uint32_t SchemaTypeOf(const Value& value);

// The types that values of `schema` may have, as far as type, const, enum, anyOf, oneOf, properties
// and references to #, #/$defs/NAME and #/definitions/NAME of `root` say; kAnyType if they say
// nothing, or too little at a depth of 16, or within 16,384 schemas and listed values.
uint32_t TypesOf(const Value& schema, const Value& root);

}  // namespace baton::json

#endif  // BATON_COMMON_JSON_SCHEMA_TYPES_H_
