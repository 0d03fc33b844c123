#!/usr/bin/env python3
"""Are scores those of Generate, item by item? By hand.

    PYTHONPATH=BUILD_DIR/tests/client/python/package/site scoring_equality.py BIN_DIR [--items 10000]

Starts a cluster of two prefill and two decode workers. Scores all items in random order with one call of
score_stream, then scores them again in another order, and kills a prefill worker (SIGKILL) after a tenth of the results.
Then asks Generate for one token behind each item, with the 20 best log probabilities, and compares these with the scores
of the labels' first tokens, bit by bit; for each hundredth item it also compares every token of every label with the
prompt_logprobs of prefix + item + label, which are computed without a cache.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import baton

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
from demo_cluster import MODEL, PATIENCE_S, start_cluster  # noqa: E402

LABELS = (" escalate", " reject", " approve", " forward the invoice")
TOPICS = ("ticket", "payroll", "invoice", "survey", "storage", "security")
RUBRIC = ("Rubric:\n ticket = escalate\n payroll = reject\n invoice = reject\n survey = forward\n"
          " storage = reject\n security = approve\n feedback = escalate\n phone = reject\n")


def prefill_worker_of(cluster):
    children = Path(f"/proc/{cluster.pid}/task/{cluster.pid}/children").read_text(encoding="ascii").split()
    return next(int(pid) for pid in children
                if b"baton-prefill-worker" in Path(f"/proc/{pid}/cmdline").read_bytes())


def scores_of(client, items, rng, kill=None):
    """Each item's (token ids, log probabilities) of all labels, and the items per second."""
    order = list(range(len(items)))
    rng.shuffle(order)
    scores = [None] * len(items)
    begin = time.monotonic()
    results = client.score_stream(RUBRIC, (items[i] for i in order), LABELS, in_order=False, timeout=PATIENCE_S)
    for count, result in enumerate(results):
        assert result.error is None, result
        assert scores[order[result.index]] is None, f"item {result.index} has two results"
        scores[order[result.index]] = [(label.token_ids, label.token_logprobs) for label in result.labels]
        if kill is not None and count == len(items) // 10:
            os.kill(kill, signal.SIGKILL)
    assert None not in scores, "an item has no result"
    assert results.usage.items == len(items) and results.usage.failed_items == 0, results.usage
    return scores, len(items) / (time.monotonic() - begin)


def compare_best(client, item, labels):
    """How many labels have their first token among the best ones, and how many of these differ."""
    answer = client.generate_once(RUBRIC + item, max_tokens=1, temperature=0, logprobs=20, ignore_eos=True)
    best = {one.token_id: one.logprob for one in answer.choices[0].logprobs[0].top}
    found = [(best[ids[0]], logprobs[0]) for ids, logprobs in labels if ids[0] in best]
    return len(found), sum(expected != scored for expected, scored in found)


def compare_prompt(client, item, labels):
    """How many label tokens were compared, and how many differ."""
    compared = differ = 0
    for text, (_, logprobs) in zip(LABELS, labels):
        answer = client.generate_once(RUBRIC + item + text, max_tokens=2, prompt_logprobs=0)
        expected = [one.logprob for one in answer.prompt_logprobs[-len(logprobs):]]
        compared += len(logprobs)
        differ += sum(a != b for a, b in zip(expected, logprobs))
    return compared, differ


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=Path)
    parser.add_argument("--items", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    items = [f"Mail {i} from dedu about the {rng.choice(TOPICS)}.\nVerdict ?" for i in range(args.items)]
    differ = 0
    with tempfile.TemporaryDirectory() as directory:
        cluster, (address, *_) = start_cluster(args.bin_dir / "baton", Path(directory), model=MODEL)
        try:
            with baton.Client(address) as client, ThreadPoolExecutor(8) as pool:
                first, rate = scores_of(client, items, rng)
                print(f"{len(items)} items scored, {rate:.0f} items/s", flush=True)
                second, rate = scores_of(client, items, rng, prefill_worker_of(cluster))
                changed = sum(a != b for a, b in zip(first, second))
                print(f"again, in another order, a prefill worker killed: {rate:.0f} items/s, {changed} differ", flush=True)
                differ += changed
                for name, compare, chosen in (
                        ("Generate's best tokens", compare_best, range(len(items))),
                        ("prompt_logprobs", compare_prompt, range(0, len(items), 100))):
                    pairs = list(pool.map(lambda i, ask=compare: ask(client, items[i], first[i]), chosen))
                    compared, wrong = (sum(column) for column in zip(*pairs))
                    print(f"{name}: {len(chosen)} items, {compared} log probabilities compared, {wrong} differ", flush=True)
                    differ += wrong
        finally:
            cluster.terminate()
            cluster.wait(timeout=PATIENCE_S)
    sys.exit(1 if differ else 0)


if __name__ == "__main__":
    main()
