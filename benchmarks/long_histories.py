#!/usr/bin/env python3
"""A conversation of 100,000 tokens that an agent sends whole each turn: the time of a warm answer of
one token, at a steady rate, with --tokenized-text-memory and without, by two routers of the same
workers, in turn; with --before, also by a cluster of other binaries.

    long_histories.py BIN_DIR [--turns 40] [--tokens 100000] [--rate 10] [--narrow] [--before BIN_DIR]

--narrow: the model's one layer has one head of 32 dimensions, so that what is around the model shows.
docs/http.md describes what is reused; docs/results/long_histories.md has the figures.
"""

import argparse
import http.client
import json
import os
import random
import statistics
import struct
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
from demo_cluster import MODEL, PATIENCE_S  # noqa: E402
from kv_tiers import Cluster  # noqa: E402

SEED = 5
TOKENS = 100_000
TEMPLATE = ("{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}")

NARROW_HEAD = 32


def narrow_weights(source, target):
    """Writes the layer 0 of the model with the first rows of its first head only."""
    whole = source.read_bytes()
    size = struct.unpack("<Q", whole[:8])[0]
    header, data = json.loads(whole[8:8 + size]), whole[8 + size:]
    kept, parts, end = {}, [], 0
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        shape, (begin, stop) = tensor["shape"], tensor["data_offsets"]
        raw, kind = data[begin:stop], name.split(".")[-2]
        if kind in ("q_proj", "k_proj", "v_proj"):
            raw, shape = raw[:len(raw) // shape[0] * NARROW_HEAD], [NARROW_HEAD, shape[1]]
        elif kind in ("q_norm", "k_norm"):
            raw, shape = raw[:len(raw) // shape[0] * NARROW_HEAD], [NARROW_HEAD]
        elif kind == "o_proj":
            row = len(raw) // shape[0]
            column = row // shape[1]
            raw = b"".join(raw[i:i + NARROW_HEAD * column] for i in range(0, len(raw), row))
            shape = [shape[0], NARROW_HEAD]
        kept[name] = {"dtype": tensor["dtype"], "shape": shape, "data_offsets": [end, end + len(raw)]}
        parts.append(raw)
        end += len(raw)
    text = json.dumps(kept).encode()
    text += b" " * (-len(text) % 8)
    target.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(parts))


def make_model(directory, narrow):
    """The demo model with a context of 131,072 tokens, which makes no sense of them: what is
    measured is what is around the model."""
    model = directory / "model"
    model.mkdir()
    for path in MODEL.iterdir():
        if path.suffix == ".safetensors" and narrow:
            narrow_weights(path, model / path.name)
        elif path.suffix in (".json", ".safetensors"):
            os.symlink(path.resolve(), model / path.name)
    config = json.loads((MODEL / "config.json").read_text())
    config["max_position_embeddings"] = 131_072
    config["num_hidden_layers"] = 1
    if narrow:
        config.update({"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": NARROW_HEAD})
    (model / "config.json").unlink()
    (model / "config.json").write_text(json.dumps(config))
    (model / "chat_template.jinja").write_text(TEMPLATE)
    return model


class Pace:
    """Lets a request go each 1/rate seconds."""

    def __init__(self, rate):
        self.step, self.next = 1 / rate, time.perf_counter()

    def wait(self):
        self.next = max(self.next + self.step, time.perf_counter())
        time.sleep(max(0, self.next - time.perf_counter()))


class Target:
    """A router, on one connection."""

    def __init__(self, name, address):
        self.name, self.times = name, []
        self.connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)

    def ask(self, messages):
        """The usage of a chat's answer of one token, and the milliseconds of the whole answer."""
        body = json.dumps({"messages": messages, "max_tokens": 1, "temperature": 0}).encode()
        begin = time.perf_counter()
        self.connection.request("POST", "/v1/chat/completions", body)
        answer = self.connection.getresponse()
        text = answer.read()
        milliseconds = 1e3 * (time.perf_counter() - begin)
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {text[:300]}")
        return json.loads(text)["usage"], milliseconds


def compare(leaders, targets, options):
    """`leaders`: the targets that compute a turn's new tokens, one for each cluster."""
    draw = random.Random(SEED)
    words = ["red", "green", "blue", "copy", "one", "two", "three", "count", "list", "value"]

    def message(role, size):
        return {"role": role, "content": " ".join(draw.choice(words) for _ in range(size))}

    messages = [message("system", 200)]
    used = 0
    while used < options.tokens - 2000:  # each turn's prompt is cached for the next one
        for _ in range(4):
            messages += [message("user", 30), message("assistant", 150)]
        prompt = messages + [message("user", 10)]
        for leader in leaders:
            used = leader.ask(prompt)[0]["prompt_tokens"]
    pace = Pace(options.rate)
    for turn in range(options.turns):
        messages += [message("user", 10), message("assistant", 10)]
        prompt = messages + [message("user", 10)]
        for leader in leaders:
            pace.wait()
            leader.ask(prompt)
        for step in range(len(targets)):
            target = targets[(turn + step) % len(targets)]
            # The last message differs, as that of a next turn does.
            prompt = messages + [message("user", 10)]
            pace.wait()
            usage, milliseconds = target.ask(prompt)
            target.times.append(milliseconds)
    body = len(json.dumps(messages))
    print(f"{usage['prompt_tokens']} prompt tokens, {usage['prompt_tokens_details']['cached_tokens']} of them cached, "
          f"{body} bytes, {len(messages)} messages, {options.turns} turns, {options.rate:g} requests/s, seed {SEED}"
          f"{', the narrow model' if options.narrow else ''}")
    print("| cluster | median ms | p95 ms |\n|---|---|---|")
    for target in targets:
        values = sorted(target.times)
        print(f"| {target.name} | {statistics.median(values):.1f} | {values[int(0.95 * len(values))]:.1f} |")


def start_without(cluster, model):
    """A second router of the cluster's workers, which tokenizes each prompt whole."""
    without = cluster.start(
        "without", "baton-router", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0", "--model", model,
        "--prefill-workers", cluster.prefill["grpc"], "--decode-workers", cluster.decode["grpc"],
        "--max-local-prefill-tokens", "0", "--tokenized-text-memory", "0")
    target = Target("now, tokens of earlier turns computed again", without["http"])
    while True:
        try:
            target.ask([{"role": "user", "content": "one"}])
            return target
        except RuntimeError:  # until the router knows the workers
            time.sleep(0.05)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("bin_dir", type=Path)
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--rate", type=float, default=10)
    parser.add_argument("--narrow", action="store_true")
    parser.add_argument("--before", type=Path)
    options = parser.parse_args()
    clusters, leaders, targets = [], [], []
    with tempfile.TemporaryDirectory() as name:
        model = make_model(Path(name), options.narrow)
        try:
            for title, binaries in (("before", options.before), ("now", options.bin_dir)):
                if binaries is None:
                    continue
                directory = Path(name) / title
                directory.mkdir()
                clusters.append(Cluster(
                    argparse.Namespace(bin_dir=binaries, model=model, threads=1,
                                       worker_flags=["--max-model-len", "131072", "--kv-cache-memory", "1500MB",
                                                     "--max-num-batched-tokens", "2048"]), None, directory))
                leaders.append(Target(title, clusters[-1].router["http"]))
            targets = [*leaders, start_without(clusters[-1], model)]
            compare(leaders, targets, options)
        finally:
            for cluster in clusters:
                cluster.stop()


if __name__ == "__main__":
    main()
