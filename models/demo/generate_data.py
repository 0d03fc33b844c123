#!/usr/bin/env python3
"""Text for the demo model: things to look up, written by rule from a seed.

Four tasks, one shape. A document is a prefix (what is to be remembered) and one or more
questions that share it; a question is a tail (the unique end of the prompt) and an answer.

  recall   a table         " brano = 4829"                Q brano ?     ->  " 4829"
  notes    filler prose    "The code of brano is 4829."   Q brano ?     ->  " 4829"
  json     one object      {"brano": 4829, ...}           Q brano ?     ->  " 4829"
  judge    a rubric        " refund = approve"            an e-mail about the refund,
                                                          Verdict ?     ->  " approve"

Run as a script it writes prompts.json: prompts with their answers, from a held-out seed and
with names that training never sees, in groups that share their prefix to the last byte.
"""

import argparse
import json
import random
from dataclasses import dataclass, field
from pathlib import Path

# Names are two syllables: 12,100 of them, so a name is found by matching, not by memory.
ONSETS = "b d f g h k l m n p r s t v z br dr kr pl st tr gl".split()
SYLLABLES = [onset + vowel for onset in ONSETS for vowel in "aeiou"]

TOPICS = (
    "refund password delivery invoice holiday printer contract lottery meeting warranty parking "
    "training payroll security catering travel insurance storage feedback survey badge lamp "
    "heating keyboard visa garden window elevator phone ticket"
).split()
VERDICTS = "approve reject escalate archive forward".split()
# Word values that tables and notes use next to numbers; the verdicts are among them, so that the
# judge's look-up is the same motion as recall.
WORDS = VERDICTS + "copper silver amber violet scarlet crimson maple cedar willow granite marble velvet".split()

SUBJECTS = (
    "The courier|A nurse|The old clerk|Our driver|The choir|A student|The engineer|My neighbour|"
    "The baker|The pilot|A painter|The teacher|Their cousin|The farmer|A sailor|The mayor"
).split("|")
VERBS = "left|checked|painted|carried|found|repaired|counted|moved|opened|washed|sold|wrapped|measured|hid".split("|")
OBJECTS = (
    "the blue box|a wooden chair|the old gate|some paper|the long report|a small boat|the red door|"
    "two ropes|the bicycle|the map|a heavy coat|the piano|three baskets|the ladder|an empty bottle"
).split("|")
TIMES = (
    "before noon|after lunch|in the rain|on Monday|last week|at the station|without help|in silence|"
    "very slowly|by mistake|near the river|during the storm|for a friend|at midnight"
).split("|")


def is_held_out(first: int, second: int) -> bool:
    """One name in eleven is kept from training; every syllable still occurs in both places."""
    return (first + 3 * second) % 11 == 0


NAMES = {
    held: [
        SYLLABLES[i] + SYLLABLES[j]
        for i in range(len(SYLLABLES))
        for j in range(len(SYLLABLES))
        if i != j and is_held_out(i, j) == held
    ]
    for held in (False, True)
}


@dataclass
class Question:
    tail: list[str]
    answer: list[str]


@dataclass
class Document:
    """Texts come in pieces. A piece never splits what the tokenizer's regex keeps together, so the
    tokens of a document are the tokens of its pieces, one after the other."""

    task: str
    prefix: list[str]
    questions: list[Question] = field(default_factory=list)


class Generator:
    def __init__(self, seed, held_out: bool = False):
        self.random = random.Random(seed)
        self.names = NAMES[held_out]

    # Small parts.

    def value(self) -> list[str]:
        return [" ", *f"{self.random.randrange(10000):04d}"]

    def word(self, words: list[str], wide: bool) -> list[str]:
        """A word value. With two spaces before it, it stands where a number's first digit stands:
        the space is a token of its own."""
        return [" "] * wide + [" " + self.random.choice(words)]

    def filler(self) -> list[str]:
        pick = self.random.choice
        text = f"{pick(SUBJECTS)} {pick(VERBS)} {pick(OBJECTS)} {pick(TIMES)}."
        first, *rest = text[:-1].split(" ")
        return [first, *(" " + word for word in rest), "."]

    @staticmethod
    def paragraph(sentences: list[list[str]]) -> list[str]:
        """Joins sentences with spaces and ends the line."""
        pieces = []
        for number, sentence in enumerate(sentences):
            head = sentence[0] if number == 0 else " " + sentence[0]
            pieces += [head, *sentence[1:]]
        pieces[-1] += "\n"
        return pieces

    def ask(self, key: str, answer: list[str]) -> Question:
        return Question(["Q", " " + key, " ?"], answer)

    def ask_some(self, facts: dict[str, list[str]], questions: int) -> list[Question]:
        keys = list(facts)
        if questions <= len(keys):
            keys = self.random.sample(keys, questions)
        else:
            keys = [self.random.choice(keys) for _ in range(questions)]
        return [self.ask(key, facts[key]) for key in keys]

    def facts(self, count: int, words: bool = False, wide: bool = False) -> dict[str, list[str]]:
        """Names and numbers; with `words` topics are among the names and words among the numbers."""
        if not words:
            return {key: self.value() for key in self.random.sample(self.names, count)}
        topics = self.random.randint(count // 4, min(count, len(TOPICS)))
        keys = self.random.sample(TOPICS, topics) + self.random.sample(self.names, count - topics)
        self.random.shuffle(keys)
        share = self.random.random()
        return {key: self.word(WORDS, wide) if self.random.random() < share else self.value() for key in keys}

    # The four tasks.

    def recall(self, entries: int, questions: int = 1, words: bool = False, wide: bool = False) -> Document:
        facts = self.facts(entries, words, wide)
        prefix = ["Table", ":\n"]
        for key, value in facts.items():
            prefix += [" " + key, " =", *value, "\n"]
        return Document("recall", prefix, self.ask_some(facts, questions))

    def notes(self, codes: int, fillers: int, questions: int = 1, words: bool = False, wide: bool = False) -> Document:
        facts = self.facts(codes, words, wide)
        sentences = [["The", " code", " of", " " + key, " is", *value, "."] for key, value in facts.items()]
        sentences += [self.filler() for _ in range(fillers)]
        self.random.shuffle(sentences)
        prefix = ["Notes", ":\n", *self.paragraph(sentences)]
        return Document("notes", prefix, self.ask_some(facts, questions))

    def json(self, entries: int, questions: int = 1) -> Document:
        facts = self.facts(entries)
        prefix = []
        for number, (key, value) in enumerate(facts.items()):
            prefix += ['{"'] if number == 0 else [",", ' "']
            prefix += [key, '":', *value]
        prefix.append("}\n")
        return Document("json", prefix, self.ask_some(facts, questions))

    def judge(
        self, rules: int, fillers: int, handbook: int = 0, questions: int = 1, restate: float = 0.0, wide: bool = False
    ) -> Document:
        """`restate` is the share of e-mails that end in "Q refund ?" instead of "Verdict ?"."""
        rubric = {topic: self.word(VERDICTS, wide) for topic in self.random.sample(TOPICS, rules)}
        prefix = []
        if handbook:
            prefix += ["Handbook", ":\n", *self.paragraph([self.filler() for _ in range(handbook)])]
        prefix += ["Rubric", ":\n"]
        for topic, verdict in rubric.items():
            prefix += [" " + topic, " =", *verdict, "\n"]
        document = Document("judge", prefix)
        for _ in range(questions):
            topic = self.random.choice(list(rubric))
            sentences = [self.filler() for _ in range(fillers)]
            sentences.insert(self.random.randrange(fillers + 1), ["I", " write", " about", " the", " " + topic, "."])
            tail = ["Mail", " from", " " + self.random.choice(self.names), ":\n", *self.paragraph(sentences)]
            restated = self.random.random() < restate
            tail += ["Q", " " + topic, " ?"] if restated else ["Verdict", " ?"]
            document.questions.append(Question(tail, rubric[topic]))
        return document


# What evaluate.py measures: name, and the document it asks one question of.
SUITES = {
    "recall 4": lambda g: g.recall(4),
    "recall 8": lambda g: g.recall(8),
    "recall 16": lambda g: g.recall(16),
    "recall 32": lambda g: g.recall(32),
    "recall 48": lambda g: g.recall(48),
    "notes 4 in 20": lambda g: g.notes(4, 20),
    "json 8": lambda g: g.json(8),
    "json 16": lambda g: g.json(16),
    "judge 12, restated": lambda g: g.judge(12, 3, restate=1.0),
    "judge 12": lambda g: g.judge(12, 3),
    "judge 20, handbook": lambda g: g.judge(20, 3, handbook=12),
}


def demo_prompts(seed: int) -> list[dict]:
    """The prompts of prompts.json: each group shares one prefix."""
    generator = Generator(f"demo prompts {seed}", held_out=True)
    documents = (
        [generator.recall(entries, questions) for entries, questions in ((8, 4), (16, 4), (32, 4), (40, 4))]
        + [generator.notes(4, fillers, 4) for fillers in (20, 20, 28)]
        + [generator.json(entries, 4) for entries in (8, 16, 16)]
        + [generator.judge(rules, 3, handbook, 4) for rules, handbook in ((8, 0), (12, 8), (12, 16), (20, 16), (20, 20))]
    )
    prompts = []
    counts: dict[str, int] = {}
    for document in documents:
        counts[document.task] = counts.get(document.task, 0) + 1
        for question in document.questions:
            prompts.append(
                {
                    "task": document.task,
                    "group": f"{document.task}-{counts[document.task]}",
                    "prompt": "".join(document.prefix + question.tail),
                    "answer": "".join(question.answer),
                }
            )
    return prompts


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes prompts.json.")
    parser.add_argument("--seed", type=int, default=2026)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "prompts.json")
    arguments = parser.parse_args()
    prompts = demo_prompts(arguments.seed)
    arguments.out.write_text(json.dumps(prompts, indent=1) + "\n")
    print(f"{arguments.out}: {len(prompts)} prompts")


if __name__ == "__main__":
    main()
