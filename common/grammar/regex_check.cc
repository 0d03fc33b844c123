#include "common/grammar/regex_check.h"

#include <cstdint>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/grammar/grammar.h"

namespace baton::grammar {
namespace {

constexpr int kMaxRepetitions = 1000;
constexpr int kMaxGroupDepth = 64;

// Reads an expression from left to right and stops at the first thing that is refused.
class RegexWalk {
 public:
  RegexWalk(absl::string_view regex, RegexUse use, absl::string_view field)
      : regex_(regex), in_json_(use == RegexUse::kJsonString), field_(field) {}

  absl::Status Run() {
    while (at_ < regex_.size()) BATON_RETURN_IF_ERROR(Element());
    return depth_ == 0 ? absl::OkStatus() : Invalid("a group is not closed");
  }

 private:
  absl::Status Element() {
    switch (regex_[at_]) {
      case '\\':
        return Escape(/*in_class=*/false).status();
      case '[':
        return Class();
      case '(':
        return Group();
      case ')':
        if (--depth_ < 0) return Invalid("a ) without its (");
        break;
      case '{':
        return Repetition();
      case '^':
        if (at_ != 0) return Unsupported("^ is allowed at the start only");
        break;
      case '$':
        if (at_ + 1 != regex_.size()) return Unsupported("$ is allowed at the end only");
        break;
      case '.':
        if (in_json_) return Unsupported(". matches what a JSON string cannot hold unescaped");
        break;
      default:
        BATON_RETURN_IF_ERROR(Literal(static_cast<unsigned char>(regex_[at_])));
    }
    ++at_;
    return absl::OkStatus();
  }

  // A character of the text, or the end of a range.
  absl::Status Literal(uint32_t character) const {
    if (in_json_ && (character == '"' || character == '\\' || character < 0x20)) {
      return Unsupported("it matches a character that a JSON string holds only escaped");
    }
    return absl::OkStatus();
  }

  // Returns the character that the escape stands for; nullopt for a class.
  absl::StatusOr<std::optional<uint32_t>> Escape(bool in_class) {
    if (at_ + 1 >= regex_.size()) return Invalid("a \\ at the end");
    const char kind = regex_[at_ + 1];
    at_ += 2;
    switch (kind) {
      case 'd':
      case 'w':
        return std::nullopt;
      case 'D':
      case 'W':
      case 's':
      case 'S':
        if (in_json_) return Unsupported("\\D, \\W, \\s and \\S match what a JSON string escapes");
        return std::nullopt;
      case 'x':
        return Hex(2);
      case 'u':
        return Hex(4);
      case 'n':
        return Checked('\n');
      case 'r':
        return Checked('\r');
      case 't':
        return Checked('\t');
      case 'f':
        return Checked('\f');
      case 'v':
        return Checked('\v');
      default:
        if (absl::string_view("^$.*+?\\()[]{}|/").find(kind) != absl::string_view::npos ||
            (in_class && kind == '-')) {
          return Checked(static_cast<unsigned char>(kind));
        }
        return Unsupported(absl::StrCat("the escape \\", std::string(1, kind)));
    }
  }
  absl::StatusOr<std::optional<uint32_t>> Checked(uint32_t character) const {
    BATON_RETURN_IF_ERROR(Literal(character));
    return character;
  }
  absl::StatusOr<std::optional<uint32_t>> Hex(size_t digits) {
    uint32_t value = 0;
    const absl::string_view text = regex_.substr(at_, digits);
    if (text.size() != digits || !absl::SimpleHexAtoi(text, &value)) {
      return Invalid("an escape without its hexadecimal digits");
    }
    at_ += digits;
    return Checked(value);
  }

  absl::Status Class() {
    const bool negated = absl::string_view(regex_).substr(at_, 2) == "[^";
    if (negated && in_json_) return Unsupported("[^ matches what a JSON string escapes");
    at_ += negated ? 2 : 1;
    if (at_ < regex_.size() && regex_[at_] == ']') return Invalid("an empty class");
    std::optional<uint32_t> before;  // the character that a range would start with
    while (at_ < regex_.size() && regex_[at_] != ']') {
      if (regex_[at_] == '[') return Unsupported("a [ in a class: write \\[");
      const bool range =
          regex_[at_] == '-' && before && at_ + 1 < regex_.size() && regex_[at_ + 1] != ']';
      if (range) ++at_;
      std::optional<uint32_t> character;
      if (regex_[at_] == '\\') {
        BATON_ASSIGN_OR_RETURN(character, Escape(/*in_class=*/true));
      } else {
        character = static_cast<unsigned char>(regex_[at_]);
        BATON_RETURN_IF_ERROR(Literal(*character));
        ++at_;
      }
      if (range && !character) return Invalid("a range that ends with a class");
      if (range && in_json_) {
        for (const uint32_t bad : {uint32_t{'"'}, uint32_t{'\\'}}) {
          if (*before <= bad && bad <= *character) BATON_RETURN_IF_ERROR(Literal(bad));
        }
      }
      before = range ? std::nullopt : character;
    }
    if (at_ >= regex_.size()) return Invalid("a class is not closed");
    ++at_;
    return absl::OkStatus();
  }

  absl::Status Group() {
    if (++depth_ > kMaxGroupDepth) {
      return InvalidField("SCHEMA_TOO_COMPLEX", field_,
                          absl::StrCat("groups nest deeper than ", kMaxGroupDepth));
    }
    ++at_;
    if (at_ >= regex_.size() || regex_[at_] != '?') return absl::OkStatus();
    if (regex_.substr(at_, 2) != "?:") {
      return Unsupported("(? other than (?: : assertions, names and flags");
    }
    at_ += 2;
    return absl::OkStatus();
  }

  // {m}, {m,} or {m,n}
  absl::Status Repetition() {
    const size_t end = regex_.find('}', at_);
    if (end == absl::string_view::npos) return Invalid("a { without its }: write \\{");
    absl::string_view counts = regex_.substr(at_ + 1, end - at_ - 1);
    const size_t comma = counts.find(',');
    for (const absl::string_view count :
         {counts.substr(0, comma),
          comma == absl::string_view::npos ? absl::string_view() : counts.substr(comma + 1)}) {
      int value = 0;
      const bool may_lack = count.data() != counts.data();
      if (count.empty() && may_lack) continue;
      if (!absl::SimpleAtoi(count, &value) || value < 0) {
        return Invalid("a repetition without its number: write \\{");
      }
      if (value > kMaxRepetitions) {
        return InvalidField("SCHEMA_TOO_COMPLEX", field_,
                            absl::StrCat(value, " repetitions, at most ", kMaxRepetitions));
      }
    }
    at_ = end + 1;
    return absl::OkStatus();
  }

  absl::Status Invalid(absl::string_view what) const {
    return InvalidField("SCHEMA_INVALID", field_,
                        absl::StrCat("regular expression, byte ", at_, ": ", what));
  }
  absl::Status Unsupported(absl::string_view what) const {
    return InvalidField("SCHEMA_UNSUPPORTED", field_,
                        absl::StrCat("regular expression, byte ", at_, ": ", what));
  }

  const absl::string_view regex_;
  const bool in_json_;
  const absl::string_view field_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

absl::Status CheckRegex(absl::string_view regex, RegexUse use, absl::string_view field) {
  if (regex.size() > kMaxRegexBytes) {
    return InvalidField("SCHEMA_TOO_COMPLEX", field,
                        absl::StrCat("a regular expression of ", regex.size(),
                                     " bytes given, at most ", kMaxRegexBytes, " expected"));
  }
  if (regex.empty() || !IsUtf8(regex)) {
    return InvalidField("SCHEMA_INVALID", field, "a regular expression in UTF-8 expected");
  }
  if (regex.find('\0') != absl::string_view::npos) {
    return InvalidField("SCHEMA_INVALID", field, "a zero byte in a regular expression");
  }
  return RegexWalk(regex, use, field).Run();
}

std::string WithoutNewlines(absl::string_view regex) {
  std::string result;
  bool in_class = false;
  for (size_t i = 0; i < regex.size(); ++i) {
    if (regex[i] == '\\' && i + 1 < regex.size()) {
      absl::StrAppend(&result, regex.substr(i++, 2));
      continue;
    }
    if (regex[i] == '[') in_class = true;
    if (regex[i] == ']') in_class = false;
    if (regex[i] == '.' && !in_class) {
      absl::StrAppend(&result, "[^\\n\\r]");
    } else {
      result.push_back(regex[i]);
    }
  }
  return result;
}

}  // namespace baton::grammar
