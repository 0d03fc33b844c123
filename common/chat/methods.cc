#include "common/chat/methods.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/chat/format.h"
#include "common/chat/operators.h"
#include "common/chat/printing.h"
#include "common/chat/text.h"

namespace baton::chat {
namespace {

using Result = absl::StatusOr<Value>;

class BoundMethod : public Object {
 public:
  BoundMethod(HeapCharge charge, Value self, Builtin function)
      : Object(std::move(charge)), self_(std::move(self)), function_(function) {}
  absl::string_view type_name() const override { return "builtin_function_or_method"; }
  bool callable() const override { return true; }
  int depth() const override { return self_.depth() + 1; }
  Result Call(Runtime& runtime, Arguments arguments) override {
    arguments.positional.insert(arguments.positional.begin(), self_);
    return function_(runtime, std::move(arguments));
  }

 private:
  const Value self_;
  const Builtin function_;
};

// The arguments after self. The first `required` of them must be there.
absl::StatusOr<std::vector<Value>> Bind(absl::string_view callee, Arguments& arguments,
                                        std::vector<absl::string_view> names, size_t required) {
  names.insert(names.begin(), "self");
  return BindArguments(callee, std::move(arguments), names, required + 1);
}

template <bool left, bool right>
Result Strip(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, Bind("strip", arguments, {"chars"}, 0));
  absl::string_view text = args[0].text();
  if (args[1].is_missing() || args[1].is_none()) {
    if (left) text = StripLeft(text);
    if (right) text = StripRight(text);
  } else {
    BATON_ASSIGN_OR_RETURN(const absl::string_view chars, TextArgument(args[1], "strip"));
    BATON_RETURN_IF_ERROR(runtime.StepForBytes(text.size() * (1 + chars.size() / 16)));
    text = StripChars(text, chars, left, right);
  }
  return runtime.MakePart(args[0], text);
}

template <bool from_right>
Result Split(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, Bind("split", arguments, {"sep", "maxsplit"}, 0));
  BATON_ASSIGN_OR_RETURN(const int64_t max, IntArgument(args[2], "maxsplit", -1));
  const absl::string_view text = args[0].text();
  BATON_RETURN_IF_ERROR(runtime.StepForBytes(text.size()));
  BATON_RETURN_IF_ERROR(runtime.CheckRoom(text.size()));
  if (args[1].is_missing() || args[1].is_none()) {
    return MakeParts(runtime, args[0], SplitSpace(text, max, from_right));
  }
  BATON_ASSIGN_OR_RETURN(const absl::string_view separator, TextArgument(args[1], "split"));
  if (separator.empty()) return Failure("empty separator");
  if (from_right) BATON_RETURN_IF_ERROR(runtime.StepForBytes(text.size() * separator.size()));
  BATON_RETURN_IF_ERROR(runtime.CheckRoom(sizeof(StringRep) * CountText(text, separator)));
  return MakeParts(runtime, args[0], SplitText(text, separator, max, from_right));
}

Result SplitLinesMethod(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, Bind("splitlines", arguments, {"keepends"}, 0));
  BATON_RETURN_IF_ERROR(runtime.CheckRoom(16 * args[0].text().size()));
  return MakeParts(runtime, args[0], SplitLines(args[0].text(), IsTrue(args[1])));
}

template <bool from_right>
Result Partition(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, Bind("partition", arguments, {"sep"}, 1));
  BATON_ASSIGN_OR_RETURN(const absl::string_view separator, TextArgument(args[1], "partition"));
  if (separator.empty()) return Failure("empty separator");
  const absl::string_view text = args[0].text();
  if (from_right) BATON_RETURN_IF_ERROR(runtime.StepForBytes(text.size() * separator.size()));
  const auto parts = SplitText(text, separator, 1, from_right);
  std::vector<absl::string_view> three = {text, "", ""};
  if (parts.size() == 2) {
    three = {parts[0], text.substr(parts[0].size(), separator.size()), parts[1]};
  } else if (from_right) {
    three = {"", "", text};
  }
  BATON_ASSIGN_OR_RETURN(const Value list, MakeParts(runtime, args[0], three));
  return runtime.MakeSequence(Flavor::kTuple, list.sequence().items);
}

// The part of self between the code points start and end, and the byte it starts at.
absl::StatusOr<Value> Part(Runtime& runtime, const std::vector<Value>& args) {
  if (args[2].is_missing() && args[3].is_missing()) return args[0];
  return GetSlice(runtime, args[0], args[2], args[3], Value());
}

template <bool at_start>
Result StartsOrEndsWith(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args,
                         Bind("startswith", arguments, {"prefix", "start", "end"}, 1));
  BATON_ASSIGN_OR_RETURN(const Value part, Part(runtime, args));
  std::vector<Value> candidates = {args[1]};
  if (args[1].IsSequence(Flavor::kTuple)) candidates = args[1].sequence().items;
  for (const Value& candidate : candidates) {
    BATON_ASSIGN_OR_RETURN(const absl::string_view text, TextArgument(candidate, "startswith"));
    BATON_RETURN_IF_ERROR(runtime.StepForBytes(text.size()));
    if (at_start ? absl::StartsWith(part.text(), text) : absl::EndsWith(part.text(), text)) {
      return Value::Bool(true);
    }
  }
  return Value::Bool(false);
}

template <bool from_right, bool must_exist>
Result Find(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, Bind("find", arguments, {"sub", "start", "end"}, 1));
  BATON_ASSIGN_OR_RETURN(const absl::string_view wanted, TextArgument(args[1], "find"));
  BATON_ASSIGN_OR_RETURN(const Value part, Part(runtime, args));
  const absl::string_view text = part.text();
  BATON_RETURN_IF_ERROR(
      runtime.StepForBytes(text.size() * (from_right ? 1 + wanted.size() : size_t{1})));
  const size_t found = from_right ? text.rfind(wanted) : FindText(text, wanted);
  if (found == absl::string_view::npos) {
    if (must_exist) return Failure("substring not found");
    return Value::Int(-1);
  }
  int64_t offset = 0;
  if (!args[2].is_missing() && !args[2].is_none()) {
    BATON_ASSIGN_OR_RETURN(const int64_t length, LengthOf(runtime, args[0]));
    BATON_ASSIGN_OR_RETURN(offset, IntArgument(args[2], "find", 0));
    offset = offset < 0 ? std::max<int64_t>(offset + length, 0) : std::min(offset, length);
  }
  return Value::Int(offset + static_cast<int64_t>(CodePointCount(text.substr(0, found))));
}

Result CountMethod(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, Bind("count", arguments, {"sub", "start", "end"}, 1));
  if (!args[0].is_string()) {
    int64_t count = 0;
    for (const Value& item : args[0].sequence().items) {
      BATON_ASSIGN_OR_RETURN(const bool equal, Equal(runtime, item, args[1]));
      count += equal ? 1 : 0;
    }
    return Value::Int(count);
  }
  BATON_ASSIGN_OR_RETURN(const absl::string_view wanted, TextArgument(args[1], "count"));
  BATON_ASSIGN_OR_RETURN(const Value part, Part(runtime, args));
  BATON_RETURN_IF_ERROR(runtime.StepForBytes(part.text().size()));
  return Value::Int(static_cast<int64_t>(CountText(part.text(), wanted)));
}

Result Replace(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, Bind("replace", arguments, {"old", "new", "count"}, 2));
  BATON_ASSIGN_OR_RETURN(const absl::string_view from, TextArgument(args[1], "replace"));
  BATON_RETURN_IF_ERROR(TextArgument(args[2], "replace").status());
  BATON_ASSIGN_OR_RETURN(const int64_t count, IntArgument(args[3], "replace", -1));
  return ReplaceIn(runtime, args[0], from,
                   args[0].is_markup() ? Escaped(args[2]) : args[2].traced(), count);
}

Result JoinMethod(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, Bind("join", arguments, {"iterable"}, 1));
  BATON_ASSIGN_OR_RETURN(const auto items, ItemsOf(runtime, args[1]));
  return JoinTexts(runtime, args[0], items);
}

template <std::string (*convert)(absl::string_view)>
Result Convert(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, Bind("this method", arguments, {}, 0));
  BATON_RETURN_IF_ERROR(runtime.CheckRoom(3 * args[0].text().size()));
  return runtime.MakeString(Converted(args[0].traced(), convert), args[0].is_markup());
}

template <CharacterClass which>
Result IsOfClass(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, Bind("this method", arguments, {}, 0));
  BATON_RETURN_IF_ERROR(runtime.StepForBytes(args[0].text().size()));
  return Value::Bool(AllInClass(args[0].text(), which));
}

template <bool upper>
Result IsOfCase(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, Bind("this method", arguments, {}, 0));
  BATON_RETURN_IF_ERROR(runtime.StepForBytes(args[0].text().size()));
  return Value::Bool(IsAllCase(args[0].text(), upper));
}

template <Align align>
Result Pad(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, Bind("padding", arguments, {"width", "fillchar"}, 1));
  BATON_ASSIGN_OR_RETURN(const int64_t width, IntArgument(args[1], "padding", 0));
  TracedText fill(" ");
  if (!args[2].is_missing()) {
    BATON_RETURN_IF_ERROR(TextArgument(args[2], "padding").status());
    fill = args[2].traced();
  }
  if (CodePointCount(fill.text) != 1) return Failure("the fill character must be one character");
  return PadText(runtime, args[0], width, align, fill);
}

Result ZeroFill(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, Bind("zfill", arguments, {"width"}, 1));
  BATON_ASSIGN_OR_RETURN(const int64_t width, IntArgument(args[1], "zfill", 0));
  return PadText(runtime, args[0], width, Align::kAfterSign, TracedText("0"));
}

template <bool prefix>
Result Remove(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, Bind("removeprefix", arguments, {"affix"}, 1));
  BATON_ASSIGN_OR_RETURN(const absl::string_view affix, TextArgument(args[1], "removeprefix"));
  absl::string_view text = args[0].text();
  if (prefix) {
    absl::ConsumePrefix(&text, affix);
  } else {
    absl::ConsumeSuffix(&text, affix);
  }
  return runtime.MakePart(args[0], text);
}

Result FormatMethod(Runtime& runtime, Arguments arguments) {
  const Value self = arguments.positional[0];
  arguments.positional.erase(arguments.positional.begin());
  return FormatBraces(runtime, self, arguments);
}

Result GetMethod(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, Bind("get", arguments, {"key", "default"}, 1));
  if (!IsHashable(args[1])) {
    return Failure(absl::StrCat("unhashable type: '", args[1].type_name(), "'"));
  }
  if (!args[1].is_string()) BATON_RETURN_IF_ERROR(runtime.Step(args[0].dict().entries.size()));
  if (const Value* found = args[0].dict().Find(args[1])) return *found;
  return args[2].is_missing() ? Value::None() : args[2];
}

template <Flavor flavor>
Result DictView(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, Bind("this method", arguments, {}, 0));
  std::vector<Value> items;
  for (const auto& [key, value] : args[0].dict().entries) {
    if (flavor == Flavor::kItemsView) {
      BATON_ASSIGN_OR_RETURN(Value pair, runtime.MakeSequence(Flavor::kTuple, {key, value}));
      items.push_back(std::move(pair));
    } else {
      items.push_back(flavor == Flavor::kKeysView ? key : value);
    }
  }
  return runtime.MakeSequence(flavor, std::move(items));
}

Result Copy(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, Bind("copy", arguments, {}, 0));
  return args[0];  // immutable
}

Result IndexMethod(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, Bind("index", arguments, {"value"}, 1));
  const auto& items = args[0].sequence().items;
  for (size_t i = 0; i < items.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(const bool equal, Equal(runtime, items[i], args[1]));
    if (equal) return Value::Int(static_cast<int64_t>(i));
  }
  return Failure("the value is not in the list");
}

using Methods = absl::flat_hash_map<absl::string_view, Builtin>;

const Methods& StringMethods() {
  static const Methods& methods = *new Methods{
      {"strip", Strip<true, true>},
      {"lstrip", Strip<true, false>},
      {"rstrip", Strip<false, true>},
      {"split", Split<false>},
      {"rsplit", Split<true>},
      {"splitlines", SplitLinesMethod},
      {"partition", Partition<false>},
      {"rpartition", Partition<true>},
      {"startswith", StartsOrEndsWith<true>},
      {"endswith", StartsOrEndsWith<false>},
      {"find", Find<false, false>},
      {"rfind", Find<true, false>},
      {"index", Find<false, true>},
      {"rindex", Find<true, true>},
      {"count", CountMethod},
      {"replace", Replace},
      {"join", JoinMethod},
      {"upper", Convert<UpperCase>},
      {"lower", Convert<LowerCase>},
      {"casefold", Convert<FoldCase>},
      {"capitalize", Convert<Capitalize>},
      {"title", Convert<TitleCase>},
      {"isalpha", IsOfClass<CharacterClass::kAlpha>},
      {"isdigit", IsOfClass<CharacterClass::kDigit>},
      {"isdecimal", IsOfClass<CharacterClass::kDecimal>},
      {"isnumeric", IsOfClass<CharacterClass::kNumeric>},
      {"isalnum", IsOfClass<CharacterClass::kAlphanumeric>},
      {"isspace", IsOfClass<CharacterClass::kSpace>},
      {"isupper", IsOfCase<true>},
      {"islower", IsOfCase<false>},
      {"ljust", Pad<Align::kLeft>},
      {"rjust", Pad<Align::kRight>},
      {"center", Pad<Align::kCenter>},
      {"zfill", ZeroFill},
      {"removeprefix", Remove<true>},
      {"removesuffix", Remove<false>},
      {"format", FormatMethod},
  };
  return methods;
}

const Methods& DictMethods() {
  static const Methods& methods = *new Methods{
      {"get", GetMethod},
      {"items", DictView<Flavor::kItemsView>},
      {"keys", DictView<Flavor::kKeysView>},
      {"values", DictView<Flavor::kValuesView>},
      {"copy", Copy},
  };
  return methods;
}

const Methods& ListMethods() {
  static const Methods& methods =
      *new Methods{{"index", IndexMethod}, {"count", CountMethod}, {"copy", Copy}};
  return methods;
}

bool ChangesItsObject(const Value& value, absl::string_view name) {
  static constexpr absl::string_view kOfLists[] = {"append", "clear",  "extend",  "insert",
                                                   "pop",    "remove", "reverse", "sort"};
  static constexpr absl::string_view kOfDicts[] = {"clear", "pop", "popitem", "setdefault",
                                                   "update"};
  if (value.is_dict()) {
    return std::find(std::begin(kOfDicts), std::end(kOfDicts), name) != std::end(kOfDicts);
  }
  return value.IsSequence(Flavor::kList) &&
         std::find(std::begin(kOfLists), std::end(kOfLists), name) != std::end(kOfLists);
}

}  // namespace

absl::StatusOr<absl::string_view> TextArgument(const Value& value, absl::string_view what) {
  if (value.is_string()) return absl::string_view(value.text());
  BATON_RETURN_IF_ERROR(CheckDefined(value));
  return Failure(
      absl::StrCat(what, ": found an argument of type ", value.type_name(), ", expected str"));
}

absl::StatusOr<int64_t> IntArgument(const Value& value, absl::string_view what, int64_t if_absent) {
  if (value.is_missing()) return if_absent;
  if (value.is_integral()) return value.integer();
  BATON_RETURN_IF_ERROR(CheckDefined(value));
  return Failure(
      absl::StrCat(what, ": found an argument of type ", value.type_name(), ", expected int"));
}

absl::StatusOr<Value> MakeParts(Runtime& runtime, const Value& whole,
                                const std::vector<absl::string_view>& parts) {
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const absl::string_view part : parts) {
    BATON_ASSIGN_OR_RETURN(Value item, runtime.MakePart(whole, part));
    items.push_back(std::move(item));
  }
  return runtime.MakeList(std::move(items));
}

absl::StatusOr<Value> ReplaceIn(Runtime& runtime, const Value& text, absl::string_view from,
                                const TracedText& to, int64_t max) {
  BATON_RETURN_IF_ERROR(runtime.StepForBytes(text.text().size()));
  const size_t count = CountText(text.text(), from);
  const bool traced = text.traced().origin() == Origin::kRequest || to.origin() == Origin::kRequest;
  const size_t trace_bytes = traced ? to.trace_bytes() + sizeof(ByteRange) : 0;
  const size_t grown = (to.size() > from.size() ? to.size() - from.size() : 0) + trace_bytes;
  if (grown > 0 && count > runtime.limits().max_value_bytes / grown) {
    return runtime.CheckRoom(runtime.limits().max_value_bytes + 1);
  }
  BATON_RETURN_IF_ERROR(runtime.CheckRoom(text.text().size() + count * grown));
  TracedText result;
  ReplaceText(
      text.text(), from, max,
      [&](absl::string_view kept) { result.AppendPart(text.traced(), kept); },
      [&] { result.Append(to); });
  return runtime.MakeString(std::move(result), text.is_markup());
}

absl::StatusOr<Value> JoinTexts(Runtime& runtime, const Value& separator,
                                const std::vector<Value>& items) {
  const TracedText& between = separator.traced();
  size_t bytes = (between.size() + between.trace_bytes()) * items.size();
  for (const Value& item : items) {
    BATON_ASSIGN_OR_RETURN(const absl::string_view text, TextArgument(item, "join"));
    bytes += text.size() * (separator.is_markup() ? 6 : 1) + item.traced().trace_bytes();
  }
  BATON_RETURN_IF_ERROR(runtime.CheckRoom(bytes));
  TracedText joined;
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) joined.Append(between);
    joined.Append(separator.is_markup() ? Escaped(items[i]) : items[i].traced());
  }
  return runtime.MakeString(std::move(joined), separator.is_markup());
}

absl::StatusOr<Value> BindMethod(Runtime& runtime, const Value& value, absl::string_view name) {
  const Methods* methods = nullptr;
  if (value.is_string()) methods = &StringMethods();
  if (value.is_dict()) methods = &DictMethods();
  if (value.IsSequence(Flavor::kList) || value.IsSequence(Flavor::kTuple)) methods = &ListMethods();
  if (methods == nullptr) return Value();
  const auto found = methods->find(name);
  if (found != methods->end()) {
    BATON_RETURN_IF_ERROR(runtime.CheckRoom(sizeof(BoundMethod)));
    return Value(Kind::kObject, std::make_shared<BoundMethod>(runtime.Charge(sizeof(BoundMethod)),
                                                              value, found->second));
  }
  if (!ChangesItsObject(value, name)) return Value();
  return runtime.MakeUndefined(absl::StrCat("the method '", name, "' changes a ", value.type_name(),
                                            ", which a template may not do"));
}

}  // namespace baton::chat
