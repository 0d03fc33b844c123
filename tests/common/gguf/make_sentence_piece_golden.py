#!/usr/bin/env python3
"""Trains small SentencePiece models and writes what SentencePiece makes of strings.

    make_sentence_piece_golden.py OUTPUT_DIR      needs the PyPI packages `sentencepiece` and `tokenizers`

sentence_piece_parts_test.cc writes each model as the metadata of a GGUF file and compares. The output is in the
repository (tests/common/gguf/sentence_piece), so that the tests need no SentencePiece; run this by hand
after a change here. Everything follows from one seed.

Per model OUTPUT_DIR/<model>.jsonl: first {"add_space_prefix": bool, "pieces": [[text, score, type], ...]},
spelled as llama.cpp's converter does, then one array per string: [text, ids]. SentencePiece reads
no control tokens in a text: it encodes the parts between them.
"""

import io
import json
import pathlib
import random
import re
import sys

import sentencepiece
from sentencepiece import sentencepiece_model_pb2

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "tokenizer"))
import make_golden

SEED = 20261127
STRINGS = 320
LONGEST_RUN = 8
CONTROL, USER_DEFINED = 3, 4
TURNS = ["<start_of_turn>", "<end_of_turn>"]
RUNS = [symbol * length for symbol, first in (("\n", 1), ("\u2581", 2), ("\t", 1))
        for length in range(first, LONGEST_RUN + 1)]
TAGS = ["<h1>", "</h1>", "</s>", "[multimodal]"]

MODELS = {
    # Llama 2's options: a space before the text, no symbols of the user's.
    "llama": dict(add_dummy_prefix=True, unk_id=0, bos_id=1, eos_id=2),
    # Gemma's: neither that space, nor merges of white space.
    "gemma": dict(add_dummy_prefix=False, pad_id=0, eos_id=1, bos_id=2, unk_id=3,
                  control_symbols=TURNS, user_defined_symbols=RUNS + TAGS, eos_piece="<eos>",
                  bos_piece="<bos>"),
}


def train(r, options):
    model = io.BytesIO()
    lines = make_golden.with_alphabet(make_golden.corpus(r, 1500), 150)
    lines = [line for text in lines for line in text.splitlines() if line]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type="bpe", byte_fallback=True,
        vocab_size=900, character_coverage=1.0, split_digits=True, normalization_rule_name="identity",
        remove_extra_whitespaces=False, num_threads=1, minloglevel=2, allow_whitespace_only_pieces=True,
        hard_vocab_limit=False, **options)
    return model.getvalue()


def pieces(model):
    """As in a GGUF file: the user's runs of spaces are spaces, and the scores of symbols are lost."""
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    for piece in proto.pieces:
        text, score = piece.piece, piece.score
        if piece.type in (CONTROL, USER_DEFINED):
            score = -1000.0
        if piece.type == USER_DEFINED:
            text = text.replace("\u2581", " ")
        yield [text, score, piece.type]


def strings(r):
    """Without U+2581, which Hugging Face matches in the text and SentencePiece behind its spaces."""
    result = ["", " ", "  ", "a", " a ", "a  b", "\n", " \n ", "\n\n\nx", "Hello, world!", " Hello  world   ",
              "the router\tand\t\tthe worker", "<0x41>", "<0x0A>x", "a" * 300, " " * 40, "\n" * 40, "=" * 100,
              "ab" * 150, "the " * 60]
    result += make_golden.CODE + make_golden.EMOJI + make_golden.COMBINING
    while len(result) < STRINGS:
        text = r.choice(["", " "]).join(make_golden.piece(r, TAGS + TURNS) for _ in range(r.randint(1, 3)))
        result.append(text[:r.choice([40, 80, 160])])
    return [text for text in result if "\u2581" not in text and not re.search("<s>|</s>|<unk>|<bos>|<eos>", text)]


def encode(processor, text, controls):
    ids = []
    for part in re.split(f"({'|'.join(map(re.escape, controls))})" if controls else "(?!)", text):
        if part in controls:
            ids.append(processor.piece_to_id(part))
        elif part:
            ids += processor.encode(part)
    return ids


def main():
    output = pathlib.Path(sys.argv[1])
    for name, options in MODELS.items():
        r = random.Random(f"{SEED} {name}")
        model = train(r, options)
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        controls = options.get("control_symbols", [])
        with open(output / f"{name}.jsonl", "w", encoding="ascii") as file:
            def write(line):
                file.write(json.dumps(line, separators=(",", ":")) + "\n")

            write({"add_space_prefix": options["add_dummy_prefix"], "pieces": list(pieces(model))})
            for text in strings(r):
                write([text, encode(processor, text, controls)])
        print(name, processor.get_piece_size(), "pieces")


if __name__ == "__main__":
    main()
