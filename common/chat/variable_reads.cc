#include "common/chat/variable_reads.h"

#include <cstddef>
#include <utility>

namespace baton::chat {
namespace {

// The recursion is bounded, as is the parser's.
class Visitor {
 public:
  explicit Visitor(const TemplateSyntax& syntax) : reads_(syntax.names.size()) {}

  // By the id of the name: the template has set it.
  using Bound = std::vector<bool>;

  void Visit(const Body& body, Bound& bound) {
    for (const auto& statement : body) Visit(*statement, bound);
  }
  std::vector<bool> Take() { return std::move(reads_); }

 private:
  void InScope(const Body& body, Bound bound) { Visit(body, bound); }

  void Visit(const ExprPtr& expr, const Bound& bound) {
    if (expr == nullptr) return;
    const bool is_name = expr->kind == Expr::Kind::kName || expr->kind == Expr::Kind::kAttributeOf;
    if (is_name && !bound[expr->name_id]) reads_[expr->name_id] = true;
    for (const ExprPtr& child : expr->children) Visit(child, bound);
    if (expr->call == nullptr) return;
    for (const ExprPtr& argument : expr->call->positional) Visit(argument, bound);
    for (const auto& [name, argument] : expr->call->named) Visit(argument, bound);
    Visit(expr->call->more_positional, bound);
    Visit(expr->call->more_named, bound);
  }

  // An attribute is set of a variable that is read.
  void Bind(const ExprPtr& target, Bound& bound) {
    if (target->kind == Expr::Kind::kName) {
      bound[target->name_id] = true;
    } else if (target->kind == Expr::Kind::kAttributeOf) {
      Visit(target, bound);
    } else {
      for (const ExprPtr& child : target->children) Bind(child, bound);
    }
  }

  void VisitMacro(const MacroSyntax& macro, Bound bound) {
    for (const int id : macro.parameter_ids) bound[id] = true;
    for (const int id : {kCallerName, kVarargsName, kKwargsName}) bound[id] = true;
    for (const ExprPtr& value : macro.defaults) Visit(value, bound);
    Visit(macro.body, bound);
  }

  void VisitIf(const Statement& statement, Bound& bound) {
    for (const auto& [condition, body] : statement.branches) Visit(condition, bound);
    Bound always = bound;
    Visit(statement.else_body, always);
    for (const auto& [condition, body] : statement.branches) {
      Bound here = bound;
      Visit(body, here);
      for (size_t id = 0; id < always.size(); ++id) always[id] = always[id] && here[id];
    }
    bound = std::move(always);
  }

  void VisitFor(const Statement& statement, const Bound& bound) {
    Visit(statement.value, bound);
    InScope(statement.else_body, bound);
    Bound inside = bound;
    Bind(statement.target, inside);
    Visit(statement.filter, inside);
    inside[kLoopName] = true;
    Visit(statement.body, inside);
  }

  void Visit(const Statement& statement, Bound& bound) {
    switch (statement.kind) {
      case Statement::Kind::kText:
      case Statement::Kind::kBreak:
      case Statement::Kind::kContinue:
        return;
      case Statement::Kind::kOutput:
        return Visit(statement.value, bound);
      case Statement::Kind::kIf:
        return VisitIf(statement, bound);
      case Statement::Kind::kFor:
        return VisitFor(statement, bound);
      case Statement::Kind::kSet:
        Visit(statement.value, bound);
        return Bind(statement.target, bound);
      case Statement::Kind::kSetBlock:
        InScope(statement.body, bound);
        Visit(statement.filter, bound);
        return Bind(statement.target, bound);
      case Statement::Kind::kFilterBlock:
        InScope(statement.body, bound);
        return Visit(statement.filter, bound);
      case Statement::Kind::kMacro:
        bound[statement.name_id] = true;
        return VisitMacro(*statement.macro, bound);
      case Statement::Kind::kCallBlock:
        Visit(statement.value, bound);
        return VisitMacro(*statement.macro, bound);
      case Statement::Kind::kScope: {
        Bound inside = bound;
        for (const auto& [target, value] : statement.assignments) Visit(value, bound);
        for (const auto& [target, value] : statement.assignments) Bind(target, inside);
        return Visit(statement.body, inside);
      }
    }
  }

  std::vector<bool> reads_;
};

}  // namespace

std::vector<bool> VariableReads(const TemplateSyntax& syntax) {
  Visitor visitor(syntax);
  Visitor::Bound bound(syntax.names.size());
  visitor.Visit(syntax.body, bound);
  return visitor.Take();
}

}  // namespace baton::chat
