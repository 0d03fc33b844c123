// The functions that every template can call: range, dict, namespace, cycler, joiner,
// raise_exception, strftime_now.
#ifndef BATON_COMMON_CHAT_GLOBALS_H_
#define BATON_COMMON_CHAT_GLOBALS_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/chat/runtime.h"
#include "common/chat/value.h"

namespace baton::chat {

// namespace(...): the one object whose attributes {% set %} changes. The runtime adopts it.
class Namespace : public Object {
 public:
  Namespace(HeapCharge charge, std::vector<std::pair<std::string, Value>> attributes)
      : Object(std::move(charge)), attributes_(std::move(attributes)) {}
  absl::string_view type_name() const override { return "Namespace"; }
  absl::StatusOr<Value> Attribute(Runtime& runtime, absl::string_view name) override;
  void Set(absl::string_view name, Value value);

 private:
  std::vector<std::pair<std::string, Value>> attributes_;
};

// kMissing if there is no such function.
absl::StatusOr<Value> FindGlobal(Runtime& runtime, absl::string_view name);

}  // namespace baton::chat

#endif  // BATON_COMMON_CHAT_GLOBALS_H_
