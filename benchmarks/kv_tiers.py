#!/usr/bin/env python3
"""What does a prompt cost from each KV tier, and what is left after a restart?

    kv_tiers.py BIN_DIR --model DIR [--tiers host:2GB file:DIR:8GB redis:HOST:PORT] [--tokens 1024 2048 4096]
                [--rounds 3] [--threads 2] [--restart | --gaps]

For each tier, one pair of workers. Prompts are token ids that nothing has seen before. Time to first token,
medians: cold; from the prefill worker's pool (the decode worker's cache is flushed); from the tier (both are
flushed). Beside them the crossover: the rate above which loading beats computing, by the measured cold time,
and the rate at which the tier was read.

With --restart: 16 prompts run again and again, the prefill worker is killed and comes back; prints the share
of prompt tokens that it did not compute before, in the 5 s after, and in the 60 s after. Answers are compared
with those before. Files and keys of the tiers stay: give empty ones.

With --gaps: 16 prompts, four at a time, for 30 s; prints how long the prefill worker takes between steps. Give
--worker-flags --num-blocks N with too few blocks for all of them, so that tiers are always in use.
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
import threading
import time
import urllib.request
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
from demo_cluster import PATIENCE_S  # noqa: E402


class Cluster:
    """`baton up` with one prefill and one decode worker, started one by one so that one can be restarted."""

    def __init__(self, options, tier, directory):
        self.options, self.directory = options, Path(directory)
        self.processes, self.logs = {}, {}
        common = ["--model", options.model, "--threads", str(options.threads)]
        self.prefill_flags = [*common, *options.worker_flags]
        if tier:
            self.prefill_flags += ["--kv-tier", tier, "--kv-tier-least-uses", "1"]
        self.prefill = self.start("prefill", "baton-prefill-worker", "--listen", "127.0.0.1:0", *self.prefill_flags)
        self.decode = self.start("decode", "baton-decode-worker", "--listen", "127.0.0.1:0", *common,
                                 *options.worker_flags, "--local-prefill-max-tokens", "0")
        self.router = self.start("router", "baton-router", "--listen", "127.0.0.1:0", "--http-listen", "127.0.0.1:0",
                                 "--model", options.model, "--prefill-workers", self.prefill["grpc"],
                                 "--decode-workers", self.decode["grpc"], "--max-local-prefill-tokens", "0")
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                ask(self.router["http"], [5, 6, 7])
                break
            except RuntimeError as error:  # until the router knows the workers
                if time.monotonic() > end:
                    sys.exit(f"the cluster does not answer: {error}")
                time.sleep(0.05)

    def start(self, name, program, *flags):
        addresses = self.directory / f"{name}.address"
        addresses.unlink(missing_ok=True)
        log = self.directory / f"{name}.log"
        with log.open("a", encoding="utf-8") as output:
            self.processes[name] = subprocess.Popen(
                [self.options.bin_dir / program, "--address-file", addresses, "--metrics-listen", "127.0.0.1:0", *flags],
                stdout=output, stderr=subprocess.STDOUT)
        end = time.monotonic() + PATIENCE_S
        while not (addresses.exists() and addresses.read_text()):
            if time.monotonic() > end or self.processes[name].poll() is not None:
                sys.exit(f"{name} does not start: {log.read_text()[-2000:]}")
            time.sleep(0.02)
        names = ("grpc", "metrics", "http")
        return dict(zip(names, addresses.read_text().split()))

    def flush(self, worker):
        subprocess.run([self.options.bin_dir / "baton", "flush-cache", worker, "--address", self.router["grpc"]],
                       check=True, stdout=subprocess.DEVNULL)

    def counter(self, name, label=""):
        with urllib.request.urlopen(f"http://{self.prefill['metrics']}/metrics", timeout=PATIENCE_S) as page:
            return sum(float(line.split()[-1]) for line in page.read().decode().splitlines()
                       if line.startswith(name + "{") and label in line)

    def settled(self):
        """Waits until the tier has been written to."""
        before = -1
        while before != (now := self.counter("baton_kv_tier_segments_total", 'operation="store"')):
            before = now
            time.sleep(0.5)

    def stop(self):
        for process in self.processes.values():
            process.kill()
            process.wait()


def ask(address, tokens, answer_tokens=1):
    """The time to the first token in milliseconds, and the text."""
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
    begin = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps({
        "prompt": tokens, "max_tokens": answer_tokens, "temperature": 0, "ignore_eos": True, "stream": True}))
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"{response.status}: {response.read()[:300]}")
    first, text = None, ""
    for line in response:
        if line.startswith(b"data: {"):
            first = first or (time.perf_counter() - begin) * 1e3
            choices = json.loads(line[6:])["choices"]
            text += choices[0]["text"] if choices else ""
    connection.close()
    return first, text


def times(options, tier, rows):
    with tempfile.TemporaryDirectory(prefix="baton-kv-tiers-") as directory:
        cluster = Cluster(options, tier, directory)
        try:
            router = cluster.router["http"]
            for _ in range(6):  # the worker's steps must have been measured
                ask(router, [random.randrange(5, options.vocabulary) for _ in range(600)])
            for tokens in options.tokens:
                cold, pool, loaded, rates = [], [], [], []
                for _ in range(options.rounds):
                    prompt = [random.randrange(5, options.vocabulary) for _ in range(tokens)]
                    first, text = ask(router, prompt)
                    cold.append(first)
                    cluster.settled()
                    cluster.flush(cluster.decode["grpc"])
                    first, again = ask(router, prompt)
                    pool.append(first)
                    assert again == text, "another answer from the pool"
                    cluster.flush(cluster.decode["grpc"])
                    cluster.flush(cluster.prefill["grpc"])
                    before = [cluster.counter("baton_kv_tier_bytes_total", 'operation="load"'),
                              cluster.counter("baton_kv_tier_load_duration_seconds_sum")]
                    first, again = ask(router, prompt)
                    loaded.append(first)
                    assert again == text, "another answer from the tier"
                    size = cluster.counter("baton_kv_tier_bytes_total", 'operation="load"') - before[0]
                    took = cluster.counter("baton_kv_tier_load_duration_seconds_sum") - before[1]
                    rates.append((size, size / took if took > 0 else 0))
                size, rate = statistics.median(r[0] for r in rates), statistics.median(r[1] for r in rates)
                cold_ms, pool_ms, tier_ms = map(statistics.median, (cold, pool, loaded))
                crossover = size / ((cold_ms - pool_ms) / 1e3) / 1e6 if cold_ms > pool_ms else 0
                rows.append(f"| {tier.split(':')[0]} | {tokens} | {cold_ms:.0f} | {pool_ms:.0f} | {tier_ms:.0f} |"
                            f" {tier_ms / cold_ms:.2f} | {size / 1e6:.1f} | {rate / 1e6:.0f} | {crossover:.0f} |")
                print(rows[-1], flush=True)
        finally:
            cluster.stop()


def restart(options, tier):
    with tempfile.TemporaryDirectory(prefix="baton-kv-tiers-") as directory:
        cluster = Cluster(options, tier, directory)
        try:
            router = cluster.router["http"]
            prompts = [[random.randrange(5, options.vocabulary) for _ in range(options.tokens[0])] for _ in range(16)]
            answers, wrong = [ask(router, p, 4)[1] for p in prompts], 0

            def share(seconds):
                """Of prompt tokens that were not computed, while requests go on for so long."""
                nonlocal wrong
                names = ("baton_prefix_cache_hit_tokens_total", "baton_prefix_cache_query_tokens_total")
                before, end, i = [cluster.counter(n) for n in names], time.monotonic() + seconds, 0
                while time.monotonic() < end:
                    cluster.flush(cluster.decode["grpc"])
                    try:
                        wrong += ask(router, prompts[i % 16], 4)[1] != answers[i % 16]
                    except (RuntimeError, OSError):
                        time.sleep(0.05)  # until the router knows the worker
                    i += 1
                hit, query = (cluster.counter(n) - b for n, b in zip(names, before))
                return hit / query if query else 0

            cells = [share(20)]
            cluster.settled()
            port = cluster.prefill["grpc"]
            cluster.processes["prefill"].kill()
            cluster.processes["prefill"].wait()
            cluster.prefill = cluster.start("prefill", "baton-prefill-worker", "--listen", port, *cluster.prefill_flags)
            cells += [share(5), share(55)]
            print(f"| {tier.split(':')[0] or 'none'} | " + " | ".join(f"{100 * c:.0f} %" for c in cells) +
                  f" | {wrong} |", flush=True)
        finally:
            cluster.stop()


def gaps(options, tier):
    with tempfile.TemporaryDirectory(prefix="baton-kv-tiers-") as directory:
        cluster = Cluster(options, tier, directory)
        try:
            prompts = [[random.randrange(5, options.vocabulary) for _ in range(options.tokens[0])] for _ in range(16)]
            answers, wrong, first_ms = {}, [], []
            end = time.monotonic() + 30

            def work(client):
                i = client
                while time.monotonic() < end:
                    first, text = ask(cluster.router["http"], prompts[i % 16], 4)
                    first_ms.append(first)
                    if answers.setdefault(i % 16, text) != text:
                        wrong.append(i)
                    i += 5  # so that the clients do not keep to the same prompts

            clients = [threading.Thread(target=work, args=(client,)) for client in range(4)]
            for client in clients:
                client.start()
            for client in clients:
                client.join()
            name = "baton_prefill_step_gap_seconds"
            count = cluster.counter(name + "_count")
            below = [cluster.counter(name + "_bucket", 'le="' + bound + '"') for bound in ("0.001", "0.005", "0.01")]
            cells = [f"{100 * n / max(count, 1):.2f} %" for n in below]
            loads = cluster.counter("baton_kv_tier_segments_total", 'operation="load"')
            print(f"| {tier.split(':')[0] or 'none'} | {len(first_ms)} | {loads:.0f} | {count:.0f} | " +
                  " | ".join(cells) + f" | {statistics.median(first_ms):.0f} | {len(wrong)} |", flush=True)
        finally:
            cluster.stop()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tiers", nargs="+", default=["host:2GB"])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 2048, 4096])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--restart", action="store_true")
    parser.add_argument("--gaps", action="store_true")
    parser.add_argument("--worker-flags", nargs=argparse.REMAINDER, default=[], help="passed to both workers")
    options = parser.parse_args()
    random.seed(options.seed)
    options.vocabulary = json.loads((Path(options.model) / "config.json").read_text())["vocab_size"]
    tokenizer = Path(options.model) / "tokenizer.json"
    options.vocabulary = min(options.vocabulary, len(json.loads(tokenizer.read_text())["model"]["vocab"]))
    if options.restart:
        print("| tier | before | 5 s after | 5 to 60 s after | wrong answers |\n|---|---|---|---|---|")
        for tier in ["", *options.tiers]:
            restart(options, tier)
        return
    if options.gaps:
        print("| tier | requests | segments loaded | gaps | <= 1 ms | <= 5 ms | <= 10 ms | median TTFT ms | wrong answers |")
        print("|---" * 9 + "|")
        for tier in ["", *options.tiers]:
            gaps(options, tier)
        return
    print("| tier | tokens | cold ms | pool ms | tier ms | tier ÷ cold | MB | MB/s | crossover MB/s |")
    print("|---" * 9 + "|")
    rows = []
    for tier in options.tiers:
        times(options, tier, rows)


if __name__ == "__main__":
    main()
