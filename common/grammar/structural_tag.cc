#include "common/grammar/structural_tag.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace baton::grammar {

std::string JsonString(absl::string_view text) {
  std::string json = "\"";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20) {
      absl::StrAppendFormat(&json, "\\u%04x", static_cast<unsigned char>(c));
    } else {
      if (c == '"' || c == '\\') json.push_back('\\');
      json.push_back(c);
    }
  }
  json.push_back('"');
  return json;
}

std::string JsonStrings(absl::Span<const std::string> texts) {
  return absl::StrCat("[",
                      absl::StrJoin(texts, ",",
                                    [](std::string* out, const std::string& text) {
                                      absl::StrAppend(out, JsonString(text));
                                    }),
                      "]");
}

std::string AnyText(absl::Span<const std::string> excluded) {
  return absl::StrCat(R"({"type":"any_text","excludes":)", JsonStrings(excluded), "}");
}

std::string Constant(absl::string_view text) {
  return absl::StrCat(R"({"type":"const_string","value":)", JsonString(text), "}");
}

std::string Sequence(absl::Span<const std::string> formats) {
  return absl::StrCat(R"({"type":"sequence","elements":[)", absl::StrJoin(formats, ","), "]}");
}

std::string AnyOf(absl::Span<const std::string> formats) {
  return absl::StrCat(R"({"type":"or","elements":[)", absl::StrJoin(formats, ","), "]}");
}

std::string Optional(absl::string_view format) {
  return absl::StrCat(R"({"type":"optional","content":)", format, "}");
}

std::string Star(absl::string_view format) {
  return absl::StrCat(R"({"type":"star","content":)", format, "}");
}

std::string Tag(absl::string_view begin, absl::string_view content, absl::string_view end) {
  return absl::StrCat(R"({"type":"tag","begin":)", JsonString(begin), R"(,"content":)", content,
                      R"(,"end":)", JsonString(end), "}");
}

std::string JsonOfSchema(absl::string_view schema, std::optional<int> max_whitespace) {
  const std::string bound =
      max_whitespace ? absl::StrCat(R"("max_whitespace_cnt":)", *max_whitespace, ",") : "";
  return absl::StrCat(R"({"type":"json_schema",)", bound, R"("json_schema":)", schema, "}");
}

std::string Nothing() { return GrammarOf("\"\""); }

std::string GrammarOf(absl::string_view root, absl::string_view rules) {
  return absl::StrCat(R"({"type":"grammar","grammar":)",
                      JsonString(absl::StrCat("root ::= ", root, "\n", rules)), "}");
}

std::string EbnfString(absl::string_view text) {
  std::string ebnf = "\"";
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      absl::StrAppendFormat(&ebnf, "\\u%04x", c);
    } else {
      if (c == '"' || c == '\\') ebnf.push_back('\\');
      ebnf.push_back(c);
    }
  }
  ebnf.push_back('"');
  return ebnf;
}

std::string EbnfClass(absl::string_view characters, bool negated) {
  std::string text = negated ? "[^" : "[";
  for (const char c : characters) absl::StrAppendFormat(&text, "\\x%02x", c);
  return text + "]";
}

std::string EbnfRegex(absl::string_view pattern) {
  return pattern.empty() ? "\"\"" : absl::StrCat("Regex(", EbnfString(pattern), ")");
}

}  // namespace baton::grammar
