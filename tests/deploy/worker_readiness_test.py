#!/usr/bin/env python3
"""With --ready-routers, a worker is ready once a router has accepted it; one that the router refuses never is. With
--ready-routers-dns, a name says how many routers there are.

  worker_readiness_test.py --bin DIR --root DIR

Readiness is what `baton health` says, as the probes of deploy/k8s ask.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
import unittest
from contextlib import ExitStack, contextmanager
from pathlib import Path

ARGUMENTS = None
PATIENCE_S = 120  # a limit, not an expectation
READY = ("--service", "baton.internal.v1.WorkerService")
# Attempts of a router that is refused at least half a second apart: longer than a worker waits before it believes
# that a router has accepted it.
WATCHES = 8


@contextmanager
def started(*command, log):
    with open(log, "w", encoding="utf-8") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE_S)


def until(done):
    """Polls, as nothing announces a state of a process."""
    end = time.monotonic() + PATIENCE_S
    while not (result := done()):
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.05)
    return result


def baton(*arguments):
    return subprocess.run([ARGUMENTS.bin / "baton", *arguments], capture_output=True, text=True, timeout=60, check=False)


def ready(address):
    return baton("health", "--address", address, *READY).returncode == 0


class WorkerReadinessTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="baton-readiness-")
        self.addCleanup(directory.cleanup)
        self.folder = Path(directory.name)
        self.stack = ExitStack()
        self.addCleanup(self.stack.close)

    def start(self, program, name, *flags):
        """The address of a new process."""
        bound = self.folder / f"{name}.address"
        process = self.stack.enter_context(started(
            ARGUMENTS.bin / program, "--model", ARGUMENTS.root / "models/demo", "--listen", "127.0.0.1:0",
            "--address-file", bound, *flags, log=self.folder / f"{name}.log"))
        until(lambda: bound.exists() or process.poll() is not None)
        self.assertIsNone(process.poll(), self.log(name))
        return bound.read_text(encoding="utf-8").splitlines()[0]

    def log(self, name):
        return (self.folder / f"{name}.log").read_text(encoding="utf-8")

    def list_workers(self, *addresses):
        new = self.folder / "workers.new"
        new.write_text("".join(f"decode {address}\n" for address in addresses), encoding="utf-8")
        os.replace(new, self.folder / "workers")

    def test_a_worker_is_ready_once_a_router_has_accepted_it(self):
        worker = ("--threads", "1", "--kv-cache-memory", "64MB", "--ready-routers", "1")
        first = self.start("baton-decode-worker", "first", *worker)
        other = self.start("baton-decode-worker", "other", *worker, "--block-size", "32")
        self.assertEqual(baton("health", "--address", first).returncode, 0, "it lives without a router")
        self.assertFalse(ready(first))
        self.list_workers(first)
        router = self.start("baton-router", "router", "--workers-file", self.folder / "workers")
        until(lambda: ready(first))
        self.list_workers(first, other)
        until(lambda: " refused " in baton("workers", "--address", router).stdout)
        until(lambda: self.log("other").count("watched by router") >= WATCHES)
        self.assertFalse(ready(other))
        self.assertTrue(ready(first))

    def test_a_worker_counts_the_routers_by_a_name(self):
        def worker(name, host):
            return self.start("baton-decode-worker", name, "--threads", "1", "--kv-cache-memory", "64MB", "--ready-routers-dns", host)

        unknown = worker("unknown", "no..such.name.invalid")  # which is no name: no name server is asked
        known = worker("known", "localhost")
        self.list_workers(unknown, known)
        router = self.start("baton-router", "router", "--workers-file", self.folder / "workers")
        until(lambda: ready(known))
        self.assertEqual(baton("workers", "--address", router).stdout.count(" ready "), 2, "the router has accepted both")
        self.assertFalse(ready(unknown))
        self.assertIn("no..such.name.invalid does not resolve", self.log("unknown"))


def main():
    global ARGUMENTS
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--root", type=Path, required=True)
    ARGUMENTS = parser.parse_args()
    unittest.main(argv=sys.argv[:1])


if __name__ == "__main__":
    main()
