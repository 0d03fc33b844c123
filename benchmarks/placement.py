#!/usr/bin/env python3
"""What does the router's choice of a worker for each prompt bring, against both fixed placements?

    placement.py BIN_DIR --model DIR [--links none 1gbit 10gbit] [--tokens 256 1024] [--loads idle half full]
                 [--rounds 3] [--requests 8] [--burst N]

Three clusters of two workers: `together` (decode workers, which compute their own prompts), `apart` (a prefill and a
decode worker; every prompt is computed on the first) and `choice` (the same two, and the router chooses). All are up all the
time and work in turn: each round sends each cluster the same prompts at the same moments. Prompts are token ids that nothing
has seen before. Loads: `idle`, one request after the other; `half`, Poisson arrivals as far apart as a request takes on an
idle worker of `together`, so that two workers are busy half of the time; `full`, eight callers without a pause.

With --together 1, `together` is one decode worker: what a machine does without a second worker.

Prints medians of the time to the first token and of the whole answer, and the 99th percentile of the time between tokens.
The last columns are those of `choice` over the better of the other two.

With --burst N, one prefill and three decode workers instead, which get N prompts at the same moment: `apart` as above;
`local`, where decode workers compute only what they answer; `lending`, where they compute for each other, too. Prints the
median and the last of the times to the first token.

With links, such as 1gbit, each worker has its own host (a network namespace), which sends at that rate. That needs root, as
tests/deploy/hosts.py says. `none`, if given, comes first.
"""

import argparse
import http.client
import json
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests/deploy")]
import hosts  # noqa: E402
from demo_cluster import PATIENCE_S  # noqa: E402

# The workers' roles, flags of the decode workers, and of the router.
CLUSTERS = {"together": (["decode", "decode"], [], []),
            "apart": (["prefill", "decode"], [], ["--max-local-prefill-tokens", "0"]),
            "choice": (["prefill", "decode"], [], [])}
FOUR = ["prefill", "decode", "decode", "decode"]
BURST = {"apart": (FOUR, [], ["--max-local-prefill-tokens", "0"]), "local": (FOUR, ["--no-serve-prefill"], []),
         "lending": (FOUR, [], [])}
CALLERS = 8


class Cluster:
    """Workers, each on a host of `network` (None: on this one), and their router."""

    def __init__(self, name, shape, options, folder, network):
        self.name, self.shape, self.options, self.folder, self.processes = name, shape, options, folder, []
        self.hosts = [network.add(f"{name}{i}") if network else None for i in range(len(shape[0]))]

    def launch(self):
        options = self.options
        roles, decode_flags, router_flags = self.shape
        flags = ["--model", options.model, "--threads", str(options.threads), *options.worker_flags]
        workers = [self.start(f"{role}{i}", f"baton-{role}-worker", host, *flags, *(decode_flags if role == "decode" else []))
                   for i, (role, host) in enumerate(zip(roles, self.hosts))]
        listed = [word for role, worker in zip(roles, workers) for word in (f"--{role}-workers", worker)]
        self.address = self.start("router", "baton-router", None, "--http-listen", "127.0.0.1:0", "--model", options.model,
                                  *listed, *router_flags)

    def wait_until_ready(self):
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                Answer(self.address, [5, 6, 7], 1)
                return
            except RuntimeError as error:  # until the router knows the workers
                if time.monotonic() > end:
                    sys.exit(f"{self.name} does not answer: {error}")
                time.sleep(0.05)

    def start(self, name, program, host, *flags):
        """The address that it serves: the HTTP address of a router."""
        path = self.folder / f"{self.name}-{name}.address"
        log = self.folder / f"{self.name}-{name}.log"
        inside, listen = (host.inside, host.address) if host else ([], "127.0.0.1")
        if host:
            flags = (*flags, "--insecure")
        with log.open("w", encoding="utf-8") as output:
            self.processes.append(subprocess.Popen(
                [*inside, self.options.bin_dir / program, "--listen", f"{listen}:0", "--address-file", path, *flags],
                stdout=output, stderr=subprocess.STDOUT))
        end = time.monotonic() + PATIENCE_S
        while not (path.exists() and path.read_text()):
            if time.monotonic() > end or self.processes[-1].poll() is not None:
                sys.exit(f"{self.name}: {name} does not start: {log.read_text()[-2000:]}")
            time.sleep(0.02)
        return path.read_text().split()[-1 if program == "baton-router" else 0]

    def stop(self):
        for process in self.processes:
            process.kill()
            process.wait()


class Answer:
    """A request, and the times in seconds: to the first token, to the last, and between tokens."""

    def __init__(self, address, prompt, tokens):
        connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
        begin = time.perf_counter()
        connection.request("POST", "/v1/completions", json.dumps({
            "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True}))
        response = connection.getresponse()
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {response.read()[:300]}")
        times, self.text = [], ""
        for line in response:
            if line.startswith(b"data: {"):
                choices = json.loads(line[6:])["choices"]
                if choices:
                    times.append(time.perf_counter())
                self.text += choices[0]["text"] if choices else ""
        connection.close()
        self.first, self.whole = times[0] - begin, times[-1] - begin
        self.gaps = [b - a for a, b in zip(times, times[1:])]


def run_load(cluster, load, prompts, pauses, tokens):
    """Sends the prompts; `pauses`: seconds between arrivals at half load."""
    answers, threads, left = [], [], list(enumerate(prompts))

    def ask(number, prompt):
        answers.append((number, Answer(cluster.address, prompt, tokens)))

    def ask_all():
        while True:
            try:
                number, prompt = left.pop(0)
            except IndexError:
                return
            ask(number, prompt)

    if load == "half":
        for number, (prompt, pause) in enumerate(zip(prompts, pauses)):
            threads.append(threading.Thread(target=ask, args=(number, prompt)))
            threads[-1].start()
            time.sleep(pause)
    else:
        for _ in range({"idle": 1, "full": CALLERS, "burst": len(prompts)}[load]):
            threads.append(threading.Thread(target=ask_all))
            threads[-1].start()
    for thread in threads:
        thread.join()
    if len(answers) != len(prompts):
        sys.exit(f"{cluster.name}: {len(prompts) - len(answers)} requests failed")
    return [answer for _, answer in sorted(answers, key=lambda a: a[0])]


def p99(values):
    return sorted(values)[int(0.99 * len(values))]


def row(link, tokens, load, answers):
    """`answers`: by cluster."""
    columns = []
    for figure in (lambda a: statistics.median(x.first for x in a), lambda a: statistics.median(x.whole for x in a),
                   lambda a: p99([gap for x in a for gap in x.gaps])):
        ms = {name: figure(answers[name]) * 1e3 for name in CLUSTERS}
        columns += [f"{ms[name]:.0f}" for name in CLUSTERS]
        columns.append(f"{ms['choice'] / min(ms['together'], ms['apart']):.2f}")
    print(f"| {link} | {tokens} | {load} | " + " | ".join(columns) + " |", flush=True)


def burst(options, link, clusters, prompts):
    for tokens in options.tokens:
        first = {cluster.name: [] for cluster in clusters}
        for cluster in clusters:  # the workers' steps must have been measured
            run_load(cluster, "full", prompts(tokens, 6 * CALLERS), [], options.answer)
        for _ in range(options.rounds):
            sent = prompts(tokens, options.burst)
            for cluster in clusters:
                first[cluster.name].append([a.first for a in run_load(cluster, "burst", sent, [], options.answer)])
        cells = [f"{1e3 * statistics.median(figure(times) for times in first[name]):.0f}"
                 for figure in (statistics.median, max) for name in BURST]
        print(f"| {link} | {tokens} | {options.burst} | " + " | ".join(cells) + " |", flush=True)


def measure(options, link, clusters, prompts, rng):
    for cluster in clusters:  # the workers' steps must have been measured
        for tokens in sorted(options.tokens):
            run_load(cluster, "full", prompts(tokens, 2 * CALLERS), [], 8)
    for tokens in options.tokens:
        together = clusters[0]
        alone = statistics.median(a.whole for a in run_load(together, "idle", prompts(tokens, 3), [], options.answer))
        for load in options.loads:
            answers = {name: [] for name in CLUSTERS}
            # Single requests in turn at idle load: the machine's speed may change within seconds.
            count, times = {"idle": (1, 5), "half": (options.requests, 1), "full": (2 * CALLERS, 1)}[load]
            for turn in range(options.rounds * times):
                sent, pauses = prompts(tokens, count), [rng.expovariate(1 / alone) for _ in range(count)]
                for cluster in (clusters if turn % 2 == 0 else reversed(clusters)):
                    answers[cluster.name] += run_load(cluster, load, sent, pauses, options.answer)
            texts = {name: [a.text for a in answers[name]] for name in CLUSTERS}
            assert texts["together"] == texts["apart"] == texts["choice"], "answers differ"
            row(link, tokens, load, answers)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=Path)
    parser.add_argument("--model", required=True)
    parser.add_argument("--links", nargs="+", default=["none"])
    parser.add_argument("--tokens", type=int, nargs="+", default=[256, 1024])
    parser.add_argument("--loads", nargs="+", choices=["idle", "half", "full"], default=["idle", "half", "full"])
    parser.add_argument("--answer", type=int, default=32, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=8, help="of a round at half load")
    parser.add_argument("--together", type=int, default=2)
    parser.add_argument("--burst", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--worker-flags", nargs=argparse.REMAINDER, default=[])
    options = parser.parse_args()
    if options.links != ["none"]:
        hosts.enter_namespaces()
    options.vocabulary = json.loads((Path(options.model) / "config.json").read_text())["vocab_size"]
    CLUSTERS["together"][0][:] = ["decode"] * options.together
    rng = random.Random(options.seed)

    def prompts(tokens, count):
        return [[rng.randrange(5, options.vocabulary) for _ in range(tokens)] for _ in range(count)]

    heads = [f"{what}: {name}" for what in ("TTFT", "answer", "p99 gap") for name in (*CLUSTERS, "ratio")]
    if options.burst > 0:
        heads = [f"{what} TTFT: {name}" for what in ("median", "last") for name in BURST]
    print("| link | prompt | load | " + " | ".join(heads) + " |\n" + "|---" * (3 + len(heads)) + "|")
    with tempfile.TemporaryDirectory(prefix="baton-placement-") as directory:
        network = hosts.Network(Path(directory)) if options.links != ["none"] else None
        clusters = []
        try:
            for name, shape in (BURST if options.burst > 0 else CLUSTERS).items():
                clusters.append(Cluster(name, shape, options, Path(directory), network))
                clusters[-1].launch()
                clusters[-1].wait_until_ready()
            for link in options.links:
                if link != "none":  # of what it sends in 4 ms
                    burst_bits = f"{4 * int(link.removesuffix('gbit'))}mbit"
                    for host in (host for cluster in clusters for host in cluster.hosts):
                        host.throttle(link, burst=burst_bits)
                if options.burst > 0:
                    burst(options, link, clusters, prompts)
                else:
                    measure(options, link, clusters, prompts, rng)
        finally:
            for cluster in clusters:
                cluster.stop()
            if network:
                network.close()


if __name__ == "__main__":
    main()
