#!/usr/bin/env python3
"""The second half of scripts/demo: starts a cluster as a user would and sends it the demo prompts.

    demo_cluster.py BIN_DIR

models/demo/generate_data.py made the prompts and answers from a seed that is not in the training data.
The prompts of a group share a prefix, so all but the first find it in a prefix cache.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

MODEL = Path(__file__).resolve().parents[1] / "models/demo"
# Limits for one step of the demo, not expectations: a busy machine may be slow, and a process that
# ends is noticed at once.
PATIENCE_S = 600
PROGRESS_S = 10
MIN_RIGHT = 0.95  # evaluate.py's own figure for these prompts is 60 of 60


def start_cluster(binary, directory, *flags, model=MODEL, prefill=2, decode=2, kv_cache_memory="64MB",
                  own_session=False):
    """Returns the process of `baton up` and the router's addresses: gRPC, metrics, HTTP. own_session: Ctrl-C on the
    terminal does not reach it."""
    ready = directory / "ready"
    log_path = directory / "up.log"
    with open(log_path, "w", encoding="utf-8") as log:
        cluster = subprocess.Popen(
            [binary, "up", "--model", model, "--prefill", str(prefill), "--decode", str(decode), "--threads", "1",
             "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--ready-file", ready,
             "--kv-cache-memory", kv_cache_memory, *flags],
            stdout=log, stderr=subprocess.STDOUT, start_new_session=own_session)
    try:
        wait_until_ready(cluster, ready, log_path)
    except BaseException:  # Ctrl-C, too
        cluster.terminate()  # `up` stops what it started
        cluster.wait(timeout=PATIENCE_S)
        raise
    return cluster, ready.read_text(encoding="utf-8").splitlines()


def wait_until_ready(cluster, ready, log_path):
    start = time.monotonic()
    next_progress = start + PROGRESS_S
    while not ready.exists():
        now = time.monotonic()
        if cluster.poll() is not None or now > start + PATIENCE_S:
            sys.exit("demo: the cluster did not start:\n" + log_path.read_text(encoding="utf-8"))
        if now > next_progress:
            lines = log_path.read_text(encoding="utf-8").splitlines() or ["no output yet"]
            print(f"demo: waiting for the cluster, {now - start:.0f} s so far; {lines[-1]}", flush=True)
            next_progress = now + PROGRESS_S
        time.sleep(0.02)


def flags(address):
    return ["--address", address, "--temperature", "0", "--max-tokens", "16"]


def ask(binary, address, prompt):
    command = [binary, "generate", "--json", *flags(address), prompt]
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S,
                            check=False)
    if result.returncode != 0:
        sys.exit(f"demo: {result.stderr}")
    return json.loads(result.stdout)


def show_one(binary, address, prompt):
    """Prints the prompt, then the answer as it streams in."""
    lines = prompt["prompt"].splitlines()
    if len(lines) > 6:
        lines = lines[:3] + [f"  … {len(lines) - 5} more lines …"] + lines[-2:]
    shown = "\n".join(line if len(line) < 96 else line[:60] + " … " + line[-30:] for line in lines)
    print(f"--- {prompt['task']}\n{shown}", end="", flush=True)
    subprocess.run([binary, "generate", *flags(address), prompt["prompt"]], timeout=PATIENCE_S,
                   check=True)


def run_task(binary, address, prompts):
    """Sends all prompts of a task; returns its row of the table."""
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
        tokens = answer["usage"]["generated_tokens"] - 1  # prefill makes the first one
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
    print("prompt: tokens per prompt; cached: tokens of a warm prompt that were in a prefix cache.\n"
          "KV moved is a total; prompt, cached, TTFT and tokens/s are medians.")


def main():
    binary = Path(sys.argv[1]) / "baton"
    prompts = json.loads((MODEL / "prompts.json").read_text(encoding="utf-8"))
    tasks = list(dict.fromkeys(p["task"] for p in prompts))
    with tempfile.TemporaryDirectory(prefix="baton-demo-") as directory:
        cluster, (address, *_) = start_cluster(binary, Path(directory))
        try:
            print(f"demo: router at {address}, two prefill and two decode workers\n")
            rows = [run_task(binary, address, [p for p in prompts if p["task"] == t]) for t in tasks]
            for task in tasks:
                show_one(binary, address, next(p for p in prompts if p["task"] == task))
        finally:
            cluster.terminate()
            cluster.wait(timeout=PATIENCE_S)
    print_table(rows)
    right, asked = sum(r["right"] for r in rows), sum(r["asked"] for r in rows)
    print(f"demo: {right} of {asked} answers are right")
    return 0 if right >= MIN_RIGHT * asked else 1


if __name__ == "__main__":
    sys.exit(main())
