// Oniguruma's syntax to PCRE2's. The two agree on most of what tokenizers use; these differ:
//   \p{L} \d  PCRE2 may know an older Unicode; the newer characters are added. Scripts and the like
//           (\p{Han}), and negations inside of brackets, are left as PCRE2 knows them;
//   \s \S   PCRE2 counts U+180E as white space, Oniguruma (Unicode's White_Space) does not;
//   \w \W \b \B   PCRE2 10.42 has letters, numbers and '_'; Oniguruma has Alphabetic, M, Nd, Pc
//   and,
//           outside of brackets, the numbers of Latin-1;
//   \h      a hexadecimal digit against horizontal space; refused, like all rarer escapes;
//   x{1,2}+ x{,2}   repeated once more against possessive, a count against plain text; refused;
//   [a[b]] [a&&b] [[:alpha:]]   sets of sets, which PCRE2 lacks; refused.
// Checked over all code points against the Oniguruma in Hugging Face `tokenizers` 0.23.
#include <cstddef>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/newer_characters.h"
#include "common/tokenizer/regex.h"

namespace baton::tokenizer {
namespace {

// Contents of a class; used both inside and outside of brackets.
constexpr absl::string_view kSpaceSet = R"(\t-\r\x{85}\p{Z})";
// PCRE2's \S lacks U+180E, as its \s has it.
constexpr absl::string_view kNotSpaceSet = R"(\S\x{180E})";

std::string CategorySet(absl::string_view category) {
  return absl::StrCat("\\p{", category, "}", NewerCharacters(category));
}

// \w inside of brackets. The last ranges are Other_Alphabetic: circled and squared letters.
std::string WordSet() {
  constexpr absl::string_view kOthers = R"(\x{24B6}-\x{24E9}\x{1F130}-\x{1F149}\x{1F150}-\x{1F169})"
                                        R"(\x{1F170}-\x{1F189})";
  return absl::StrCat(CategorySet("L"), CategorySet("M"), CategorySet("Nd"), CategorySet("Nl"),
                      CategorySet("Pc"), kOthers);
}

// \w outside of brackets has the numbers of Latin-1 as well.
std::string BareWordSet() { return absl::StrCat(WordSet(), R"(\xB2\xB3\xB9\xBC-\xBE)"); }

class Translator {
 public:
  explicit Translator(absl::string_view pattern) : rest_(pattern) {}

  absl::StatusOr<std::string> Run() {
    while (!rest_.empty()) {
      const char c = rest_[0];
      if (c == '\\') {
        BATON_RETURN_IF_ERROR(Escape());
      } else if (in_set_) {
        BATON_RETURN_IF_ERROR(InSet(c));
      } else if (c == '[') {
        OpenSet();
      } else if (c == '(') {
        BATON_RETURN_IF_ERROR(OpenGroup());
      } else if (rest_.substr(0, 2) == "{," || rest_.substr(0, 2) == "}+") {
        return Refused(absl::StrCat("'", rest_.substr(0, 2), "'"));
      } else if (c == '#') {
        Copy("\\#", 1);  // a plain character; only an extended pattern has comments
      } else {
        Copy(rest_.substr(0, 1), 1);
      }
    }
    if (in_set_) return Refused("an unclosed '['");
    return std::move(out_);
  }

 private:
  void Copy(absl::string_view text, size_t consumed) {
    out_.append(text.data(), text.size());
    rest_.remove_prefix(consumed);
  }

  absl::Status Refused(absl::string_view what) const {
    return MakeError(absl::StatusCode::kInvalidArgument, "BAD_TOKENIZER",
                     absl::StrCat("a regular expression without ", what, " expected"));
  }

  void OpenSet() {
    in_set_ = true;
    Copy("[", 1);
    if (!rest_.empty() && rest_[0] == '^') Copy("^", 1);
    // A bracket in first place is a plain character.
    if (!rest_.empty() && rest_[0] == ']') Copy("\\]", 1);
  }

  absl::Status InSet(char c) {
    if (c == '[') return Refused("a set inside a set");
    if (rest_.size() >= 2 && rest_.substr(0, 2) == "&&") return Refused("'&&' in a set");
    if (c == ']') in_set_ = false;
    Copy(rest_.substr(0, 1), 1);
    return absl::OkStatus();
  }

  // Lets through plain groups, look-around, atomic groups and the option i, alone.
  absl::Status OpenGroup() {
    for (const absl::string_view known :
         {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?i)"}) {
      if (rest_.substr(0, known.size()) == known) {
        Copy(known, known.size());
        return absl::OkStatus();
      }
    }
    if (rest_.substr(0, 2) == "(?" || rest_.substr(0, 2) == "(*") {
      return Refused(absl::StrCat("'", rest_.substr(0, 4), "'"));
    }
    Copy("(", 1);
    return absl::OkStatus();
  }

  absl::Status Escape() {
    if (rest_.size() < 2) return Refused("a '\\' at its end");
    const char c = rest_[1];
    if (const std::optional<std::string> set = WrittenOut(c)) {
      Copy(*set, 2);
      return absl::OkStatus();
    }
    if (absl::string_view("rntfaeDAz").find(c) != absl::string_view::npos) {
      Copy(rest_.substr(0, 2), 2);
      return absl::OkStatus();
    }
    if (c == 'p' || c == 'P') return Property();
    if (c == 'v') {  // one character in Oniguruma, a set in PCRE2
      Copy("\\x0B", 2);
      return absl::OkStatus();
    }
    if (c == 'x' || c == 'u') return CodePoint(c);
    if (absl::ascii_isalnum(c)) return Refused(absl::StrCat("'\\", rest_.substr(1, 1), "'"));
    const size_t bytes = static_cast<unsigned char>(c) < 0x80 ? 2 : 1;
    // '\' before a character that is not ASCII stands for that character.
    Copy(bytes == 2 ? rest_.substr(0, 2) : absl::string_view(), bytes);
    return absl::OkStatus();
  }

  // A set that is written out because the engines' own differ.
  std::optional<std::string> WrittenOut(char c) const {
    if (c == 's') return Set("", kSpaceSet);
    if (c == 'S') return in_set_ ? std::string(kNotSpaceSet) : Set("^", kSpaceSet);
    if (c == 'w') return Set("", in_set_ ? WordSet() : BareWordSet());
    if (c == 'd') return Set("", CategorySet("Nd"));
    if (in_set_) return std::nullopt;
    if (c == 'D') return Set("^", CategorySet("Nd"));
    if (c == 'W') return Set("^", BareWordSet());
    if (c != 'b' && c != 'B') return std::nullopt;
    const std::string word = Set("", BareWordSet());
    const absl::string_view same = c == 'b' ? "!" : "=";
    const absl::string_view other = c == 'b' ? "=" : "!";
    return absl::StrCat("(?:(?<=", word, ")(?", same, word, ")|(?<!", word, ")(?", other, word,
                        "))");
  }

  // `members` as a class, or as part of the class that is open.
  std::string Set(absl::string_view negation, absl::string_view members) const {
    return in_set_ ? std::string(members) : absl::StrCat("[", negation, members, "]");
  }

  absl::Status Property() {
    const size_t end = rest_.find('}');
    if (rest_.size() < 3 || rest_[2] != '{' || end == absl::string_view::npos) {
      return Refused("'\\p' that has no {name}");
    }
    const absl::string_view name = rest_.substr(3, end - 3);
    if (absl::StartsWith(name, "^")) return Refused("'\\p{^'");
    const bool negated = rest_[1] == 'P';
    const std::string newer = NewerCharacters(name);
    if (newer.empty() || (negated && in_set_)) {
      Copy(rest_.substr(0, end + 1), end + 1);
    } else {
      Copy(Set(negated ? "^" : "", absl::StrCat("\\p{", name, "}", newer)), end + 1);
    }
    return absl::OkStatus();
  }

  // \xHH, \x{H..} and \uHHHH.
  absl::Status CodePoint(char kind) {
    absl::string_view digits;
    size_t consumed;
    if (kind == 'x' && rest_.size() > 2 && rest_[2] == '{') {
      const size_t end = rest_.find('}');
      if (end == absl::string_view::npos) return Refused("an unclosed '\\x{'");
      digits = rest_.substr(3, end - 3);
      consumed = end + 1;
    } else {
      digits = rest_.substr(2, kind == 'x' ? 2 : 4);
      consumed = 2 + digits.size();
      if (digits.size() != (kind == 'x' ? 2u : 4u)) return Refused("a cut off code point");
    }
    for (const char digit : digits) {
      if (!absl::ascii_isxdigit(digit)) return Refused("a code point that is not hexadecimal");
    }
    Copy(absl::StrCat("\\x{", digits, "}"), consumed);
    return absl::OkStatus();
  }

  absl::string_view rest_;
  std::string out_;
  bool in_set_ = false;
};

}  // namespace

absl::StatusOr<std::string> TranslateOniguruma(absl::string_view pattern) {
  return Translator(pattern).Run();
}

}  // namespace baton::tokenizer
