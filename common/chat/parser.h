// Parses a template: expressions in expression_parser.cc, tags in parser.cc.
//
// One per template; one thread.
#ifndef BATON_COMMON_CHAT_PARSER_H_
#define BATON_COMMON_CHAT_PARSER_H_

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/chat/lexer.h"
#include "common/chat/syntax.h"

namespace baton::chat {

// The tokens, the names and the state that both halves of the parser share.
class ExpressionParser {
 public:
  ExpressionParser(std::vector<Token> tokens, TemplateSyntax* syntax);

 protected:
  using Result = absl::StatusOr<ExprPtr>;

  const Token& current() const { return tokens_[next_]; }
  const Token& lookahead() const { return tokens_[std::min(next_ + 1, tokens_.size() - 1)]; }
  void Advance() {
    if (next_ + 1 < tokens_.size()) ++next_;
  }
  bool AtOperator(absl::string_view text) const;
  bool AtName(absl::string_view text) const;
  bool SkipOperator(absl::string_view text);
  bool SkipName(absl::string_view text);
  absl::Status ExpectOperator(absl::string_view text);
  absl::StatusOr<std::string> ExpectName();
  absl::Status Error(absl::string_view message) const;  // at the current token
  absl::Status Unexpected(absl::string_view expected) const;

  int NameId(absl::string_view name);
  ExprPtr NewExpr(Expr::Kind kind) const;
  // Fails if the tree below `expr` is too deep.
  Result Finish(ExprPtr expr) const;

  Result ParseExpression(bool with_conditional = true);
  // One expression, or a tuple without parentheses that ends before the token `end_name`.
  Result ParseTuple(bool with_conditional = true, absl::string_view end_name = "");
  // A name, an attribute of a namespace if `with_attributes`, or a tuple of these.
  Result ParseTarget(bool with_attributes, absl::string_view end_name = "");
  // "| filter | filter ..."; `without_bar`: the first has no bar. Null if `value` is null and there
  // is no filter.
  Result ParseFilters(ExprPtr value, bool without_bar = false);
  absl::StatusOr<std::unique_ptr<CallSyntax>> ParseArguments();
  Result ParseUnary(bool with_filters);
  Result ParsePostfix(ExprPtr value);

  // Counts nested calls of the parser, whose stack it bounds.
  class Level {
   public:
    explicit Level(ExpressionParser& parser) : parser_(parser) { ++parser_.level_; }
    ~Level() { --parser_.level_; }
    absl::Status Check() const;

   private:
    ExpressionParser& parser_;
  };

  TemplateSyntax* const syntax_;
  // As in jinja2, an unknown filter or test is an error of the template, except where a condition
  // may skip it: there it is an error of the rendering that reaches it.
  bool in_condition_ = false;
  std::vector<MacroSyntax*> open_macros_;  // the innermost last

 private:
  Result ParseOr();
  Result ParseAnd();
  Result ParseNot();
  Result ParseComparison();
  Result ParseSum();
  Result ParseConcatenation();
  Result ParseProduct();
  Result ParsePower();
  Result ParsePrimary(bool with_attributes = false);
  Result ParseName(bool with_attributes);
  Result ParseList();
  Result ParseDict();
  Result ParseSubscript(ExprPtr value);
  Result ParseTest(ExprPtr value);
  absl::StatusOr<std::string> ParseDottedName();
  Result ParseItems(bool with_conditional, absl::string_view end_name, bool is_target,
                    bool with_attributes, bool in_parentheses);

  const std::vector<Token> tokens_;
  size_t next_ = 0;
  int level_ = 0;
  absl::flat_hash_map<std::string, int> name_ids_;
};

// BAD_CHAT_TEMPLATE with the line.
absl::StatusOr<std::shared_ptr<const TemplateSyntax>> ParseTemplate(absl::string_view source,
                                                                    absl::string_view name);

}  // namespace baton::chat

#endif  // BATON_COMMON_CHAT_PARSER_H_
