#include "common/chat/parser.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "common/base/status_macros.h"
#include "common/chat/variable_reads.h"
#include "common/json/json.h"

namespace baton::chat {
namespace {

using StatementPtr = std::unique_ptr<Statement>;

class Parser : public ExpressionParser {
 public:
  using ExpressionParser::ExpressionParser;

  absl::Status Run() {
    BATON_ASSIGN_OR_RETURN(const std::string end, ParseBody({}, &syntax_->body));
    return absl::OkStatus();
  }

 private:
  using StatementResult = absl::StatusOr<StatementPtr>;
  using EndNames = std::vector<absl::string_view>;

  // Parses up to a tag with one of `ends`, or to the end of the template if there are none. Returns
  // the name of that tag, which is read up to behind its name.
  absl::StatusOr<std::string> ParseBody(const EndNames& ends, Body* body) {
    const Level level(*this);
    BATON_RETURN_IF_ERROR(level.Check());
    while (current().kind != Token::Kind::kEnd) {
      if (current().kind == Token::Kind::kBlockBegin) {
        Advance();
        if (current().kind != Token::Kind::kName) return Unexpected("the name of a tag");
        if (std::find(ends.begin(), ends.end(), current().text) != ends.end()) {
          std::string end = current().text;
          Advance();
          return end;
        }
        BATON_ASSIGN_OR_RETURN(StatementPtr statement, ParseTag());
        BATON_RETURN_IF_ERROR(ExpectBlockEnd());
        body->push_back(std::move(statement));
        continue;
      }
      StatementPtr statement = NewStatement(Statement::Kind::kText);
      if (current().kind == Token::Kind::kText) {
        statement->text = current().text;
      } else {
        statement->kind = Statement::Kind::kOutput;
        Advance();
        BATON_ASSIGN_OR_RETURN(statement->value, ParseTuple());
        if (current().kind != Token::Kind::kVariableEnd) return Unexpected("the end of the tag");
      }
      Advance();
      body->push_back(std::move(statement));
    }
    if (ends.empty()) return std::string();
    return Error(absl::StrCat("found the end of the template, expected {% ",
                              absl::StrJoin(ends, " %} or {% "), " %}"));
  }

  absl::Status ExpectBlockEnd() {
    if (current().kind != Token::Kind::kBlockEnd) return Unexpected("the end of the tag");
    Advance();
    return absl::OkStatus();
  }

  StatementPtr NewStatement(Statement::Kind kind) const {
    auto statement = std::make_unique<Statement>();
    statement->kind = kind;
    statement->line = current().line;
    return statement;
  }

  StatementResult ParseTag() {
    const std::string tag = current().text;
    StatementPtr statement = NewStatement(Statement::Kind::kText);
    Advance();
    if (tag == "if") return ParseIf(std::move(statement));
    if (tag == "break" || tag == "continue") {
      if (open_loops_ == 0) return Error(absl::StrCat("'", tag, "' outside of a loop"));
      statement->kind = tag == "break" ? Statement::Kind::kBreak : Statement::Kind::kContinue;
      return statement;
    }
    // What an unknown filter does in these bodies no longer depends on a condition.
    const bool outer = std::exchange(in_condition_, false);
    StatementResult result = ParseScopeTag(tag, std::move(statement), outer);
    in_condition_ = outer;
    return result;
  }

  StatementResult ParseScopeTag(absl::string_view tag, StatementPtr statement, bool outer) {
    if (tag == "for") return ParseFor(std::move(statement), outer);
    if (tag == "set") return ParseSet(std::move(statement), outer);
    if (tag == "macro") return ParseMacro(std::move(statement));
    if (tag == "call") return ParseCallBlock(std::move(statement));
    if (tag == "filter") return ParseFilterBlock(std::move(statement));
    if (tag == "with") return ParseWith(std::move(statement));
    if (tag == "generation") return ParseGeneration(std::move(statement));
    return SyntaxError(syntax_->name, statement->line,
                       absl::StrCat("the tag ", json::Quoted(tag), " is unknown"));
  }

  StatementResult ParseIf(StatementPtr statement) {
    statement->kind = Statement::Kind::kIf;
    const bool outer = std::exchange(in_condition_, true);
    std::string tag = "elif";
    while (tag == "elif") {
      BATON_ASSIGN_OR_RETURN(ExprPtr condition, ParseTuple(/*with_conditional=*/false));
      BATON_RETURN_IF_ERROR(ExpectBlockEnd());
      Body body;
      BATON_ASSIGN_OR_RETURN(tag, ParseBody({"elif", "else", "endif"}, &body));
      statement->branches.emplace_back(std::move(condition), std::move(body));
    }
    if (tag == "else") {
      BATON_RETURN_IF_ERROR(ExpectBlockEnd());
      BATON_ASSIGN_OR_RETURN(tag, ParseBody({"endif"}, &statement->else_body));
    }
    in_condition_ = outer;
    return statement;
  }

  StatementResult ParseFor(StatementPtr statement, bool in_condition) {
    statement->kind = Statement::Kind::kFor;
    BATON_ASSIGN_OR_RETURN(statement->target, ParseTarget(/*with_attributes=*/false, "in"));
    if (!SkipName("in")) return Unexpected("in");
    in_condition_ = in_condition;
    BATON_ASSIGN_OR_RETURN(statement->value, ParseTuple(/*with_conditional=*/false, "recursive"));
    in_condition_ = false;
    if (SkipName("if")) {
      BATON_ASSIGN_OR_RETURN(statement->filter, ParseExpression());
    }
    statement->recursive = SkipName("recursive");
    BATON_RETURN_IF_ERROR(ExpectBlockEnd());
    ++open_loops_;
    BATON_ASSIGN_OR_RETURN(std::string tag, ParseBody({"endfor", "else"}, &statement->body));
    --open_loops_;
    if (tag == "else") {
      BATON_RETURN_IF_ERROR(ExpectBlockEnd());
      BATON_ASSIGN_OR_RETURN(tag, ParseBody({"endfor"}, &statement->else_body));
    }
    return statement;
  }

  StatementResult ParseSet(StatementPtr statement, bool in_condition) {
    BATON_ASSIGN_OR_RETURN(statement->target, ParseTarget(/*with_attributes=*/true));
    in_condition_ = in_condition;
    if (SkipOperator("=")) {
      statement->kind = Statement::Kind::kSet;
      BATON_ASSIGN_OR_RETURN(statement->value, ParseTuple());
      return statement;
    }
    statement->kind = Statement::Kind::kSetBlock;
    in_condition_ = false;
    BATON_ASSIGN_OR_RETURN(statement->filter, ParseFilters(nullptr));
    return ParseSimpleBody(std::move(statement), "endset");
  }

  StatementResult ParseSimpleBody(StatementPtr statement, absl::string_view end) {
    BATON_RETURN_IF_ERROR(ExpectBlockEnd());
    BATON_ASSIGN_OR_RETURN(const std::string tag, ParseBody({end}, &statement->body));
    return statement;
  }

  // Parameters in parentheses, with their defaults.
  absl::Status ParseSignature(MacroSyntax* macro) {
    BATON_RETURN_IF_ERROR(ExpectOperator("("));
    while (!AtOperator(")")) {
      if (!macro->parameters.empty()) BATON_RETURN_IF_ERROR(ExpectOperator(","));
      BATON_ASSIGN_OR_RETURN(std::string parameter, ExpectName());
      if (std::find(macro->parameters.begin(), macro->parameters.end(), parameter) !=
          macro->parameters.end()) {
        return Error(absl::StrCat("the parameter '", parameter, "' appears twice"));
      }
      macro->parameter_ids.push_back(NameId(parameter));
      macro->parameters.push_back(std::move(parameter));
      if (SkipOperator("=")) {
        BATON_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
        macro->defaults.push_back(std::move(value));
      } else if (!macro->defaults.empty()) {
        return Error("non-default argument follows default argument");
      }
    }
    Advance();
    return absl::OkStatus();
  }

  // The body of a macro, in which no loop around it is open.
  StatementResult ParseMacroBody(StatementPtr statement, absl::string_view end) {
    BATON_RETURN_IF_ERROR(ExpectBlockEnd());
    const int outer_loops = std::exchange(open_loops_, 0);
    BATON_ASSIGN_OR_RETURN(const std::string tag, ParseBody({end}, &statement->macro->body));
    open_loops_ = outer_loops;
    open_macros_.pop_back();
    return statement;
  }

  StatementResult ParseMacro(StatementPtr statement) {
    statement->kind = Statement::Kind::kMacro;
    statement->macro = std::make_unique<MacroSyntax>();
    BATON_ASSIGN_OR_RETURN(statement->macro->name, ExpectName());
    statement->name_id = NameId(statement->macro->name);
    open_macros_.push_back(statement->macro.get());
    BATON_RETURN_IF_ERROR(ParseSignature(statement->macro.get()));
    return ParseMacroBody(std::move(statement), "endmacro");
  }

  StatementResult ParseCallBlock(StatementPtr statement) {
    statement->kind = Statement::Kind::kCallBlock;
    statement->macro = std::make_unique<MacroSyntax>();
    statement->macro->name = "caller";
    MacroSyntax* const macro = statement->macro.get();
    if (AtOperator("(")) BATON_RETURN_IF_ERROR(ParseSignature(macro));
    BATON_ASSIGN_OR_RETURN(statement->value, ParseExpression());
    if (statement->value->kind != Expr::Kind::kCall) return Error("expected call");
    open_macros_.push_back(macro);
    return ParseMacroBody(std::move(statement), "endcall");
  }

  StatementResult ParseFilterBlock(StatementPtr statement) {
    statement->kind = Statement::Kind::kFilterBlock;
    BATON_ASSIGN_OR_RETURN(statement->filter, ParseFilters(nullptr, /*without_bar=*/true));
    return ParseSimpleBody(std::move(statement), "endfilter");
  }

  StatementResult ParseWith(StatementPtr statement) {
    statement->kind = Statement::Kind::kScope;
    while (current().kind != Token::Kind::kBlockEnd) {
      if (!statement->assignments.empty()) BATON_RETURN_IF_ERROR(ExpectOperator(","));
      BATON_ASSIGN_OR_RETURN(ExprPtr target, ParseTarget(/*with_attributes=*/false));
      BATON_RETURN_IF_ERROR(ExpectOperator("="));
      BATON_ASSIGN_OR_RETURN(ExprPtr value, ParseExpression());
      statement->assignments.emplace_back(std::move(target), std::move(value));
    }
    return ParseSimpleBody(std::move(statement), "endwith");
  }

  StatementResult ParseGeneration(StatementPtr statement) {
    statement->kind = Statement::Kind::kScope;
    const int outer_loops = std::exchange(open_loops_, 0);
    BATON_ASSIGN_OR_RETURN(statement, ParseSimpleBody(std::move(statement), "endgeneration"));
    open_loops_ = outer_loops;
    return statement;
  }

  int open_loops_ = 0;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const TemplateSyntax>> ParseTemplate(absl::string_view source,
                                                                    absl::string_view name) {
  BATON_ASSIGN_OR_RETURN(std::vector<Token> tokens, Tokenize(source, name));
  auto syntax = std::make_shared<TemplateSyntax>();
  syntax->name = std::string(name);
  BATON_RETURN_IF_ERROR(Parser(std::move(tokens), syntax.get()).Run());
  syntax->reads = VariableReads(*syntax);
  return syntax;
}

}  // namespace baton::chat
