#!/usr/bin/env python3
"""Does the time of an answer tell a tenant what another tenant's prompts were?

    tenant_timing.py BIN_DIR [--rounds 400] [--prompt-tokens 512] [--seed 1]

Starts a cluster with the demo model and two API keys. In each round tenant A sends a new prompt. Then, in
random order, B sends the same prompt, B sends one that was never sent, A repeats its prompt, and A sends
one that was never sent. Each answer has one token. Prints the medians of the times, and for both tenants
the rank test of Mann and Whitney: the share of pairs in which the unknown prompt took longer (0.5: nothing
to see) and the two-sided probability p of a share as far from 0.5 by chance. A's times are the control.
"""

import argparse
import http.client
import json
import math
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


class Tenant:
    def __init__(self, binary, name):
        made = json.loads(subprocess.check_output([binary, "keys", "new", "--tenant", name, "--json"]))
        self.key, self.line = made["key"], made["line"]
        self.connection = None

    def ask(self, prompt):
        """Returns the seconds to the answer, and how many tokens of the prompt were cached."""
        body = json.dumps({"prompt": prompt, "max_tokens": 1, "temperature": 0, "ignore_eos": True})
        begin = time.perf_counter()
        self.connection.request("POST", "/v1/completions", body, {"Authorization": f"Bearer {self.key}"})
        answer = self.connection.getresponse()
        text = answer.read()
        seconds = time.perf_counter() - begin
        if answer.status != 200:
            sys.exit(f"tenant_timing: {answer.status}: {text.decode()}")
        return seconds, json.loads(text)["usage"]["prompt_tokens_details"]["cached_tokens"]


def mann_whitney(shorter, longer):
    """Returns the share of pairs in which the value of `longer` is larger, and p, from the normal
    approximation with the correction for ties: H. B. Mann, D. R. Whitney, Ann. Math. Statist. 18 (1947)."""
    n, m = len(shorter), len(longer)
    values = sorted([(value, 0) for value in shorter] + [(value, 1) for value in longer])
    rank_sum, ties, begin = 0.0, 0, 0
    while begin < n + m:
        end = begin
        while end < n + m and values[end][0] == values[begin][0]:
            end += 1
        rank_sum += (begin + end + 1) / 2 * sum(is_longer for _, is_longer in values[begin:end])
        ties += (end - begin) ** 3 - (end - begin)
        begin = end
    u = rank_sum - m * (m + 1) / 2
    variance = n * m / 12 * (n + m + 1 - ties / ((n + m) * (n + m - 1)))
    z = max(abs(u - n * m / 2) - 0.5, 0) / math.sqrt(variance)
    return u / (n * m), math.erfc(z / math.sqrt(2))


def run(a, b, options):
    rng = random.Random(options.seed)

    def new_prompt():
        return [rng.randrange(VOCABULARY) for _ in range(options.prompt_tokens)]

    times = {(who, kind): [] for who in "AB" for kind in ("known", "unknown")}
    cached = {kind: 0 for kind in times}
    for _ in range(options.rounds):
        prompt = new_prompt()
        a.ask(prompt)
        steps = list(times)
        rng.shuffle(steps)
        for step in steps:
            who, kind = step
            seconds, tokens = (a if who == "A" else b).ask(prompt if kind == "known" else new_prompt())
            times[step].append(seconds * 1e3)
            cached[step] += tokens
    print(f"{options.rounds} rounds, prompts of {options.prompt_tokens} tokens, seed {options.seed}.\n\n"
          "| asked by | A's prompt, median | p99 | cached tokens, mean | new prompt, median | p99 | "
          "cached tokens, mean | new prompt took longer in | p |\n|---|---|---|---|---|---|---|---|---|")
    for who in "BA":
        known, unknown = times[who, "known"], times[who, "unknown"]
        share, p = mann_whitney(known, unknown)
        cells = [who if who == "B" else "A (control)"]
        for kind, values in (("known", known), ("unknown", unknown)):
            cells += [f"{statistics.median(values):.2f} ms", f"{statistics.quantiles(values, n=100)[98]:.2f} ms",
                      f"{cached[who, kind] / options.rounds:.0f}"]
        print(f"| {' | '.join(cells)} | {100 * share:.1f} % of pairs | {p:.2g} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("bin_dir", type=Path)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--prompt-tokens", type=int, default=512)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    binary = options.bin_dir / "baton"
    tenants = [Tenant(binary, name) for name in ("a", "b")]
    with tempfile.TemporaryDirectory(prefix="baton-timing-") as directory:
        keys = Path(directory) / "keys.txt"
        keys.write_text("".join(tenant.line + "\n" for tenant in tenants), encoding="utf-8")
        cluster, (_, _, address) = start_cluster(binary, Path(directory), "--api-keys", keys)
        try:
            for tenant in tenants:
                tenant.connection = http.client.HTTPConnection(address, timeout=60)
            run(*tenants, options)
        finally:
            cluster.terminate()
            cluster.wait(timeout=PATIENCE_S)


if __name__ == "__main__":
    main()
