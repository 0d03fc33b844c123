"""Calls of tools that baton-grammar lets a model write are what the request asks for.

  tool_call_language_test.py BIN_DIR [COUNT]

Random tools, in several formats of calls, some of whose markers are special tokens. For each,
tokens are drawn at random from the masks until the answer ends. The answer is taken apart here and
must be text and calls of known tools, with arguments that jsonschema accepts; a text that is made
beside the request must be one that the masks allow, or forbid. COUNT, 300 by default.
"""

import json
import os
import re
import sys
import tempfile
from pathlib import Path

import jsonschema

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "testing"))
sys.path.insert(0, str(Path(__file__).resolve().parent))
import language_test  # noqa: E402
import seed  # noqa: E402
from language_test import END_TOKEN, GrammarProcess, Refused  # noqa: E402

TOOL_CALLS = 4  # GrammarSpec::Kind
MAX_TOKENS = 600
# Special tokens after the end token; the last is of no format.
SPECIAL = ["[TOOL_CALLS]", "[ARGS]", "<call|>", "<call>", '<|"|>', "<|other|>"]
JSON_NAME, JSON_ARGUMENTS = '{"name": "', '", "arguments": '
FORMATS = {  # opening, before_name, before_arguments, after_arguments, separator, closing, trigger, excluded
    "tags": ("", '<tool_call>\n{"name": "', JSON_ARGUMENTS, "}\n</tool_call>", "\n", "", "<tool_call>", []),
    "special tags": ("", '<call>\n{"name": "', JSON_ARGUMENTS, "}\n<call|>", "\n", "", "<call>", []),
    "bare": ("", JSON_NAME, JSON_ARGUMENTS, "}", "; ", "", "", ['{"', "<|py|>"]),
    "list": ("[TOOL_CALLS][", '{"n": "', JSON_ARGUMENTS, "}", ", ", "]", "[TOOL_CALLS]", []),
    "args": ("", "[TOOL_CALLS]", "[ARGS]", "", "", "", "[TOOL_CALLS]", ["<never>"]),
    "blocks": ("<calls>", "<c>", "\n```json\n", "\n```</c>", "\n", "</calls>", "<calls>", ["<c>"]),
}


def write_tokenizer(directory, rng, special=SPECIAL):
    """language_test's, with special tokens. Returns what each token adds to an answer."""
    tokens = language_test.write_tokenizer(directory, rng)
    path = os.path.join(directory, "tokenizer.json")
    with open(path) as file:
        tokenizer = json.load(file)
    for text in special:
        added = dict(tokenizer["added_tokens"][0], id=len(tokens), content=text)
        tokenizer["added_tokens"].append(added)
        tokens.append(b"\xff%s\xff" % text.encode())
    with open(path, "w") as file:
        json.dump(tokenizer, file)
    return tokens


def random_schema(rng, depth=0):
    """A schema of objects whose values are short."""
    def value():
        kinds = [
            {"type": "integer", "minimum": -5, "maximum": 120}, {"type": "boolean"},
            {"type": "string", "maxLength": 4}, {"enum": ["a", 'b"c', 1, None]}, {"const": "</tool_call>"},
            {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
        ]
        return rng.choice(kinds + ([random_schema(rng, depth + 1)] if depth < 2 else []))

    names = rng.sample(["a", "b c", "é", '"', "city", "<c>"], rng.randrange(0, 4))
    properties = {name: value() for name in names}
    schema = {"type": "object", "properties": properties,
              "required": [n for n in names if rng.random() < 0.6]}
    if rng.random() < 0.5:
        schema["additionalProperties"] = False
    return schema


def without_marks(text):
    """The bytes of an answer as text; special tokens as if they were spelled, and where they are."""
    parts = text.split(b"\xff")
    assert all(part.decode() in SPECIAL for part in parts[1::2]), text
    return b"".join(parts).decode(), [part.decode() for part in parts[1::2]]


class Request:
    def __init__(self, rng, i):
        self.format = sorted(FORMATS)[i % len(FORMATS)]
        self.required = rng.random() < 0.5
        self.single = rng.random() < 0.4
        self.schemas = {}
        for _ in range(rng.randrange(1, 5)):
            name = rng.choice(["f", "get_weather", "a.b", "x-1", "ff"])
            self.schemas[name] = random_schema(rng) if rng.random() < 0.9 else None
        self.texts = list(FORMATS[self.format][:8])

    def spec(self):
        flags = ("r" if self.required else "") + ("s" if self.single else "")
        trigger, excluded = ("", []) if self.required else (self.texts[6], FORMATS[self.format][7])
        texts = [flags, *self.texts[:6], trigger, "1", "", str(len(excluded)), *excluded]
        for name, schema in self.schemas.items():
            texts += [name, "" if schema is None else json.dumps(schema)]
        return texts

    def call(self, text):
        """The call that `text` begins with, and the rest of it."""
        _, before_name, before_arguments, after, *_ = self.texts
        assert text.startswith(before_name), text
        name, found, rest = text[len(before_name):].partition(before_arguments)
        assert found and name in self.schemas, text
        arguments, end = json.JSONDecoder().raw_decode(rest)
        assert isinstance(arguments, dict), text
        if self.schemas[name] is not None:
            jsonschema.Draft202012Validator(self.schemas[name]).validate(arguments)
        assert rest[end:].startswith(after), text
        return rest[end + len(after):]

    def calls(self, text):
        """The group of calls that `text` begins with; the number of them, and the rest of it."""
        opening, before_name, _, _, separator, closing, *_ = self.texts
        assert text.startswith(opening), text
        rest, count = self.call(text[len(opening):]), 1
        while rest.startswith(separator + before_name):
            rest, count = self.call(rest[len(separator):]), count + 1
        assert rest.startswith(closing), text
        return count, rest[len(closing):]

    def check(self, answer):
        """The number of calls in the answer."""
        opening, before_name, _, _, _, _, trigger, excluded = self.texts
        text, special = without_marks(answer)
        marks = "".join(self.texts[:6])
        assert all(s in marks for s in special), answer
        if self.required or (not trigger and text.startswith(opening + before_name)):
            count, rest = self.calls(text)
            assert rest == "", answer
        elif not trigger:
            assert not any(text.lstrip(" \t\n\v\f\r").startswith(e) for e in excluded), answer
            count = 0
        else:
            count = 0
            while trigger in text:
                before, _, _ = text.partition(trigger)
                assert not any(e in before for e in excluded), answer
                more, text = self.calls(text[len(before):])
                count += more
            assert not any(e in text for e in excluded), answer
        assert count <= 1 or not self.single, answer
        return count


def walk(process, grammar, rng, wished):
    """A random answer, which prefers to go on with one of the `wished` texts."""
    answer, further, known, left = b"", [], 0, b""
    while known < MAX_TOKENS:
        tokens = process.allowed(grammar, known, further)
        known += len(further)
        assert tokens, f"no token may follow {answer}"
        if END_TOKEN in tokens and (len(tokens) == 1 or rng.random() < 0.3):
            return answer
        if not left and rng.random() < 0.3:
            left = rng.choice(wished)
        texts = [t for t in tokens if t != END_TOKEN]
        next_ones = [t for t in texts if left.startswith(process.tokens[t])]
        # Strings end, and white space does.
        brief = [t for t in texts if process.tokens[t] in (b'"', b"}", b"]", b",")]
        if next_ones:
            further = [max(next_ones, key=lambda t: len(process.tokens[t]))]
            left = left[len(process.tokens[further[0]]):]
        else:
            left = b""
            further = [rng.choice(brief if brief and rng.random() < 0.5 else texts)]
        answer += process.tokens[further[0]]
    return None


def encoded(process, text):
    """The tokens of a text in which a special token stands between bytes 0xff."""
    ids = []
    for i, part in enumerate(text.split(b"\xff")):
        ids += [process.tokens.index(b"\xff%s\xff" % part)] if i % 2 else list(part)
    return ids


def marked(text):
    """The text, as bytes, with special tokens between bytes 0xff."""
    pattern = "|".join(re.escape(s) for s in sorted(SPECIAL[:-1], key=len, reverse=True))
    return re.sub(pattern.encode(), lambda m: b"\xff" + m.group() + b"\xff", text.encode())


def accepts(process, grammar, text):
    try:
        return END_TOKEN in process.allowed(grammar, 0, encoded(process, text))
    except Refused:
        return False


def check_random(process, rng, count):
    ended = with_calls = parallel = 0
    for i in range(count):
        request = Request(rng, i)
        grammar = process.compile(TOOL_CALLS, request.spec())
        wished = [marked(t) for t in (request.texts[6] or request.texts[1], request.texts[4] + request.texts[1])
                  if t] + [b"<|other|>", b"[TOOL_CALLS]", b"<call>", b" text"]
        answer = walk(process, grammar, rng, wished)
        process.unload(grammar)
        if answer is None:
            continue
        try:
            calls = request.check(answer)
        except (AssertionError, ValueError, jsonschema.ValidationError) as error:
            raise AssertionError(f"{i} {request.format} {request.spec()} answers {answer}: {error}") from error
        assert calls > 0 or not request.required
        ended, with_calls, parallel = ended + 1, with_calls + (calls > 0), parallel + (calls > 1)
    print(f"{count} requests: {ended} answers ended, {with_calls} with calls, {parallel} with several")
    assert ended > count * 0.6 and with_calls > count * 0.3 and parallel > count * 0.05


def spec(name, flags, tools, excluded=None):
    texts = FORMATS[name]
    trigger, more = ("", []) if "r" in flags else (texts[6], texts[7])
    return [flags, *texts[:6], trigger, "1", "", str(len(more)), *more, *tools]


def check_chosen(process):
    """Answers that are allowed, and others that are not, in each format."""
    tools = ["f", json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}),
             "g", ""]
    one = {
        "tags": '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
        "special tags": '<call>\n{"name": "f", "arguments": {"a": 1}}\n<call|>',
        "bare": '{"name": "f", "arguments": {"a": 1}}',
        "list": '[TOOL_CALLS][{"n": "f", "arguments": {"a": 1}}]',
        "args": '[TOOL_CALLS]f[ARGS]{"a": 1}',
        "blocks": '<calls><c>f\n```json\n{"a": 1}\n```</c></calls>',
    }
    for name, text in one.items():
        def grammar(flags):
            return process.compile(TOOL_CALLS, spec(name, flags, tools))
        call = marked(text)
        cases = []
        for flags in ("r", "rs", "", "s"):
            free, single = "r" not in flags, "s" in flags
            separated = name in ("list", "blocks")
            two = call + FORMATS[name][4].encode() + call
            cases += [
                (flags, call, True),
                (flags, call.replace(b'"a": 1', b'"a": "1"'), False),
                (flags, call.replace(b'"a": 1', b''), False),
                (flags, b"Let me see. " + call, free),
                (flags, b"Plain text.", free),
                (flags, b"", free),
                (flags, marked(text[:-1]), False),
                (flags, two, not single and (not separated or free)),
                (flags, b"\xff<|other|>\xff", False),
                (flags, b"a \xff<call>\xff b", False),
            ]
            if b"\xff" in call:  # spelled in other tokens
                cases.append((flags, text.encode(), False))
                cases.append((flags, b"x " + text.encode(), False))
            for unknown in ("h", "ff"):
                cases.append((flags, call.replace(b'"f"', b'"%s"' % unknown.encode())
                              if b'"f"' in call else call.replace(b"f", unknown.encode(), 1), False))
        for flags, answer, expected in cases:
            made = grammar(flags)
            assert accepts(process, made, answer) == expected, f"{name} {flags!r} {answer}: not {expected}"
            process.unload(made)
    made = process.compile(TOOL_CALLS, spec("bare", "", tools))
    for answer, expected in ((b" \n {x", True), (b" \n {\"x", False), (b"<a>", True), (b"<|p", True),
                             (b"<|py|>", False), (b"\n<|py|> {", False), ("é {\"".encode(), True)):
        assert accepts(process, made, answer) == expected, answer
    any_object = process.compile(TOOL_CALLS, spec("bare", "r", tools))
    assert accepts(process, any_object, b'{"name": "g", "arguments": {"x": [1, {"y": null}], "z": ""}}')
    assert not accepts(process, any_object, b'{"name": "g", "arguments": [1]}')
    # Special tokens are no part of the other kinds' answers, and of strings.
    regex = process.compile(language_test.REGEX, ["[^a]*"])
    assert not accepts(process, regex, b"\xff<call>\xff")
    text = process.compile(TOOL_CALLS, spec("args", "r", ["f", json.dumps(
        {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]})]))
    begun = encoded(process, marked('[TOOL_CALLS]f[ARGS]') + b'{"a": "x')
    allowed = process.allowed(text, 0, begun)
    assert not any(process.tokens[t][:1] == b"\xff" for t in allowed), allowed
    # Nor do they come within a character.
    free = process.compile(TOOL_CALLS, spec("args", "", tools))
    assert process.tokens.index(b"\xff[TOOL_CALLS]\xff") in process.allowed(free, 0, list("é".encode()))
    process.ask_mask(closed=[free], items=0, item=b"", reply=False)
    within = process.allowed(free, 0, list("é".encode()[:1]))
    assert END_TOKEN not in within and all(0x80 <= process.tokens[t][0] < 0xc0 for t in within), within


def check_answers(process):
    """Calls, or JSON of a schema."""
    tools = ["f", json.dumps({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})]
    answer = json.dumps({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]})
    for name in ("tags", "bare", "list"):
        texts = ["", *FORMATS[name][:6], "", "1", answer, "0", *tools]
        made = process.compile(TOOL_CALLS, texts)
        call = FORMATS[name][0] + FORMATS[name][1] + "f" + FORMATS[name][2] + '{"a": 1}' + FORMATS[name][3]
        two = call + FORMATS[name][4] + call[len(FORMATS[name][0]):] + FORMATS[name][5]
        for text, expected in (('{"x": 1}', True), ('{"x": "1"}', False), (call + FORMATS[name][5], True),
                               (two, True), ("text", False), ("", False), ('{"x": 1}' + call, False)):
            assert accepts(process, made, marked(text)) == expected, (name, text)
        process.unload(made)


MESSAGES = {  # texts of ToolCalls
    "call": ("", "<call>c to=f.", "[ARGS]", "", "", ""), "answer": "<call>final[ARGS]",
    "thought": "<call>think[ARGS]", "preamble": "<call>c[ARGS]", "after": "<call|>[TOOL_CALLS]a",
    "excluded": ["<call>c to=f.", "<call|>"],
}


def messages_spec(tools, schema="", before=("thought", "preamble")):
    """The spec of messages, of which the last one is a call of the tools, or the answer."""
    m = MESSAGES
    before = [m[name] for name in before]
    return ["sm", *m["call"], "", "1", schema, str(len(m["excluded"])), *m["excluded"], m["answer"], m["after"],
            str(len(before)), *before, *tools]


def message_parts(text, reasons):
    """The marks and the texts of an answer in messages. `reasons`: the first may be reasoning, with white space behind it."""
    parts, m = [], MESSAGES
    while True:
        if reasons and [mark for mark, _ in parts] == [m["thought"]]:
            text = text.lstrip()
        mark = next((m[name] for name in ("answer", "thought", "preamble") if text.startswith(m[name])), m["call"][1])
        assert text.startswith(mark), text
        text = text[len(mark):]
        if mark in (m["answer"], m["call"][1]):
            return parts + [(mark, text)]
        said, found, text = text.partition(m["after"])
        assert found, text
        parts.append((mark, said))


def check_messages(process, rng):
    """Answers that are messages: thoughts and preambles, then a call or the answer."""
    m = MESSAGES
    arguments = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    tools = ["f", json.dumps(arguments), "g", json.dumps({"type": "object", "properties": {}})]
    answer = json.dumps({"type": "object", "properties": {"x": {"type": "boolean"}}, "required": ["x"]})
    call = m["call"][1] + 'f[ARGS]{"a": 1}'
    thought, said = m["thought"] + "hm" + m["after"], m["preamble"] + "I look." + m["after"]
    cases = [  # in a text, and with a schema
        (call, True, True), (m["answer"] + "Hello.", True, False), (m["answer"], True, False),
        (m["answer"] + '{"x": true}', True, True), (m["answer"] + '{"x": 1}', True, False),
        ("Hello.", False, False), ("", False, False), ('{"x": true}', False, False),
        (thought + call, True, True), (said + call, True, False),
        (thought + said + thought + call, True, False), (said, False, False),
        (thought + said + m["answer"] + "Hi", True, False), (call + call, False, False),
        (thought + m["answer"] + '{"x": false}', True, True), (thought, False, False),
        (call.replace('"a": 1', '"a": "1"'), False, False), (call.replace("f[", "h["), False, False),
        (said + call.replace('"a": 1', ""), False, False), (m["preamble"] + "x" + call, False, False),
        (m["answer"] + "<other|>", True, False), (m["answer"] + "a" + call, False, False),
        (thought + "[TOOL_CALLS]" + call, False, False)]
    reasoning = (m["thought"], m["after"])
    for spec_texts, column, about in (
            (messages_spec(tools), 1, None), (messages_spec(tools, answer, ["thought"]), 2, None),
            (messages_spec(tools), 1, reasoning)):
        made = process.compile(TOOL_CALLS, spec_texts, reasoning=about)
        for case in cases:
            assert accepts(process, made, marked(case[0])) == case[column], (case, column, about)
        # The marks in other tokens, which a reader takes for marks.
        for spelled in (m["answer"] + "\0" + call, m["answer"] + "\0" + m["after"], m["answer"] + "\0<call|>"):
            before, _, after = spelled.partition("\0")
            assert not accepts(process, made, marked(before) + after.encode()), spelled
        process.unload(made)
    ended = calls = several = 0
    wished = [marked(t) for t in (m["after"], m["answer"], m["call"][1], m["thought"], m["preamble"])] + [
        b"<call|>", b"<call>c to=f.", b"<call|>[TOOL_CALLS]a"]
    for i in range(60):
        schema = (answer, "")[i % 2]
        made = process.compile(TOOL_CALLS, messages_spec(tools, schema, ["thought"] if schema else ["thought", "preamble"]),
                               reasoning=reasoning if i % 4 > 1 else None)
        drawn = walk(process, made, rng, wished)
        process.unload(made)
        if drawn is None:
            continue
        text, _ = without_marks(drawn)
        *before, (mark, last) = message_parts(text, reasons=i % 4 > 1)
        if mark == m["answer"]:
            assert not schema or isinstance(json.loads(last)["x"], bool), drawn
            assert not any(e in last for e in m["excluded"]), drawn
        else:
            name, _, given = last.partition("[ARGS]")
            assert name in tools[::2], drawn
            jsonschema.Draft202012Validator(json.loads(tools[tools.index(name) + 1])).validate(json.loads(given))
        assert not schema or all(mark == m["thought"] for mark, _ in before), drawn
        ended, calls, several = ended + 1, calls + (mark != m["answer"]), several + (len(before) > 0)
    print(f"60 answers in messages: {ended} ended, {calls} with a call, {several} with messages before")
    assert ended > 20 and 0 < calls < ended and several > 3


def check_white_space(process):
    schema = json.dumps({"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]})
    calls = spec("bare", "r", ["f", schema])
    for kind, texts, text in ((language_test.JSON_SCHEMA, [schema], '{%s"x": 1}'),
                              (TOOL_CALLS, calls, '{"name": "f", "arguments": {%s"x": 1}}')):
        for any_whitespace in (False, True):
            made = process.compile(kind, texts, any_whitespace=any_whitespace)
            for count, expected in ((16, True), (17, any_whitespace), (300, any_whitespace)):
                white = (text % (" " * count)).encode()
                assert accepts(process, made, white) == expected, (kind, any_whitespace, count)
            process.unload(made)


def check_reasoning(process):
    """What comes before a constraint, and that masks say the same as what is accepted."""
    for begin, end, cases in (
            ("<think>", "</think>", [
                ("12", True), ("<think>a b</think>12", True), ("<think></think>\n\n12", True), (" 12", False),
                ("<think>a</think>", False), ("<think>a", False), ("<think", False), ("<thinl>12", False),
                ("<think></think>" + " " * 16 + "1", True), ("<think></think>" + " " * 17 + "1", False),
                ("<think></thin</think>1", True), ("<think></think>1</think>1", False),
                ("<think>\xff<call>\xff</think>1", False)]),
            ("", "</think>", [("12", False), ("a</think>12", True), ("<think></think> 1", True), ("</think>x", False)]),
            ("<call>", "<call|>", [
                ("\xff<call>\xffa\xff<call|>\xff1", True), ("<call>a<call|>1", True), ("1", True),
                ("\xff<call>\xff\xff<|other|>\xff", False), ("\xff<call|>\xff1", False)]),
            ("", "<call|>go<call>on", [
                ("x\xff<call|>\xffgo\xff<call>\xffon 1", True), ("x\xff<call|>\xffx", False),
                ("x\xff<call>\xff", False), ("x\xff<call|>\xff\xff<call|>\xff", False)])):
        made = process.compile(language_test.REGEX, ["[0-9]+"], reasoning=(begin, end))
        for text, expected in cases:
            answer = text.encode("utf-8").replace("\xff".encode(), b"\xff")
            assert accepts(process, made, answer) == expected, (begin, end, text)
            if not expected:
                continue
            ids, known = encoded(process, answer), 0
            process.ask_mask(closed=[made], items=0, item=b"", reply=False)
            for i, token in enumerate(ids):
                allowed = process.allowed(made, known, ids[known:i])
                known = i
                assert token in allowed, (begin, end, text, i)
                assert i == len(ids) - 1 or END_TOKEN not in allowed or text[:2] == "12", (text, i)
        process.unload(made)
    # What begins like reasoning may be an answer.
    made = process.compile(language_test.CHOICES, ["<tea>", "<think>"], reasoning=("<think>", "</think>"))
    for text, expected in (("<tea>", True), ("<think>", False), ("<think>x</think><tea>", True),
                           ("<think>x</think><think>", True)):
        assert accepts(process, made, text.encode()) == expected, text
    process.unload(made)
    for reasoning, reason in ((("", ""), "SCHEMA_INVALID"), (("x" * 257, "y"), "SCHEMA_TOO_COMPLEX")):
        try:
            process.compile(language_test.REGEX, ["a"], reasoning=reasoning)
            raise AssertionError(f"{reasoning} compiled")
        except Refused as error:
            assert str(error).startswith(reason), (reasoning, error)


def check_refused(process):
    good = spec("tags", "", ["f", ""])
    for texts, reason in (
            ([], "SCHEMA_INVALID"), (good[:-1], "SCHEMA_INVALID"), (good[:11], "SCHEMA_INVALID"),
            (good + ["f", ""], "SCHEMA_INVALID"), (good + ["g", "{"], "SCHEMA_INVALID"),
            (good + ["g", '{"type": "string"}'], "SCHEMA_UNSUPPORTED"),
            (["m", *good[1:]], "SCHEMA_INVALID"), (["rm", *messages_spec(good[-2:])[1:]], "SCHEMA_INVALID"),
            (messages_spec(good[-2:], before=["thought"] * 5), "SCHEMA_TOO_COMPLEX"),
            (good + ["g", '{"type": "object", "not": {}}'], "SCHEMA_UNSUPPORTED"),
            (good + ["g" * 3000, ""], "SCHEMA_TOO_COMPLEX")):
        try:
            process.compile(TOOL_CALLS, texts)
            raise AssertionError(f"{texts} compiled")
        except Refused as error:
            assert str(error).startswith(reason), (texts, error)


def main():
    program = os.path.join(sys.argv[1], "baton-grammar")
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 300
    with tempfile.TemporaryDirectory() as directory:
        rng = seed.generator("tool calls")
        process = GrammarProcess(program, directory, write_tokenizer(directory, rng))
        check_refused(process)
        check_chosen(process)
        check_answers(process)
        check_messages(process, rng)
        check_white_space(process)
        check_reasoning(process)
        check_random(process, rng, count)
        process.end()


if __name__ == "__main__":
    main()
