#!/usr/bin/env python3
"""Predicts the clocks of a kernel's hot loop on one multiprocessor, from its machine code: four schedulers issue the
warps' instructions in order; an instruction waits for its registers and its pipe. Tells which of two loops is
faster, and what its warps wait for, before a chip is at hand.

    loop_clocks.py FILE KERNEL [--arch 90] [--warps 8] [--blocks 1] [--taken 0,2] [--branches]
                   [--table-clocks 40]

FILE: a .cu of common/backend/cuda/kernels, without its end. KERNEL: its name as in budgets.txt. The loop's
forward branches are numbered (--branches lists them); those named by --taken are taken, which leaves out what they
skip: masks of the last pieces, or folds that come every fourth time. Needs nvcc and nvdisasm, as kernel_check.py.

The model has one multiprocessor's parts: tensor cores, FMA, ALU and special functions by scheduler, and for all
together the shared memory (128 bytes a clock, 64 on a T4), which loads, stores and asynchronous copies use. Copies
take L2_CLOCKS from their issue to their group's wait; other loads take --table-clocks, as those of small tables in L1
do, so loops that load their operands to registers look too fast. Not modelled: instruction caches, banks of registers, predicates and
uniform registers, conflicts of shared memory, rates of L2. Sources of the rates: arXiv 2402.13499 and 2501.12084,
which measure Hopper (mma.sync reaches some 62 % of its tensor cores), and NVIDIA's tuning guides.
"""

import argparse
import collections
import dataclasses
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import kernel_check
import kernel_rules
import machine_code

SCHEDULERS = 4
PRODUCT_CLOCKS = {75: 16.0, 80: 8.0, 90: 6.4}  # of an m16n8k16 on a scheduler's tensor core
PRODUCT_LATENCY = 33
SHARED_BYTES = {75: 64, 80: 128, 90: 128}  # a clock
SHARED_LATENCY = 24
QUEUE = 10  # instructions of a scheduler that wait for shared memory, beyond which it issues no more
TABLE_LATENCY = 40  # of loads from global memory: of small tables, which L1 holds
L2_CLOCKS = 600
BARRIER_LATENCY = 20
ALU_LATENCY = 5
PIPE_CLOCKS = {"fma": 1, "imad": 2, "alu": 2, "special": 8}  # before sm_90 fma takes 2
FMA = {"FADD", "FMUL", "FFMA"}
IGNORED = {"NOP", "WARPSYNC", "BSSY", "BSYNC", "BRA"}  # an issue slot alone
REGISTER = re.compile(r"(?<![U\w])R(\d+)\b")


@dataclasses.dataclass
class Step:
    """An instruction as the model sees it."""
    kind: str
    size: float = 0  # bytes of shared memory, or m16n8k16 products
    to: tuple = ()
    reads: frozenset = frozenset()


def split_operands(text):
    return [part.strip() for part in re.split(r",(?![^\[(]*[\])])", text)] if text else []


def wide(operand, count):
    """The registers of an operand that begins at a register."""
    match = re.fullmatch(r"[-|~]*R(\d+)(?:\.\w+)*\|?", operand)
    return tuple(range(int(match.group(1)), int(match.group(1)) + count)) if match else ()


def step_of(instruction):
    opcode, name = instruction.opcode, instruction.opcode.split(".")[0]
    operands = split_operands(instruction.operands)
    every = frozenset(int(number) for number in REGISTER.findall(instruction.operands))
    for prefix, (count, (a, b, c)) in machine_code.PRODUCTS.items():
        if opcode.startswith(prefix):
            reads = frozenset(wide(operands[1], a) + wide(operands[2], b) + wide(operands[3], c))
            return Step("product", count / 2, wide(operands[0], 4), reads)
    if name in ("LDS", "LDSM"):
        size = 16 if name == "LDSM" else machine_code.width(opcode)
        to = wide(operands[0], size // 4)
        if not to:
            return Step("nothing")
        return Step("shared", size * 32, to, every - set(to[:1]))
    if name in ("STS", "ATOMS"):
        return Step("shared", machine_code.width(opcode) * 32, (), every)
    if name == "SHFL":
        return Step("shared", 4 * 32, wide(operands[1], 1), every - set(wide(operands[1], 1)))
    if name == "LDGSTS":
        return Step("copy", machine_code.width(opcode) * 32, (), every)
    if name in ("LDG", "LDC"):
        to = wide(operands[0], machine_code.width(opcode) // 4)
        return Step("global", 0, to, every - set(to[:1]))
    if name == "LDGDEPBAR":
        return Step("commit")
    if name == "DEPBAR":
        return Step("await", int(operands[1], 16))
    if name == "BAR":
        return Step("barrier")
    if name in IGNORED or name.startswith("U") or name == "R2UR":
        return Step("nothing")
    to = wide(operands[0], 2 if ".WIDE" in opcode or name == "CS2R" else 1) if operands else ()
    reads = frozenset(int(number) for number in REGISTER.findall(",".join(operands[1:] if to else operands)))
    kind = "fma" if name in FMA else {"IMAD": "imad", "MUFU": "special"}.get(name, "alu")
    return Step(kind, 0, to, reads)


class Multiprocessor:
    """Runs `blocks` blocks of `warps` warps through a loop."""

    def __init__(self, steps, arch, warps, blocks, table_latency=TABLE_LATENCY):
        self.steps, self.arch, self.warps, self.table_latency = steps, arch, warps, table_latency
        count = warps * blocks
        self.at, self.rounds = [0] * count, [0] * count
        self.ready = [700 * (warp // warps) for warp in range(count)]  # blocks do not begin together
        self.registers = [collections.defaultdict(int) for _ in range(count)]
        self.groups, self.open_group = [[] for _ in range(count)], [0] * count
        self.at_barrier = [False] * count
        self.pipes = [collections.defaultdict(float) for _ in range(SCHEDULERS)]
        self.queues = [[] for _ in range(SCHEDULERS)]
        self.shared_free = 0.0
        self.waits = collections.Counter()

    def run(self, rounds, first):
        """Clocks a round, of those from `first` on: until the last warp has done with as many."""
        now, start, turn = 0, None, [0] * SCHEDULERS
        while min(self.rounds) < rounds:
            for scheduler in range(SCHEDULERS):
                mine = range(scheduler, len(self.at), SCHEDULERS)
                for offset in range(len(mine)):
                    which = (turn[scheduler] + offset) % len(mine)
                    warp = mine[which]
                    if self.at_barrier[warp]:
                        self.waits[self.at[warp] - 1, "its block"] += 1
                    elif self.ready[warp] <= now and self.issue(warp, scheduler, now):
                        turn[scheduler] = which + 1  # the next warp's turn
                        break
            if start is None and min(self.rounds) == first:
                start = now
            now += 1
        return (now - start) / (rounds - first)

    def issue(self, warp, scheduler, now):
        step, registers = self.steps[self.at[warp]], self.registers[warp]
        reason = self.reason(step, warp, registers, scheduler, now)
        if reason:
            self.waits[self.at[warp], reason] += 1
            return False
        for register in step.to:
            registers[register] = self.take(step, warp, scheduler, now)
        if not step.to:
            self.take(step, warp, scheduler, now)
        self.ready[warp] = max(self.ready[warp], now + 1)
        self.at[warp] += 1
        if self.at[warp] == len(self.steps):
            self.at[warp] = 0
            self.rounds[warp] += 1
            self.ready[warp] += 5  # the branch back
        return True

    def reason(self, step, warp, registers, scheduler, now):
        """What the step waits for, or None."""
        waits_for = step.reads if step.kind == "product" else step.reads.union(step.to)
        if any(registers[register] > now for register in waits_for):
            return "registers"
        if step.kind in ("shared", "copy"):
            self.queues[scheduler] = [end for end in self.queues[scheduler] if end > now]
            return "shared memory" if len(self.queues[scheduler]) >= QUEUE else None
        if step.kind == "await":
            groups = self.groups[warp]
            done = len(groups) - int(step.size)
            return "copies" if done > 0 and groups[done - 1] > now else None
        pipe = "fma" if step.kind == "imad" else step.kind
        return pipe if self.pipes[scheduler][pipe] > now else None

    def take(self, step, warp, scheduler, now):
        """Occupies what the step needs, once a step; when its registers are there."""
        key = (warp, self.at[warp], self.rounds[warp])
        if getattr(self, "taken", None) != key:
            self.taken, self.done = key, self.occupy(step, warp, scheduler, now)
        return self.done

    def occupy(self, step, warp, scheduler, now):
        pipes = self.pipes[scheduler]
        if step.kind == "product":
            # The rate is kept where it is not whole clocks.
            begin = pipes["product"] if pipes["product"] > now - 1 else now
            pipes["product"] = begin + step.size * PRODUCT_CLOCKS[self.arch]
            return now + PRODUCT_LATENCY
        if step.kind in ("shared", "copy"):
            self.shared_free = max(self.shared_free, now) + step.size / SHARED_BYTES[self.arch]
            self.queues[scheduler].append(self.shared_free)
            if step.kind == "copy":
                self.open_group[warp] = now + L2_CLOCKS
            return self.shared_free + SHARED_LATENCY
        if step.kind == "commit":
            self.groups[warp] = self.groups[warp][-8:] + [self.open_group[warp]]
        elif step.kind == "barrier":
            block = range(warp // self.warps * self.warps, (warp // self.warps + 1) * self.warps)
            self.at_barrier[warp] = True
            if all(self.at_barrier[other] for other in block):
                for other in block:
                    self.at_barrier[other] = False
                    self.ready[other] = max(self.ready[other], now + BARRIER_LATENCY)
        elif step.kind in PIPE_CLOCKS:
            clocks = 2 if step.kind == "fma" and self.arch < 90 else PIPE_CLOCKS[step.kind]
            pipes["fma" if step.kind == "imad" else step.kind] = now + clocks
        return now + (self.table_latency if step.kind == "global" else ALU_LATENCY)


def forward_branches(body, labels, first):
    """(index in the body, index behind what it skips) of each."""
    found = []
    for at, instruction in enumerate(body):
        target = re.search(r"`\((\.L_\w+)\)", instruction.operands)
        if instruction.is_a("BRA") and target:
            end = labels[target.group(1)] - first
            if at < end <= len(body):
                found.append((at, end))
    return found


def without_skipped(body, branches, taken):
    ends = {branches[number][0]: branches[number][1] for number in taken}
    at, left = 0, []
    while at < len(body):
        left.append(body[at])
        at = ends.get(at, at + 1)
    return left


def code_of(path, kernel, arch):
    nvcc = kernel_check.find_nvcc()
    if nvcc is None:
        sys.exit("loop_clocks: no nvcc; it comes with the CUDA toolkit, version 13")
    with tempfile.TemporaryDirectory() as directory:
        cubin = str(Path(directory) / "kernels.cubin")
        kernel_check.run([nvcc, *kernel_check.FLAGS, "-I", str(kernel_check.ROOT), f"-arch=sm_{arch}", "-cubin",
                          str(path), "-o", cubin])
        code = machine_code.parse(kernel_check.run([kernel_check.find_nvdisasm(nvcc), "-c", cubin]))
    names = subprocess.run(["c++filt", *code], stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    for mangled, name in zip(code, names):
        if kernel_rules.short_name(name) == kernel:
            return code[mangled]
    sys.exit(f"loop_clocks: {path} has no kernel {kernel}; it has "
             f"{', '.join(sorted(map(kernel_rules.short_name, names)))}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("kernel")
    parser.add_argument("--arch", type=int, default=90, choices=sorted(PRODUCT_CLOCKS))
    parser.add_argument("--warps", type=int, default=8, help="of a block")
    parser.add_argument("--blocks", type=int, default=1, help="of a multiprocessor")
    parser.add_argument("--taken", default="", help="numbers of forward branches, with commas")
    parser.add_argument("--branches", action="store_true")
    parser.add_argument("--table-clocks", type=int, default=TABLE_LATENCY, help="of a load from global memory")
    arguments = parser.parse_args()
    instructions, labels = code_of(kernel_check.KERNELS / f"{arguments.file}.cu", arguments.kernel, arguments.arch)
    hot = machine_code.hot_loop(instructions, labels)
    if hot is None:
        sys.exit(f"loop_clocks: {arguments.kernel} has no loop with products or loads")
    first = next(at for at in range(len(instructions)) if instructions[at] is hot[0])
    branches = forward_branches(hot, labels, first)
    if arguments.branches:
        for number, (at, end) in enumerate(branches):
            skipped = collections.Counter(i.opcode.split(".")[0] for i in hot[at + 1:end]).most_common(4)
            print(f"{number}: at {at}, skips {end - at - 1}: {', '.join(f'{n} {name}' for name, n in skipped)}")
        return 0
    body = without_skipped(hot, branches, [int(number) for number in arguments.taken.split(",") if number])
    steps = [step_of(instruction) for instruction in body]
    machine = Multiprocessor(steps, arguments.arch, arguments.warps, arguments.blocks, arguments.table_clocks)
    clocks = machine.run(rounds=24, first=8)
    count = arguments.warps * arguments.blocks
    products = sum(step.size for step in steps if step.kind == "product") * count
    shared = sum(step.size for step in steps if step.kind in ("shared", "copy")) * count
    print(f"{arguments.kernel} at sm_{arguments.arch}, {arguments.blocks} x {arguments.warps} warps: {clocks:.0f} "
          f"clocks a round; at least {len(steps) * count / SCHEDULERS:.0f} for {len(steps)} instructions, "
          f"{products * PRODUCT_CLOCKS[arguments.arch] / SCHEDULERS:.0f} for products, "
          f"{shared / SHARED_BYTES[arguments.arch]:.0f} for shared memory")
    for (at, reason), waited in machine.waits.most_common(5):
        print(f"  {waited / 24 / count:.0f} clocks a warp wait for {reason} at {body[at].opcode} ({at})")
    return 0


if __name__ == "__main__":
    sys.exit(main())
