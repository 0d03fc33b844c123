#include "common/chat/traced_text.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/chat/chat_template.h"
#include "common/json/json.h"
#include "gtest/gtest.h"

namespace baton::chat {
namespace {

// The text with «» around what comes from the request.
std::string Shown(const TracedText& traced) {
  std::string shown;
  size_t done = 0;
  for (const ByteRange& range : traced.from_request) {
    absl::StrAppend(&shown, traced.text.substr(done, range.begin - done), "«",
                    traced.text.substr(range.begin, range.end - range.begin), "»");
    done = range.end;
  }
  return shown + traced.text.substr(done);
}

std::string RenderedTrace(const std::string& source) {
  static const json::Value& request = *new json::Value(json::Parse(R"({
    "c": " aB<c> ", "hidden": "r", "list": ["x", "y"], "n": 7, "fill": "*", "form": "%s|",
    "obj": {"key": "v<", "role": "user", "other": {"role": "endoftext"}},
    "pair": [{"role": "user", "user": "role"}, {"user": "user", "role": "user"}]})",
                                                                   "request")
                                                           .value());
  static const json::Value& model =
      *new json::Value(json::Parse(R"({"hidden": "m", "bos": "<s>"})", "model").value());
  const auto parsed = ChatTemplate::Parse(source, "t");
  if (!parsed.ok()) return parsed.status().ToString();
  const auto text = parsed->Render(request, model, absl::UnixEpoch());
  return text.ok() ? Shown(*text) : text.status().ToString();
}

TEST(TracedTextTest, AppendsWithTheOriginOfEachByte) {
  TracedText text("<a>");
  text.Append("bc", Origin::kRequest);
  text.Append("d", Origin::kRequest);
  text.Append("");
  text.Append("<e>");
  EXPECT_EQ(Shown(text), "<a>«bcd»<e>");
  TracedText twice = PartOf(text, absl::string_view(text.text).substr(2, 3));
  twice.Append(text);
  EXPECT_EQ(Shown(twice), ">«bc»<a>«bcd»<e>");
  EXPECT_EQ(Shown(PartOf(text, "")), "");
  EXPECT_EQ(text.origin(), Origin::kRequest);
  EXPECT_EQ(PartOf(text, absl::string_view(text.text).substr(6)).origin(), Origin::kTemplate);
}

TEST(TracedTextTest, VariablesOfTheRequestAndOfTheModel) {
  EXPECT_EQ(RenderedTrace("{{ bos }}{{ c }}{{ hidden }}{{ n }}"), "<s>« aB<c> r»7");
  EXPECT_EQ(RenderedTrace("{{ obj }}"),
            "{«'key'»: «'v<'», «'role'»: 'user', «'other'»: {«'role'»: «'endoftext'»}}");
  // The same word is a role, which is the template's, and a key and a text of the request.
  EXPECT_EQ(RenderedTrace("{{ pair }}"),
            "[{«'role'»: 'user', «'user'»: «'role'»}, {«'user'»: «'user'», «'role'»: 'user'}]");
  EXPECT_EQ(RenderedTrace("<|{{ obj.role }}|><|{{ obj.other.role }}|>"), "<|user|><|«endoftext»|>");
}

// Each expression, and what it makes of text of both origins.
TEST(TracedTextTest, WhatExpressionsMake) {
  const struct {
    const char* expression;
    const char* expected;
  } kCases[] = {
      {"'<' + c + '>'", "<« aB<c> »>"},
      {"'<' ~ c ~ n ~ '>'", "<« aB<c> »7>"},
      {"(bos ~ c) * 2", "<s>« aB<c> »<s>« aB<c> »"},
      {"c | trim", "«aB<c>»"},
      {"('(' ~ c).strip('( ')", "«aB<c>»"},
      {"(c ~ bos).rstrip('>')", "« aB<c> »<s"},
      {"c | upper", "« AB<C> »"},
      {"(bos ~ c) | upper", "<S>« AB<C> »"},
      {"(bos ~ c ~ '\u03a3') | lower", "<s>« ab<c> »\u03c3"},
      {"(list[0] ~ '\u03a3') | lower", "«x\u03c2»"},
      {"(bos ~ list[0]) | capitalize", "«<s>x»"},
      {"(bos ~ c) | e", "&lt;s&gt;« aB&lt;c&gt; »"},
      {"(c ~ bos) + ('<' | safe)", "« aB&lt;c&gt; »&lt;s&gt;<"},
      {"bos | upper", "<S>"},
      {"c.title()", "« Ab<C> »"},
      {"c | capitalize", "« ab<c> »"},
      {"c | e", "« aB&lt;c&gt; »"},
      {"c | safe", "« aB<c> »"},
      {"(c | safe) + '<'", "« aB<c> »&lt;"},
      {"('<' | safe) + c", "<« aB&lt;c&gt; »"},
      {"c[1]", "«a»"},
      {"(bos ~ c)[2:5]", ">« a»"},
      {"(bos ~ c)[::-1]", "« >c<Ba »>s<"},
      {"(bos ~ c) | reverse", "« >c<Ba »>s<"},
      {"(bos ~ c) | list | join('-')", "<-s->-« »-«a»-«B»-«<»-«c»-«>»-« »"},
      {"(bos ~ c).split('<')", "['', «'s> aB'», «'c> '»]"},
      {"c.split('B') | join('|')", "« a»|«<c> »"},
      {"(bos ~ c).partition('a') | join('|')", "<s>« »|«a»|«B<c> »"},
      {"(bos ~ '\n' ~ c).splitlines() | join('|')", "<s>|« aB<c> »"},
      {"c.replace('B', '<s>')", "« a»<s>«<c> »"},
      {"c | replace('B', hidden)", "« ar<c> »"},
      {"'a-b'.replace('-', c)", "a« aB<c> »b"},
      {"c.removeprefix(' ')", "«aB<c> »"},
      {"(c | trim).removesuffix('>')", "«aB<c»"},
      {"list | join(bos)", "«x»<s>«y»"},
      {"[bos, bos] | join(list[0])", "<s>«x»<s>"},
      {"list | first ~ list | last", "«xy»"},
      {"list | sort(reverse=true) | join", "«yx»"},
      {"list | map('upper') | join", "«XY»"},
      {"list | map('replace', 'x', '<s>') | list", "['<s>', «'y'»]"},
      {"obj | tojson",
       "{\"«key»\": \"«v<»\", \"«role»\": \"user\", \"«other»\": {\"«role»\": "
       "\"«endoftext»\"}}"},
      {"{'k': bos ~ c} | tojson", "{\"k\": \"<s>« aB<c> »\"}"},
      {"[1] | tojson(indent=fill)", "«[\n*1\n]»"},
      {"[1, 2] | tojson(separators=(fill, ':'))", "«[1*2]»"},
      {"'%s|%r' % (c, c)", "« aB<c> »|«' aB<c> '»"},
      {"'%10s' % (list[0])", "         «x»"},
      {"form % bos", "«<s>|»"},
      {"'{}{x}'.format(bos, x=c)", "<s>« aB<c> »"},
      {"'{:>3}{!r}'.format(list[0], c)", "  «x' aB<c> '»"},
      {"'x'.ljust(3, fill)", "x«**»"},
      {"list[0].center(3)", " «x» "},
      {"list[0] | indent(2, true)", "  «x»"},
      {"('a\n' ~ list[0]) | indent(fill)", "a\n«*x»"},
      {"(form | string) ~ (c is string)", "«%s|»True"},
      {"strftime_now(fill ~ '%Y')", "«*1970»"},
      {"dict(**obj) | list | join", "«keyroleother»"},
      {"dict(a=1) | list | join", "«a»"},
      {"cycler(c, bos).next()", "« aB<c> »"},
      {"obj.items() | map('first') | join", "«keyroleother»"},
      {"obj | dictsort | map('last') | first", "«v<»"},
      {"missing ~ c | length", "7"},
  };
  for (const auto& [expression, expected] : kCases) {
    EXPECT_EQ(RenderedTrace(absl::StrCat("{{ ", expression, " }}")), expected) << expression;
  }
}

TEST(TracedTextTest, WhatStatementsMake) {
  EXPECT_EQ(RenderedTrace("{% set x %}<{{ c }}>{% endset %}{{ x }}{{ x[1:] | length }}"),
            "<« aB<c> »>8");
  EXPECT_EQ(RenderedTrace("{% macro m(a) %}<{{ a }}>{% endmacro %}{{ m(c) }}"), "<« aB<c> »>");
  EXPECT_EQ(RenderedTrace("{% macro m() %}{{ kwargs }}{% endmacro %}{{ m(**{c: 1}) }}"),
            "{«' aB<c> '»: 1}");
  EXPECT_EQ(RenderedTrace("{% filter trim %} <{{ c }}{% endfilter %}|"), "<« aB<c>»|");
  EXPECT_EQ(RenderedTrace("{% for x in list %}<{{ x }}>{% endfor %}"), "<«x»><«y»>");
  EXPECT_EQ(RenderedTrace("{% macro m() %}{{ caller(c) }}{% endmacro %}"
                          "{% call(x) m() %}<{{ x }}>{% endcall %}"),
            "<« aB<c> »>");
  EXPECT_EQ(RenderedTrace("{% set ns = namespace(x=c) %}{% set ns.x = ns.x ~ bos %}{{ ns.x }}"),
            "« aB<c> »<s>");
}

}  // namespace
}  // namespace baton::chat
