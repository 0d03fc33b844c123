#!/usr/bin/env python3
"""Whole clusters on the device that is there: the part `clusters` of scripts/gpu-check. Prints a line of JSON for each result.

    gpu_clusters.py BIN_DIR [--libraries DIR] [--device cuda:0] [--transports grpc,ipc] [--demo models/demo]
                    [--load-model DIR] [--input-len 1024] [--runs texts,kills,serve] [--seconds 120]
    gpu_clusters.py build/cpu-release/bin --device cpu --transports grpc,shm --input-len 512   # without a GPU

- texts: the prompts of models/demo, greedy, to clusters that differ in workers, transport and formats. At least 95 % of the
  answers must be right, and where the arithmetic is the same, all texts.
- serve: `baton bench serve` against a pair by each transport and one worker alone, with --load-model (models/demo without it).
  The first requests of fresh workers, prompts of which no KV moves, and wholly cached prompts, of which all KV moves.
- kills: SIGKILL of a decode and of a prefill worker of two each, while all of 64 or 32 requests are running. None may fail.

Exits with 1 if a text is wrong, a request fails, or the time is over before all ran.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from demo_cluster import MIN_RIGHT, MODEL, PATIENCE_S, start_cluster

POLL_S = 0.02


class Runs:
    def __init__(self, arguments):
        self.binary = arguments.bin_dir / "baton"
        self.device = arguments.device
        self.transports = arguments.transports.split(",")
        self.demo = arguments.demo
        self.load_model = arguments.load_model or self.demo
        self.deadline = time.monotonic() + arguments.seconds
        self.input_len = arguments.input_len
        self.runs = arguments.runs.split(",")
        self.good = True

    def keep(self, what, case, **figures):
        print(json.dumps({"part": "clusters", "what": what, "case": case, "device": self.device, **figures}), flush=True)

    def expect(self, condition, message):
        if not condition:
            print(f"gpu_clusters: {message}", file=sys.stderr)
            self.good = False

    @contextlib.contextmanager
    def cluster(self, prefill, decode, *flags, model=None, kv_cache_memory="64MB"):
        """The addresses of a running cluster: gRPC and HTTP, and the process of `baton up`."""
        with tempfile.TemporaryDirectory(prefix="baton-clusters-") as directory:
            up, (address, _, http) = start_cluster(
                self.binary, Path(directory), "--device", self.device, "--max-local-prefill-tokens", "0", *flags,
                model=model or self.demo, prefill=prefill, decode=decode, kv_cache_memory=kv_cache_memory)
            try:
                yield address, http, up
            finally:
                up.terminate()
                up.wait(timeout=PATIENCE_S)

    # ---- texts -----------------------------------------------------------------------------------

    def texts(self):
        prompts = json.loads((self.demo / "prompts.json").read_text(encoding="utf-8"))
        cases = [(f"pair, {transport}", 1, 1 + index, ("--kv-transport", transport), True)
                 for index, transport in enumerate(self.transports)]
        cases += [("one worker", 0, 1, (), True), ("--no-deterministic", 1, 1, ("--no-deterministic",), False),
                  ("KV of 8 bits", 1, 1, ("--kv-cache-dtype", "int8"), False),
                  ("weights of 4 bits", 1, 1, ("--weights", "int4"), False)]
        first = None
        for case, prefill, decode, flags, same_arithmetic in cases:
            with self.cluster(prefill, decode, *flags) as (_, http, _up):
                answers = [complete(http, prompt["prompt"]) for prompt in prompts]
            right = sum(text.rstrip("\n") == prompt["answer"] for text, prompt in zip(answers, prompts))
            first = first or answers
            same = sum(a == b for a, b in zip(answers, first))
            self.keep("texts", case, asked=len(prompts), right=right, same=same)
            self.expect(right >= MIN_RIGHT * len(prompts), f"{case}: {right} of {len(prompts)} answers are right")
            self.expect(same == len(prompts) or not same_arithmetic,
                        f"{case}: {same} of {len(prompts)} texts are those of {cases[0][0]}")

    # ---- serve -----------------------------------------------------------------------------------

    def bench_command(self, address, prompts, at_once, prompt_tokens, answer_tokens, seed):
        return [str(self.binary), "bench", "serve", "--address", address, "--json", "--num-prompts", str(prompts),
                "--max-concurrency", str(at_once), "--random-input-len", str(prompt_tokens), "--random-output-len",
                str(answer_tokens), "--seed", str(seed), "--temperature", "0"]

    def bench(self, *arguments):
        result = subprocess.run(self.bench_command(*arguments), capture_output=True, text=True, timeout=PATIENCE_S,
                                check=False)
        if result.returncode:
            sys.exit(f"gpu_clusters: {result.stderr or result.stdout}")
        report = json.loads(result.stdout)
        self.expect(report["failed"] == 0, f"{report['failed']} requests failed: {report['failures']}")
        return report

    def serve(self):
        for case, prefill, flags in (*((f"pair, {t}", 1, ("--kv-transport", t)) for t in self.transports),
                                     ("one worker", 0, ())):
            with self.cluster(prefill, 1, *flags, model=self.load_model, kv_cache_memory="2GB") as (address, _, _up):
                self.serve_one(case, address)

    def serve_one(self, case, address):
        length = self.input_len
        first, later = (self.bench(address, 4, 4, 64, 16, seed)["median_ttft_ms"] for seed in (1, 2))
        self.keep("first", case, first_ms=first, later_ms=later)
        for name, prompts, at_once, answer_tokens, seed in (
                (f"{length} + 128, 1 at once", 8, 1, 128, 3), (f"{length} + 128, 16 at once", 64, 16, 128, 4),
                (f"{length} + 1, 16 at once: no KV moves", 96, 16, 1, 5),
                (f"{length} + 2, 16 at once: cached, all KV moves", 96, 16, 2, 5),
                (f"{length} + 1, 1 at once: no KV moves", 16, 1, 1, 6),
                (f"{length} + 2, 1 at once: cached, all KV moves", 16, 1, 2, 6)):
            report = self.bench(address, prompts, at_once, length, answer_tokens, seed)
            self.keep("serve", f"{case}: {name}",
                      prompt_tokens_per_s=report["total_input_tokens"] / report["duration"],
                      answer_tokens_per_s=report["output_throughput"], ttft_ms=report["median_ttft_ms"],
                      itl_ms=report["median_itl_ms"], kv_gb_per_s=report["kv_bytes"] / report["duration"] / 1e9)

    # ---- kills -----------------------------------------------------------------------------------

    def kills(self):
        for role, at_once, prompt_tokens, answer_tokens in (("decode", 64, 64, 128), ("prefill", 32, self.input_len, 16)):
            with self.cluster(2, 2, "--kv-transport", self.transports[-1], model=self.load_model,
                              kv_cache_memory="1GB") as (address, _, up):
                self.kill_one(role, address, up, at_once, prompt_tokens, answer_tokens)

    def kill_one(self, role, address, up, at_once, prompt_tokens, answer_tokens):
        load = subprocess.Popen(self.bench_command(address, 3 * at_once, at_once, prompt_tokens, answer_tokens, 7),
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        try:
            killed = self.await_work(role, address, load)
            if killed:
                os.kill(process_of(up, f"baton-{role}-worker"), signal.SIGKILL)
            output, errors = load.communicate(timeout=PATIENCE_S)
        finally:
            load.kill()
            load.wait()
        case = f"a {role} worker of two, {at_once} at once, {self.transports[-1]}"
        if load.returncode:
            sys.exit(f"gpu_clusters: {case}: {errors or output}")
        report = json.loads(output)
        self.keep("kills", case, completed=report["completed"], failed=report["failed"])
        self.expect(killed, f"{case}: the load ended before each {role} worker had work")
        self.expect(report["failed"] == 0, f"{case}: {report['failed']} requests failed: {report['failures']}")

    def await_work(self, role, address, load):
        """Whether each worker of this role has work at once; False if the load ends before."""
        while load.poll() is None:
            loads = json.loads(subprocess.run([self.binary, "loads", "--json", "--address", address],
                                              capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout)
            if all(worker["running"] + worker["queued"] > 0 for worker in loads["workers"]
                   if worker["role"] == f"WORKER_ROLE_{role.upper()}"):
                return True
            time.sleep(POLL_S)
        return False

    def run(self):
        for name in self.runs:
            if time.monotonic() > self.deadline:
                self.expect(False, f"no time was left for {name}")
                continue
            {"texts": self.texts, "kills": self.kills, "serve": self.serve}[name]()
        return 0 if self.good else 1


def complete(http, prompt):
    body = json.dumps({"prompt": prompt, "temperature": 0, "max_tokens": 16}).encode()
    request = urllib.request.Request(f"http://{http}/v1/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
        return json.load(answer)["choices"][0]["text"]


def process_of(up, program):
    """The first of the processes of `baton up` that runs this program."""
    children = Path(f"/proc/{up.pid}/task/{up.pid}/children").read_text(encoding="ascii").split()
    return next(int(pid) for pid in children if program in
                Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin_dir", type=Path)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--transports", default="grpc,ipc")
    parser.add_argument("--demo", type=Path, default=MODEL)
    parser.add_argument("--load-model", type=Path)
    parser.add_argument("--input-len", type=int, default=1024)
    parser.add_argument("--runs", default="texts,kills,serve")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--libraries", type=Path, help="a folder with shared libraries of the programs")
    arguments = parser.parse_args()
    if arguments.libraries:
        # For what is started from here: this Python has those of its machine, which may be newer.
        folders = (str(arguments.libraries), os.environ.get("LD_LIBRARY_PATH"))
        os.environ["LD_LIBRARY_PATH"] = ":".join(filter(None, folders))
    return Runs(arguments).run()


if __name__ == "__main__":
    sys.exit(main())
