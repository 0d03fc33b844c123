// The filters of texts, numbers and single values.
#include "common/chat/filters.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/chat/format.h"
#include "common/chat/methods.h"
#include "common/chat/operators.h"
#include "common/chat/printing.h"
#include "common/chat/text.h"

namespace baton::chat {
namespace {

using FilterResult = absl::StatusOr<Value>;

// The value as a string, a string unchanged.
FilterResult AsText(Runtime& runtime, const Value& value) {
  if (value.is_string()) return value;
  BATON_ASSIGN_OR_RETURN(TracedText text, StrOf(runtime, value));
  return runtime.MakeString(std::move(text));
}

template <std::string (*convert)(absl::string_view)>
FilterResult ConvertFilter(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, BindArguments("filter", std::move(arguments), {"s"}, 1));
  BATON_ASSIGN_OR_RETURN(const Value text, AsText(runtime, args[0]));
  BATON_RETURN_IF_ERROR(runtime.CheckRoom(6 * text.text().size()));
  return runtime.MakeString(Converted(text.traced(), convert), text.is_markup());
}

FilterResult EscapeFilter(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, BindArguments("escape", std::move(arguments), {"s"}, 1));
  BATON_ASSIGN_OR_RETURN(const Value text, AsText(runtime, args[0]));
  if (text.is_markup()) return text;
  BATON_RETURN_IF_ERROR(runtime.CheckRoom(6 * text.text().size()));
  return runtime.MakeString(Escaped(text), /*markup=*/true);
}

FilterResult SafeFilter(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, BindArguments("safe", std::move(arguments), {"s"}, 1));
  BATON_ASSIGN_OR_RETURN(const Value text, AsText(runtime, args[0]));
  return runtime.MakeString(text.traced(), /*markup=*/true);
}

FilterResult StringFilter(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, BindArguments("string", std::move(arguments), {"s"}, 1));
  return AsText(runtime, args[0]);
}

FilterResult TrimFilter(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args,
                         BindArguments("trim", std::move(arguments), {"value", "chars"}, 1));
  BATON_ASSIGN_OR_RETURN(const Value text, AsText(runtime, args[0]));
  if (args[1].is_missing() || args[1].is_none()) {
    return runtime.MakePart(text, StripRight(StripLeft(text.text())));
  }
  BATON_ASSIGN_OR_RETURN(const absl::string_view chars, TextArgument(args[1], "trim"));
  BATON_RETURN_IF_ERROR(runtime.StepForBytes(text.text().size() * (1 + chars.size() / 16)));
  return runtime.MakePart(text, StripChars(text.text(), chars, true, true));
}

FilterResult ReplaceFilter(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, BindArguments("replace", std::move(arguments),
                                                        {"s", "old", "new", "count"}, 3));
  std::vector<TracedText> texts;
  for (int i = 0; i < 3; ++i) {
    BATON_ASSIGN_OR_RETURN(TracedText text, StrOf(runtime, args[i]));
    texts.push_back(std::move(text));
  }
  const Value count = args[3].is_none() ? Value() : args[3];
  BATON_ASSIGN_OR_RETURN(const int64_t max, IntArgument(count, "replace", -1));
  BATON_ASSIGN_OR_RETURN(const Value source, runtime.MakeString(std::move(texts[0])));
  return ReplaceIn(runtime, source, texts[1].text, texts[2], max);
}

FilterResult IndentFilter(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, BindArguments("indent", std::move(arguments),
                                                        {"s", "width", "first", "blank"}, 1));
  BATON_ASSIGN_OR_RETURN(const absl::string_view text, TextArgument(args[0], "indent"));
  TracedText indention;
  if (args[1].is_string()) {
    indention = args[1].traced();
  } else {
    BATON_ASSIGN_OR_RETURN(const int64_t width, IntArgument(args[1], "indent", 4));
    BATON_RETURN_IF_ERROR(runtime.CheckRoom(std::max<int64_t>(width, 0)));
    indention = TracedText(std::string(std::max<int64_t>(width, 0), ' '));
  }
  BATON_RETURN_IF_ERROR(runtime.CheckRoom(16 * text.size()));
  // A newline at the end, which makes the last line one even if it is empty.
  TracedText ended = args[0].traced();
  ended.Append("\n");
  TracedText result;
  if (IsTrue(args[2])) result.Append(indention);
  bool is_first = true;
  for (const absl::string_view line : SplitLines(ended.text, /*keep_ends=*/false)) {
    BATON_RETURN_IF_ERROR(runtime.StepForBytes(line.size() + indention.size()));
    BATON_RETURN_IF_ERROR(
        runtime.CheckRoom(result.size() + line.size() + indention.size() + result.trace_bytes()));
    if (!is_first) {
      result.Append("\n");
      if (!line.empty() || IsTrue(args[3])) result.Append(indention);
    }
    is_first = false;
    result.AppendPart(ended, line);
  }
  return runtime.MakeString(std::move(result), args[0].is_markup());
}

FilterResult CenterFilter(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args,
                         BindArguments("center", std::move(arguments), {"value", "width"}, 1));
  BATON_ASSIGN_OR_RETURN(const Value text, AsText(runtime, args[0]));
  BATON_ASSIGN_OR_RETURN(const int64_t width, IntArgument(args[1], "center", 80));
  return PadText(runtime, text, width, Align::kCenter, TracedText(" "));
}

FilterResult FormatFilter(Runtime& runtime, Arguments arguments) {
  if (arguments.positional.empty()) return Failure("format needs a value");
  BATON_ASSIGN_OR_RETURN(const Value format, AsText(runtime, arguments.positional[0]));
  if (arguments.named.empty()) {
    arguments.positional.erase(arguments.positional.begin());
    BATON_ASSIGN_OR_RETURN(const Value tuple,
                           runtime.MakeSequence(Flavor::kTuple, std::move(arguments.positional)));
    return FormatPercent(runtime, format, tuple);
  }
  if (arguments.positional.size() > 1) return Failure("format takes either names or positions");
  DictRep::Entries entries;
  for (auto& [name, value] : arguments.named) {
    BATON_ASSIGN_OR_RETURN(Value key, runtime.MakeString(name));
    entries.emplace_back(std::move(key), std::move(value));
  }
  BATON_ASSIGN_OR_RETURN(const Value dict, runtime.MakeDict(std::move(entries)));
  return FormatPercent(runtime, format, dict);
}

FilterResult DefaultFilter(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, BindArguments("default", std::move(arguments),
                                                        {"value", "default_value", "boolean"}, 1));
  const bool replace = args[0].is_undefined() || (IsTrue(args[2]) && !IsTrue(args[0]));
  if (!replace) return args[0];
  return args[1].is_missing() ? runtime.MakeString("") : args[1];
}

// int(text, base); nullopt if it is none.
std::optional<int64_t> ParseInteger(absl::string_view text, int64_t base) {
  std::string digits(StripRight(StripLeft(text)));
  bool negative = false;
  if (!digits.empty() && (digits[0] == '-' || digits[0] == '+')) {
    negative = digits[0] == '-';
    digits.erase(0, 1);
  }
  const std::string prefix = absl::AsciiStrToLower(digits.substr(0, 2));
  const int64_t prefix_base = prefix == "0x" ? 16 : prefix == "0o" ? 8 : prefix == "0b" ? 2 : 0;
  if (prefix_base != 0 && (base == 0 || base == prefix_base)) {
    digits.erase(0, 2);
    base = prefix_base;
  }
  if (base == 0) base = 10;
  if (base < 2 || base > 36 || digits.empty() || digits.back() == '_') return std::nullopt;
  std::string plain = negative ? "-" : "";
  for (size_t i = 0; i < digits.size(); ++i) {
    if (digits[i] == '_' && i > 0 && digits[i - 1] != '_') continue;
    if (!absl::ascii_isalnum(digits[i])) return std::nullopt;
    plain += digits[i];
  }
  int64_t value = 0;
  const char* const end = plain.data() + plain.size();
  const auto read = std::from_chars(plain.data(), end, value, static_cast<int>(base));
  if (read.ec != std::errc() || read.ptr != end) return std::nullopt;
  return value;
}

std::optional<double> ParseReal(absl::string_view text) {
  double value = 0;
  const absl::string_view stripped = StripRight(StripLeft(text));
  if (!absl::SimpleAtod(stripped, &value)) return std::nullopt;
  return value;
}

FilterResult IntFilter(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(
      const auto args, BindArguments("int", std::move(arguments), {"value", "default", "base"}, 1));
  BATON_ASSIGN_OR_RETURN(const int64_t base, IntArgument(args[2], "int", 10));
  const Value if_none = args[1].is_missing() ? Value::Int(0) : args[1];
  BATON_RETURN_IF_ERROR(CheckDefined(args[0]));
  if (args[0].is_integral()) return Value::Int(args[0].integer());
  std::optional<double> real;
  if (args[0].is_float()) real = args[0].number();
  if (args[0].is_string()) {
    BATON_RETURN_IF_ERROR(runtime.StepForBytes(args[0].text().size()));
    if (const auto integer = ParseInteger(args[0].text(), base)) return Value::Int(*integer);
    real = ParseReal(args[0].text());
  }
  if (!real || std::isnan(*real) || (std::isinf(*real) && args[0].is_string())) return if_none;
  if (!(std::abs(*real) < 9.2e18)) return Failure("a number exceeds 64 bits");
  return Value::Int(static_cast<int64_t>(*real));
}

FilterResult FloatFilter(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args,
                         BindArguments("float", std::move(arguments), {"value", "default"}, 1));
  BATON_RETURN_IF_ERROR(CheckDefined(args[0]));
  if (args[0].is_number()) return Value::Float(args[0].number());
  if (args[0].is_string()) {
    BATON_RETURN_IF_ERROR(runtime.StepForBytes(args[0].text().size()));
    if (const auto real = ParseReal(args[0].text())) return Value::Float(*real);
  }
  return args[1].is_missing() ? Value::Float(0) : args[1];
}

FilterResult AbsFilter(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, BindArguments("abs", std::move(arguments), {"x"}, 1));
  if (args[0].is_float()) return Value::Float(std::abs(args[0].number()));
  if (args[0].is_integral() && args[0].integer() >= 0) return Value::Int(args[0].integer());
  return Negate(args[0]);
}

FilterResult RoundFilter(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args, BindArguments("round", std::move(arguments),
                                                        {"value", "precision", "method"}, 1));
  BATON_ASSIGN_OR_RETURN(const int64_t precision, IntArgument(args[1], "round", 0));
  absl::string_view method = "common";
  if (!args[2].is_missing()) {
    BATON_ASSIGN_OR_RETURN(method, TextArgument(args[2], "round"));
  }
  BATON_RETURN_IF_ERROR(CheckDefined(args[0]));
  if (!args[0].is_number()) return Failure("round needs a number");
  if (precision < 0 || precision > 300) return Failure("round: expected a precision of 0 to 300");
  const double value = args[0].number();
  if (method == "common") {
    if (args[0].is_integral()) return Value::Int(args[0].integer());
    double rounded = value;
    if (std::isfinite(value)) {
      // Correctly rounded, ties to even, as Python's round.
      (void)absl::SimpleAtod(absl::StrFormat("%.*f", static_cast<int>(precision), value), &rounded);
    }
    return Value::Float(rounded);
  }
  if (method != "ceil" && method != "floor") {
    return Failure("round: expected the method common, ceil or floor");
  }
  const double scale = std::pow(10.0, static_cast<double>(precision));
  const double scaled = value * scale;
  return Value::Float((method == "ceil" ? std::ceil(scaled) : std::floor(scaled)) / scale);
}

// indent: an int or a string.
absl::StatusOr<std::optional<std::string>> JsonIndent(Runtime& runtime, const Value& value) {
  if (value.is_missing() || value.is_none()) return std::nullopt;
  if (value.is_string()) return value.text();
  BATON_ASSIGN_OR_RETURN(const int64_t width, IntArgument(value, "tojson", 0));
  BATON_RETURN_IF_ERROR(runtime.CheckRoom(std::max<int64_t>(width, 0)));
  return std::string(std::max<int64_t>(width, 0), ' ');
}

FilterResult ToJsonFilter(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(
      const auto args,
      BindArguments("tojson", std::move(arguments),
                    {"x", "ensure_ascii", "indent", "separators", "sort_keys"}, 1));
  JsonStyle style;
  Origin of_style = Origin::kTemplate;
  const auto note_origin = [&](const Value& value) {
    if (value.is_string() && value.traced().origin() == Origin::kRequest) {
      of_style = Origin::kRequest;
    }
  };
  style.ensure_ascii = IsTrue(args[1]);
  note_origin(args[2]);
  BATON_ASSIGN_OR_RETURN(style.indent, JsonIndent(runtime, args[2]));
  style.sort_keys = IsTrue(args[4]);
  if (style.indent) style.item_separator = ",";
  if (!args[3].is_missing() && !args[3].is_none()) {
    BATON_ASSIGN_OR_RETURN(const auto separators, ItemsOf(runtime, args[3]));
    if (separators.size() != 2 || !separators[0].is_string() || !separators[1].is_string()) {
      return Failure("tojson: expected two separators");
    }
    style.item_separator = separators[0].text();
    style.key_separator = separators[1].text();
    note_origin(separators[0]);
    note_origin(separators[1]);
  }
  BATON_ASSIGN_OR_RETURN(TracedText json, JsonOf(runtime, args[0], style));
  if (of_style == Origin::kRequest) json = TracedText(std::move(json.text), of_style);
  return runtime.MakeString(std::move(json));
}

FilterResult AttrFilter(Runtime& runtime, Arguments arguments) {
  BATON_ASSIGN_OR_RETURN(const auto args,
                         BindArguments("attr", std::move(arguments), {"obj", "name"}, 2));
  BATON_ASSIGN_OR_RETURN(const absl::string_view name, TextArgument(args[1], "attr"));
  if (args[0].is_dict()) {
    BATON_ASSIGN_OR_RETURN(Value method, BindMethod(runtime, args[0], name));
    return method.is_missing() ? runtime.MakeUndefined("a dict has no such attribute") : method;
  }
  return GetAttribute(runtime, args[0], name);
}

}  // namespace

const FilterTable& TextFilters() {
  static const FilterTable& table = *new FilterTable{
      {"abs", AbsFilter},
      {"attr", AttrFilter},
      {"capitalize", ConvertFilter<Capitalize>},
      {"center", CenterFilter},
      {"d", DefaultFilter},
      {"default", DefaultFilter},
      {"e", EscapeFilter},
      {"escape", EscapeFilter},
      {"float", FloatFilter},
      {"format", FormatFilter},
      {"indent", IndentFilter},
      {"int", IntFilter},
      {"lower", ConvertFilter<LowerCase>},
      {"replace", ReplaceFilter},
      {"round", RoundFilter},
      {"safe", SafeFilter},
      {"string", StringFilter},
      {"title", ConvertFilter<TitleWords>},
      {"tojson", ToJsonFilter},
      {"trim", TrimFilter},
      {"upper", ConvertFilter<UpperCase>},
  };
  return table;
}

Builtin FindFilter(absl::string_view name) {
  for (const FilterTable* table : {&TextFilters(), &SequenceFilters()}) {
    const auto found = table->find(name);
    if (found != table->end()) return found->second;
  }
  return nullptr;
}

}  // namespace baton::chat
