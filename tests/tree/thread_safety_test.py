#!/usr/bin/env python3
"""Clang's thread-safety analysis as an error, over every file that can see an absl::Mutex.

  thread_safety_test.py --root DIR --build DIR    DIR has compile_commands.json and generated code
  thread_safety_test.py --self-test               shows that a missing lock is reported

Sources that are compiled together (CMake's unity builds) are checked together. Headers that many of them
include are read once, into a precompiled header, and what they define is analysed there.

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


class Headers:
    """What files of a tree include, themselves or through our headers."""

    def __init__(self, root):
        self.root = root
        self.of = functools.lru_cache(maxsize=None)(self._of)
        self.text = functools.lru_cache(maxsize=None)(
            lambda path: path.read_text(encoding="utf-8", errors="replace"))

    def ours(self, header):
        return (self.root / header).is_file()

    def _of(self, path):
        seen, pending = set(), [path]
        while pending:
            new = set(INCLUDE.findall(self.text(pending.pop()))) - seen
            seen |= new
            pending += [self.root / header for header in new if self.ours(header)]
        return seen

    def reads(self, header, names):
        """Whether a header of ours has one of the names, or includes one that has."""
        files = [header, *filter(self.ours, self.of(self.root / header))]
        return any(name in self.text(self.root / file) for file in files for name in names)


def sources_of(path):
    """The files that a compiled file stands for: itself, or what a unity build has it include."""
    if path.parent.name != "Unity":
        return [path]
    return [Path(source) for source in INCLUDE.findall(path.read_text(encoding="utf-8"))]


def commands_to_run(root, build):
    """{file: clang command} for what the compile database has of our files that see a mutex; the headers of
    each; how many files of ours those are."""
    of = Headers(root).of
    commands, headers, ours, seeing = {}, {}, 0, set()
    for entry in json.loads((build / "compile_commands.json").read_text(encoding="utf-8")):
        compiled = Path(entry["directory"], entry["file"]).resolve()
        if compiled in commands or not compiled.is_file():
            continue
        sources = [path for path in sources_of(compiled)
                   if path.suffix == ".cc" and path.is_relative_to(root)
                   and not path.is_relative_to(build)]
        ours += len(sources)
        mutexes = {path for path in sources if MUTEX_HEADER in of(path)}
        if mutexes - seeing:
            commands[compiled] = clang_command(entry, compiled)
            headers[compiled] = set().union(*map(of, sources))
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


def precompile(root, commands, headers, shared_by, folder):
    """Gives `commands` a precompiled header, made in `folder`, of what `shared_by` of them include. Returns
    what clang says against it, "" if nothing."""
    # Other machine options make other code of a header.
    users = [path for path, command in commands.items()
             if not any(flag[0].startswith("-m") for flag in flags_of(command))]
    flags = dict.fromkeys(flag for path in users for flag in flags_of(commands[path]))
    # These differ between targets. Libraries do not read them; headers of ours that do are left out.
    of_targets = [flag for flag in flags if "".join(flag).startswith("-DBATON_")]
    names = ["".join(flag)[2:].split("=")[0] for flag in of_targets]
    tree = Headers(root)
    counts = collections.Counter(header for of_one in headers.values() for header in of_one)
    # What no source includes, our headers may include on conditions.
    sources = [source for path in users for source in sources_of(path)]
    by_sources = {header for source in sources for header in INCLUDE.findall(tree.text(source))}
    shared = sorted(header for header, count in counts.items() if count >= shared_by
                    and not (tree.ours(header) and (header not in by_sources or tree.reads(header, names))))
    if not shared or not users:
        return ""
    prelude = Path(folder, "prelude.h")
    prelude.write_text("".join(f"#if __has_include(<{header}>)\n#include <{header}>\n#endif\n" for header in shared),
                       encoding="utf-8")
    made = run_one(["clang++", *(word for flag in flags if flag not in of_targets for word in flag), *ANALYSIS[1:],
                    "-fpch-instantiate-templates", "-x", "c++-header", str(prelude), "-o", f"{prelude}.pch"])
    if made.returncode != 0:
        return made.stderr
    for path in users:
        commands[path][1:1] = ["-include-pch", f"{prelude}.pch"]
    return ""


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
        against = precompile(root.resolve(), commands, headers, shared_by, folder)
        if against:
            print(f"headers that many include: clang++ fails\n{against}")
            return 1
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
#ifndef COUNTER_H_
#define COUNTER_H_
#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
class Counter {{
 public:
  int Next();
  int Last() {{ {in_header} return count_; }}
 private:
  absl::Mutex mutex_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
}};
#endif
"""


def self_test():
    alone, united = "counter.cc", "Unity/unity_0_cxx.cxx"
    locks = "absl::MutexLock lock(&mutex_);"
    # With the headers precompiled and without.
    cases = [(locks, locks, alone, 1, 0), ("", locks, alone, 1, 1), (locks, "", alone, 1, 1),
             (locks, locks, alone, SHARED_BY, 0), ("mutex_.Lock();", locks, alone, SHARED_BY, 1),
             ("absl::ReaderMutexLock lock(&mutex_);", locks, alone, SHARED_BY, 1),
             ("no such code;", locks, alone, SHARED_BY, 1), (locks, "", alone, SHARED_BY, 1),
             (locks, locks, united, SHARED_BY, 0), ("", locks, united, SHARED_BY, 1), (locks, "", united, 1, 1)]
    wrong = []
    for lock, in_header, compiled, shared_by, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            root, build = Path(folder, "tree"), Path(folder, "build")
            root.mkdir()
            build.mkdir()
            (root / "counter.h").write_text(HEADER.format(in_header=in_header), encoding="utf-8")
            (root / "counter.cc").write_text(GUARDED.format(lock=lock), encoding="utf-8")
            (root / "plain.cc").write_text("no code, and no mutex to see", encoding="utf-8")
            (root / "Unity").mkdir()
            (root / united).write_text(f'#include "{root.resolve()}/counter.cc"\n', encoding="utf-8")
            command = f"/usr/bin/c++ -I{root} -std=gnu++20 -Wno-of-gcc-only -fno-gcc-knows -c "
            (build / "compile_commands.json").write_text(json.dumps([
                {"directory": str(build), "file": str(root / name), "command": command + name}
                for name in (compiled, "plain.cc")]), encoding="utf-8")
            if analyse(root, build, shared_by) != expected:
                wrong.append(f"with \"{lock}\" in {compiled}, \"{in_header}\" in its header: "
                             f"expected {expected} failures")
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
