#!/usr/bin/env python3
"""The share of prompt tokens found in a prefix cache over 50 turns of a conversation that outgrows
the context, with truncation in large steps and with as little as each turn needs.

    truncation.py BIN_DIR

docs/policy.md describes truncation; docs/results/policy.md has the figures.
"""

import json
import random
import sys
import tempfile
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
from demo_cluster import PATIENCE_S, start_cluster  # noqa: E402

SEED = 5
TURNS = 50
CONTEXT = 1024  # of models/demo
TURN_TOKENS = 51
KEEP_FIRST = 32


def complete(http, body):
    request = urllib.request.Request(f"http://{http}/v1/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return json.load(answer)["usage"]


def hit_ratio(http, retention_ratio):
    draw = random.Random(SEED)
    ids = [draw.randrange(300, 900) for _ in range(KEEP_FIRST)]
    cached = total = 0
    for _ in range(TURNS):
        ids += [draw.randrange(300, 900) for _ in range(TURN_TOKENS)]
        usage = complete(http, {
            "prompt": ids, "max_tokens": 4, "ignore_eos": True, "cache_salt": str(retention_ratio),
            "truncation": {"keep_first": KEEP_FIRST, "retention_ratio": retention_ratio}})
        cached += usage["prompt_tokens_details"]["cached_tokens"]
        total += usage["prompt_tokens"]
    return cached / total


def main():
    binary = Path(sys.argv[1]) / "baton"
    with tempfile.TemporaryDirectory() as directory:
        cluster, (_, _, http) = start_cluster(binary, Path(directory))
        try:
            steps, trimmed = hit_ratio(http, 0.8), hit_ratio(http, 1)
        finally:
            cluster.terminate()
            cluster.wait(timeout=PATIENCE_S)
    print(f"{TURNS} turns of {TURN_TOKENS} tokens, context {CONTEXT}, seed {SEED}")
    print(f"in steps (retention_ratio 0.8): {steps:.3f}")
    print(f"each turn trimmed (1):          {trimmed:.3f}")
    print(f"ratio: {steps / trimmed:.2f}")


if __name__ == "__main__":
    main()
