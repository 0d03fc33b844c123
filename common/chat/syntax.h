// The syntax tree of a template, as Parser makes it and Interpreter runs it. Immutable once made.
#ifndef BATON_COMMON_CHAT_SYNTAX_H_
#define BATON_COMMON_CHAT_SYNTAX_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/chat/operators.h"
#include "common/chat/runtime.h"
#include "common/chat/value.h"

namespace baton::chat {

struct Expr;
using ExprPtr = std::unique_ptr<Expr>;

struct CallSyntax {
  std::vector<ExprPtr> positional;
  std::vector<std::pair<std::string, ExprPtr>> named;
  ExprPtr more_positional;  // *expression; may be null
  ExprPtr more_named;       // **expression; may be null
};

struct Expr {
  enum class Kind : uint8_t {
    kConstant,
    kName,          // name_id
    kAttributeOf,   // name_id.name: a target of set
    kTuple,         // children
    kList,          // children
    kDict,          // children: key, value, key, value, ...
    kGetAttribute,  // children[0].name
    kGetItem,       // children[0][children[1]]
    kGetSlice,      // children[0][children[1]:children[2]:children[3]], the last three may be null
    kCall,          // children[0](call)
    kFilter,        // children[0] | name(call); children[0] is null in a filter block
    kTest,          // children[0] is name(call)
    kNot,
    kNegative,
    kPositive,
    kArithmetic,   // children[0] operators[0] children[1]
    kCompare,      // children[0] operators[0] children[1] operators[1] ...
    kConcatenate,  // children, with ~
    kAnd,
    kOr,
    kConditional,  // children[0] if children[1] else children[2], which may be null
  };
  Kind kind = Kind::kConstant;
  int line = 0;
  int depth = 1;  // of the tree below, itself included
  int name_id = 0;
  Value constant;
  std::string name;
  std::vector<ExprPtr> children;
  std::vector<Operator> operators;
  std::unique_ptr<CallSyntax> call;
  Builtin builtin = nullptr;  // of a filter or test; null if there is none of this name
};

struct Statement;
using Body = std::vector<std::unique_ptr<Statement>>;

struct MacroSyntax {
  std::string name;
  std::vector<std::string> parameters;
  std::vector<int> parameter_ids;
  std::vector<ExprPtr> defaults;  // of the last parameters
  Body body;
  bool uses_caller = false;
  bool uses_varargs = false;
  bool uses_kwargs = false;
};

struct Statement {
  enum class Kind : uint8_t {
    kText,
    kOutput,       // {{ value }}
    kIf,           // branches, else_body
    kFor,          // target in value if filter: body, else_body
    kSet,          // target = value
    kSetBlock,     // target = filter(body); filter may be null
    kMacro,        // name_id = macro
    kCallBlock,    // value (a call) with macro as its caller
    kFilterBlock,  // filter(body)
    kScope,        // body in a scope: {% with %} and {% generation %}
    kBreak,
    kContinue,
  };
  Kind kind = Kind::kText;
  int line = 0;
  std::string text;
  int name_id = 0;
  ExprPtr target;
  ExprPtr value;
  ExprPtr filter;
  std::vector<std::pair<ExprPtr, Body>> branches;
  std::vector<std::pair<ExprPtr, ExprPtr>> assignments;  // of {% with %}
  bool recursive = false;
  Body body;
  Body else_body;
  std::unique_ptr<MacroSyntax> macro;
};

struct TemplateSyntax {
  std::string name;
  std::vector<std::string> names;  // of variables, by id
  std::vector<bool> reads;         // VariableReads, by id
  Body body;
};

// Ids of names that the interpreter sets itself, the first ones of each template.
enum WellKnownName : int { kLoopName, kCallerName, kVarargsName, kKwargsName, kWellKnownNames };

}  // namespace baton::chat

#endif  // BATON_COMMON_CHAT_SYNTAX_H_
