#!/usr/bin/env python3
"""Does a retained rubric stay cached under a flood of other prompts?

    retained_prefix.py BIN_DIR [--blocks 128] [--pools 10] [--seed 1]

Starts two clusters of 2 prefill and 2 decode workers with the demo model, one after the other. In each, a
rubric of an eighth of a pool is asked for between other prompts, so that two pools of them come between two
requests for it; all of them together have --pools times the blocks of both prefill workers. In one cluster
the rubric's requests retain it. Prints which share of the rubric's tokens was cached, the times of its
requests of one token, and what the workers retain at the end.
"""

import argparse
import http.client
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
from demo_cluster import PATIENCE_S, start_cluster  # noqa: E402

VOCABULARY = 1000  # of the demo model, without its special tokens
BLOCK = 16
WORKERS = 2  # of each role
FLOOD_TOKENS = 512


def ask(connection, prompt, retention=None):
    """Returns the seconds to the answer, and how many tokens of the prompt were cached."""
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "ignore_eos": True}
    if retention:
        body["retention"] = retention
    begin = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(body))
    answer = connection.getresponse()
    text = answer.read()
    seconds = time.perf_counter() - begin
    if answer.status != 200:
        sys.exit(f"retained_prefix: {answer.status}: {text.decode()}")
    return seconds, json.loads(text)["usage"]["prompt_tokens_details"]["cached_tokens"]


def run(binary, options, retain):
    rng = random.Random(options.seed)

    def tokens(count):
        return [rng.randrange(VOCABULARY) for _ in range(count)]

    rubric = tokens(options.blocks // 8 * BLOCK)
    retention = {"until_token": len(rubric), "priority": 50, "ttl_ms": 3_600_000} if retain else None
    pool_tokens = options.blocks * BLOCK * WORKERS
    times, cached, flooded = [], 0, 0
    with tempfile.TemporaryDirectory(prefix="baton-retained-") as directory:
        cluster, (grpc, _, address) = start_cluster(
            binary, Path(directory), "--num-blocks", str(options.blocks), "--max-local-prefill-tokens", "0")
        try:
            connection = http.client.HTTPConnection(address, timeout=60)
            ask(connection, rubric + tokens(BLOCK), retention)
            while flooded < options.pools * pool_tokens:
                for _ in range(2 * pool_tokens // FLOOD_TOKENS):
                    ask(connection, tokens(FLOOD_TOKENS))
                    flooded += FLOOD_TOKENS
                seconds, hit = ask(connection, rubric + tokens(BLOCK), retention)
                times.append(seconds * 1e3)
                cached += hit
            loads = json.loads(subprocess.check_output([binary, "loads", "--address", grpc, "--json"]))
        finally:
            cluster.terminate()
            cluster.wait(timeout=PATIENCE_S)
    kept = ", ".join(f"{w['retained_blocks']}" for w in loads["workers"])
    print(f"| {'yes' if retain else 'no'} | {len(times)} | {flooded} | "
          f"{100 * cached / (len(rubric) * len(times)):.1f} % | {statistics.median(times):.1f} ms | {kept} |",
          flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("bin_dir", type=Path)
    parser.add_argument("--blocks", type=int, default=128)
    parser.add_argument("--pools", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(f"Pools of {options.blocks} blocks, seed {options.seed}.\n\n"
          "| retained | requests for the rubric | tokens of other prompts | cached of the rubric | "
          "its requests, median | retained blocks, by worker |\n|---|---|---|---|---|---|")
    for retain in (True, False):
        run(options.bin_dir / "baton", options, retain)


if __name__ == "__main__":
    main()
