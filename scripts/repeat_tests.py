#!/usr/bin/env python3
"""Runs every randomised test again and again, each time with a new seed: scripts/test --repeat N.

  repeat_tests.py --build build/cpu-release --runs 200 [-j JOBS] [ctest's arguments that select, as -LE cluster]

Randomised is what has its seed from tests/testing/seed.h or seed.py. A process runs the tests of one entry of ctest;
where it dies, the test that was running has failed, and another process runs the rest. What a failed run printed is
kept in BUILD/repeat. Exits with 1 if any test failed.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import functools
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VARIABLE = "BATON_TEST_SEED"
SEED_FILES = {ROOT / "tests/testing/seed.h", ROOT / "tests/testing/seed.py"}
DEFAULT_TIMEOUT_S = 1500  # ctest's
INCLUDE = re.compile(r'^#include "(tests/[^"]+)"', re.MULTILINE)
IMPORT = re.compile(r"^\s*(?:import|from) (\w+)", re.MULTILINE)
# Lines of GoogleTest, and of seed.h.
BEGIN = re.compile(r"\[ RUN      \] (\S+)")
END = re.compile(r"\[\s+(OK|FAILED|SKIPPED)\s+\] ([^ ,]+)(?:.*\((\d+) ms\))?")
ASKS = re.compile(r"\[   SEED   \] ")


@functools.cache
def used_by(path):
    """The files of tests/ that this one includes or imports."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        used = [folder / f"{module}.py" for module in IMPORT.findall(text)
                for folder in (path.parent, ROOT / "tests/testing")]
    else:
        used = [ROOT / header for header in INCLUDE.findall(text)]
    return {file for file in used if file.is_file()}


def asks_for_seed(path):
    """Whether the file does, or one that it uses."""
    seen, pending = set(), {path}
    while pending:
        file = pending.pop()
        seen.add(file)
        pending |= used_by(file) - seen
    return not seen.isdisjoint(SEED_FILES)


class Entry:
    """An entry of ctest: tests of a program with GoogleTest, or a script in Python, which is one test."""

    def __init__(self, described):
        properties = {one["name"]: one["value"] for one in described["properties"]}
        self.name = described["name"]
        self.command = described.get("command")
        self.folder = properties["WORKING_DIRECTORY"]
        self.timeout_s = properties.get("TIMEOUT", DEFAULT_TIMEOUT_S)
        self.skip_code = properties.get("SKIP_RETURN_CODE")
        self.serial = properties.get("RUN_SERIAL", False)
        self.disabled = properties.get("DISABLED", False)
        self.fixtures = set(properties.get("FIXTURES_REQUIRED", []))
        self.sets_up = set(properties.get("FIXTURES_SETUP", []))
        self.environment = {**os.environ, **dict(pair.split("=", 1) for pair in properties.get("ENVIRONMENT", []))}
        self.script = next((Path(a) for a in self.command or [] if a.endswith(".py")), None)
        self.tests = []  # the tests to run, of a program
        self.cpu_s = 0  # CPU seconds of all runs

    def is_randomised(self):
        if self.disabled:
            return False
        if self.command is None:
            sys.exit(f"{self.name} is not built")
        if self.script:
            return self.script.is_relative_to(ROOT / "tests") and asks_for_seed(self.script)
        for argument in self.command:
            if argument.startswith("--sources="):
                return any(asks_for_seed(ROOT / source) for source in argument.removeprefix("--sources=").split(","))
        # Only this entry runs the program, so the program itself shows whether its tests ask.
        return VARIABLE.encode() in Path(shutil.which(self.command[0])).read_bytes()

    def list_tests(self):
        listed = subprocess.run([*self.command, "--gtest_list_tests"], cwd=self.folder, env=self.environment,
                                check=True, text=True, stdout=subprocess.PIPE).stdout
        suite = ""
        for line in listed.splitlines():
            name = line.partition("#")[0].rstrip()
            if not name.startswith(" "):
                suite = name
            elif "DISABLED_" not in suite + name:
                self.tests.append(suite + name.strip())


def outcomes(output):
    """Of a program's output: verdict and seconds of the tests that ended, those that asked for a seed, and the one
    that was running at the end, if any. What a child process says of other tests is not meant."""
    ended, asked, running = {}, set(), None
    for line in output.splitlines():
        if running is None:
            begin = BEGIN.match(line)
            running = begin and begin[1]
        elif ASKS.match(line):
            asked.add(running)
        elif (end := END.match(line)) and end[2] == running:
            ended[running] = end[1], int(end[3] or 0) / 1000
            running = None
    return ended, asked, running


def without_parameters(test):
    """Instantiation/Suite.Name/Parameter, or Suite/0.Name of a type, as it is written: Suite.Name."""
    suite, dot, name = test.partition(".")
    return re.sub(r"/\d+$", "", suite).rpartition("/")[2] + dot + name.partition("/")[0]


@dataclasses.dataclass
class Count:
    """Of a test, or of all instances of one with parameters."""
    runs: int = 0
    failures: int = 0
    seconds: float = 0
    seeds: set = dataclasses.field(default_factory=set)  # seeds with which it failed


class Stopped(Exception):
    pass


class Repetition:
    """Runs entries and counts. Thread: several may run entries, each another one."""

    def __init__(self, folder):
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.lock = threading.Lock()
        self.counts = collections.defaultdict(Count)
        self.processes = set()
        self.stopped = False

    def stop(self):
        """Ends what runs; it is not counted."""
        with self.lock:
            self.stopped = True
            for process in self.processes:
                end_group(process)

    def run(self, entry):
        """Once. The first run says what later ones cost."""
        first = entry.cpu_s == 0
        self._run(entry)
        if first:
            print(f"{entry.name}: {len(entry.tests) or 1} tests, {entry.cpu_s:.1f} s of CPU time", flush=True)

    def _run(self, entry):
        seed = secrets.randbelow(2**32)
        if entry.script:
            code, _ = self._start(entry, seed, [])
            if code != entry.skip_code:
                self._count(entry, entry.name, seed, code == 0)
            return
        pending, asked = list(entry.tests), []
        while pending:
            code, output = self._start(entry, seed, [f"--gtest_filter={':'.join(pending)}"])
            if code == entry.skip_code:
                return
            ended, now_asked, running = outcomes(output)
            if running is not None and code != 0:
                ended[running] = "FAILED", 0
                now_asked.add(running)
            for test, (verdict, seconds) in ended.items():
                if verdict != "SKIPPED" and (test in now_asked or verdict == "FAILED"):
                    asked.append(test)
                    self._count(entry, test, seed, verdict == "OK", seconds)
            if code == 0 or running is None:
                if code != 0 and all(verdict != "FAILED" for verdict, _ in ended.values()):
                    self._count(entry, f"{entry.name} at its end", seed, False)
                break
            pending = [test for test in pending if test not in ended]
        entry.tests = asked  # one run shows which tests ask

    def _start(self, entry, seed, arguments):
        """Exit code, negative if a signal ended it, and standard output."""
        path = self.folder / f"{entry.name}-{seed}"
        files = [path.with_suffix(suffix) for suffix in (".out", ".err")]
        with open(files[0], "a") as out, open(files[1], "a") as err:
            begin = out.tell()
            with self.lock:
                if self.stopped:
                    raise Stopped
                process = subprocess.Popen([*entry.command, *arguments], cwd=entry.folder, stdin=subprocess.DEVNULL,
                                           stdout=out, stderr=err, start_new_session=True,
                                           env={**entry.environment, VARIABLE: str(seed)})
                self.processes.add(process)
            timer = threading.Timer(entry.timeout_s, end_group, [process])
            timer.start()
            try:
                _, status, usage = os.wait4(process.pid, 0)
                code = process.returncode = os.waitstatus_to_exitcode(status)
            finally:
                timer.cancel()
                end_group(process)
                self.processes.discard(process)
        if self.stopped:
            raise Stopped
        entry.cpu_s += usage.ru_utime + usage.ru_stime
        output = files[0].read_bytes()[begin:].decode(errors="replace")
        if begin == 0 and code in (0, entry.skip_code):
            for file in files:
                file.unlink()
        return code, output

    def _count(self, entry, test, seed, passed, seconds=0):
        with self.lock:
            count = self.counts[entry.name, without_parameters(test)]
            count.runs += 1
            count.seconds += seconds
            if not passed:
                count.failures += 1
                count.seeds.add(seed)
                print(f"FAILED: {test} with {VARIABLE}={seed}, see {self.folder}/{entry.name}-{seed}.out", flush=True)

    def table(self):
        rows = ["| entry of ctest | test | runs | failures | ms a run | seeds that failed |", "|---|---|---|---|---|---|"]
        for (entry, test), count in sorted(self.counts.items()):
            rows.append(f"| {entry} | {test} | {count.runs} | {count.failures} | {count.seconds / count.runs * 1000:.0f} "
                        f"| {', '.join(map(str, sorted(count.seeds)))} |")
        return "\n".join(rows)


def end_group(process):
    """Also what a test has started and left behind."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def await_all(futures):
    """Raises what the first of them to fail raises. Python notices a signal that arrives just before a wait when the
    wait ends, so no wait is long."""
    running = futures
    while running:
        done, running = concurrent.futures.wait(running, timeout=0.2, return_when=concurrent.futures.FIRST_EXCEPTION)
        for future in done:
            future.result()


def set_up(build, entries, fixtures):
    for entry in entries:
        if entry.sets_up & fixtures:
            subprocess.run(["ctest", "--test-dir", build, "-R", f"^{re.escape(entry.name)}$", "--output-on-failure"],
                           check=True, stdout=subprocess.DEVNULL)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", required=True)
    parser.add_argument("--runs", type=int, required=True)
    parser.add_argument("-j", "--jobs", type=int, default=os.cpu_count())
    options, selection = parser.parse_known_args()
    if options.runs < 1:
        parser.error(f"--repeat is {options.runs}, expected at least 1")
    listed = subprocess.run(["ctest", "--test-dir", options.build, "--show-only=json-v1", *selection], check=True,
                            stdout=subprocess.PIPE).stdout
    every = [Entry(described) for described in json.loads(listed)["tests"]]
    entries = [entry for entry in every if entry.is_randomised()]
    if not entries:
        sys.exit("no randomised test is selected")
    set_up(options.build, every, set().union(*(entry.fixtures for entry in entries)))
    for entry in entries:
        if not entry.script:
            entry.list_tests()
    repetition = Repetition(Path(options.build).resolve() / "repeat")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    pool = concurrent.futures.ThreadPoolExecutor(options.jobs)
    try:
        for run in range(1, options.runs + 1):
            await_all([pool.submit(repetition.run, entry) for entry in entries if not entry.serial])
            for entry in entries:
                if entry.serial:
                    await_all([pool.submit(repetition.run, entry)])
            print(f"{run} of {options.runs} runs", flush=True)
    except KeyboardInterrupt:
        sys.exit(1)
    finally:
        repetition.stop()
        pool.shutdown(cancel_futures=True)
        print(repetition.table())
        failures = sum(count.failures for count in repetition.counts.values())
        print(f"{sum(count.runs for count in repetition.counts.values())} runs of {len(repetition.counts)} tests, "
              f"{failures} failures, {sum(entry.cpu_s for entry in entries):.0f} s of CPU time")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
