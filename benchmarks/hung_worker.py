#!/usr/bin/env python3
"""What do processes that hang or pause cost?

    hung_worker.py BIN_DIR [--mode hung] [--victims both] [--rounds 6] [--seconds 10] [--clients 6] [--pause 0.3]
                   [--tokens 64] [--seed 1]

Starts a cluster of two prefill and two decode workers with the demo model. Clients stream answers of
--tokens tokens over HTTP, each with a pause between its requests.

hung: in each round the cluster is left alone for --seconds, then one worker is stopped (SIGSTOP) for as
long and continued; rounds take prefill and decode workers in turn, or those of --victims. The router's
decision log tells which requests it sent to the stopped worker: how long they paused, and the others
compared with those of the undisturbed times.

soak: for --seconds, all cores are kept busy by other processes, and every 3 s one process, a worker or
the router, is stopped for a second. Each worker that the router suspects is a false alarm.

router, all: in each round the router alone, or all processes of the cluster, are stopped for --seconds.
How many requests fail afterwards?
"""

import argparse
import http.client
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
from demo_cluster import PATIENCE_S, start_cluster  # noqa: E402

PROMPT_TOKENS = 150
VOCABULARY = 1000  # of the demo model, without its special tokens


class Clients:
    """Each sends one request after the other, and notes (id, times): when it was sent and its tokens came."""

    def __init__(self, address, options):
        self.address, self.pause, self.tokens = address, options.pause, options.tokens
        self.done, self.errors = [], []
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
                    "max_tokens": self.tokens, "temperature": 0, "ignore_eos": True}
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
    parser.add_argument("--mode", choices=("hung", "soak", "router", "all"), default="hung")
    parser.add_argument("--victims", choices=("both", "prefill", "decode"), default="both")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--pause", type=float, default=0.3)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    baton = options.bin_dir / "baton"
    with tempfile.TemporaryDirectory(prefix="baton-hung-") as directory:
        cluster, (address, _, http_address) = start_cluster(
            baton, Path(directory), "--max-local-prefill-tokens", "0")
        try:
            if options.mode == "hung":
                measure(baton, cluster.pid, address, http_address, options)
            elif options.mode == "soak":
                soak(Path(directory) / "up.log", processes(cluster.pid), http_address, options)
            else:
                pause_all(Path(directory) / "up.log", processes(cluster.pid), http_address, options)
        finally:
            cluster.terminate()
            cluster.wait(timeout=PATIENCE_S)


def states(baton, address):
    return {worker["address"]: worker["state"][len("WORKER_STATE_"):]
            for worker in json_lines(baton, "workers", "--json", "--address", address)[0]["workers"]}


def processes(parent):
    """[(pid, the words of its command)] of a cluster's router and workers."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [(int(pid), Path(f"/proc/{pid}/cmdline").read_text().split("\0")) for pid in children]


def worker_pids(parent):
    """{address: pid} of a cluster's workers."""
    pids = {}
    for pid, words in processes(parent):
        if words[0].endswith("-worker"):
            address_file = Path(words[words.index("--address-file") + 1])
            pids[address_file.read_text().splitlines()[0]] = pid
    return pids


def alarms(log):
    """{state: how often the router has found a worker in it}."""
    text = log.read_text(encoding="utf-8", errors="replace")
    return {state: len(re.findall(rf" worker \S+ is {state}\b", text)) for state in ("suspect", "expired")}


def stop_for(pids, seconds):
    """Returns for how long they were stopped."""
    begin = time.monotonic()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(seconds)
    for pid in pids:
        os.kill(pid, signal.SIGCONT)
    return time.monotonic() - begin


def soak(log, cluster, http_address, options):
    rng = random.Random(options.seed)
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(os.cpu_count())]
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -10)  # a pause must end on time on a busy machine, too
    except PermissionError:
        pass  # the longest pause is printed
    clients = Clients(http_address, options)
    stops, end = [], time.monotonic() + options.seconds
    try:
        while time.monotonic() < end:
            time.sleep(3)
            stops.append(stop_for([rng.choice(cluster)[0]], 1))
    finally:
        clients.stop()
        for process in busy:
            process.kill()
            process.wait()
    found = alarms(log)
    print(f"{options.seconds:.0f} s with {len(busy)} busy processes on {os.cpu_count()} cores (load average "
          f"{os.getloadavg()[2]:.0f}), {len(stops)} pauses of 1 s (at most {max(stops):.2f} s): "
          f"{found['suspect']} workers suspected, {found['expired']} expired; {len(clients.done)} requests, "
          f"{len(clients.errors)} failed")
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        if re.search(r" worker \S+ is (suspect|expired)\b", line):
            print(f"  {line}")
    for error in sorted(set(clients.errors)):
        print(f"  {clients.errors.count(error)}: {error.decode().strip()}")


def pause_all(log, cluster, http_address, options):
    pids = [pid for pid, words in cluster if options.mode == "all" or words[0].endswith("-router")]
    clients = Clients(http_address, options)
    try:
        for _ in range(options.rounds):
            time.sleep(5)
            stop_for(pids, options.seconds)
        time.sleep(5)
    finally:
        clients.stop()
    found = alarms(log)
    print(f"{options.rounds} pauses of {options.seconds:g} s of {'the router' if options.mode == 'router' else 'all'}: "
          f"{len(clients.errors)} of {len(clients.done) + len(clients.errors)} requests failed, "
          f"{found['suspect']} workers suspected, {found['expired']} expired")
    for error in sorted(set(clients.errors)):
        print(f"  {clients.errors.count(error)}: {error.decode().strip()}")


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
            role = {"both": number % 2, "prefill": 0, "decode": 1}[options.victims]
            turn = number // 2 if options.victims == "both" else number
            victim = list(states(baton, address))[role * 2 + turn % 2]
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
                decisions.setdefault(one["request_id"], set()).update((one["computes_address"], one["answers_address"]))
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
    print(f"requests that were sent to the stopped worker: {len(held)}, longest pause p99 {p99(held):.2f} s, "
          f"at most {max(held, default=0):.2f} s; ejected after {slowest_ejection:.1f} s at most; {len(clients.done)} requests, none failed")


if __name__ == "__main__":
    main()
