"""Renders published chat templates with jinja2 and writes what comes out.

    make_golden.py TEMPLATES_DIR OUTPUT_FILE      needs the PyPI package `jinja2` alone

TEMPLATES_DIR holds the *.jinja files that scripts/setup takes from a published package; each is
rendered with every conversation below. PROBES adds short templates made here, one for each corner
of the language that those files use little. The environment has the settings of `transformers`:
sandboxed, trim_blocks, lstrip_blocks, loop controls, a block `generation`.

OUTPUT_FILE has one JSON array per line, of three kinds:
    ["variables", name, variables]
    ["template", name, source]
    ["render", name of the template, name of the variables, text], null where jinja2 refuses
"""

import datetime
import json
import pathlib
import sys

import jinja2.ext
import jinja2.nodes
import jinja2.sandbox

NOW = datetime.datetime(2026, 3, 5, 7, 8, 9)  # also in chat_golden_test.cc


class Generation(jinja2.ext.Extension):
    """{% generation %} marks what the model wrote; here it is only a scope."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        call = self.call_method("same", [])
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(line)

    def same(self, caller):
        return caller()


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(
        x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


# --- Conversations ------------------------------------------------------------------------------

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a place, <b>now</b> & today's.",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "Town, e.g. Z\u00fcrich"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                "days": {"type": "integer", "description": "How many", "minimum": 1},
                "where": {
                    "type": "object",
                    "properties": {
                        "lat": {"type": "number", "description": "degrees"},
                        "tags": {"type": "array", "items": {"type": "string"}},
                    },
                    "required": ["lat"],
                },
                "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "maybe": {"type": ["string", "null"], "nullable": True},
            },
            "required": ["place"],
        },
        "return": {"type": "object", "description": "A report"},
    },
}
CLOCK = {
    "type": "function",
    "function": {
        "name": "get_time",
        "description": "The time.\nIn a zone.",
        "parameters": {"type": "object", "properties": {}},
    },
}
TOOLS = [WEATHER, CLOCK]


def user(text):
    return {"role": "user", "content": text}


def system(text):
    return {"role": "system", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


def call(name, arguments, id="abcdefgh1"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


ARGUMENTS = {"place": "Z\u00fcrich \"old\" <town>", "days": 2, "where": {"lat": 47.25, "tags": ["a", "b"]},
             "exact": True, "none": None, "tiny": 1e-07, "big": 1e22}


def tool_turns(arguments, content=""):
    return [
        user("How is the weather?"),
        assistant(content, tool_calls=[call("get_weather", arguments)]),
        {"role": "tool", "name": "get_weather", "tool_call_id": "abcdefgh1",
         "content": "{\"sky\": \"clear\", \"degrees\": 21}"},
    ]


CONVERSATIONS = {
    "one": [user("Hello  there, <|im_end|> \u4f60\u597d \U0001f600!\n")],
    "system": [system("  Be brief.\n"), user("Hi")],
    "turns": [system("S"), user("a"), assistant("b"), user(" c "), assistant("  d\n"), user("e")],
    "ends_with_assistant": [user("a"), assistant("b")],
    "thinking": [
        user("2+2?"),
        assistant("<think>\nadd them\n</think>\n\n4"),
        user("And 3+3?"),
        assistant("6", reasoning_content="again\nadd"),
        user("Thanks"),
    ],
    "two_users": [user("a"), user("b")],
    "developer": [{"role": "developer", "content": "Rules"}, user("x")],
    "parts": [system([{"type": "text", "text": "S"}]),
              user([{"type": "text", "text": "What is "}, {"type": "text", "text": "this?"}])],
    "image": [user([{"type": "image"}, {"type": "text", "text": "What is this?"}])],
    "empty": [],
    "tool_result": tool_turns(ARGUMENTS),
    "tool_result_none": tool_turns({}, None),
    "tool_result_text": tool_turns(json.dumps(ARGUMENTS)),
    "tool_answered": tool_turns(ARGUMENTS, "Let me look.") + [assistant("Clear."), user("Thanks")],
    "two_calls": [
        system("You have tools."),
        user("Weather and time?"),
        assistant("", tool_calls=[call("get_weather", {"place": "Bern"}),
                                  call("get_time", {}, "abcdefgh2")]),
        {"role": "tool", "name": "get_weather", "tool_call_id": "abcdefgh1", "content": "rain"},
        {"role": "tool", "name": "get_time", "tool_call_id": "abcdefgh2", "content": "12:00"},
        assistant("Rain, noon."),
        user("Where?"),
    ],
    "unknown_role": [user("a"), {"role": "narrator", "content": "b"}],
}
EXTRA = {
    "": {},
    "thinking_off": {"enable_thinking": False, "thinking": False, "reasoning_effort": "low"},
    "thinking_on": {"enable_thinking": True, "thinking": True, "reasoning_effort": "high"},
}


def cases():
    """(name, variables) of each conversation with its options."""
    for name, messages in CONVERSATIONS.items():
        with_tools = name in ("one", "system", "tool_result", "tool_result_none",
                              "tool_result_text", "tool_answered", "two_calls")
        for tools in (None, TOOLS) if with_tools else (None,):
            for generate in (True, False):
                for extra_name, extra in EXTRA.items():
                    if extra and name not in ("one", "thinking", "tool_answered"):
                        continue
                    label = f"{name}{'+tools' if tools else ''}{'+generate' if generate else ''}"
                    yield f"{label} {extra_name}".strip(), {
                        "messages": messages, "tools": tools, "documents": None,
                        "add_generation_prompt": generate, "bos_token": "<BOS>",
                        "eos_token": "<EOS>", **extra,
                    }


# --- Probes -------------------------------------------------------------------------------------

VALUES = {
    "s": "Hello, W\u00f6rld", "t": "  a b\tc\n", "e": "", "n": 7, "z": 0, "f": 2.5, "b": True,
    "none": None, "l": [3, 1, 2], "w": ["b", "A", "a", "C"], "d": {"y": 1, "x": "2", "items": 3},
    "o": [{"k": "a", "v": 2}, {"k": "B", "v": 1}, {"k": "a"}],
    "deep": {"a": {"b": [{"c": "\u4f60<&>'\\\"\n"}]}},
    "floats": [0.1, 1e16, 1e15, 1e-5, 1e-4, 5e-324, 1.7976931348623157e308, 100.0, -0.0, 123456789.125],
    "many": list(range(20)), "u": "\u4f60\u597d\U0001f600x\u00e9", "html": "<a href='x'>&\"</a>",
    "lines": "a\n\n  b\r\nc\u2028d\n", "i": "\u0130\u00df\u03a3A\u03a3 \ufb01",
    "odd": "\x00\x1b\u00a0\u00ad\u200b\ue000\x7f",
}

# One probe per line; a line with several parts also gives each of them.
EXPRESSIONS = r"""
1 + 2 * 3 ** 2 // 4 - 7 % 3
-7 // 2, -7 % 3, 7 // -2, 7 % -3, -7.5 // 2, 7.5 % -2, 2 ** -1, 2 ** 0.5
7 / 2, 6 / 3, 1 / 3, 0.1 + 0.2, 1e3, 1_000, 0x1F, 0b101, 0o17, 1.5e-7
1 / 0
1 % 0
-n ** 2, +n, - 3 | abs, not n, not not e
n ~ s ~ none ~ b ~ f ~ l
'a' 'b' "c", 'it\'s', "\x41\u00e9\n\t\\ \q"
"a" + 1
"ab" * 3, 3 * [1, 2], [1] + [2, 3], (1,) + (2,)
[1] + (2,)
1 < 2 < 3, 1 < 3 < 2, 1 == 1.0, true == 1, "a" < "b", [1, 2] < [1, 3], (1,) == [1]
1 < "a"
none < 1
1 in l, 9 not in l, "lo" in s, "x" in d, "" in e, 1 in {1: 2}
1 in "1"
2 in n
b and n or "no", e or none or z, e and 1
1 if b else 2, 1 if e, (1 if e) is defined, 1 if e else 2 if z else 3
missing, missing is defined, missing is undefined, missing == other, missing != 1
missing.attribute
missing["x"]
missing + 1
missing()
missing | length, missing | list, missing | upper, missing or 5, missing | default("d")
d.x, d["x"], d["items"], d.nothing, d["nothing"] is defined, d.get("x"), d.get("q"), d.get("q", 1)
d.nothing.more
s[0], s[-1], s[1:3], s[::-1], s[::2], s[5:1], s[-3:], s[100:], u[0], u[2], u[1:], u[::-1], u[-2:]
l[0], l[-1], l[9] is defined, l[1:], l[::-1], l[:-1], l[0:2:1], many[2:15:4], many[15:2:-4], many[:3], many[-2:]
l["a"] is defined, n[0] is defined, l[1.5] is defined
l[::0]
l.0, l.1, deep.a.b.0.c
[], {}, (), (1,), [1, "a", none, true, 1.0, {"k": [u]}], {"a": 1, 2: 3}
{"a": 1, "a": 2, "b": 3, 1: "x", true: "y", 1.0: "z"}
{[1]: 2}
{(1, 2): 3}[(1, 2)], {none: 1}[none]
floats, floats | join(" ")
odd, [odd], [u, "'", '"', "'\"", "\\"]
range(3), range(1, 7, 2) | list, range(5, 0, -2) | list, range(0) | list, range(3)[1], range(4) | length
range(100001)
range(1, 2, 0)
dict(a=1, b=2), dict({"x": 1}, y=2), dict([("a", 1), ("b", 2)])
namespace(a=1).a, namespace(a=1).b is defined
cycler("a", "b").next(), cycler("a", "b").current
strftime_now("%Y-%m-%d %H:%M:%S %B %b %A %d %j %%")
strftime_now()
raise_exception("no " ~ n)
n is number, f is float, n is integer, b is integer, b is number, b is boolean, s is string, l is sequence
d is mapping, d is sequence, s is sequence, d.items() is sequence, d.items() is iterable, n is iterable
none is none, e is none, n is odd, n is even, n is divisibleby 7, n is divisibleby(2), 0 is even
s is upper, "A1" is upper, "a" is lower, "1" is lower, s is eq s, n is gt 3, n is le(7), 3 is in l, 3 is in([1])
b is true, n is true, z is false, false is false, none is sameas none, l is sameas l, s is callable, range is callable
"upper" is filter, "nope" is filter, "odd" is test
n is not string, not n is string, n is defined and n is number
1 is 2 is 3
l is nothing
s | nothing
s | upper | lower | title, s | capitalize, "ab cd-ef (gh" | title, "they're bill's" | title
i | upper, i | lower, i | capitalize, i | title, i.title(), i.upper(), i.casefold()
t | trim, t.strip() ~ "|", t.lstrip() ~ "|", t.rstrip() ~ "|", "xxaxx" | trim("x"), "abcba".strip("ab"), "abc".lstrip("ba")
s | replace("l", "L"), s | replace("l", "L", 1), s | replace("", "-"), n | replace("7", "8"), s.replace("o", "0", 1), "aaa".replace("aa", "b")
s | length, u | length, l | count, d | length, e | length, d.items() | length
n | length
l | map("string") | length
l | first, l | last, e | first is defined, s | first, u | last, [] | last is defined, d | first
l | join, l | join(", "), o | join("-", attribute="k"), d | join(","), u | join(" "), [1, [2]] | join("|")
l | sort, w | sort, w | sort(case_sensitive=true), l | sort(reverse=true), o | sort(attribute="k") | map(attribute="k") | list
o | sort(attribute="k,v")
[1, "a"] | sort
w | unique | list, w | unique(case_sensitive=true) | list, o | map(attribute="k") | unique | list, [1, 1.0, true] | unique | list
[[1], [1]] | unique | list
l | sum, floats[:3] | sum, o[:2] | sum(attribute="v"), [[1], [2]] | sum(start=[]), l | sum(start=10)
["a"] | sum
l | min, l | max, w | min, w | max, [] | max is defined, o[:2] | max(attribute="v")
l | reverse | list, s | reverse, u | reverse, d | reverse | list, l | map("string") | reverse
l | list, s | list, d | list, d.values() | list, d.items() | list, d | items | list, none | default("x"), none | default("x", true)
n | list
d | dictsort, d | dictsort(reverse=true), {"b": 1, "A": 2} | dictsort, {"b": 1, "A": 2} | dictsort(case_sensitive=true), {"b": 2, "a": 3} | dictsort(by="value")
{"a": 1, 2: 3} | dictsort
o | map(attribute="v", default=0) | list, o | map(attribute="v") | list, w | map("upper") | list, w | map("replace", "a", "b") | list, ["  a "] | map("trim") | list
o | selectattr("v") | list, o | selectattr("v", "defined") | list, o | selectattr("k", "equalto", "a") | list | length, o | rejectattr("k", "eq", "a") | list
l | select("gt", 1) | list, l | reject("odd") | list, [0, 1, "", none] | select | list, w | select("in", ["a"]) | list
deep | tojson, deep | tojson(indent=2), deep | tojson(ensure_ascii=true), d | tojson(sort_keys=true), l | tojson(separators=(",", ":")), [] | tojson(indent=4), {} | tojson(indent=1), [[]] | tojson(indent="--")
floats | tojson, odd | tojson, html | tojson, {1: 2, none: 3, true: 4, 1.5: 5} | tojson, (1, 2) | tojson
{(1, 2): 3} | tojson
missing | tojson
d.items() | tojson
l | map("string") | tojson
namespace() | tojson
1e400 | tojson, -1e400 | tojson
"42" | int, " 42 " | int, "4.7" | int, "x" | int, "x" | int(default=5), f | int, "0x1F" | int(base=16), "1F" | int(0, 16), "1_000" | int, b | int, none | int, "-3" | int, "1e3" | int, "inf" | int(7)
"1.5" | float, "x" | float, "x" | float(2), n | float, " 1e3 " | float, none | float, b | float
2.5 | round, 3.5 | round, 2.675 | round(2), 2.1 | round(0, "ceil"), 2.9 | round(method="floor"), n | round, 42.55 | round(1, "floor"), -2.5 | round
-3 | abs, -2.5 | abs
s | indent, lines | indent(2), lines | indent(2, true), lines | indent(width="> ", blank=true), lines | indent(2, first=true, blank=true), "" | indent(4, true)
n | indent
html | escape, html | e | safe, html | safe, (html | safe) + "<b>", "<b>" + (html | safe), html | safe ~ "<b>", (html | e) | e, [html | safe], "<" | safe | replace("<", "&")
many | batch(6) | list, many | batch(6, 0) | list, many | slice(3) | list, many | slice(3, "x") | list
s | center(20) ~ "|", "abc" | center(8) ~ "|", "abcd" | center(7) ~ "|", "ab".ljust(5, ".") , "ab".rjust(5), "-42".zfill(6), "ab".center(7, "*")
"%s and %d" | format("a", 5), "%.2f|%5d|%-5d|%05d|%+d|%x|%%" % (f, n, n, n, n, 255), "%r" % "a", "%s" % l, "%(a)s" % {"a": 1}, "%5s|%-5s|%.2s" % ("a", "b", "cde")
"%d" % "a"
"%s %s" % "a"
"%s" % ("a", "b")
"{} {}".format(1, "a"), "{1}{0}{1}".format("a", "b"), "{x}-{y}".format(x=1, y=l), "{:>5}|{:<5}|{:^5}|{:05d}|{:.2f}|{:,}".format("a", "b", "c", n, f, 1234567), "{{}}".format(), "{!r}".format("a"), "{0.x}".format(namespace(x=1))
"{}".format()
"{x}".format(1)
s.upper(), s.lower(), s.title(), s.capitalize(), s.startswith("He"), s.endswith("d"), s.startswith(("x", "H")), s.find("o"), s.rfind("l"), s.find("z"), s.count("l"), u.find("x"), s.index("W")
s.index("z")
"a,b,,c".split(","), "a,b,,c".split(",", 1), "a,b,,c".rsplit(",", 1), t.split(), " a  b ".split(none, 1), " a  b c ".rsplit(none, 1), "".split(), "".split(","), lines.splitlines(), lines.splitlines(true)
"a".split("")
"a-b-c".partition("-"), "a-b-c".rpartition("-"), "abc".partition("-"), "abc".rpartition("-"), ", ".join(w), "".join(u)
", ".join(l)
"abc".removeprefix("a"), "abc".removesuffix("bc"), "12".isdigit(), "\u00b2".isdigit(), "\u00b2".isdecimal(), "a1".isalnum(), "ab".isalpha(), " ".isspace(), "\u00bd".isnumeric(), "Ab".isupper(), "ab1".islower()
d.keys(), d.values(), d.items(), d.keys() | list, d.copy(), l.index(1), l.count(1), (1, 2).index(2)
l.append(1)
d.pop("x")
d.update({})
d.clear is defined, l.sort is defined
s.__class__, s.__class__ is defined, d.__init__ is defined
s.__class__.__mro__
s.nothing()
[1, 2][0], {"a": 1}.a, {"a": 1}["a"], (1, 2)[1], "ab"[1], "a" "b" | upper
[x for x in l]
1 +
foo(
)
{{ 1
"a
'\xZ1'
s if s is string else l | first
[l | first, w | last][1]
(n | string).zfill(3), n | string | length, (none | string) ~ "x", [1, 2] | string
1.0 | string, 1e100, 12345678901234567890.0, -0.0, 3.0 | int, 1e22, 123456789012345680.0
true, True, false, none, None, [true, none]
d | length > 2 and s | length < 3
l | map("nope") | list
o | map(attribute="k.0") | list, [[1, 2], [3]] | map(attribute=0) | list
many | join("")|length, "a" if n > 3 and not e else "b"
loop is defined, caller is defined
"a" ~ 1 + 2, 1 ~ 2 * 3, "x" ~ -1, 1 - 1 ~ "a"
2 ** 3 ** 2, -2 ** 2, 10 - 2 - 3, 2 * 3 % 4
not 1 in l, not (1 in l), 1 not in l, 1 in l in [true]
n is defined == true, n in [7] == true
"""

TEMPLATES = [
    "a\n{% if b %}\n  x\n{% endif %}\nb\n",
    "a\n  {% if b %}  x  {% endif %}  \n b\n\n",
    "a  {%- if b -%}  x  {%- endif -%}  b",
    "a\n  {%+ if b +%}\n x {%+ endif +%}\n b",
    "  {{ n }}\n  {{- n -}}\n  {{+ n }}\n{{ n }}\n\n",
    "a\n  {# c #}\n  {#- c -#}  b {#+ c +#}\n c{# {{ n }} {% if #}",
    "a {% raw %} {{ n }} {% if %} {% endraw %} b{% raw -%}  x  {%- endraw -%}  c\n"
    "  {% raw %}\n y\n  {% endraw %}\nz",
    "a\r\nb\rc\n{{ 'x\r\ny' }}\r\n",
    "\u00a0{%- if b %}\u3000{%- endif %}x\u2003\n\u2003{% if b %}{% endif %}y",
    "{% for x in l %}{{ loop.index }}/{{ loop.index0 }}/{{ loop.revindex }}/{{ loop.revindex0 }}/"
    "{{ loop.first }}/{{ loop.last }}/{{ loop.length }}/{{ loop.previtem }}/{{ loop.nextitem }}/"
    "{{ loop.depth }}/{{ loop.cycle('a', 'b') }} {% endfor %}",
    "{% for x in l if x > 1 %}{{ x }}{{ loop.length }}{% else %}none{% endfor %}|"
    "{% for x in [] %}{% else %}empty{% endfor %}|{% for x in l if x > 9 %}{% else %}none{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}{% for k in d %}{{ k }}{% endfor %}"
    "{% for a, b in [(1, 2), [3, 4], 'xy'] %}{{ a }}{{ b }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}",
    "{% for x in n %}{% endfor %}",
    "{% for x in missing %}x{% else %}y{% endfor %}{% for c in u %}[{{ c }}]{% endfor %}",
    "{% for x in many %}{% if x == 3 %}{% continue %}{% endif %}{% if x > 5 %}{% break %}{% endif %}"
    "{{ x }}{% endfor %}|{{ x }}",
    "{% for x in l recursive %}{{ x }}{% if loop.depth < 3 %}({{ loop(l[:x]) }}){% endif %}{% endfor %}",
    "{% for x in l %}{{ loop(l) }}{% endfor %}",
    "{% set x = 1 %}{% for y in l %}{{ x }}{% set x = y %}{{ x }}{% endfor %}{{ x }}",
    "{% set ns = namespace(x=0) %}{% for y in l %}{% set ns.x = ns.x + y %}{% endfor %}{{ ns.x }}"
    "{% set ns.y = 2 %}{{ ns.y }}",
    "{% set d.x = 1 %}",
    "{% set ns.x = 1 %}",
    "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set (a, b) = [b, a] %}{{ a }}{{ b }}{% set t = 1, %}{{ t }}",
    "{% set x %}  a{{ n }}\n{% endset %}[{{ x }}]{% set y | trim | upper %}  a {% endset %}[{{ y }}]"
    "{{ x is string }}",
    "{% if z %}a{% elif n == 7 %}b{% elif x.y %}c{% else %}d{% endif %}"
    "{% if e %}{% elif z %}{% else %}e{% endif %}",
    "{% if b %}{% set v = 1 %}{% endif %}{{ v }}"
    "{% for x in l %}{% if loop.first %}{% set w2 = x %}{% endif %}{{ w2 }},{% endfor %}",
    "{% macro m(a, b=2, c='x' ~ n) %}[{{ a }}|{{ b }}|{{ c }}]{% endmacro %}"
    "{{ m(1) }}{{ m(1, c=3) }}{{ m(b=1, a=2) }}{{ m() }}{{ m.name }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, a=3) }}{{ m(*l, **{'q': 1}) }}",
    "{% macro m(x) %}<{{ caller() }}{{ caller is defined }}>{% endmacro %}"
    "{% call m(1) %}body{{ n }}{% endcall %}",
    "{% macro m() %}{% for x in l %}{{ caller(x, 'y') }}{% endfor %}{% endmacro %}"
    "{% call(a, b='d') m() %}({{ a }}{{ b }}){% endcall %}",
    "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}",
    "{% macro m() %}a{% endmacro %}{% call m() %}{% endcall %}",
    "{% macro f(x) %}{{ x }}{% if x > 0 %}{{ f(x - 1) }}{% endif %}{% endmacro %}{{ f(5) }}",
    "{% macro m() %}{{ later }}{% endmacro %}{% set later = 5 %}{{ m() }}{% set later = 6 %}{{ m() }}",
    "{% for x in l %}{% macro m() %}{{ x }}{% endmacro %}{{ m() }}{% endfor %}",
    "{% macro m(x) %}{% set y = x %}{% endmacro %}{{ m(1) }}[{{ y }}]",
    "{% macro m(a=1, b) %}{% endmacro %}",
    "{% filter upper %}a{{ s }}{% endfilter %}{% filter replace('a', 'b') | trim %} a {% endfilter %}",
    "{% with a = 1, b = n %}{{ a }}{{ b }}{% set c = 3 %}{% endwith %}{{ a }}{{ c }}",
    "{% set a = 5 %}{% with a = 1, b = a %}{{ b }}{% endwith %}",
    "{% generation %}x{{ n }}{% set q = 1 %}{% endgeneration %}{{ q }}",
    "{% set f = l | map('string') %}{{ f | list }}{{ f | list }}{{ f is iterable }}",
    "{% set f = l | map('string') %}{{ f | first }}{{ f | list }}",
    "{{ [1, 2,] }}{{ {'a': 1,} }}{{ dict(a=1,) }}{{ (1, 2,) }}",
    "{{ '}}' }}{{ '%}' }}{% if '%}' %}x{% endif %}{{ {'a': {'b': 1}} }}{{ {'a': {'b': 1}}}}",
    "{% if b %}{{ x | nothing }}{% endif %}", "{% if not b %}{{ x | nothing }}{% endif %}ok",
    "{{ 1 if true else (x is nothing) }}",
    "{% if false %}{% for x in l %}{{ x | nothing }}{% endfor %}{% endif %}",
    "{% if b %}", "{% endif %}", "{% for %}", "{% unknown %}",
    "{% if b %}{% else %}{% else %}{% endif %}", "{% break %}", "{# open", "{% raw %} x", "{{ }}",
    "{% for x in l %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}",
    "{% set 1 = 2 %}", "{% set x %}", "{% macro %}{% endmacro %}", "{{ a b }}", "{{ a. }}",
    "{{ 'a' 1 }}", "{{ $ }}", "{{ (1 }}", "{{ [1) }}", "{% extends 'x' %}", "{% include 'x' %}",
    "{% import 'x' as y %}",
    "{{ l | join(', ' if b else '-') }}{{ (l | first) + 1 }}{{ s|upper|replace('L','1')|length }}",
    "{%- for m in o -%}{%- if m.v is defined and m.v > 1 %}{{ '\n' + m.k }}{%- endif -%}{%- endfor %}end",
    "{% set j = joiner('; ') %}{% for x in l %}{{ j() }}{{ x }}{% endfor %}",
    "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}"
    "{% set _ = c.reset() %}{{ c.next() }}",
    "{{ raise_exception('x') if z else 'fine' }}", "{{ 1 // 0 }}", "x{{ n }}\n\n\n",
    "{ { n } } {{n}}{", "{%if b%}1{%else%}2{%endif%}", "{{ n }}{# x",
    "{%- set x = 1 -%}\n\n  {{- x -}}  \n", "{{ s }}\n{% if b %}\n\n{% endif %}\n", "", "\n", "\n\n",
    "{% for i in range(2) %}{% set outer = i %}{% for j in range(2) %}{{ outer }}{{ j }}"
    "{{ loop.index }} {% endfor %}{{ loop.index }}{% endfor %}",
    "{% for x in l %}{% set y = loop %}{% for q in l %}{{ y.index }}{{ loop.index }} {% endfor %}{% endfor %}",
]


def split_parts(line):
    """The parts of "a, f(b, c), d" between commas outside of brackets and quotes; [] if one."""
    parts, depth, quote, start = [], 0, "", 0
    for i, c in enumerate(line):
        if quote:
            if c == quote and line[i - 1] != "\\":
                quote = ""
        elif c in "'\"":
            quote = c
        elif c in "([{":
            depth += 1
        elif c in ")]}":
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(line[start:i].strip())
            start = i + 1
    return parts + [line[start:].strip()] if parts else []


def probes():
    for line in EXPRESSIONS.strip().split("\n"):
        parts = split_parts(line)
        yield "{{ [" + line + "] }}" if parts else "{{ " + line + " }}"
        for part in parts:
            yield "{{ " + part + " }}"
    yield from TEMPLATES


# --- Output -------------------------------------------------------------------------------------


class Output:
    def __init__(self, file):
        self.file, self.env = file, environment()
        self.rendered = self.refused = 0

    def write(self, *line):
        self.file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def render(self, name, source, all_variables):
        self.write("template", name, source)
        try:
            template = self.env.from_string(source)
        except Exception:
            template = None
        for variables_name, variables in all_variables:
            try:
                text = template.render(**variables)
                self.rendered += 1
            except Exception:  # a template may fail in any way; how is not compared
                text = None
                self.refused += 1
            self.write("render", name, variables_name, text)


def main():
    templates = sorted(pathlib.Path(sys.argv[1]).glob("*.jinja"))
    if len(templates) != 70:
        sys.exit(f"{sys.argv[1]}: found {len(templates)} templates, expected 70: run scripts/setup")
    path = pathlib.Path(sys.argv[2])
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="ascii") as file:
        output = Output(file)
        conversations = list(cases())
        for name, variables in [*conversations, ("values", VALUES)]:
            output.write("variables", name, variables)
        for template in templates:
            output.render(template.stem, template.read_bytes().decode(), conversations)
        for number, source in enumerate(dict.fromkeys(probes())):
            output.render(f"probe {number}", source, [("values", VALUES)])
    print(f"{len(templates)} templates: {output.rendered} texts, {output.refused} refusals")


if __name__ == "__main__":
    main()
