// The tests of jinja2's expressions: value is test.
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/chat/filters.h"
#include "common/chat/methods.h"
#include "common/chat/operators.h"
#include "common/chat/text.h"

namespace baton::chat {
namespace {

using TestResult = absl::StatusOr<Value>;

template <bool (*holds)(const Value&)>
TestResult Test(Runtime&, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args,
                         BindArguments("test", std::move(arguments), {"value"}, 1));
  return Value::Bool(holds(args[0]));
}

template <bool (Value::*holds)() const>
TestResult MemberTest(Runtime&, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args,
                         BindArguments("test", std::move(arguments), {"value"}, 1));
  return Value::Bool((args[0].*holds)());
}

template <Operator op>
TestResult CompareTest(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args,
                         BindArguments("test", std::move(arguments), {"value", "other"}, 2));
  BATON_ASSIGN_OR_RETURN(const bool holds, Compare(runtime, op, args[0], args[1]));
  return Value::Bool(holds);
}

template <bool upper>
TestResult CaseTest(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args,
                         BindArguments("test", std::move(arguments), {"value"}, 1));
  if (!args[0].is_string()) return Value::Bool(false);
  BATON_RETURN_IF_ERROR(runtime.StepForBytes(args[0].text().size()));
  return Value::Bool(IsAllCase(args[0].text(), upper));
}

TestResult DivisibleTest(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args,
                         BindArguments("divisibleby", std::move(arguments), {"value", "num"}, 2));
  BATON_ASSIGN_OR_RETURN(const Value rest,
                         Arithmetic(runtime, Operator::kModulo, args[0], args[1]));
  return Value::Bool(rest.is_number() && rest.number() == 0);
}

template <bool odd>
TestResult ParityTest(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args,
                         BindArguments("test", std::move(arguments), {"value"}, 1));
  BATON_ASSIGN_OR_RETURN(const Value rest,
                         Arithmetic(runtime, Operator::kModulo, args[0], Value::Int(2)));
  return Value::Bool(rest.is_number() && rest.number() == (odd ? 1 : 0));
}

TestResult SameAsTest(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args,
                         BindArguments("sameas", std::move(arguments), {"value", "other"}, 2));
  const Value& a = args[0];
  const Value& b = args[1];
  if (a.kind() != b.kind()) return Value::Bool(false);
  if (a.is_none() || a.is_integral()) return Value::Bool(a.integer() == b.integer());
  return Value::Bool(a.identity() != nullptr && a.identity() == b.identity());
}

template <Builtin (*find)(absl::string_view)>
TestResult ExistsTest(Runtime&, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, BindArguments("test", std::move(arguments), {"name"}, 1));
  return Value::Bool(args[0].is_string() && find(args[0].text()) != nullptr);
}

bool IsDefined(const Value& value) { return !value.is_undefined(); }

bool IsCallable(const Value& value) {
  return value.is_undefined() || (value.is_object() && value.object().callable());
}

bool IsIterable(const Value& value) {
  return value.is_undefined() || value.is_string() || value.is_sequence() || value.is_dict();
}

// What has a length and items by index.
bool IsSequenceLike(const Value& value) {
  return value.is_string() || value.is_dict() || value.IsSequence(Flavor::kList) ||
         value.IsSequence(Flavor::kTuple) || value.IsSequence(Flavor::kRange) ||
         value.is_undefined();
}

bool IsFalseConstant(const Value& value) { return value.is_bool() && !value.boolean(); }
bool IsTrueConstant(const Value& value) { return value.is_bool() && value.boolean(); }

}  // namespace

Builtin FindTest(absl::string_view name) {
  static const FilterTable& table = *new FilterTable{
      {"!=", CompareTest<Operator::kNotEqual>},
      {"<", CompareTest<Operator::kLess>},
      {"<=", CompareTest<Operator::kLessEqual>},
      {"==", CompareTest<Operator::kEqual>},
      {">", CompareTest<Operator::kGreater>},
      {">=", CompareTest<Operator::kGreaterEqual>},
      {"boolean", MemberTest<&Value::is_bool>},
      {"callable", Test<IsCallable>},
      {"defined", Test<IsDefined>},
      {"divisibleby", DivisibleTest},
      {"eq", CompareTest<Operator::kEqual>},
      {"equalto", CompareTest<Operator::kEqual>},
      {"escaped", MemberTest<&Value::is_markup>},
      {"even", ParityTest<false>},
      {"false", Test<IsFalseConstant>},
      {"filter", ExistsTest<FindFilter>},
      {"float", MemberTest<&Value::is_float>},
      {"ge", CompareTest<Operator::kGreaterEqual>},
      {"greaterthan", CompareTest<Operator::kGreater>},
      {"gt", CompareTest<Operator::kGreater>},
      {"in", CompareTest<Operator::kIn>},
      {"integer", MemberTest<&Value::is_int>},
      {"iterable", Test<IsIterable>},
      {"le", CompareTest<Operator::kLessEqual>},
      {"lessthan", CompareTest<Operator::kLess>},
      {"lower", CaseTest<false>},
      {"lt", CompareTest<Operator::kLess>},
      {"mapping", MemberTest<&Value::is_dict>},
      {"ne", CompareTest<Operator::kNotEqual>},
      {"none", MemberTest<&Value::is_none>},
      {"number", MemberTest<&Value::is_number>},
      {"odd", ParityTest<true>},
      {"sameas", SameAsTest},
      {"sequence", Test<IsSequenceLike>},
      {"string", MemberTest<&Value::is_string>},
      {"test", ExistsTest<FindTest>},
      {"true", Test<IsTrueConstant>},
      {"undefined", MemberTest<&Value::is_undefined>},
      {"upper", CaseTest<true>},
  };
  const auto found = table.find(name);
  return found == table.end() ? nullptr : found->second;
}

}  // namespace baton::chat
