"""What kernel_check.py asks of the compiler's output: parsing, occupancy, and the rules as functions
of text, so that the self-test can show each of them fail. No compiler in here.
"""

import dataclasses
import re

import machine_code

# ---- A kernel as the compiler reports it ---------------------------------------------------------


@dataclasses.dataclass
class Report:
    """Of one kernel at one architecture. Sizes in bytes."""
    registers: int = 0
    spills: int = 0  # stores and loads together
    stack: int = 0
    shared: int = 0  # static
    threads: int = 0  # of a block at most: .maxntid
    ptx: str = ""  # the body
    source: str = ""  # the .cu's name
    code: machine_code.Facts = machine_code.Facts()


def parse_ptxas(log):
    """ptxas -v: mangled name -> Report."""
    reports = {}
    current = None
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function '(\w+)'", line):
            current = reports.setdefault(match.group(1), Report())
        elif current and (match := re.search(
                r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line)):
            current.stack = int(match.group(1))
            current.spills = int(match.group(2)) + int(match.group(3))
        elif current and (match := re.search(r"Used (\d+) registers", line)):
            current.registers = int(match.group(1))
            if shared := re.search(r"(\d+) bytes smem", line):
                current.shared = int(shared.group(1))
            current = None
    return reports


def parse_ptx(text):
    """PTX: mangled name -> (threads of a block at most, body)."""
    kernels = {}
    for match in re.finditer(r"^(?:\.visible |\.weak )*\.entry (\w+)\((.*?)^\}", text,
                             re.MULTILINE | re.DOTALL):
        header, _, body = match.group(2).partition("\n{")
        threads = 1
        if bound := re.search(r"\.maxntid (\d+)(?:, (\d+), (\d+))?", header):
            for factor in bound.groups():
                threads *= int(factor or 1)
        kernels[match.group(1)] = (threads if bound else 0, body)
    return kernels


def short_name(demangled):
    """void a::(anonymous namespace)::K<a::Half, 64>(a::Args) -> K<Half, 64>"""
    name = re.sub(r"(\w+|\(anonymous namespace\))::", "", demangled.strip())
    name = re.sub(r"^void ", "", name).replace("> >", ">>")
    if name.endswith(")"):
        depth = 0
        for at in range(len(name) - 1, -1, -1):
            depth += {")": 1, "(": -1}.get(name[at], 0)
            if depth == 0:
                return name[:at]
    return name


# ---- Occupancy -----------------------------------------------------------------------------------

# CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
T4 = {"registers": 65536, "shared": 65536, "threads": 1024, "blocks": 16}


def t4_blocks(registers, shared, threads):
    """Blocks that a T4's SM holds at once, and what ends it."""
    warps = -(-threads // 32)
    # Registers are given to a warp by the 256, to one of four partitions of the SM.
    per_warp = -(-max(registers, 1) * 32 // 256) * 256
    limits = {
        "registers": 4 * (T4["registers"] // 4 // per_warp) // warps,
        "shared memory": T4["shared"] // (-(-shared // 256) * 256) if shared else 10**9,
        "threads": T4["threads"] // (warps * 32),
        "blocks": T4["blocks"],
    }
    why = min(limits, key=limits.get)
    return limits[why], why


# ---- Budgets -------------------------------------------------------------------------------------

ARCHITECTURES = (75, 80, 86, 89, 90, 100, 120)
NOT_LAUNCHED = "-"


@dataclasses.dataclass
class Budget:
    dynamic_shared: int  # bytes that the launch asks for, at most
    t4_blocks: int  # that a T4's SM must hold at once, at least
    registers: dict  # architecture -> at most; None: not launched there
    marks: frozenset  # of MARKS


MARKS = {
    "mma": "products on the tensor cores: m16n8k8 of halves at sm_75, m16n8k16 from sm_80 on",
    "nc": "16-byte loads through the read-only path",
    "async": "shared memory filled by cp.async from sm_80 on, by 16-byte loads at sm_75",
    "f16x2": "weights made two at a time by fma.rn and mul.rn of halves: exact, then rounded once",
    "bf16x2": "weights made two at a time by fma.rn of bfloat16's: exact, then rounded once",
    "flag": "in machine code, an atomic between two fences tells other blocks of stores",
    "spills": "ptxas spills a few registers from sm_100 on, at most 128 bytes; earlier none",
}


def parse_budgets(text):
    """Short name -> Budget. ValueError says the line."""
    budgets = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 4 + len(ARCHITECTURES):
            raise ValueError(f"line {number} has {len(fields)} fields, expected "
                             f"{4 + len(ARCHITECTURES)}")
        name, shared, blocks, *registers, marks = fields
        if name in budgets:
            raise ValueError(f"line {number}: {name} has a budget already")
        if unknown := set(marks.split()) - set(MARKS):
            raise ValueError(f"line {number}: unknown mark {sorted(unknown)[0]}, expected of "
                             f"{', '.join(MARKS)}")
        budgets[name] = Budget(int(shared), int(blocks),
                               {arch: None if r == NOT_LAUNCHED else int(r)
                                for arch, r in zip(ARCHITECTURES, registers)},
                               frozenset(marks.split()))
    return budgets


def format_budgets(budgets, head):
    rows = [[name, str(b.dynamic_shared), str(b.t4_blocks),
             *(NOT_LAUNCHED if b.registers[a] is None else str(b.registers[a])
               for a in ARCHITECTURES), " ".join(sorted(b.marks))]
            for name, b in sorted(budgets.items())]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    return head + "".join(
        " | ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() + "\n" for row in rows)


# ---- The rules -----------------------------------------------------------------------------------

# Kernels that are nothing without the tensor cores; the others' marks are their budgets' affair.
MUST_USE_TENSOR_CORES = ("Attention", "MatMul")
# Weights of tokens are integers made by double arithmetic (common/backend/exp_log.h).
F64_SOURCES = ("sampling.cu",)

MMA = {75: r"mma\.sync\.aligned\.m16n8k8\.row\.col\.f32\.f16\.f16\.f32",
       80: r"mma\.sync\.aligned\.m16n8k16\.row\.col\.f32\.(f16\.f16|bf16\.bf16)\.f32"}
READ_ONLY_16 = r"ld\.global\.nc\.(L\S*\.)?v4\."
COPY_ASYNC = r"cp\.async\.cg\.shared\.global"

# What a mark allows, and asks for.
IN_16_BITS = {"f16x2": ("fma.rn.f16x2", "mul.rn.f16x2"), "bf16x2": ("fma.rn.bf16x2",)}
# (pattern of an instruction, what is wrong with it)
NEVER = [
    # Without a rounding mode ptxas may fuse a product and a sum.
    (r"(add|sub|mul|fma)\.(ftz\.|sat\.)*(f32|f64)\b",
     "may be contracted: expected a rounding mode (-fmad=false and simt.h's Add, Mul, Fma)"),
    (r"mad\.(rn\.|ftz\.|sat\.)*f(32|64)\b", "is a fused sum that no Fma wrote"),
    (r"(add|sub|mul|fma|max|min)\.\S*(f16|bf16)(x2)?\b", "is arithmetic in 16 bits, expected f32"),
    (r"mma\.\S*\.f16\.f16\.f16\.f16\b", "accumulates in 16 bits, expected f32"),
    (r"(div\.full|(div|sqrt|rsqrt|rcp|sin|cos|lg2|tanh)\.approx)\S*",
     "is rounded as the chip likes, expected .rn (Divide, SquareRoot)"),
    (r"atom\.((\w+\.)*shared(::cta)?\.)?(add\.[us]64|cas\.)",
     "is a loop of compare-and-swap in shared memory, expected 32-bit sums"),
    (r"(call|call\.uni)\b", "calls a function, expected all of a kernel in line"),
]


def instructions(body):
    """The opcode of each instruction, with its suffixes."""
    # Inline assembly may put several on a line, and in braces.
    return re.findall(r"(?:^|[;{])\s*(?:@!?%?\w+\s+)?([a-z]\w*(?:\.[\w:]+)*)\b", body, re.MULTILINE)


def most_spilled(budget, arch):
    """Bytes."""
    return 128 if "spills" in budget.marks and arch >= 100 else 0


def kernel_breaches(name, arch, report, budget):
    """Yields what is wrong with one kernel at one architecture; `budget` is its own."""
    at = f"{name} at sm_{arch}"
    opcodes = set(instructions(report.ptx))

    def uses(pattern):
        return any(re.match(pattern, opcode) for opcode in opcodes)

    launched = budget.registers[arch] is not None
    if uses("trap") and launched:
        yield f"{at}: traps, but its budget says that it is launched there"
    if not launched:
        if not uses("trap"):
            yield f"{at}: its budget says that it isn't launched there, but it doesn't trap"
        return
    if report.registers > budget.registers[arch]:
        yield f"{at}: {report.registers} registers, budget {budget.registers[arch]}"
    most = most_spilled(budget, arch)
    if report.spills > most:
        yield f"{at}: {report.spills} bytes of spills, expected {most or 'none'}"
    elif not report.spills and (report.stack or ".local" in report.ptx):
        yield f"{at}: {report.stack} bytes of stack, expected none (an array indexed by a variable?)"
    if "baton_shared_memory" in report.ptx and not budget.dynamic_shared:
        yield f"{at}: uses dynamic shared memory, but its budget says 0 bytes"
    if not report.threads:
        yield f"{at}: no launch bounds, expected BATON_KERNEL(threads)"
    elif arch == 75:
        shared = report.shared + budget.dynamic_shared
        blocks, why = t4_blocks(report.registers, shared, report.threads)
        if blocks < budget.t4_blocks:
            yield (f"{at}: an SM of a T4 holds {blocks} blocks, for lack of {why}, expected "
                   f"{budget.t4_blocks} ({report.registers} registers, {shared} bytes of shared "
                   f"memory, {report.threads} threads)")
    yield from instruction_breaches(at, name, arch, report, budget, opcodes, uses)


def instruction_breaches(at, name, arch, report, budget, opcodes, uses):
    allowed = {opcode for mark, opcodes in IN_16_BITS.items() if mark in budget.marks
               for opcode in opcodes}
    for opcode in sorted(allowed):
        if opcode not in opcodes:
            yield f"{at}: lacks {opcode}"
    for pattern, wrong in NEVER:
        for opcode in sorted(opcodes - allowed):
            if re.match(pattern, opcode):
                yield f"{at}: {opcode} {wrong}"
    if report.source not in F64_SOURCES:
        for opcode in sorted(opcodes):
            if re.search(r"\.f64\b", opcode):
                yield f"{at}: {opcode}, expected no double precision outside {F64_SOURCES[0]}"
    if name.startswith(MUST_USE_TENSOR_CORES) and "mma" not in budget.marks:
        yield f"{at}: its budget lacks the mark mma"
    new = arch >= 80
    if "mma" in budget.marks:
        if not uses(MMA[80 if new else 75]):
            yield f"{at}: lacks {MMA[80 if new else 75]}"
        if new and uses(r"mma\.\S*m16n8k8"):
            yield f"{at}: takes m16n8k8, expected m16n8k16 alone"
    if ("nc" in budget.marks or "async" in budget.marks and not new) and not uses(READ_ONLY_16):
        yield f"{at}: lacks {READ_ONLY_16}"
    if "async" in budget.marks and new:
        if not uses(COPY_ASYNC):
            yield f"{at}: lacks {COPY_ASYNC}"
        if not uses(r"cp\.async\.wait_group"):
            yield f"{at}: waits for no cp.async"
    if arch >= 90:
        yield from early_breaches(at, report.ptx)
    if "flag" in budget.marks and not report.code.flags:
        yield (f"{at}: no atomic has a fence (MEMBAR) on both sides, expected one between stores and "
               "what other blocks load")
    if not new:
        for pattern, what in ((r"cp\.async", "cp.async"), (r"mma\.\S*bf16", "a product of bf16"),
                              (r"mma\.\S*m16n8k16", "m16n8k16")):
            if uses(pattern):
                yield f"{at}: has {what}, which sm_75 lacks"


def early_breaches(at, ptx):
    """From sm_90 on a kernel begins before the one before it has ended: what stands before its wait."""
    order = instructions(ptx)
    wait = "griddepcontrol.wait"
    if wait not in order:
        yield f"{at}: lacks {wait} (AwaitPrevious)"
        return
    for opcode in order[:order.index(wait)]:
        if re.match(r"(ld(?!\.param)|st|atom|red|cp|bar|mma|ret|trap|shfl)\b", opcode):
            yield f"{at}: {opcode} before {wait}, expected prefetches alone"


def check(reports, budgets):
    """reports: {(name, arch): Report}. Yields every breach."""
    names = {name for name, _ in reports}
    for name in sorted(names - set(budgets)):
        yield f"{name}: has no budget (kernel_check.py --all --write proposes one)"
    for name in sorted(set(budgets) - names):
        yield f"{name}: has a budget, but there is no such kernel"
    for (name, arch), report in sorted(reports.items()):
        if name in budgets:
            yield from kernel_breaches(name, arch, report, budgets[name])


def proposal(name, reports, before):
    """A budget that these reports keep: registers as they are given out, by the eight. What a
    compiler cannot know is taken from the budget before."""
    registers = {}
    marks = set(before.marks) if before else set()
    shared = before.dynamic_shared if before else 0
    blocks = 1
    for arch in ARCHITECTURES:
        report = reports.get((name, arch))
        if report is None:
            registers[arch] = before.registers[arch] if before else None
            continue
        opcodes = set(instructions(report.ptx))
        if report.code.flags:
            marks.add("flag")
        registers[arch] = None if "trap" in opcodes else -(-report.registers // 8) * 8
        if arch == 75 and registers[75] is not None:
            blocks = t4_blocks(registers[75], report.shared + shared, report.threads)[0]
        for opcode in opcodes:
            if arch >= 80 and re.match(MMA[80], opcode):
                marks.add("mma")
            if arch >= 80 and re.match(COPY_ASYNC, opcode):
                marks.add("async")
            if arch >= 80 and not before and re.match(READ_ONLY_16, opcode):
                marks.add("nc")
    return Budget(shared, before.t4_blocks if before else min(blocks, 2), registers,
                  frozenset(marks))


def table(reports, budgets):
    """Markdown, a line a kernel."""
    lines = ["| kernel | threads | registers sm_75 | sm_90 | shared bytes | T4: blocks an SM | warps "
             "of 32 | ends at | marks |",
             "|---|---|---|---|---|---|---|---|---|"]
    for name in sorted(budgets):
        old, new = reports.get((name, 75)), reports.get((name, 90))
        if new is None:
            continue
        budget = budgets[name]
        shared = new.shared + budget.dynamic_shared
        cells = [f"`{name}`", new.threads, NOT_LAUNCHED, new.registers, f"{shared:,}",
                 NOT_LAUNCHED, NOT_LAUNCHED, NOT_LAUNCHED, " ".join(sorted(budget.marks))]
        if old and budget.registers[75] is not None:
            blocks, why = t4_blocks(old.registers, shared, old.threads)
            cells[2] = old.registers
            cells[5:8] = [blocks, blocks * -(-old.threads // 32), why]
        lines.append("| " + " | ".join(str(cell) for cell in cells) + " |")
    return "\n".join(lines) + "\n"
