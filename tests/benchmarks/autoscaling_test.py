#!/usr/bin/env python3
"""What benchmarks/scaling.py is made of, apart from the autoscaler's arithmetic (hpa_test.py): the loads, what it says of
their requests, and workers that come and go, here small scripts.
"""

import contextlib
import io
import json
import statistics
import sys
import tempfile
import time
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "benchmarks"), str(ROOT / "benchmarks/autoscaling"), str(ROOT / "tests/testing")]
import offered_load  # noqa: E402
import scaling  # noqa: E402
import seed  # noqa: E402
from fleet import Fleet  # noqa: E402

PATIENCE_S = 60


class LoadTest(unittest.TestCase):
    def arrivals(self, load):
        return [line["timestamp"] for line in offered_load.draw(load, seed.SEED)]

    def test_arrivals_follow_the_rate(self):
        sine = offered_load.sine(1, 24, 100, 20)
        flash = offered_load.flash_crowd(2, 10, 60, 40, 10)
        self.assertEqual(flash.seconds, 1060)
        for load in (sine, flash):
            with self.subTest(load.name):
                times = self.arrivals(load)
                self.assertEqual(times, sorted(times))
                expected = sum(load.rate(at) for at in range(int(load.seconds)))
                self.assertLess(abs(len(times) - expected), 6 * expected ** 0.5)
        # Within a period: where the rate is least, and where it is largest.
        around = [sum(abs(at % 100 - middle) < 10 for at in self.arrivals(sine)) / 400 for middle in (50, 25)]
        self.assertLess(abs(around[0] - 23.26), 6 * (23.26 / 400) ** 0.5)
        self.assertLess(abs(around[1] - 12.5), 6 * (12.5 / 400) ** 0.5)
        crowd = [at for at in self.arrivals(flash) if at < 1000 and at % 100 >= 60]
        self.assertLess(abs(len(crowd) - 8000), 6 * 8000 ** 0.5)

    def test_a_seed_draws_one_load(self):
        load = offered_load.sine(1, 5, 10, 2)
        self.assertEqual(offered_load.draw(load, 3), offered_load.draw(load, 3))
        self.assertNotEqual(offered_load.draw(load, 3), offered_load.draw(load, 4))

    def test_lengths_are_mixed(self):
        lines = offered_load.draw(offered_load.sine(20, 20, 100, 1), seed.SEED)
        for key, (least, most) in (("input_length", offered_load.PROMPT_TOKENS), ("output_length", offered_load.ANSWER_TOKENS)):
            lengths = [line[key] for line in lines]
            self.assertTrue(least <= min(lengths) and max(lengths) <= most)
            middle = (least * most) ** 0.5
            self.assertTrue(0.7 * middle < statistics.median(lengths) < 1.4 * middle)


class GoodputTest(unittest.TestCase):
    def test_counts_what_was_answered_in_time(self):
        requests = [offered_load.Request(0, 2.5, 0.1, "x", ""), offered_load.Request(0, 2.6, 0.1, "x", ""),
                    offered_load.Request(0, 2.5, 0.11, "x", ""), offered_load.Request(0, 0, 0, "", "UNAVAILABLE: x")]
        self.assertEqual(offered_load.goodput(requests, 2.5, 0.1), 0.25)

    def test_a_quantile_is_one_of_the_values(self):
        self.assertEqual([offered_load.quantile([3, 1, 2, 4], q) for q in (0, 0.5, 0.99, 1)], [1, 3, 4, 4])


class SenderTest(unittest.TestCase):
    def test_requests_are_in_the_order_of_the_trace(self):
        """Two requests that are due at one time keep their places, however fast their answers come."""
        lines = [{"timestamp": at, "input_length": 30, "output_length": 10} for at in (0.0, 1.0, 1.0)]
        digests = set()
        for ttfts in ([0.5, 0.1, 0.2], [0.5, 0.2, 0.1]):
            with tempfile.TemporaryDirectory(prefix="baton-sender-") as directory:
                result = {"start_times": [0.0, 1.0, 1.0], "queue_times": [0.0] * 3, "ttfts": ttfts, "itls": [[0.01]] * 3,
                          "generated_texts": ["a", "b", "c"], "errors": [""] * 3}
                (Path(directory) / "requests.json").write_text(json.dumps(result), encoding="utf-8")
                sender = offered_load.Sender("true", "nowhere", lines, Path(directory), 1)
                sender.process.wait(timeout=PATIENCE_S)
                requests = sender.requests()
            self.assertEqual([request.text for request in requests], ["a", "b", "c"])
            self.assertEqual([request.ttft_s for request in requests], ttfts)
            digests.add(offered_load.digest(requests))
        self.assertEqual(len(digests), 1)


class OptionsTest(unittest.TestCase):
    def test_an_object_for_each_role_is_needed(self):
        text = (ROOT / "deploy/k8s/components/autoscaling/scaledobjects.yaml").read_text(encoding="utf-8")
        decode = [part for part in text.split("\n---\n") if "baton-decode" in part]
        self.assertEqual(len(decode), 1)
        with tempfile.TemporaryDirectory(prefix="baton-options-") as directory:
            path = Path(directory) / "one.yaml"
            path.write_text(decode[0], encoding="utf-8")
            said = io.StringIO()
            with contextlib.redirect_stderr(said), self.assertRaises(SystemExit):
                scaling.parse(["bin", "--scaled-objects", str(path)])
            self.assertIn(f"{path}: its objects scale baton-decode, expected baton-prefill and baton-decode", said.getvalue())


# Writes its addresses once the file `listens` is beside them, and after SIGTERM ends once `drained` is.
WORKER = """
import pathlib, signal, sys, time
bound = pathlib.Path(sys.argv[sys.argv.index("--address-file") + 1])
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
def wait_for(done):
    while not done():
        time.sleep(0.005)
wait_for(bound.with_name("listens").exists)
new = bound.with_suffix(".new")
new.write_text(f"{bound.stem}:1\\n{bound.stem}:2\\n")
new.rename(bound)
wait_for(lambda: asked or bound.with_suffix(".dies").exists())
wait_for(lambda: not asked or bound.with_name("drained").exists())
sys.exit(0 if asked else 3)
"""


class FleetTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="baton-fleet-")
        self.addCleanup(directory.cleanup)
        self.folder = Path(directory.name)
        program = self.folder / "worker.py"
        program.write_text(WORKER, encoding="utf-8")
        command = [sys.executable, program]
        self.fleet = Fleet(self.folder, {"prefill": command, "decode": command}, command, [])
        self.addCleanup(self.fleet.close)
        self.lists = []
        self.fleet.on_change = lambda: self.lists.append(self.listed())

    def listed(self):
        return [line.split()[1].split(":")[0] for line in (self.folder / "workers").read_text(encoding="utf-8").splitlines()]

    def until(self, done):
        end = time.monotonic() + PATIENCE_S
        while not done():
            self.fleet.tick()
            self.assertLess(time.monotonic(), end)
            time.sleep(0.005)

    def start(self):
        (self.folder / "listens").touch()
        self.fleet.start({"prefill": 1, "decode": 3})

    def test_the_youngest_leaves_and_is_listed_until_it_has_ended(self):
        self.start()
        self.assertEqual(sorted(self.listed()), ["decode1", "decode2", "decode3", "prefill1"])
        self.fleet.scale("decode", 2)
        self.assertEqual((self.fleet.wanted("decode"), self.fleet.counts("decode")["draining"]), (2, 1))
        before = len(self.lists)
        for _ in range(20):
            self.fleet.tick()
        self.assertEqual(len(self.lists), before)
        (self.folder / "drained").touch()
        self.until(lambda: self.fleet.gone)
        self.assertEqual(sorted(self.listed()), ["decode1", "decode2", "prefill1"])
        self.assertEqual(self.fleet.gone[0].name, "decode3")
        self.assertGreaterEqual(self.fleet.worker_seconds("decode"), 2 * self.fleet.worker_seconds("prefill"))

    def test_what_does_not_serve_yet_leaves_first(self):
        self.start()
        (self.folder / "listens").unlink()
        self.fleet.scale("prefill", 2)
        self.fleet.tick()
        self.assertEqual(self.fleet.counts("prefill"), {"ready": 1, "starting": 1})
        self.fleet.scale("prefill", 1)
        self.assertEqual(self.fleet.counts("prefill"), {"ready": 1, "draining": 1})

    def test_a_worker_starts_after_its_time(self):
        self.start()
        self.fleet.start_s = 3600
        self.fleet.scale("decode", 4)
        for _ in range(20):
            self.fleet.tick()
        self.assertEqual(self.fleet.counts("decode"), {"ready": 3, "starting": 1})
        self.fleet.scale("decode", 3)  # It has no process that could drain.
        self.until(lambda: self.fleet.gone)
        self.assertEqual(self.fleet.counts("decode"), {"ready": 3})

    def test_a_worker_that_dies_is_an_error(self):
        self.start()
        (self.folder / "decode2.dies").touch()
        with self.assertRaisesRegex(RuntimeError, "decode2 ended with 3"):
            self.until(lambda: False)


if __name__ == "__main__":
    unittest.main()
