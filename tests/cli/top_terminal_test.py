#!/usr/bin/env python3
"""`baton top` on a terminal and in scripts, against a cluster of processes.

  top_terminal_test.py --bin DIR --root DIR
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import termios
import unittest
from pathlib import Path

from terminal import PATIENCE_S, Terminal

ARGUMENTS = None
ENTER, LEAVE = "\x1b[?1049h", "\x1b[?25h\x1b[?1049l"
FRAME = re.compile(r"\x1b\[H(.*?)\x1b\[K\x1b\[J", re.DOTALL)
END_OF_LINE = re.compile(r"\x1b\[K\r+\n")
COLOUR = re.compile(r"\x1b\[\d+m")


def frames(raw):
    """What was on the screen, frame by frame, as lists of lines without colours."""
    return [END_OF_LINE.split(COLOUR.sub("", frame)) for frame in FRAME.findall(raw)]


def last_frame(condition):
    """For Terminal.read_until: the last frame, if it is as wished."""
    def holds(raw):
        shown = frames(raw)
        return shown[-1] if shown and condition(shown[-1]) else None
    return holds


class TopTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory(prefix="baton-top-")
        cls.addClassCleanup(directory.cleanup)
        cls.scratch = Path(directory.name)
        cls.binary = ARGUMENTS.bin / "baton"
        cluster, (cls.address, *_) = start_cluster(cls.binary, cls.scratch, "--max-local-prefill-tokens", "0")
        cls.addClassCleanup(cluster.wait, PATIENCE_S)
        cls.addClassCleanup(cluster.terminate)

    def environment(self, **more):
        environment = {**os.environ, "BATON_ADDRESS": self.address, "TERM": "xterm", "LC_ALL": "C.UTF-8"}
        environment.pop("NO_COLOR", None)
        return {**environment, **more}

    def terminal(self, *flags, **environment):
        terminal = Terminal([self.binary, "top", "--interval", "0.2", *flags],
                            self.environment(**environment))
        terminal.before = terminal.settings()
        return terminal

    def assert_restored(self, terminal):
        self.assertTrue(terminal.raw.endswith(LEAVE), terminal.raw[-200:])
        self.assertEqual(terminal.raw.count(ENTER), 1)
        self.assertEqual(terminal.last_settings, terminal.before)
        self.assertTrue(terminal.last_settings[3] & termios.ICANON)

    def test_fills_the_screen_until_q(self):
        terminal = self.terminal()
        shown = terminal.read_until(last_frame(lambda lines: "decode 0 " in lines[2]))
        self.assertTrue(shown[0].startswith(f"baton top  {self.address}  4 workers: 4 ready "))
        self.assertEqual([line.split()[0] for line in shown[-5:-1]], ["prefill"] * 2 + ["decode"] * 2)
        self.assertIn("░", shown[-2])
        self.assertEqual(shown[-1], "q quit  s sort: worker  r role: all")
        self.assertFalse(terminal.settings()[3] & (termios.ICANON | termios.ECHO))
        self.assertIn("\x1b[32mREADY", terminal.raw)
        terminal.type("xs")
        terminal.read_until(last_frame(lambda lines: "sort: queued tokens" in lines[-1]))
        terminal.type("r")
        shown = terminal.read_until(last_frame(lambda lines: "role: prefill" in lines[-1]))
        self.assertFalse([line for line in shown if line.startswith("decode")])
        terminal.resize(120, 9)
        shown = terminal.read_until(last_frame(lambda lines: len(lines) == 9))
        self.assertIn("XFER", shown[7])
        self.assertTrue(shown[8].startswith("2 more prefill workers not shown"), shown)
        terminal.type("q")
        self.assertEqual(terminal.wait(), 0)
        self.assert_restored(terminal)

    def test_signals_restore_the_terminal(self):
        for end in (lambda t: t.type("\x03"), lambda t: t.kill(signal.SIGINT),
                    lambda t: t.kill(signal.SIGTERM)):
            terminal = self.terminal(NO_COLOR="1", LC_ALL="C")
            shown = terminal.read_until(last_frame(lambda lines: lines[-1].startswith("q quit")))
            self.assertTrue("\n".join(shown).isascii())
            self.assertIsNone(COLOUR.search(terminal.raw))
            end(terminal)
            self.assertEqual(terminal.wait(), 130)
            self.assert_restored(terminal)

    def test_a_count_of_frames_on_a_terminal(self):
        terminal = self.terminal("--count", "2")
        self.assertEqual(terminal.wait(), 0)
        self.assertEqual(len(frames(terminal.raw)), 3)  # the first one has no rates
        self.assert_restored(terminal)
        terminal = self.terminal("--once")
        self.assertEqual(terminal.wait(), 0)
        self.assertNotIn(ENTER, terminal.raw)
        self.assertIn("\x1b[32mREADY", terminal.raw)

    def top(self, *flags, **environment):
        return subprocess.run([self.binary, "top", "--interval", "0.2", *flags], env=self.environment(**environment),
                              capture_output=True, text=True, timeout=PATIENCE_S, check=False)

    def test_without_a_terminal_there_are_no_escape_sequences(self):
        result = self.top("-n", "2")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertNotIn("\x1b", result.stdout)
        self.assertEqual(result.stdout.count("baton top"), 2)
        self.assertNotIn("quit", result.stdout)
        self.assertEqual(result.stdout.count(" READY "), 8)
        result = self.top("--once", COLUMNS="120")
        self.assertEqual(result.stdout.count("baton top"), 1)
        self.assertIn(" XFER ", result.stdout)

    def test_json_has_the_rates_of_requests(self):
        top = subprocess.Popen([self.binary, "top", "--interval", "0.3", "--json"], env=self.environment(),
                               stdout=subprocess.PIPE, text=True)
        self.addCleanup(top.wait, PATIENCE_S)
        self.addCleanup(top.stdout.close)
        self.addCleanup(top.kill)
        frame = json.loads(top.stdout.readline())
        self.assertEqual([worker["role"] for worker in frame["workers"]], ["prefill"] * 2 + ["decode"] * 2)
        self.assertEqual({worker["state"] for worker in frame["workers"]}, {"ready"})
        # A prefill worker computes it; the second one finds its prompt cached.
        prompt = "Table:\n" + "\n".join(f" word{i} = {i}" for i in range(100))
        for _ in range(2):
            subprocess.run([self.binary, "generate", "--max-tokens", "30", "--ignore-eos", prompt],
                           env=self.environment(), stdout=subprocess.DEVNULL, timeout=PATIENCE_S, check=True)
        seen = {}
        wanted = {"prefill", "decode", "requests", "cached", "ttft", "itl"}
        while set(seen) < wanted:
            frame = json.loads(top.stdout.readline())
            for name, value in {
                    "prefill": frame["prefill_tokens_per_s"], "decode": frame["decode_tokens_per_s"],
                    "requests": frame["requests"]["per_s"], "cached": frame["prompt_tokens"]["cached_share"],
                    "ttft": frame["time_to_first_token_s"]["p99"],
                    "itl": frame["inter_token_latency_s"]["p50"]}.items():
                if value:
                    seen[name] = value
        self.assertLessEqual(seen["cached"], 1)

    def test_a_router_that_goes_away_and_comes_back(self):
        address_file = self.scratch / "address"

        def start(listen):
            address_file.unlink(missing_ok=True)
            router = subprocess.Popen(
                [ARGUMENTS.bin / "baton-router", "--model", MODEL, "--listen", listen,
                 "--address-file", address_file, "--decode-workers", "127.0.0.1:1"], stderr=subprocess.DEVNULL)
            self.addCleanup(router.wait, PATIENCE_S)
            self.addCleanup(router.kill)
            return router

        router = start("127.0.0.1:0")
        top = None
        while top is None:
            if address_file.exists() and (lines := address_file.read_text().splitlines()):
                top = self.terminal("--address", lines[0])
            self.assertIsNone(router.poll())
        shown = top.read_until(last_frame(lambda lines: "CONNECTING" in lines[-2]))
        self.assertIn("1 worker: 1 connecting", shown[0])
        router.kill()
        router.wait()
        shown = top.read_until(last_frame(lambda lines: lines[1].startswith("No answer from the router")))
        self.assertIn("UNAVAILABLE", shown[1])
        self.assertIn("CONNECTING", shown[-2])
        start(lines[0])
        top.read_until(last_frame(lambda lines: lines[1].startswith("Requests")))
        top.type("q")
        self.assertEqual(top.wait(), 0)
        self.assert_restored(top)

    def test_a_first_call_that_fails_ends_it(self):
        terminal = self.terminal("--address", "127.0.0.1:1")
        self.assertEqual(terminal.wait(), 3)
        self.assertNotIn("\x1b", terminal.raw)
        self.assertIn("baton top: UNAVAILABLE", terminal.raw)
        self.assertEqual(self.top("--once", "--address", "127.0.0.1:1").returncode, 3)


def main():
    global ARGUMENTS, MODEL, start_cluster
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--root", type=Path, required=True)
    ARGUMENTS = parser.parse_args()
    sys.path.insert(0, str(ARGUMENTS.root / "scripts"))
    from demo_cluster import MODEL, start_cluster  # pylint: disable=import-outside-toplevel
    unittest.main(argv=sys.argv[:1])


if __name__ == "__main__":
    main()
