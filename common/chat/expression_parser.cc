#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/chat/chat_template.h"
#include "common/chat/parser.h"
#include "common/json/json.h"

namespace baton::chat {
namespace {

struct Symbol {
  absl::string_view text;
  Operator op;
};

constexpr Symbol kComparisons[] = {{"==", Operator::kEqual},  {"!=", Operator::kNotEqual},
                                   {"<", Operator::kLess},    {"<=", Operator::kLessEqual},
                                   {">", Operator::kGreater}, {">=", Operator::kGreaterEqual}};
constexpr Symbol kSums[] = {{"+", Operator::kAdd}, {"-", Operator::kSubtract}};
constexpr Symbol kProducts[] = {{"*", Operator::kMultiply},
                                {"/", Operator::kDivide},
                                {"//", Operator::kFloorDivide},
                                {"%", Operator::kModulo}};

}  // namespace

ExpressionParser::ExpressionParser(std::vector<Token> tokens, TemplateSyntax* syntax)
    : syntax_(syntax), tokens_(std::move(tokens)) {
  for (const absl::string_view name : {"loop", "caller", "varargs", "kwargs"}) NameId(name);
}

bool ExpressionParser::AtOperator(absl::string_view text) const {
  return current().kind == Token::Kind::kOperator && current().text == text;
}

bool ExpressionParser::AtName(absl::string_view text) const {
  return current().kind == Token::Kind::kName && current().text == text;
}

bool ExpressionParser::SkipOperator(absl::string_view text) {
  if (!AtOperator(text)) return false;
  Advance();
  return true;
}

bool ExpressionParser::SkipName(absl::string_view text) {
  if (!AtName(text)) return false;
  Advance();
  return true;
}

absl::Status ExpressionParser::ExpectOperator(absl::string_view text) {
  return SkipOperator(text) ? absl::OkStatus() : Unexpected(absl::StrCat("'", text, "'"));
}

absl::StatusOr<std::string> ExpressionParser::ExpectName() {
  if (current().kind != Token::Kind::kName) return Unexpected("a name");
  std::string name = current().text;
  Advance();
  return name;
}

absl::Status ExpressionParser::Error(absl::string_view message) const {
  return SyntaxError(syntax_->name, current().line, message);
}

absl::Status ExpressionParser::Unexpected(absl::string_view expected) const {
  std::string found;
  switch (current().kind) {
    case Token::Kind::kEnd:
      found = "the end of the template";
      break;
    case Token::Kind::kBlockEnd:
    case Token::Kind::kVariableEnd:
      found = "the end of the tag";
      break;
    case Token::Kind::kText:
    case Token::Kind::kBlockBegin:
    case Token::Kind::kVariableBegin:
      found = "text";
      break;
    default:
      found = json::Quoted(current().text);
  }
  return Error(absl::StrCat("found ", found, ", expected ", expected));
}

absl::Status ExpressionParser::Level::Check() const {
  if (parser_.level_ <= kMaxSyntaxDepth) return absl::OkStatus();
  return parser_.Error(absl::StrCat("nested deeper than ", kMaxSyntaxDepth, " levels"));
}

int ExpressionParser::NameId(absl::string_view name) {
  const auto [found, is_new] =
      name_ids_.try_emplace(std::string(name), static_cast<int>(syntax_->names.size()));
  if (is_new) syntax_->names.emplace_back(name);
  return found->second;
}

ExprPtr ExpressionParser::NewExpr(Expr::Kind kind) const {
  auto expr = std::make_unique<Expr>();
  expr->kind = kind;
  expr->line = current().line;
  return expr;
}

ExpressionParser::Result ExpressionParser::Finish(ExprPtr expr) const {
  int depth = 0;
  const auto include = [&](const ExprPtr& child) {
    if (child != nullptr) depth = std::max(depth, child->depth);
  };
  for (const ExprPtr& child : expr->children) include(child);
  if (expr->call != nullptr) {
    for (const ExprPtr& argument : expr->call->positional) include(argument);
    for (const auto& [name, argument] : expr->call->named) include(argument);
    include(expr->call->more_positional);
    include(expr->call->more_named);
  }
  expr->depth = depth + 1;
  if (expr->depth > kMaxSyntaxDepth) {
    return Error(absl::StrCat("an expression nests deeper than ", kMaxSyntaxDepth, " levels"));
  }
  return expr;
}

ExpressionParser::Result ExpressionParser::ParseExpression(bool with_conditional) {
  const Level level(*this);
  BATON_RETURN_IF_ERROR(level.Check());
  if (!with_conditional) return ParseOr();
  const bool outer = in_condition_;
  BATON_ASSIGN_OR_RETURN(ExprPtr expr, ParseOr());
  while (AtName("if")) {
    ExprPtr conditional = NewExpr(Expr::Kind::kConditional);
    Advance();
    in_condition_ = true;
    BATON_ASSIGN_OR_RETURN(ExprPtr condition, ParseOr());
    ExprPtr otherwise;
    if (SkipName("else")) {
      BATON_ASSIGN_OR_RETURN(otherwise, ParseExpression());
    }
    conditional->children.push_back(std::move(expr));
    conditional->children.push_back(std::move(condition));
    conditional->children.push_back(std::move(otherwise));
    BATON_ASSIGN_OR_RETURN(expr, Finish(std::move(conditional)));
  }
  in_condition_ = outer;
  return expr;
}

ExpressionParser::Result ExpressionParser::ParseOr() {
  BATON_ASSIGN_OR_RETURN(ExprPtr left, ParseAnd());
  if (!AtName("or")) return left;
  ExprPtr either = NewExpr(Expr::Kind::kOr);
  either->children.push_back(std::move(left));
  while (SkipName("or")) {
    BATON_ASSIGN_OR_RETURN(ExprPtr right, ParseAnd());
    either->children.push_back(std::move(right));
  }
  return Finish(std::move(either));
}

ExpressionParser::Result ExpressionParser::ParseAnd() {
  BATON_ASSIGN_OR_RETURN(ExprPtr left, ParseNot());
  if (!AtName("and")) return left;
  ExprPtr both = NewExpr(Expr::Kind::kAnd);
  both->children.push_back(std::move(left));
  while (SkipName("and")) {
    BATON_ASSIGN_OR_RETURN(ExprPtr right, ParseNot());
    both->children.push_back(std::move(right));
  }
  return Finish(std::move(both));
}

ExpressionParser::Result ExpressionParser::ParseNot() {
  if (!AtName("not")) return ParseComparison();
  const Level level(*this);
  BATON_RETURN_IF_ERROR(level.Check());
  ExprPtr negation = NewExpr(Expr::Kind::kNot);
  Advance();
  BATON_ASSIGN_OR_RETURN(ExprPtr value, ParseNot());
  negation->children.push_back(std::move(value));
  return Finish(std::move(negation));
}

ExpressionParser::Result ExpressionParser::ParseComparison() {
  ExprPtr compare = NewExpr(Expr::Kind::kCompare);
  BATON_ASSIGN_OR_RETURN(ExprPtr first, ParseSum());
  compare->children.push_back(std::move(first));
  while (true) {
    const auto found = std::find_if(std::begin(kComparisons), std::end(kComparisons),
                                    [&](const Symbol& symbol) { return AtOperator(symbol.text); });
    if (found != std::end(kComparisons)) {
      Advance();
      compare->operators.push_back(found->op);
    } else if (SkipName("in")) {
      compare->operators.push_back(Operator::kIn);
    } else if (AtName("not") && lookahead().kind == Token::Kind::kName &&
               lookahead().text == "in") {
      Advance();
      Advance();
      compare->operators.push_back(Operator::kNotIn);
    } else {
      break;
    }
    BATON_ASSIGN_OR_RETURN(ExprPtr next, ParseSum());
    compare->children.push_back(std::move(next));
  }
  if (compare->operators.empty()) return std::move(compare->children[0]);
  return Finish(std::move(compare));
}

ExpressionParser::Result ExpressionParser::ParseSum() {
  BATON_ASSIGN_OR_RETURN(ExprPtr left, ParseConcatenation());
  while (true) {
    const auto found = std::find_if(std::begin(kSums), std::end(kSums),
                                    [&](const Symbol& symbol) { return AtOperator(symbol.text); });
    if (found == std::end(kSums)) return left;
    ExprPtr sum = NewExpr(Expr::Kind::kArithmetic);
    Advance();
    sum->operators = {found->op};
    BATON_ASSIGN_OR_RETURN(ExprPtr right, ParseConcatenation());
    sum->children.push_back(std::move(left));
    sum->children.push_back(std::move(right));
    BATON_ASSIGN_OR_RETURN(left, Finish(std::move(sum)));
  }
}

ExpressionParser::Result ExpressionParser::ParseConcatenation() {
  BATON_ASSIGN_OR_RETURN(ExprPtr left, ParseProduct());
  if (!AtOperator("~")) return left;
  ExprPtr joined = NewExpr(Expr::Kind::kConcatenate);
  joined->children.push_back(std::move(left));
  while (SkipOperator("~")) {
    BATON_ASSIGN_OR_RETURN(ExprPtr right, ParseProduct());
    joined->children.push_back(std::move(right));
  }
  return Finish(std::move(joined));
}

ExpressionParser::Result ExpressionParser::ParseProduct() {
  BATON_ASSIGN_OR_RETURN(ExprPtr left, ParsePower());
  while (true) {
    const auto found = std::find_if(std::begin(kProducts), std::end(kProducts),
                                    [&](const Symbol& symbol) { return AtOperator(symbol.text); });
    if (found == std::end(kProducts)) return left;
    ExprPtr product = NewExpr(Expr::Kind::kArithmetic);
    Advance();
    product->operators = {found->op};
    BATON_ASSIGN_OR_RETURN(ExprPtr right, ParsePower());
    product->children.push_back(std::move(left));
    product->children.push_back(std::move(right));
    BATON_ASSIGN_OR_RETURN(left, Finish(std::move(product)));
  }
}

ExpressionParser::Result ExpressionParser::ParsePower() {
  BATON_ASSIGN_OR_RETURN(ExprPtr left, ParseUnary(/*with_filters=*/true));
  while (AtOperator("**")) {
    ExprPtr power = NewExpr(Expr::Kind::kArithmetic);
    Advance();
    power->operators = {Operator::kPower};
    BATON_ASSIGN_OR_RETURN(ExprPtr right, ParseUnary(/*with_filters=*/true));
    power->children.push_back(std::move(left));
    power->children.push_back(std::move(right));
    BATON_ASSIGN_OR_RETURN(left, Finish(std::move(power)));
  }
  return left;
}

ExpressionParser::Result ExpressionParser::ParseUnary(bool with_filters) {
  ExprPtr value;
  if (AtOperator("-") || AtOperator("+")) {
    const Level level(*this);
    BATON_RETURN_IF_ERROR(level.Check());
    ExprPtr sign = NewExpr(AtOperator("-") ? Expr::Kind::kNegative : Expr::Kind::kPositive);
    Advance();
    BATON_ASSIGN_OR_RETURN(ExprPtr operand, ParseUnary(/*with_filters=*/false));
    sign->children.push_back(std::move(operand));
    BATON_ASSIGN_OR_RETURN(value, Finish(std::move(sign)));
  } else {
    BATON_ASSIGN_OR_RETURN(value, ParsePrimary());
  }
  BATON_ASSIGN_OR_RETURN(value, ParsePostfix(std::move(value)));
  while (with_filters) {
    if (AtOperator("|")) {
      BATON_ASSIGN_OR_RETURN(value, ParseFilters(std::move(value)));
    } else if (AtName("is")) {
      BATON_ASSIGN_OR_RETURN(value, ParseTest(std::move(value)));
    } else if (AtOperator("(")) {
      BATON_ASSIGN_OR_RETURN(value, ParsePostfix(std::move(value)));
    } else {
      break;
    }
  }
  return value;
}

}  // namespace baton::chat
