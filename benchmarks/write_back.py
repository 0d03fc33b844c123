#!/usr/bin/env python3
"""What do write-back and fetch save in conversations?

    write_back.py BIN_DIR [--conversations 32] [--turns 4] [--at-once 4] [--answer-tokens 60] [--seed 1]

Starts two clusters of 2 prefill and 2 decode workers with the demo model, one after the other: without, and
with --kv-fetch and --kv-write-back. The same conversations run in each, several at once; each turn's prompt
is the one before, its answer, and new words. Prints by turn how many prompt tokens prefill workers had
cached, and what crossed in each direction. Fails if an answer differs between the clusters.
"""

import argparse
import http.client
import json
import random
import re
import sys
import tempfile
import threading
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
from demo_cluster import PATIENCE_S, start_cluster  # noqa: E402

SYLLABLES = ("ba", "de", "fi", "go", "lu", "ma", "ne", "pi", "ro", "su", "ta", "ve", "zi")


class Conversation(threading.Thread):
    def __init__(self, address, number, options):
        super().__init__()
        self.address, self.options = address, options
        self.random = random.Random(options.seed * 1_000_003 + number)
        self.turns = []  # (answer, prompt tokens, cached tokens)

    def words(self, count):
        return " ".join("".join(self.random.choices(SYLLABLES, k=2)) for _ in range(count))

    def run(self):
        connection = http.client.HTTPConnection(self.address, timeout=PATIENCE_S)
        prompt = self.words(50)
        for _ in range(self.options.turns):
            connection.request("POST", "/v1/completions", json.dumps({
                "prompt": prompt, "max_tokens": self.options.answer_tokens, "temperature": 0, "ignore_eos": True}))
            answer = connection.getresponse()
            body = json.loads(answer.read())
            if answer.status != 200:
                sys.exit(f"write_back: {answer.status}: {body}")
            text, usage = body["choices"][0]["text"], body["usage"]
            self.turns.append((text, usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]))
            prompt += text + " " + self.words(12)


def total(addresses, name, label):
    """The sum of a counter's series with the label, over all workers."""
    result = 0.0
    for address in addresses:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_S) as page:
            for line in page.read().decode().splitlines():
                if line.startswith(name + "{") and label in line:
                    result += float(line.split()[-1])
    return result


def run(binary, options, flags):
    """Returns all conversations, and the bytes that went to decode workers and back."""
    with tempfile.TemporaryDirectory(prefix="baton-write-back-") as directory:
        cluster, (_, _, address) = start_cluster(binary, Path(directory), "--max-local-prefill-tokens", "0", *flags)
        try:
            done = []
            for first in range(0, options.conversations, options.at_once):
                group = [Conversation(address, i, options)
                         for i in range(first, min(first + options.at_once, options.conversations))]
                for conversation in group:
                    conversation.start()
                for conversation in group:
                    conversation.join()
                done += group
            log = (Path(directory) / "up.log").read_text(encoding="utf-8")
            workers = re.findall(r"worker \S+ serves .* /metrics on ([0-9.:]+);", log)
            return (done, total(workers, "baton_kv_transfer_bytes_total", 'direction="received"'),
                    total(workers, "baton_kv_fetch_bytes_total", 'direction="received"'))
        finally:
            cluster.terminate()
            cluster.wait(timeout=PATIENCE_S)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=Path)
    for flag, default in (("--conversations", 32), ("--turns", 4), ("--at-once", 4), ("--answer-tokens", 60), ("--seed", 1)):
        parser.add_argument(flag, type=int, default=default)
    options = parser.parse_args()
    binary = options.bin_dir / "baton"
    results = {"off": run(binary, options, ()), "on": run(binary, options, ("--kv-fetch", "--kv-write-back"))}
    print("| write-back and fetch | " + " | ".join(f"turn {i + 1}" for i in range(options.turns)) +
          " | tokens computed | MB to decode workers | MB back |")
    print("|---" * (options.turns + 4) + "|")
    for name, (done, forth, back) in results.items():
        cells, computed = [], 0
        for turn in range(options.turns):
            prompt = sum(c.turns[turn][1] for c in done)
            cached = sum(c.turns[turn][2] for c in done)
            computed += prompt - cached
            cells.append(f"{100 * cached / prompt:.0f} %")
        print(f"| {name} | {' | '.join(cells)} | {computed} | {forth / 1e6:.1f} | {back / 1e6:.1f} |")
    differ = sum(a.turns[i][0] != b.turns[i][0] for a, b in zip(results["off"][0], results["on"][0])
                 for i in range(options.turns))
    print(f"{options.conversations * options.turns} answers, {differ} differ")
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
