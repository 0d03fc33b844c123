#!/usr/bin/env python3
"""How much of what prompts share does a model with recurrent layers find again, by the bound of snapshots?

    snapshot_hits.py BIN_DIR --model DIR [--load conversations|branches] [--shares 0,0.1,0.5] [--prefill 0] [--decode 1]

Conversations share 480 tokens, begin with 128 of their own and grow by 96 a turn for six turns, in random
order. Branches are an agent's: from a prompt of 600 tokens, three ways to go on with 64 tokens each, and so
on four times, the next to be tried chosen at random among those that can be. One request at a time. Prints,
for each value of --max-snapshot-share, the share found of the tokens that are in whole blocks of an earlier
prompt, and medians of the time to an answer of eight tokens.
"""

import argparse
import http.client
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
from demo_cluster import PATIENCE_S, start_cluster  # noqa: E402

BLOCK = 16
TOKENS = range(10, 900)  # of any vocabulary, without special tokens


def ask(connection, prompt):
    """Returns the seconds to the answer, and how many tokens of the prompt were cached."""
    body = {"prompt": prompt, "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    begin = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(body))
    response = connection.getresponse()
    text = response.read().decode()
    seconds = time.perf_counter() - begin
    if response.status != 200:
        sys.exit(f"snapshot_hits: {response.status}: {text}")
    return seconds, json.loads(text)["usage"]["prompt_tokens_details"]["cached_tokens"]


def conversations(rng, ask_one):
    """Yields, of each request, the prompt's tokens, those that could be found, those that were, and seconds."""
    def tokens(count):
        return rng.choices(TOKENS, k=count)

    shared = tokens(480)
    prompts = [shared + tokens(128) for _ in range(32)]
    order = [index for index in range(len(prompts)) for _ in range(6)]
    rng.shuffle(order)
    asked = [0] * len(prompts)
    for index in order:
        possible = asked[index] or (len(shared) if any(asked) else 0)
        seconds, found = ask_one(prompts[index])
        yield len(prompts[index]), possible // BLOCK * BLOCK, found, seconds
        asked[index] = len(prompts[index])
        prompts[index] = prompts[index] + tokens(96)


def branches(rng, ask_one):
    """The same."""
    to_try = [(rng.choices(TOKENS, k=600), 0, 0)]  # prompt, what of it is its parent's, depth
    while to_try:
        prompt, shared, depth = to_try.pop(rng.randrange(len(to_try)))
        seconds, found = ask_one(prompt)
        yield len(prompt), shared // BLOCK * BLOCK, found, seconds
        if depth < 4:
            to_try += [(prompt + rng.choices(TOKENS, k=64), len(prompt), depth + 1) for _ in range(3)]


def run(binary, options, share):
    with tempfile.TemporaryDirectory(prefix="baton-snapshots-") as directory:
        cluster, (_, _, address) = start_cluster(
            binary, Path(directory), "--max-snapshot-share", share, "--max-model-len", "4096", "--max-num-seqs", "8",
            model=options.model, prefill=options.prefill, decode=options.decode, kv_cache_memory=options.kv_cache_memory)
        try:
            connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
            load = {"conversations": conversations, "branches": branches}[options.load]
            rows = list(load(random.Random(options.seed), lambda prompt: ask(connection, prompt)))
        finally:
            cluster.terminate()
            cluster.wait(timeout=PATIENCE_S)
    prompts, possible, found, seconds = (list(column) for column in zip(*rows))
    whole = [time for hit, best, time in zip(found, possible, seconds) if best and hit >= best]
    cold = [time for hit, time in zip(found, seconds) if hit == 0]

    def median(times):
        return f"{statistics.median(times) * 1000:.0f} ms ({len(times)})" if times else "none"

    print(f"| {share} | {len(rows)} | {sum(prompts):,} | {sum(possible):,} | {sum(found) / sum(possible):.0%} |"
          f" {median(cold)} | {median(whole)} | {sum(seconds):.0f} s |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binaries", metavar="BIN_DIR")
    parser.add_argument("--model", required=True)
    parser.add_argument("--load", choices=("conversations", "branches"), default="conversations")
    parser.add_argument("--shares", default="0,0.1,0.25,0.5,0.75,0.95")
    parser.add_argument("--prefill", type=int, default=0)
    parser.add_argument("--decode", type=int, default=1)
    parser.add_argument("--kv-cache-memory", default="256MiB")
    parser.add_argument("--seed", type=int, default=7)
    options = parser.parse_args()
    print("| --max-snapshot-share | requests | prompt tokens | could be found | found | cold (how many) |"
          " all found (how many) | all requests |\n|---|---|---|---|---|---|---|---|")
    for share in options.shares.split(","):
        run(Path(options.binaries) / "baton", options, share)


if __name__ == "__main__":
    main()
