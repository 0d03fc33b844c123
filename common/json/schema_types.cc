#include "common/json/schema_types.h"

#include <cmath>
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace baton::json {
namespace {

constexpr int kMaxSchemaLevels = 16;
// One call looks at so many schemas and listed values at most; references let a small schema have
// very many.
constexpr int64_t kMostSeen = 16'384;

uint32_t Named(const Value& name) {
  static constexpr struct {
    absl::string_view name;
    uint32_t types;
  } kTypes[] = {{"null", kNullType},       {"boolean", kBooleanType},
                {"integer", kIntegerType}, {"number", kNumberType | kIntegerType},
                {"string", kStringType},   {"array", kArrayType},
                {"object", kObjectType}};
  for (const auto& [text, types] : kTypes) {
    if (name.kind == Value::Kind::kScalar && name.scalar.text == text) return types;
  }
  return kAnyType;
}

// Null if the reference leads nowhere.
const Value* Target(const Value& reference, const Value& root) {
  absl::string_view uri = reference.scalar.text;
  if (uri == "#") return &root;
  for (const char* const place : {"$defs", "definitions"}) {
    absl::string_view name = uri;
    if (!absl::ConsumePrefix(&name, "#/") || !absl::ConsumePrefix(&name, place) ||
        !absl::ConsumePrefix(&name, "/")) {
      continue;
    }
    const Value* const definitions = root.Find(place);
    return definitions == nullptr ? nullptr : definitions->Find(name);
  }
  return nullptr;
}

// `left`: how many more schemas and listed values may be looked at.
uint32_t Types(const Value& schema, const Value& root, int depth, int64_t* left) {
  if (schema.kind != Value::Kind::kObject || depth > kMaxSchemaLevels) return kAnyType;
  if (--*left < 0) return kAnyType;
  if (const Value* reference = schema.Find("$ref")) {
    const Value* const target = Target(*reference, root);
    return target == nullptr ? kAnyType : Types(*target, root, depth + 1, left);
  }
  uint32_t types = 0;
  if (const Value* constant = schema.Find("const")) return SchemaTypeOf(*constant);
  if (const Value* listed = schema.Find("enum")) {
    *left -= static_cast<int64_t>(listed->items.size());
    if (*left < 0) return kAnyType;
    for (const Value& value : listed->items) types |= SchemaTypeOf(value);
    return types == 0 ? kAnyType : types;
  }
  if (const Value* type = schema.Find("type")) {
    if (type->kind != Value::Kind::kArray) return Named(*type);
    for (const Value& one : type->items) types |= Named(one);
    return types == 0 ? kAnyType : types;
  }
  for (const char* const name : {"anyOf", "oneOf"}) {
    const Value* const branches = schema.Find(name);
    if (branches == nullptr || branches->items.empty()) continue;
    for (const Value& branch : branches->items) types |= Types(branch, root, depth + 1, left);
    return types;
  }
  return schema.Find("properties") != nullptr ? kObjectType : kAnyType;
}

}  // namespace

uint32_t SchemaTypeOf(const Value& value) {
  if (value.kind == Value::Kind::kArray) return kArrayType;
  if (value.kind == Value::Kind::kObject) return kObjectType;
  switch (value.scalar.kind) {
    case Scalar::Kind::kNull:
      return kNullType;
    case Scalar::Kind::kBool:
      return kBooleanType;
    case Scalar::Kind::kInteger:
      return kIntegerType;
    case Scalar::Kind::kReal:  // 1.0 is an integer, and so is one of more than 64 bits
      return std::trunc(value.scalar.real) == value.scalar.real ? kNumberType | kIntegerType
                                                                : kNumberType;
    case Scalar::Kind::kString:
      break;
  }
  return kStringType;
}

uint32_t TypesOf(const Value& schema, const Value& root) {
  int64_t left = kMostSeen;
  return Types(schema, root, 0, &left);
}

}  // namespace baton::json
