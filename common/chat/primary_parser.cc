#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/chat/filters.h"
#include "common/chat/parser.h"
#include "common/json/json.h"

// The second half of expression_parser.cc: names, literals, subscripts, calls, filters, tests.
namespace baton::chat {

ExpressionParser::Result ExpressionParser::ParseName(bool with_attributes) {
  const std::string name = current().text;
  if (name == "true" || name == "True" || name == "false" || name == "False" || name == "none" ||
      name == "None") {
    ExprPtr constant = NewExpr(Expr::Kind::kConstant);
    constant->constant = name[0] == 'n' || name[0] == 'N'
                             ? Value::None()
                             : Value::Bool(name[0] == 't' || name[0] == 'T');
    Advance();
    return constant;
  }
  ExprPtr expr = NewExpr(Expr::Kind::kName);
  expr->name = name;
  expr->name_id = NameId(name);
  for (MacroSyntax* macro : open_macros_) {
    macro->uses_caller = macro->uses_caller || name == "caller";
    macro->uses_varargs = macro->uses_varargs || name == "varargs";
    macro->uses_kwargs = macro->uses_kwargs || name == "kwargs";
  }
  Advance();
  if (with_attributes && SkipOperator(".")) {
    expr->kind = Expr::Kind::kAttributeOf;
    BATON_ASSIGN_OR_RETURN(expr->name, ExpectName());
  }
  return expr;
}

ExpressionParser::Result ExpressionParser::ParsePrimary(bool with_attributes) {
  switch (current().kind) {
    case Token::Kind::kName:
      return ParseName(with_attributes);
    case Token::Kind::kString: {
      ExprPtr constant = NewExpr(Expr::Kind::kConstant);
      std::string text;
      for (; current().kind == Token::Kind::kString; Advance()) text += current().text;
      constant->constant = Value::Constant(std::move(text));
      return constant;
    }
    case Token::Kind::kInteger:
    case Token::Kind::kFloat: {
      ExprPtr constant = NewExpr(Expr::Kind::kConstant);
      constant->constant = current().kind == Token::Kind::kInteger ? Value::Int(current().integer)
                                                                   : Value::Float(current().real);
      Advance();
      return constant;
    }
    default:
      break;
  }
  if (SkipOperator("(")) {
    BATON_ASSIGN_OR_RETURN(
        ExprPtr inner, ParseItems(/*with_conditional=*/true, /*end_name=*/"", /*is_target=*/false,
                                  /*with_attributes=*/false, /*in_parentheses=*/true));
    BATON_RETURN_IF_ERROR(ExpectOperator(")"));
    return inner;
  }
  if (AtOperator("[")) return ParseList();
  if (AtOperator("{")) return ParseDict();
  return Unexpected("an expression");
}

ExpressionParser::Result ExpressionParser::ParseList() {
  ExprPtr list = NewExpr(Expr::Kind::kList);
  Advance();
  while (!AtOperator("]")) {
    if (!list->children.empty()) BATON_RETURN_IF_ERROR(ExpectOperator(","));
    if (AtOperator("]")) break;
    BATON_ASSIGN_OR_RETURN(ExprPtr item, ParseExpression());
    list->children.push_back(std::move(item));
  }
  Advance();
  return Finish(std::move(list));
}

ExpressionParser::Result ExpressionParser::ParseDict() {
  ExprPtr dict = NewExpr(Expr::Kind::kDict);
  Advance();
  while (!AtOperator("}")) {
    if (!dict->children.empty()) BATON_RETURN_IF_ERROR(ExpectOperator(","));
    if (AtOperator("}")) break;
    BATON_ASSIGN_OR_RETURN(ExprPtr key, ParseExpression());
    BATON_RETURN_IF_ERROR(ExpectOperator(":"));
    BATON_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
    dict->children.push_back(std::move(key));
    dict->children.push_back(std::move(value));
  }
  Advance();
  return Finish(std::move(dict));
}

ExpressionParser::Result ExpressionParser::ParseTuple(bool with_conditional,
                                                      absl::string_view end_name) {
  return ParseItems(with_conditional, end_name, /*is_target=*/false, /*with_attributes=*/false,
                    /*in_parentheses=*/false);
}

ExpressionParser::Result ExpressionParser::ParseTarget(bool with_attributes,
                                                       absl::string_view end_name) {
  BATON_ASSIGN_OR_RETURN(ExprPtr target,
                         ParseItems(/*with_conditional=*/false, end_name, /*is_target=*/true,
                                    with_attributes, /*in_parentheses=*/false));
  const auto is_assignable = [](const Expr& expr) {
    return expr.kind == Expr::Kind::kName || expr.kind == Expr::Kind::kAttributeOf;
  };
  bool good = is_assignable(*target);
  if (target->kind == Expr::Kind::kTuple) {
    good = std::all_of(target->children.begin(), target->children.end(),
                       [&](const ExprPtr& child) { return is_assignable(*child); });
  }
  if (!good) return Error("the target of an assignment is no variable");
  return target;
}

ExpressionParser::Result ExpressionParser::ParseItems(bool with_conditional,
                                                      absl::string_view end_name, bool is_target,
                                                      bool with_attributes, bool in_parentheses) {
  ExprPtr tuple = NewExpr(Expr::Kind::kTuple);
  bool is_tuple = false;
  while (true) {
    if (!tuple->children.empty()) BATON_RETURN_IF_ERROR(ExpectOperator(","));
    const bool at_end = current().kind == Token::Kind::kBlockEnd ||
                        current().kind == Token::Kind::kVariableEnd || AtOperator(")") ||
                        (!end_name.empty() && AtName(end_name));
    if (at_end) break;
    BATON_ASSIGN_OR_RETURN(ExprPtr item, is_target ? ParsePrimary(with_attributes)
                                                   : ParseExpression(with_conditional));
    tuple->children.push_back(std::move(item));
    if (!AtOperator(",")) break;
    is_tuple = true;
  }
  if (is_tuple || (tuple->children.empty() && in_parentheses)) return Finish(std::move(tuple));
  if (tuple->children.empty()) return Unexpected("an expression");
  return std::move(tuple->children[0]);
}

ExpressionParser::Result ExpressionParser::ParsePostfix(ExprPtr value) {
  while (true) {
    if (AtOperator(".") || AtOperator("[")) {
      BATON_ASSIGN_OR_RETURN(value, ParseSubscript(std::move(value)));
    } else if (AtOperator("(")) {
      ExprPtr call = NewExpr(Expr::Kind::kCall);
      BATON_ASSIGN_OR_RETURN(call->call, ParseArguments());
      call->children.push_back(std::move(value));
      BATON_ASSIGN_OR_RETURN(value, Finish(std::move(call)));
    } else {
      return value;
    }
  }
}

ExpressionParser::Result ExpressionParser::ParseSubscript(ExprPtr value) {
  ExprPtr access = NewExpr(Expr::Kind::kGetItem);
  access->children.push_back(std::move(value));
  if (SkipOperator(".")) {
    if (current().kind == Token::Kind::kName) {
      access->kind = Expr::Kind::kGetAttribute;
      access->name = current().text;
    } else if (current().kind == Token::Kind::kInteger) {
      ExprPtr index = NewExpr(Expr::Kind::kConstant);
      index->constant = Value::Int(current().integer);
      access->children.push_back(std::move(index));
    } else {
      return Unexpected("a name or a number");
    }
    Advance();
    return Finish(std::move(access));
  }
  Advance();
  ExprPtr start;
  if (!AtOperator(":")) {
    BATON_ASSIGN_OR_RETURN(start, ParseExpression());
  }
  if (!AtOperator(":")) {
    if (AtOperator(",")) return Error("a subscript with a comma is not supported");
    access->children.push_back(std::move(start));
    BATON_RETURN_IF_ERROR(ExpectOperator("]"));
    return Finish(std::move(access));
  }
  access->kind = Expr::Kind::kGetSlice;
  access->children.push_back(std::move(start));
  for (int part = 0; part < 2; ++part) {
    ExprPtr bound;
    if (SkipOperator(":") && !AtOperator(":") && !AtOperator("]")) {
      BATON_ASSIGN_OR_RETURN(bound, ParseExpression());
    }
    access->children.push_back(std::move(bound));
  }
  BATON_RETURN_IF_ERROR(ExpectOperator("]"));
  return Finish(std::move(access));
}

absl::StatusOr<std::unique_ptr<CallSyntax>> ExpressionParser::ParseArguments() {
  auto call = std::make_unique<CallSyntax>();
  BATON_RETURN_IF_ERROR(ExpectOperator("("));
  bool is_first = true;
  while (!AtOperator(")")) {
    if (!is_first) BATON_RETURN_IF_ERROR(ExpectOperator(","));
    if (!is_first && AtOperator(")")) break;
    is_first = false;
    if (AtOperator("*") || AtOperator("**")) {
      ExprPtr* const place = AtOperator("*") ? &call->more_positional : &call->more_named;
      if (*place != nullptr || call->more_named != nullptr) return Unexpected("an argument");
      Advance();
      BATON_ASSIGN_OR_RETURN(*place, ParseExpression());
    } else if (current().kind == Token::Kind::kName && lookahead().kind == Token::Kind::kOperator &&
               lookahead().text == "=") {
      if (call->more_named != nullptr) return Unexpected("no more arguments");
      std::string name = current().text;
      Advance();
      Advance();
      BATON_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
      call->named.emplace_back(std::move(name), std::move(value));
    } else {
      if (call->more_positional != nullptr || call->more_named != nullptr || !call->named.empty()) {
        return Unexpected("a named argument");
      }
      BATON_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
      call->positional.push_back(std::move(value));
    }
  }
  Advance();
  return call;
}

absl::StatusOr<std::string> ExpressionParser::ParseDottedName() {
  BATON_ASSIGN_OR_RETURN(std::string name, ExpectName());
  while (SkipOperator(".")) {
    BATON_ASSIGN_OR_RETURN(const std::string part, ExpectName());
    absl::StrAppend(&name, ".", part);
  }
  return name;
}

ExpressionParser::Result ExpressionParser::ParseFilters(ExprPtr value, bool without_bar) {
  while (std::exchange(without_bar, false) || SkipOperator("|")) {
    ExprPtr filter = NewExpr(Expr::Kind::kFilter);
    BATON_ASSIGN_OR_RETURN(filter->name, ParseDottedName());
    filter->builtin = FindFilter(filter->name);
    if (filter->builtin == nullptr && !in_condition_) {
      return Error(absl::StrCat("No filter named ", json::Quoted(filter->name), "."));
    }
    filter->call = std::make_unique<CallSyntax>();
    if (AtOperator("(")) {
      BATON_ASSIGN_OR_RETURN(filter->call, ParseArguments());
    }
    filter->children.push_back(std::move(value));
    BATON_ASSIGN_OR_RETURN(value, Finish(std::move(filter)));
  }
  return value;
}

ExpressionParser::Result ExpressionParser::ParseTest(ExprPtr value) {
  ExprPtr test = NewExpr(Expr::Kind::kTest);
  Advance();
  const bool negated = SkipName("not");
  BATON_ASSIGN_OR_RETURN(test->name, ParseDottedName());
  test->builtin = FindTest(test->name);
  if (test->builtin == nullptr && !in_condition_) {
    return Error(absl::StrCat("No test named ", json::Quoted(test->name), "."));
  }
  test->call = std::make_unique<CallSyntax>();
  const Token::Kind kind = current().kind;
  const bool at_value = kind == Token::Kind::kName || kind == Token::Kind::kString ||
                        kind == Token::Kind::kInteger || kind == Token::Kind::kFloat ||
                        AtOperator("[") || AtOperator("{");
  if (AtOperator("(")) {
    BATON_ASSIGN_OR_RETURN(test->call, ParseArguments());
  } else if (at_value && !AtName("else") && !AtName("or") && !AtName("and")) {
    if (AtName("is")) return Error("You cannot chain multiple tests with is");
    BATON_ASSIGN_OR_RETURN(ExprPtr argument, ParsePrimary());
    BATON_ASSIGN_OR_RETURN(argument, ParsePostfix(std::move(argument)));
    test->call->positional.push_back(std::move(argument));
  }
  test->children.push_back(std::move(value));
  BATON_ASSIGN_OR_RETURN(ExprPtr result, Finish(std::move(test)));
  if (!negated) return result;
  ExprPtr negation = NewExpr(Expr::Kind::kNot);
  negation->children.push_back(std::move(result));
  return Finish(std::move(negation));
}

}  // namespace baton::chat
