#!/usr/bin/env python3
"""What docs/coming-from.md calls Baton's is there: flags and commands in --help, fields and calls in the
public proto, metrics in docs/metrics.md, paths in docs/http.md, environment variables in the sources.

  coming_from_test.py --bin DIR --root DIR
"""

import argparse
import re
import subprocess
import sys
import unittest
from pathlib import Path

ARGUMENTS = None
PROGRAMS = ("baton-router", "baton-prefill-worker", "baton-decode-worker")
FILES = {"config.json", "generation_config.json"}  # of a model
SOURCES = ("cli", "client/cpp", "common/base")


def help_of(*command):
    result = subprocess.run([ARGUMENTS.bin / command[0], *command[1:], "--help"], capture_output=True,
                            text=True, timeout=60, check=True)
    return result.stdout


def flags_in(text):
    return set(re.findall(r"--[a-z][a-z0-9-]*", "\n".join(
        match.group(1) for match in re.finditer(r"^ +(-\S+)", text, re.MULTILINE))))


def known_names(root):
    """Everything that the Baton column may name."""
    names = set(FILES) | set(PROGRAMS)
    top = help_of("baton")
    commands = re.findall(r"^  (\S+)", top.split("Subcommands:")[1], re.MULTILINE)
    for command in commands:
        text = help_of("baton", command)
        names.update(flags_in(text))
        names.add(f"baton {command}")
        for nested in re.findall(r"^  (\S+)", text.partition("Subcommands:")[2], re.MULTILINE):
            names.add(f"baton {command} {nested}")
            names.update(flags_in(help_of("baton", command, nested)))
    for program in PROGRAMS:
        names.update(flags_in(help_of(program)))
    proto = (root / "proto/baton/v1/inference.proto").read_text(encoding="utf-8")
    proto += (root / "proto/baton/v1/admin.proto").read_text(encoding="utf-8")
    names.update(re.findall(r"^\s+(?:optional |repeated )?[\w.<>, ]+ (\w+) = \d+;", proto, re.MULTILINE))
    names.update(re.findall(r"^\s+rpc (\w+)\(", proto, re.MULTILINE))
    names.update(re.findall(r"`(baton_[a-z0-9_]+)`", (root / "docs/metrics.md").read_text(encoding="utf-8")))
    http = (root / "docs/http.md").read_text(encoding="utf-8")
    names.update(re.findall(r"(/[a-z0-9_/]+)`", http))
    honoured = http.split("## Fields")[1].split("- Refused:")[0]
    names.update(re.findall(r"`([a-z_]+)`", honoured))
    for folder in SOURCES:
        for path in (root / folder).glob("*.cc"):
            names.update(re.findall(r'"((?:HF|BATON)_[A-Z_]+)"', path.read_text(encoding="utf-8")))
    return names


def unknown_names(document, names):
    """(line number, name) of each code span in a Baton column that is none of `names`."""
    rows = [(number, line.split("|")) for number, line in enumerate(document.splitlines(), 1)
            if line.startswith("|")]
    assert rows
    for number, cells in rows:
        if len(cells) != 4:
            yield number, "two columns"
            continue
        for name in re.findall(r"`([^`]+)`", cells[2]):
            if name not in names:
                yield number, name


class ComingFromTest(unittest.TestCase):
    def test_everything_named_is_there(self):
        document = (ARGUMENTS.root / "docs/coming-from.md").read_text(encoding="utf-8")
        names = known_names(ARGUMENTS.root)
        self.assertEqual(list(unknown_names(document, names)), [])

    def test_made_up_names_are_found(self):
        names = known_names(ARGUMENTS.root)
        row = "| `--theirs` | `--max-num-seqs`, {} |"
        self.assertEqual(list(unknown_names(row.format("not there"), names)), [])
        for name in ("--no-such-flag", "baton_no_such_metric", "no_such_field", "baton fly", "/v1/no",
                     "baton bench fly", "BATON_NO", "--max-num"):
            self.assertEqual(list(unknown_names(row.format(f"`{name}`"), names)), [(1, name)])


def main():
    global ARGUMENTS
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--root", type=Path, required=True)
    ARGUMENTS = parser.parse_args()
    unittest.main(argv=sys.argv[:1])


if __name__ == "__main__":
    main()
