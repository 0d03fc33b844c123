#!/usr/bin/env python3
"""What all programs share: --version, exit codes for wrong flags, and `baton completion`.

  programs_test.py --bin DIR --version VERSION --root DIR

Completion scripts are compared with --help: bash and fish are asked what they offer for each command.
Shells that are not installed are skipped.
"""

import argparse
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import unittest
from pathlib import Path

ARGUMENTS = None
PROGRAMS = ("baton", "baton-router", "baton-prefill-worker", "baton-decode-worker")


def run(*command, **options):
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False, **options)


def baton(*arguments):
    result = run(ARGUMENTS.bin / "baton", *arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def help_of(*command):
    """The flags and subcommands in the help of a command."""
    flags, subcommands, section = set(), set(), ""
    for line in baton(*command, "--help").splitlines():
        if line and not line.startswith(" "):
            section = line
        elif section == "Subcommands:":
            subcommands.update(re.findall(r"^  (\S+)", line))
        elif match := re.match(r"  (-\S+)", line):
            flags.update(re.sub(r"\{\w+\}", "", name) for name in match.group(1).split(","))
    return flags, subcommands


class ProgramsTest(unittest.TestCase):
    def test_version(self):
        for program in PROGRAMS:
            result = run(ARGUMENTS.bin / program, "--version")
            self.assertEqual((result.returncode, result.stdout),
                             (0, f"{program} {ARGUMENTS.version}\n"))

    def test_wrong_flags_are_usage_errors(self):
        wrong = {"baton": ["explain", "--last", "0"],
                 "baton-router": ["--model", "/tmp"],  # no decode worker
                 "baton-prefill-worker": ["--model", "/tmp", "--block-size", "17"],
                 "baton-decode-worker": ["--model", "/tmp", "--device", "tpu"]}
        for program in PROGRAMS:
            for flags in (["--no-such-flag"], wrong[program]):
                result = run(ARGUMENTS.bin / program, *flags)
                self.assertEqual(result.returncode, 2, f"{program} {flags}: {result.stderr}")
                self.assertNotEqual(result.stderr, "")
            self.assertEqual(run(ARGUMENTS.bin / program, "--help").returncode, 0)

    def test_flags_that_let_no_router_be_called_are_usage_errors(self):
        commands = (["workers"], ["loads"], ["drain", "w"], ["health"], ["explain", "hi"], ["generate", "hi"],
                    ["chat"], ["top", "--once"], ["prefix", "list"], ["bench", "serve"], ["bench", "judge"],
                    ["bench", "agent"], ["score", "--items", "-", "--labels", "a"])
        wrong = ((["--address", "garbage"], '"garbage" is not host:port [BAD_ADDRESS]'),
                 (["--address", "127.0.0.1:65536"], '"127.0.0.1:65536" is not host:port [BAD_ADDRESS]'),
                 (["--address", ""], '"" is not host:port [BAD_ADDRESS]'),
                 (["--tls-cert", "a.pem"], "given together, or neither [BAD_TLS_FILES]"),
                 (["--tls-ca", "a.pem", "--tls-key", "a.key"], "given together, or neither [BAD_TLS_FILES]"),
                 (["--tls-ca", "/no/such/ca.pem"], "/no/such/ca.pem"),
                 (["--api-key", "secret\r"], "--api-key or BATON_API_KEY: printable ASCII"))
        for command in commands:
            for flags, error in wrong:
                result = run(ARGUMENTS.bin / "baton", *command, *flags, stdin=subprocess.DEVNULL)
                self.assertEqual(result.returncode, 2, f"{command} {flags}: {result.stderr}")
                self.assertIn(error, result.stderr)
                self.assertNotIn("secret", result.stderr)
                self.assertEqual(result.stderr.count("\n"), 1, result.stderr)

    def test_a_prompt_that_is_not_utf8_has_one_line_of_error(self):
        for command in ("generate", "explain"):
            result = run(ARGUMENTS.bin / "baton", command, b"a\xff", "--address", "127.0.0.1:1")
            self.assertEqual(result.stderr.count("\n"), 1, result.stderr)
            self.assertIn(f"baton {command}: ", result.stderr)

    def test_output_that_cannot_be_written_is_a_failure(self):
        with open("/dev/full", "w", encoding="utf-8") as full:
            for arguments in (["--version"], ["generate", "--help"], ["completion", "bash"],
                              ["keys", "new", "--tenant", "a"],
                              ["plan", "--model", ARGUMENTS.root / "models/demo", "--gpu", "t4"]):
                result = subprocess.run([ARGUMENTS.bin / "baton", *arguments], stdout=full, text=True,
                                        stderr=subprocess.PIPE, timeout=60, check=False)
                self.assertEqual(result.returncode, 1, f"{arguments}: {result.stderr}")
                self.assertIn("standard output: write failed: No space left on device\n", result.stderr)

    def test_a_closed_pipe_ends_a_command_as_any_other_program(self):
        read, write = os.pipe()
        os.close(read)
        with os.fdopen(write, "w") as closed:
            result = subprocess.run([ARGUMENTS.bin / "baton", "completion", "bash"], stdout=closed, text=True,
                                    stderr=subprocess.PIPE, timeout=60, check=False)
        self.assertEqual((result.returncode, result.stderr), (-signal.SIGPIPE, ""))

    def test_unknown_flags_and_commands_are_named_with_those_meant(self):
        for program in PROGRAMS[1:]:
            result = run(ARGUMENTS.bin / program, "--modl", "/tmp")
            self.assertEqual(result.returncode, 2)
            self.assertIn("unknown flag --modl; did you mean --model?\n", result.stderr)
        for arguments, error in (
                (["genrate", "hi"], 'unknown command "genrate"; did you mean generate?'),
                (["bench", "sreve"], 'unknown command "sreve"; did you mean serve?'),
                (["prefix", "warn"], 'unknown command "warn"; did you mean warm?'),
                (["generate", "--max_token", "3", "hi"],
                 "unknown flag --max_token; did you mean --max-tokens?"),
                (["up", "--devise", "cpu"], "unknown flag --devise; did you mean --device?"),
                (["--address", "h:1", "generate", "hi"], "unknown flag --address before the command"),
        ):
            result = run(ARGUMENTS.bin / "baton", *arguments)
            self.assertEqual(result.returncode, 2)
            self.assertIn(error, result.stderr)

    def test_a_model_that_is_not_there_is_a_usage_error(self):
        more = {"baton": ["plan", "--gpu", "t4"]}
        for program in PROGRAMS:
            result = run(ARGUMENTS.bin / program, *more.get(program, []), "--model", "no-such-org/model",
                         env={**os.environ, "HF_HUB_CACHE": "/no/such/cache"})
            self.assertEqual(result.returncode, 2, result.stderr)
            self.assertIn("/no/such/cache/models--no-such-org--model/refs/main", result.stderr)

    def test_a_server_that_cannot_start_fails(self):
        result = run(ARGUMENTS.bin / "baton-prefill-worker", "--model", "/")  # has no config.json
        self.assertEqual(result.returncode, 1, result.stderr)

    def test_flags_that_are_wrong_at_start_are_usage_errors(self):
        model = ["--device", "cpu", "--model", ARGUMENTS.root / "models/demo", "--listen", "127.0.0.1:0"]
        for flags in (["--kv-tier", "foo"], ["--max-model-len", "5000"], ["--worker-secret-file", "/nope"],
                      ["--kv-transport", "nccl"], ["--kv-transport", "ipc"], ["--metrics-listen", "nowhere"]):
            for program in PROGRAMS[2:]:
                result = run(ARGUMENTS.bin / program, *model, *flags)
                self.assertEqual(result.returncode, 2, f"{program} {flags}: {result.stderr}")
        for flags in (["--worker-tls-cert", "a"], ["--speculative", "draft:/nope,3"]):
            result = run(ARGUMENTS.bin / "baton-decode-worker", *model, *flags)
            self.assertEqual(result.returncode, 2, f"{flags}: {result.stderr}")
        # What may pass: an address that another program has.
        with socket.create_server(("127.0.0.1", 0)) as taken:
            result = run(ARGUMENTS.bin / "baton-decode-worker", *model[:-1],
                         f"127.0.0.1:{taken.getsockname()[1]}")
            self.assertEqual(result.returncode, 1, result.stderr)

    def test_the_document_has_the_exit_codes(self):
        header = (ARGUMENTS.root / "common/base/exit_code.h").read_text(encoding="utf-8")
        document = (ARGUMENTS.root / "docs/cli.md").read_text(encoding="utf-8")
        self.assertEqual(re.findall(r"constexpr int kExit\w+ = (\d+);", header),
                         re.findall(r"^\| (\d+) \|", document, re.MULTILINE))

    def test_the_document_names_every_command(self):
        document = (ARGUMENTS.root / "docs/cli.md").read_text(encoding="utf-8")
        for command in help_of()[1]:
            self.assertIn(f"`baton {command}", document)


class CompletionTest(unittest.TestCase):
    def offers_all(self, complete):
        """`complete` returns what a shell offers behind a list of words."""
        flags, commands = help_of()
        self.assertIn("generate", commands)
        self.assertLessEqual(commands, complete(["baton", ""]) | complete(["baton", "-"]))
        self.assertLessEqual(flags, complete(["baton", "-"]))
        for command in sorted(commands):
            flags, nested = help_of(command)
            self.assertIn("--help", flags)
            self.assertLessEqual(flags, complete(["baton", command, "-"]) |
                                 complete(["baton", command, "--"]), command)
            self.assertLessEqual(nested, complete(["baton", command, ""]))
            for name in sorted(nested):
                self.assertLessEqual(help_of(command, name)[0], complete(["baton", command, name, "-"]) |
                                     complete(["baton", command, name, "--"]), name)
        self.assertIn("serve", help_of("bench")[1])
        self.assertNotIn("--peer", complete(["baton", "bench", "serve", "--"]))
        self.assertEqual({"baton", "openai", "openai-chat", "vllm"},
                         complete(["baton", "bench", "serve", "--backend", ""]))
        self.assertEqual({"debug", "info", "warning", "error"},
                         complete(["baton", "up", "--log-level", ""]))
        self.assertEqual({"low", "normal", "high"}, complete(["baton", "generate", "--priority", ""]))
        self.assertLessEqual({"bash", "zsh", "fish"}, complete(["baton", "completion", ""]))

    def test_bash(self):
        script = baton("completion", "bash")
        self.assertEqual(subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode, 0)

        def complete(words):
            # As bash calls it: the words of the line, and the last one to complete.
            asked = f'{script}\nCOMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _baton; printf "%s\\n" "${{COMPREPLY[@]}}"'
            return set(run("bash", "-c", asked, "bash", *words).stdout.split())

        self.offers_all(complete)
        here = os.getcwd()
        try:
            os.chdir(ARGUMENTS.root)
            self.assertEqual(complete(["baton", "up", "--model", "models/d"]), {"models/demo"})
            # A GGUF file is a model, too.
            self.assertIn("README.md", complete(["baton", "up", "--model", "READ"]))
        finally:
            os.chdir(here)

    @unittest.skipUnless(shutil.which("fish"), "no fish")
    def test_fish(self):
        script = baton("completion", "fish")

        def complete(words):
            asked = f"{script}\ncomplete -C '{' '.join(words)}'"
            result = run("fish", "--no-config", "-c", asked)
            self.assertEqual(result.stderr, "")
            return {line.split("\t")[0] for line in result.stdout.splitlines()}

        self.offers_all(complete)

    def test_zsh(self):
        # zsh completes in a terminal only: its script is parsed, and read.
        script = baton("completion", "zsh")
        if shutil.which("zsh"):
            result = subprocess.run(["zsh", "-n"], input=script, capture_output=True, text=True, check=False)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
        for command in help_of()[1]:
            self.assertIn(f"    '{command}:", script)
            cases = re.search(rf"\n    {command}\)\n(.*?);;", script, re.DOTALL).group(1)
            for flag in help_of(command)[0]:
                self.assertRegex(cases, rf"'\*?{flag}\[")
            for name in help_of(command)[1]:
                self.assertIn(f"\n    {command}_{name})\n", script)


def main():
    global ARGUMENTS
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", type=Path, required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--root", type=Path, required=True)
    ARGUMENTS = parser.parse_args()
    unittest.main(argv=sys.argv[:1])


if __name__ == "__main__":
    main()
