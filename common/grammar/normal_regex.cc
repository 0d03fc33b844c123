#include "common/grammar/normal_regex.h"

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/grammar/grammar.h"
#include "common/json/json.h"

namespace baton::grammar {
namespace {

constexpr int kMaxRepetitions = 1000;
constexpr size_t kMaxGroupDepth = 64;
constexpr uint32_t kLastAscii = 0x7f;
// No text has them, and UTF-8 has no bytes for them, but a range may go across them.
constexpr CharacterSet::Range kSurrogates = {0xd800, 0xdfff};

// Engines disagree on the members of some classes, such as \s. A class matches only what is surely
// in it, and its negation only what is surely not.
struct ClassEscape {
  CharacterSet surely;
  CharacterSet maybe;
};

const ClassEscape& Digits() {
  static const CharacterSet digits = {{'0', '9'}};
  static const auto* const escape = new ClassEscape{digits, digits};
  return *escape;
}

const ClassEscape& WordCharacters() {
  static const CharacterSet word = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
  static const auto* const escape = new ClassEscape{word, word};
  return *escape;
}

// ECMA's white space is not Python's, nor RE2's.
const ClassEscape& Whitespace() {
  static const auto* const escape = new ClassEscape{{{'\t', '\r'}, {' ', ' '}},
                                                    {{'\t', '\r'},
                                                     {0x1c, ' '},
                                                     {0x85, 0x85},
                                                     {0xa0, 0xa0},
                                                     {0x1680, 0x1680},
                                                     {0x180e, 0x180e},
                                                     {0x2000, 0x200a},
                                                     {0x2028, 0x2029},
                                                     {0x202f, 0x202f},
                                                     {0x205f, 0x205f},
                                                     {0x3000, 0x3000},
                                                     {0xfeff, 0xfeff}}};
  return *escape;
}

const CharacterSet& LineEnds() {
  static const auto* const set = new CharacterSet{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
  return *set;
}

// What is not in the set, and all surrogates.
CharacterSet OtherCharacters(const CharacterSet& set) {
  CharacterSet others = set.Complement();
  others.Add(kSurrogates);
  return others;
}

ClassEscape Negated(const ClassEscape& escape) {
  return {escape.maybe.Complement(), escape.surely.Complement()};
}

void AppendCharacter(uint32_t character, absl::string_view with_backslash, std::string* out) {
  if (character == '\n') {
    out->append("\\n");
  } else if (character == '\r') {
    out->append("\\r");
  } else if (character == 0 || (character >= kSurrogates.first && character <= kSurrogates.last)) {
    absl::StrAppend(out, "\\u", absl::Hex(character, absl::kZeroPad4));
  } else {
    const bool meaning =
        character < 0x80 && absl::StrContains(with_backslash, static_cast<char>(character));
    if (meaning) out->push_back('\\');
    AppendUtf8(character, out);
  }
}

void AppendLiteral(uint32_t character, std::string* out) {
  AppendCharacter(character, R"(^$.*+?\()[]{}|)", out);
}

// A character of a class, or an end of a range in it.
void AppendMember(uint32_t character, std::string* out) {
  AppendCharacter(character, R"(\[]-)", out);
}

// Reads an expression from left to right, writes its normal form, and stops at the first thing that
// is refused.
class RegexWalk {
 public:
  RegexWalk(absl::string_view regex, RegexUse use, absl::string_view field, absl::string_view place)
      : regex_(regex),
        in_json_(use == RegexUse::kJsonString),
        field_(field),
        place_(place.empty() ? "" : absl::StrCat(place, ": ")) {}

  absl::StatusOr<std::string> Run() {
    if (regex_.size() > kMaxRegexBytes) {
      return TooComplex(absl::StrCat("a regular expression of ", regex_.size(),
                                     " bytes given, at most ", kMaxRegexBytes, " expected"));
    }
    if (regex_.empty() || !IsUtf8(regex_)) {
      return InvalidField("SCHEMA_INVALID", field_,
                          absl::StrCat(place_, "a regular expression in UTF-8 expected"));
    }
    while (at_ < regex_.size()) BATON_RETURN_IF_ERROR(Element());
    if (!groups_.empty()) return Invalid("a group is not closed");
    return std::move(normal_);
  }

 private:
  // What an escape stands for.
  struct Escaped {
    std::optional<uint32_t> character;
    ClassEscape set = {};  // the class, if it is no character
  };

  absl::Status Element() {
    switch (regex_[at_]) {
      case '\\': {
        BATON_ASSIGN_OR_RETURN(const Escaped escaped, Escape(/*in_class=*/false));
        if (!escaped.character) return Atom(escaped.set.surely);
        AtomBegins();
        AppendLiteral(*escaped.character, &normal_);
        return absl::OkStatus();
      }
      case '[':
        return Class();
      case '(':
        return OpenGroup();
      case ')':
        return CloseGroup();
      case '|':
        ++at_;
        normal_.push_back('|');
        atom_.reset();
        return absl::OkStatus();
      case '*':
      case '+':
      case '?':
        return Quantifier();
      case '{':
        return Repetition();
      case '^':
        if (at_++ != 0) return Unsupported("^ is allowed at the start only", at_ - 1);
        return absl::OkStatus();
      case '$':
        if (++at_ != regex_.size()) return Unsupported("$ is allowed at the end only", at_ - 1);
        atom_.reset();
        return absl::OkStatus();
      case '.':
        if (in_json_) return Unsupported(". matches what a JSON string cannot hold unescaped");
        ++at_;
        return Atom(LineEnds().Complement());
      default: {
        BATON_ASSIGN_OR_RETURN(const uint32_t character, Literal());
        AtomBegins();
        AppendLiteral(character, &normal_);
        return absl::OkStatus();
      }
    }
  }

  void AtomBegins() { atom_ = normal_.size(); }

  absl::Status Atom(const CharacterSet& set) { return Atom(set, at_); }
  absl::Status Atom(const CharacterSet& set, size_t byte) {
    if (OtherCharacters(set).Complement().empty()) {
      return Unsupported("a class without a character", byte);
    }
    AtomBegins();
    normal_.append(NormalClass(set));
    return absl::OkStatus();
  }

  absl::StatusOr<uint32_t> Literal() {
    const uint32_t character = FirstChar(regex_.substr(at_));
    BATON_RETURN_IF_ERROR(CheckUnescaped({character, character}));
    at_ += Utf8CharBytes(regex_[at_]);
    return character;
  }

  absl::Status CheckUnescaped(CharacterSet::Range range) const {
    if (in_json_ && EscapedInJson().Intersects({range})) {
      return Unsupported("it matches a character that a JSON string holds only escaped");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Escaped> Escape(bool in_class) {
    if (at_ + 1 >= regex_.size()) return Invalid("a \\ at the end");
    const char kind = regex_[at_ + 1];
    switch (kind) {
      case 'd':
        return Set(Digits());
      case 'w':
        return Set(WordCharacters());
      case 'D':
      case 'W':
      case 's':
      case 'S':
        if (in_json_) return Unsupported("\\D, \\W, \\s and \\S match what a JSON string escapes");
        if (kind == 's') return Set(Whitespace());
        return Set(Negated(kind == 'D' ? Digits() : kind == 'W' ? WordCharacters() : Whitespace()));
      case 'x': {
        BATON_ASSIGN_OR_RETURN(const uint32_t value, Hex(at_, 2));
        return Character(value, 4);
      }
      case 'u':
        return CodeUnits();
      case 'n':
        return Character('\n', 2);
      case 'r':
        return Character('\r', 2);
      case 't':
        return Character('\t', 2);
      case 'f':
        return Character('\f', 2);
      case 'v':
        return Character('\v', 2);
      case '0':
        if (at_ + 2 < regex_.size() && absl::ascii_isdigit(Byte(at_ + 2))) {
          return Unsupported("an octal escape");
        }
        return Character(0, 2);
      case 'c':
        if (at_ + 2 >= regex_.size() || !absl::ascii_isalpha(Byte(at_ + 2))) {
          return Invalid("a \\c without its letter");
        }
        return Character(Byte(at_ + 2) % 32u, 3);
      default:
        if (in_class && kind == 'b') return Character('\b', 2);
        // Annex B.1.2 lets any other character stand for itself. Letters and digits are refused, as
        // other dialects mean something by them.
        if (absl::ascii_ispunct(Byte(at_ + 1)) || kind == ' ') {
          return Character(Byte(at_ + 1), 2);
        }
        return Unsupported(absl::StrCat(
            "the escape \\", json::Printable(regex_.substr(at_ + 1, Utf8CharBytes(kind)))));
    }
  }

  unsigned char Byte(size_t at) const { return static_cast<unsigned char>(regex_[at]); }

  Escaped Set(const ClassEscape& set) {
    at_ += 2;
    return {.character = std::nullopt, .set = set};
  }
  absl::StatusOr<Escaped> Character(uint32_t character, size_t length) {
    BATON_RETURN_IF_ERROR(CheckUnescaped({character, character}));
    at_ += length;
    return Escaped{.character = character};
  }

  // Reads \uXXXX; a pair of surrogates is one character.
  absl::StatusOr<Escaped> CodeUnits() {
    BATON_ASSIGN_OR_RETURN(const uint32_t unit, Hex(at_, 4));
    if (unit < 0xd800 || unit > 0xdfff) return Character(unit, 6);
    if (unit < 0xdc00 && regex_.substr(at_ + 6, 2) == "\\u") {
      BATON_ASSIGN_OR_RETURN(const uint32_t second, Hex(at_ + 6, 4));
      if (second >= 0xdc00 && second <= 0xdfff) {
        return Character(0x10000 + ((unit - 0xd800) << 10 | (second - 0xdc00)), 12);
      }
    }
    return Unsupported("a surrogate without its other half, which no text in UTF-8 has");
  }

  // The digits of the escape that begins at `escape`.
  absl::StatusOr<uint32_t> Hex(size_t escape, size_t count) const {
    const absl::string_view digits = regex_.substr(escape + 2, count);
    uint32_t value = 0;
    for (const char digit : digits) {
      if (!absl::ascii_isxdigit(static_cast<unsigned char>(digit))) break;
      const char lower = absl::ascii_tolower(static_cast<unsigned char>(digit));
      value = value << 4 | static_cast<uint32_t>(lower <= '9' ? lower - '0' : lower - 'a' + 10);
      --count;
    }
    if (count > 0) return Invalid("an escape without its hexadecimal digits", escape);
    return value;
  }

  absl::Status Class() {
    const size_t begin = at_;
    const bool negated = regex_.substr(at_, 2) == "[^";
    if (negated && in_json_) return Unsupported("[^ matches what a JSON string escapes");
    at_ += negated ? 2 : 1;
    // In ECMA 262 it is a class without members, in others a class that begins with ].
    if (at_ < regex_.size() && regex_[at_] == ']') return Unsupported("a ] that begins a class");
    ClassEscape members;
    while (at_ < regex_.size() && regex_[at_] != ']') BATON_RETURN_IF_ERROR(Member(members));
    if (at_ >= regex_.size()) return Invalid("a class is not closed", begin);
    ++at_;
    return Atom(negated ? members.maybe.Complement() : members.surely, begin);
  }

  // Reads a character, a class or a range in a class.
  absl::Status Member(ClassEscape& members) {
    const size_t begin = at_;
    BATON_ASSIGN_OR_RETURN(const Escaped first, MemberEnd());
    if (!first.character) {
      members.surely.Add(first.set.surely);
      members.maybe.Add(first.set.maybe);
      return absl::OkStatus();
    }
    CharacterSet::Range range = {*first.character, *first.character};
    // A - before the end of the class is a character.
    if (at_ + 1 < regex_.size() && regex_[at_] == '-' && regex_[at_ + 1] != ']') {
      ++at_;
      BATON_ASSIGN_OR_RETURN(const Escaped last, MemberEnd());
      if (!last.character) return Invalid("a range that ends with a class", begin);
      range.last = *last.character;
      if (range.last < range.first) return Invalid("a range that ends before it begins", begin);
      BATON_RETURN_IF_ERROR(CheckUnescaped(range));
    }
    members.surely.Add(range);
    members.maybe.Add(range);
    return absl::OkStatus();
  }

  absl::StatusOr<Escaped> MemberEnd() {
    if (regex_[at_] == '[') return Unsupported("a [ in a class: write \\[");
    if (regex_[at_] == '\\') return Escape(/*in_class=*/true);
    BATON_ASSIGN_OR_RETURN(const uint32_t character, Literal());
    return Escaped{.character = character};
  }

  absl::Status OpenGroup() {
    if (groups_.size() == kMaxGroupDepth) {
      return TooComplex(absl::StrCat("groups nest deeper than ", kMaxGroupDepth));
    }
    ++at_;
    if (at_ < regex_.size() && regex_[at_] == '?') {
      if (regex_.substr(at_, 2) != "?:") {
        return Unsupported("(? other than (?: : assertions, names and flags", at_ - 1);
      }
      at_ += 2;
    }
    groups_.push_back(normal_.size());
    normal_.push_back('(');
    atom_.reset();
    return absl::OkStatus();
  }

  absl::Status CloseGroup() {
    if (groups_.empty()) return Invalid("a ) without its (");
    ++at_;
    normal_.push_back(')');
    atom_ = groups_.back();
    groups_.pop_back();
    return absl::OkStatus();
  }

  absl::Status Quantifier() {
    if (!atom_) return Invalid("nothing to repeat");
    const char quantifier = regex_[at_++];
    // XGrammar lets x in (yx*)? repeat without its y.
    normal_.append(quantifier == '?' ? "{0,1}" : std::string(1, quantifier));
    return QuantifierEnds();
  }

  // Reads {m}, {m,} or {m,n}.
  absl::Status Repetition() {
    const size_t end = regex_.find('}', at_);
    if (end == absl::string_view::npos) return Invalid("a { without its }: write \\{");
    const absl::string_view counts = regex_.substr(at_ + 1, end - at_ - 1);
    const size_t comma = counts.find(',');
    BATON_ASSIGN_OR_RETURN(const int least, Count(counts.substr(0, comma)));
    int most = least;
    bool bounded = true;
    if (comma != absl::string_view::npos) {
      const absl::string_view text = counts.substr(comma + 1);
      bounded = !text.empty();
      if (bounded) {
        BATON_ASSIGN_OR_RETURN(most, Count(text));
        if (most < least) return Invalid("a repetition of at most less than at least");
      }
    }
    if (!atom_) return Invalid("nothing to repeat");
    at_ = end + 1;
    if (bounded && most == 0) {
      normal_.replace(*atom_, normal_.size() - *atom_, "()");
    } else if (bounded && most == least) {
      absl::StrAppend(&normal_, "{", least, "}");
    } else if (bounded) {
      absl::StrAppend(&normal_, "{", least, ",", most, "}");
    } else if (least <= 1) {
      normal_.push_back(least == 0 ? '*' : '+');
    } else {
      // XGrammar goes on behind the last repetition as if it were any other branch of it.
      normal_.insert(*atom_, "(");
      absl::StrAppend(&normal_, "()){", least, ",}");
    }
    return QuantifierEnds();
  }

  absl::StatusOr<int> Count(absl::string_view text) const {
    int value = 0;
    // SimpleAtoi takes a sign and white space.
    const bool digits = !text.empty() && text.find_first_not_of("0123456789") == text.npos;
    if (!digits) return Invalid("a repetition without its number: write \\{");
    if (!absl::SimpleAtoi(text, &value) || value > kMaxRepetitions) {
      return TooComplex(absl::StrCat(text, " repetitions, at most ", kMaxRepetitions));
    }
    return value;
  }

  // What has a quantifier takes no other; a ? makes it lazy.
  absl::Status QuantifierEnds() {
    atom_.reset();
    if (at_ < regex_.size() && regex_[at_] == '?') ++at_;
    return absl::OkStatus();
  }

  absl::Status TooComplex(absl::string_view what) const {
    return InvalidField("SCHEMA_TOO_COMPLEX", field_, absl::StrCat(place_, what));
  }
  absl::Status Invalid(absl::string_view what) const { return Invalid(what, at_); }
  absl::Status Invalid(absl::string_view what, size_t byte) const {
    return InvalidField("SCHEMA_INVALID", field_,
                        absl::StrCat(place_, "regular expression, byte ", byte, ": ", what));
  }
  absl::Status Unsupported(absl::string_view what) const { return Unsupported(what, at_); }
  absl::Status Unsupported(absl::string_view what, size_t byte) const {
    return InvalidField("SCHEMA_UNSUPPORTED", field_,
                        absl::StrCat(place_, "regular expression, byte ", byte, ": ", what));
  }

  const absl::string_view regex_;
  const bool in_json_;
  const absl::string_view field_;
  const std::string place_;
  size_t at_ = 0;
  std::string normal_;
  std::vector<size_t> groups_;  // where each open group begins in normal_
  std::optional<size_t> atom_;  // where what a quantifier would repeat begins in normal_
};

}  // namespace

absl::StatusOr<std::string> NormalRegex(absl::string_view regex, RegexUse use,
                                        absl::string_view field, absl::string_view place) {
  return RegexWalk(regex, use, field, place).Run();
}

std::string NormalClass(const CharacterSet& with_surrogates) {
  const CharacterSet others = OtherCharacters(with_surrogates);
  const CharacterSet set = others.Complement();
  BATON_CHECK(!set.empty());
  const CharacterSet::Range first = set.ranges().front(), last = set.ranges().back();
  std::string text;
  if (first.first == last.last) {
    AppendLiteral(first.first, &text);
    return text;
  }
  const bool negated = last.last > kLastAscii;
  std::vector<CharacterSet::Range> ranges;
  for (const CharacterSet::Range& range : (negated ? others : set).ranges()) {
    const bool both = negated && range.first <= kLastAscii && range.last > kLastAscii;
    if (both) ranges.push_back({range.first, kLastAscii});
    ranges.push_back({both ? kLastAscii + 1 : range.first, range.last});
  }
  // XGrammar takes a ^ in first place for a negation, escaped or not.
  const bool caret = ranges[0].first == '^';
  for (CharacterSet::Range range : ranges) {
    if (caret && range.first == '^' && range.first++ == range.last) continue;
    AppendMember(range.first, &text);
    if (range.last == range.first) continue;
    if (range.last > range.first + 1) text.push_back('-');
    AppendMember(range.last, &text);
  }
  return absl::StrCat(negated ? "[^" : "[", text, caret ? "^" : "", "]");
}

const CharacterSet& EscapedInJson() {
  static const auto* const set = new CharacterSet{{0, 0x1f}, {'"', '"'}, {'\\', '\\'}};
  return *set;
}

}  // namespace baton::grammar
