#!/usr/bin/env python3
"""The tasks of evaluate.py, asked of a running cluster: router, prefill and decode workers.

    baton up --model models/demo --prefill 2 --decode 2        # prints the router's address
    python3 models/demo/evaluate_cluster.py --address HOST:PORT [--baton build/cpu-release/bin/baton]

Needs Python alone. Four prompts are asked at a time, so the workers' batches are mixed.
"""

import argparse
import concurrent.futures
import json
import subprocess
from pathlib import Path

import generate_data


def ask(baton: Path, address: str, prompt: str) -> dict:
    command = [baton, "generate", "--json", "--address", address, "--temperature", "0",
               "--max-tokens", "12", prompt]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return json.loads(result.stdout)


def is_right(completion: dict, answer: str) -> bool:
    text = completion["text"]
    ended = completion["finish_reason"] == "stop" or "\n" in text
    return ended and text.split("\n")[0] == answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--address", required=True)
    parser.add_argument("--baton", type=Path, default=Path("build/cpu-release/bin/baton"))
    parser.add_argument("--count", type=int, default=200, help="prompts a task")
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    print(f"{'task':20} {'tokens':>6} {'cached':>6}  exact match of {arguments.count}")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for name, make in generate_data.SUITES.items():
            generator = generate_data.Generator(f"evaluate {arguments.seed} {name}", held_out=True)
            prompts, answers = [], []
            for _ in range(arguments.count):
                document = make(generator)
                question = document.questions[0]
                prompts.append("".join(document.prefix + question.tail))
                answers.append("".join(question.answer))
            completions = list(pool.map(lambda p: ask(arguments.baton, arguments.address, p), prompts))
            right = sum(is_right(c, a) for c, a in zip(completions, answers))

            def mean(key: str) -> float:
                return sum(c["usage"][key] for c in completions) / len(completions)

            print(f"{name:20} {mean('prompt_tokens'):6.0f} {mean('cached_prompt_tokens'):6.0f}"
                  f"  {right / arguments.count:.3f}", flush=True)


if __name__ == "__main__":
    main()
