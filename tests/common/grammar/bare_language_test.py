"""Calls whose strings have no quotes: what baton-grammar lets a model write is, as the router reads
it, what the request asks for.

  bare_language_test.py BIN_DIR [COUNT]

As tool_call_language_test, whose tokenizers these are: tokens are drawn at random from the masks, and
the answer is read here, by a reader with the rules of common/chat/bare_calls.cc, and must be valid.
COUNT, 300 by default.
"""

import json
import os
import sys
import tempfile
from pathlib import Path

import jsonschema

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "testing"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import seed  # noqa: E402
from language_test import END_TOKEN, GrammarProcess, Refused  # noqa: E402
from tool_call_language_test import (  # noqa: E402
    TOOL_CALLS, accepts, encoded, marked, walk, without_marks, write_tokenizer)

BARE = {  # opening to closing, as FORMATS; the number of the style; what stands around a key and a value
    "qwen": (("", "<tool_call>\n<function=", ">\n", "</function>\n</tool_call>", "\n", ""), 2,
             ("<parameter=", ">\n", "\n</parameter>\n")),
    "glm": (("", "<tool_call>", "\n", "</tool_call>", "\n", ""), 3,
            ("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>\n")),
    "glm compact": (("", "<tool_call>", "", "</tool_call>", "", ""), 4,
                    ("<arg_key>", "</arg_key><arg_value>", "</arg_value>")),
    "special": (("", "<call>", "", "<call|>", "", ""), 4, ("<arg_key>", "</arg_key><arg_value>", "</arg_value>")),
}
SPACE = " \t\n\v\f\r"
TYPES = {"null": {"null"}, "boolean": {"boolean"}, "integer": {"integer"}, "number": {"number", "integer"},
         "string": {"string"}, "array": {"array"}, "object": {"object"}}


# ------------------------------------------------------------------------------ the reader


def types_of_value(value):
    if value is None or isinstance(value, (bool, str, list, dict)):
        names = {type(None): "null", bool: "boolean", str: "string", list: "array", dict: "object"}
        return {names[type(value)]}
    if isinstance(value, int) and abs(value) < 2**63:
        return {"integer"}
    return {"number", "integer"} if float(value).is_integer() else {"number"}


def types_of(schema, root):
    """As json::TypesOf."""
    if "$ref" in schema:
        return types_of(root["$defs"][schema["$ref"].split("/")[-1]], root)
    if "const" in schema or "enum" in schema:
        return set().union(*map(types_of_value, schema.get("enum", [schema.get("const")])))
    if "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        return set().union(*(TYPES[t] for t in types))
    if "anyOf" in schema:
        return set().union(*(types_of(branch, root) for branch in schema["anyOf"]))
    return set().union(*TYPES.values())


def no_constant(name):
    raise ValueError(name)


def read_value(text, types):
    """As BareValue."""
    if types == {"string"}:
        return text
    trimmed = text.strip(SPACE)
    try:
        value = json.loads(trimmed, parse_constant=no_constant)
        if types & types_of_value(value):
            return value
    except (ValueError, OverflowError):
        pass
    if "boolean" in types and trimmed in ("True", "False"):
        return trimmed == "True"
    return None if "null" in types and trimmed == "None" else text


def read_call(text, name, schemas):
    """The tool, the arguments and the rest of the text that begins with a call of the style."""
    (_, before_name, before_arguments, after, _, _), _, (before_key, before_value, after_value) = BARE[name]
    assert text.startswith(before_name), text
    text = text[len(before_name):]
    tool = next(t for t in sorted(schemas, key=len, reverse=True) if text.startswith(t + before_arguments))
    text, arguments = text[len(tool + before_arguments):], {}
    end_mark = after_value.strip()
    while not text.startswith(after):
        assert text.startswith(before_key), text
        key, _, text = text[len(before_key):].partition(before_value)
        assert key not in arguments, text
        types = types_of(schemas[tool]["properties"].get(key, {}), schemas[tool])
        begin = 0
        if "string" not in types and text[:1] in ("{", "[", '"'):
            _, begin = json.JSONDecoder().raw_decode(text)
        value_end = text.index(end_mark, begin)
        value, text = text[:value_end], text[value_end + len(end_mark):]
        if after_value[0] == "\n":
            assert value.endswith("\n"), value
            value = value[:-1]
        if after_value[-1] == "\n":
            assert text.startswith("\n"), text
            text = text[1:]
        arguments[key] = read_value(value, types)
    return tool, arguments, text[len(after):]


# ------------------------------------------------------------------------------ the tests


def random_value(rng, depth=0):
    """A schema of a value that may be a string, as a rule."""
    least = rng.randrange(0, 4)
    texts = [
        {"type": "string"}, {"type": "string", "minLength": least}, {"type": "string", "maxLength": least + 2},
        {"type": "string", "minLength": least, "maxLength": least + rng.randrange(3)},
        {"type": "string", "pattern": "^[a-zé]{1,3}-[0-9]$"}, {"type": "string", "pattern": "^(<b>|x)*$"},
        {"type": "string", "format": "ipv4"}, {"enum": ["red", "", "a\nb", "x<y", " "]}, {"$ref": "#/$defs/text"}]
    others = [{"type": "null"}, {"type": "boolean"}, {"type": "integer"}, {"type": "number"}, {"const": True},
              {"type": "integer", "minimum": 5, "maximum": 20}, {"enum": [1, 2.5, None]}, {"$ref": "#/$defs/count"}]
    mixed = [{"anyOf": rng.sample(texts, rng.randrange(1, 3)) + rng.sample(others, rng.randrange(1, 3))},
             {"type": ["string", rng.choice(["null", "integer", "boolean"])], "maxLength": 3},
             {"enum": ["red", "truth", 1, None, True]},
             {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "integer"}}]}]
    return rng.choice([rng.choice(texts), rng.choice(others), rng.choice(mixed), rng.choice(mixed)])


def bare_schema(rng):
    names = rng.sample(["a", "b_c", "é", "z.z", "n"], rng.randrange(1, 4))
    return {"type": "object", "properties": {name: random_value(rng) for name in names},
            "required": [n for n in names if rng.random() < 0.7], "additionalProperties": False,
            "$defs": {"text": {"type": "string", "minLength": 2, "maxLength": 5},
                      "count": {"type": "integer", "exclusiveMinimum": 0}}}


def check_random(process, rng, count):
    ended = refused = 0
    values = {"text": 0, "other": 0, "constrained": 0}
    for i in range(count):
        name = sorted(BARE)[i % len(BARE)]
        texts, style, around = BARE[name]
        schemas = {tool: bare_schema(rng) for tool in ("f", "get")}
        try:
            made = process.compile(TOOL_CALLS, ["rs", *texts, "", str(style), "", "0",
                                                *(t for f in schemas for t in (f, json.dumps(schemas[f])))])
        except Refused as error:
            assert str(error).startswith("SCHEMA_UNSUPPORTED"), error
            refused += 1
            continue
        end = around[2].strip().encode()
        # What ends a value, what would be read as another one, and beginnings of both.
        wished = [marked(around[2])] * 3 + [end, end[:-1], b"<", b"<<", b"</", end[:4], b'"ab"', b'""', b"null", b"None",
                                            b"12", b"3", b" 7", b"-1", b"2.0", b"true", b"False", b"[1]", b"\n", b"1e3"]
        answer = walk(process, made, rng, wished)
        process.unload(made)
        if answer is None:
            continue
        text, _ = without_marks(answer)
        try:
            tool, arguments, rest = read_call(text, name, schemas)
            jsonschema.Draft202012Validator(schemas[tool]).validate(arguments)
        except (AssertionError, ValueError, StopIteration, jsonschema.ValidationError) as error:
            raise AssertionError(f"{i} {name} {json.dumps(schemas)} answers {answer}: {error!r}") from error
        assert rest == "", answer
        ended += 1
        for value in arguments.values():
            values["text" if isinstance(value, str) else "other"] += 1
    print(f"{count} requests: {refused} refused, {ended} answers ended, {values} values")
    assert ended > count * 0.3 and refused < count * 0.65 and values["text"] > count * 0.2
    assert values["other"] > count * 0.1


def call(name, function, **arguments):
    texts, _, around = BARE[name]
    return texts[1] + function + texts[2] + "".join(
        around[0] + key + around[1] + value + around[2] for key, value in arguments.items()) + texts[3]


def check_chosen(process):
    """Calls that are allowed, and others that are not."""
    schema = {"type": "object", "properties": {
        "s": {"type": "string"}, "n": {"type": "integer", "minimum": 0}, "e": {"enum": ["red", "blue"]},
        "o": {"$ref": "#/$defs/o"}, "m": {"anyOf": [{"type": "string"}, {"type": "null"}]}}, "required": ["s", "n"],
        "$defs": {"o": {"type": "object", "properties": {"k": {"type": "string"}}, "required": ["k"]}}}
    tools = ["f", json.dumps(schema), "g", json.dumps({"type": "object", "properties": {}}), "any", ""]
    for name, (texts, style, around) in BARE.items():
        end = around[2].strip()
        cases = [
            (call(name, "f", s="a", n="5"), True), (call(name, "f", s='q"<b>\n{', n="5"), True),
            (call(name, "f", s="", n="0"), True), (call(name, "f", s="a"), False), (call(name, "f", n="5", s="a"), False),
            (call(name, "f", s="a", n="x"), False), (call(name, "f", s="a", n="-5"), False),
            (call(name, "f", s="a", n="5", e="red"), True), (call(name, "f", s="a", n="5", e="green"), False),
            (call(name, "f", s="a", n="5", e='"red"'), False), (call(name, "f", s="a", n="5", o='{"k": "%s"}' % end), True),
            (call(name, "f", s="a", n="5", o="{}"), False), (call(name, "f", s="a", n="5", m="null"), True),
            (call(name, "f", s="a", n="5", z="1"), False), (call(name, "f", s="a" + end + "b", n="5"), False),
            (call(name, "g"), True), (call(name, "g", a="1"), False), (call(name, "any"), True),
            (call(name, "any", a="1", b_2="x\ny"), True), (call(name, "h"), False),
            (call(name, "f", s="a", n="5") + texts[4] + call(name, "g"), True), ("text", False)]
        made = process.compile(TOOL_CALLS, ["r", *texts, "", str(style), "", "0", *tools])
        for text, expected in cases:
            assert accepts(process, made, marked(text)) == expected, f"{name} {text!r}: not {expected}"
        process.unload(made)


def check_values(process):
    """Values of one schema each, in the styles of both marks."""
    date, number = {"type": "string", "format": "date"}, {"type": "integer", "minimum": 5}
    for schema, good, bad in (
            ({"type": "string", "maxLength": 4}, ["", "éé", "éééé", '"a"', "a\nb"], ["12345", "ééééé"]),
            ({"type": "string", "minLength": 1}, ["a", "<", "<b>", '"', " x"], [""]),
            ({"type": "string", "minLength": 3, "maxLength": 3}, ["abc", "ab>", "é\nb", '"""'], ["ab", "abcd", ""]),
            ({"type": "string", "minLength": 2, "maxLength": 5}, ["ab>c", "é>/bé"], ["a", "abcdef"]),
            ({"type": "string", "maxLength": 0}, [""], ["a"]),
            ({"type": "string", "pattern": "^[a-z]{2}-\\d$"}, ["ab-1"], ["ab-12", ""]),
            (date, ["2026-11-29"], ["2026-13-29", "tomorrow"]),
            ({"anyOf": [date, {"type": "null"}]}, ["2026-11-29", "null"], ["2026", "nul", "None "]),
            ({"anyOf": [{"type": "string", "minLength": 2}, {"type": "null"}]}, ["ab", "null", "12"], ["a", '"a"']),
            ({"anyOf": [{"type": "string", "maxLength": 3}, {"type": "integer"}]}, ["abc", "123", "-12345"], ["abcd"]),
            ({"anyOf": [{"type": "string"}, number]}, ["abc", "12", "5", "", "<b>", "a</b>"], ["3", " 3", "-1", "1e0"]),
            ({"type": ["string", "boolean"], "maxLength": 2}, ["ab", "true", "false"], ["tru", "abc"]),
            ({"enum": ["a", 1, None, True]}, ["a", "1", "null", "true"], ['"a"', "2", "false", ""]),
            ({"type": "number"}, ["1.5", "-2e10", "0", "9" * 60], ["x", "01", "1e999", ""])):
        root = {"type": "object", "properties": {"v": schema}, "required": ["v"]}
        for name in ("qwen", "special"):
            texts, style, _ = BARE[name]
            made = process.compile(TOOL_CALLS, ["r", *texts, "", str(style), "", "0", "f", json.dumps(root)])
            for value, expected in [(v, True) for v in good] + [(v, False) for v in bad]:
                text = call(name, "f", v=value)
                assert accepts(process, made, marked(text)) == expected, f"{schema} {text!r}: not {expected}"
                if expected:
                    _, arguments, _ = read_call(text, name, {"f": root})
                    jsonschema.Draft202012Validator(root).validate(arguments)
            process.unload(made)
    for value, reason in (
            ({"enum": ["1", 1]}, '"1"'), ({"enum": ["</parameter>"]}, "</parameter>"),
            ({"type": "string", "pattern": "^</?[a-z]+>$"}, "</parameter>"),
            ({"anyOf": [{"type": "string", "pattern": "^[0-9]+$"}, number]}, "pattern beside"),
            ({"anyOf": [{"type": "string", "maxLength": 3}, {"type": "array", "items": True}]}, "array")):
        root = json.dumps({"type": "object", "properties": {"a": value}})
        try:
            process.compile(TOOL_CALLS, ["r", *BARE["qwen"][0], "", "2", "", "0", "f", root])
            raise AssertionError(f"{value} compiled")
        except Refused as error:
            assert str(error).startswith("SCHEMA_UNSUPPORTED") and reason in str(error), (value, error)


def check_drafts(process):
    """Masks behind drafts are those of an answer that goes on so, and leave it as it was."""
    schema = {"type": "object", "properties": {
        "a": {"type": "string", "minLength": 2},
        "b": {"anyOf": [{"type": "string", "maxLength": 4}, {"type": "null"}]}}, "required": ["a", "b"]}
    for name in ("qwen", "special"):
        texts, style, _ = BARE[name]
        grammars = [process.compile(TOOL_CALLS, ["rs", *texts, "", str(style), "", "0", "f", json.dumps(schema)])
                    for _ in range(2)]
        ids = encoded(process, marked(call(name, "f", a="é<b>\n</pa", b="null")))
        alone = [process.allowed(grammars[0], max(i - 1, 0), ids[max(i - 1, 0):i]) for i in range(len(ids) + 1)]
        assert all(token in allowed for token, allowed in zip(ids, alone)) and END_TOKEN in alone[-1]
        behind = 0
        for i in range(len(ids)):
            masks = process.masks_behind(grammars[1], max(i - 1, 0), ids[max(i - 1, 0):i], ids[i:i + 4])
            assert masks == alone[i:i + len(masks)], (name, i)
            behind += len(masks) - 1
        assert behind > 0
        for grammar in grammars:
            process.unload(grammar)


def main():
    program = os.path.join(sys.argv[1], "baton-grammar")
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 300
    with tempfile.TemporaryDirectory() as directory:
        rng = seed.generator("bare calls")
        process = GrammarProcess(program, directory, write_tokenizer(directory, rng))
        check_chosen(process)
        check_values(process)
        check_drafts(process)
        check_random(process, rng, count)
        process.end()


if __name__ == "__main__":
    main()
