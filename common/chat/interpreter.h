// Runs the syntax tree of a template once.
//
// One per rendering; one thread. Errors are those of ChatTemplate::Render.
#ifndef BATON_COMMON_CHAT_INTERPRETER_H_
#define BATON_COMMON_CHAT_INTERPRETER_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/chat/runtime.h"
#include "common/chat/syntax.h"
#include "common/chat/value.h"
#include "common/json/json.h"

namespace baton::chat {

class Interpreter {
 public:
  // Both outlive the interpreter.
  Interpreter(const TemplateSyntax& syntax, Runtime& runtime)
      : syntax_(syntax), runtime_(runtime) {}
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  // If both objects have a variable, the request's counts.
  absl::StatusOr<TracedText> Run(json::Value request_variables, json::Value model_variables);

 private:
  friend class LoopObject;
  friend class MacroObject;

  // The variables that one body sets. A macro or a recursive loop that is defined in it may run
  // after the body has ended: then the scope is kept until the end of the rendering.
  struct Scope {
    Scope* parent = nullptr;
    bool kept = false;
    std::vector<std::pair<int, Value>> variables;
    HeapCharge charge;
  };
  // Makes a scope the current one for its life, and frees it then unless it is kept.
  class InScope {
   public:
    InScope(Interpreter& interpreter, Scope* scope)
        : interpreter_(interpreter), outer_(std::exchange(interpreter.scope_, scope)) {}
    ~InScope() {
      Scope* const scope = std::exchange(interpreter_.scope_, outer_);
      if (scope->kept) return;
      scope->variables.clear();
      interpreter_.free_scopes_.push_back(scope);
    }
    InScope(const InScope&) = delete;
    InScope& operator=(const InScope&) = delete;

   private:
    Interpreter& interpreter_;
    Scope* const outer_;
  };
  // Collects what is written during its life.
  class Capture {
   public:
    explicit Capture(Interpreter& interpreter)
        : interpreter_(interpreter), outer_(std::exchange(interpreter.out_, &text_)) {}
    ~Capture() {
      interpreter_.output_bytes_ -= written_bytes_ + text_.size();
      interpreter_.out_ = outer_;
    }
    Capture(const Capture&) = delete;
    Capture& operator=(const Capture&) = delete;
    TracedText Take() {
      written_bytes_ += text_.size();
      return std::exchange(text_, TracedText());
    }

   private:
    Interpreter& interpreter_;
    TracedText* const outer_;
    TracedText text_;
    size_t written_bytes_ = 0;
  };
  enum class Flow : uint8_t { kNext, kBreak, kContinue };
  using Result = absl::StatusOr<Value>;

  absl::Status BindVariables(json::Value request_variables, json::Value model_variables);
  // Takes the variable from the object that has it.
  absl::StatusOr<Value> TakeVariable(const std::string& name, json::Value& request_variables,
                                     json::Value& model_variables);
  absl::StatusOr<Scope*> NewScope(Scope* parent);
  void KeepScopes(Scope* scope);
  Result Lookup(int name_id);
  void Set(int name_id, Value value);
  absl::Status Assign(const Expr& target, Value value);
  // Counts what is about to be written.
  absl::Status CheckWrite(size_t bytes);
  absl::Status WriteValue(const Value& value);
  // Adds the template's name and the line, unless an inner expression has done so.
  absl::Status Locate(absl::Status status, int line);

  absl::StatusOr<Flow> ExecuteBody(const Body& body);
  absl::StatusOr<Flow> ExecuteInScope(const Body& body, Scope* parent);
  absl::StatusOr<Flow> Execute(const Statement& statement);
  absl::StatusOr<Flow> Dispatch(const Statement& statement);
  absl::StatusOr<Flow> ExecuteIf(const Statement& statement);
  absl::StatusOr<Flow> ExecuteFor(const Statement& statement);
  absl::StatusOr<Flow> ExecuteWith(const Statement& statement);
  // `set` with a body, and `filter`.
  absl::StatusOr<Flow> ExecuteCaptured(const Statement& statement);
  absl::Status ExecuteCallBlock(const Statement& statement);
  absl::Status RunLoop(const Statement& statement, const Value& iterable, Scope* parent,
                       int loop_depth);
  Result LoopItems(const Statement& statement, const Value& iterable, Scope* parent);
  Result MakeMacro(const MacroSyntax& macro);
  Result CallMacro(const MacroSyntax& macro, Scope* scope, Arguments arguments);
  absl::Status BindParameters(const MacroSyntax& macro, Arguments arguments);

  Result Evaluate(const Expr& expr);
  Result Dispatch(const Expr& expr);
  Result EvaluateList(const Expr& expr, Flavor flavor);
  Result EvaluateDict(const Expr& expr);
  Result EvaluateAccess(const Expr& expr);
  Result EvaluateCall(const Expr& expr, Value caller);
  Result EvaluateFilter(const Expr& expr);
  Result EvaluateArithmetic(const Expr& expr);
  Result EvaluateCompare(const Expr& expr);
  Result EvaluateConcatenation(const Expr& expr);
  Result EvaluateLogic(const Expr& expr);
  Result EvaluateConditional(const Expr& expr);
  absl::Status EvaluateArguments(const CallSyntax& call, Arguments* arguments);

  const TemplateSyntax& syntax_;
  Runtime& runtime_;
  std::vector<Value> context_;  // by name id: the variables of the caller, and functions
  std::vector<std::unique_ptr<Scope>> scopes_;
  std::vector<Scope*> free_scopes_;
  Scope* scope_ = nullptr;
  TracedText output_;
  TracedText* out_ = &output_;
  size_t output_bytes_ = 0;  // of all buffers that are open
  Value block_input_;        // of the filters of a block
  bool located_ = false;
};

}  // namespace baton::chat

#endif  // BATON_COMMON_CHAT_INTERPRETER_H_
