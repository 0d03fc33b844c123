#!/usr/bin/env python3
"""Predicts decode steps: each kernel of a step takes the time of its bytes at the memory's rate, the part of its
instructions that does not overlap with them, and a head and tail: the launch, the first loads' way, the last block's
end. The last two are fitted to kernels that an H100 has timed (scripts/gpu-check --bench) and carried over to other
chips by their clocks; a chip without kernels that begin early has a gap more at each.

    predictions.py                     prints the table of docs/results/cuda.md
    predictions.py --fit FILE.jsonl    prints FITTED anew, from the rows of gpu-check; needs numpy
"""

import dataclasses
import json
import math
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "scripts"))
import t4_plans  # noqa: E402: the models' shapes

CONTEXT = 2048
BATCHES = {16: (1, 8, 32), 4: (1, 8, 32, 64)}  # by bits
STEPS = (("Qwen2.5-0.5B", 16), ("Qwen2.5-1.5B", 16), ("Qwen2.5-7B", 16), ("Qwen2.5-7B", 4))
GROUP_BYTES = 4 / 128  # of a weight of few bits


@dataclasses.dataclass(frozen=True)
class Chip:
    name: str
    memory: float  # bytes a second
    multiprocessors: int
    clock: float
    gap_us: float  # between nodes, where kernels do not begin early

    @property
    def clocks(self):
        return self.multiprocessors * self.clock


H100 = Chip("H100", 3.117e12, 132, 1.755e9, 0)
T4 = Chip("T4", 249e9, 40, 1.2e9, 0.6)

# By kind of kernel, of the H100's: microseconds of head and tail, and what its other work adds to the time of its
# bytes, as a share of that. `--fit` on the rows of 26 November 2026.
FITTED = {
    ("gated", 16, 8): (4.6, -0.01),
    ("gated", 16, 16): (5.3, 0.02),
    ("gated", 16, 32): (6.6, 0.33),
    ("gated", 8, 8): (4.6, 0.36),
    ("gated", 8, 16): (5.3, 0.43),
    ("gated", 8, 32): (6.6, 0.75),
    ("gated", 4, 8): (4.6, 0.6),
    ("gated", 4, 16): (5.3, 0.77),
    ("gated", 4, 32): (6.6, 1.66),
    ("rows", 16, 8): (2.3, 0.09),
    ("rows", 16, 16): (2.5, 0.11),
    ("rows", 16, 32): (2.8, 0.37),
    ("rows", 8, 8): (2.9, 0.17),
    ("rows", 8, 32): (3.4, 0.69),
    ("rows", 4, 8): (2.8, 0.39),
    ("rows", 4, 32): (3.4, 1.51),
}
# Split attention, by head size: a head and tail, a share of the bytes' time, microseconds for 1,024 tokens of context.
ATTENTION = {64: (5.7, 0.32, 0.61), 128: (8.7, 0.27, 0.56)}
# Steps of the H100 on 26 November 2026, in milliseconds, with the kernels of that day.
MEASURED = {("Qwen2.5-0.5B", 16, 1): 0.92, ("Qwen2.5-0.5B", 16, 8): 1.01, ("Qwen2.5-0.5B", 16, 32): 1.45,
            ("Qwen2.5-7B", 16, 1): 5.45, ("Qwen2.5-7B", 16, 8): 6.04, ("Qwen2.5-7B", 16, 32): 7.68,
            ("Qwen2.5-7B", 4, 1): 2.90, ("Qwen2.5-7B", 4, 8): 3.44, ("Qwen2.5-7B", 4, 32): 6.00,
            ("Qwen2.5-7B", 4, 64): 12.70}
SMALL_US = 2.2  # a node that moves next to nothing
DRAW_US = (5.5, 0.4)  # a greedy draw, and of each row

# What the kernels since 26 November, which no chip has timed, change: estimates. A norm in a product's kernel waits for
# L2 twice and for its block twice, and each of at most two blocks a multiprocessor reads all rows from L2; rotation and
# the write of K and V in attention's kernel wait as often.
IN_ANOTHER_US = 0.6
L2_RATES = {"H100": 5.5e12, "T4": 1.2e12}  # bytes a second
MOST_NORMED = 4096  # elements of all rows: kMostNormedElements
# Of gate and up a thread folded four columns in turn: three rounds of eight loads from shared memory more, 30 clocks
# each. And what the H100 took beyond the memory's rate for each round of two blocks a multiprocessor but the first, with
# 896 k's (the LM head of 0.5B: 36 rounds); with 3,584 nothing.
FOLD_US = 0.4
TURNOVER_US, SHORT_K, BLOCK_COLUMNS = 0.26, 1024, 16


# Products of few bits from 17 rows on, which no chip has timed: estimates. Instructions of a lane for a weight, by
# bits and rows of a block (machine_code.txt without the end of a slice: of the H100 those of bfloat16, of the T4 those
# of float16), and the share of clocks in which a scheduler issues one.
TILE_INSTRUCTIONS = {"H100": {(4, 32): 4.4, (4, 64): 5.1, (8, 32): 6.8, (8, 64): 6.9},
                     "T4": {(4, 32): 3.9, (8, 32): 5.5}}
TILE_ISSUED = 0.7
TILE_COLUMNS, SLICES, SLICE_UNIT, LANES_A_CLOCK = 256, 8, 128, 128
TILE_PRODUCTS = {"H100": 660e12 / 2, "T4": 24e12 / 2}  # multiply-adds a second of the tensor cores by mma.sync
TILE_HEAD_US, FOLD_SLICES_US = 4.6, 2.5
FEW_ROWS = 16


def tile_us(chip, bits, rows, n, k):
    """As TileGridFor of quantized.cu: the blocks that do not fill a round are cut into slices of k, whose sums
    another kernel adds up."""
    block_rows = 64 if rows > 32 and (bits, 64) in TILE_INSTRUCTIONS[chip.name] else 32
    row_blocks, columns = -(-rows // block_rows), -(-n // TILE_COLUMNS)
    length = -(-k // (SLICES * SLICE_UNIT)) * SLICE_UNIT
    slices = -(-k // length)
    issue = TILE_COLUMNS * TILE_INSTRUCTIONS[chip.name][bits, block_rows] / (TILE_ISSUED * LANES_A_CLOCK)
    multiply = TILE_COLUMNS * block_rows * chip.clocks / TILE_PRODUCTS[chip.name]
    of_k = max(issue, multiply)  # clocks of a block

    def clocks(whole):
        sliced = columns - whole
        rounds = -(-row_blocks * whole // chip.multiprocessors) * k
        rounds += -(-row_blocks * sliced * slices // chip.multiprocessors) * length
        return rounds * of_k

    best = clocks(columns) / chip.clock * 1e6
    for whole in {row_blocks * columns // chip.multiprocessors * chip.multiprocessors // row_blocks, 0} - {columns}:
        sums = 8 * slices * rows * (n - whole * TILE_COLUMNS)  # written and read, through L2
        best = min(best, (clocks(whole) + sums / 24 / chip.multiprocessors) / chip.clock * 1e6 + FOLD_SLICES_US)
    bytes_us = n * k * (bits / 8 + GROUP_BYTES) / chip.memory * 1e6
    return chip.gap_us + TILE_HEAD_US * H100.clock / chip.clock + max(best, bytes_us)


def rows_class(rows):
    return 8 if rows <= 8 else 16 if rows <= 16 else 32


def kernel_us(chip, head_us, share, bytes_moved):
    """What the H100's kernel takes beyond its bytes is a number of clocks."""
    beyond = share * bytes_moved / H100.memory * H100.clocks / chip.clocks
    return chip.gap_us + head_us * H100.clock / chip.clock + 1e6 * (bytes_moved / chip.memory + beyond)


def products(model):
    """(n, k, gated) of a layer, then of the LM head."""
    _, hidden, _, heads, kv_heads, head_dim, ffn, vocab, _, _ = model
    return [((heads + 2 * kv_heads) * head_dim, hidden, False), (hidden, heads * head_dim, False),
            (2 * ffn, hidden, True), (hidden, ffn, False)], (vocab, hidden, False)


def product_us(chip, bits, rows, shape, is_new=True):
    n, k, gated = shape
    head, share = FITTED["gated" if gated else "rows", bits, rows_class(rows)]
    of_rows = kernel_us(chip, head, share, n * k * (2 if bits == 16 else bits / 8 + GROUP_BYTES))
    if is_new and bits == 16 and rows <= FEW_ROWS:
        saved = FOLD_US if gated else 0
        if k <= SHORT_K:
            rounds = -(-n // BLOCK_COLUMNS // (2 * chip.multiprocessors))
            saved += TURNOVER_US * (rounds - 1) if chip is H100 else 0  # a T4's memory is busy anyway
        of_rows -= saved * H100.clock / chip.clock
    if bits == 16 or rows <= FEW_ROWS:
        return of_rows
    return min(tile_us(chip, bits, rows, n, k), of_rows if rows <= 32 else math.inf)


def attention_us(chip, model, rows, context):
    _, _, _, _, kv_heads, head_dim, *_ = model
    head, share, deep = ATTENTION[head_dim]
    return kernel_us(chip, head + deep * context / 1024, share, rows * context * kv_heads * head_dim * 4)


def small_us(chip, rows, hidden, is_new=True):
    """A layer's two norms, and what rotates and writes K and V."""
    small = kernel_us(chip, SMALL_US, 0, 0)
    if not is_new:
        return 3 * small
    in_another = IN_ANOTHER_US * H100.clock / chip.clock
    norms = 2 * small
    if rows * hidden <= MOST_NORMED:
        norms = 2 * (in_another + 1e6 * 2 * chip.multiprocessors * rows * hidden * 4 / L2_RATES[chip.name])
    return norms + in_another


def step_us(chip, name, bits, rows, context=CONTEXT, is_new=True):
    """is_new: with the kernels of today, else with those of 26 November 2026 (of few bits up to 16 rows)."""
    model = t4_plans.MODELS[name]
    layer, head = products(model)
    of_layer = sum(product_us(chip, bits, rows, shape, is_new) for shape in layer)
    of_layer += attention_us(chip, model, rows, context) + small_us(chip, rows, model[1], is_new)
    draw = kernel_us(chip, DRAW_US[0] + DRAW_US[1] * rows, 0, 0)
    return (model[2] * of_layer + product_us(chip, 16, rows, head, is_new) + 2 * kernel_us(chip, SMALL_US, 0, 0) +
            draw)


def floor_us(chip, name, bits, rows, context=CONTEXT):
    model = t4_plans.MODELS[name]
    _, _, layers, _, kv_heads, head_dim, *_ = model
    layer, (n, k, _) = products(model)
    weights = layers * sum(n * k for n, k, _ in layer) * (2 if bits == 16 else bits / 8 + GROUP_BYTES) + 2 * n * k
    return 1e6 * (weights + rows * context * layers * kv_heads * head_dim * 4) / chip.memory


def steps():
    lines = ["| model | weights | batch | H100: floor ms | kernels of 26 November: predicted ms | measured ms "
             "| now: predicted ms | T4: floor ms | predicted ms | floor ÷ step |"]
    lines.append("|---" * (lines[0].count("|") - 1) + "|")
    for name, bits in STEPS:
        for rows in BATCHES[bits]:
            cells = [name, "16 bits" if bits == 16 else f"int{bits} g128", str(rows)]
            before = f"{step_us(H100, name, bits, rows, is_new=False) / 1e3:.2f}"
            cells += [f"{floor_us(H100, name, bits, rows) / 1e3:.2f}",
                      before if bits == 16 or rows <= FEW_ROWS else "",  # else of other kernels
                      f"{MEASURED[name, bits, rows]:.2f}" if (name, bits, rows) in MEASURED else "",
                      f"{step_us(H100, name, bits, rows) / 1e3:.2f}"]
            floor, step = floor_us(T4, name, bits, rows), step_us(T4, name, bits, rows)
            cells += [f"{floor / 1e3:.2f}", f"{step / 1e3:.2f}", f"{100 * floor / step:.0f} %"]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def fit(path):
    """The least squares of what kernels of each kind took against head + (1 + share) * bytes' time."""
    import numpy as np  # not where the tests run

    def solve(points):
        moved, took = (np.array(column) for column in zip(*points))
        columns = np.stack([1 / took, moved / took], axis=1)  # relative errors count
        (head, factor), *_ = np.linalg.lstsq(columns, np.ones(len(took)), rcond=None)
        return round(float(head), 1), round(float(factor) - 1, 2)

    kinds, attention = {}, {}
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    for row in rows:
        if row["part"] != "kernels" or "seconds" not in row:
            continue
        us, moved = 1e6 * row["seconds"], 1e6 * row["bytes"] / H100.memory
        what = row["what"]
        if what == "attention_split":
            attention.setdefault(row["head_dim"], []).append((row["context"] / 1024, moved, us))
        elif what == "matmul_rows" and row["m"] <= 32:
            kinds.setdefault(("rows", 16, rows_class(row["m"])), []).append((moved, us))
        elif what.startswith("quantized_int") and row["m"] <= 32:
            kinds.setdefault(("rows", int(what[-1]), rows_class(row["m"])), []).append((moved, us))
        elif what == "gated_fused" and row["m"] <= 32:
            bits = 4 if "int4 m" in row["case"] else 8 if "int8 m" in row["case"] else 16
            kinds.setdefault(("gated", bits, rows_class(row["m"])), []).append((moved, us))
    heads = {}
    for (what, bits, most), points in sorted(kinds.items(), key=lambda kind: (kind[0][0], -kind[0][1], kind[0][2])):
        head, share = solve(points)
        if bits < 16 and what == "gated":  # of one size alone: the head is that of 16 bits
            head = heads[what, most]
            share = round(float(np.mean([(took - head) / moved for moved, took in points])) - 1, 2)
        heads[what, most] = heads.get((what, most), head)
        print(f"    {(what, bits, most)}: {(head, share)},")
    for head_dim, points in sorted(attention.items()):
        deep, moved, took = (np.array(column) for column in zip(*points))
        columns = np.stack([1 / took, moved / took, deep / took], axis=1)
        (head, factor, of_context), *_ = np.linalg.lstsq(columns, np.ones(len(took)), rcond=None)
        print(f"    {head_dim}: {(round(float(head), 1), round(float(factor) - 1, 2), round(float(of_context), 2))},")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--fit"]:
        fit(sys.argv[2])
    else:
        print(steps())
