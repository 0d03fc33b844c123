// The objects of a template that run a part of it: macros and loops.
//
// They live no longer than the interpreter. One thread.
#ifndef BATON_COMMON_CHAT_CALLABLES_H_
#define BATON_COMMON_CHAT_CALLABLES_H_

#include <cstddef>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/chat/interpreter.h"
#include "common/chat/syntax.h"
#include "common/chat/value.h"

namespace baton::chat {

// A macro, or the body of a {% call %}. `scope`: where it was defined.
class MacroObject : public Object {
 public:
  MacroObject(HeapCharge charge, Interpreter& interpreter, const MacroSyntax& macro,
              Interpreter::Scope* scope)
      : Object(std::move(charge)), interpreter_(interpreter), macro_(macro), scope_(scope) {}
  absl::string_view type_name() const override { return "Macro"; }
  bool callable() const override { return true; }
  absl::StatusOr<Value> Attribute(Runtime& runtime, absl::string_view name) override;
  absl::StatusOr<Value> Call(Runtime& runtime, Arguments arguments) override;

 private:
  Interpreter& interpreter_;
  const MacroSyntax& macro_;
  Interpreter::Scope* const scope_;
};

// The variable `loop`. Calling it runs a recursive loop over other items.
class LoopObject : public Object {
 public:
  LoopObject(HeapCharge charge, Value items, int loop_depth, Interpreter& interpreter,
             const Statement& statement, Interpreter::Scope* scope)
      : Object(std::move(charge)),
        items_(std::move(items)),
        loop_depth_(loop_depth),
        interpreter_(interpreter),
        statement_(statement),
        scope_(scope) {}
  void MoveTo(size_t index) { index_ = index; }

  absl::string_view type_name() const override { return "LoopContext"; }
  bool callable() const override { return statement_.recursive; }
  int depth() const override { return items_.depth() + 1; }
  absl::StatusOr<Value> Attribute(Runtime& runtime, absl::string_view name) override;
  absl::StatusOr<Value> Call(Runtime& runtime, Arguments arguments) override;

 private:
  const Value items_;
  const int loop_depth_;
  Interpreter& interpreter_;
  const Statement& statement_;
  Interpreter::Scope* const scope_;
  size_t index_ = 0;
};

}  // namespace baton::chat

#endif  // BATON_COMMON_CHAT_CALLABLES_H_
