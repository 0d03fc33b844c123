#include "common/chat/format.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/chat/operators.h"
#include "common/chat/printing.h"
#include "common/chat/text.h"
#include "common/json/json.h"

namespace baton::chat {
namespace {

constexpr int64_t kMaxPrecision = 1000;

struct FormatSpec {
  std::string fill = " ";
  Align align = Align::kRight;
  bool has_align = false;
  char sign = '-';
  bool comma = false;
  int64_t width = 0;
  int64_t precision = -1;
  char type = 0;
};

// Reads digits; a number beyond all limits becomes a large one.
int64_t TakeNumber(absl::string_view* text) {
  int64_t number = 0;
  while (!text->empty() && absl::ascii_isdigit(text->front())) {
    number = std::min<int64_t>(number * 10 + (text->front() - '0'), int64_t{1} << 40);
    text->remove_prefix(1);
  }
  return number;
}

absl::Status BadSpec(absl::string_view spec) {
  return Failure(absl::StrCat("the format ", json::Quoted(spec), " is not supported"));
}

std::string WithCommas(std::string digits) {
  size_t end = digits.find('.');
  if (end == std::string::npos) end = digits.size();
  for (size_t at = end; at > 3 && absl::ascii_isdigit(digits[at - 4]);) {
    at -= 3;
    digits.insert(at, 1, ',');
  }
  return digits;
}

std::string RadixText(uint64_t value, int base) {
  std::string digits;
  do {
    digits.push_back("0123456789abcdef"[value % base]);
    value /= base;
  } while (value > 0);
  std::reverse(digits.begin(), digits.end());
  return digits;
}

// The digits of a number without its sign; empty for an unknown type.
std::string Magnitude(const FormatSpec& spec, const Value& value) {
  const int precision = static_cast<int>(spec.precision < 0 ? 6 : spec.precision);
  const double real = std::abs(value.number());
  const uint64_t integer = value.is_float()      ? 0
                           : value.integer() < 0 ? -static_cast<uint64_t>(value.integer())
                                                 : static_cast<uint64_t>(value.integer());
  switch (spec.type) {
    case 'd':
      return value.is_float() ? "" : absl::StrCat(integer);
    case 'x':
    case 'X': {
      const std::string digits = value.is_float() ? "" : RadixText(integer, 16);
      return spec.type == 'x' ? digits : absl::AsciiStrToUpper(digits);
    }
    case 'o':
      return value.is_float() ? "" : RadixText(integer, 8);
    case 'b':
      return value.is_float() ? "" : RadixText(integer, 2);
    case 'f':
      return absl::StrFormat("%.*f", precision, real);
    case 'e':
      return absl::StrFormat("%.*e", precision, real);
    case 'g':
      return absl::StrFormat("%.*g", std::max(precision, 1), real);
    case '%':
      return absl::StrFormat("%.*f%%", precision, real * 100);
    default:
      return "";
  }
}

absl::StatusOr<Value> FormatNumber(Runtime& runtime, FormatSpec spec, const Value& value) {
  if (spec.precision > kMaxPrecision) return Failure("a precision is too large");
  std::string digits;
  if (spec.type == 0 && spec.precision < 0) {
    digits = NumberText(value.is_bool() ? Value::Int(value.integer()) : value);
    if (digits[0] == '-') digits.erase(0, 1);
  } else {
    if (spec.type == 0) spec.type = value.is_float() ? 'g' : 'd';
    digits = Magnitude(spec, value);
  }
  if (digits.empty()) {
    return Failure(absl::StrCat("the format '", std::string(1, spec.type),
                                "' does not fit a number of type ", value.type_name()));
  }
  if (spec.comma) digits = WithCommas(std::move(digits));
  const bool negative = value.is_float() ? std::signbit(value.number()) : value.integer() < 0;
  const absl::string_view sign = negative           ? "-"
                                 : spec.sign == '-' ? ""
                                 : spec.sign == '+' ? "+"
                                                    : " ";
  BATON_ASSIGN_OR_RETURN(const Value text, runtime.MakeString(absl::StrCat(sign, digits)));
  return PadText(runtime, text, spec.width, spec.has_align ? spec.align : Align::kRight,
                 TracedText(spec.fill));
}

absl::StatusOr<Value> FormatText(Runtime& runtime, const FormatSpec& spec, const Value& text) {
  Value cut = text;
  if (spec.precision >= 0) {
    BATON_ASSIGN_OR_RETURN(cut,
                           GetSlice(runtime, text, Value(), Value::Int(spec.precision), Value()));
  }
  return PadText(runtime, cut, spec.width, spec.has_align ? spec.align : Align::kLeft,
                 TracedText(spec.fill));
}

// [[fill]align][sign][0][width][,][.precision][type]
absl::StatusOr<FormatSpec> ParseSpec(absl::string_view spec) {
  const absl::string_view whole = spec;
  static constexpr absl::string_view kAligns = "<>^=";
  static constexpr Align kAlignValues[] = {Align::kLeft, Align::kRight, Align::kMiddle,
                                           Align::kAfterSign};
  FormatSpec parsed;
  size_t fill_bytes = 0;
  if (!spec.empty()) NextCodePoint(spec, &fill_bytes);
  if (fill_bytes < spec.size() && kAligns.find(spec[fill_bytes]) != absl::string_view::npos) {
    parsed.fill = std::string(spec.substr(0, fill_bytes));
    spec.remove_prefix(fill_bytes);
  }
  if (!spec.empty() && kAligns.find(spec[0]) != absl::string_view::npos) {
    parsed.align = kAlignValues[kAligns.find(spec[0])];
    parsed.has_align = true;
    spec.remove_prefix(1);
  }
  if (!spec.empty() && (spec[0] == '+' || spec[0] == '-' || spec[0] == ' ')) {
    parsed.sign = spec[0];
    spec.remove_prefix(1);
  }
  if (!spec.empty() && spec[0] == '0' && !parsed.has_align) {
    parsed.fill = "0";
    parsed.align = Align::kAfterSign;
    parsed.has_align = true;
  }
  parsed.width = TakeNumber(&spec);
  if (!spec.empty() && spec[0] == ',') {
    parsed.comma = true;
    spec.remove_prefix(1);
  }
  if (!spec.empty() && spec[0] == '.') {
    spec.remove_prefix(1);
    if (spec.empty() || !absl::ascii_isdigit(spec[0])) return BadSpec(whole);
    parsed.precision = TakeNumber(&spec);
  }
  if (!spec.empty()) {
    parsed.type = spec[0];
    spec.remove_prefix(1);
  }
  if (!spec.empty()) return BadSpec(whole);
  return parsed;
}

absl::StatusOr<Value> FormatValue(Runtime& runtime, const Value& value, absl::string_view text) {
  BATON_ASSIGN_OR_RETURN(const FormatSpec spec, ParseSpec(text));
  if (value.is_number() && !(value.is_bool() && text.empty()) && spec.type != 's') {
    return FormatNumber(runtime, spec, value);
  }
  if (spec.type != 0 && !(spec.type == 's' && value.is_string())) return BadSpec(text);
  if (!value.is_string() && !text.empty()) return BadSpec(text);
  BATON_ASSIGN_OR_RETURN(TracedText printed, StrOf(runtime, value));
  BATON_ASSIGN_OR_RETURN(const Value string, runtime.MakeString(std::move(printed)));
  return FormatText(runtime, spec, string);
}

// One call of %, which takes its values in order.
class PercentFormatter {
 public:
  PercentFormatter(Runtime& runtime, const Value& arguments) : runtime_(runtime) {
    if (arguments.IsSequence(Flavor::kTuple)) {
      values_ = arguments.sequence().items;
    } else {
      values_ = {arguments};
      if (arguments.is_dict()) dict_ = arguments;
    }
  }

  absl::StatusOr<TracedText> Run(absl::string_view format) {
    while (true) {
      const size_t percent = format.find('%');
      BATON_RETURN_IF_ERROR(runtime_.Step());
      BATON_RETURN_IF_ERROR(
          runtime_.CheckRoom(result_.size() + result_.trace_bytes() + format.size()));
      result_.Append(format.substr(0, percent));
      if (percent == absl::string_view::npos) break;
      format.remove_prefix(percent + 1);
      if (!format.empty() && format[0] == '%') {
        result_.Append("%");
        format.remove_prefix(1);
        continue;
      }
      BATON_RETURN_IF_ERROR(One(&format));
    }
    if (next_ < values_.size() && !dict_.is_dict()) {
      return Failure("not all arguments converted during string formatting");
    }
    return std::move(result_);
  }

 private:
  absl::StatusOr<Value> Next() {
    if (next_ >= values_.size()) return Failure("not enough arguments for format string");
    return values_[next_++];
  }

  absl::StatusOr<Value> Keyed(absl::string_view* format) {
    const size_t end = format->find(')');
    if (end == absl::string_view::npos || !dict_.is_dict())
      return Failure("format requires a mapping");
    const Value* found = dict_.dict().Find(format->substr(1, end - 1));
    if (found == nullptr) return Failure("a key of the format is missing");
    format->remove_prefix(end + 1);
    return *found;
  }

  absl::Status One(absl::string_view* format) {
    Value value;
    if (!format->empty() && format->front() == '(') {
      BATON_ASSIGN_OR_RETURN(value, Keyed(format));
    }
    FormatSpec spec{.has_align = true};
    while (!format->empty() && absl::string_view("-+ 0#").find(format->front()) != format->npos) {
      const char flag = format->front();
      if (flag == '#') return Failure("the format flag # is not supported");
      if (flag == '-') spec.align = Align::kLeft;
      if (flag == '+' || (flag == ' ' && spec.sign == '-')) spec.sign = flag;
      if (flag == '0' && spec.align != Align::kLeft) {
        spec.align = Align::kAfterSign;
        spec.fill = "0";
      }
      format->remove_prefix(1);
    }
    if (spec.align == Align::kLeft) spec.fill = " ";
    spec.width = TakeNumber(format);
    if (!format->empty() && format->front() == '.') {
      format->remove_prefix(1);
      spec.precision = TakeNumber(format);
    }
    if (format->empty()) return Failure("incomplete format");
    spec.type = format->front();
    format->remove_prefix(1);
    if (value.is_missing()) {
      BATON_ASSIGN_OR_RETURN(value, Next());
    }
    BATON_ASSIGN_OR_RETURN(const Value text, Convert(spec, value));
    BATON_RETURN_IF_ERROR(
        runtime_.CheckRoom(result_.size() + result_.trace_bytes() + text.text().size()));
    result_.Append(text.traced());
    return absl::OkStatus();
  }

  absl::StatusOr<Value> Convert(FormatSpec spec, const Value& value) {
    if (spec.type == 's' || spec.type == 'r') {
      BATON_ASSIGN_OR_RETURN(TracedText printed,
                             spec.type == 's' ? StrOf(runtime_, value) : ReprOf(runtime_, value));
      BATON_ASSIGN_OR_RETURN(const Value text, runtime_.MakeString(std::move(printed)));
      if (spec.align == Align::kAfterSign) spec.align = Align::kRight;
      spec.fill = " ";
      return FormatText(runtime_, spec, text);
    }
    if (!value.is_number()) {
      return Failure(absl::StrCat("a number is required for %", std::string(1, spec.type), ", not ",
                                  value.type_name()));
    }
    if (spec.type == 'i' || spec.type == 'u') spec.type = 'd';
    if (spec.type == 'd') {
      if (!value.is_float()) return FormatNumber(runtime_, spec, value);
      if (!(std::abs(value.number()) < 9e18)) return Failure("a number is too large for %d");
      return FormatNumber(runtime_, spec, Value::Int(static_cast<int64_t>(value.number())));
    }
    return FormatNumber(runtime_, spec, value);
  }

  Runtime& runtime_;
  std::vector<Value> values_;
  Value dict_;
  size_t next_ = 0;
  TracedText result_;
};

class BraceFormatter {
 public:
  BraceFormatter(Runtime& runtime, const Arguments& arguments)
      : runtime_(runtime), arguments_(arguments) {}

  absl::StatusOr<TracedText> Run(absl::string_view format) {
    TracedText result;
    while (!format.empty()) {
      const size_t brace = format.find_first_of("{}");
      BATON_RETURN_IF_ERROR(runtime_.Step());
      BATON_RETURN_IF_ERROR(
          runtime_.CheckRoom(result.size() + result.trace_bytes() + format.size()));
      result.Append(format.substr(0, brace));
      if (brace == absl::string_view::npos) break;
      const char c = format[brace];
      format.remove_prefix(brace + 1);
      if (!format.empty() && format[0] == c) {
        result.Append(absl::string_view(&c, 1));
        format.remove_prefix(1);
        continue;
      }
      const size_t end = format.find('}');
      if (c == '}' || end == absl::string_view::npos)
        return Failure("a brace of the format is alone");
      BATON_ASSIGN_OR_RETURN(const Value text, Field(format.substr(0, end)));
      BATON_RETURN_IF_ERROR(
          runtime_.CheckRoom(result.size() + result.trace_bytes() + text.text().size()));
      result.Append(text.traced());
      format.remove_prefix(end + 1);
    }
    return result;
  }

 private:
  // name[.attribute]...[!r|!s][:spec]
  absl::StatusOr<Value> Field(absl::string_view field) {
    const absl::string_view whole = field;
    const size_t colon = field.find(':');
    const absl::string_view spec = colon == field.npos ? "" : field.substr(colon + 1);
    field = field.substr(0, colon);
    const size_t mark = field.find('!');
    const absl::string_view conversion = mark == field.npos ? "" : field.substr(mark + 1);
    field = field.substr(0, mark);
    if (field.find_first_of("[{") != field.npos || spec.find('{') != spec.npos)
      return BadSpec(whole);
    BATON_ASSIGN_OR_RETURN(Value value, Lookup(&field));
    while (!field.empty()) {
      field.remove_prefix(1);  // the dot
      const size_t end = std::min(field.find('.'), field.size());
      BATON_ASSIGN_OR_RETURN(value, GetAttribute(runtime_, value, field.substr(0, end)));
      BATON_RETURN_IF_ERROR(CheckDefined(value));
      field.remove_prefix(end);
    }
    if (!conversion.empty()) {
      if (conversion != "r" && conversion != "s") return BadSpec(whole);
      BATON_ASSIGN_OR_RETURN(TracedText text,
                             conversion == "r" ? ReprOf(runtime_, value) : StrOf(runtime_, value));
      BATON_ASSIGN_OR_RETURN(value, runtime_.MakeString(std::move(text)));
    }
    return FormatValue(runtime_, value, spec);
  }

  absl::StatusOr<Value> Lookup(absl::string_view* field) {
    const size_t end = std::min(field->find('.'), field->size());
    absl::string_view name = field->substr(0, end);
    field->remove_prefix(end);
    size_t index = 0;
    if (name.empty()) {
      index = next_++;
    } else if (absl::ascii_isdigit(name[0])) {
      index = static_cast<size_t>(TakeNumber(&name));
    } else {
      for (const auto& [key, value] : arguments_.named) {
        if (key == name) return value;
      }
      return Failure(absl::StrCat("the format needs an argument ", json::Quoted(name)));
    }
    if (index >= arguments_.positional.size()) return Failure("the format needs more arguments");
    return arguments_.positional[index];
  }

  Runtime& runtime_;
  const Arguments& arguments_;
  size_t next_ = 0;
};

// If the format comes from the request, so does all of the result.
absl::StatusOr<Value> Formatted(Runtime& runtime, const Value& format, TracedText text) {
  if (format.traced().origin() == Origin::kRequest) {
    text = TracedText(std::move(text.text), Origin::kRequest);
  }
  return runtime.MakeString(std::move(text), format.is_markup());
}

}  // namespace

absl::StatusOr<Value> FormatPercent(Runtime& runtime, const Value& format, const Value& arguments) {
  BATON_ASSIGN_OR_RETURN(TracedText text, PercentFormatter(runtime, arguments).Run(format.text()));
  return Formatted(runtime, format, std::move(text));
}

absl::StatusOr<Value> FormatBraces(Runtime& runtime, const Value& format,
                                   const Arguments& arguments) {
  BATON_ASSIGN_OR_RETURN(TracedText text, BraceFormatter(runtime, arguments).Run(format.text()));
  return Formatted(runtime, format, std::move(text));
}

absl::StatusOr<Value> PadText(Runtime& runtime, const Value& text, int64_t width, Align align,
                              const TracedText& fill) {
  BATON_ASSIGN_OR_RETURN(const int64_t length, LengthOf(runtime, text));
  if (width <= length) return text;
  const int64_t missing = width - length;
  // A first bound, so that the product cannot overflow.
  BATON_RETURN_IF_ERROR(runtime.CheckRoom(missing));
  BATON_RETURN_IF_ERROR(
      runtime.CheckRoom(missing * (fill.size() + fill.trace_bytes()) + text.text().size()));
  int64_t left = 0;
  if (align == Align::kRight || align == Align::kAfterSign) left = missing;
  if (align == Align::kMiddle) left = missing / 2;
  if (align == Align::kCenter) left = missing / 2 + (missing & width & 1);
  const absl::string_view content = text.text();
  const bool has_sign = !content.empty() && (content[0] == '-' || content[0] == '+');
  const size_t sign = align == Align::kAfterSign && has_sign ? 1 : 0;
  TracedText padded;
  padded.AppendPart(text.traced(), content.substr(0, sign));
  for (int64_t i = 0; i < left; ++i) padded.Append(fill);
  padded.AppendPart(text.traced(), content.substr(sign));
  for (int64_t i = left; i < missing; ++i) padded.Append(fill);
  return runtime.MakeString(std::move(padded), text.is_markup());
}

}  // namespace baton::chat
