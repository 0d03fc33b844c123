#!/usr/bin/env python3
"""Compiles every CUDA kernel and holds it to its budgets: registers, spills, stack, shared memory, blocks
that a T4's SM takes at once, instructions that must and that must not be there; in the machine code,
what the hot loop costs and has in flight. And that the host code which calls CUDA compiles, which no CPU
preset builds. Needs nvcc, and nvdisasm (a CUDA toolkit's, or the one that
scripts/setup installs); no GPU.

  kernel_check.py              sm_75 and sm_90; exits 1 if a kernel breaks a rule, 77 without nvcc
  kernel_check.py --all        all architectures of the preset cuda-release
  kernel_check.py --table      prints the kernels as a Markdown table
  kernel_check.py --write      sets budgets.txt, machine_code.txt and the tables of docs/results/cuda.md to what
                               the compiler says (with --all); read the difference before you commit it
  kernel_check.py --self-test  shows that each breach is reported

What was compiled is kept under --cache by the hash of its sources, so a second run is instant.
The rules are in kernel_rules.py and machine_code.py, the budgets beside them in budgets.txt and
machine_code.txt.
"""

import argparse
import concurrent.futures
import dataclasses
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import kernel_rules
import machine_code

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BUDGETS = HERE / "budgets.txt"
MACHINE_CODE = HERE / "machine_code.txt"
DOCS = ROOT / "docs/results/cuda.md"
KERNELS = ROOT / "common/backend/cuda/kernels"
SKIPPED = 77
QUICK = (75, 90)
# As cmake/BatonTargets.cmake gives them to nvcc.
FLAGS = ["-std=c++20", "-O3", "-DNDEBUG", "-fmad=false", "--expt-relaxed-constexpr",
         "-Werror=all-warnings"]
KEPT_DAYS = 14
BEGIN, END = "<!-- kernel_check.py --write: begin -->", "<!-- kernel_check.py --write: end -->"
HEAD = """# What each kernel may take, held by kernel_check.py; --all --write proposes.
# dynamic shared: the most bytes that its launch asks for (a T4's may be fewer), which the compiler cannot
#   know: set them by hand.
# T4: blocks that an SM of a T4 must hold at once (64 KiB, 65,536 registers): two hide latencies;
#   one does where each warp has a whole tile's loads under way.
# registers: at most, by architecture; "-": never launched there, and traps.
# marks: """ + "\n#   ".join(f"{mark}: {what}." for mark, what in kernel_rules.MARKS.items()) + """
#
# kernel | dynamic shared | T4 | """ + " | ".join(f"sm_{a}" for a in kernel_rules.ARCHITECTURES) + """ | marks
"""
MACHINE_HEAD = """# The hot loop of each kernel in machine code, held by kernel_check.py; --all --write proposes.
# instructions, m16n8k8 products, bytes loaded, most bytes in flight, of a lane; "-": never launched there.
# A product (or a loaded byte, where there is none) may cost no more instructions than here, and no fewer
# bytes may be in flight. Another nvcc's code is not judged.
#
# kernel | """ + " | ".join(f"sm_{arch}" for arch in machine_code.ARCHITECTURES) + "\n"


def find_nvcc():
    homes = [os.environ.get("CUDA_PATH"), os.environ.get("CUDA_HOME"), "/usr/local/cuda"]
    places = [os.environ.get("CUDACXX"), shutil.which("nvcc"),
              *(f"{home}/bin/nvcc" for home in homes if home)]
    return next((place for place in places if place and os.access(place, os.X_OK)), None)


def find_nvdisasm(nvcc):
    places = [Path(nvcc).resolve().parent / "nvdisasm",
              *sorted(ROOT.glob(".venv/lib/python3*/site-packages/nvidia/cu*/bin/nvdisasm"))]
    return next((str(place) for place in places if os.access(place, os.X_OK)), None)


def run(command):
    """stdout and stderr together; CompiledBadly if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False)
    if done.returncode:
        raise CompiledBadly(f"{' '.join(command)}\n{done.stdout}")
    return done.stdout


class CompiledBadly(Exception):
    pass


def sources_of(path, seen=None):
    """The file and what it includes from the tree, each once."""
    seen = {} if seen is None else seen
    if path not in seen and path.is_file():
        seen[path] = path.read_bytes()
        for header in re.findall(rb'^\s*#\s*include\s*"([^"]+)"', seen[path], re.MULTILINE):
            sources_of(ROOT / header.decode(), seen)
    return seen


class Compiler:
    def __init__(self, nvcc, cache):
        self.nvcc = nvcc
        self.ptxas = str(Path(nvcc).resolve().parent / "ptxas")
        self.nvdisasm = find_nvdisasm(nvcc)
        if self.nvdisasm is None:
            raise CompiledBadly("no nvdisasm beside nvcc or in .venv: scripts/setup installs it")
        self.version = run([nvcc, "--version"])
        self.release = re.search(r"V([\d.]+)", self.version).group(1)
        self.cache = cache
        cache.mkdir(parents=True, exist_ok=True)
        for entry in cache.iterdir():
            if entry.stat().st_mtime < time.time() - KEPT_DAYS * 86400:
                entry.unlink()

    def compile(self, path, arch):
        """(PTX, ptxas's report, {mangled name: machine_code.Facts}) of a .cu."""
        digest = hashlib.sha256(f"{self.version}{FLAGS}{arch}".encode())
        digest.update(Path(machine_code.__file__).read_bytes())
        for source, text in sorted(sources_of(path).items()):
            digest.update(f"\0{source.name}\0".encode() + text)
        kept = self.cache / f"{path.stem}-{arch}-{digest.hexdigest()[:24]}"
        ptx, log, facts = (kept.with_suffix(end) for end in (".ptx", ".log", ".json"))
        if not log.is_file():
            # A name of this process's own: several checks may share the cache.
            part = str(kept) + f".{os.getpid()}.part"
            run([self.nvcc, *FLAGS, "-I", str(ROOT), f"-arch=compute_{arch}", "-ptx", str(path),
                 "-o", part])
            report = run([self.ptxas, f"-arch=sm_{arch}", "-v", part, "-o", part + ".cubin"])
            os.replace(part, ptx)
            code = machine_code.parse(run([self.nvdisasm, "-c", part + ".cubin"]))
            os.unlink(part + ".cubin")
            Path(part).write_text(json.dumps({
                name: dataclasses.asdict(machine_code.facts_of(*kernel))
                for name, kernel in code.items()}), encoding="utf-8")
            os.replace(part, facts)
            Path(part).write_text(report, encoding="utf-8")
            os.replace(part, log)
        for file in (ptx, log, facts):
            os.utime(file)
        found = {name: machine_code.Facts(**kernel)
                 for name, kernel in json.loads(facts.read_text(encoding="utf-8")).items()}
        return ptx.read_text(encoding="utf-8"), log.read_text(encoding="utf-8"), found


def demangle(names):
    if not names:
        return {}
    lines = run(["c++filt", *names]).splitlines()
    return {name: kernel_rules.short_name(line) for name, line in zip(names, lines)}


def reports_of(compiler, paths, architectures, jobs):
    """{(short name, arch): Report} of all kernels in the files."""
    reports = {}
    work = [(path, arch) for path in paths for arch in architectures]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for (path, arch), (ptx, log, facts) in zip(work,
                                                   pool.map(lambda w: compiler.compile(*w), work)):
            bodies = kernel_rules.parse_ptx(ptx)
            found = kernel_rules.parse_ptxas(log)
            if not set(bodies) == set(found) == set(facts):
                raise CompiledBadly(
                    f"{path} at sm_{arch}: PTX, ptxas and nvdisasm speak of different kernels")
            for mangled, name in demangle(sorted(found)).items():
                report = found[mangled]
                report.threads, report.ptx = bodies[mangled]
                report.source = path.name
                report.code = facts[mangled]
                if (name, arch) in reports:
                    raise CompiledBadly(f"two kernels are named {name}, expected one")
                reports[name, arch] = report
    return reports


def list_breaches(paths, cmake):
    """Kernels on disk against those that the libraries are made of."""
    listed = set(re.findall(r"kernels/(\w+\.cu)\b", cmake))
    present = {path.name for path in paths}
    for name in sorted(present - listed):
        yield f"kernels/{name}: not in common/backend/cuda/kernels.cmake"
    for name in sorted(listed - present):
        yield f"kernels/{name}: in common/backend/cuda/kernels.cmake, but not on disk"


def host_breaches(compiler, cmake):
    """Of the sources that only the CUDA presets build, as one unit: those presets join sources, too."""
    if not compiler.release.startswith("13."):
        return
    include = Path(compiler.nvcc).resolve().parent.parent / "include"
    sources = re.search(r"BATON_CUDA_NVIDIA_SOURCES\s+([^)]*)\)", cmake).group(1).split()
    unit = "".join(f'#include "common/backend/cuda/{source}"\n' for source in sources
                   if "nccl" not in source or (include / "nccl.h").is_file())
    command = [os.environ.get("CXX", "c++"), "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror",
               "-Wno-unused-parameter", "-I", str(ROOT), "-isystem", str(include), "-x", "c++", "-"]
    done = subprocess.run(command, input=unit, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          check=False)
    if done.returncode:
        yield f"{' '.join(sources)} do not compile together:\n{done.stdout}"


def facts_of(reports, budgets):
    """{(name, arch): Facts} of kernels that are launched there. Those that may spill there have no spills."""
    facts = {}
    for (name, arch), report in reports.items():
        budget = budgets.get(name)
        if budget is not None and budget.registers[arch] is None:
            continue
        may_spill = budget is not None and kernel_rules.most_spilled(budget, arch) > 0
        facts[name, arch] = dataclasses.replace(report.code, spills=0) if may_spill else report.code
    return facts


def docs_text(reports, budgets, limits, release):
    """The budgets' figures of machine code, which --write has just made: a quick check compiles for
    fewer architectures than the table has."""
    return (f"{BEGIN}\n`tests/cuda/kernel_check.py --table`, nvcc {release}:\n\n"
            f"{kernel_rules.table(reports, budgets)}\n{machine_code.INTRODUCTION}\n"
            f"{machine_code.table(limits)}{END}")


def docs_breaches(text, expected, release):
    found = re.search(re.escape(BEGIN) + ".*?" + re.escape(END), text, re.DOTALL)
    if not found:
        yield f"docs/results/cuda.md: lacks the tables between {BEGIN} and their end"
    # Another compiler has other figures; the budgets are judged all the same.
    elif f"nvcc {release}:" in found.group() and found.group() != expected:
        yield "docs/results/cuda.md: its tables are out of date: kernel_check.py --write renews them"


def write(reports, budgets, release):
    names = {name for name, _ in reports}
    new = {name: kernel_rules.proposal(name, reports, budgets.get(name)) for name in names}
    BUDGETS.write_text(kernel_rules.format_budgets(new, HEAD), encoding="utf-8")
    machine = machine_code.format_budgets(facts_of(reports, new), release, MACHINE_HEAD)
    MACHINE_CODE.write_text(machine, encoding="utf-8")
    limits = machine_code.parse_budgets(machine).limits
    text = DOCS.read_text(encoding="utf-8")
    begin, end = text.index(BEGIN), text.index(END) + len(END)
    DOCS.write_text(text[:begin] + docs_text(reports, new, limits, release) + text[end:], encoding="utf-8")
    print(f"{BUDGETS}, {MACHINE_CODE} and the tables of {DOCS}: written for {len(names)} kernels")


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--cache", type=Path, default=ROOT / "build/kernel_check")
    parser.add_argument("--jobs", type=int, default=min(2, os.cpu_count() or 1))
    arguments = parser.parse_args()
    nvcc = find_nvcc()
    if arguments.self_test:
        import kernel_check_self_test
        return kernel_check_self_test.run(Compiler(nvcc, arguments.cache) if nvcc else None)
    if nvcc is None:
        print("kernel_check: skipped: no nvcc; it comes with the CUDA toolkit, version 13")
        return SKIPPED
    paths = sorted(KERNELS.glob("*.cu"))
    architectures = kernel_rules.ARCHITECTURES if arguments.all or arguments.write else QUICK
    try:
        compiler = Compiler(nvcc, arguments.cache)
        reports = reports_of(compiler, paths, architectures, arguments.jobs)
        budgets = kernel_rules.parse_budgets(BUDGETS.read_text(encoding="utf-8"))
        machine = machine_code.parse_budgets(MACHINE_CODE.read_text(encoding="utf-8"))
    except (CompiledBadly, ValueError) as error:
        print(f"kernel_check: {error}")
        return 1
    if arguments.write:
        write(reports, budgets, compiler.release)
        budgets = kernel_rules.parse_budgets(BUDGETS.read_text(encoding="utf-8"))
        machine = machine_code.parse_budgets(MACHINE_CODE.read_text(encoding="utf-8"))
    if arguments.table:
        print(kernel_rules.table(reports, budgets))
        print(machine_code.table({at: facts.limits() for at, facts in facts_of(reports, budgets).items()}),
              end="")
        return 0
    cmake = (KERNELS.parent / "kernels.cmake").read_text("utf-8")
    breaches = [*list_breaches(paths, cmake),
                *host_breaches(compiler, cmake),
                *kernel_rules.check(reports, budgets),
                *machine_code.check(facts_of(reports, budgets), machine, compiler.release),
                *docs_breaches(DOCS.read_text("utf-8"),
                               docs_text(reports, budgets, machine.limits, compiler.release), compiler.release)]
    print("\n".join(breaches) or
          f"{len({name for name, _ in reports})} kernels keep their budgets at "
          f"{', '.join(f'sm_{arch}' for arch in architectures)} (nvcc {compiler.release})")
    return 1 if breaches else 0


if __name__ == "__main__":
    sys.exit(main())
