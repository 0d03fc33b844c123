#!/usr/bin/env python3
"""Exact match of the exported model, greedy, in plain torch: one prompt, one question, and the answer
must be right to the last digit and be followed by the end of text (or a newline).

The prompts come from a held-out seed and name only what training never named.
"""

import argparse
import json
from pathlib import Path

import torch
from tokenizers import Tokenizer

import generate_data
import model as demo

HERE = Path(__file__).parent


class Runner:
    def __init__(self, directory: Path, bf16: bool = False):
        self.model = demo.load(directory)
        self.tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self.eos = json.loads((directory / "config.json").read_text())["eos_token_id"]
        self.bf16 = bf16

    @torch.inference_mode()
    def generate(self, prompt: str, most: int = 12) -> tuple[str, bool]:
        """The greedy continuation up to the end of text or the end of the line, and whether it ended."""
        ids = self.tokenizer.encode(prompt).ids
        length = len(ids)
        caches = [[] for _ in self.model.layers]
        mask = torch.ones(length, length, dtype=torch.bool).tril()[None, None]
        tokens, positions = torch.tensor([ids]), torch.arange(length)[None]
        answer: list[int] = []
        while True:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.bf16):
                hidden = self.model(tokens, positions, mask, caches)
                token = int(self.model.logits(hidden[0, -1]).argmax())
            text = self.tokenizer.decode(answer + [token], skip_special_tokens=True)
            if token == self.eos or "\n" in text:
                return self.tokenizer.decode(answer), True
            answer.append(token)
            if len(answer) == most:
                return text, False
            tokens, positions = torch.tensor([[token]]), torch.tensor([[length]])
            length += 1
            mask = torch.ones(1, 1, 1, length, dtype=torch.bool)

    def right(self, prompt: str, answer: str) -> bool:
        return self.generate(prompt) == (answer, True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=HERE)
    parser.add_argument("--count", type=int, default=200, help="prompts a task")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--prompts", action="store_true", help="only prompts.json, every answer shown")
    parser.add_argument("--bf16", action="store_true", help="matrix products in bf16")
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    runner = Runner(arguments.model, arguments.bf16)

    prompts = json.loads((HERE / "prompts.json").read_text())
    by_task: dict[str, list[bool]] = {}
    for entry in prompts:
        good = runner.right(entry["prompt"], entry["answer"])
        by_task.setdefault(entry["task"], []).append(good)
        if arguments.prompts:
            answer, ended = runner.generate(entry["prompt"])
            print(f"{'right' if good else 'WRONG'}  {entry['group']:10} wanted {entry['answer']!r} got {answer!r} {ended}")
    if not arguments.prompts:
        print(f"{'task':20} {'tokens':>6}  exact match of {arguments.count}")
        for name, make in generate_data.SUITES.items():
            generator = generate_data.Generator(f"evaluate {arguments.seed} {name}", held_out=True)
            good = tokens = 0
            for _ in range(arguments.count):
                document = make(generator)
                question = document.questions[0]
                prompt = "".join(document.prefix + question.tail)
                tokens += len(runner.tokenizer.encode(prompt).ids)
                good += runner.right(prompt, "".join(question.answer))
            print(f"{name:20} {tokens / arguments.count:6.0f}  {good / arguments.count:.3f}", flush=True)
    for task, results in by_task.items():
        print(f"prompts.json {task:7} {sum(results)} of {len(results)}")


if __name__ == "__main__":
    main()
