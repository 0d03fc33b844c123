#!/usr/bin/env python3
"""scripts/gpu-check without a GPU: programs that pass, fail, hang, skip and are not there, and what is made
of each."""

import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.dont_write_bytecode = True  # it would lie in scripts/
LOADER = importlib.machinery.SourceFileLoader("gpu_check", str(ROOT / "scripts/gpu-check"))
gpu_check = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_check", LOADER))
sys.modules["gpu_check"] = gpu_check
LOADER.exec_module(gpu_check)

# A program in place of a GoogleTest binary: writes a report, prints its environment, exits.
PROGRAM = """#!{python}
import os, sys, time
report = [a.split("json:")[1] for a in sys.argv if "gtest_output" in a][0]
if {report!r}:
    open(report, "w").write({report!r})
print("T4", os.environ.get("BATON_T4_MODE"), "X", os.environ.get("X"), "in", os.getcwd())
time.sleep({sleep})
sys.exit({code})
"""
# In place of compute-sanitizer: runs the program; with an argument "found", says so.
SANITIZER = """#!{python}
import subprocess, sys
if {refusal!r}:
    print({refusal!r})
    sys.exit(1)
at = next(i for i, a in enumerate(sys.argv) if a.startswith("/") and i)
code = subprocess.run(sys.argv[at:]).returncode
sys.exit(int(sys.argv[sys.argv.index("--error-exitcode") + 1]) if {found} else code)
"""


def cases(*results):
    """GoogleTest's report: P passed, F failed, S skipped, D did not run."""
    made = {"P": {"status": "RUN", "result": "COMPLETED"},
            "F": {"status": "RUN", "result": "COMPLETED", "failures": [{"failure": "x"}]},
            "S": {"status": "RUN", "result": "SKIPPED"},
            "D": {"status": "NOTRUN", "result": "SUPPRESSED"}}
    return json.dumps({"testsuites": [{"testsuite": [made[r] for r in results]}]})


def write_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


def run(folder, rows, programs, found=False, minutes=1.0, with_sanitizer=True, refusal=""):
    """(exit code, output) of a pack of such programs: name -> (report, exit code, seconds)."""
    pack, logs = Path(folder) / "pack", Path(folder) / "logs"
    for name, (report, code, sleep) in programs.items():
        for kind in ("native", "ptx75"):
            write_program(pack / "bin" / kind / name, PROGRAM.format(
                python=sys.executable, report=report, code=code, sleep=sleep))
    write_program(pack / "sanitizer", SANITIZER.format(python=sys.executable, found=found,
                                                           refusal=refusal))
    (pack / gpu_check.LIST).write_text(rows, encoding="utf-8")
    logs.mkdir(exist_ok=True)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = gpu_check.check(pack, logs, minutes, gpu_check.PARTS,
                               str(pack / "sanitizer") if with_sanitizer else None, "")
    return code, output.getvalue(), logs


def expect(rows, programs, code, *words, **options):
    with tempfile.TemporaryDirectory() as folder:
        found, output, _ = run(folder, rows, programs, **options)
    assert found == code, (found, output)
    for word in words:
        assert word in output, (word, output)


def test_pack():
    """One compressed file and the script: what comes out of it runs. A file that was cut is not taken for a whole one."""
    with tempfile.TemporaryDirectory() as folder:
        pack, out = Path(folder) / "pack", Path(folder) / "out"
        write_program(pack / "bin/native/a", "#!/bin/sh\n" + "# filler\n" * 4096)
        (pack / gpu_check.LIST).write_text("native | a | * | 20 |\n", encoding="utf-8")
        (pack / "built.txt").write_text("commit x\n", encoding="utf-8")
        for script in ("gpu-check", *gpu_check.gpu_bench.FILES):
            shutil.copy(ROOT / "scripts" / script, pack / script)
        out.mkdir()
        gpu_check.compress(pack, out / gpu_check.PACKED)
        shutil.copy(ROOT / "scripts/gpu-check", out / "gpu-check")
        whole = (out / gpu_check.PACKED).read_bytes()
        unpacked = out / gpu_check.UNPACKED
        command = [sys.executable, str(out / "gpu-check"), "--part", "native", "--render", "no-file"]
        (out / gpu_check.PACKED).write_bytes(whole[:len(whole) // 2])
        cut = subprocess.run(command, capture_output=True, text=True, check=False)
        assert cut.returncode != 0 and "EOFError" in cut.stderr and not (unpacked / "built.txt").exists(), cut
        (out / gpu_check.PACKED).write_bytes(whole)
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "no-file" in ran.stderr, ran  # the unpacked script has read its arguments
        assert os.access(unpacked / "bin/native/a", os.X_OK)
        # The tree's own gpu-check finds the programs through the pack's folder, too.
        ran = subprocess.run([sys.executable, str(ROOT / "scripts/gpu-check"), str(out), "--part", "native"],
                             capture_output=True, text=True, check=False)
        assert ran.returncode == 77 or gpu_check.gpu_line(), ran


def main():
    test_pack()
    good = {"a": (cases("P", "P", "S", "D"), 0, 0)}
    every = "".join(f"{part} | a | * | 20 | X=y\n" for part in gpu_check.PARTS)
    with tempfile.TemporaryDirectory() as folder:
        code, output, logs = run(folder, every, good)
        assert code == 0 and "4 of 4 passed" in output, output
        native, t4 = ((logs / f"{part}-a.log").read_text() for part in ("1-native", "2-ptx75"))
        assert "T4 None X y" in native and "T4 1 X y" in t4, (native, t4)
        assert f"in {Path(folder).resolve() / 'pack'}" in native, native
    row = "native | a | * | 20 |\n"
    expect(row, {"a": (cases("P", "F"), 1, 0)}, 1, "exit code 1", "0 of 1 passed")
    expect(row, {"a": (cases("P"), -11, 0)}, 1, "exit code")
    expect(row, {"a": (cases("P", "F"), 0, 0)}, 1, "0 of 1 passed")
    expect(row, {"a": (cases("S"), 0, 0)}, 1, "no test ran")
    expect(row, {"a": (cases("D"), 0, 0)}, 1, "no test ran")
    expect(row, {"a": ("", 0, 0)}, 1, "no test ran")
    expect(row, {}, 1, "no such program")
    expect("", {}, 1, "0 of 0")
    begin = time.monotonic()
    expect("native | a | * | 1 |\n", {"a": (cases("P"), 0, 600)}, 1, "ran longer than 1 s")
    expect(row + "native | b | * | 20 |\n", {**good, "a": ("", 0, 600), "b": good["a"]}, 1,
           "ran longer than", "b", "minutes are over", minutes=1.5 / 60)
    assert time.monotonic() - begin < 60
    expect("memcheck | a | * | 20 |\n", good, 1, "memcheck found errors", found=True)
    expect("racecheck | a | * | 20 |\n", good, 1, "no compute-sanitizer", with_sanitizer=False)
    refusal = "========= Error: Device not supported. Please refer to the documentation"
    expect("memcheck | a | * | 20 |\n" + row, good, 0, f"skipped, because the sanitizer said: {refusal[10:]}",
           "1 of 2 passed, 1 skipped", refusal=refusal)
    expect("memcheck | a | * | 20 |\n", {"a": (cases("P", "F"), 1, 0)}, 1, "0 of 1 passed\n",
           found=True)
    for wrong in ("native | a | *", "other | a | * | 20 |", "native | a | * | long |"):
        try:
            gpu_check.parse_list(wrong)
        except ValueError:
            continue
        assert False, f"expected a refusal of {wrong}"
    # The list of the tree itself can be read, and no part is missing from it.
    rows, data, _ = gpu_check.parse_list((ROOT / "tests/cuda" / gpu_check.LIST).read_text(encoding="utf-8"))
    assert {r.part for r in rows} == set(gpu_check.PARTS), rows
    assert sum(r.seconds for r in rows) > 0
    for path in data:
        assert (ROOT / path).exists(), f"{path}: scripts/gpu-check packs it, but there is none"
    if gpu_check.gpu_line() is None:
        with tempfile.TemporaryDirectory() as folder:
            pack = Path(folder)
            (pack / gpu_check.LIST).write_text(row, encoding="utf-8")
            assert os.spawnv(os.P_WAIT, sys.executable,
                             [sys.executable, str(ROOT / "scripts/gpu-check"), folder]) == 77
    print("gpu-check judges as it should")
    return 0


if __name__ == "__main__":
    sys.exit(main())
