// Statements and scopes.
#include "common/chat/interpreter.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/chat/callables.h"
#include "common/chat/globals.h"
#include "common/chat/operators.h"
#include "common/chat/printing.h"

namespace baton::chat {

absl::StatusOr<TracedText> Interpreter::Run(json::Value request_variables,
                                            json::Value model_variables) {
  BATON_RETURN_IF_ERROR(BindVariables(std::move(request_variables), std::move(model_variables)));
  // Most templates write the texts of their variables once, and a little around them. Where a long
  // text grows instead, it is copied again and again.
  output_.text.reserve(std::min(runtime_.variable_bytes() + runtime_.variable_bytes() / 8,
                                runtime_.limits().max_output_bytes));
  BATON_ASSIGN_OR_RETURN(scope_, NewScope(nullptr));
  BATON_ASSIGN_OR_RETURN(const Flow flow, ExecuteBody(syntax_.body));
  BATON_CHECK(flow == Flow::kNext) << "the parser refuses break outside of a loop";
  return std::move(output_);
}

// Only the names that the template mentions become values; each is listed once.
absl::Status Interpreter::BindVariables(json::Value request_variables,
                                        json::Value model_variables) {
  context_.resize(syntax_.names.size());
  for (size_t id = 0; id < syntax_.names.size(); ++id) {
    auto value = TakeVariable(syntax_.names[id], request_variables, model_variables);
    if (!value.ok()) return Annotate(value.status(), syntax_.name);
    context_[id] = *std::move(value);
  }
  return absl::OkStatus();
}

Interpreter::Result Interpreter::TakeVariable(const std::string& name,
                                              json::Value& request_variables,
                                              json::Value& model_variables) {
  if (json::Value* given = request_variables.Find(name)) {
    return runtime_.FromJson(std::move(*given), Origin::kRequest);
  }
  if (json::Value* given = model_variables.Find(name)) {
    return runtime_.FromJson(std::move(*given), Origin::kTemplate);
  }
  return FindGlobal(runtime_, name);
}

absl::StatusOr<Interpreter::Scope*> Interpreter::NewScope(Scope* parent) {
  Scope* scope = nullptr;
  if (!free_scopes_.empty()) {
    scope = free_scopes_.back();
    free_scopes_.pop_back();
  } else {
    constexpr size_t kScopeBytes = sizeof(Scope) + 8 * sizeof(std::pair<int, Value>);
    BATON_RETURN_IF_ERROR(runtime_.CheckRoom(kScopeBytes));
    scopes_.push_back(
        std::make_unique<Scope>(Scope{.variables = {}, .charge = runtime_.Charge(kScopeBytes)}));
    scope = scopes_.back().get();
  }
  scope->parent = parent;
  return scope;
}

void Interpreter::KeepScopes(Scope* scope) {
  for (; scope != nullptr && !scope->kept; scope = scope->parent) scope->kept = true;
}

Interpreter::Result Interpreter::Lookup(int name_id) {
  for (const Scope* scope = scope_; scope != nullptr; scope = scope->parent) {
    for (const auto& [id, value] : scope->variables) {
      if (id == name_id) return value;
    }
  }
  if (!context_[name_id].is_missing()) return context_[name_id];
  return runtime_.MakeUndefined(
      absl::StrCat("'", json::Printable(syntax_.names[name_id]), "' is undefined"));
}

void Interpreter::Set(int name_id, Value value) {
  for (auto& [id, old] : scope_->variables) {
    if (id != name_id) continue;
    old = std::move(value);
    return;
  }
  scope_->variables.emplace_back(name_id, std::move(value));
}

absl::Status Interpreter::Assign(const Expr& target, Value value) {
  if (target.kind == Expr::Kind::kName) {
    Set(target.name_id, std::move(value));
    return absl::OkStatus();
  }
  if (target.kind == Expr::Kind::kAttributeOf) {
    BATON_ASSIGN_OR_RETURN(const Value object, Lookup(target.name_id));
    auto* const space = object.is_object() ? dynamic_cast<Namespace*>(&object.object()) : nullptr;
    if (space == nullptr) return Failure("cannot assign attribute on non-namespace object");
    space->Set(target.name, std::move(value));
    return absl::OkStatus();
  }
  BATON_RETURN_IF_ERROR(CheckDefined(value));
  BATON_ASSIGN_OR_RETURN(const auto items, ItemsOf(runtime_, value));
  if (items.size() != target.children.size()) {
    return Failure(absl::StrCat("found ", items.size(), " values to unpack, expected ",
                                target.children.size()));
  }
  for (size_t i = 0; i < items.size(); ++i) {
    BATON_RETURN_IF_ERROR(Assign(*target.children[i], items[i]));
  }
  return absl::OkStatus();
}

absl::Status Interpreter::CheckWrite(size_t bytes) {
  BATON_RETURN_IF_ERROR(runtime_.StepForBytes(bytes));
  if (bytes > runtime_.limits().max_output_bytes - output_bytes_) {
    return MakeError(absl::StatusCode::kResourceExhausted, "CHAT_TEMPLATE_LIMIT",
                     absl::StrCat("the template writes more than ",
                                  runtime_.limits().max_output_bytes, " bytes"));
  }
  output_bytes_ += bytes;
  return absl::OkStatus();
}

absl::Status Interpreter::WriteValue(const Value& value) {
  if (value.is_string()) {
    BATON_RETURN_IF_ERROR(CheckWrite(value.text().size()));
    out_->Append(value.traced());
    return absl::OkStatus();
  }
  BATON_ASSIGN_OR_RETURN(const TracedText text, StrOf(runtime_, value));
  BATON_RETURN_IF_ERROR(CheckWrite(text.size()));
  out_->Append(text);
  return absl::OkStatus();
}

absl::Status Interpreter::Locate(absl::Status status, int line) {
  if (located_ || ErrorReason(status) == "CHAT_TEMPLATE_REFUSED") return status;
  located_ = true;
  return Annotate(status, absl::StrCat(syntax_.name, ":", line));
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteBody(const Body& body) {
  for (const auto& statement : body) {
    BATON_ASSIGN_OR_RETURN(const Flow flow, Execute(*statement));
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteInScope(const Body& body, Scope* parent) {
  BATON_ASSIGN_OR_RETURN(Scope* const scope, NewScope(parent));
  const InScope in_scope(*this, scope);
  return ExecuteBody(body);
}

absl::StatusOr<Interpreter::Flow> Interpreter::Execute(const Statement& statement) {
  const Runtime::Level level(runtime_);
  absl::Status budget = level.Check();
  if (budget.ok()) budget = runtime_.Step();
  if (!budget.ok()) return Locate(std::move(budget), statement.line);
  absl::StatusOr<Flow> flow = Dispatch(statement);
  if (!flow.ok()) return Locate(std::move(flow).status(), statement.line);
  return flow;
}

absl::StatusOr<Interpreter::Flow> Interpreter::Dispatch(const Statement& statement) {
  switch (statement.kind) {
    case Statement::Kind::kText:
      BATON_RETURN_IF_ERROR(CheckWrite(statement.text.size()));
      out_->Append(statement.text);
      return Flow::kNext;
    case Statement::Kind::kOutput: {
      BATON_ASSIGN_OR_RETURN(const Value value, Evaluate(*statement.value));
      BATON_RETURN_IF_ERROR(WriteValue(value));
      return Flow::kNext;
    }
    case Statement::Kind::kIf:
      return ExecuteIf(statement);
    case Statement::Kind::kFor:
      return ExecuteFor(statement);
    case Statement::Kind::kSet: {
      BATON_ASSIGN_OR_RETURN(Value value, Evaluate(*statement.value));
      BATON_RETURN_IF_ERROR(Assign(*statement.target, std::move(value)));
      return Flow::kNext;
    }
    case Statement::Kind::kSetBlock:
    case Statement::Kind::kFilterBlock:
      return ExecuteCaptured(statement);
    case Statement::Kind::kMacro: {
      BATON_ASSIGN_OR_RETURN(Value macro, MakeMacro(*statement.macro));
      Set(statement.name_id, std::move(macro));
      return Flow::kNext;
    }
    case Statement::Kind::kCallBlock:
      BATON_RETURN_IF_ERROR(ExecuteCallBlock(statement));
      return Flow::kNext;
    case Statement::Kind::kScope:
      return ExecuteWith(statement);
    case Statement::Kind::kBreak:
      return Flow::kBreak;
    case Statement::Kind::kContinue:
      return Flow::kContinue;
  }
  return Flow::kNext;
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteIf(const Statement& statement) {
  for (const auto& [condition, body] : statement.branches) {
    BATON_ASSIGN_OR_RETURN(const Value holds, Evaluate(*condition));
    if (IsTrue(holds)) return ExecuteBody(body);
  }
  return ExecuteBody(statement.else_body);
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteFor(const Statement& statement) {
  BATON_ASSIGN_OR_RETURN(const Value iterable, Evaluate(*statement.value));
  if (statement.recursive) KeepScopes(scope_);
  BATON_RETURN_IF_ERROR(RunLoop(statement, iterable, scope_, /*loop_depth=*/0));
  return Flow::kNext;
}

Interpreter::Result Interpreter::LoopItems(const Statement& statement, const Value& iterable,
                                           Scope* parent) {
  const bool is_shared = iterable.is_sequence() && !iterable.IsSequence(Flavor::kGenerator);
  if (is_shared && statement.filter == nullptr) return iterable;
  BATON_ASSIGN_OR_RETURN(auto items, ItemsOf(runtime_, iterable));
  if (statement.filter == nullptr) return runtime_.MakeList(std::move(items));
  std::vector<Value> kept;
  for (Value& item : items) {
    BATON_ASSIGN_OR_RETURN(Scope* const scope, NewScope(parent));
    const InScope in_scope(*this, scope);
    BATON_RETURN_IF_ERROR(Assign(*statement.target, item));
    BATON_ASSIGN_OR_RETURN(const Value keep, Evaluate(*statement.filter));
    if (IsTrue(keep)) kept.push_back(std::move(item));
  }
  return runtime_.MakeList(std::move(kept));
}

absl::Status Interpreter::RunLoop(const Statement& statement, const Value& iterable, Scope* parent,
                                  int loop_depth) {
  BATON_ASSIGN_OR_RETURN(const Value items, LoopItems(statement, iterable, parent));
  const std::vector<Value>& values = items.sequence().items;
  if (values.empty()) {
    return ExecuteInScope(statement.else_body, parent).status();
  }
  BATON_RETURN_IF_ERROR(runtime_.CheckRoom(sizeof(LoopObject)));
  const auto loop = std::make_shared<LoopObject>(runtime_.Charge(sizeof(LoopObject)), items,
                                                 loop_depth, *this, statement, parent);
  for (size_t i = 0; i < values.size(); ++i) {
    BATON_RETURN_IF_ERROR(runtime_.Step());
    loop->MoveTo(i);
    BATON_ASSIGN_OR_RETURN(Scope* const scope, NewScope(parent));
    const InScope in_scope(*this, scope);
    Set(kLoopName, Value(Kind::kObject, loop));
    BATON_RETURN_IF_ERROR(Assign(*statement.target, values[i]));
    BATON_ASSIGN_OR_RETURN(const Flow flow, ExecuteBody(statement.body));
    if (flow == Flow::kBreak) break;
  }
  return absl::OkStatus();
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteWith(const Statement& statement) {
  // Values see the variables outside.
  std::vector<Value> values;
  for (const auto& [target, expression] : statement.assignments) {
    BATON_ASSIGN_OR_RETURN(Value value, Evaluate(*expression));
    values.push_back(std::move(value));
  }
  BATON_ASSIGN_OR_RETURN(Scope* const scope, NewScope(scope_));
  const InScope in_scope(*this, scope);
  for (size_t i = 0; i < values.size(); ++i) {
    BATON_RETURN_IF_ERROR(Assign(*statement.assignments[i].first, std::move(values[i])));
  }
  return ExecuteBody(statement.body);
}

absl::StatusOr<Interpreter::Flow> Interpreter::ExecuteCaptured(const Statement& statement) {
  TracedText text;
  {
    Capture capture(*this);
    BATON_ASSIGN_OR_RETURN(const Flow flow, ExecuteInScope(statement.body, scope_));
    if (flow != Flow::kNext) return flow;
    text = capture.Take();
  }
  BATON_ASSIGN_OR_RETURN(Value value, runtime_.MakeString(std::move(text)));
  if (statement.filter != nullptr) {
    std::swap(block_input_, value);
    Result filtered = Evaluate(*statement.filter);
    std::swap(block_input_, value);
    BATON_ASSIGN_OR_RETURN(value, std::move(filtered));
  }
  if (statement.kind == Statement::Kind::kSetBlock) {
    BATON_RETURN_IF_ERROR(Assign(*statement.target, std::move(value)));
  } else {
    BATON_RETURN_IF_ERROR(WriteValue(value));
  }
  return Flow::kNext;
}

absl::Status Interpreter::ExecuteCallBlock(const Statement& statement) {
  BATON_ASSIGN_OR_RETURN(Value caller, MakeMacro(*statement.macro));
  BATON_ASSIGN_OR_RETURN(const Value result, EvaluateCall(*statement.value, std::move(caller)));
  return WriteValue(result);
}

Interpreter::Result Interpreter::MakeMacro(const MacroSyntax& macro) {
  BATON_RETURN_IF_ERROR(runtime_.CheckRoom(sizeof(MacroObject)));
  KeepScopes(scope_);
  return runtime_.Adopt(
      std::make_unique<MacroObject>(runtime_.Charge(sizeof(MacroObject)), *this, macro, scope_));
}

Interpreter::Result Interpreter::CallMacro(const MacroSyntax& macro, Scope* parent,
                                           Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(Scope* const scope, NewScope(parent));
  const InScope in_scope(*this, scope);
  BATON_RETURN_IF_ERROR(BindParameters(macro, std::move(arguments)));
  Capture capture(*this);
  BATON_RETURN_IF_ERROR(ExecuteBody(macro.body).status());
  return runtime_.MakeString(capture.Take());
}

absl::Status Interpreter::BindParameters(const MacroSyntax& macro, Arguments arguments) {
  std::vector<Value> rest;
  for (size_t i = 0; i < arguments.positional.size(); ++i) {
    if (i < macro.parameters.size()) {
      Set(macro.parameter_ids[i], std::move(arguments.positional[i]));
    } else if (macro.uses_varargs) {
      rest.push_back(std::move(arguments.positional[i]));
    } else {
      return Failure(absl::StrCat("macro '", macro.name, "' takes not more than ",
                                  macro.parameters.size(), " argument(s)"));
    }
  }
  std::vector<bool> given(macro.parameters.size());
  std::fill_n(given.begin(), std::min(arguments.positional.size(), given.size()), true);
  DictRep::Entries named;
  bool has_caller = false;
  for (auto& [name, value] : arguments.named) {
    const size_t at = std::find(macro.parameters.begin(), macro.parameters.end(), name) -
                      macro.parameters.begin();
    if (at < given.size()) {
      if (given[at]) {
        return Failure(
            absl::StrCat("macro '", macro.name, "' got its argument '", name, "' twice"));
      }
      given[at] = true;
      Set(macro.parameter_ids[at], std::move(value));
    } else if (name == "caller" && macro.uses_caller) {
      has_caller = true;
      Set(kCallerName, std::move(value));
    } else if (macro.uses_kwargs) {
      // The name may be a key of the request's dict that is passed with **.
      BATON_ASSIGN_OR_RETURN(Value key, runtime_.MakeString(TracedText(name, Origin::kRequest)));
      named.emplace_back(std::move(key), std::move(value));
    } else {
      return Failure(
          absl::StrCat("macro '", macro.name, "' takes no keyword argument ", json::Quoted(name)));
    }
  }
  if (macro.uses_caller && !has_caller) {
    Set(kCallerName, runtime_.MakeUndefined("No caller defined"));
  }
  if (macro.uses_varargs) {
    BATON_ASSIGN_OR_RETURN(Value tuple, runtime_.MakeSequence(Flavor::kTuple, std::move(rest)));
    Set(kVarargsName, std::move(tuple));
  }
  if (macro.uses_kwargs) {
    BATON_ASSIGN_OR_RETURN(Value dict, runtime_.MakeDict(std::move(named)));
    Set(kKwargsName, std::move(dict));
  }
  const size_t first_default = macro.parameters.size() - macro.defaults.size();
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i]) continue;
    Value value = runtime_.MakeUndefined(
        absl::StrCat("parameter '", macro.parameters[i], "' was not provided"));
    if (i >= first_default) {
      BATON_ASSIGN_OR_RETURN(value, Evaluate(*macro.defaults[i - first_default]));
    }
    Set(macro.parameter_ids[i], std::move(value));
  }
  return absl::OkStatus();
}

}  // namespace baton::chat
