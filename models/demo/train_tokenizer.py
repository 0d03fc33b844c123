#!/usr/bin/env python3
"""Trains the demo model's tokenizer: byte-level BPE behind Qwen2's regex, 1,024 tokens.

The corpus is the generator's own text. The syllables that names are made of are given far more
weight than all else, so they become the first merges and a name is two tokens (all but a score of them), with
or without a space before it.
"""

import argparse
import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import generate_data

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
VOCABULARY = 1024


# Plain English to fill the vocabulary with, so that other prompts are not all letters.
EXTRA = (
    "and that this with you have was are not but they his her she which one all were would there been more "
    "when who will if out so said what up its into than them can only other time new some could these two may "
    "then first any like now people made over such our did many must through before great where those just "
    "much every work well water name answer question question system user assistant hello please thank help "
    "yes here good day night morning house street city town country world life hand eye face head word line "
    "number letter message order price paid money bank office manager customer service account change problem "
    "return request today tomorrow yesterday week month year hour minute always never again because between"
).split()


def corpus(seed: int):
    for syllable in generate_data.SYLLABLES:
        yield f"{syllable} {syllable}\n" * 6000
    generator = generate_data.Generator(f"tokenizer {seed}")
    names = set(generator.names)
    for _ in range(150):
        for document in (
            generator.notes(2, 12),
            generator.judge(12, 4, handbook=6),
            generator.recall(6),
            generator.json(4),
        ):
            pieces = list(document.prefix)
            for question in document.questions:
                pieces += question.tail + question.answer
            # Names stay out: their syllables are all that should be learned of them.
            yield "".join(piece for piece in pieces if piece.strip() not in names)
    for word in generate_data.TOPICS + generate_data.WORDS:
        yield f"{word} {word}\n" * 40
    for word in EXTRA:
        yield f" {word}" * 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    arguments = parser.parse_args()

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(arguments.seed), trainer)
    tokenizer.add_special_tokens(SPECIAL)
    tokenizer.save(str(arguments.out / "tokenizer.json"))
    (arguments.out / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": None,
                "eos_token": SPECIAL[0],
                "pad_token": SPECIAL[0],
                "model_max_length": 1024,
                "clean_up_tokenization_spaces": False,
            },
            indent=2,
        )
        + "\n"
    )

    names = generate_data.NAMES[False] + generate_data.NAMES[True]
    odd = [name for name in names if {len(tokenizer.encode(space + name).ids) for space in ("", " ")} != {2}]
    assert len(odd) < len(names) // 200, f"{len(odd)} names are not two tokens: {odd[:10]}"
    words = generate_data.TOPICS + generate_data.WORDS
    print(f"{tokenizer.get_vocab_size()} tokens; {len(names) - len(odd)} of {len(names)} names are two tokens")
    print("words of more than one token:", [w for w in words if len(tokenizer.encode(" " + w).ids) > 1])
    print("at the line's start:", [w for w in words if len(tokenizer.encode(w).ids) > 1])


if __name__ == "__main__":
    main()
