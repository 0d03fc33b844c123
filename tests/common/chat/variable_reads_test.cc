#include "common/chat/variable_reads.h"

#include <gtest/gtest.h>

#include <string>

#include "common/chat/chat_template.h"

namespace baton::chat {
namespace {

bool ReadsX(const std::string& source) {
  const auto parsed = ChatTemplate::Parse(source, "test");
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() && parsed->ReadsVariable("x");
}

TEST(VariableReadsTest, Reads) {
  for (const char* source : {
           "{{ x }}",
           "{{ x.y }}",
           "{{ a[x] }}",
           "{{ a(x) }}",
           "{{ a(b=x) }}",
           "{{ a | join(x) }}",
           "{% if x is defined %}{% endif %}",
           "{% if not x %}{% set x = 1 %}{% endif %}",
           "{% set x = x | default(1) %}",
           "{% if a %}{% set x = 1 %}{% endif %}{{ x }}",
           "{% if a %}{% set x = 1 %}{% elif b %}{% else %}{% set x = 2 %}{% endif %}{{ x }}",
           "{% for a in x %}{% endfor %}",
           "{% for x in a %}{% endfor %}{{ x }}",
           "{% for x in a %}{% else %}{{ x }}{% endfor %}",
           "{% for a in b if x %}{% endfor %}",
           "{% for a in b %}{% set x = 1 %}{% endfor %}{{ x }}",
           "{% macro m(a) %}{{ x }}{% endmacro %}",
           "{% macro m(a=x) %}{% endmacro %}",
           "{% macro m(x) %}{% endmacro %}{{ x }}",
           "{% with x = x %}{% endwith %}",
           "{% with x = 1 %}{% endwith %}{{ x }}",
           "{% set a %}{{ x }}{% endset %}",
           "{% filter replace(x, 'a') %}{% endfilter %}",
           "{% set x.y = 1 %}",
           "{{ [x] }}",
           "{{ {'a': x} }}",
           "{{ 1 if x else 2 }}",
       }) {
    EXPECT_TRUE(ReadsX(source)) << source;
  }
}

TEST(VariableReadsTest, DoesNotRead) {
  for (const char* source : {
           "x {# {{ x }} #} {{ 'x' }} {% raw %}{{ x }}{% endraw %}",
           "{{ a.x }} {{ a['x'] }} {{ a(x=1) }}",
           "{% set x = 1 %}",
           "{% set x = 1 %}{{ x }}",
           "{% set x %}a{% endset %}{{ x }}",
           "{% set a, x = b %}{{ x }}",
           "{% set x = namespace(a=1) %}{% set x.a = 2 %}",
           "{% if a %}{% set x = 1 %}{% else %}{% set x = 2 %}{% endif %}{{ x }}",
           "{% for x in a if x %}{{ x }}{% endfor %}",
           "{% for a, x in b %}{{ x }}{% endfor %}",
           "{% macro x(a) %}{{ x(1) }}{% endmacro %}{{ x(2) }}",
           "{% macro m(x, a=x) %}{{ x }}{% endmacro %}",
           "{% call(x) a() %}{{ x }}{% endcall %}",
           "{% with x = 1 %}{{ x }}{% endwith %}",
           "",
       }) {
    EXPECT_FALSE(ReadsX(source)) << source;
  }
}

}  // namespace
}  // namespace baton::chat
