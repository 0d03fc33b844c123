"""Trains small tokenizers of every family and writes what `tokenizers` makes of strings.

    make_golden.py OUTPUT_DIR      needs the PyPI package `tokenizers` alone

Published tokenizers are too large to ship and may not be downloaded by a test, so each family's
pipeline (normalizer, pre-tokenizer, model options, post-processor, decoder, added tokens) is set up
as published, and a vocabulary is trained on text made here. Everything follows from one seed.

Per family OUTPUT_DIR/<family>/tokenizer.json, and OUTPUT_DIR/<family>/golden.jsonl with one JSON
array per string: [text, ids with special tokens, ids without, decoded with special tokens, decoded
without]. After the strings come lists of ids alone, with null for what is not there:
[null, null, ids, decoded with special tokens, decoded without].
"""

import collections
import json
import pathlib
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

SEED = 20240607
STRINGS_PER_FAMILY = 10_500
ID_LISTS_PER_FAMILY = 1_000

LLAMA3_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")
# Marks belong to words.
QWEN35_PATTERN = QWEN2_PATTERN.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]+", r"[^\s\p{L}\p{M}\p{N}]+")
TEKKEN_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

GPT4O_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SEED_PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}"
    r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DEEPSEEK_LETTERS = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293"
    "\u0295-\u02af\u0370-\u0373\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c"
    "\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f\u0531-\u0556\u10a0-\u10c5"
    "\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59"
    "\u1f5b\u1f5d\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc"
    "\u1fd0-\u1fd3\u1fd6-\u1fdb\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107"
    "\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128\u212a-\u212d\u212f-\u2134\u2139"
    "\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4\u2ceb-\u2cee"
    "\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e"
    "\uab70-\uabbf\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a"
    "\U00010400-\U0001044f\U000104b0-\U000104d3\U000104d8-\U000104fb\U00010c80-\U00010cb2"
    "\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
DEEPSEEK_PATTERNS = [
    "[\r\n]",
    rf"\s?[{DEEPSEEK_LETTERS}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
]

# --- Text ---------------------------------------------------------------------------------------

WORDS = """
the of and to in is that it was for on are as with his they at be this from have or by one had
not but what all were when we there can an your which their said if do will each about how up
out them then she many some so these would other into has more her two like him see time could
no make than first been its who now people my made over did down only way find use may water
long little very after words called just where most know get through back much before go good
new write our used me man too any day same right look think also around another came come work
three word must because does part even place well such here take why things help put years
different away again off went old number baton router prefill decode worker cluster tokenizer
prefix block cache request stream latency
""".split()
CODE = [
    "def main(argv):\n    return [x ** 2 for x in range(10) if x % 2 == 0]\n",
    "for (int i = 0; i < n; ++i) {\n\tsum += a[i] * b[i];\n}\n",
    '{"key": [1, 2.5e-3, null, true], "name": "value"}\r\n',
    "SELECT * FROM t WHERE a <> 'b' AND c >= 10; -- comment\n",
    '<div class="x">&nbsp;</div>',
    "https://example.com/a/b?c=d&e=%20#f",
    "std::vector<std::string>& v",
]
CONTRACTIONS = [
    "I'm",
    "you're",
    "he'S",
    "we'LL",
    "they'D",
    "don't",
    "I'VE",
    "it\u2019s",
    "'tis",
    "'\u017f",
    "x'",
    "'''",
    "o'clock's",
    "''s",
    "'llama",
    "'Re",
]
SPACES = [
    " ",
    "  ",
    "   ",
    "\t",
    "\n",
    "\r",
    "\r\n",
    "\n\n",
    "\u00a0",
    "\u3000",
    "\u2003",
    "\u2028",
    "\u0085",
    "\u1680",
    "\u180e",
    "\u200b",
    "\ufeff",
    "\x0b",
    "\x0c",
    "\u2581",
    "\u2581\u2581",
]
EMOJI = [
    "\U0001f600",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466",
    "\U0001f3f3\ufe0f\u200d\U0001f308",
    "\U0001f44d\U0001f3fd",
    "\u2764\ufe0f",
    "\U0001f1e9\U0001f1ea",
    "1\ufe0f\u20e3",
    "\u200d",
    "\ufe0f",
]
COMBINING = [
    "e\u0301",
    "a\u030a",
    "o\u0302\u0323",
    "n\u0303",
    "\u0301",
    "\u1112\u1161\u11ab",
    "\u0915\u094d\u0937",
    "\u05e9\u05c1",
    "\u0e01\u0e33",
    "q\u0307\u0323",
    "\u212b",
    "\u2126",
    "\ufb01",
    "\u0344",
    "\u0958",
]
RANGES = [
    (0x20, 0x7F),
    (0xA0, 0x250),
    (0x370, 0x530),
    (0x590, 0x700),
    (0x900, 0xD00),
    (0xE00, 0xE60),
    (0x1100, 0x1200),
    (0x2000, 0x2400),
    (0x3040, 0x3100),
    (0x4E00, 0x5200),
    (0xAC00, 0xB000),
    (0xF900, 0xFB00),
    (0xFF00, 0xFFF0),
    (0x10000, 0x10400),
    (0x1D400, 0x1D800),
    (0x1F300, 0x1FA00),
    (0x20000, 0x20100),
    (0x1F130, 0x1F190),
]
ADDED_NOISE = [
    "<|",
    "|>",
    "<s",
    "</s>",
    "<unk>",
    "<0x41>",
    "<0xE4>",
    "[IN",
    "ST]",
    "<|end",
    "\u0120",
    "\u010a",
]


def code_point(r):
    kind = r.random()
    if kind < 0.75:
        low, high = r.choice(RANGES)
        return chr(r.randrange(low, high))
    while True:
        c = r.randrange(0x110000)
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def sentence(r, words):
    text = []
    for i in range(words):
        word = r.choice(WORDS)
        if r.random() < 0.1:
            word = word.capitalize()
        if r.random() < 0.05:
            word += r.choice([",", ".", "!", "?", ";", ":", "...", ")", "\u2014"])
        text.append(word)
    return " ".join(text)


def run_of(r):
    return r.choice(
        [
            "_",
            "=",
            " ",
            "\n",
            "a",
            "A",
            "0",
            "7",
            "\u4f60",
            "\u0e01",
            "!",
            "\t",
            "\u2581",
            "\U0001f600",
            "ab",
            "- ",
            "\r\n",
            "\u00e9",
            "e\u0301",
            "<",
            "\x00",
        ]
    ) * r.randint(1, r.choice([4, 40, 400]))


def cjk(r):
    return "".join(chr(r.randrange(0x4E00, 0x5000)) for _ in range(r.randint(1, 12))) + r.choice(
        ["", "\u3002", "\uff0c", "\u30c6\u30b9\u30c8"]
    )


def thai(r):
    return "".join(chr(r.randrange(0x0E01, 0x0E4F)) for _ in range(r.randint(1, 20)))


def digits(r):
    text = "".join(r.choice("0123456789") for _ in range(r.randint(1, 15)))
    return r.choice(
        [text, "-" + text, text + ".5", "\u0663" + text, text + "\u00bd", "\u216b", "\u00b2" + text]
    )


def piece(r, added):
    kind = r.randrange(14)
    if kind <= 2:
        return sentence(r, r.randint(1, 12))
    if kind == 3:
        return "".join(code_point(r) for _ in range(r.randint(1, 16)))
    if kind == 4:
        return cjk(r)
    if kind == 5:
        return thai(r)
    if kind == 6:
        return r.choice(EMOJI) * r.randint(1, 3)
    if kind == 7:
        return r.choice(COMBINING)
    if kind == 8:
        return "".join(r.choice(SPACES) for _ in range(r.randint(1, 6)))
    if kind == 9:
        return run_of(r)
    if kind == 10:
        return digits(r)
    if kind == 11:
        return r.choice(CODE)
    if kind == 12:
        return r.choice(CONTRACTIONS + ["\x00", "\x01", "\x7f", "\ufffd", "\U0010ffff"])
    return r.choice(added + ADDED_NOISE)


def strings(r, added):
    """Fixed cases, then every kind of character in a few contexts, then mixtures."""
    result = [
        "",
        " ",
        "  ",
        "\n",
        "\x00",
        "a",
        " a",
        "a ",
        "Hello, world!",
        " Hello",
        "Hello  world   ",
    ]
    result += added + CONTRACTIONS + EMOJI + COMBINING + CODE + SPACES
    result += (
        [" " + a + " x" for a in added] + ["x" + a + "y" for a in added] + [a + a for a in added]
    )
    result += ["_" * 3000, " " * 3000, "a" * 3000, "\n" * 500 + "x", " \n" * 300, "1" * 1000]
    for start in range(r.randrange(64), 0x110000, 337):
        if 0xD800 <= start < 0xE000:
            continue
        c = chr(start)
        result.append(
            r.choice(
                [
                    c,
                    "a" + c,
                    " " + c + " b",
                    c + c + "1",
                    "'" + c,
                    "\n" + c + "\n",
                    "e" + c + "\u0301",
                ]
            )
        )
    while len(result) < STRINGS_PER_FAMILY:
        result.append(r.choice(["", "", " "]).join(piece(r, added) for _ in range(r.randint(1, 6))))
    return result


def corpus(r, lines):
    for _ in range(lines):
        kind = r.random()
        if kind < 0.6:
            yield sentence(r, r.randint(4, 30))
        elif kind < 0.7:
            yield r.choice(CODE)
        elif kind < 0.75:
            yield cjk(r) + thai(r)
        else:
            # ADDED_NOISE alone stands in for added tokens, which are not trained on.
            yield "".join(piece(r, []) for _ in range(3)) if kind < 0.9 else digits(r) * 2


def with_alphabet(lines, size):
    """The lines, less all but the most frequent characters. (The trainer's own limit_alphabet
    breaks ties by a hash map's order, which differs from run to run.)"""
    lines = list(lines)
    counts = collections.Counter("".join(lines))
    kept = sorted(counts, key=lambda c: (-counts[c], c))[:size]
    dropped = {ord(c): None for c in counts if c not in set(kept)}
    return [line.translate(dropped) for line in lines]


# --- Families -----------------------------------------------------------------------------------


def special(*contents):
    return [AddedToken(c, special=True, normalized=False) for c in contents]


def train_bytes(tokenizer, r, vocab_size, lines):
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        show_progress=False,
        min_frequency=1,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator(corpus(r, lines), trainer)


def llama3(r):
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(LLAMA3_PATTERN), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    train_bytes(tokenizer, r, 4000, 4000)
    tokenizer.add_special_tokens(
        special(
            "<|begin_of_text|>",
            "<|end_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
            "<|eom_id|>",
            "<|python_tag|>",
            *(f"<|reserved_special_token_{i}|>" for i in range(8)),
        )
    )
    bos = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(
                single="<|begin_of_text|> $A",
                pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
                special_tokens=[("<|begin_of_text|>", bos)],
            ),
        ]
    )
    return tokenizer


def qwen(r, pattern):
    tokenizer = Tokenizer(models.BPE(continuing_subword_prefix="", end_of_word_suffix=""))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel(
        add_prefix_space=False, trim_offsets=False, use_regex=False
    )
    tokenizer.post_processor = processors.ByteLevel(
        add_prefix_space=False, trim_offsets=False, use_regex=False
    )
    train_bytes(tokenizer, r, 12000, 9000)
    tokenizer.add_special_tokens(
        special("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>")
    )
    tokenizer.add_tokens(
        [
            AddedToken(c, normalized=False, special=False)
            for c in ("<tool_call>", "</tool_call>", "<think>", "</think>", "<|fim_prefix|>")
        ]
    )
    return tokenizer


def qwen2(r):
    return qwen(r, QWEN2_PATTERN)


def qwen35(r):
    return qwen(r, QWEN35_PATTERN)


def gpt2(r):
    tokenizer = Tokenizer(models.BPE(continuing_subword_prefix="", end_of_word_suffix=""))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True)
    tokenizer.post_processor = processors.ByteLevel(add_prefix_space=True, trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    train_bytes(tokenizer, r, 3000, 4000)
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=True)])
    return tokenizer


def tekken(r):
    tokenizer = Tokenizer(models.BPE(ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(TEKKEN_PATTERN), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    train_bytes(tokenizer, r, 4000, 4000)
    tokenizer.add_special_tokens(special("<unk>", "<s>", "</s>", "[INST]", "[/INST]"))
    tokenizer.post_processor = bos_template("<s>", tokenizer.token_to_id("<s>"))
    return tokenizer


def split_bytes(r, pattern, *added):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="removed", invert=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    train_bytes(tokenizer, r, 3000, 4000)
    tokenizer.add_special_tokens(special(*added))
    return tokenizer


def phi4_mini(r):
    return split_bytes(r, GPT4O_PATTERN, "<|endoftext|>", "<|end|>", "<|user|>", "<|assistant|>")


def seed_oss(r):
    return split_bytes(r, SEED_PATTERN, "<seed:bos>", "<seed:eos>", "<seed:think>")


def smollm(r):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    train_bytes(tokenizer, r, 3000, 4000)
    tokenizer.add_special_tokens(special("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    return tokenizer


def deepseek_v2(r):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *(
                pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)
                for pattern in DEEPSEEK_PATTERNS
            ),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    train_bytes(tokenizer, r, 3000, 4000)
    tokenizer.add_special_tokens(
        special(
            "<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cend\u2581of\u2581sentence\uff5c>"
        )
    )
    return tokenizer


def metaspace_vocabulary(r, vocab_size):
    """As a SentencePiece BPE has them: no token has a space but at its start."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement="\u2581", prepend_scheme="always"
    )
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        show_progress=False,
        min_frequency=1,
        special_tokens=["<unk>", "<s>", "</s>"] + bytes_,
    )
    tokenizer.train_from_iterator(with_alphabet(corpus(r, 4000), 400), trainer)
    model = json.loads(tokenizer.to_str())["model"]
    vocab, merges = model["vocab"], [tuple(m) for m in model["merges"]]
    # Runs of spaces, as Llama's vocabulary has.
    for length in (2, 4, 8):
        half, whole = "\u2581" * (length // 2), "\u2581" * length
        if whole not in vocab:
            vocab[whole] = len(vocab)
            merges.append((half, half))
    return vocab, merges


def bos_template(bos="<s>", bos_id=1):
    return processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos}:1 $B:1", special_tokens=[(bos, bos_id)]
    )


def llama2(r):
    vocab, merges = metaspace_vocabulary(r, 3000)
    tokenizer = Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.post_processor = bos_template()
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(special("<unk>", "<s>", "</s>"))
    return tokenizer


def mistral(r):
    """Mistral v0.3 and later Llama 2 conversions: Metaspace at the first piece, not split."""
    vocab, merges = metaspace_vocabulary(r, 2500)
    tokenizer = Tokenizer(
        models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(
        replacement="\u2581", prepend_scheme="first", split=False
    )
    tokenizer.post_processor = bos_template()
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(special("<unk>", "<s>", "</s>", "[INST]", "[/INST]"))
    return tokenizer


def crossing(r):
    """No published family: tokens that span words, unknowns not fused, flags of added tokens."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=False))
    tokenizer.normalizer = normalizers.Sequence(
        [
            normalizers.Strip(left=True, right=False),
            normalizers.NFKC(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"\p{Nd}{2,}"), "#"),
            normalizers.Replace(" ", "\u2581"),
        ]
    )
    tokenizer.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(
        vocab_size=2500,
        show_progress=False,
        min_frequency=1,
        max_token_length=12,
        special_tokens=["<unk>"],
    )
    tokenizer.train_from_iterator(with_alphabet(corpus(r, 300), 120), trainer)
    tokenizer.add_tokens(
        [
            AddedToken("<left>", lstrip=True, normalized=False),
            AddedToken("<right>", rstrip=True, normalized=False),
            AddedToken("<both>", lstrip=True, rstrip=True, normalized=False),
            AddedToken("word", single_word=True, normalized=False),
            AddedToken("Baton Cluster", normalized=True),
            AddedToken("<", normalized=False),
            AddedToken("  ", normalized=False),
            AddedToken("\uff34\uff2f\uff2b", normalized=True),
        ]
    )
    tokenizer.add_special_tokens(special("<mask>"))
    return tokenizer


def split_kinds(r):
    """No published family: every splitting component at once."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split("the", "merged_with_previous"),
            pre_tokenizers.Split(Regex("[aeiou]{2}"), "merged_with_next"),
            pre_tokenizers.Split(Regex(r"\w+|\b-\b"), "contiguous", invert=True),
            pre_tokenizers.Split(Regex(r"[^\S\n]{3}"), "removed"),
            pre_tokenizers.Punctuation("contiguous"),
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=True, use_regex=True),
            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
        ]
    )
    train_bytes(tokenizer, r, 2000, 2000)
    tokenizer.add_special_tokens(special("<a>", "<a><b>"))
    return tokenizer


def words(r):
    """No published family: the plain splitters, and no decoder."""
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.NFD()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Whitespace(),
            pre_tokenizers.Digits(individual_digits=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=2000,
        show_progress=False,
        min_frequency=1,
        special_tokens=["[UNK]", "[CLS]", "[SEP]"],
    )
    tokenizer.train_from_iterator(with_alphabet(corpus(r, 2000), 300), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    return tokenizer


FAMILIES = [llama3, qwen2, qwen35, gpt2, tekken, smollm, phi4_mini, seed_oss, deepseek_v2, llama2, mistral, crossing,
            split_kinds, words]

# --- Output -------------------------------------------------------------------------------------


def write_family(make, directory):
    # A string seeds the same in every process, unlike hash().
    r = random.Random(f"{SEED} {make.__name__}")
    tokenizer = make(r)
    directory.mkdir(parents=True, exist_ok=True)
    saved = tokenizer.to_str()
    (directory / "tokenizer.json").write_text(saved, encoding="utf-8")
    # What is compared is the file's tokenizer, not the one that was trained.
    tokenizer = Tokenizer.from_str(saved)
    added = sorted(t.content for t in tokenizer.get_added_tokens_decoder().values())
    known = [i for i in range(tokenizer.get_vocab_size()) if tokenizer.id_to_token(i) is not None]
    texts = strings(r, added)
    with_special = tokenizer.encode_batch(texts)
    without = tokenizer.encode_batch(texts, add_special_tokens=False)
    tokenizer.encode_special_tokens = True  # split_special_tokens of `transformers`
    split = tokenizer.encode_batch(texts, add_special_tokens=False)
    tokenizer.encode_special_tokens = False
    lines = []
    for text, a, b, c in zip(texts, with_special, without, split):
        lines.append(
            [
                text,
                a.ids,
                b.ids,
                tokenizer.decode(a.ids, skip_special_tokens=False),
                tokenizer.decode(a.ids, skip_special_tokens=True),
                c.ids,
            ]
        )
    id_lists = [[i] for i in known]
    for _ in range(ID_LISTS_PER_FAMILY):
        # The low ids are single bytes and byte tokens, which make broken UTF-8.
        pool = known[:300] if r.random() < 0.5 else known
        id_lists.append([r.choice(pool) for _ in range(r.randint(0, 24))])
    for ids in id_lists:
        lines.append(
            [
                None,
                None,
                ids,
                tokenizer.decode(ids, skip_special_tokens=False),
                tokenizer.decode(ids, skip_special_tokens=True),
            ]
        )
    with open(directory / "golden.jsonl", "w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
    print(
        f"{make.__name__}: {len(texts)} strings, {len(id_lists)} lists of ids, "
        f"{tokenizer.get_vocab_size()} tokens"
    )


def main():
    output = pathlib.Path(sys.argv[1])
    for make in FAMILIES:
        write_family(make, output / make.__name__)


if __name__ == "__main__":
    main()
