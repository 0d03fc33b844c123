#!/usr/bin/env python3
"""Do scored items keep a prefill worker as busy as plain prompts do?

    scoring.py BIN_DIR [--items 10000] [--rounds 3] [--model DIR]

Starts a cluster of two prefill and two decode workers. Each round measures, one after the other, the prefill rate (`baton bench serve` with random
prompts of 512 tokens and answers of one token, which prefill workers give alone) and then `baton score` with one
prefix, new in each round, and --items items of some 60 tokens. Prints for each round

    prefill tokens/s, items/s, tokens computed per item, items/s / (prefill tokens/s / tokens per item)

and what the workers' metrics say of the whole run: KV bytes transferred, and blocks on decode workers.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
from demo_cluster import MODEL, PATIENCE_S, start_cluster  # noqa: E402

PROMPTS = 300
PROMPT_TOKENS = 512


def prefill_rate(binary, address):
    """Prompt tokens per second."""
    report = subprocess.check_output(
        [binary, "bench", "serve", "--address", address, "--num-prompts", str(PROMPTS),
         "--random-input-len", str(PROMPT_TOKENS), "--random-output-len", "1", "--max-concurrency", "32",
         "--json"], timeout=PATIENCE_S)
    return json.loads(report)["total_token_throughput"] * PROMPT_TOKENS / (PROMPT_TOKENS + 1)


def words(rng, count):
    return " ".join("".join(rng.choice("bdfghklmnprst") + rng.choice("aeiou") for _ in range(2))
                    for _ in range(count))


def score(binary, address, folder, rng, items):
    """Items per second, tokens computed per item, and how many items failed."""
    rules = "".join(f" {words(rng, 1)} = {rng.choice(['approve', 'reject'])}\n" for _ in range(40))
    (folder / "prefix").write_text(f"Rubric:\n{rules}Mail:\n")
    with open(folder / "items", "w", encoding="utf-8") as file:
        for _ in range(items):
            file.write(json.dumps(words(rng, 20) + "\nVerdict ?") + "\n")
    begin = time.monotonic()
    with open(folder / "scores", "w", encoding="utf-8") as out:
        subprocess.run([binary, "score", "--address", address, "--prefix", folder / "prefix", "--items",
                        folder / "items", "--labels", " approve, reject"], stdout=out, check=True,
                       timeout=PATIENCE_S)
    seconds = time.monotonic() - begin
    results = [json.loads(line) for line in open(folder / "scores", encoding="utf-8")]
    assert [result["index"] for result in results] == list(range(items)), "an item is missing or out of order"
    computed = sum(result["prompt_tokens"] - result["cached_prompt_tokens"] for result in results)
    return items / seconds, computed / items


def worker_metrics(binary, address):
    """KV bytes that prefill workers have sent, and blocks in use or cached on decode workers."""
    loads = subprocess.check_output([binary, "loads", "--address", address, "--json"], timeout=PATIENCE_S)
    return json.loads(loads)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=Path)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", type=Path, default=MODEL)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    binary = args.bin_dir / "baton"
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as directory:
        folder = Path(directory)
        cluster, (address, *_) = start_cluster(binary, folder, model=args.model)
        try:
            print("prefill tokens/s | items/s | tokens/item | share of the prefill rate")
            for _ in range(args.rounds):
                rate = prefill_rate(binary, address)
                items, tokens = score(binary, address, folder, rng, args.items)
                print(f"{rate:.0f} | {items:.1f} | {tokens:.1f} | {items * tokens / rate:.3f}", flush=True)
            print(json.dumps(worker_metrics(binary, address)))
        finally:
            cluster.terminate()
            cluster.wait(timeout=PATIENCE_S)


if __name__ == "__main__":
    main()
