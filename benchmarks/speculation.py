#!/usr/bin/env python3
"""Tokens/s with drafts and without: the same requests to two clusters of one prefill and one decode worker, in turn,
whose answers have to be equal.

    speculation.py BIN_DIR --model FILE_OR_DIR [--modes off,suffix,ngram:8,2,4] [--batches 1,4,16] [--rounds 5]
                   [--tasks edit,extract,chat] [--tokens 160]

Tasks: edit repeats paragraphs of this repository's docs with a word replaced; extract answers by a JSON schema from a
text that has the values; chat is sampled and asks for a story that the prompt does not contain. Each round uses new texts.
docs/results/speculation.md has the figures.
"""

import argparse
import concurrent.futures
import http.client
import json
import random
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
from demo_cluster import PATIENCE_S, start_cluster  # noqa: E402

SEED = 7
FIRST = "Mira Jonas Petra Ivo Selma Tarik Nadia Oskar Leni Ruben Vera Milan".split()
LAST = "Hallbach Ostrow Lindqvist Amari Keller Novak Perez Duval Sato Brandt".split()
CITIES = "Graz Turku Porto Lund Gent Bari Split Linz Brno Vigo".split()
THINGS = "a lighthouse,a bakery,an old tram,the first snow,a chess club,a river ferry,a night market,a mountain hut".split(",")
SCHEMA = {"type": "object", "additionalProperties": False,
          "properties": {"name": {"type": "string"}, "city": {"type": "string"}, "invoice": {"type": "string"},
                         "date": {"type": "string"}, "total": {"type": "string"}, "contact_email": {"type": "string"}},
          "required": ["name", "city", "invoice", "date", "total", "contact_email"]}


def paragraphs():
    """Prose of the docs, of 60 to 120 words."""
    found = []
    for path in sorted((ROOT / "docs").rglob("*.md")):
        for block in path.read_text(encoding="utf-8").split("\n\n"):
            words = block.split()
            if 60 <= len(words) <= 120 and not re.search(r"^[|#>`]|```|^- ", block, re.MULTILINE):
                found.append(" ".join(words))
    return found


def edit(rng, texts, options):
    text = rng.choice(texts)
    words = sorted({w for w in re.findall(r"[a-z]{5,}", text)})
    word = rng.choice(words)
    return {"messages": [{"role": "user", "content": f'Repeat the text below word by word, but write "{word.upper()}" '
                                                     f'instead of "{word}".\n\n{text}'}],
            "temperature": 0}


def extract(rng, _, options):
    first, last = rng.choice(FIRST), rng.choice(LAST)
    text = (f"Invoice {rng.randrange(10_000, 99_999)}-{rng.randrange(100, 999)} was sent by {first} {last} of {rng.choice(CITIES)} "
            f"on 2024-{rng.randrange(1, 13):02}-{rng.randrange(1, 29):02}. The total of "
            f"{rng.randrange(100, 9_999)}.{rng.randrange(100):02} EUR is due in {rng.choice((14, 30, 60))} days; questions go to "
            f"{first.lower()}.{last.lower()}@{last.lower()}-trading.example.")
    return {"messages": [{"role": "user", "content": f"Extract the data of this message as JSON.\n\n{text}"}],
            "temperature": 0,
            "response_format": {"type": "json_schema", "json_schema": {"name": "invoice", "schema": SCHEMA, "strict": True}}}


def chat(rng, _, options):
    return {"messages": [{"role": "user", "content": f"Tell me a story about {rng.choice(THINGS)} in {rng.choice(CITIES)}."}],
            "temperature": 1, "seed": rng.randrange(1 << 30), "ignore_eos": True}


TASKS = {"edit": edit, "extract": extract, "chat": chat}


def ask(address, request):
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(request), {"Content-Type": "application/json"})
        response = connection.getresponse()
        text = response.read()
    finally:
        connection.close()
    if response.status != 200:
        sys.exit(f"speculation: {response.status}: {text.decode()}")
    answer = json.loads(text)
    return answer["choices"][0]["message"]["content"], answer["usage"]


def run(address, requests, batch):
    """All requests, `batch` at a time; returns answers, tokens/s, drafts and accepted ones."""
    begin = time.perf_counter()
    with concurrent.futures.ThreadPoolExecutor(batch) as pool:
        answers = list(pool.map(lambda request: ask(address, request), requests))
    seconds = time.perf_counter() - begin
    tokens = sum(usage["completion_tokens"] for _, usage in answers)
    details = [usage.get("completion_tokens_details") or {} for _, usage in answers]
    accepted = sum(d.get("accepted_prediction_tokens", 0) for d in details)
    drafted = accepted + sum(d.get("rejected_prediction_tokens", 0) for d in details)
    return [text for text, _ in answers], tokens / seconds, tokens, drafted, accepted


def counter(log, name):
    address = re.search(r"decode worker .*?/metrics on ([\d.:]+)", log.read_text(encoding="utf-8"))[1]
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + "{"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--modes", default="off,suffix", help="the first one is compared with; semicolons separate, too")
    parser.add_argument("--batches", default="1,4,16")
    parser.add_argument("--tasks", default="edit,extract,chat")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=160)
    options = parser.parse_args()
    modes = options.modes.split(";") if ";" in options.modes else options.modes.split(",")
    batches = [int(batch) for batch in options.batches.split(",")]
    texts = paragraphs()
    folders = [tempfile.TemporaryDirectory(prefix="baton-speculation-") for _ in modes]
    clusters = []
    try:
        for mode, folder in zip(modes, folders):
            clusters.append(start_cluster(
                options.bin_dir / "baton", Path(folder.name), "--speculative", mode,
                model=options.model, prefill=1, decode=1, kv_cache_memory="1GB"))
        print("| task | batch | mode | tokens/s | of the first | tokens a step and sequence | drafts | drawn |\n"
              "|---|---|---|---|---|---|---|---|")
        for task in options.tasks.split(","):
            for batch in batches:
                rates, ratios = [[] for _ in modes], [[] for _ in modes]
                totals = [[0, 0, 0] for _ in modes]
                steps = [0.0 for _ in modes]
                for turn in range(-1, options.rounds):
                    rng = random.Random(f"{SEED} {task} {batch} {turn}")
                    requests = [TASKS[task](rng, texts, options) | {"max_tokens": options.tokens} for _ in range(2 * batch)]
                    of_turn = [None for _ in modes]
                    # Each mode is first in some turns.
                    for at in [(turn + i) % len(modes) for i in range(len(modes))]:
                        addresses = clusters[at][1]
                        log = Path(folders[at].name) / "up.log"
                        before = counter(log, "baton_decode_drafted_steps_total")
                        answers, rate, tokens, drafted, accepted = run(addresses[2], requests, batch)
                        drafted_steps = counter(log, "baton_decode_drafted_steps_total") - before
                        of_turn[at] = (answers, rate)
                        if turn >= 0:
                            rates[at].append(rate)
                            totals[at] = [a + b for a, b in zip(totals[at], (tokens, drafted, accepted))]
                            steps[at] += drafted_steps
                    for at, (answers, rate) in enumerate(of_turn):
                        if answers != of_turn[0][0]:
                            sys.exit(f"speculation: {modes[at]} has other answers than {modes[0]}: {task}, {batch}, {turn}")
                        if turn >= 0:
                            ratios[at].append(rate / of_turn[0][1])
                for at, mode in enumerate(modes):
                    tokens, drafted, accepted = totals[at]
                    print(f"| {task} | {batch} | {mode} | {statistics.median(rates[at]):.1f} | "
                          f"{statistics.median(ratios[at]):.2f} | {tokens / max(1, tokens - accepted):.2f} | {drafted} | "
                          f"{100 * accepted / drafted if drafted else 0:.0f} % |", flush=True)
    finally:
        for cluster, _ in clusters:
            cluster.terminate()
        for cluster, _ in clusters:
            cluster.wait(timeout=PATIENCE_S)
        for folder in folders:
            folder.cleanup()


if __name__ == "__main__":
    main()
