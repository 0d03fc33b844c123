#!/usr/bin/env python3
"""A conversation of 100,000 tokens that an agent sends whole each turn: the time of a warm answer of
one token, with --tokenized-text-memory and without, by two routers of the same workers, in turn.

    long_histories.py BIN_DIR [TURNS [TOKENS]]

docs/http.md describes what is reused; docs/results/long_histories.md has the figures.
"""

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
from demo_cluster import MODEL, PATIENCE_S  # noqa: E402
from kv_tiers import Cluster  # noqa: E402

SEED = 5
TOKENS = 100_000
TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")


def make_model(directory):
    """The demo model with a context of 131,072 tokens, which makes no sense of them: what is
    measured is the router."""
    model = directory / "model"
    model.mkdir()
    for path in MODEL.iterdir():
        if path.suffix in (".json", ".safetensors"):
            os.symlink(path.resolve(), model / path.name)
    config = json.loads((MODEL / "config.json").read_text())
    config["max_position_embeddings"] = 131_072
    config["num_hidden_layers"] = 1
    (model / "config.json").unlink()
    (model / "config.json").write_text(json.dumps(config))
    (model / "chat_template.jinja").write_text(TEMPLATE)
    return model


def ask(http, messages):
    """Seconds of a chat's answer of one token, and its usage."""
    body = json.dumps({"messages": messages, "max_tokens": 1, "temperature": 0}).encode()
    begin = time.perf_counter()
    request = urllib.request.Request(f"http://{http}/v1/chat/completions", body)
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        usage = json.load(answer)["usage"]
    return time.perf_counter() - begin, usage


def compare(http, without, tokens, turns):
    draw = random.Random(SEED)
    words = ["red", "green", "blue", "copy", "one", "two", "three", "count", "list", "value"]

    def message(role, size):
        return {"role": role, "content": " ".join(draw.choice(words) for _ in range(size))}

    messages = [message("system", 200)]
    used = 0
    while used < tokens - 2000:  # each turn's prompt is cached for the next one
        for _ in range(4):
            messages += [message("user", 30), message("assistant", 150)]
        used = ask(http, messages + [message("user", 10)])[1]["prompt_tokens"]
    times = {http: [], without: []}
    for turn in range(turns):
        messages += [message("user", 10), message("assistant", 10)]
        prompt = messages + [message("user", 10)]
        ask(http, prompt)  # computes what is new
        order = [http, without] if turn % 2 == 0 else [without, http]
        for address in order:
            # The last message differs, as that of a next turn does.
            seconds, usage = ask(address, messages + [message("user", 10)])
            times[address].append(1e3 * seconds)
    body = len(json.dumps(messages))
    print(f"{usage['prompt_tokens']} prompt tokens, {usage['prompt_tokens_details']['cached_tokens']} of them cached, "
          f"{body} bytes, {len(messages)} messages, {turns} turns, seed {SEED}")
    print("| tokens of earlier turns | median ms | p95 ms |\n|---|---|---|")
    for name, address in (("reused", http), ("computed again", without)):
        values = sorted(times[address])
        print(f"| {name} | {statistics.median(values):.1f} | {values[int(0.95 * len(values))]:.1f} |")


def main():
    binaries = Path(sys.argv[1])
    turns = int(sys.argv[2]) if len(sys.argv) > 2 else 40
    tokens = int(sys.argv[3]) if len(sys.argv) > 3 else TOKENS
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        model = make_model(directory)
        options = argparse.Namespace(
            bin_dir=binaries, model=model, threads=1,
            worker_flags=["--max-model-len", "131072", "--kv-cache-memory", "1500MB", "--max-num-batched-tokens", "2048"])
        cluster = Cluster(options, None, directory)
        try:
            without = cluster.start(
                "without", "baton-router", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--model", model,
                "--prefill-workers", cluster.prefill["grpc"], "--decode-workers", cluster.decode["grpc"],
                "--max-local-prefill-tokens", "0", "--tokenized-text-memory", "0")
            while True:
                try:
                    ask(without["http"], [{"role": "user", "content": "one"}])
                    break
                except urllib.error.HTTPError:  # until the router knows the workers
                    time.sleep(0.05)
            compare(cluster.router["http"], without["http"], tokens, turns)
        finally:
            cluster.stop()


if __name__ == "__main__":
    main()
