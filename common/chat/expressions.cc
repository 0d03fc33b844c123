// Expressions: the second half of interpreter.cc.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/chat/interpreter.h"
#include "common/chat/operators.h"
#include "common/chat/printing.h"

namespace baton::chat {

Interpreter::Result Interpreter::Evaluate(const Expr& expr) {
  const Runtime::Level level(runtime_);
  absl::Status budget = level.Check();
  if (budget.ok()) budget = runtime_.Step();
  if (!budget.ok()) return Locate(std::move(budget), expr.line);
  Result result = Dispatch(expr);
  if (!result.ok()) return Locate(std::move(result).status(), expr.line);
  return result;
}

Interpreter::Result Interpreter::Dispatch(const Expr& expr) {
  switch (expr.kind) {
    case Expr::Kind::kConstant:
      return expr.constant;
    case Expr::Kind::kName:
      return Lookup(expr.name_id);
    case Expr::Kind::kTuple:
      return EvaluateList(expr, Flavor::kTuple);
    case Expr::Kind::kList:
      return EvaluateList(expr, Flavor::kList);
    case Expr::Kind::kDict:
      return EvaluateDict(expr);
    case Expr::Kind::kGetAttribute:
    case Expr::Kind::kGetItem:
    case Expr::Kind::kGetSlice:
      return EvaluateAccess(expr);
    case Expr::Kind::kCall:
      return EvaluateCall(expr, Value());
    case Expr::Kind::kFilter:
    case Expr::Kind::kTest:
      return EvaluateFilter(expr);
    case Expr::Kind::kNot:
    case Expr::Kind::kNegative:
    case Expr::Kind::kPositive:
    case Expr::Kind::kArithmetic:
      return EvaluateArithmetic(expr);
    case Expr::Kind::kCompare:
      return EvaluateCompare(expr);
    case Expr::Kind::kConcatenate:
      return EvaluateConcatenation(expr);
    case Expr::Kind::kAnd:
    case Expr::Kind::kOr:
      return EvaluateLogic(expr);
    case Expr::Kind::kConditional:
      return EvaluateConditional(expr);
    case Expr::Kind::kAttributeOf:
      break;  // a target only
  }
  return Failure("an assignment's target is no expression");
}

Interpreter::Result Interpreter::EvaluateList(const Expr& expr, Flavor flavor) {
  std::vector<Value> items;
  items.reserve(expr.children.size());
  for (const ExprPtr& child : expr.children) {
    BATON_ASSIGN_OR_RETURN(Value item, Evaluate(*child));
    items.push_back(std::move(item));
  }
  return runtime_.MakeSequence(flavor, std::move(items));
}

Interpreter::Result Interpreter::EvaluateDict(const Expr& expr) {
  DictRep::Entries entries;
  for (size_t i = 0; i + 1 < expr.children.size(); i += 2) {
    BATON_ASSIGN_OR_RETURN(Value key, Evaluate(*expr.children[i]));
    BATON_ASSIGN_OR_RETURN(Value value, Evaluate(*expr.children[i + 1]));
    entries.emplace_back(std::move(key), std::move(value));
  }
  return runtime_.MakeDict(std::move(entries));
}

Interpreter::Result Interpreter::EvaluateAccess(const Expr& expr) {
  BATON_ASSIGN_OR_RETURN(const Value object, Evaluate(*expr.children[0]));
  if (expr.kind == Expr::Kind::kGetAttribute) return GetAttribute(runtime_, object, expr.name);
  std::vector<Value> keys;
  for (size_t i = 1; i < expr.children.size(); ++i) {
    Value key;
    if (expr.children[i] != nullptr) {
      BATON_ASSIGN_OR_RETURN(key, Evaluate(*expr.children[i]));
    }
    keys.push_back(std::move(key));
  }
  if (expr.kind == Expr::Kind::kGetItem) return GetItem(runtime_, object, keys[0]);
  return GetSlice(runtime_, object, keys[0], keys[1], keys[2]);
}

absl::Status Interpreter::EvaluateArguments(const CallSyntax& call, Arguments* arguments) {
  for (const ExprPtr& expr : call.positional) {
    BATON_ASSIGN_OR_RETURN(Value value, Evaluate(*expr));
    arguments->positional.push_back(std::move(value));
  }
  for (const auto& [name, expr] : call.named) {
    BATON_ASSIGN_OR_RETURN(Value value, Evaluate(*expr));
    arguments->named.emplace_back(name, std::move(value));
  }
  if (call.more_positional != nullptr) {
    BATON_ASSIGN_OR_RETURN(const Value list, Evaluate(*call.more_positional));
    BATON_ASSIGN_OR_RETURN(const auto items, ItemsOf(runtime_, list));
    arguments->positional.insert(arguments->positional.end(), items.begin(), items.end());
  }
  if (call.more_named != nullptr) {
    BATON_ASSIGN_OR_RETURN(const Value dict, Evaluate(*call.more_named));
    if (!dict.is_dict()) return Failure("the argument after ** must be a dict");
    for (const auto& [key, value] : dict.dict().entries) {
      if (!key.is_string()) return Failure("keywords must be strings");
      arguments->named.emplace_back(key.text(), value);
    }
  }
  return absl::OkStatus();
}

Interpreter::Result Interpreter::EvaluateCall(const Expr& expr, Value caller) {
  BATON_ASSIGN_OR_RETURN(const Value callee, Evaluate(*expr.children[0]));
  Arguments arguments;
  BATON_RETURN_IF_ERROR(EvaluateArguments(*expr.call, &arguments));
  if (!caller.is_missing()) arguments.named.emplace_back("caller", std::move(caller));
  BATON_RETURN_IF_ERROR(CheckDefined(callee));
  if (!callee.is_object()) {
    return Failure(absl::StrCat("'", callee.type_name(), "' object is not callable"));
  }
  return callee.object().Call(runtime_, std::move(arguments));
}

Interpreter::Result Interpreter::EvaluateFilter(const Expr& expr) {
  Arguments arguments;
  Value input = block_input_;
  if (expr.children[0] != nullptr) {
    BATON_ASSIGN_OR_RETURN(input, Evaluate(*expr.children[0]));
  }
  arguments.positional.push_back(std::move(input));
  BATON_RETURN_IF_ERROR(EvaluateArguments(*expr.call, &arguments));
  if (expr.builtin == nullptr) {
    return Failure(absl::StrCat("No ", expr.kind == Expr::Kind::kFilter ? "filter" : "test",
                                " named ", json::Quoted(expr.name), "."));
  }
  return expr.builtin(runtime_, std::move(arguments));
}

Interpreter::Result Interpreter::EvaluateArithmetic(const Expr& expr) {
  BATON_ASSIGN_OR_RETURN(const Value left, Evaluate(*expr.children[0]));
  if (expr.kind == Expr::Kind::kNot) return Value::Bool(!IsTrue(left));
  if (expr.kind == Expr::Kind::kNegative) return Negate(left);
  if (expr.kind == Expr::Kind::kPositive) {
    BATON_RETURN_IF_ERROR(CheckDefined(left));
    if (!left.is_number()) return Failure("bad operand type for unary +");
    return left.is_bool() ? Value::Int(left.integer()) : left;
  }
  BATON_ASSIGN_OR_RETURN(const Value right, Evaluate(*expr.children[1]));
  return Arithmetic(runtime_, expr.operators[0], left, right);
}

Interpreter::Result Interpreter::EvaluateCompare(const Expr& expr) {
  BATON_ASSIGN_OR_RETURN(Value left, Evaluate(*expr.children[0]));
  for (size_t i = 0; i < expr.operators.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(Value right, Evaluate(*expr.children[i + 1]));
    BATON_ASSIGN_OR_RETURN(const bool holds, Compare(runtime_, expr.operators[i], left, right));
    if (!holds) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

Interpreter::Result Interpreter::EvaluateConcatenation(const Expr& expr) {
  TracedText text;
  for (const ExprPtr& child : expr.children) {
    BATON_ASSIGN_OR_RETURN(const Value value, Evaluate(*child));
    BATON_ASSIGN_OR_RETURN(const TracedText part, StrOf(runtime_, value));
    BATON_RETURN_IF_ERROR(runtime_.CheckRoom(text.size() + part.size() + text.trace_bytes()));
    text.Append(part);
  }
  return runtime_.MakeString(std::move(text));
}

// The first operand that decides, as in Python.
Interpreter::Result Interpreter::EvaluateLogic(const Expr& expr) {
  const bool decides = expr.kind == Expr::Kind::kOr;
  for (size_t i = 0; i + 1 < expr.children.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(Value value, Evaluate(*expr.children[i]));
    if (IsTrue(value) == decides) return value;
  }
  return Evaluate(*expr.children.back());
}

Interpreter::Result Interpreter::EvaluateConditional(const Expr& expr) {
  BATON_ASSIGN_OR_RETURN(const Value condition, Evaluate(*expr.children[1]));
  if (IsTrue(condition)) return Evaluate(*expr.children[0]);
  if (expr.children[2] != nullptr) return Evaluate(*expr.children[2]);
  return runtime_.MakeUndefined(
      "the inline if-expression evaluated to false and no else section was defined.");
}

}  // namespace baton::chat
