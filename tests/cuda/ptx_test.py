#!/usr/bin/env python3
"""Runs the tests of the CUDA kernels on what nvcc made of the kernels: their PTX, interpreted.

  ptx_test.py --program build/cpu-release/tests/backend_kernels_test [--cache DIRECTORY]
              [--architectures 80 90] [--truncated]

For each architecture the tests run with PTX for it and for 7.5, as the machines that the tests draw have
capability 8.0 or 7.5. --truncated: products are summed as tensor cores do, cut off and not rounded. Every
kernel of budgets.txt must have been launched. Exits 77 without nvcc.
tests/common/backend/cuda/ptx/interpreter.h describes the interpreter.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import kernel_check
import kernel_rules

OLDEST = 75
TESTS = "Cuda*Test.*-*Emulated*"


def compile_all(compiler, architectures, directory, jobs):
    work = [(path, arch) for path in sorted(kernel_check.KERNELS.glob("*.cu")) for arch in architectures]
    with ThreadPoolExecutor(jobs) as pool:
        for (path, arch), (ptx, _, _) in zip(work, pool.map(lambda w: compiler.compile(*w), work)):
            (directory / f"{path.stem}-{arch}.ptx").write_text(ptx, encoding="utf-8")


def interpreted(output, arch):
    """Short names of the kernels that ran at sm_75 or at sm_`arch`."""
    found = re.findall(r"^interpreted \d+ launches of (.+) at sm_(\d+)$", output, re.MULTILINE)
    return {(kernel_rules.short_name(name), int(at)) for name, at in found if int(at) in (OLDEST, arch)}


def missing(budgets, ran):
    """Kernels that ran at no architecture. Each test draws where it launches them."""
    launched = {name for name, _ in ran}
    return [f"{name}: no test launched it" for name in sorted(budgets) if name not in launched]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=kernel_check.ROOT / "build/kernel_check")
    parser.add_argument("--architectures", type=int, nargs="+", default=[90])
    parser.add_argument("--truncated", action="store_true")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    arguments = parser.parse_args()
    nvcc = kernel_check.find_nvcc()
    if nvcc is None:
        print("ptx_test: skipped: no nvcc; it comes with the CUDA toolkit, version 13")
        return kernel_check.SKIPPED
    budgets = kernel_rules.parse_budgets(kernel_check.BUDGETS.read_text(encoding="utf-8"))
    failed = 0
    with tempfile.TemporaryDirectory() as directory:
        compiler = kernel_check.Compiler(nvcc, arguments.cache)
        compile_all(compiler, {OLDEST, *arguments.architectures}, Path(directory), arguments.jobs)
        for arch in arguments.architectures:
            environment = {**os.environ, "BATON_PTX": directory, "BATON_PTX_ARCHITECTURE": str(arch)}
            if arguments.truncated:
                environment["BATON_PTX_TRUNCATED"] = "1"
            done = subprocess.run([arguments.program, f"--gtest_filter={TESTS}"], env=environment, text=True,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
            lacking = missing(budgets, interpreted(done.stdout, arch))
            if done.returncode:
                print(done.stdout)
            print("\n".join(lacking) or
                  f"all {len(budgets)} kernels ran, interpreted, at sm_{OLDEST} or sm_{arch}")
            failed += bool(done.returncode or lacking)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
