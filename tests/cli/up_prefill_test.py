#!/usr/bin/env python3
"""`baton up --prefill auto` with the model in models/demo: it measures, says why, and serves.

  up_prefill_test.py --bin DIR --root DIR

Which layout it chooses is the machine's affair; the answers are those of the model's generator.
"""

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ARGUMENTS = None
PATIENCE_S = 300  # a limit, not an expectation


class UpPrefillTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="baton-up-prefill-")
        self.addCleanup(folder.cleanup)
        self.log = Path(folder.name) / "log"

    def start(self, *flags):
        """The process and what it prints with --json once it is ready; None if it ended before."""
        log = self.log.open("w", encoding="utf-8")
        self.addCleanup(log.close)
        cluster = subprocess.Popen(
            [ARGUMENTS.bin / "baton", "up", "--model", ARGUMENTS.root / "models/demo", "--threads", "1",
             "--kv-cache-memory", "64MB", "--listen", "127.0.0.1:0", "--http-listen", "", "--json",
             *flags], stdout=subprocess.PIPE, stderr=log, text=True)
        self.addCleanup(cluster.stdout.close)
        self.addCleanup(cluster.wait, PATIENCE_S)
        self.addCleanup(cluster.terminate)
        line = cluster.stdout.readline()
        return cluster, json.loads(line) if line else None

    def printed(self):
        return self.log.read_text(encoding="utf-8")

    def stop(self, cluster):
        cluster.send_signal(signal.SIGINT)
        self.assertEqual(cluster.wait(PATIENCE_S), 0, self.printed())

    def test_auto_measures_explains_and_serves(self):
        cluster, ready = self.start("--prefill", "auto")
        self.assertIsNotNone(ready, self.printed())
        names = [process["name"] for process in ready["processes"]]
        said = [line for line in self.printed().splitlines() if line.startswith("baton up: --prefill")]
        self.assertEqual(len(said), 1, self.printed())
        print(said[0])
        self.assertRegex(said[0], r"^baton up: --prefill (0 \(decode workers compute the prompts\)|1): (without a "
                                  r"prefill worker .*, with one .* usable cores.*|.*share one core)$")
        chosen = int(said[0].split()[3].rstrip(":"))
        self.assertEqual(names, ["prefill-0"] * chosen + ["decode-0", "router"])
        prompts = json.loads((ARGUMENTS.root / "models/demo/prompts.json").read_text(encoding="utf-8"))
        asked = {p["task"]: p for p in prompts}.values()  # one of each task
        for prompt in asked:
            answer = subprocess.run(
                [ARGUMENTS.bin / "baton", "generate", "--address", ready["address"], "--temperature", "0",
                 "--max-tokens", "16", prompt["prompt"]], capture_output=True, text=True,
                timeout=PATIENCE_S, check=True).stdout
            self.assertEqual(answer.rstrip("\n"), prompt["answer"])
        self.stop(cluster)

    def test_a_worker_that_cannot_start_is_an_error(self):
        cluster, ready = self.start("--prefill", "auto", "--dtype", "float7")
        self.assertIsNone(ready)
        self.assertEqual(cluster.wait(PATIENCE_S), 1)
        self.assertIn("decode-0 exited with code 2", self.printed())
        self.assertNotIn("measuring it with one", self.printed())


def main():
    global ARGUMENTS
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--root", type=Path, required=True)
    ARGUMENTS = parser.parse_args()
    unittest.main(argv=sys.argv[:1])


if __name__ == "__main__":
    main()
