#!/usr/bin/env python3
"""scripts/repeat_tests.py on programs that speak as GoogleTest does, and whose failures are known.

  repeat_tests_test.py --root DIR
"""

import argparse
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ARGUMENTS = None
RUNS = 6

# In this program, Even fails with odd seeds, Brittle ends the process, Hasty passes, Plain asks for no seed, Idle is
# skipped.
PROGRAM = '''#!{python}
import os, sys
tests = ["Suite.Brittle", "All/Suite.Even/0", "All/Suite.Even/1", "Suite.Hasty", "Suite.Idle", "Suite.Plain"]
if "--gtest_list_tests" in sys.argv:
    print("Running main()\\nSuite.\\n  Brittle\\n  Hasty\\n  Idle\\n  Plain\\n  DISABLED_Never")
    sys.exit(print("All/Suite.\\n  Even/0  # GetParam() = 3\\n  Even/1  # GetParam() = 4"))
seed = int(os.environ["BATON_TEST_SEED"])
chosen = [a for a in sys.argv if a.startswith("--gtest_filter=")][0].split("=")[1].split(":")
failed = False
for test in tests:
    if test not in chosen:
        continue
    with open("runs", "a") as runs:
        print(test, seed, file=runs)
    print("[ RUN      ]", test)
    if "Plain" not in test:
        print(f"[   SEED   ] BATON_TEST_SEED={{seed}}", flush=True)
    if "Brittle" in test:
        os.abort()
    print("[ RUN      ] Suite.OfAChild\\n[  FAILED  ] Suite.OfAChild (1 ms)")
    wrong = "Even" in test and seed % 2 == 1
    failed |= wrong
    verdict = "[  SKIPPED ]" if "Idle" in test else "[  FAILED  ]" if wrong else "[       OK ]"
    print(verdict, test + (", where GetParam() = 3" if wrong else ""), "(5 ms)")
sys.exit(failed)
'''
ENTRIES = '''add_test(program "{folder}/program")
set_tests_properties(program PROPERTIES WORKING_DIRECTORY "{folder}" TIMEOUT "30")
add_test(sleeper "{folder}/sleeper")
set_tests_properties(sleeper PROPERTIES WORKING_DIRECTORY "{folder}" TIMEOUT "1" LABELS "slow")
add_test(endless "{folder}/sleeper")
set_tests_properties(endless PROPERTIES WORKING_DIRECTORY "{folder}" LABELS "slow")
add_test(other "/bin/false")
set_tests_properties(other PROPERTIES WORKING_DIRECTORY "{folder}")
'''
SLEEPER = '''#!/bin/sh
# BATON_TEST_SEED
case "$*" in *list_tests*) echo Slow.; echo "  Sleeps"; exit;; esac
echo "[ RUN      ] Slow.Sleeps"
sleep 60
'''


class RepeatTestsTest(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory(prefix="baton-repeat-")
        self.addCleanup(directory.cleanup)
        self.folder = Path(directory.name)
        for name, text in {"program": PROGRAM.format(python=sys.executable), "sleeper": SLEEPER}.items():
            (self.folder / name).write_text(text)
            (self.folder / name).chmod(0o755)
        (self.folder / "CTestTestfile.cmake").write_text(ENTRIES.format(folder=self.folder))

    def repeat(self, *arguments):
        """Exit code, output, and the rows of the table by test."""
        done = subprocess.run([sys.executable, ARGUMENTS.root / "scripts/repeat_tests.py", "--build", self.folder, *arguments],
                              text=True, stdout=subprocess.PIPE, timeout=120)
        rows = [[cell.strip() for cell in line.strip("|").split("|")]
                for line in done.stdout.splitlines() if line.startswith("|")]
        return done.returncode, done.stdout, {row[1]: row for row in rows[2:]}

    def test_each_test_is_counted_with_the_seeds_that_failed(self):
        code, output, rows = self.repeat("--runs", str(RUNS), "-j", "1", "-LE", "slow")
        self.assertEqual(code, 1)
        runs = [line.split() for line in (self.folder / "runs").read_text().splitlines()]
        odd = {seed for test, seed in runs if test == "All/Suite.Even/0" and int(seed) % 2 == 1}
        seeds = {seed for _, seed in runs}
        self.assertEqual(len(seeds), RUNS)
        self.assertEqual(set(rows), {"Suite.Brittle", "Suite.Even", "Suite.Hasty"})
        self.assertEqual(rows["Suite.Brittle"][2:4], [str(RUNS), str(RUNS)])
        self.assertEqual(set(rows["Suite.Brittle"][5].split(", ")), seeds)
        self.assertEqual(rows["Suite.Even"][2:4], [str(2 * RUNS), str(2 * len(odd))])
        self.assertEqual(set(rows["Suite.Even"][5].split(", ")) - {""}, odd)
        self.assertEqual(rows["Suite.Hasty"][2:], [str(RUNS), "0", "5", ""])
        self.assertIn(f"{RUNS} of {RUNS} runs", output)
        # One run shows which tests ask for no seed.
        self.assertEqual([test for test, _ in runs].count("Suite.Plain"), 1)
        logs = {re.search(r"see (\S+)", line)[1] for line in output.splitlines() if line.startswith("FAILED")}
        self.assertEqual(len(logs), RUNS)
        for log in logs:
            self.assertIn("[ RUN      ] Suite.Brittle", Path(log).read_text())

    def test_a_test_without_an_end_fails_in_time(self):
        code, _, rows = self.repeat("--runs", "1", "-R", "sleeper")
        self.assertEqual((code, rows["Slow.Sleeps"][2:4]), (1, ["1", "1"]))

    def test_when_it_is_stopped_it_says_what_it_has_found(self):
        process = subprocess.Popen([sys.executable, ARGUMENTS.root / "scripts/repeat_tests.py", "--build", self.folder,
                                    "--runs", "9", "-j", "1", "-R", "program|endless"], text=True, stdout=subprocess.PIPE)
        self.addCleanup(process.kill)
        for line in process.stdout:
            if line.startswith("program: 4 tests"):
                break
        process.terminate()
        rest, _ = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 1)
        self.assertIn("| program | Suite.Hasty | 1 | 0 |", rest)
        self.assertNotIn("Slow.Sleeps", rest)

    def test_nothing_to_repeat_is_an_error(self):
        self.assertEqual(self.repeat("--runs", "1", "-R", "other")[0], 1)
        self.assertEqual(self.repeat("--runs", "0")[0], 2)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, required=True)
    ARGUMENTS = parser.parse_args()
    unittest.main(argv=sys.argv[:1])
