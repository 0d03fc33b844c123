"""What baton-grammar lets a model write is what the request asks for.

  language_test.py BIN_DIR [COUNT]

Random choices, regular expressions, patterns and schemas, with each ASCII character at each kind of
place and hexadecimal digits behind it. For each, tokens are drawn at random from the masks until the
answer ends, and the text must be one that Python's re, json or jsonschema accepts; a text that is
made beside the request must be one that the masks allow. COUNT of each kind, 2,000 by default.
"""

import json
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import jsonschema

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "testing"))
import seed  # noqa: E402

JSON_SCHEMA, REGEX, CHOICES = 1, 2, 3  # GrammarSpec::Kind
HELLO, COMPILE, LOAD, UNLOAD = range(4)  # Request
END_TOKEN = 256
HEX = "0123456789abcdefABCDEF"
PUNCTUATION = set("^$.*+?\\()[]{}|/")  # characters that a backslash may escape
MAX_TOKENS = 120


# ------------------------------------------------------------------------------ the grammar process


def text_field(data):
    return struct.pack("<Q", len(data)) + data


def ids_field(ids):
    return struct.pack("<Q", len(ids)) + struct.pack(f"<{len(ids)}i", *ids)


def take_text(frame, at):
    (size,) = struct.unpack_from("<Q", frame, at)
    return frame[at + 8 : at + 8 + size], at + 8 + size


class Refused(Exception):
    pass


class GrammarProcess:
    """The protocol of common/grammar/grammar_process.h."""

    def __init__(self, program, model_dir, tokens):
        self.tokens = tokens
        self.control, control = socket.socketpair()
        self.masks, masks = socket.socketpair()
        self.last = 0

        def descriptors():  # the copies are above 4 first, so that one does not replace the other
            high = [os.dup2(fd.fileno(), number) for fd, number in ((control, 100), (masks, 101))]
            os.dup2(high[0], 3)
            os.dup2(high[1], 4)

        self.process = subprocess.Popen(
            [program, str(os.getpid()), str(2 << 30)], close_fds=False, preexec_fn=descriptors
        )
        control.close()
        masks.close()
        hello = struct.pack("<Q", HELLO) + text_field(model_dir.encode())
        hello += struct.pack("<Q", len(tokens)) + ids_field([END_TOKEN])
        self.ask(self.control, hello + struct.pack("<QQ", 60_000, 60_000))

    def end(self):
        self.process.kill()
        self.process.wait()

    def ask(self, on, request):
        on.sendall(struct.pack("<I", len(request)) + request)
        (size,) = struct.unpack("<I", self.receive(on, 4))
        frame = self.receive(on, size)
        reason, at = take_text(frame, 0)
        message, at = take_text(frame, at)
        if reason:
            raise Refused(f"{reason.decode()}: {message.decode()}")
        return frame[at:]

    @staticmethod
    def receive(on, size):
        data = b""
        while len(data) < size:
            more = on.recv(size - len(data))
            assert more, "baton-grammar has ended"
            data += more
        return data

    def compile(self, kind, texts, reasoning=None, any_whitespace=False):
        """`reasoning`: what begins and what ends it."""
        request = struct.pack("<QQQQ", COMPILE, kind, any_whitespace, reasoning is not None)
        request += b"".join(text_field(t.encode()) for t in reasoning or ()) + struct.pack("<Q", len(texts))
        compiled, _ = take_text(
            self.ask(self.control, request + b"".join(text_field(t.encode()) for t in texts)), 0
        )
        self.last += 1
        self.ask(self.control, struct.pack("<QQ", LOAD, self.last) + text_field(compiled))
        return self.last

    def unload(self, grammar):
        self.ask(self.control, struct.pack("<QQ", UNLOAD, grammar))
        self.ask_mask(closed=[grammar], items=0, item=b"", reply=False)

    def ask_mask(self, closed, items, item, reply=True):
        request = struct.pack("<Q", len(closed)) + struct.pack(f"<{len(closed)}Q", *closed)
        request += struct.pack("<Q", items) + text_field(item)
        if reply:
            return self.ask(self.masks, request)
        self.masks.sendall(struct.pack("<I", len(request)) + request)
        return None

    def masks_behind(self, grammar, known, further, drafts=()):
        """The tokens that may come next, and those behind each draft, of which the last ones may be
        left out. There is one session for each grammar."""
        item = struct.pack("<QQQ", grammar, grammar, known) + ids_field(further) + ids_field(drafts)
        reply = self.ask_mask(closed=[], items=1, item=item)
        (count,) = struct.unpack_from("<Q", reply)
        allowed, at = [], 8
        for _ in range(count):
            end = at + 8 + 4 * struct.unpack_from("<Q", reply, at)[0]
            bits = int.from_bytes(reply[at + 8 : end], "little")
            allowed.append([i for i in range(len(self.tokens)) if bits >> i & 1])
            at = end
        return allowed

    def allowed(self, grammar, known, further):
        return self.masks_behind(grammar, known, further)[0]

    def walk(self, grammar, rng):
        """A random answer, or None if it does not end within MAX_TOKENS."""
        answer, further, known = b"", [], 0
        while known < MAX_TOKENS:
            tokens = self.allowed(grammar, known, further)
            known += len(further)
            assert tokens, f"no token may follow {answer}"
            if END_TOKEN in tokens and (len(tokens) == 1 or rng.random() < 0.5):
                return answer
            texts = [t for t in tokens if t != END_TOKEN]
            wide = [t for t in texts if self.tokens[t][0] >= 0x80]  # few, but the longest
            further = [rng.choice(wide if wide and rng.random() < 0.3 else texts)]
            answer += self.tokens[further[0]]
        return None

    def accepts(self, grammar, text):
        try:
            return END_TOKEN in self.allowed(grammar, 0, list(text.encode()))
        except Refused:
            return False


def byte_names():
    """The printable stand-ins of bytes in byte-level vocabularies."""
    plain = [b for b in range(256) if 33 <= b <= 126 or 161 <= b <= 172 or b >= 174]
    other = iter(range(256, 512))
    return [chr(b) if b in plain else chr(next(other)) for b in range(256)]


def write_tokenizer(directory, rng):
    """One token for each byte, the end token, and random short texts. Returns the tokens' bytes."""
    letters = [chr(c) for c in range(128)] + ["é", "日", "😀"]
    words = set()
    while len(words) < 200:
        words.add("".join(rng.choice(rng.choice([letters, HEX, '"\\^-]'])) for _ in range(rng.choice([2, 3]))).encode())
    words = sorted(words)
    names = byte_names()
    vocabulary = {name: byte for byte, name in enumerate(names)}
    for i, word in enumerate(words):
        vocabulary["".join(names[b] for b in word)] = END_TOKEN + 1 + i
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    end = {"id": END_TOKEN, "content": "<|end|>", "single_word": False, "lstrip": False,
           "rstrip": False, "normalized": False, "special": True}
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
             "ignore_merges": False, "vocab": vocabulary, "merges": []}
    with open(os.path.join(directory, "tokenizer.json"), "w") as file:
        json.dump({"version": "1.0", "truncation": None, "padding": None, "added_tokens": [end],
                   "normalizer": None, "pre_tokenizer": byte_level, "post_processor": None,
                   "decoder": byte_level, "model": model}, file)
    return [bytes([b]) for b in range(256)] + [b""] + words


# --------------------------------------------------------------------------------- what is asked for


class Expressions:
    """Random regular expressions, each with a text that it matches."""

    def __init__(self, rng, in_json):
        self.rng = rng
        self.in_json = in_json
        low = 0x20 if in_json else 0
        self.ascii = [chr(c) for c in range(low, 128) if not in_json or chr(c) not in '"\\']
        self.wide = ["\x80", "é", "ÿ", "Ł", "\u2028", "日", "\ud7ff", "\ue000", "\ufffd", "😀",
                     "\U0010ffff"]

    def any_character(self):
        return self.rng.choice(self.rng.choice([self.ascii, HEX, self.wide]))

    def spelled(self, c, in_class):
        """One of the ways to write the character."""
        ways = []
        if c not in ("\\[]^-" if in_class else "^$.*+?\\()[{|"):
            ways.append(c)
        if c in PUNCTUATION or (in_class and c == "-"):
            ways.append("\\" + c)
        if ord(c) < 256:
            ways.append(self.rng.choice([f"\\x{ord(c):02x}", f"\\x{ord(c):02X}"]))
        if ord(c) < 0x10000:
            ways.append(f"\\u{ord(c):04x}")
        named = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\f": "\\f", "\v": "\\v"}
        if c in named:
            ways.append(named[c])
        return self.rng.choice(ways)

    def literal(self, c):
        return self.spelled(c, in_class=False), c

    def range_from(self, c):
        """A range that begins or ends at the character, without what JSON escapes."""
        other = self.any_character()
        first, last = sorted([c, other])
        if self.in_json and any(first <= bad <= last for bad in '"\\'):
            first = last = c
        return first, last

    def char_class(self, c, place):
        """A class with the character at the place: 0 the first, 1 in the middle, 2 the last."""
        negated = not self.in_json and self.rng.random() < 0.3
        if self.rng.random() < 0.3:
            first, last = self.range_from(c)
            member = f"{self.spelled(first, True)}-{self.spelled(last, True)}"
        else:
            first = last = c
            member = self.spelled(c, True)
        others, spans = [], [(first, last)]
        for _ in range(self.rng.randrange(0, 4) + (place == 1) * 2):
            escape = self.rng.random() < 0.15
            if escape:
                name = self.rng.choice("dw" if self.in_json or negated else "dwsDWS")
                others.append("\\" + name)
                spans += {"d": [("0", "9")], "w": [("0", "9"), ("A", "Z"), ("_", "_"), ("a", "z")]}.get(name, [])
            elif self.rng.random() < 0.2:
                low, high = sorted(self.rng.choice(self.wide) for _ in range(2))
                others.append(f"{self.spelled(low, True)}-{self.spelled(high, True)}")
                spans.append((low, high))
            else:
                other = self.any_character()
                others.append(self.spelled(other, True))
                spans.append((other, other))
        at = {0: 0, 1: max(1, len(others) // 2), 2: len(others)}[place]
        members = others[:at] + [member] + others[at:]
        outside = [x for x in self.ascii + list(HEX) if not any(a <= x <= b for a, b in spans)]
        if negated and outside:
            return "[^" + "".join(members) + "]", self.rng.choice(outside)
        return "[" + "".join(members) + "]", c  # there may be no other character at all

    def atom(self, c, depth):
        kind = self.rng.randrange(8)
        if kind < 3:
            return self.literal(c)
        if kind < 6:
            return self.char_class(c, self.rng.randrange(3))
        if kind == 6 and depth < 2:
            text, witness = self.alternatives(c, depth + 1)
            return self.rng.choice(["(", "(?:"]) + text + ")", witness
        if kind == 7 and not self.in_json:
            return self.rng.choice([(".", "x"), ("\\d", "7"), ("\\w", "_"), ("\\s", "\t"),
                                    ("\\D", "x"), ("\\W", "-"), ("\\S", "é")])
        return self.literal(c)

    def repeated(self, c, depth):
        text, witness = self.atom(c, depth)
        if witness is None or self.rng.random() < 0.6:
            return text, witness
        quantifier, times = self.rng.choice(
            [("*", 2), ("+", 2), ("?", 1), ("{2}", 2), ("{0,2}", 0), ("{1,}", 3), ("{0}", 0), ("{3}", 3)])
        lazy = self.rng.choice(["", "?"])
        return text + quantifier + lazy, witness * times

    def sequence(self, c, depth):
        """The character, and hexadecimal digits behind it."""
        parts = [self.repeated(c, depth)]
        parts += [self.literal(self.rng.choice(HEX)) for _ in range(self.rng.randrange(3))]
        for _ in range(self.rng.randrange(3)):
            parts.insert(self.rng.choice([0, len(parts)]), self.repeated(self.any_character(), depth))
        texts, witnesses = zip(*parts)
        return "".join(texts), None if None in witnesses else "".join(witnesses)

    def alternatives(self, c, depth):
        branches = [self.sequence(c, depth)]
        while self.rng.random() < 0.3:
            branches.append(self.rng.choice([("", ""), self.sequence(self.any_character(), depth)]))
        self.rng.shuffle(branches)
        return "|".join(text for text, _ in branches), self.rng.choice(branches)[1]

    def expression(self, i):
        text, witness = self.alternatives(self.ascii[i % len(self.ascii)], 0)
        if self.rng.random() < 0.2 and "|" not in text:
            text = "^" + text + "$"
        return text or "a?", witness if text else "a"


def text_with(rng, i):
    """A text with the i-th ASCII character at one of three places, and hexadecimal digits."""
    c = chr(i % 128)
    digits = lambda most: "".join(rng.choice(HEX) for _ in range(rng.randrange(most + 1)))
    wide = rng.choice(["", "", "é", "日", "😀", "\x80"])
    return rng.choice([c + digits(5), digits(2) + c + digits(5), digits(3) + wide + c]) + rng.choice(["", wide])


def ask_choices(rng, i):
    texts = [text_with(rng, i)] + [text_with(rng, rng.randrange(128)) for _ in range(rng.randrange(4))]
    return CHOICES, texts, rng.choice(texts), lambda answer: answer in texts


def ask_regex(rng, i):
    regex, witness = Expressions(rng, in_json=False).expression(i)
    # ECMA's \d and \w are ASCII. Without them, Python's white space must agree, too.
    matchers = [re.compile(regex, re.ASCII)]
    if not re.search(r"\\[dwDW]", regex):
        matchers.append(re.compile(regex))
    return REGEX, [regex], witness, lambda answer: all(m.fullmatch(answer) for m in matchers)


def valid(schema):
    validator = jsonschema.Draft202012Validator(schema)
    return lambda answer: validator.is_valid(json.loads(answer))


def ask_pattern(rng, i):
    pattern, witness = Expressions(rng, in_json=True).expression(i)
    schema = {"type": "string", "pattern": pattern}
    matcher, check = re.compile(pattern, re.ASCII), valid(schema)

    def both(answer):
        return check(answer) and matcher.fullmatch(json.loads(answer))

    text = None if witness is None else json.dumps(witness, ensure_ascii=False)
    return JSON_SCHEMA, [json.dumps(schema, ensure_ascii=rng.random() < 0.5)], text, both


def ask_schema(rng, i):
    """Names, constants and bounded strings."""
    text = text_with(rng, i)
    least = rng.randrange(1, 4)  # 0 would be no bound
    most = least + rng.randrange(1, 5)
    word = "".join(rng.choice(["a", "é", "😀", " ", "/"]) for _ in range(rng.randrange(least, most + 1)))
    value = rng.choice([text, 7, None, [text], {text: text_with(rng, rng.randrange(128))}])
    schema, witness = rng.choice([
        ({"const": value}, None),
        ({"enum": [text_with(rng, rng.randrange(128)), value, text]}, None),
        ({"properties": {text: {"const": value}, "x" + text: {"type": "null"}}, "required": [text],
          "additionalProperties": False}, None),
        ({"type": "string", "minLength": least, "maxLength": most}, word),
        ({"type": ["string", "null"], "minLength": least}, word),
        ({"type": "string", "maxLength": most}, word),
    ])
    allowed = None if witness is None else json.dumps(witness, ensure_ascii=False)
    return JSON_SCHEMA, [json.dumps(schema, ensure_ascii=rng.random() < 0.5)], allowed, valid(schema)


def check(process, rng, ask, i):
    kind, texts, witness, accepted = ask(rng, i)
    grammar = process.compile(kind, texts)
    answer = process.walk(grammar, rng)
    if answer is not None:
        assert accepted(answer.decode()), f"{texts} answers {answer}"
    if witness is not None:
        assert accepted(witness), f"the test is wrong: {texts}, {witness!r}"
        process.unload(grammar)
        grammar = process.compile(kind, texts)
        assert process.accepts(grammar, witness), f"{texts} does not allow {witness!r}"
    process.unload(grammar)
    return answer is not None


def check_kind(process, rng, ask, count):
    failures, ended = 0, 0
    for i in range(count):
        try:
            ended += check(process, rng, ask, i)
        except (AssertionError, Refused, UnicodeDecodeError, json.JSONDecodeError) as error:
            failures += 1
            print(f"{ask.__name__} {i}: {type(error).__name__}: {error}")
            if failures == 5:
                return False
    print(f"{ask.__name__}: {count}, of which {ended} ended", flush=True)
    return failures == 0 and ended >= count * 0.85


def main():
    warnings.simplefilter("ignore", FutureWarning)  # warnings of - and & in classes
    program = os.path.join(sys.argv[1], "baton-grammar")
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    failed = False
    with tempfile.TemporaryDirectory() as directory:
        rng = seed.generator("languages")
        process = GrammarProcess(program, directory, write_tokenizer(directory, rng))
        for ask in (ask_choices, ask_regex, ask_pattern, ask_schema):
            failed |= not check_kind(process, rng, ask, count)
        process.end()
    sys.exit(failed)


if __name__ == "__main__":
    main()
