#!/usr/bin/env python3
"""What a model with sliding windows keeps, sends and finds again.

    windowed_kv.py BIN_DIR [--tokens 32768] [--requests 64] [--seed 1] [--model MODEL]

Starts a cluster of one prefill and one decode worker with a random model that has the KV of Gemma 3 4B
(scripts/make_checkpoint.py gemma3-4b-kv: 34 layers, of which 29 have windows of 1,024 tokens). Prints
- the KV that a sequence of --tokens tokens takes on the decode worker while it decodes, what its layers need,
  what `baton plan` says, and what crossed the network;
- of --requests prompts of 1,500 common tokens and 700 of their own, one after the other: how many find the
  common ones cached, and the time to their second token beside that of prompts with nothing in common; in a
  pool for many such sequences, and in one for two.
With --model, a directory or a GGUF file, only the second, in the larger pool.
"""

import argparse
import http.client
import json
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
from demo_cluster import MODEL, PATIENCE_S, start_cluster  # noqa: E402

VOCABULARY = 1000
BLOCK = 16
LAYERS, WINDOWED, WINDOW = 34, 29, 1024
CHUNK_BYTES = 2 * 4 * 256 * BLOCK * 2  # K and V, heads, head dim, tokens, bfloat16
SHARED, OWN = 1500, 700
SHARED_HEADER = ("| pool | prompts that find the common tokens | their second token after | of others | ratio | "
                 "blocks evicted |\n|---|---|---|---|---|---|")


def body(prompt, answer, **fields):
    return json.dumps({"prompt": prompt, "max_tokens": answer, "temperature": 0, "ignore_eos": True, **fields})


def ask(address, prompt, answer):
    """Returns the seconds to the answer, and how many tokens of the prompt were cached."""
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
    begin = time.perf_counter()
    connection.request("POST", "/v1/completions", body(prompt, answer))
    response = connection.getresponse()
    text = response.read()
    if response.status != 200:
        sys.exit(f"windowed_kv: {response.status}: {text.decode()}")
    return time.perf_counter() - begin, json.loads(text)["usage"]["prompt_tokens_details"]["cached_tokens"]


def metric(address, name, label=""):
    """The sum of those of a worker's series that have the label."""
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    series = re.findall(rf"^{name}({{[^}}]*}})? (\S+)$", text, re.MULTILINE)
    return sum(float(value) for labels, value in series if label in labels)


def workers(log):
    """The /metrics addresses of the prefill and the decode worker."""
    text = log.read_text(encoding="utf-8")
    return {role: re.search(rf"{role} worker .*? serves .*?/metrics on ([\d.:]+)", text)[1]
            for role in ("prefill", "decode")}


def memory(binary, model, options):
    rng = random.Random(options.seed)
    answer = 200
    prompt = [rng.randrange(VOCABULARY) for _ in range(options.tokens - answer)]
    with tempfile.TemporaryDirectory(prefix="baton-windowed-") as folder:
        cluster, (_, _, address) = start_cluster(
            binary, Path(folder), "--max-local-prefill-tokens", "0", "--max-model-len", str(options.tokens),
            model=model, prefill=1, decode=1, kv_cache_memory="2GB")
        try:
            decode = workers(Path(folder) / "up.log")["decode"]
            connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
            begin = time.perf_counter()
            connection.request("POST", "/v1/completions", body(prompt, answer, stream=True))
            response = connection.getresponse()
            lines, pages, first = 0, [], None
            for line in response:
                if not line.startswith(b"data: {"):
                    continue
                first = first or time.perf_counter() - begin
                lines += 1
                if lines % 10 == 0:
                    pages.append(metric(decode, "baton_kv_blocks", 'state="active"'))
            sent = metric(decode, "baton_kv_transfer_bytes_total")
        finally:
            cluster.terminate()
            cluster.wait(timeout=PATIENCE_S)
    plan = json.loads(subprocess.check_output(
        [binary, "plan", "--model", model, "--gpu", "t4", "--dtype", "float16", "--max-model-len", str(options.tokens),
         "--context", str(options.tokens), "--json"]))["memory"]
    blocks = options.tokens // BLOCK
    full = LAYERS * blocks * CHUNK_BYTES
    needed = ((LAYERS - WINDOWED) * options.tokens + WINDOWED * WINDOW) * CHUNK_BYTES // BLOCK
    took = max(pages) * plan["page_bytes"]
    print(f"A sequence of {options.tokens} tokens, first token after {first:.0f} s, bfloat16 KV:\n")
    print("| | MiB | of what its layers need |\n|---|---|---|")
    for name, size in (("its layers need", needed), ("the decode worker used at most, of `active` pages", took),
                       ("`baton plan` counts", plan["sequence_bytes"]),
                       ("all KV of all layers", full), ("crossed the network", sent)):
        print(f"| {name} | {size / 2**20:.1f} | {100 * size / needed:.1f} % |")
    print(flush=True)


def shared(binary, model, options, name, kv_cache_memory, with_others):
    rng = random.Random(options.seed)

    def tokens(count):
        return [rng.randrange(VOCABULARY) for _ in range(count)]

    with tempfile.TemporaryDirectory(prefix="baton-windowed-") as folder:
        cluster, (_, _, address) = start_cluster(
            binary, Path(folder), "--max-local-prefill-tokens", "0", "--max-model-len", "4096", model=model,
            prefill=1, decode=1, kv_cache_memory=kv_cache_memory)
        try:
            prefill = workers(Path(folder) / "up.log")["prefill"]
            ask(address, tokens(SHARED + OWN), 2)  # the first step of a process takes longer
            cold, warm, hits = [], [], 0
            prefix = tokens(SHARED)
            ask(address, prefix + tokens(OWN), 2)
            for at in range(options.requests - 1):
                seconds, cached = ask(address, prefix + tokens(OWN), 2)
                warm.append(seconds)
                hits += cached >= SHARED // BLOCK * BLOCK
                if with_others and at % 4 == 0:
                    cold.append(ask(address, tokens(SHARED + OWN), 2)[0])
            evicted = metric(prefill, "baton_prefix_cache_evicted_blocks_total")
        finally:
            cluster.terminate()
            cluster.wait(timeout=PATIENCE_S)
    times = f"{statistics.median(warm) * 1e3:.0f} ms | | "
    if cold:
        times = (f"{statistics.median(warm) * 1e3:.0f} ms | {statistics.median(cold) * 1e3:.0f} ms | "
                 f"{statistics.median(warm) / statistics.median(cold):.2f}")
    print(f"| {name} | {hits} of {options.requests - 1} | {times} | {evicted:.0f} |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("bin_dir", type=Path)
    parser.add_argument("--tokens", type=int, default=32768)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--model", type=Path)
    options = parser.parse_args()
    binary = options.bin_dir / "baton"
    if options.model:
        print(SHARED_HEADER)
        shared(binary, options.model, options, "2 GB", "2GB", with_others=True)
        return
    with tempfile.TemporaryDirectory(prefix="baton-windowed-model-") as model:
        subprocess.run([sys.executable, ROOT / "scripts/make_checkpoint.py", "gemma3-4b-kv", model, "--tokenizer",
                        MODEL / "tokenizer.json"], check=True)
        memory(binary, Path(model), options)
        print(SHARED_HEADER)
        shared(binary, Path(model), options, "2 GB", "2GB", with_others=True)
        shared(binary, Path(model), options, "420 MB", "420MB", with_others=False)


if __name__ == "__main__":
    main()
