#!/usr/bin/env python3
"""The second half of scripts/demo: a cluster as a user would start it, and the demo model's questions.

    demo_cluster.py BIN_DIR

The prompts and their answers were drawn by models/demo/generate_data.py from a seed that training never
saw; prompts of a group share their beginning, so the second is warm.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODEL = Path("models/demo")
READY_TIMEOUT_S = 120
MIN_RIGHT = 0.95  # evaluate.py's own figure for these prompts is 60 of 60


def start_cluster(binary, directory):
    ready = directory / "ready"
    log = open(directory / "up.log", "w", encoding="utf-8")
    cluster = subprocess.Popen(
        [binary, "up", "--model", MODEL, "--prefill", "2", "--decode", "2", "--threads", "1",
         "--listen", "127.0.0.1:0", "--ready-file", ready, "--kv-cache-memory", "64MB"],
        stdout=log, stderr=subprocess.STDOUT)
    deadline = time.monotonic() + READY_TIMEOUT_S
    while not ready.exists():
        if cluster.poll() is not None or time.monotonic() > deadline:
            cluster.kill()
            sys.exit("demo: the cluster did not start:\n" + (directory / "up.log").read_text())
        time.sleep(0.02)
    return cluster, ready.read_text().splitlines()[0]


def flags(address):
    return ["--address", address, "--temperature", "0", "--max-tokens", "16"]


def ask(binary, address, prompt):
    command = [binary, "generate", "--json", *flags(address), prompt]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    if result.returncode != 0:
        sys.exit(f"demo: {result.stderr}")
    return json.loads(result.stdout)


def show_one(binary, address, prompt):
    """As a user sees it: the answer streams in behind its prompt."""
    lines = prompt["prompt"].splitlines()
    if len(lines) > 6:
        lines = lines[:3] + [f"  … {len(lines) - 5} more lines …"] + lines[-2:]
    shown = "\n".join(line if len(line) < 96 else line[:60] + " … " + line[-30:] for line in lines)
    print(f"--- {prompt['task']}\n{shown}", end="", flush=True)
    subprocess.run([binary, "generate", *flags(address), prompt["prompt"]], timeout=60, check=True)


def run_task(binary, address, prompts):
    """Asks all prompts of a task; returns the row of the table."""
    seen, cold, warm = set(), [], []
    answers = []
    for prompt in prompts:
        answer = ask(binary, address, prompt["prompt"])
        answers.append(answer)
        (warm if prompt["group"] in seen else cold).append(answer)
        seen.add(prompt["group"])
    right = sum(a["text"].rstrip("\n") == p["answer"] for a, p in zip(answers, prompts))

    def median(answers, value):
        return statistics.median(value(a) for a in answers)

    def tokens_per_second(answer):
        decode_ms = answer["timings"]["decode_ms"]
        tokens = answer["usage"]["generated_tokens"] - 1  # the first one is prefill's
        return tokens / decode_ms * 1000 if decode_ms > 0 else 0.0

    return {
        "task": prompts[0]["task"], "asked": len(prompts), "right": right,
        "prompt": median(answers, lambda a: a["usage"]["prompt_tokens"]),
        "cached": median(warm, lambda a: a["usage"]["cached_prompt_tokens"]),
        "cold": median(cold, lambda a: a["timings"]["ttft_ms"]),
        "warm": median(warm, lambda a: a["timings"]["ttft_ms"]),
        "kv": sum(a["usage"]["kv_bytes"] for a in answers),
        "rate": median(answers, tokens_per_second),
    }


def print_table(rows):
    print(f"\n{'task':8} {'right':>8} {'prompt':>8} {'cached':>8} {'TTFT cold':>11} {'TTFT warm':>11}"
          f" {'KV moved':>10} {'tokens/s':>9}")
    for row in rows:
        right = f"{row['right']}/{row['asked']}"
        print(f"{row['task']:8} {right:>8} {row['prompt']:8.0f} {row['cached']:8.0f}"
              f" {row['cold']:8.2f} ms {row['warm']:8.2f} ms {row['kv'] / 1e6:7.2f} MB"
              f" {row['rate']:9.0f}")
    print("prompt, cached: tokens of a prompt, and of a warm one those not computed again; medians.")


def main():
    binary = Path(sys.argv[1]) / "baton"
    prompts = json.loads((MODEL / "prompts.json").read_text(encoding="utf-8"))
    tasks = list(dict.fromkeys(p["task"] for p in prompts))
    with tempfile.TemporaryDirectory(prefix="baton-demo-") as directory:
        cluster, address = start_cluster(binary, Path(directory))
        try:
            print(f"demo: a router on {address}, two prefill and two decode workers\n")
            rows = [run_task(binary, address, [p for p in prompts if p["task"] == t]) for t in tasks]
            for task in tasks:
                show_one(binary, address, next(p for p in prompts if p["task"] == task))
        finally:
            cluster.terminate()
            cluster.wait(timeout=60)
    print_table(rows)
    right, asked = sum(r["right"] for r in rows), sum(r["asked"] for r in rows)
    print(f"demo: {right} of {asked} answers are right")
    return 0 if right >= MIN_RIGHT * asked else 1


if __name__ == "__main__":
    sys.exit(main())
