"""What kernel_check.py asks of the machine code (SASS) that nvdisasm prints: the hot loop's instructions,
products and loads, the bytes that it has in flight, spills, and the fences of flags. Functions of text, so
that the self-test can show each rule fail. No compiler in here.

The hot loop is the shortest of the loops with the most products on the tensor cores, or, in a kernel
without any, the innermost loop with the most bytes loaded from global memory. A loop around two ways through the same
products is not it: so a block takes one set of columns after the other. Its instructions are counted as they stand:
a branch around a part of the loop counts that part.
"""

import dataclasses
import re

ARCHITECTURES = (75, 80, 90)  # 86 and 89 differ from 80 by a few instructions

INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][\w.]*)\s*(.*?)\s*;")
LABEL = re.compile(r"^(\.L_\w+):")
# m16n8k8 products in one instruction, and the registers of its operands: a, b, c.
PRODUCTS = {"HMMA.1688": (1, (2, 1, 4)), "HMMA.16816": (2, (4, 2, 4))}


@dataclasses.dataclass
class Instruction:
    predicate: str
    opcode: str
    operands: str

    def is_a(self, *families):
        return self.opcode.split(".")[0] in families


@dataclasses.dataclass(frozen=True)
class Facts:
    """Of one kernel at one architecture. Bytes are of one lane."""
    instructions: int = 0  # of the hot loop; of the kernel if it has no loop that loads
    products: int = 0  # m16n8k8 in the hot loop
    loaded: int = 0  # bytes from global memory in the hot loop, cp.async included
    in_flight: int = 0  # the most bytes that were asked for and not yet used, around the loop
    spills: int = 0  # instructions on local memory, in the whole kernel
    flags: int = 0  # fenced on both sides

    def limits(self):
        return (self.instructions, self.products, self.loaded, self.in_flight)


def parse(text):
    """nvdisasm -c: mangled name -> (instructions, label -> index)."""
    kernels = {}
    for line in text.splitlines():
        if match := re.match(r"\.text\.(\w+):", line):
            instructions, labels = kernels.setdefault(match.group(1), ([], {}))
        elif not kernels:
            continue
        elif match := LABEL.match(line):
            labels[match.group(1)] = len(instructions)
        elif match := INSTRUCTION.match(line):
            instructions.append(Instruction(match.group(1) or "", match.group(2), match.group(3)))
    return kernels


def width(opcode):
    """Bytes that a memory instruction moves for a lane."""
    suffixes = opcode.split(".")
    for suffix, size in (("128", 16), ("64", 8), ("U8", 1), ("S8", 1), ("U16", 2), ("S16", 2)):
        if suffix in suffixes:
            return size
    return 4


def loaded_bytes(instruction):
    return width(instruction.opcode) if instruction.is_a("LDG", "LDGSTS") else 0


def products_of(instruction):
    for prefix, (count, _) in PRODUCTS.items():
        if instruction.opcode.startswith(prefix):
            return count
    return 0


def loops(instructions, labels):
    """(first, last) of each: a branch back and where it goes."""
    found = {}
    for at, instruction in enumerate(instructions):
        target = re.search(r"`\((\.L_\w+)\)", instruction.operands)
        if instruction.is_a("BRA") and target:
            first = labels.get(target.group(1), at + 1)
            if first < at:  # a branch to itself pads the end
                found[first] = max(at, found.get(first, 0))
    return sorted(found.items())


def hot_loop(instructions, labels):
    """The instructions of the hot loop, or None."""
    ranges = [(first, last, instructions[first:last + 1]) for first, last in loops(instructions, labels)]
    with_products = [(first, last, sum(map(products_of, body)), body) for first, last, body in ranges
                     if any(map(products_of, body))]
    if with_products:
        def is_around(loop):
            inside = [other for other in with_products
                      if loop[0] <= other[0] and other[1] <= loop[1] and other is not loop]
            return any(one[2] == other[2] and one[1] < other[0] for one in inside for other in inside)
        hot = [loop for loop in with_products if not is_around(loop)]
        return max(hot, key=lambda loop: (loop[2], -len(loop[3])))[3]
    with_loads = [loop for loop in ranges if any(map(loaded_bytes, loop[2]))]
    inner = [body for first, last, body in with_loads
             if not any(first <= other[0] and other[1] <= last and len(other[2]) < len(body)
                        for other in with_loads)]
    return max(inner, default=None, key=lambda body: sum(map(loaded_bytes, body)))


def registers(operand, count):
    match = re.fullmatch(r"-?\|?R(\d+)(?:\.\w+)*\|?", operand)
    return {int(match.group(1)) + i for i in range(count)} if match else set()


def used_registers(instruction):
    """What the instruction reads; addresses count as 64 bits."""
    operands = [operand.strip() for operand in instruction.operands.split(",")]
    reads = set()
    for inside in re.findall(r"\[(.*?)\]", instruction.operands):
        for number in re.findall(r"\bR(\d+)", inside):
            reads |= {int(number), int(number) + 1}
    if instruction.is_a("ST", "STG", "STS", "STL", "RED", "ATOM", "ATOMG", "ATOMS"):
        return reads | registers(operands[-1], max(1, width(instruction.opcode) // 4))
    for prefix, (_, counts) in PRODUCTS.items():
        if instruction.opcode.startswith(prefix):
            for operand, count in zip(operands[1:], counts):
                reads |= registers(operand, count)
            return reads
    wide = 2 if ".WIDE" in instruction.opcode or instruction.is_a("DADD", "DMUL", "DFMA") else 1
    for operand in operands[1:]:
        reads |= registers(operand, wide)
    return reads


def bytes_in_flight(body):
    """The most bytes asked for and not yet used at any place, going twice around the loop: what the
    second round uses may have been asked for in the first. cp.async counts until the wait that names its
    group."""
    waiting, most = {}, 0  # number -> (registers left, bytes)
    groups, open_group = [], 0
    for number, instruction in enumerate(body + body):
        read = used_registers(instruction)
        for load, (held, _) in list(waiting.items()):
            if held & read:
                del waiting[load]
        if instruction.is_a("LDG"):
            size = width(instruction.opcode)
            held = registers(instruction.operands.split(",")[0].strip(), max(1, size // 4))
            if held:
                # What overwrites a load that was not used is another round's.
                waiting = {load: kept for load, kept in waiting.items() if not kept[0] & held}
                waiting[number] = (held, size)
        elif instruction.is_a("LDGSTS"):
            open_group += width(instruction.opcode)
        elif instruction.is_a("LDGDEPBAR"):
            groups.append(open_group)
            open_group = 0
        elif instruction.is_a("DEPBAR") and (match := re.search(r"SB0, (0x[0-9a-f]+|\d+)",
                                                                instruction.operands)):
            kept = int(match.group(1), 0)
            groups = groups[len(groups) - kept:] if kept else []
        most = max(most, sum(size for _, size in waiting.values()) + sum(groups) + open_group)
    return most


def fenced_flags(instructions):
    """Atomics that tell other blocks of stores: a fence (MEMBAR) between the stores and the atomic, and
    another between it and the loads of what other blocks stored. The emulations find wrong orders of
    execution; this finds a fence that a compiler dropped or moved."""
    order = "".join(
        "S" if instruction.is_a("STG") else "F" if instruction.is_a("MEMBAR") else
        "A" if instruction.is_a("ATOM", "ATOMG") else
        "L" if instruction.is_a("LDG") and "STRONG" in instruction.opcode else ""
        for instruction in instructions)
    return len(re.findall("S[^S]*FAF[^L]*L", order))


def facts_of(instructions, labels):
    loop = hot_loop(instructions, labels)
    body = loop or instructions
    return Facts(instructions=len(body),
                 products=sum(map(products_of, body)),
                 loaded=sum(map(loaded_bytes, body)),
                 in_flight=bytes_in_flight(body),
                 spills=sum(instruction.is_a("LDL", "STL") for instruction in instructions),
                 flags=fenced_flags(instructions))


# ---- Budgets -------------------------------------------------------------------------------------


@dataclasses.dataclass
class Budgets:
    release: str  # of nvcc: another compiler's code is not judged
    limits: dict  # (short name, architecture) -> (instructions, products, loaded, in_flight)


def parse_budgets(text):
    """ValueError says the line."""
    budgets = Budgets("", {})
    for number, line in enumerate(text.splitlines(), 1):
        if match := re.match(r"# nvcc ([\d.]+)$", line):
            budgets.release = match.group(1)
        if not line.strip() or line.startswith("#"):
            continue
        fields = [field.strip() for field in line.split("|")]
        if len(fields) != 1 + len(ARCHITECTURES):
            raise ValueError(f"line {number} has {len(fields)} fields, expected "
                             f"{1 + len(ARCHITECTURES)}")
        for arch, field in zip(ARCHITECTURES, fields[1:]):
            if (fields[0], arch) in budgets.limits:
                raise ValueError(f"line {number}: {fields[0]} has a budget already")
            if field == "-":
                continue
            limits = tuple(field.split())
            if len(limits) != 4 or not all(limit.isdigit() for limit in limits):
                raise ValueError(f"line {number}: {field!r}, expected four numbers or -")
            budgets.limits[fields[0], arch] = tuple(map(int, limits))
    return budgets


def format_budgets(facts, release, head):
    """facts: {(name, arch): Facts}, of kernels that are launched there."""
    rows = []
    for name in sorted({name for name, _ in facts}):
        cells = [facts.get((name, arch)) for arch in ARCHITECTURES]
        rows.append([name, *(" ".join(map(str, f.limits())) if f else "-" for f in cells)])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))] if rows else []
    return (head + f"# nvcc {release}\n" +
            "".join(" | ".join(cell.ljust(w) for cell, w in zip(row, widths)).rstrip() + "\n"
                    for row in rows))


def check(facts, budgets, release):
    """facts: {(short name, arch): Facts} of kernels that are launched there. Yields every breach."""
    for (name, arch), kernel in sorted(facts.items()):
        at = f"{name} at sm_{arch}"
        if kernel.spills:
            yield f"{at}: {kernel.spills} instructions on local memory, expected none"
        if arch not in ARCHITECTURES or release != budgets.release:
            continue
        if (name, arch) not in budgets.limits:
            yield f"{at}: has no budget of machine code (kernel_check.py --all --write proposes one)"
            continue
        instructions, products, loaded, in_flight = budgets.limits[name, arch]
        # The work of a round may change with the loop's shape: judged is what a unit of it costs.
        for unit, done, before in (("product", kernel.products, products),
                                   ("byte loaded", kernel.loaded, loaded)):
            if not done and not before:
                continue
            if not done or not before or kernel.instructions * before > instructions * done:
                yield (f"{at}: its hot loop takes {kernel.instructions} instructions for {done} "
                       f"of: {unit}; budget {instructions} for {before}")
            break
        if kernel.in_flight < in_flight:
            yield (f"{at}: its hot loop has {kernel.in_flight} bytes a lane in flight, "
                   f"budget {in_flight}")
    for name, arch in sorted(set(budgets.limits) - set(facts)):
        if any(other == arch for _, other in facts):
            yield f"{name} at sm_{arch}: has a budget of machine code, but there is no such kernel"


# ---- The table -----------------------------------------------------------------------------------

# How many weights of a product a lane has: four where rows of W are its first operand, two where they are
# its second. And how many products share them, by the number in the kernel's name: tiles of 8 rows of x, or
# rows of x, 16 a product.
WEIGHTS = ((r"Quantized(?:Rows|Gated)Kernel<\w+, \d, (\d)>", 4, 1),
           (r"MatMul(?:Rows|Gated)Kernel<\w+, (\d+)", 2, 16),
           (r"Normed(?:Rows|Gated)Kernel<", 2, 16),  # these two of up to 8 rows
           (r"QuantizedNormed(?:Rows|Gated)Kernel<", 4, 1))


def weights_a_round(name, products):
    """That a lane multiplies in a round of the hot loop, or 0."""
    for pattern, of_a_product, shared_by in WEIGHTS:
        if match := re.match(pattern, name):
            rows = int(match.group(1)) if match.groups() else 1
            return of_a_product * products // -(-rows // shared_by)
    return 0


# What a chip issues, in instructions of a lane a second, and what its memory reads, in bytes a second (both
# as docs/results/cuda.md takes them): multiprocessors x 4 warps of 32 lanes a clock x sustained clock.
CHIPS = {75: ("T4", 40 * 128 * 1.2e9, 249e9), 90: ("H200", 132 * 128 * 1.75e9, 4.3e12)}


def margin(name, arch, facts):
    """How many times as many bytes as the memory reads the hot loop's instructions would take, or None for
    kernels whose operands come from L2 or shared memory."""
    instructions, products, loaded, _ = facts
    weights = weights_a_round(name, products)
    quantized = re.match(r"Quantized\w+<\w+, (\d)[,>]", name)
    wanted = weights * (int(quantized.group(1)) / 8 if quantized else 2) if weights else loaded
    if "Tile" in name or not wanted:
        return None
    _, issued, memory = CHIPS[arch]
    return issued / instructions * wanted / memory


INTRODUCTION = """Machine code of each hot loop (`tests/cuda/machine_code.py` says what is counted; branches
around parts of the loop count as taken). Cost: instructions of a lane for a weight, or for 16 bytes loaded.
In flight: bytes of a lane asked for and not yet used, at most. Issue ÷ memory: how many times as many bytes
as the memory reads the instructions would take if each scheduler issued one every clock; below 1 they are
the limit, and not far above it they hide little of the memory's latency.
"""


def table(limits):
    """Markdown, a line for each kernel that has a hot loop with products or loads.
    limits: {(name, arch): (instructions, products, loaded, in_flight)}."""
    lines = ["| kernel | " + " | ".join(
        f"sm_{arch}: instructions | cost | in flight" for arch in ARCHITECTURES) + "".join(
            f" | {chip}: issue ÷ memory" for chip, _, _ in CHIPS.values()) + " |",
             "|---" * (1 + 3 * len(ARCHITECTURES) + len(CHIPS)) + "|"]
    for name in sorted({name for name, _ in limits}):
        cells = []
        for arch in ARCHITECTURES:
            instructions, products, loaded, in_flight = limits.get((name, arch), (0, 0, 0, 0))
            if not products and not loaded:
                cells += ["-"] * 3
                continue
            weights = weights_a_round(name, products)
            cost = (f"{instructions / weights:.1f} a weight" if weights else
                    f"{instructions * 16 / loaded:.0f} a 16 B" if loaded else
                    f"{instructions / products:.0f} a product")
            cells += [str(instructions), cost, str(in_flight)]
        for arch in CHIPS:
            times = margin(name, arch, limits[name, arch]) if (name, arch) in limits else None
            cells.append(f"{times:.2g}" if times else "-")
        if set(cells) != {"-"}:
            lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"
