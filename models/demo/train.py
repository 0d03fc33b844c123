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

    def __init__(self, document: generate_data.Document, encode: Encoder, hard: bool, context: float):
        prefix = encode(document.prefix)
        self.kind, self.hard = document.task, hard
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


def write_document(g: generate_data.Generator, most: int) -> generate_data.Document:
    """A document with up to `most` things to remember."""
    pick = g.random
    entries = pick.randint(max(2, most // 2), most)
    questions = max(3, entries // 2)
    if pick.random() < (0.3 if most == LEVELS[0] else 0.04):
        return g.echo(pick.randint(most, 3 * most), questions)
    kind = pick.random()
    if kind < 0.35:
        return g.recall(entries, questions, words=pick.random() < 0.5)
    if kind < 0.50:
        return g.notes(max(2, entries // 4), pick.randint(0, entries), questions // 2 + 1, words=pick.random() < 0.3)
    if kind < 0.62:
        return g.json(entries, questions)
    rules = min(entries, len(generate_data.TOPICS) - 6)
    handbook = pick.randint(0, most // 2) if pick.random() < 0.4 else 0
    return g.judge(rules, pick.randint(0, min(4, most // 4)), handbook, min(6, questions), restate=0.35)


class Batches:
    """The batches of a run, a function of the seed, the pool's number and the level."""

    def __init__(self, encode: Encoder, seed: int, tokens: int, context: float):
        self.encode, self.seed, self.tokens, self.context = encode, seed, tokens, context

    def pool(self, number: int, level: int) -> list[list[Example]]:
        generator = generate_data.Generator(f"{self.seed}/{number}")
        pick = generator.random
        # Short documents go in small batches: the look-up itself is learned in steps, not in tokens.
        size = self.tokens // 2 if level == 0 else self.tokens
        examples, total = [], 0
        while total < POOL * size:
            chosen = level if level == 0 or pick.random() < 0.65 else pick.randrange(level)
            document = write_document(generator, LEVELS[chosen])
            examples.append(Example(document, self.encode, chosen == level, self.context))
            total += len(examples[-1])
        examples.sort(key=len)
        batches, batch = [], []
        for example in examples:
            if batch and (len(batch) + 1) * len(example) > size * 1.1:
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
    parser.add_argument("--steps", type=int, default=6000)
    parser.add_argument("--decay", type=int, default=2000, help="the rate falls to zero over so many last steps")
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
    step = level = pool = tokens = since = 0
    by_kind: dict[str, float] = {}
    if arguments.resume:
        saved = torch.load(arguments.checkpoint)
        model.load_state_dict(saved["model"])
        adam.load_state_dict(saved["adam"])
        muon.buffers, average = saved["muon"], saved["average"]
        step, level, pool, tokens = (saved[key] for key in ("step", "level", "pool", "tokens"))
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
                        "level": level,
                        "pool": pool,
                        "tokens": tokens,
                    },
                    arguments.checkpoint,
                )
                export(model, average, arguments.out, encode.eos)
            queue = batches.pool(pool, level)
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
        since += 1
        tokens += ids.numel()
        if step % 50 == 0:
            passed = time.time() - began
            kinds = " ".join(f"{kind} {value:.3f}" for kind, value in sorted(by_kind.items()))
            print(
                f"{passed / 60:5.1f} min  step {step}  level {LEVELS[level]}  loss {loss.item():.3f}  right: {kinds}  "
                f"{(tokens - begun_tokens) / passed:.0f} tokens/s",
                flush=True,
            )
        if level + 1 < len(LEVELS) and since > 100 and by_kind.get("recall", 0) > 0.85:
            level += 1
            since = 0
            by_kind.clear()
            queue.clear()
            print(f"level {LEVELS[level]} from step {step}, after {tokens} tokens", flush=True)
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
