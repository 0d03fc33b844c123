#!/usr/bin/env python3
"""Answers with drafts are those without: random requests (greedy, sampled, penalties, log probabilities, choices, stop
strings, least lengths, grammars), each asked with drafts and without, while decode workers whose pools are too small
for all are killed by SIGKILL and started again.

    drafts_test.py BIN_DIR

The decode workers draft in different ways; the draft model of one is the model's first layer. BATON_TEST_DRAFTED_ANSWERS
is the number of requests, 120 if it is not set; BATON_TEST_MODEL another model than the demo's, for which
BATON_TEST_DRAFT_MODEL drafts; BATON_TEST_DRAFT_MODES other values of --speculative, with semicolons between them. docs/results/speculation.md has the figures of a long run.
"""
import concurrent.futures
import http.client
import json
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests/testing")]
import demo_cluster  # noqa: E402
import seed  # noqa: E402

BIN = Path(sys.argv.pop(1)) if len(sys.argv) > 1 else ROOT / "build/cpu-release/bin"
COUNT = int(os.environ.get("BATON_TEST_DRAFTED_ANSWERS", "120"))
MODEL = os.environ.get("BATON_TEST_MODEL", str(demo_cluster.MODEL))
PATIENCE_S = 120  # a limit, not an expectation
AT_ONCE = 12
DRAFT_MODEL = os.environ.get("BATON_TEST_DRAFT_MODEL")
# Of the decode workers; the last one's is a model's.
MODES = os.environ.get("BATON_TEST_DRAFT_MODES", "suffix:8;ngram:6,1,4;draft:{draft_model},6").split(";")
ANSWERS_OF_A_LIFE = 60  # then a decode worker is killed
WORDS = "brano kipe dralu stovi glire tremo visa refund approve reject Table Notes code of the is".split()


def metric(address, name):
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_S)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    return sum(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + "{"))


def first_layer(model, directory):
    """A model of the same tokenizer, which draws some of the same tokens."""
    shutil.copytree(model, directory, ignore=shutil.ignore_patterns("*.py", "*.safetensors"))
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 1}))
    data = (model / "model.safetensors").read_bytes()
    begin = 8 + struct.unpack("<Q", data[:8])[0]
    kept, parts, end = {}, [], 0
    for name, tensor in json.loads(data[8:begin]).items():
        layer = re.match(r"model\.layers\.(\d+)\.", name)
        if name == "__metadata__" or layer and int(layer[1]) > 0:
            continue
        first, last = tensor["data_offsets"]
        parts.append(data[begin + first:begin + last])
        kept[name] = tensor | {"data_offsets": [end, end + last - first]}
        end += last - first
    header = json.dumps(kept).encode()
    (directory / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + b"".join(parts))


class Processes:
    """A prefill worker, decode workers and a router; a decode worker that is killed comes back at its address."""

    def __init__(self, directory):
        self.directory, self.running, self.addresses, self.flags = Path(directory), {}, {}, {}
        self.reserved = {}  # sockets that keep a name's port while what listens there is started again
        common = ["--model", MODEL, "--threads", "1"]
        self.start("prefill", "baton-prefill-worker", *common)
        draft_model = DRAFT_MODEL
        if not draft_model and any("{draft_model}" in mode for mode in MODES):
            draft_model = self.directory / "first layer"
            first_layer(Path(MODEL), draft_model)
        for i, mode in enumerate(MODES):
            mode = mode.format(draft_model=draft_model)
            # So small a pool preempts.
            self.start(f"decode{i}", "baton-decode-worker", *common, "--speculative", mode, "--max-num-seqs", "8",
                       "--num-blocks", "44", "--max-model-len", "600")
        self.start("router", "baton-router", "--model", MODEL, "--http-listen", "127.0.0.1:0",
                   "--prefill-workers", self.addresses["prefill"][0],
                   "--decode-workers", ",".join(self.addresses[f"decode{i}"][0] for i in range(len(MODES))))

    def start(self, name, program, *flags):
        self.flags[name] = (program, *flags)
        ready = self.directory / f"{name}.address"
        ready.unlink(missing_ok=True)
        if name not in self.reserved:
            self.reserved[name] = held = socket.socket()
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("127.0.0.1", 0))
        listen = f"127.0.0.1:{self.reserved[name].getsockname()[1]}"
        with open(self.directory / f"{name}.log", "a", encoding="utf-8") as log:
            self.running[name] = subprocess.Popen(
                [BIN / program, "--listen", listen, "--metrics-listen", "127.0.0.1:0", "--address-file", ready, *flags],
                stdout=log, stderr=subprocess.STDOUT)
        end = time.monotonic() + PATIENCE_S
        while not (ready.exists() and ready.read_text()):
            if self.running[name].poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{name}: " + (self.directory / f"{name}.log").read_text()[-3000:])
            time.sleep(0.02)
        self.addresses[name] = ready.read_text().split()

    def kill_and_restart(self, name):
        self.running[name].kill()
        self.running[name].wait()
        self.start(name, *self.flags[name])

    def count(self, name):
        return sum(metric(self.addresses[f"decode{i}"][1], name) for i in range(len(MODES)))

    def drafted_by_model(self):
        return metric(self.addresses[f"decode{len(MODES) - 1}"][1], "baton_decode_draft_tokens_total")

    def stop(self):
        for process in self.running.values():
            process.kill()
        for process in self.running.values():
            process.wait()
        for held in self.reserved.values():
            held.close()


def random_request(rng):
    words = rng.choices(WORDS, k=rng.randrange(4, 16))
    prompt = " ".join(words * rng.randrange(1, 4)) + " ?"
    request = {"prompt": prompt, "max_tokens": rng.randrange(8, 220), "seed": rng.randrange(1 << 31),
               "temperature": rng.choice((0, 0, 0.3, 1.0)),
               "ignore_eos": rng.random() < 0.7}
    if rng.random() < 0.2:
        request["repetition_penalty"] = 1.05
    if rng.random() < 0.2:
        request |= {"frequency_penalty": 0.1, "presence_penalty": 0.2}
    if rng.random() < 0.3:
        request["logprobs"] = rng.randrange(0, 4)
    if rng.random() < 0.2:
        request["n"] = 2
    if rng.random() < 0.3:
        request["stop"] = rng.sample(["bra", " 4", "\n", "re", "ti"], 2)
    if rng.random() < 0.3:
        request["min_tokens"] = rng.randrange(0, request["max_tokens"])
    if rng.random() < 0.25:
        request |= rng.choice(({"response_format": {"type": "json_object"}},
                               {"guided_regex": "(brano [0-9]{2} ){3,30}ok"},
                               {"guided_choice": ["approve the refund of brano", "reject the visa of kipe"]}))
        for field in ("ignore_eos", "min_tokens"):
            request.pop(field, None)
    return request


class DraftsTest(unittest.TestCase):
    def ask(self, request):
        """The choices of the answer and its usage; asks again where no answer has begun."""
        end = time.monotonic() + PATIENCE_S
        while True:
            connection = http.client.HTTPConnection(self.processes.addresses["router"][2], timeout=PATIENCE_S)
            try:
                connection.request("POST", "/v1/completions", json.dumps(request), {"Content-Type": "application/json"})
                response = connection.getresponse()
                text = response.read().decode()
            finally:
                connection.close()
            if response.status == 200:
                answer = json.loads(text)
                return answer["choices"], answer["usage"]
            if response.status not in (429, 503) or time.monotonic() > end:
                raise AssertionError(f"{response.status}: {text}: {request}")
            with self.lock:
                self.refused += 1
            time.sleep(0.05)

    def compare(self, number):
        rng = seed.generator(number)
        request = random_request(rng)
        # Either may come first. Only an answer with drafts is remembered for later ones.
        answers = {drafts: self.ask(request | {"speculation": drafts})
                   for drafts in rng.sample((True, False), 2)}
        self.assertEqual(answers[True][0], answers[False][0], request)
        details = answers[True][1].get("completion_tokens_details") or {}
        self.assertNotIn("completion_tokens_details", answers[False][1])
        with self.lock:
            self.tokens += answers[True][1]["completion_tokens"]
            self.accepted += details.get("accepted_prediction_tokens", 0)
            self.refuted += details.get("rejected_prediction_tokens", 0)
            self.answered += 1
            due = self.answered % ANSWERS_OF_A_LIFE == 0
        if due:
            with self.restarting:
                self.preemptions += self.processes.count("baton_preemptions_total")
                self.drafted_by_model += self.processes.drafted_by_model()
                victim = f"decode{rng.randrange(len(MODES))}"
                self.processes.kill_and_restart(victim)
                self.kills += 1

    def test_answers_with_drafts_are_those_without(self):
        self.seed = seed.SEED
        self.lock, self.restarting = threading.Lock(), threading.Lock()
        self.tokens = self.accepted = self.refuted = self.refused = self.answered = self.kills = self.preemptions = 0
        self.drafted_by_model = 0
        with tempfile.TemporaryDirectory(prefix="baton-drafts-") as directory:
            self.processes = Processes(directory)
            try:
                begin = time.monotonic()
                with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as pool:
                    for _ in pool.map(self.compare, range(COUNT)):
                        pass
                # A draft model drafts where its worker's times say that it pays, and else now and then: on some
                # machines, not among so few requests.
                while self.drafted_by_model + self.processes.drafted_by_model() == 0:
                    self.assertLess(time.monotonic() - begin, PATIENCE_S, "the draft model never drafts")
                    self.compare(self.answered)
                self.preemptions += self.processes.count("baton_preemptions_total")
                self.drafted_by_model += self.processes.drafted_by_model()
            finally:
                self.processes.stop()
        print(f"{self.answered} requests with and without drafts, seed {self.seed}: no difference in {self.tokens} tokens, "
              f"{self.accepted} of them drafted, {self.refuted} drafts not drawn, {self.preemptions:.0f} preemptions, "
              f"{self.kills} decode workers killed, {self.refused} requests refused, {time.monotonic() - begin:.0f} s")
        self.assertGreater(self.accepted, COUNT)
        self.assertGreater(self.refuted, 0)
        self.assertGreater(self.kills, 0)
        self.assertGreater(self.drafted_by_model, 0)
        if COUNT >= 1000:  # of few requests, too few may run at once
            self.assertGreater(self.preemptions, 0)


if __name__ == "__main__":
    unittest.main()
