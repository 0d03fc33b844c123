#include "common/chat/lexer.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/base/utf8.h"
#include "common/chat/chat_template.h"
#include "common/chat/text.h"
#include "common/json/json.h"

namespace baton::chat {
namespace {

// Every line break as \n, and without the last one.
std::string NormalizeNewlines(absl::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      text.push_back(source[i]);
      continue;
    }
    text.push_back('\n');
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (absl::EndsWith(text, "\n")) text.pop_back();
  return text;
}

bool IsNameByte(char c) { return absl::ascii_isalnum(c) || c == '_' || !absl::ascii_isascii(c); }

// The bytes of white space that `text` starts with.
size_t LeadingSpace(absl::string_view text) { return text.size() - StripLeft(text).size(); }

class Lexer {
 public:
  Lexer(absl::string_view source, absl::string_view name)
      : name_(name), source_(NormalizeNewlines(source)), rest_(source_) {}

  absl::StatusOr<std::vector<Token>> Run() {
    while (!rest_.empty()) BATON_RETURN_IF_ERROR(LexTextAndTag());
    Add(Token::Kind::kEnd, "");
    return std::move(tokens_);
  }

 private:
  absl::Status Error(absl::string_view message) const { return SyntaxError(name_, line_, message); }
  void Add(Token::Kind kind, absl::string_view text) {
    tokens_.push_back({.kind = kind, .line = line_, .text = std::string(text)});
  }
  void Skip(size_t bytes) {
    line_ += static_cast<int>(std::count(rest_.begin(), rest_.begin() + bytes, '\n'));
    if (bytes > 0) after_newline_ = rest_[bytes - 1] == '\n';
    rest_.remove_prefix(bytes);
  }

  // Text up to a tag, without the white space that the tag's mark or lstrip_blocks takes away.
  void AddText(absl::string_view text, char mark, bool is_variable) {
    absl::string_view kept = text;
    if (mark == '-') {
      kept = StripRight(text);
    } else if (mark != '+' && !is_variable) {
      const size_t newline = text.rfind('\n');
      const size_t line_start = newline == absl::string_view::npos ? 0 : newline + 1;
      const bool starts_line = line_start > 0 || after_newline_;
      if (starts_line && StripLeft(text.substr(line_start)).empty()) {
        kept = text.substr(0, line_start);
      }
    }
    if (!kept.empty()) Add(Token::Kind::kText, kept);
  }

  // Drops what follows the end of a tag: all white space after -, else one newline if `trim`.
  void SkipAfterTag(bool minus, bool trim) {
    if (minus) {
      Skip(LeadingSpace(rest_));
    } else if (trim && absl::StartsWith(rest_, "\n")) {
      Skip(1);
    }
  }

  static char MarkAt(absl::string_view text, size_t position) {
    if (position >= text.size()) return 0;
    return text[position] == '-' || text[position] == '+' ? text[position] : 0;
  }

  absl::Status LexTextAndTag() {
    size_t brace = 0;
    while (true) {
      brace = rest_.find('{', brace);
      if (brace == absl::string_view::npos || brace + 1 >= rest_.size()) {
        Add(Token::Kind::kText, rest_);
        Skip(rest_.size());
        return absl::OkStatus();
      }
      const char second = rest_[brace + 1];
      if (second == '%' || second == '{' || second == '#') break;
      ++brace;
    }
    const char second = rest_[brace + 1];
    const char mark = MarkAt(rest_, brace + 2);
    AddText(rest_.substr(0, brace), mark, second == '{');
    Skip(brace);
    const size_t opening = mark == 0 ? 2 : 3;
    if (second == '#') return LexComment(opening);
    if (second == '%') {
      if (const size_t raw = RawBeginBytes(opening); raw > 0) return LexRaw(raw);
    }
    Add(second == '{' ? Token::Kind::kVariableBegin : Token::Kind::kBlockBegin, "");
    Skip(opening);
    return LexTag(/*is_variable=*/second == '{');
  }

  absl::Status LexComment(size_t opening) {
    const size_t end = rest_.find("#}", opening);
    if (end == absl::string_view::npos) return Error("Missing end of comment tag");
    const char mark = end > opening ? MarkAt(rest_, end - 1) : 0;
    Skip(end + 2);
    SkipAfterTag(mark == '-', /*trim=*/mark == 0);
    return absl::OkStatus();
  }

  // The bytes of "{% raw %}" if the rest starts with it; 0 otherwise.
  size_t RawBeginBytes(size_t opening) const {
    absl::string_view text = StripLeft(rest_.substr(opening));
    if (!absl::ConsumePrefix(&text, "raw")) return 0;
    text = StripLeft(text);
    if (absl::ConsumePrefix(&text, "-%}")) return rest_.size() - StripLeft(text).size();
    return absl::ConsumePrefix(&text, "%}") ? rest_.size() - text.size() : 0;
  }

  absl::Status LexRaw(size_t begin_bytes) {
    const int begin_line = line_;
    Skip(begin_bytes);
    for (size_t tag = rest_.find("{%"); tag != absl::string_view::npos;
         tag = rest_.find("{%", tag + 1)) {
      const char mark = MarkAt(rest_, tag + 2);
      absl::string_view text = StripLeft(rest_.substr(tag + (mark == 0 ? 2 : 3)));
      if (!absl::ConsumePrefix(&text, "endraw")) continue;
      text = StripLeft(text);
      const char end_mark = MarkAt(text, 0);
      if (end_mark != 0) text.remove_prefix(1);
      if (!absl::ConsumePrefix(&text, "%}")) continue;
      AddText(rest_.substr(0, tag), mark, /*is_variable=*/false);
      Skip(rest_.size() - text.size());
      SkipAfterTag(end_mark == '-', /*trim=*/end_mark == 0);
      return absl::OkStatus();
    }
    return SyntaxError(name_, begin_line, "Missing end of raw directive");
  }

  // The tokens up to the end of the tag, which counts only outside of brackets.
  absl::Status LexTag(bool is_variable) {
    const absl::string_view end = is_variable ? "}}" : "%}";
    std::string brackets;
    const int begin_line = line_;
    while (true) {
      Skip(LeadingSpace(rest_));
      if (rest_.empty()) {
        return SyntaxError(name_, begin_line,
                           absl::StrCat("the tag that starts here has no \"", end, "\""));
      }
      if (brackets.empty()) {
        const char mark = MarkAt(rest_, 0);
        const bool may_mark = mark == '-' || (mark == '+' && !is_variable);
        if (absl::StartsWith(rest_.substr(may_mark ? 1 : 0), end)) {
          Add(is_variable ? Token::Kind::kVariableEnd : Token::Kind::kBlockEnd, "");
          Skip(may_mark ? 3 : 2);
          SkipAfterTag(mark == '-', /*trim=*/!is_variable && mark == 0);
          return absl::OkStatus();
        }
      }
      BATON_RETURN_IF_ERROR(LexToken(&brackets));
    }
  }

  absl::Status LexToken(std::string* brackets) {
    const char c = rest_[0];
    if (absl::ascii_isdigit(c)) return LexNumber();
    if (IsNameByte(c)) {
      size_t size = 1;
      while (size < rest_.size() && IsNameByte(rest_[size])) ++size;
      // A character of white space beyond ASCII ends a name.
      absl::string_view name = rest_.substr(0, size);
      for (size_t i = 0; i < name.size();) {
        size_t next = i;
        if (IsSpace(NextCodePoint(name, &next))) name = name.substr(0, i);
        i = next;
      }
      Add(Token::Kind::kName, name);
      Skip(name.size());
      return absl::OkStatus();
    }
    if (c == '\'' || c == '"') return LexString();
    return LexOperator(brackets);
  }

  absl::Status LexOperator(std::string* brackets) {
    static constexpr absl::string_view kOperators[] = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ",", ";"};
    for (const absl::string_view op : kOperators) {
      if (!absl::StartsWith(rest_, op)) continue;
      const char c = op[0];
      if (c == '(' || c == '[' || c == '{')
        brackets->push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
      if (c == ')' || c == ']' || c == '}') {
        if (brackets->empty()) return Error(absl::StrCat("unexpected '", op, "'"));
        if (brackets->back() != c) {
          return Error(absl::StrCat("unexpected '", op, "', expected '",
                                    absl::string_view(&brackets->back(), 1), "'"));
        }
        brackets->pop_back();
      }
      Add(Token::Kind::kOperator, op);
      Skip(op.size());
      return absl::OkStatus();
    }
    return Error(absl::StrCat("unexpected character ", json::Quoted(rest_.substr(0, 1))));
  }

  // The digits of `base` from `start`, underscores between them included.
  size_t DigitsEnd(size_t start, int base) const {
    const auto is_digit = [&](size_t at) {
      if (at >= rest_.size()) return false;
      const char c = absl::ascii_tolower(rest_[at]);
      return base == 16 ? absl::ascii_isxdigit(c) : c >= '0' && c < '0' + base;
    };
    size_t end = start;
    while (is_digit(end) || (end < rest_.size() && rest_[end] == '_' && is_digit(end + 1))) ++end;
    return end;
  }

  absl::Status LexNumber() {
    int base = 10;
    if (rest_[0] == '0' && rest_.size() > 1) {
      const char letter = absl::ascii_tolower(rest_[1]);
      base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
      if (base != 10 && DigitsEnd(2, base) == 2) base = 10;
    }
    size_t end = DigitsEnd(base == 10 ? 0 : 2, base);
    bool is_float = false;
    if (base == 10) {
      if (end + 1 < rest_.size() && rest_[end] == '.' && absl::ascii_isdigit(rest_[end + 1]) &&
          !AfterDot()) {
        end = DigitsEnd(end + 1, 10);
        is_float = true;
      }
      if (end < rest_.size() && absl::ascii_tolower(rest_[end]) == 'e') {
        const size_t sign = end + 1 < rest_.size() && MarkAt(rest_, end + 1) != 0 ? 1 : 0;
        const size_t exponent_end = DigitsEnd(end + 1 + sign, 10);
        if (exponent_end > end + 1 + sign) {
          end = exponent_end;
          is_float = true;
        }
      }
    }
    std::string digits(rest_.substr(base == 10 ? 0 : 2, end - (base == 10 ? 0 : 2)));
    digits.erase(std::remove(digits.begin(), digits.end(), '_'), digits.end());
    Add(is_float ? Token::Kind::kFloat : Token::Kind::kInteger, digits);
    Token& token = tokens_.back();
    const char* const last = digits.data() + digits.size();
    if (is_float) {
      if (!absl::SimpleAtod(digits, &token.real)) return Error("a number is malformed");
    } else if (base == 10 && digits.size() > 1 && digits[0] == '0' &&
               digits.find_first_not_of('0') != std::string::npos) {
      return Error("a decimal number starts with 0");
    } else if (std::from_chars(digits.data(), last, token.integer, base).ptr != last ||
               std::from_chars(digits.data(), last, token.integer, base).ec != std::errc()) {
      return Error(absl::StrCat("the number ", json::Printable(digits), " exceeds 64 bits"));
    }
    Skip(end);
    return absl::OkStatus();
  }

  // In "a.0.1" the numbers are two indices.
  bool AfterDot() const {
    return tokens_.back().kind == Token::Kind::kOperator && tokens_.back().text == ".";
  }

  absl::Status LexString() {
    const char quote = rest_[0];
    size_t end = 1;
    while (end < rest_.size() && rest_[end] != quote) end += rest_[end] == '\\' ? 2 : 1;
    if (end >= rest_.size()) return Error("a string has no end");
    const absl::StatusOr<std::string> text = UnescapePython(rest_.substr(1, end - 1));
    if (!text.ok()) return Error(text.status().message());
    Add(Token::Kind::kString, *text);
    Skip(end + 1);
    return absl::OkStatus();
  }

  const absl::string_view name_;
  const std::string source_;
  absl::string_view rest_;
  int line_ = 1;
  bool after_newline_ = true;  // the byte before the rest is a newline, or there is none
  std::vector<Token> tokens_;
};

}  // namespace

absl::Status SyntaxError(absl::string_view name, int line, absl::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, "BAD_CHAT_TEMPLATE",
                   absl::StrCat(name, ":", line, ": ", message));
}

absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source, absl::string_view name) {
  if (source.size() > kMaxSourceBytes) {
    return SyntaxError(
        name, 1,
        absl::StrCat("found ", source.size(), " bytes, expected at most ", kMaxSourceBytes));
  }
  if (!IsUtf8(source)) return SyntaxError(name, 1, "the template is not UTF-8");
  return Lexer(source, name).Run();
}

}  // namespace baton::chat
