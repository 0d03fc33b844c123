#!/usr/bin/env python3
"""Installs Baton into a directory and uses it from there, as a user of that prefix would.

  staging_test.py --build DIR --root DIR [--structured-output]

The example project is built from the installed files alone, with find_package and with pkg-config, and
talks to a cluster of installed programs. A second cluster runs the command lines of the systemd units.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path

ARGUMENTS = None
PATIENCE_S = 300  # a limit, not an expectation
PROMPT = "Table:\n buko = 1071\n deha = 9194\nQ deha ?"
ANSWER = "9194"
FILES = {
    "bin/baton", "bin/baton-router", "bin/baton-prefill-worker", "bin/baton-decode-worker",
    "include/baton/client.h", "include/baton/error.h", "lib/libbaton_client.a",
    "lib/cmake/baton/batonConfig.cmake", "lib/cmake/baton/batonConfigVersion.cmake",
    "lib/cmake/baton/batonTargets.cmake", "lib/pkgconfig/baton.pc",
    "share/baton/proto/baton/v1/admin.proto", "share/baton/proto/baton/v1/inference.proto",
    "share/bash-completion/completions/baton", "share/zsh/vendor-completions/_baton",
    "share/fish/vendor_completions.d/baton.fish",
    "share/doc/baton-cli/cli.md",
    *(f"share/doc/baton-server/{name}.md"
      for name in ("configuration", "errors", "first-five-minutes", "http", "metrics", "packages", "sampling", "security",
                   "structured_output", "tracing")),
    *(f"share/doc/libbaton-client-dev/examples/cpp/{name}" for name in ("CMakeLists.txt", "main.cc")),
}
STRUCTURED_OUTPUT_FILES = {"bin/baton-grammar", "share/doc/baton-server/NOTICE.baton-grammar"}


def run(*command, **options):
    result = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
                            **options)
    assert result.returncode == 0, f"{command}: {result.returncode}\n{result.stdout}{result.stderr}"
    return result.stdout


def until(done, process=None):
    """Polls, as nothing announces a file or a worker that becomes ready."""
    end = time.monotonic() + PATIENCE_S
    while not (result := done()):
        assert process is None or process.poll() is None, f"{process.args} ended with {process.poll()}"
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)
    return result


def generate(stage, address, *flags):
    """`baton generate` with the example's parameters."""
    return subprocess.run([stage / "bin/baton", "generate", "--temperature", "0", "--max-tokens", "64",
                           *flags, PROMPT], env={**os.environ, "BATON_ADDRESS": address}, capture_output=True,
                          text=True, timeout=PATIENCE_S, check=False)


@contextmanager
def started(command, out, **environment):
    process = subprocess.Popen(command, cwd=ARGUMENTS.root, env={**os.environ, **environment},
                               stdout=out)  # its log goes to the test's
    try:
        yield process
        process.terminate()
        assert process.wait(PATIENCE_S) == 0
    finally:
        process.kill()


class Units:
    """The systemd units, with their environment file."""

    def __init__(self):
        self.folder = ARGUMENTS.root / "packaging/systemd"
        text = (self.folder / "baton.default").read_text(encoding="utf-8")
        self.defaults = dict(word.split("=", 1) for word in shlex.split(text, comments=True))

    def command(self, unit, stage, instance="", **environment):
        """The words of ExecStart as systemd expands them, with programs of `stage`."""
        text = (self.folder / f"{unit}.service").read_text(encoding="utf-8")
        start = re.search(r"^ExecStart=(.*)$", text, re.MULTILINE).group(1)
        start = start.replace("%p", unit.rstrip("@")).replace("%i", instance)
        known = {**self.defaults, **environment}
        words = []
        for word in start.split():
            if word.startswith("$") and not word.startswith("${"):
                words += known[word[1:]].split()  # systemd splits a variable that stands alone
            else:
                words.append(re.sub(r"\$\{(\w+)\}", lambda match: known[match.group(1)], word))
        return [str(stage / "bin" / Path(words[0]).relative_to("/usr/bin")), *words[1:]]


class StagingTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        directory = tempfile.TemporaryDirectory(prefix="baton-staging-")
        cls.addClassCleanup(directory.cleanup)
        cls.scratch = Path(directory.name)
        cls.stage = cls.scratch / "prefix"
        run("cmake", "--install", ARGUMENTS.build, "--prefix", cls.stage)

    def test_files(self):
        installed = {str(path.relative_to(self.stage)) for path in self.stage.rglob("*") if path.is_file()}
        targets = next(path for path in installed if "batonTargets-" in path)  # has the build type's name
        expected = FILES | STRUCTURED_OUTPUT_FILES if ARGUMENTS.structured_output else FILES
        self.assertEqual(installed - {targets}, expected)

    def test_headers_include_nothing_that_is_not_installed(self):
        for header in (self.stage / "include").rglob("*.h"):
            for included in re.findall(r'#include "([^"]+)"', header.read_text(encoding="utf-8")):
                self.assertTrue(included.startswith(("absl/", "baton/")), f"{header}: {included}")

    def build_example(self):
        """Returns the programs that the two build systems make."""
        source = self.stage / "share/doc/libbaton-client-dev/examples/cpp"
        build = self.scratch / "example"
        run("cmake", "-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={self.stage}")
        run("cmake", "--build", build)
        environment = {**os.environ, "PKG_CONFIG_PATH": str(self.stage / "lib/pkgconfig")}
        flags = run("pkg-config", "--cflags", "--libs", "baton", env=environment).split()
        program = self.scratch / "ask"
        run("c++", "-std=c++17", source / "main.cc", *flags, "-o", program)
        return build / "ask", program

    def test_the_example_talks_to_a_cluster(self):
        programs = self.build_example()
        ready = self.scratch / "ready.json"
        with open(ready, "w", encoding="utf-8") as out, started(
                [self.stage / "bin/baton", "up", "--model", "models/demo", "--threads", "1",
                 "--kv-cache-memory", "64MB", "--listen", "127.0.0.1:0",
                 "--http-listen", "127.0.0.1:0", "--json"], out) as cluster:
            printed = json.loads(until(lambda: ready.read_text(encoding="utf-8"), cluster))
            self.assertEqual({process["name"] for process in printed["processes"]},
                             {"router", "prefill-0", "decode-0"})
            address = printed["address"]
            with urllib.request.urlopen(f"http://{printed['http_address']}/v1/models") as models:
                self.assertEqual(json.load(models)["data"][0]["id"], "demo")
            expected = generate(self.stage, address).stdout
            self.assertIn(ANSWER, expected)
            for program in programs:
                self.assertEqual(run(program, address, PROMPT), expected)
                self.assertEqual(run(program, address, PROMPT, PROMPT), 2 * expected)  # by callbacks too
        for program in programs:  # nothing listens any more
            result = subprocess.run([program, address, PROMPT], capture_output=True, text=True,
                                    timeout=PATIENCE_S, check=False)
            self.assertEqual(result.returncode, 1)
            self.assertIn(f"router at {address}", result.stderr)

    def test_the_units_start_a_cluster(self):
        units = Units()
        # The model, as `hf download` would leave it.
        cached = self.scratch / "hub/models--baton--demo"
        (cached / "refs").mkdir(parents=True)
        (cached / "refs/main").write_text("0123abcd", encoding="utf-8")
        (cached / "snapshots").mkdir()
        (cached / "snapshots/0123abcd").symlink_to(ARGUMENTS.root / "models/demo")
        model = "baton/demo"
        router_flags = units.defaults["BATON_ROUTER_FLAGS"]
        with ExitStack() as stack:
            def start(unit, **environment):
                bound = self.scratch / unit
                for flags in ("BATON_INSTANCE_FLAGS", "BATON_ROUTER_FLAGS"):
                    environment[flags] = f"{environment.get(flags, '--threads 1')} --address-file {bound}"
                command = units.command(unit, self.stage, "0", BATON_MODEL=model, **environment)
                process = stack.enter_context(started(command, subprocess.DEVNULL,
                                                      HF_HUB_CACHE=str(self.scratch / "hub")))
                until(bound.exists, process)
                return bound.read_text(encoding="utf-8").splitlines()[0]

            for unit, default in (("baton-prefill-worker@", "127.0.0.1:50061"),
                                  ("baton-decode-worker@", "127.0.0.1:50071")):
                self.assertIn(default, router_flags)
                router_flags = router_flags.replace(default, start(unit))
            router_flags = router_flags.replace("--listen 127.0.0.1:50051", "--listen 127.0.0.1:0")
            address = start("baton-router", BATON_ROUTER_FLAGS=router_flags)

            def answered():
                result = generate(self.stage, address, "--model", model)
                self.assertIn(result.returncode, (0, 3), result.stderr)  # 3: no worker is ready yet
                return result.stdout if result.returncode == 0 else None

            self.assertIn(ANSWER, until(answered))


def main():
    global ARGUMENTS
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--structured-output", action="store_true", help="built with baton-grammar")
    ARGUMENTS = parser.parse_args()
    unittest.main(argv=sys.argv[:1])


if __name__ == "__main__":
    main()
