// The filters of lists and dicts.
#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/chat/filters.h"
#include "common/chat/methods.h"
#include "common/chat/operators.h"
#include "common/chat/printing.h"
#include "common/chat/text.h"
#include "common/json/json.h"

namespace baton::chat {
namespace {

using Sequence = absl::StatusOr<Value>;

// The value at a path such as "function.name" or "0": undefined steps become `if_undefined`, unless
// that is missing or None.
absl::StatusOr<Value> ValueAt(Runtime& runtime, Value value, const Value& path,
                              const Value& if_undefined) {
  if (path.is_missing() || path.is_none()) return value;
  if (path.is_integral()) return GetItem(runtime, value, path);
  BATON_ASSIGN_OR_RETURN(const absl::string_view text, TextArgument(path, "attribute"));
  for (const absl::string_view part : absl::StrSplit(text, '.')) {
    int64_t index = 0;
    Value key;
    if (!part.empty() && AllInClass(part, CharacterClass::kDigit) &&
        absl::SimpleAtoi(part, &index)) {
      key = Value::Int(index);
    } else {
      BATON_ASSIGN_OR_RETURN(key, runtime.MakeString(std::string(part)));
    }
    BATON_ASSIGN_OR_RETURN(value, GetItem(runtime, value, key));
    if (value.is_undefined() && !if_undefined.is_missing() && !if_undefined.is_none()) {
      value = if_undefined;
    }
  }
  return value;
}

// What jinja2 compares unless case_sensitive: strings in lower case.
absl::StatusOr<Value> SortKey(Runtime& runtime, const Value& value, bool case_sensitive) {
  if (case_sensitive || !value.is_string()) return value;
  return runtime.MakeString(TracedText(LowerCase(value.text()), value.traced().origin()));
}

struct Keyed {
  std::vector<Value> keys;  // compared one after the other
  Value value;
};

absl::StatusOr<bool> IsBefore(Runtime& runtime, const Keyed& a, const Keyed& b) {
  for (size_t i = 0; i < a.keys.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(const bool less,
                           Compare(runtime, Operator::kLess, a.keys[i], b.keys[i]));
    if (less) return true;
    BATON_ASSIGN_OR_RETURN(const bool equal, Equal(runtime, a.keys[i], b.keys[i]));
    if (!equal) return false;
  }
  return false;
}

// Merge sort, which is stable and ends at the first error of a comparison.
absl::Status Sort(Runtime& runtime, std::vector<Keyed>* items, bool reverse) {
  std::vector<Keyed> merged(items->size());
  for (size_t width = 1; width < items->size(); width *= 2) {
    for (size_t begin = 0; begin < items->size(); begin += 2 * width) {
      const size_t middle = std::min(begin + width, items->size());
      const size_t end = std::min(begin + 2 * width, items->size());
      size_t left = begin;
      size_t right = middle;
      for (size_t out = begin; out < end; ++out) {
        bool take_right = left == middle;
        if (left < middle && right < end) {
          const Keyed& a = (*items)[reverse ? left : right];
          const Keyed& b = (*items)[reverse ? right : left];
          BATON_ASSIGN_OR_RETURN(take_right, IsBefore(runtime, a, b));
        }
        merged[out] = std::move((*items)[take_right ? right++ : left++]);
      }
    }
    std::swap(*items, merged);
  }
  return absl::OkStatus();
}

Sequence SortedValues(Runtime& runtime, std::vector<Keyed> items, bool reverse) {
  BATON_RETURN_IF_ERROR(Sort(runtime, &items, reverse));
  std::vector<Value> values;
  values.reserve(items.size());
  for (Keyed& item : items) values.push_back(std::move(item.value));
  return runtime.MakeList(std::move(values));
}

Sequence SortFilter(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args,
                         BindArguments("sort", std::move(arguments),
                                       {"value", "reverse", "case_sensitive", "attribute"}, 1));
  std::vector<Value> paths = {args[3]};
  if (args[3].is_string()) {
    paths.clear();
    for (const absl::string_view part : absl::StrSplit(args[3].text(), ',')) {
      BATON_ASSIGN_OR_RETURN(Value path, runtime.MakeString(std::string(part)));
      paths.push_back(std::move(path));
    }
  }
  BATON_ASSIGN_OR_RETURN(const auto values, ItemsOf(runtime, args[0]));
  std::vector<Keyed> items;
  for (const Value& value : values) {
    Keyed item{.keys = {}, .value = value};
    for (const Value& path : paths) {
      BATON_ASSIGN_OR_RETURN(const Value found, ValueAt(runtime, value, path, Value()));
      BATON_ASSIGN_OR_RETURN(Value key, SortKey(runtime, found, IsTrue(args[2])));
      item.keys.push_back(std::move(key));
    }
    items.push_back(std::move(item));
  }
  return SortedValues(runtime, std::move(items), IsTrue(args[1]));
}

Sequence DictSortFilter(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args,
                         BindArguments("dictsort", std::move(arguments),
                                       {"value", "case_sensitive", "by", "reverse"}, 1));
  BATON_RETURN_IF_ERROR(CheckDefined(args[0]));
  if (!args[0].is_dict()) return Failure("dictsort needs a dict");
  absl::string_view by = "key";
  if (!args[2].is_missing()) {
    BATON_ASSIGN_OR_RETURN(by, TextArgument(args[2], "dictsort"));
  }
  if (by != "key" && by != "value") return Failure("dictsort: expected by \"key\" or \"value\"");
  std::vector<Keyed> items;
  for (const auto& [key, value] : args[0].dict().entries) {
    BATON_ASSIGN_OR_RETURN(Value pair, runtime.MakeSequence(Flavor::kTuple, {key, value}));
    BATON_ASSIGN_OR_RETURN(Value sort_key,
                           SortKey(runtime, by == "key" ? key : value, IsTrue(args[1])));
    items.push_back({.keys = {std::move(sort_key)}, .value = std::move(pair)});
  }
  return SortedValues(runtime, std::move(items), IsTrue(args[3]));
}

template <bool want_max>
Sequence MinMaxFilter(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(
      const auto args,
      BindArguments("min", std::move(arguments), {"value", "case_sensitive", "attribute"}, 1));
  BATON_ASSIGN_OR_RETURN(const auto values, ItemsOf(runtime, args[0]));
  if (values.empty()) return runtime.MakeUndefined("No aggregated item, sequence was empty.");
  Value best;
  Value best_key;
  for (const Value& value : values) {
    BATON_ASSIGN_OR_RETURN(const Value found, ValueAt(runtime, value, args[2], Value()));
    BATON_ASSIGN_OR_RETURN(const Value key, SortKey(runtime, found, IsTrue(args[1])));
    bool better = best_key.is_missing();
    if (!better) {
      BATON_ASSIGN_OR_RETURN(
          better, Compare(runtime, want_max ? Operator::kGreater : Operator::kLess, key, best_key));
    }
    if (!better) continue;
    best = value;
    best_key = key;
  }
  return best;
}

Sequence UniqueFilter(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(
      const auto args,
      BindArguments("unique", std::move(arguments), {"value", "case_sensitive", "attribute"}, 1));
  BATON_ASSIGN_OR_RETURN(const auto values, ItemsOf(runtime, args[0]));
  std::vector<Value> keys;
  std::vector<Value> result;
  for (const Value& value : values) {
    BATON_ASSIGN_OR_RETURN(const Value found, ValueAt(runtime, value, args[2], Value()));
    BATON_ASSIGN_OR_RETURN(Value key, SortKey(runtime, found, IsTrue(args[1])));
    if (!IsHashable(key)) return Failure(absl::StrCat("unhashable type: '", key.type_name(), "'"));
    bool is_new = true;
    for (size_t i = 0; i < keys.size() && is_new; ++i) {
      BATON_ASSIGN_OR_RETURN(const bool equal, Equal(runtime, keys[i], key));
      is_new = !equal;
    }
    if (!is_new) continue;
    keys.push_back(std::move(key));
    result.push_back(value);
  }
  return runtime.MakeSequence(Flavor::kGenerator, std::move(result));
}

Sequence SumFilter(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, BindArguments("sum", std::move(arguments),
                                                        {"iterable", "attribute", "start"}, 1));
  BATON_ASSIGN_OR_RETURN(const auto values, ItemsOf(runtime, args[0]));
  Value sum = args[2].is_missing() ? Value::Int(0) : args[2];
  if (sum.is_string()) return Failure("sum can't sum strings");
  for (const Value& value : values) {
    BATON_ASSIGN_OR_RETURN(const Value item, ValueAt(runtime, value, args[1], Value()));
    BATON_ASSIGN_OR_RETURN(sum, Arithmetic(runtime, Operator::kAdd, sum, item));
  }
  return sum;
}

Sequence JoinFilter(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(
      const auto args, BindArguments("join", std::move(arguments), {"value", "d", "attribute"}, 1));
  BATON_ASSIGN_OR_RETURN(const auto values, ItemsOf(runtime, args[0]));
  std::vector<Value> texts;
  for (const Value& value : values) {
    BATON_ASSIGN_OR_RETURN(const Value item, ValueAt(runtime, value, args[2], Value()));
    BATON_ASSIGN_OR_RETURN(TracedText text, StrOf(runtime, item));
    BATON_ASSIGN_OR_RETURN(Value string, runtime.MakeString(std::move(text)));
    texts.push_back(std::move(string));
  }
  BATON_ASSIGN_OR_RETURN(TracedText text, StrOf(runtime, args[1]));
  BATON_ASSIGN_OR_RETURN(const Value separator, runtime.MakeString(std::move(text)));
  return JoinTexts(runtime, separator, texts);
}

Sequence ListFilter(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args,
                         BindArguments("list", std::move(arguments), {"value"}, 1));
  BATON_ASSIGN_OR_RETURN(auto items, ItemsOf(runtime, args[0]));
  return runtime.MakeList(std::move(items));
}

Sequence LengthFilter(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args,
                         BindArguments("length", std::move(arguments), {"value"}, 1));
  BATON_ASSIGN_OR_RETURN(const int64_t length, LengthOf(runtime, args[0]));
  return Value::Int(length);
}

Sequence FirstFilter(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, BindArguments("first", std::move(arguments), {"seq"}, 1));
  if (args[0].IsSequence(Flavor::kGenerator)) {
    const SequenceRep& generator = args[0].sequence();
    if (generator.position < generator.items.size()) return generator.items[generator.position++];
  } else {
    BATON_ASSIGN_OR_RETURN(const auto items, ItemsOf(runtime, args[0]));
    if (!items.empty()) return items[0];
  }
  return runtime.MakeUndefined("No first item, sequence was empty.");
}

Sequence LastFilter(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, BindArguments("last", std::move(arguments), {"seq"}, 1));
  if (args[0].IsSequence(Flavor::kGenerator)) return Failure("'generator' is not reversible");
  BATON_ASSIGN_OR_RETURN(const auto items, ItemsOf(runtime, args[0]));
  if (!items.empty()) return items.back();
  return runtime.MakeUndefined("No last item, sequence was empty.");
}

Sequence ReverseFilter(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args,
                         BindArguments("reverse", std::move(arguments), {"value"}, 1));
  if (args[0].is_string()) {
    return GetSlice(runtime, args[0], Value(), Value(), Value::Int(-1));
  }
  const bool is_generator = args[0].IsSequence(Flavor::kGenerator);
  BATON_ASSIGN_OR_RETURN(auto items, ItemsOf(runtime, args[0]));
  std::reverse(items.begin(), items.end());
  return runtime.MakeSequence(is_generator ? Flavor::kList : Flavor::kGenerator, std::move(items));
}

Sequence ItemsFilter(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args,
                         BindArguments("items", std::move(arguments), {"value"}, 1));
  std::vector<Value> pairs;
  if (!args[0].is_undefined()) {
    if (!args[0].is_dict()) return Failure("Can only get item pairs from a mapping.");
    for (const auto& [key, value] : args[0].dict().entries) {
      BATON_ASSIGN_OR_RETURN(Value pair, runtime.MakeSequence(Flavor::kTuple, {key, value}));
      pairs.push_back(std::move(pair));
    }
  }
  return runtime.MakeSequence(Flavor::kGenerator, std::move(pairs));
}

Sequence BatchFilter(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, BindArguments("batch", std::move(arguments),
                                                        {"value", "linecount", "fill_with"}, 2));
  BATON_ASSIGN_OR_RETURN(const int64_t size, IntArgument(args[1], "batch", 0));
  BATON_ASSIGN_OR_RETURN(const auto items, ItemsOf(runtime, args[0]));
  if (size < 1) return Failure("batch: expected a size of at least 1");
  std::vector<Value> batches;
  for (size_t begin = 0; begin < items.size();) {
    const size_t end = begin + std::min<size_t>(size, items.size() - begin);
    std::vector<Value> batch(items.begin() + static_cast<ptrdiff_t>(begin),
                             items.begin() + static_cast<ptrdiff_t>(end));
    if (!args[2].is_missing() && !args[2].is_none()) {
      BATON_RETURN_IF_ERROR(runtime.CheckRoom(size));
      BATON_RETURN_IF_ERROR(runtime.CheckRoom(size * sizeof(Value)));
      batch.resize(size, args[2]);
    }
    BATON_ASSIGN_OR_RETURN(Value list, runtime.MakeList(std::move(batch)));
    batches.push_back(std::move(list));
    begin = end;
  }
  return runtime.MakeSequence(Flavor::kGenerator, std::move(batches));
}

Sequence SliceFilter(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, BindArguments("slice", std::move(arguments),
                                                        {"value", "slices", "fill_with"}, 2));
  BATON_ASSIGN_OR_RETURN(const int64_t count, IntArgument(args[1], "slice", 0));
  BATON_ASSIGN_OR_RETURN(const auto items, ItemsOf(runtime, args[0]));
  if (count < 1) return Failure("slice: expected at least one slice");
  const size_t slices = count;
  const size_t longer = items.size() % slices;
  std::vector<Value> lists;
  auto next = items.begin();
  for (size_t i = 0; i < slices; ++i) {
    const auto end = next + static_cast<ptrdiff_t>(items.size() / slices + (i < longer ? 1 : 0));
    std::vector<Value> slice(next, end);
    next = end;
    if (i >= longer && !args[2].is_missing() && !args[2].is_none()) slice.push_back(args[2]);
    BATON_ASSIGN_OR_RETURN(Value list, runtime.MakeList(std::move(slice)));
    lists.push_back(std::move(list));
  }
  return runtime.MakeSequence(Flavor::kGenerator, std::move(lists));
}

// Removes and returns the named argument; kMissing if it is not there.
Value TakeNamed(Arguments* arguments, absl::string_view name) {
  for (auto it = arguments->named.begin(); it != arguments->named.end(); ++it) {
    if (it->first != name) continue;
    Value value = std::move(it->second);
    arguments->named.erase(it);
    return value;
  }
  return Value();
}

Sequence MapFilter(Runtime& runtime, Arguments arguments) {
  if (arguments.positional.empty()) return Failure("map needs a value");
  if (!IsTrue(arguments.positional[0])) return runtime.MakeSequence(Flavor::kGenerator, {});
  BATON_ASSIGN_OR_RETURN(const auto items, ItemsOf(runtime, arguments.positional[0]));
  std::vector<Value> results;
  if (arguments.positional.size() == 1) {
    const Value path = TakeNamed(&arguments, "attribute");
    const Value if_undefined = TakeNamed(&arguments, "default");
    if (path.is_missing()) return Failure("map requires a filter argument");
    if (!arguments.named.empty()) return Failure("map: unexpected keyword argument");
    for (const Value& item : items) {
      BATON_ASSIGN_OR_RETURN(Value result, ValueAt(runtime, item, path, if_undefined));
      results.push_back(std::move(result));
    }
    return runtime.MakeSequence(Flavor::kGenerator, std::move(results));
  }
  BATON_ASSIGN_OR_RETURN(const absl::string_view name,
                         TextArgument(arguments.positional[1], "map"));
  const Builtin filter = FindFilter(name);
  if (filter == nullptr) return Failure(absl::StrCat("No filter named ", json::Quoted(name), "."));
  Arguments call = arguments;
  call.positional.erase(call.positional.begin());
  for (const Value& item : items) {
    call.positional[0] = item;
    BATON_ASSIGN_OR_RETURN(Value result, filter(runtime, call));
    results.push_back(std::move(result));
  }
  return runtime.MakeSequence(Flavor::kGenerator, std::move(results));
}

// select, reject, selectattr and rejectattr.
template <bool keep, bool by_attribute>
Sequence SelectFilter(Runtime& runtime, Arguments arguments) {
  constexpr size_t kTestAt = by_attribute ? 2 : 1;
  if (arguments.positional.empty()) return Failure("select needs a value");
  // jinja2 does not look at the other arguments then.
  if (!IsTrue(arguments.positional[0])) return runtime.MakeSequence(Flavor::kGenerator, {});
  if (arguments.positional.size() < kTestAt) return Failure("Missing parameter for attribute name");
  BATON_ASSIGN_OR_RETURN(const auto items, ItemsOf(runtime, arguments.positional[0]));
  const Value path = by_attribute ? arguments.positional[1] : Value();
  Builtin test = nullptr;
  Arguments call;
  if (arguments.positional.size() > kTestAt) {
    BATON_ASSIGN_OR_RETURN(const absl::string_view name,
                           TextArgument(arguments.positional[kTestAt], "select"));
    test = FindTest(name);
    if (test == nullptr) return Failure(absl::StrCat("No test named ", json::Quoted(name), "."));
    call.positional.assign(arguments.positional.begin() + kTestAt, arguments.positional.end());
    call.named = arguments.named;
  }
  std::vector<Value> kept;
  for (const Value& item : items) {
    BATON_ASSIGN_OR_RETURN(Value value, ValueAt(runtime, item, path, Value()));
    if (test != nullptr) {
      call.positional[0] = value;
      BATON_ASSIGN_OR_RETURN(value, test(runtime, call));
    }
    if (IsTrue(value) == keep) kept.push_back(item);
  }
  return runtime.MakeSequence(Flavor::kGenerator, std::move(kept));
}

}  // namespace

const FilterTable& SequenceFilters() {
  static const FilterTable& table = *new FilterTable{
      {"batch", BatchFilter},
      {"count", LengthFilter},
      {"dictsort", DictSortFilter},
      {"first", FirstFilter},
      {"items", ItemsFilter},
      {"join", JoinFilter},
      {"last", LastFilter},
      {"length", LengthFilter},
      {"list", ListFilter},
      {"map", MapFilter},
      {"max", MinMaxFilter<true>},
      {"min", MinMaxFilter<false>},
      {"reject", SelectFilter<false, false>},
      {"rejectattr", SelectFilter<false, true>},
      {"reverse", ReverseFilter},
      {"select", SelectFilter<true, false>},
      {"selectattr", SelectFilter<true, true>},
      {"slice", SliceFilter},
      {"sort", SortFilter},
      {"sum", SumFilter},
      {"unique", UniqueFilter},
  };
  return table;
}

}  // namespace baton::chat
