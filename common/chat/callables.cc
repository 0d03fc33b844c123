#include "common/chat/callables.h"

#include <memory>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"

namespace baton::chat {
namespace {

// loop.cycle at one step of a loop.
class LoopCycle : public Object {
 public:
  LoopCycle(HeapCharge charge, size_t index) : Object(std::move(charge)), index_(index) {}
  absl::string_view type_name() const override { return "method"; }
  bool callable() const override { return true; }
  absl::StatusOr<Value> Call(Runtime&, Arguments arguments) override {
    const auto& items = arguments.positional;
    if (items.empty()) return Failure("no items for cycling given");
    return items[index_ % items.size()];
  }

 private:
  const size_t index_;
};

}  // namespace

absl::StatusOr<Value> MacroObject::Attribute(Runtime& runtime, absl::string_view name) {
  if (name == "name") return runtime.MakeString(macro_.name);
  return Value();
}

absl::StatusOr<Value> MacroObject::Call(Runtime&, Arguments arguments) {
  return interpreter_.CallMacro(macro_, scope_, std::move(arguments));
}

absl::StatusOr<Value> LoopObject::Attribute(Runtime& runtime, absl::string_view name) {
  const std::vector<Value>& items = items_.sequence().items;
  const auto number = [](size_t n) { return Value::Int(static_cast<int64_t>(n)); };
  if (name == "index") return number(index_ + 1);
  if (name == "index0") return number(index_);
  if (name == "revindex") return number(items.size() - index_);
  if (name == "revindex0") return number(items.size() - index_ - 1);
  if (name == "first") return Value::Bool(index_ == 0);
  if (name == "last") return Value::Bool(index_ + 1 == items.size());
  if (name == "length") return number(items.size());
  if (name == "depth") return Value::Int(loop_depth_ + 1);
  if (name == "depth0") return Value::Int(loop_depth_);
  if (name == "previtem") {
    return index_ > 0 ? items[index_ - 1] : runtime.MakeUndefined("there is no previous item");
  }
  if (name == "nextitem") {
    if (index_ + 1 < items.size()) return items[index_ + 1];
    return runtime.MakeUndefined("there is no next item");
  }
  if (name == "cycle") {
    BATON_RETURN_IF_ERROR(runtime.CheckRoom(sizeof(LoopCycle)));
    return Value(Kind::kObject,
                 std::make_shared<LoopCycle>(runtime.Charge(sizeof(LoopCycle)), index_));
  }
  return Value();
}

absl::StatusOr<Value> LoopObject::Call(Runtime& runtime, Arguments arguments) {
  if (!statement_.recursive) return Failure("The loop must have the 'recursive' marker.");
  BATON_ASSIGN_OR_RETURN(const auto args,
                         BindArguments("loop", std::move(arguments), {"iterable"}, 1));
  Interpreter::Capture capture(interpreter_);
  BATON_RETURN_IF_ERROR(interpreter_.RunLoop(statement_, args[0], scope_, loop_depth_ + 1));
  return runtime.MakeString(capture.Take());
}

}  // namespace baton::chat
