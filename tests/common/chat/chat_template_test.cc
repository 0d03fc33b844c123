#include "common/chat/chat_template.h"

#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/seed.h"

namespace baton::chat {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kVariables[] = R"({
  "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"}],
  "n": 3, "s": "text", "l": [1, 2, 3], "d": {"a": 1}, "none": null,
  "huge": 123456789012345678901234567890})";

json::Value Variables() { return json::Parse(kVariables, "variables").value(); }

absl::StatusOr<std::string> RenderSource(absl::string_view source,
                                         const RenderLimits& limits = {}) {
  const auto parsed = ChatTemplate::Parse(source, "t.jinja");
  if (!parsed.ok()) return parsed.status();
  BATON_ASSIGN_OR_RETURN(const TracedText traced,
                         parsed->Render(Variables(), json::Value(), absl::UnixEpoch(), limits));
  return traced.text;
}

std::string Text(absl::string_view source) {
  const auto text = RenderSource(source);
  return text.ok() ? *text : text.status().ToString();
}

// The message of the error, which has this code and reason.
std::string Refusal(absl::string_view source, absl::string_view reason,
                    absl::StatusCode code = absl::StatusCode::kInvalidArgument,
                    const RenderLimits& limits = {}) {
  const auto text = RenderSource(source, limits);
  EXPECT_FALSE(text.ok()) << source << ": " << text->substr(0, 200);
  EXPECT_EQ(text.status().code(), code) << source << ": " << text.status();
  EXPECT_EQ(ErrorReason(text.status()), reason) << source << ": " << text.status();
  return std::string(text.status().message());
}

TEST(ChatTemplateTest, RendersAConversation) {
  EXPECT_EQ(Text("{% for message in messages %}\n"
                 "<|{{ message.role }}|>{{ message['content'] | trim }}\n"
                 "{% endfor %}\n"
                 "{%- if n > 2 %}<|assistant|>{% endif %}\n"),
            "<|user|>Hi\n<|assistant|>Yes?\n<|assistant|>");
}

TEST(ChatTemplateTest, SetsTheTimeFromItsParameterInUtc) {
  EXPECT_EQ(Text("{{ strftime_now('%d %b %Y %H:%M') }}"), "01 Jan 1970 00:00");
}

TEST(ChatTemplateTest, SyntaxErrorsNameTemplateAndLine) {
  const auto error = [](absl::string_view source) { return Refusal(source, "BAD_CHAT_TEMPLATE"); };
  EXPECT_EQ(error("a\n{% if n %}\nb"),
            "t.jinja:3: found the end of the template, expected {% elif %} or {% else %} or "
            "{% endif %}");
  EXPECT_EQ(error("\r\n\r\n{{ n | shout }}"), "t.jinja:3: No filter named \"shout\".");
  EXPECT_EQ(error("{{ n is odder }}"), "t.jinja:1: No test named \"odder\".");
  EXPECT_EQ(error("{#\n#}{% do x %}"), "t.jinja:2: the tag \"do\" is unknown");
  EXPECT_EQ(error("{{ (1\n"), "t.jinja:1: the tag that starts here has no \"}}\"");
  EXPECT_EQ(error("{{\n\n1 2 }}"), "t.jinja:3: found \"2\", expected the end of the tag");
  EXPECT_EQ(error("{{ 'a\nb }}"), "t.jinja:1: a string has no end");
  EXPECT_EQ(error("{{ ] }}"), "t.jinja:1: unexpected ']'");
  EXPECT_EQ(error("{{ 99999999999999999999 }}"),
            "t.jinja:1: the number 99999999999999999999 exceeds 64 bits");
  EXPECT_EQ(error("x {# y"), "t.jinja:1: Missing end of comment tag");
  EXPECT_THAT(error("{{ '\xff' }}"), HasSubstr("not UTF-8"));
  EXPECT_THAT(error("{% include 'file' %}"), HasSubstr("the tag \"include\" is unknown"));
  EXPECT_THAT(error(std::string(kMaxSourceBytes + 1, 'x')), HasSubstr("expected at most"));
}

TEST(ChatTemplateTest, DeepSyntaxIsAnErrorAndNoCrash) {
  const auto nested = [](const char* open, const char* middle, const char* close, int times) {
    std::string source;
    for (int i = 0; i < times; ++i) source += open;
    source += middle;
    for (int i = 0; i < times; ++i) source += close;
    return source;
  };
  for (const std::string& source :
       {absl::StrCat("{{ ", nested("(", "1", ")", 50'000), " }}"),
        absl::StrCat("{{ ", nested("[", "1", "]", 50'000), " }}"),
        absl::StrCat("{{ ", nested("{1:", "1", "}", 50'000), " }}"),
        absl::StrCat("{{ ", nested("not ", "1", "", 50'000), " }}"),
        absl::StrCat("{{ ", nested("-", "1", "", 50'000), " }}"),
        absl::StrCat("{{ 1", nested("+1", "", "", 50'000), " }}"),
        absl::StrCat("{{ n", nested(".a", "", "", 50'000), " }}"),
        absl::StrCat("{{ n", nested("|string", "", "", 50'000), " }}"),
        absl::StrCat("{{ n", nested("()", "", "", 50'000), " }}"),
        absl::StrCat("{{ ", nested("1 if ", "1", " else 1", 50'000), " }}"),
        absl::StrCat("{{ ", nested("1 if 1 else ", "1", "", 50'000), " }}"),
        nested("{% if 1 %}", "1", "{% endif %}", 30'000),
        nested("{% for i in l %}", "1", "{% endfor %}", 30'000)}) {
    EXPECT_THAT(Refusal(source, "BAD_CHAT_TEMPLATE"), HasSubstr("deeper than"));
  }
  // Chains that are flat in the tree have no such limit.
  EXPECT_EQ(Text(absl::StrCat("{{ ''", nested(" ~ 'a'", "", "", 1'000), " }}")),
            std::string(1'000, 'a'));
  EXPECT_EQ(Text(absl::StrCat("{% if 0 %}", nested("{% elif 0 %}", "", "", 1'000), "{% endif %}")),
            "");
}

TEST(ChatTemplateTest, RefusalsCarryTheMessageAlone) {
  EXPECT_EQ(
      Refusal("{{ raise_exception('Roles must alternate, found ' ~ n) }}", "CHAT_TEMPLATE_REFUSED"),
      "Roles must alternate, found 3");
}

TEST(ChatTemplateTest, FailuresNameTemplateAndLine) {
  const auto error = [](absl::string_view source) {
    return Refusal(source, "CHAT_TEMPLATE_FAILED");
  };
  EXPECT_EQ(error("\n{{ missing.content }}"), "t.jinja:2: 'missing' is undefined");
  EXPECT_EQ(error("{{ d.b.c }}"), "t.jinja:1: 'dict object' has no attribute 'b'");
  EXPECT_EQ(error("{{ s +\n1 }}"), "t.jinja:1: unsupported operand types for +: 'str' and 'int'");
  EXPECT_EQ(error("{% macro m() %}\n{{ 1 // 0 }}{% endmacro %}\n\n{{ m() }}"),
            "t.jinja:2: division by zero");
  EXPECT_EQ(error("{{ messages.append(1) }}"),
            "t.jinja:1: the method 'append' changes a list, which a template may not do");
  EXPECT_THAT(error("{% if true %}{{ n | shout }}{% endif %}"), HasSubstr("No filter named"));
}

TEST(ChatTemplateTest, IntegersHave64Bits) {
  EXPECT_EQ(Text("{{ 9223372036854775807 }} {{ -9223372036854775807 - 1 }}"),
            "9223372036854775807 -9223372036854775808");
  for (const char* source :
       {"{{ 9223372036854775807 + 1 }}", "{{ 4611686018427387904 * 2 }}", "{{ 2 ** 63 }}",
        "{{ -(-9223372036854775807 - 1) }}", "{{ (-9223372036854775807 - 1) // -1 }}",
        "{{ -9223372036854775807 - 2 }}", "{{ 1e30 | int }}",
        "{{ (-9223372036854775807 - 1) | abs }}"}) {
    EXPECT_THAT(Refusal(source, "CHAT_TEMPLATE_FAILED"), HasSubstr("64 bits")) << source;
  }
  EXPECT_EQ(Text("{{ (-9223372036854775807 - 1) % -1 }}"), "0");
}

// A variable that Python's int holds is printed as there, and is a float to what computes with it.
TEST(ChatTemplateTest, LargerOnesInVariablesKeepTheirDigits) {
  EXPECT_EQ(Text("{{ huge }} {{ [huge] | tojson }} {{ [-1, huge] }} {{ huge ~ '' }}"),
            "123456789012345678901234567890 [123456789012345678901234567890] "
            "[-1, 123456789012345678901234567890] 123456789012345678901234567890");
  EXPECT_EQ(Text("{{ huge > 1 }} {{ huge == huge + 1 }} {{ -huge }} {{ '%.2e' | format(huge) }}"),
            "True True -1.2345678901234568e+29 1.23e+29");
}

TEST(ChatTemplateTest, DictsOfAnySizeFindTheirKeys) {
  for (int size = 1; size <= 20; ++size) {
    std::string source = "{% set d = {";
    const auto key = [](int i) {
      return i % 3 == 2 ? absl::StrCat(i) : absl::StrCat("'k", i, "'");
    };
    for (int i = 0; i < size; ++i) absl::StrAppend(&source, key(i), ": ", i, ", ");
    absl::StrAppend(&source, "'k0': 'again'} %}{{ d | length }}");
    std::string expected = absl::StrCat(size);
    for (int i = 0; i < size; ++i) {
      absl::StrAppend(&source, " {{ d[", key(i), "] }}");
      absl::StrAppend(&expected, " ", i == 0 ? "again" : absl::StrCat(i));
    }
    EXPECT_EQ(Text(source + " {{ d.k20 is defined }}"), expected + " False");
    EXPECT_EQ(Text(source + " {{ (d | list)[0] }}"), expected + " k0")
        << "the first keeps its place";
  }
}

TEST(ChatTemplateTest, AMacroKeepsTheVariablesAroundIt) {
  EXPECT_EQ(Text("{% set ns = namespace(m=none) %}"
                 "{% for x in l %}{% macro m() %}{{ x }}{% endmacro %}"
                 "{% if x == 2 %}{% set ns.m = m %}{% endif %}{% endfor %}{{ ns.m() }}"),
            "2");
}

class LimitTest : public ::testing::TestWithParam<const char*> {};

TEST_P(LimitTest, StopsTheRendering) {
  const RenderLimits limits = {
      .max_steps = 1'000'000, .max_output_bytes = 2'000'000, .max_value_bytes = 8'000'000};
  EXPECT_THAT(
      Refusal(GetParam(), "CHAT_TEMPLATE_LIMIT", absl::StatusCode::kResourceExhausted, limits),
      StartsWith("t.jinja"));
}

INSTANTIATE_TEST_SUITE_P(
    Steps, LimitTest,
    ::testing::Values(
        "{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
        "{% set x = range(100000) | list %}{% for i in x %}{{ 'z' in x }}{% endfor %}",
        "{% set s = 'ab' * 1000000 %}{% for i in range(100000) %}{% if 'ba' * 3 ~ 'c' in s %}"
        "{% endif %}{% endfor %}",
        "{% set x = range(50000) | map('string') | list %}{{ x | unique | list }}",
        "{% set s = 'é' * 100000 %}{% for i in range(100000) %}{{ s[99999] }}{% endfor %}",
        "{{ ('a' * 3000000).rfind('b' ~ 'a' * 1000000) }}"));

INSTANTIATE_TEST_SUITE_P(
    Bytes, LimitTest,
    ::testing::Values(
        "{{ 'x' * 1000000000000 }}", "{{ [0] * 1000000000000 }}",
        "{{ ('ab' * 9223372036854775807)[0] }}",
        "{% set ns = namespace(s='x') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% "
        "endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(64) %}{% set ns.x = ns.x + ns.x %}{% "
        "endfor %}",
        "{{ 'x'.center(1000000000000000) }}", "{{ 'x'.ljust(9223372036854775807, 'é') }}",
        "{{ '%999999999999999d' % 1 }}", "{{ '{:>999999999999999}'.format(1) }}",
        "{{ 'a' | indent(100000000000000, true) }}", "{{ l | batch(100000000000000, 0) | list }}",
        "{{ ('a' * 1000000).replace('', 'x' * 1000000) }}",
        "{{ l | tojson(indent=100000000000000) }}",
        "{{ ([[]] * 100000) | tojson(separators=('x' * 1000000, '')) }}",
        "{{ ('x' * 100000000) | list }}", "{{ (',' * 10000000).split(',') | length }}",
        "{% set x = range(100000) | list %}{% set ns = namespace(x=[]) %}"
        "{% for i in x %}{% set ns.x = ns.x + [x | list] %}{% endfor %}",
        "{{ l | slice(100000000000) | list }}"));

INSTANTIATE_TEST_SUITE_P(
    Output, LimitTest,
    ::testing::Values("{% for i in range(100000) %}{{ 'x' * 1000 }}{% endfor %}",
                      "{% set y %}{% for i in range(100000) %}{{ 'x' * 1000 }}"
                      "{% endfor %}{% endset %}"));

INSTANTIATE_TEST_SUITE_P(
    Depth, LimitTest,
    ::testing::Values(
        "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}",
        "{% macro f() %}{% call f() %}{{ caller() }}{% endcall %}{% endmacro %}{{ f() }}",
        "{% for x in l recursive %}{{ loop(l) }}{% endfor %}",
        "{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x] %}{% endfor "
        "%}",
        "{% set ns = namespace(x={}) %}{% for i in range(1000) %}{% set ns.x = {'a': ns.x} %}{% "
        "endfor %}",
        "{% set ns = namespace(x=[]) %}{% for i in range(1000) %}{% set ns.x = [ns.x.copy] %}{% "
        "endfor %}"));

TEST(ChatTemplateTest, LimitsAreParameters) {
  const auto limited = [](absl::string_view source, const RenderLimits& limits) {
    return Refusal(source, "CHAT_TEMPLATE_LIMIT", absl::StatusCode::kResourceExhausted, limits);
  };
  EXPECT_EQ(limited("a\n{% for x in l %}{{ x }}{% endfor %}", {.max_steps = 8}),
            "t.jinja:2: the template takes more than 8 steps");
  EXPECT_EQ(limited("{{ s }}{{ s }}", {.max_output_bytes = 7}),
            "t.jinja:1: the template writes more than 7 bytes");
  EXPECT_THAT(limited("{{ s }}", {.max_value_bytes = 20}), HasSubstr("more than 20 bytes"));
  EXPECT_EQ(limited("{{ [[[1]]] }}", {.max_depth = 3}),
            "t.jinja:1: the template nests deeper than 3 levels");
  EXPECT_EQ(RenderSource("{{ s }}{{ s }}", {.max_output_bytes = 8}).value(), "texttext");
}

TEST(ChatTemplateTest, CapturedOutputCountsOnlyWhileItIsKept) {
  // Each of 100 sets captures 60 of 100 bytes.
  EXPECT_EQ(
      RenderSource("{% for i in range(100) %}{% set x %}{{ 'x' * 60 }}{% endset %}{% endfor %}",
                   {.max_output_bytes = 100})
          .value(),
      "");
}

TEST(ChatTemplateTest, CirclesThroughNamespacesAreFreed) {  // by the leak check of asan
  EXPECT_EQ(Text("{% set ns = namespace() %}{% set ns.me = ns %}{% set ns.l = [ns, ns] %}"
                 "{% macro m() %}{{ ns.m is defined }}{% endmacro %}{% set ns.m = m %}{{ m() }}"
                 "{% for x in [1] %}{% set ns.loop = loop %}{% endfor %}{{ ns.l | length }}"),
            "True2");
  EXPECT_EQ(Text("{% set ns = namespace(p=none) %}{% for i in range(20000) %}"
                 "{% set next = namespace(p=ns.p) %}{% set ns.p = next %}{% endfor %}"),
            "");
}

TEST(ChatTemplateTest, RendersInManyThreads) {
  const auto shared = ChatTemplate::Parse(
      "{% macro m(x) %}{{ x ~ 'y' }}{% endmacro %}{% for x in l %}{{ m('x') }}{% endfor %}", "t");
  ASSERT_TRUE(shared.ok());
  std::vector<std::thread> threads;
  std::vector<std::string> texts(4);
  for (std::string& text : texts) {
    threads.emplace_back([&text, &shared] {
      for (int i = 0; i < 50; ++i) {
        const auto rendered = shared->Render(Variables(), json::Value(), absl::UnixEpoch());
        text = rendered.ok() ? rendered->text : "failed";
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : texts) EXPECT_EQ(text, "xyxyxy");
}

// Random sentences of the language, most of them wrong in some way.
std::string RandomSource(std::mt19937_64& random) {
  static constexpr absl::string_view kPieces[] = {"{{ ",
                                                  " }}",
                                                  "{% ",
                                                  " %}",
                                                  "{%- ",
                                                  " -%}",
                                                  "{{- ",
                                                  " -}}",
                                                  "{# ",
                                                  " #}",
                                                  "{% if ",
                                                  "{% elif ",
                                                  "{% else %}",
                                                  "{% endif %}",
                                                  "{% for x in ",
                                                  "{% endfor %}",
                                                  "{% set x = ",
                                                  "{% set x %}",
                                                  "{% endset %}",
                                                  "{% macro m(a, b=1) %}",
                                                  "{% endmacro %}",
                                                  "{% call m() %}",
                                                  "{% endcall %}",
                                                  "{% filter upper %}",
                                                  "{% endfilter %}",
                                                  "{% raw %}",
                                                  "{% endraw %}",
                                                  "{% break %}",
                                                  "{% continue %}",
                                                  "{% generation %}",
                                                  "{% endgeneration %}",
                                                  "{% with x = ",
                                                  "{% endwith %}",
                                                  "x",
                                                  "n",
                                                  "s",
                                                  "l",
                                                  "d",
                                                  "none",
                                                  "missing",
                                                  "loop",
                                                  "m",
                                                  "caller",
                                                  "messages",
                                                  "namespace(",
                                                  "range(",
                                                  "dict(",
                                                  "m(",
                                                  "loop(",
                                                  "caller()",
                                                  "true",
                                                  "1",
                                                  "0",
                                                  "-1",
                                                  "9223372036854775807",
                                                  "2.5",
                                                  "'a'",
                                                  "\"é\"",
                                                  "''",
                                                  "\\",
                                                  "(",
                                                  ")",
                                                  "[",
                                                  "]",
                                                  "{",
                                                  "}",
                                                  ",",
                                                  ":",
                                                  ".",
                                                  "|",
                                                  "~",
                                                  "+",
                                                  "-",
                                                  "*",
                                                  "**",
                                                  "/",
                                                  "//",
                                                  "%",
                                                  "==",
                                                  "!=",
                                                  "<",
                                                  ">=",
                                                  "=",
                                                  " and ",
                                                  " or ",
                                                  " not ",
                                                  " in ",
                                                  " not in ",
                                                  " is ",
                                                  " is not ",
                                                  " if ",
                                                  " else ",
                                                  "defined",
                                                  "string",
                                                  "| length",
                                                  "| list",
                                                  "| join(",
                                                  "| map(",
                                                  "| tojson",
                                                  "| sort",
                                                  "| first",
                                                  "| int",
                                                  "| default(",
                                                  "| indent(",
                                                  "| replace(",
                                                  "| selectattr(",
                                                  "| batch(",
                                                  ".items()",
                                                  ".split(",
                                                  ".strip(",
                                                  ".get(",
                                                  ".format(",
                                                  ".center(",
                                                  "[0]",
                                                  "[-1:]",
                                                  "[::-1]",
                                                  ".role",
                                                  "\n",
                                                  "  ",
                                                  " recursive",
                                                  "text"};
  std::string source;
  const size_t pieces = random() % 30;
  for (size_t i = 0; i < pieces; ++i)
    absl::StrAppend(&source, kPieces[random() % std::size(kPieces)]);
  return source;
}

// A right template with one piece of it copied, removed or replaced.
std::string MutatedSource(std::mt19937_64& random) {
  static constexpr absl::string_view kRight =
      "{% set ns = namespace(i=0) %}{% macro m(a, b=2) %}{{ a ~ b }}{{ caller() if caller }}"
      "{% endmacro %}{%- for x in messages if x.role != 'no' recursive %}{{ loop.index }}"
      "{{ x['content'] | trim | upper }}{% set ns.i = ns.i + n // 2 %}{{ m(x.role, b=l[1:]) }}"
      "{% if loop.last and not none %}{{ d | tojson(indent=2) }}{% else %}{{ d.items() | list }}"
      "{% endif %}{% endfor %}{% call m(ns.i) %}{{ l | map('string') | join(', ') }}{% endcall %}";
  std::string source(kRight);
  for (int i = 0; i < 3; ++i) {
    const size_t at = random() % source.size();
    const size_t size = 1 + random() % 12;
    switch (random() % 3) {
      case 0:
        source.erase(at, size);
        break;
      case 1:
        source.insert(random() % source.size(), source.substr(at, size));
        break;
      default:
        source[at] = static_cast<char>(random() % 256);
    }
  }
  return source;
}

TEST(ChatTemplateTest, AnySourceGivesTextOrAStatus) {
  const uint64_t seed = testing::TestSeed();
  SCOPED_TRACE(absl::StrCat("seed ", seed));
  std::mt19937_64 random(seed);
  const RenderLimits limits = {.max_steps = 20'000,
                               .max_output_bytes = 100'000,
                               .max_value_bytes = 4'000'000,
                               .max_depth = 100};
  const json::Value variables = Variables();
  int rendered = 0;
  for (int i = 0; i < 20'000; ++i) {
    const std::string source = i % 2 == 0 ? RandomSource(random) : MutatedSource(random);
    const auto parsed = ChatTemplate::Parse(source, "t");
    if (!parsed.ok()) {
      ASSERT_EQ(ErrorReason(parsed.status()), "BAD_CHAT_TEMPLATE") << source;
      continue;
    }
    const auto text = parsed->Render(variables, json::Value(), absl::UnixEpoch(), limits);
    if (text.ok()) {
      ++rendered;
      ASSERT_LE(text->size(), limits.max_output_bytes) << source;
      continue;
    }
    ASSERT_THAT(ErrorReason(text.status()), AnyOf("CHAT_TEMPLATE_FAILED", "CHAT_TEMPLATE_LIMIT"))
        << source << ": " << text.status();
  }
  EXPECT_GT(rendered, 1'000);
}

}  // namespace
}  // namespace baton::chat
