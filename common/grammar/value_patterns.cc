#include "common/grammar/value_patterns.h"

#include <algorithm>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/grammar/normal_regex.h"
#include "common/grammar/schema_keywords.h"

namespace baton::grammar {
namespace {

// A double has the magnitude of all numbers of so many digits. Readers of JSON refuse more, and
// read an integer that an int64 does not hold as a double, which is an integer to validators.
constexpr size_t kMaxIntegerDigits = 308;
// The same before the point of a number, whose exponent has two digits.
constexpr size_t kMaxDigits = kMaxIntegerDigits - 99;

std::string Digit(char first, char last) {
  if (first == last) return std::string(1, first);
  return absl::StrCat("[", std::string(1, first), "-", std::string(1, last), "]");
}

std::string Digits(size_t least, size_t most) {
  if (most == 0) return "";
  return absl::StrCat("[0-9]{", least, ",", most, "}");
}

std::string Group(const std::vector<std::string>& alternatives) {
  return alternatives.size() == 1 ? alternatives[0]
                                  : absl::StrCat("(", absl::StrJoin(alternatives, "|"), ")");
}

// Texts of digits from `least` to `most`, which have the same size, 1 or more.
std::string SameSize(absl::string_view least, absl::string_view most) {
  const size_t rest = least.size() - 1;
  if (rest == 0) return Digit(least[0], most[0]);
  if (least[0] == most[0]) {
    return absl::StrCat(least.substr(0, 1), SameSize(least.substr(1), most.substr(1)));
  }
  std::vector<std::string> alternatives;
  char first = least[0], last = most[0];
  if (least.find_first_not_of('0', 1) != absl::string_view::npos) {
    alternatives.push_back(
        absl::StrCat(least.substr(0, 1), SameSize(least.substr(1), std::string(rest, '9'))));
    ++first;
  }
  std::string up_to_most;
  if (most.find_first_not_of('9', 1) != absl::string_view::npos) {
    up_to_most = absl::StrCat(most.substr(0, 1), SameSize(std::string(rest, '0'), most.substr(1)));
    --last;
  }
  if (first <= last) {
    alternatives.push_back(absl::StrCat(Digit(first, last), Digits(rest, rest)));
  }
  if (!up_to_most.empty()) alternatives.push_back(std::move(up_to_most));
  return Group(alternatives);
}

// Numbers of 0 or more, from `least` to `most`.
std::string Magnitudes(int64_t least, std::optional<int64_t> most) {
  const std::string from = absl::StrCat(least);
  const std::string to = most ? absl::StrCat(*most) : "";
  std::vector<std::string> alternatives;
  const size_t last_size = most ? to.size() : from.size();
  for (size_t size = from.size(); size <= last_size; ++size) {
    const std::string lowest =
        size == from.size() ? from : absl::StrCat("1", std::string(size - 1, '0'));
    const std::string highest = size == to.size() ? to : std::string(size, '9');
    alternatives.push_back(SameSize(lowest, highest));
  }
  if (!most)
    alternatives.push_back(absl::StrCat("[1-9]", Digits(from.size(), kMaxIntegerDigits - 1)));
  return Group(alternatives);
}

std::string Normal(absl::string_view pattern) {
  return NormalRegex(pattern, RegexUse::kJsonString, /*field=*/"").value();
}

std::string OfFormat(absl::string_view format) {
  constexpr absl::string_view kDate = "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])";
  constexpr absl::string_view kTime =
      "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?"
      "(Z|[+\\-]([01][0-9]|2[0-3]):[0-5][0-9])";
  constexpr absl::string_view kOctet = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])";
  constexpr absl::string_view kLabel = "[0-9A-Za-z]([0-9A-Za-z\\-]{0,61}[0-9A-Za-z])?";
  constexpr absl::string_view kHex = "[0-9A-Fa-f]";
  if (format == "date") return std::string(kDate);
  if (format == "time") return std::string(kTime);
  if (format == "date-time") return absl::StrCat(kDate, "T", kTime);
  if (format == "ipv4") return absl::StrCat("(", kOctet, "\\.){3}", kOctet);
  if (format == "hostname") return absl::StrCat(kLabel, "(\\.", kLabel, ")*");
  if (format == "uuid") {
    return absl::StrCat(kHex, "{8}-(", kHex, "{4}-){3}", kHex, "{12}");
  }
  if (format == "duration") {
    constexpr absl::string_view kSeconds = "[0-9]{1,9}S";
    const std::string minutes = absl::StrCat("[0-9]{1,9}M(", kSeconds, ")?");
    const std::string hours = absl::StrCat("[0-9]{1,9}H(", minutes, ")?");
    const std::string time = absl::StrCat("T(", hours, "|", minutes, "|", kSeconds, ")");
    const std::string days = "[0-9]{1,9}D";
    const std::string months = absl::StrCat("[0-9]{1,9}M(", days, ")?");
    const std::string years = absl::StrCat("[0-9]{1,9}Y(", months, ")?");
    return absl::StrCat("P((", days, "|", months, "|", years, ")(", time, ")?|", time,
                        "|[0-9]{1,9}W)");
  }
  BATON_CHECK(format == "ipv6") << "the caller knows the formats";
  // Eight groups, or fewer with :: in place of what is left out.
  const std::string group = absl::StrCat(kHex, "{1,4}");
  const std::string before = absl::StrCat("(", group, ":)"), after = absl::StrCat("(:", group, ")");
  std::vector<std::string> forms = {absl::StrCat(before, "{7}", group),
                                    absl::StrCat(before, "{1,7}:"),
                                    absl::StrCat(":(", after, "{1,7}|:)")};
  for (int count = 1; count <= 6; ++count) {
    forms.push_back(absl::StrCat(before, "{1,", count, "}", after, "{1,", 7 - count, "}"));
  }
  return Group(forms);
}

}  // namespace

std::optional<std::string> IntegerPattern(std::optional<int64_t> least,
                                          std::optional<int64_t> most) {
  std::vector<std::string> alternatives;
  if (!least || *least < 0) {
    const int64_t highest = std::min<int64_t>(most.value_or(-1), -1);
    if (!least || *least <= highest) {
      alternatives.push_back(
          absl::StrCat("-", least ? Magnitudes(-highest, -*least) : Magnitudes(-highest, {})));
    }
  }
  if (!most || *most >= 0) {
    const int64_t lowest = std::max<int64_t>(least.value_or(0), 0);
    if (!most || lowest <= *most) alternatives.push_back(Magnitudes(lowest, most));
  }
  if (alternatives.empty()) return std::nullopt;
  return Normal(Group(alternatives));
}

std::optional<std::string> IntegerPattern(const json::Value& schema) {
  const auto bound = [&](absl::string_view inclusive, absl::string_view exclusive, int64_t step) {
    std::optional<int64_t> found;
    if (const json::Value* value = schema.Find(inclusive)) found = value->scalar.integer;
    if (const json::Value* value = schema.Find(exclusive)) {
      const int64_t next = value->scalar.integer + step;
      if (!found || (next - *found) * step > 0) found = next;
    }
    return found;
  };
  return IntegerPattern(bound("minimum", "exclusiveMinimum", 1),
                        bound("maximum", "exclusiveMaximum", -1));
}

const std::string& NumberPattern() {
  static const auto& pattern = *new std::string(Normal(absl::StrCat(
      "-?(0|[1-9]", Digits(0, kMaxDigits - 1), ")(\\.[0-9]+)?([Ee][+\\-]?", Digits(1, 2), ")?")));
  return pattern;
}

const std::string& FormatPattern(absl::string_view format) {
  static const auto& patterns = *new auto([] {
    std::map<absl::string_view, std::string> made;
    for (const absl::string_view name : Formats()) made[name] = Normal(OfFormat(name));
    return made;
  }());
  return patterns.at(format);
}

}  // namespace baton::grammar
