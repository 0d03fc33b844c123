"""Calls whose arguments are literals of Python, or as Gemma 4 writes them: what baton-grammar lets a
model write is what the request asks for.

  literal_language_test.py BIN_DIR [COUNT]

As tool_call_language_test, whose tokenizers these are: tokens are drawn at random from the masks, and
the answer is read here, by a reader of its own, and must be valid. COUNT of each tokenizer, 300 by
default.
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
import seed  # noqa: E402
from language_test import END_TOKEN, GrammarProcess  # noqa: E402
from tool_call_language_test import (  # noqa: E402
    SPECIAL, TOOL_CALLS, accepts, encoded, walk, without_marks, write_tokenizer)

PYTHON, GEMMA = 5, 6  # ArgumentStyle
QUOTE = '<|"|>'
TEXTS = {  # opening to closing, as FORMATS has them; arguments end with the first character of the fourth
    PYTHON: ("<call>[", "", "(", ")", ", ", "]<call|>"),
    GEMMA: ("", "<call>call:", "{", "}<call|>", "", ""),
}


def tokens_of(process, text):
    """The text, as bytes, with the tokenizer's special tokens between bytes 0xff."""
    special = [t[1:-1] for t in process.tokens if t[:1] == b"\xff" and len(t) > 1]
    return re.sub(b"|".join(map(re.escape, special)), lambda m: b"\xff" + m.group() + b"\xff", text.encode())


class Reader:
    """Reads arguments as a style writes them, in the only way that it may."""

    ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}

    def __init__(self, text, python):
        self.text, self.python, self.at = text, python, 0

    def takes(self, token):
        found = self.text.startswith(token, self.at)
        self.at += len(token) * found
        return found

    def matched(self, pattern):
        match = re.compile(pattern).match(self.text, self.at)
        assert match, self.text[self.at:]
        self.at = match.end()
        return match.group()

    def string(self):
        if not self.python:
            assert self.takes(QUOTE), self.text[self.at:]
            end = self.text.index(QUOTE, self.at)
            text, self.at = self.text[self.at:end], end + len(QUOTE)
            return text
        quote, text = self.matched("[\"']"), ""
        while not self.takes(quote):
            if not self.takes("\\"):
                text += self.matched("[^\\x00-\x08\x0b\x0c\x0e-\x1f\\\\]")
            elif self.takes("u"):
                text += chr(int(self.matched("[0-9A-Fa-f]{4}"), 16))
            else:
                escaped = self.matched("[\"'\\\\bfnrt]")
                text += self.ESCAPES.get(escaped, escaped)
        text.encode()  # no half of a surrogate pair
        return text

    def value(self):
        begin = self.text[self.at:]
        if begin.startswith(("<", '"', "'")):
            return self.string()
        words = {"True": True, "False": False, "None": None} if self.python else {
            "true": True, "false": False, "null": None, "None": None}
        for word, value in words.items():
            if self.takes(word):
                return value
        if self.takes("["):
            return self.items("]", self.value)
        if self.takes("{"):
            return dict(self.items("}", self.member))
        return json.loads(self.matched("-?[0-9][-+.0-9Ee]*"))

    def member(self):
        bare = not self.python and self.text[self.at] != "<"
        key = self.matched("[^ :<]+") if bare else self.string()
        assert self.takes(": " if self.python else ":")
        return key, self.value()

    def argument(self):
        if not self.python:
            return self.member()
        key = self.matched("[^ =]+")
        assert self.takes("=")
        return key, self.value()

    def items(self, end, read):
        items = []
        while not self.takes(end):
            assert not items or self.takes(", " if self.python else ","), self.text[self.at:]
            items.append(read())
        return items


def literal_schema(rng, depth=0):
    """A schema of arguments, or of an object within them."""
    def value():
        kinds = [
            {"type": "integer", "minimum": -5, "maximum": 120}, {"type": "integer"}, {"type": "number"},
            {"type": "boolean"}, {"type": ["null", "boolean"]}, {"type": "string"}, {"type": "string", "maxLength": 4},
            {"type": "string", "pattern": "^[a-zé]{1,3}-\\d$"}, {"type": "string", "format": "date"},
            {"enum": ["a", "b\"'\\\\\n", "<call|>", 1, None, True, [1.5, {"k 1": "x", "y": False}]]},
            {}, {"type": "array", "items": {"type": "boolean"}, "minItems": rng.randrange(3), "maxItems": 3},
            {"type": "array", "prefixItems": [{"const": "x"}, {"type": "null"}], "items": {"type": "string"}},
            {"type": "object", "additionalProperties": {"type": "boolean"}}, {"$ref": "#/$defs/tree"},
            {"anyOf": [{"$ref": "#/$defs/text"}, {"type": "null"}]}]
        return rng.choice(kinds + ([literal_schema(rng, depth + 1)] * 3 if depth < 2 else []))

    names = rng.sample(["a", "b_c", "é", "z.z"] + (["b c", '"', ""] if depth else []), rng.randrange(0, 4))
    return {"type": "object", "properties": {name: value() for name in names},
            "required": [n for n in names if rng.random() < 0.5], "additionalProperties": False}


def check_random(process, rng, count):
    definitions = {"text": {"type": "string", "maxLength": 3},
                   "tree": {"type": "object", "properties": {
                       "v": {"type": "boolean"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
                       "required": ["v"]}}
    ended = with_arguments = parallel = 0
    for i in range(count):
        style = (PYTHON, GEMMA)[i % 2]
        opening, before_name, before_arguments, after, separator, closing = TEXTS[style]
        schemas = {f: literal_schema(rng) | {"$defs": definitions} for f in rng.sample(["f", "ff", "a.b"], 2)}
        flags = rng.choice(["r", "rs"])
        spec = [flags, *TEXTS[style], "", str(style), "", "0"]
        made = process.compile(TOOL_CALLS, spec + [t for f in schemas for t in (f, json.dumps(schemas[f]))])
        wished = [tokens_of(process, t) for t in (separator + before_name, QUOTE, '"', "'", after)]
        answer = walk(process, made, rng, wished)
        process.unload(made)
        if answer is None:
            continue
        text, special = without_marks(answer)
        marks = "".join(TEXTS[style]) + (QUOTE if style == GEMMA else "")
        assert all(token in marks for token in special), answer
        reader = Reader(text, python=style == PYTHON)
        calls = 0
        assert reader.takes(opening + before_name), answer
        while calls == 0 or reader.takes(separator + before_name):
            function = reader.matched("[a-z.]+")
            assert reader.takes(before_arguments), answer
            arguments = dict(reader.items(after[0], reader.argument))
            assert reader.takes(after[1:]), answer
            jsonschema.Draft202012Validator(schemas[function]).validate(arguments)
            calls, with_arguments = calls + 1, with_arguments + (arguments != {})
        assert text[reader.at:] == closing and (calls == 1 or flags == "r"), answer
        ended, parallel = ended + 1, parallel + (calls > 1)
    print(f"{count} requests: {ended} answers ended, {parallel} with several calls, {with_arguments} calls with arguments")
    assert ended > count * 0.6 and with_arguments > count * 0.3 and parallel > count * 0.02


def check_chosen(process):
    """Arguments that are allowed, and others that are not."""
    schema = {"type": "object", "properties": {
        "s": {"type": "string"}, "n": {"type": "integer", "minimum": 0}, "b": {"type": ["boolean", "null"]},
        "o": {"type": "object", "properties": {"k 1": {"type": "array", "items": {"type": "integer"}},
                                               "k": {"type": "string", "maxLength": 2}}}}, "required": ["s"]}
    tools = ["f", json.dumps(schema), "g", json.dumps({"type": "object", "properties": {}}), "any", "",
             "map", json.dumps({"type": "object", "properties": {
                 "m": {"type": "object", "additionalProperties": {"type": "integer"}}}})]
    python = [
        ('s="a"', True), ("s='a'", True), ("s='a', n=5", True), ("s='a',n=5", False), ("n=5", False), ("", False),
        ("s='a', n=-5", False), ("s='a', n='5'", False), ("n=5, s='a'", False), ("s='it\\'s'", True), ("s='it's'", False),
        ('s="it\'s\\u00e9\\n\n"', True), ("s='\\x41'", False), ("s='\\ud800'", False), ("s=a", False),
        ("s='', b=True", True), ("s='', b=None", True), ("s='', b=true", False), ("s='', b=null", False),
        ("s='', o={}", True), ("s='', o={'k 1': [1, 2], \"k\": \"ab\"}", True), ("s='', o={'k': \"abc\"}", False),
        ("s='', o={k: \"a\"}", False), ("s='', z=1", False), ("s='a' ", False), ("s='<call|>'", False)]
    gemma = [
        ('s:<|"|>a<|"|>', True), ('s:<|"|>a<|"|>,n:5', True), ('s:<|"|>a<|"|>, n:5', False), ("n:5", False), ("", False),
        ('s:<|"|>a<|"|>,n:-5', False), ('n:5,s:<|"|>a<|"|>', False), ('s:<|"|>it\'s "<|\\\n}<|"|>', True),
        ('s:"a"', False), ("s:a", False), ('s:<|"|><|"|>,b:true', True), ('s:<|"|><|"|>,b:null', True),
        ('s:<|"|><|"|>,b:True', False), ('s:<|"|><|"|>,o:{}', True),
        ('s:<|"|><|"|>,o:{<|"|>k 1<|"|>:[1,2],k:<|"|>ab<|"|>}', True),
        ('s:<|"|><|"|>,o:{k:<|"|>abc<|"|>}', False), ('s:<|"|><|"|>,o:{k 1:[]}', False),
        ('s:<|"|><|"|>,z:1', False), ('s:<|"|>a<|"|>b<|"|>', False), ('s:<|"|><|"|<|"|>', True)]
    for style, texts in TEXTS.items():
        def call(arguments, function="f"):
            return texts[1] + function + texts[2] + arguments + texts[3]

        any_call = call("a=1, b_2={'x': [None, 'é']}" if style == PYTHON else 'a:1,b_2:{x:[null,<|"|>é<|"|>]}', "any")
        cases = [(call(arguments), expected) for arguments, expected in (python if style == PYTHON else gemma)]
        if style == GEMMA:  # names within objects may have quotes, those of the call's arguments not
            cases += [(call('a:{<|"|>b c<|"|>:{<|"|><|"|>:1,d:2}}', "any"), True), (call('<|"|>a<|"|>:1', "any"), False),
                      (call("a:{b c:1}", "any"), False), (call('m:{<|"|>b c<|"|>:1,d:2}', "map"), True),
                      (call('m:{<|"|>b<|"|>:<|"|>x<|"|>}', "map"), False)]
        cases += [(call("", "g"), True), (call("s=1" if style == PYTHON else "s:1", "g"), False), (any_call, True),
                  (call("", "any"), True), (call("", "h"), False), (call("", "g") + texts[4] + any_call, True)]
        made = process.compile(TOOL_CALLS, ["r", *texts, "", str(style), "", "0", *tools])
        for text, expected in cases:
            whole = texts[0] + text + texts[5]
            assert accepts(process, made, tokens_of(process, whole)) == expected, f"{whole!r}: not {expected}"
        whole = tokens_of(process, texts[0] + call('s:<|"|>ab<|"|>') + texts[5])
        quote = tokens_of(process, QUOTE)
        if style == GEMMA and quote != QUOTE.encode():  # its characters in other tokens
            assert accepts(process, made, whole)
            for spelled in (whole.replace(quote, QUOTE.encode()), whole.replace(b"ab", b"a" + QUOTE.encode() + b"b")):
                assert not accepts(process, made, spelled), spelled
        process.unload(made)
        # A text in which a trigger begins calls.
        made = process.compile(TOOL_CALLS, ["", *texts, "<call>", str(style), "", "0", *tools])
        whole = texts[0] + call("", "g") + texts[5]
        for text, expected in (("text", True), ("a " + whole + " b " + whole, True), ("a <call>", False),
                               (texts[0] + call("", "h") + texts[5], False)):
            assert accepts(process, made, tokens_of(process, text)) == expected, f"{text!r}: not {expected}"
        process.unload(made)


def check_drafts(process):
    """Masks behind drafts are those of an answer that goes on so, and leave it as it was."""
    text = {PYTHON: """s="a\\n", b=None, o={'k': "ab"}""",
            GEMMA: 's:<|"|>a"\n<|"|>,b:null,o:{k:<|"|>ab<|"|>}'}
    schema = {"type": "object", "properties": {
        "s": {"type": "string"}, "b": {"type": ["boolean", "null"]},
        "o": {"type": "object", "properties": {"k": {"type": "string", "maxLength": 2}}}}}
    for style, texts in TEXTS.items():
        grammars = [process.compile(TOOL_CALLS, ["r", *texts, "", str(style), "", "0", "f", json.dumps(schema)])
                    for _ in range(2)]
        whole = texts[0] + texts[1] + "f" + texts[2] + text[style] + texts[3] + texts[5]
        ids = encoded(process, tokens_of(process, whole))
        alone = [process.allowed(grammars[0], max(i - 1, 0), ids[max(i - 1, 0):i]) for i in range(len(ids) + 1)]
        assert all(token in allowed for token, allowed in zip(ids, alone)) and END_TOKEN in alone[-1], whole
        behind = 0
        for i in range(len(ids)):
            masks = process.masks_behind(grammars[1], max(i - 1, 0), ids[max(i - 1, 0):i], ids[i:i + 4])
            assert masks == alone[i:i + len(masks)], (whole, i)
            behind += len(masks) - 1
        assert behind > 0
        for grammar in grammars:
            process.unload(grammar)


def main():
    program = os.path.join(sys.argv[1], "baton-grammar")
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 300
    rng = seed.generator("literals")
    # Gemma's quote is a special token, or not.
    for special in (SPECIAL, [text for text in SPECIAL if text != QUOTE]):
        with tempfile.TemporaryDirectory() as directory:
            process = GrammarProcess(program, directory, write_tokenizer(directory, rng, special))
            check_chosen(process)
            check_drafts(process)
            check_random(process, rng, count)
            process.end()


if __name__ == "__main__":
    main()
