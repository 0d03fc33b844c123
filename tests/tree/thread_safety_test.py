#!/usr/bin/env python3
"""Clang's thread-safety analysis as an error, over every file that can see an absl::Mutex.

  thread_safety_test.py --root DIR --build DIR    DIR has compile_commands.json and generated code
  thread_safety_test.py --self-test               shows that a missing lock is reported

Sources that are compiled together (CMake's unity builds) are checked together. The headers of libraries
that many of them include are read once, into a precompiled header, which has none of our code.

GCC builds the tree and knows no ABSL_GUARDED_BY, so without this test the annotations would be
comments. A file is checked if it, or a header of ours that it includes, includes
absl/synchronization/mutex.h; the rest has nothing to check.
"""

import argparse
import collections
import functools
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

MUTEX_HEADER = "absl/synchronization/mutex.h"
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)
WITH_ARGUMENT = ("-I", "-D", "-U", "-isystem", "-include")
# What clang needs to read the same code. All else (warnings, tuning, GCC's own flags) is left out.
KEPT_FLAG = re.compile(r"-(I|D|U|std=|isystem|include|m(?!prefer))")
ANALYSIS = ["-fsyntax-only", "-Wno-everything", "-Wthread-safety", "-Werror=thread-safety"]
PARALLEL = 2
SHARED_BY = 8  # compilations that include a header, to have it precompiled


def foreign_headers_in(root):
    """A function that returns the headers that are not ours and that a file includes, itself or through our
    headers."""
    @functools.lru_cache(maxsize=None)
    def includes(path):
        return INCLUDE.findall(path.read_text(encoding="utf-8", errors="replace"))

    @functools.lru_cache(maxsize=None)
    def foreign_headers(path):
        seen, pending, foreign = set(), [path], set()
        while pending:
            for header in includes(pending.pop()):
                ours = root / header
                if not ours.is_file():
                    foreign.add(header)
                elif ours not in seen:
                    seen.add(ours)
                    pending.append(ours)
        return foreign

    return foreign_headers


def sources_of(path):
    """The files that a compiled file stands for: itself, or what a unity build has it include."""
    if path.parent.name != "Unity":
        return [path]
    return [Path(source) for source in INCLUDE.findall(path.read_text(encoding="utf-8"))]


def commands_to_run(root, build):
    """{file: clang command} for what the compile database has of our files that see a mutex; the headers
    that are not ours of each; how many files of ours those are."""
    foreign_headers = foreign_headers_in(root)
    commands, headers, ours, seeing = {}, {}, 0, set()
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        compiled = Path(entry["directory"], entry["file"]).resolve()
        if compiled in commands or not compiled.is_file():
            continue
        sources = [path for path in sources_of(compiled)
                   if path.suffix == ".cc" and path.is_relative_to(root)
                   and not path.is_relative_to(build)]
        ours += len(sources)
        mutexes = {path for path in sources if MUTEX_HEADER in foreign_headers(path)}
        if mutexes - seeing:
            commands[compiled] = clang_command(entry, compiled)
            headers[compiled] = set().union(*map(foreign_headers, sources))
            seeing |= mutexes
    if ours == 0:
        sys.exit(f"{build}/compile_commands.json has no file of {root}: expected its own tree's")
    return commands, headers, len(seeing)


def flags_of(command):
    """The flags of clang_command(), each with its argument."""
    flags, words = [], iter(command[1:-1 - len(ANALYSIS)])
    for word in words:
        flags.append((word, next(words)) if word in WITH_ARGUMENT else (word,))
    return flags


def precompile(commands, headers, shared_by, folder):
    """Gives `commands` a precompiled header, made in `folder`, of what `shared_by` of them include."""
    counts = collections.Counter(header for of_one in headers.values() for header in of_one)
    shared = sorted(header for header, count in counts.items() if count >= shared_by)
    # Other machine options make other code of a header.
    users = [path for path, command in commands.items()
             if not any(flag[0].startswith("-m") for flag in flags_of(command))]
    if not shared or not users:
        return
    prelude = Path(folder, "prelude.h")
    prelude.write_text("".join(f"#if __has_include(<{header}>)\n#include <{header}>\n#endif\n" for header in shared),
                       encoding="utf-8")
    # Libraries do not read our macros, which differ between targets.
    flags = dict.fromkeys(flag for path in users for flag in flags_of(commands[path])
                          if not "".join(flag).startswith("-DBATON_"))
    made = run_one(["clang++", *(word for flag in flags for word in flag), *ANALYSIS[1:],
                    "-fpch-instantiate-templates", "-x", "c++-header", str(prelude), "-o", f"{prelude}.pch"])
    if made.returncode != 0:
        sys.exit(f"the headers of libraries cannot be precompiled:\n{made.stderr}")
    for path in users:
        commands[path][1:1] = ["-include-pch", f"{prelude}.pch"]


def clang_command(entry, path):
    words = entry.get("arguments") or shlex.split(entry["command"])
    kept, takes_next = [], False
    for word in words[1:]:
        if takes_next or KEPT_FLAG.match(word):
            kept.append(word)
        takes_next = not takes_next and word in WITH_ARGUMENT
    for header in [word for word in kept if word.endswith("/cmake_pch.hxx")]:  # Clang cannot read GCC's
        at = kept.index(header)
        del kept[at - 1:at + 1]
    return ["clang++", *kept, *ANALYSIS, str(path)]


def run_one(command):
    return subprocess.run(command, capture_output=True, text=True, check=False)


def analyse(root, build, shared_by=SHARED_BY):
    """Prints what clang says; returns the number of files that fail."""
    commands, headers, files = commands_to_run(root.resolve(), build.resolve())
    begin = time.monotonic()
    failed = 0
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(PARALLEL) as pool:
        precompile(commands, headers, shared_by, folder)
        for path, result in zip(commands, pool.map(run_one, commands.values())):
            if result.returncode != 0:
                failed += 1
                print(f"{path}: clang++ fails\n{result.stderr}")
    print(f"{files} files see a mutex, in {len(commands)} compilations; {failed} fail, "
          f"{time.monotonic() - begin:.0f} s")
    return failed


GUARDED = """
#include "counter.h"
int Counter::Next() {{ {lock} return ++count_; }}
"""
HEADER = """
#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
class Counter {
 public:
  int Next();
 private:
  absl::Mutex mutex_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};
"""


def self_test():
    alone, united = "counter.cc", "Unity/unity_0_cxx.cxx"
    # With the mutex in a precompiled header and without.
    cases = [("absl::MutexLock lock(&mutex_);", alone, 1, 0), ("", alone, 1, 1),
             ("mutex_.Lock();", alone, SHARED_BY, 1), ("absl::ReaderMutexLock lock(&mutex_);", alone, SHARED_BY, 1),
             ("no such code;", alone, SHARED_BY, 1),
             ("absl::MutexLock lock(&mutex_);", united, SHARED_BY, 0), ("", united, SHARED_BY, 1)]
    wrong = []
    for lock, compiled, shared_by, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            root, build = Path(folder, "tree"), Path(folder, "build")
            root.mkdir()
            build.mkdir()
            (root / "counter.h").write_text(HEADER, encoding="utf-8")
            (root / "counter.cc").write_text(GUARDED.format(lock=lock), encoding="utf-8")
            (root / "plain.cc").write_text("no code, and no mutex to see", encoding="utf-8")
            (root / "Unity").mkdir()
            (root / united).write_text(f'#include "{root.resolve()}/counter.cc"\n', encoding="utf-8")
            command = f"/usr/bin/c++ -I{root} -std=gnu++20 -Wno-of-gcc-only -fno-gcc-knows -c "
            (build / "compile_commands.json").write_text(json.dumps([
                {"directory": str(build), "file": str(root / name), "command": command + name}
                for name in (compiled, "plain.cc")]), encoding="utf-8")
            if analyse(root, build, shared_by) != expected:
                wrong.append(f"with \"{lock}\" in {compiled}: expected {expected} failures")
    print("\n".join(wrong) if wrong else f"{len(cases)} cases as expected")
    return len(wrong)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path)
    parser.add_argument("--build", type=Path)
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if shutil.which("clang++") is None:
        print("clang++ is missing: expected on the PATH; scripts/setup installs it")
        return 1
    if arguments.self_test:
        return 1 if self_test() else 0
    if arguments.root is None or arguments.build is None:
        parser.error("expected --root and --build")
    if not (arguments.build / "compile_commands.json").is_file():
        print(f"{arguments.build}/compile_commands.json is missing: expected after cmake")
        return 1
    return 1 if analyse(arguments.root, arguments.build) else 0


if __name__ == "__main__":
    sys.exit(main())
