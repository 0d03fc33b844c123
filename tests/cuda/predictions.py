#!/usr/bin/env python3
"""Predicts decode steps from counted bytes and counted instructions (machine_code.txt): each kernel takes the
longer of its bytes at the memory's rate and its instructions at one a clock and scheduler, and each node of
the step's graph a gap. No latencies, no ramps: a step takes longer than this, and no kernel can make it shorter.

Prints the table of docs/results/cuda.md.
"""

import dataclasses
import sys
from pathlib import Path

import machine_code

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "scripts"))
import t4_plans  # noqa: E402: the models' shapes

CONTEXT = 2048
BATCHES = (1, 8, 32)
STEPS = (("Qwen2.5-0.5B", 16), ("Qwen2.5-1.5B", 16), ("Qwen2.5-7B", 16), ("Qwen2.5-7B", 4))
NODES_A_LAYER = 8
GROUP_BYTES = 4 / 128  # of a weight of few bits


@dataclasses.dataclass
class Chip:
    arch: int
    element: str
    gap_us: float  # between nodes

    def __post_init__(self):
        self.name, self.issued, self.memory = machine_code.CHIPS[self.arch]


T4, H200 = Chip(75, "Half", 1.3), Chip(90, "BFloat16", 0.7)  # whose kernels begin early


def cost_of_weight(limits, chip, bits, rows, gated):
    """Instructions of a lane for a weight, for this many rows of x."""
    eights = 1 if rows <= 8 else 2 if rows <= 16 else 4
    kind = "Gated" if gated else "Rows"
    if bits < 16:
        name = f"Quantized{kind}Kernel<{chip.element}, {bits}, {eights}>"
    else:
        name = f"MatMul{kind}Kernel<{chip.element}, {8 * eights}{'' if gated else ', 2'}>"
    instructions, of_mma, _, _ = limits[name, chip.arch]
    return instructions / machine_code.weights_a_round(name, of_mma)


def products(model):
    """(n, k, gated) of a layer, then of the LM head."""
    _, hidden, _, heads, kv_heads, head_dim, ffn, vocab, _, _ = model
    return [((heads + 2 * kv_heads) * head_dim, hidden, False), (hidden, heads * head_dim, False),
            (2 * ffn, hidden, True), (hidden, ffn, False)], (vocab, hidden, False)


def product_us(limits, chip, bits, rows, shape):
    n, k, gated = shape
    memory = n * k * (2 if bits == 16 else bits / 8 + GROUP_BYTES) / chip.memory
    issue = n * k * cost_of_weight(limits, chip, bits, rows, gated) / chip.issued
    return 1e6 * max(memory, issue)


def attention_us(limits, chip, model, rows):
    _, _, _, heads, kv_heads, head_dim, *_ = model
    instructions, *_ = limits[f"AttentionSplitKernel<{chip.element}, {head_dim}, true>", chip.arch]
    pieces = rows * kv_heads * (CONTEXT // 64) * -(-heads // kv_heads // 16)
    memory = rows * CONTEXT * kv_heads * head_dim * 2 * 2 / chip.memory
    return 1e6 * max(memory, pieces * instructions * 32 / chip.issued)


def step_us(limits, chip, name, bits, rows):
    model = t4_plans.MODELS[name]
    layer, head = products(model)
    of_layer = sum(product_us(limits, chip, bits, rows, shape) for shape in layer)
    of_layer += attention_us(limits, chip, model, rows) + NODES_A_LAYER * chip.gap_us
    return model[2] * of_layer + product_us(limits, chip, 16, rows, head) + 3 * chip.gap_us


def floor_us(chip, name, bits, rows):
    model = t4_plans.MODELS[name]
    _, _, layers, _, kv_heads, head_dim, *_ = model
    layer, (n, k, _) = products(model)
    weights = layers * sum(n * k for n, k, _ in layer) * (2 if bits == 16 else bits / 8 + GROUP_BYTES) + 2 * n * k
    return 1e6 * (weights + rows * CONTEXT * layers * kv_heads * head_dim * 4) / chip.memory


def steps(limits):
    lines = ["| model | weights | batch | " + " | ".join(
        f"{chip.name}: floor ms | step ms | floor ÷ step" for chip in (T4, H200)) + " |"]
    lines.append("|---" * (lines[0].count("|") - 1) + "|")
    for name, bits in STEPS:
        for rows in BATCHES:
            cells = [name, "16 bits" if bits == 16 else f"int{bits} g128", str(rows)]
            for chip in (T4, H200):
                floor, step = floor_us(chip, name, bits, rows), step_us(limits, chip, name, bits, rows)
                cells += [f"{floor / 1e3:.2f}", f"{step / 1e3:.2f}", f"{100 * floor / step:.0f} %"]
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(steps(machine_code.parse_budgets((HERE / "machine_code.txt").read_text(encoding="utf-8")).limits))
