#!/usr/bin/env python3
"""Trains the demo model on generated text and writes it as a Hugging Face directory.

A document's questions are trained side by side: each sees the prefix and its own tail only, at the
positions it would have if it were alone. So one long prefix teaches many questions, and what is
trained is just what is asked later: one prompt, one question. What follows an answer is always
<|endoftext|>.

The documents grow with the model: 4, 8, 16, 32, then 48 things to remember, each once the model
answers most questions of the level before.
"""

import argparse
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import generate_data
from model import Config, Model, save

HERE = Path(__file__).parent
LEVELS = (4, 8, 16, 32, 48)
POOL = 16  # batches' worth of documents that are sorted by length together
GATES = {"plain": ("recall",), "words": ("mixed", "judge")}  # what must be known for a side's next level
ROWS = 28  # documents a batch at most: a look-up is learned in steps more than in tokens


class Encoder:
    """Tokens of a document, piece by piece; a piece is looked up once."""

    def __init__(self, path: Path):
        self.tokenizer = Tokenizer.from_file(str(path))
        self.eos = self.tokenizer.token_to_id("<|endoftext|>")
        self.seen: dict[str, list[int]] = {}

    def __call__(self, pieces: list[str]) -> list[int]:
        ids = []
        for piece in pieces:
            known = self.seen.get(piece)
            if known is None:
                known = self.seen[piece] = self.tokenizer.encode(piece).ids
            ids += known
        return ids


class Example:
    """A document as tokens: what to read, where, in which branch, what to predict and how much it counts."""

    def __init__(self, kind: str, hard: bool, document: generate_data.Document, encode: Encoder, context: float):
        prefix = encode(document.prefix)
        self.kind, self.hard = kind, hard
        self.ids, self.targets = list(prefix), prefix[1:] + [encode.eos]
        self.weights = [context] * (len(prefix) - 1) + [0.0]
        self.answers: list[slice] = []
        self.positions, self.branches = list(range(len(prefix))), [0] * len(prefix)
        for number, question in enumerate(document.questions, start=1):
            tail, answer = encode(question.tail), encode(question.answer)
            tokens = tail + answer + [encode.eos]
            length = len(tokens) - 1
            start = len(self.ids) + len(tail) - 1
            self.answers.append(slice(start, start + len(answer) + 1))
            self.ids += tokens[:-1]
            self.targets += tokens[1:]
            self.weights += [context] * (len(tail) - 1) + [1.0] * (len(answer) + 1)
            self.positions += range(len(prefix), len(prefix) + length)
            self.branches += [number] * length

    def __len__(self):
        return len(self.ids)


def write_document(g: generate_data.Generator, levels: dict[str, int]) -> tuple[str, bool, generate_data.Document]:
    """A document, which kind it is, and whether it is of the highest level its side has reached.

    There are two sides, each with a level of its own: plain (a name and its number) and words (topics
    among the names, words among the numbers, and the judge). What is to be remembered is few at first."""
    pick = g.random
    # The side that is behind by much gets nearly all documents (its own are the shorter ones).
    side = "words" if pick.random() < (0.93 if levels["plain"] > levels["words"] + 1 else 0.7) else "plain"
    level = levels[side]
    chosen = level if level == 0 or pick.random() < 0.65 else pick.randrange(level)
    most = LEVELS[chosen]
    entries = pick.randint(max(2, most // 2), most)
    questions = max(3, entries // 2)
    kind = pick.random()
    if side == "plain":
        if kind < 0.5:
            document = g.recall(entries, questions)
        elif kind < 0.75:
            document = g.notes(max(2, entries // 4), pick.randint(0, entries), questions // 2 + 1)
        else:
            document = g.json(entries, questions)
        return document.task, chosen == level, document
    # Words are first found where a number's digits would stand; the other place follows by itself.
    wide = pick.random() < (0.65 if level < 2 else 0.25)
    if kind < 0.1:
        codes = max(2, entries // 4)
        document = g.notes(codes, pick.randint(0, entries), questions // 2 + 1, words=True, wide=wide)
        label = "mixed notes"
    elif kind < 0.45:
        document = g.recall(entries, questions, words=True, wide=wide)
        label = "mixed"
    else:
        rules = min(entries, len(generate_data.TOPICS) - 6)
        handbook = pick.randint(0, most // 2) if pick.random() < 0.4 else 0
        fillers = pick.randint(0, min(4, most // 4))
        document = g.judge(rules, fillers, handbook, min(6, questions), restate=0.4, wide=wide)
        label = "judge"
    return label if wide else "narrow " + label, chosen == level, document


class Batches:
    """The batches of a run, a function of the seed, the pool's number and the level."""

    def __init__(self, encode: Encoder, seed: int, tokens: int, context: float):
        self.encode, self.seed, self.tokens, self.context = encode, seed, tokens, context

    def pool(self, number: int, levels: dict[str, int]) -> list[list[Example]]:
        generator = generate_data.Generator(f"{self.seed}/{number}")
        pick = generator.random
        examples, total = [], 0
        while total < POOL * self.tokens:
            examples.append(Example(*write_document(generator, levels), self.encode, self.context))
            total += len(examples[-1])
        examples.sort(key=len)
        batches, batch = [], []
        for example in examples:
            if batch and (len(batch) == ROWS or (len(batch) + 1) * len(example) > self.tokens * 1.1):
                batches.append(batch)
                batch = []
            batch.append(example)
        batches.append(batch)
        pick.shuffle(batches)
        return batches


def collate(batch: list[Example]):
    length = (max(len(example) for example in batch) + 31) // 32 * 32
    shape = (len(batch), length)
    ids, targets, positions = (torch.zeros(shape, dtype=torch.long) for _ in range(3))
    branches = torch.full(shape, -1)
    weights = torch.zeros(shape)
    for row, example in enumerate(batch):
        size = len(example)
        ids[row, :size] = torch.tensor(example.ids)
        targets[row, :size] = torch.tensor(example.targets)
        positions[row, :size] = torch.tensor(example.positions)
        branches[row, :size] = torch.tensor(example.branches)
        weights[row, :size] = torch.tensor(example.weights)
    earlier = torch.ones(length, length, dtype=torch.bool).tril()
    seen = (branches[:, None, :] == 0) | (branches[:, None, :] == branches[:, :, None])
    return ids, targets, positions, weights, (seen & earlier)[:, None]


class Muon:
    """Momentum whose step is orthogonalised (Newton-Schulz), for the matrices inside the layers.
    Matrices of one shape go through it together."""

    def __init__(self, parameters, momentum: float = 0.95):
        self.momentum = momentum
        self.groups: dict[tuple, list] = {}
        for parameter in parameters:
            self.groups.setdefault(tuple(parameter.shape), []).append(parameter)
        self.buffers = {shape: torch.zeros(len(group), *shape) for shape, group in self.groups.items()}

    @torch.no_grad()
    def step(self, rate: float, decay: float) -> None:
        for shape, group in self.groups.items():
            gradient = torch.stack([parameter.grad for parameter in group])
            buffer = self.buffers[shape].lerp_(gradient, 1 - self.momentum)
            update = orthogonalise(gradient.lerp(buffer, self.momentum))
            scale = max(1.0, shape[0] / shape[1]) ** 0.5
            for parameter, change in zip(group, update):
                parameter.mul_(1 - rate * decay).add_(change, alpha=-rate * scale)


def orthogonalise(x, steps: int = 5):
    tall = x.shape[1] > x.shape[2]
    if tall:
        x = x.transpose(1, 2)
    x = (x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)).bfloat16()
    a, b, c = 3.4445, -4.7750, 2.0315
    for _ in range(steps):
        y = x @ x.transpose(1, 2)
        x = a * x + (b * y + c * (y @ y)) @ x
    return (x.transpose(1, 2) if tall else x).float()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--steps", type=int, default=4400)
    parser.add_argument("--decay", type=int, default=700, help="the rate falls to zero over so many last steps")
    parser.add_argument("--tokens", type=int, default=4096, help="tokens a batch")
    parser.add_argument("--rate", type=float, default=0.01, help="Muon's; AdamW has a sixth of it")
    parser.add_argument("--weight-decay", type=float, default=0.02)
    parser.add_argument("--context", type=float, default=0.05, help="weight of what is not an answer")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--f32", action="store_true", help="no bf16 in the matrix products")
    parser.add_argument("--compile", action="store_true", help="torch.compile (needs a C++ compiler)")
    parser.add_argument("--out", type=Path, default=HERE)
    parser.add_argument("--checkpoint", type=Path, default=HERE / "checkpoint.pt", help="where to go on from")
    parser.add_argument("--resume", action="store_true")
    arguments = parser.parse_args()

    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    encode = Encoder(HERE / "tokenizer.json")
    model = Model(Config(vocab_size=encode.tokenizer.get_vocab_size()))
    matrices = [p for n, p in model.named_parameters() if p.dim() > 1 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.dim() <= 1 or "embed" in n]
    muon = Muon(matrices)
    adam = torch.optim.AdamW(others, lr=arguments.rate / 6, betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    average = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    batches = Batches(encode, arguments.seed, arguments.tokens, arguments.context)
    step = pool = tokens = 0
    levels = {side: 0 for side in GATES}
    since = dict.fromkeys(GATES, 0)
    by_kind: dict[str, float] = {}
    if arguments.resume:
        saved = torch.load(arguments.checkpoint)
        model.load_state_dict(saved["model"])
        adam.load_state_dict(saved["adam"])
        muon.buffers, average = saved["muon"], saved["average"]
        by_kind = saved.get("by_kind", {})
        step, levels, pool, tokens = (saved[key] for key in ("step", "levels", "pool", "tokens"))
    print(f"{sum(p.numel() for p in model.parameters())} parameters", flush=True)

    if arguments.compile:
        for layer in model.layers:
            layer.compile(dynamic=True)
    began, begun_tokens = time.time(), tokens
    queue: list = []
    while step < arguments.steps:
        if not queue:
            if step and pool % 8 == 0:
                torch.save(
                    {
                        "model": model.state_dict(),
                        "adam": adam.state_dict(),
                        "muon": muon.buffers,
                        "average": average,
                        "step": step,
                        "by_kind": by_kind,
                        "levels": levels,
                        "pool": pool,
                        "tokens": tokens,
                    },
                    arguments.checkpoint,
                )
                export(model, average, arguments.out, encode.eos)
            queue = batches.pool(pool, levels)
            pool += 1
        batch = queue.pop()
        ids, targets, positions, weights, mask = collate(batch)
        warm = min(1.0, (step + 1) / 100)
        rate = arguments.rate * warm * min(1.0, (arguments.steps - step) / max(1, arguments.decay))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=not arguments.f32):
            hidden = model(ids, positions, mask)
            chosen = weights > 0
            logits = model.logits(hidden[chosen])
        target, weight = targets[chosen], weights[chosen]
        losses = F.cross_entropy(logits.float(), target, reduction="none")
        loss = (losses * weight).sum() / weight.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(others, 1.0)
        muon.step(rate, arguments.weight_decay)
        for group in adam.param_groups:
            group["lr"] = rate / 6
        adam.step()
        model.zero_grad()
        keep = min(0.998, step / (step + 10))
        for name, tensor in model.state_dict().items():
            average[name].lerp_(tensor, 1 - keep)

        # Answers that are right from the first token to the end of text, of the documents of this level.
        with torch.no_grad():
            good = torch.zeros_like(weights, dtype=torch.bool)
            good[chosen] = logits.argmax(-1) == target
            for row, example in enumerate(batch):
                if example.hard:
                    share = sum(good[row, answer].all().item() for answer in example.answers) / len(example.answers)
                    by_kind[example.kind] = 0.98 * by_kind.get(example.kind, 0.0) + 0.02 * share
        step += 1
        tokens += ids.numel()
        if step % 50 == 0:
            passed = time.time() - began
            kinds = " ".join(f"{kind} {value:.3f}" for kind, value in sorted(by_kind.items()))
            print(
                f"{passed / 60:5.1f} min  step {step}  levels {[LEVELS[level] for level in levels.values()]}  loss {loss.item():.3f}  right: {kinds}  "
                f"{(tokens - begun_tokens) / passed:.0f} tokens/s",
                flush=True,
            )
        for side, kinds in GATES.items():
            since[side] += 1
            reached = min(by_kind.get(kind, 0.0) for kind in kinds) > 0.85
            if reached and since[side] > 100 and levels[side] + 1 < len(LEVELS):
                levels[side] += 1
                since[side] = 0
                by_kind.update(dict.fromkeys(kinds, 0.0))
                queue.clear()
                print(f"{side}: level {LEVELS[levels[side]]} from step {step}, after {tokens} tokens", flush=True)
    export(model, average, arguments.out, encode.eos, final=True)


@torch.no_grad()
def export(model: Model, average: dict, out: Path, eos: int, final: bool = False) -> None:
    """Before the rate has fallen, the running average is the better model."""
    if final:
        save(model, out, eos)
        return
    copy = Model(model.config)
    copy.load_state_dict(average)
    save(copy, out, eos)


if __name__ == "__main__":
    main()
