#!/usr/bin/env python3
"""Does one worker that hangs slow the requests of the others?

    hung_worker.py BIN_DIR [--rounds 6] [--seconds 10] [--clients 6] [--pause 0.3] [--seed 1]

Starts a cluster of two prefill and two decode workers with the demo model. Clients stream answers of 64
tokens over HTTP, each with a pause between its requests. In each round the cluster is left alone for
--seconds, then one worker is stopped (SIGSTOP) for as long and continued; rounds take prefill and decode
workers in turn. The router's decision log tells which requests it sent to the stopped worker: the others
are compared with those of the undisturbed times.
"""

import argparse
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
from demo_cluster import PATIENCE_S, start_cluster  # noqa: E402

PROMPT_TOKENS, ANSWER_TOKENS = 150, 64
VOCABULARY = 1000  # of the demo model, without its special tokens


class Clients:
    """Each sends one request after the other, and notes (id, times): when it was sent and its tokens came."""

    def __init__(self, address, options):
        self.address, self.pause, self.done, self.errors = address, options.pause, [], []
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self.run, args=(i, options.seed)) for i in range(options.clients)]
        for thread in self.threads:
            thread.start()

    def run(self, client, seed):
        rng = random.Random(f"{seed} {client}")
        connection = http.client.HTTPConnection(self.address, timeout=PATIENCE_S)
        count = 0
        while not self.stopping.wait(self.pause * rng.uniform(0.5, 1.5)):
            name = f"client-{client}-{count}"
            count += 1
            body = {"prompt": [rng.randrange(VOCABULARY) for _ in range(PROMPT_TOKENS)], "stream": True,
                    "max_tokens": ANSWER_TOKENS, "temperature": 0, "ignore_eos": True}
            times = [time.time()]
            connection.request("POST", "/v1/completions", json.dumps(body), {"x-request-id": name})
            answer = connection.getresponse()
            if answer.status != 200:
                self.errors.append(answer.read())
                continue
            while line := answer.readline():
                if line.startswith(b'data: {"error"'):
                    self.errors.append(line)
                elif line.startswith(b"data: {"):
                    times.append(time.time())
            self.done.append((name, times))

    def stop(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join()


def json_lines(*command):
    return [json.loads(line) for line in subprocess.check_output(command, text=True).splitlines()]


def p99(values):
    return sorted(values)[min(len(values) - 1, int(0.99 * len(values)))] if values else float("nan")


def report(what, undisturbed, stopped):
    before, during = p99(undisturbed), p99(stopped)
    print(f"{what}: p99 {before * 1e3:.1f} ms of {len(undisturbed)} undisturbed, {during * 1e3:.1f} ms of "
          f"{len(stopped)} while a worker was stopped: {during / before - 1:+.0%}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=Path)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--pause", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    baton = options.bin_dir / "baton"
    with tempfile.TemporaryDirectory(prefix="baton-hung-") as directory:
        cluster, (address, _, http_address) = start_cluster(baton, Path(directory))
        try:
            measure(baton, cluster.pid, address, http_address, options)
        finally:
            cluster.terminate()
            cluster.wait(timeout=PATIENCE_S)


def states(baton, address):
    return {worker["address"]: worker["state"][len("WORKER_STATE_"):]
            for worker in json_lines(baton, "workers", "--json", "--address", address)[0]["workers"]}


def worker_pids(parent):
    """{address: pid} of a cluster's workers."""
    pids = {}
    for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split():
        words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
        if words[0].endswith("-worker"):
            address_file = Path(words[words.index("--address-file") + 1])
            pids[address_file.read_text().splitlines()[0]] = int(pid)
    return pids


def measure(baton, parent, address, http_address, options):
    pids = worker_pids(parent)
    phases, decisions = [], {}  # (begin, end, the stopped worker or None); {request: workers that it was sent to}
    slowest_ejection = 0.0
    clients = Clients(http_address, options)
    time.sleep(options.seconds / 2)  # the first requests are slower
    try:
        for number in range(options.rounds):
            phases.append((time.time(), time.time() + options.seconds, None))
            time.sleep(options.seconds)
            # Of each role in turn: the list has prefill workers first.
            victim = list(states(baton, address))[(number % 2) * 2 + number // 2 % 2]
            os.kill(pids[victim], signal.SIGSTOP)
            begin = time.time()
            while states(baton, address)[victim] == "READY":
                time.sleep(0.05)
            slowest_ejection = max(slowest_ejection, time.time() - begin)
            time.sleep(max(0.0, begin + options.seconds - time.time()))
            phases.append((begin, time.time(), victim))
            os.kill(pids[victim], signal.SIGCONT)
            while set(states(baton, address).values()) != {"READY"}:
                time.sleep(0.05)
            for one in json_lines(baton, "explain", "--json", "--last", "1024", "--address", address):
                decisions.setdefault(one["request_id"], set()).update((one["prefill_address"], one["decode_address"]))
    finally:
        clients.stop()
    if clients.errors:
        sys.exit(f"hung_worker: {len(clients.errors)} requests failed: {clients.errors[0]}")
    firsts, gaps, held = {True: [], False: []}, {True: [], False: []}, []
    for begin, end, victim in phases:
        for name, times in clients.done:
            if victim in decisions.get(name, ()):
                if times[0] < end and times[-1] > begin:
                    held.append(max(b - a for a, b in zip(times, times[1:])))
                continue
            if begin <= times[0] and times[1] < end:
                firsts[victim is not None].append(times[1] - times[0])
            gaps[victim is not None] += [b - a for a, b in zip(times[1:], times[2:]) if begin <= a and b < end]
    report("time to the first token", firsts[False], firsts[True])
    report("time between messages", gaps[False], gaps[True])
    print(f"requests that were sent to the stopped worker: {len(held)}, longest pause {max(held, default=0):.1f} s; "
          f"ejected after {slowest_ejection:.1f} s at most; {len(clients.done)} requests, none failed")


if __name__ == "__main__":
    main()
