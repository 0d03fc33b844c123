// Makes JSON values, such as the messages of one API from those of another.
#ifndef BATON_ROUTER_HTTP_JSON_BUILDERS_H_
#define BATON_ROUTER_HTTP_JSON_BUILDERS_H_

#include <string>
#include <utility>

#include "common/json/json.h"

namespace baton::router {

inline json::Value JsonString(std::string text) {
  json::Value value;
  value.scalar.kind = json::Scalar::Kind::kString;
  value.scalar.text = std::move(text);
  return value;
}

inline json::Value JsonBool(bool boolean) {
  json::Value value;
  value.scalar.kind = json::Scalar::Kind::kBool;
  value.scalar.boolean = boolean;
  return value;
}

// Makes `object` an object, if it is none yet, with one more member. The key must be new.
inline void AddMember(std::string key, json::Value value, json::Value* object) {
  object->kind = json::Value::Kind::kObject;
  object->keys.push_back(std::move(key));
  object->items.push_back(std::move(value));
}

}  // namespace baton::router

#endif  // BATON_ROUTER_HTTP_JSON_BUILDERS_H_
