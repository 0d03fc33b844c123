#!/usr/bin/env python3
"""What loop_clocks.py says of loops whose clocks are known by hand."""

import unittest

import loop_clocks
import machine_code


def loop(text):
    """What nvdisasm would print of the instructions. Each line of the text has one, or a label."""
    lines = [".text.kernel:"]
    for number, line in enumerate(text.strip().splitlines()):
        line = line.strip()
        lines.append(line if line.endswith(":") else f"        /*{number * 16:04x}*/                   {line} ;")
    return machine_code.parse("\n".join(lines))["kernel"]


def clocks(text, arch=90, warps=4, blocks=1):
    steps = [loop_clocks.step_of(instruction) for instruction in loop(text)[0]]
    return loop_clocks.Multiprocessor(steps, arch, warps, blocks).run(rounds=40, first=10)


class LoopClocks(unittest.TestCase):
    def test_products_take_the_tensor_cores_rate(self):
        text = "\n".join(f"HMMA.16816.F32.BF16 R{100 + 4 * i}, R0, R8, R{100 + 4 * i}" for i in range(20))
        # Of four warps, one is on each scheduler; a second one waits for the same tensor cores.
        for arch, rate in loop_clocks.PRODUCT_CLOCKS.items():
            for warps in (4, 8):
                self.assertAlmostEqual(clocks(text, arch, warps), 20 * rate * warps / 4, delta=6)

    def test_products_that_depend_on_each_other_take_their_latency(self):
        text = "\n".join(["HMMA.16816.F32.BF16 R100, R0, R8, R100"] * 4)
        self.assertAlmostEqual(clocks(text), 4 * loop_clocks.PRODUCT_LATENCY, delta=6)

    def test_loads_share_the_shared_memory(self):
        text = "\n".join(f"LDS.128 R{100 + 4 * i}, [R0+0x{i * 16:x}]" for i in range(16))
        self.assertAlmostEqual(clocks(text, 90, 8), 16 * 8 * 4, delta=8)
        self.assertAlmostEqual(clocks(text, 75, 8), 16 * 8 * 8, delta=8)

    def test_a_product_waits_for_what_it_loads(self):
        text = """LDS.128 R8, [R0]
                  HMMA.16816.F32.BF16 R100, R4, R8, R100"""
        self.assertGreater(clocks(text), loop_clocks.SHARED_LATENCY + 4)

    def test_copies_are_awaited_by_their_groups(self):
        one = """DEPBAR.LE SB0, 0x{}
                 BAR.SYNC.DEFER_BLOCKING 0x0
                 LDGSTS.E.BYPASS.128 [R1], desc[UR8][R2.64]
                 LDGDEPBAR"""
        whole, half = clocks(one.format(0)), clocks(one.format(1))
        self.assertAlmostEqual(whole, loop_clocks.L2_CLOCKS, delta=40)
        self.assertAlmostEqual(half, loop_clocks.L2_CLOCKS / 2, delta=40)

    def test_a_barrier_holds_a_blocks_warps_together(self):
        text = """MUFU.EX2 R1, R1
                  BAR.SYNC.DEFER_BLOCKING 0x0"""
        self.assertGreater(clocks(text, warps=8), loop_clocks.BARRIER_LATENCY)

    def test_branches_that_are_taken_skip_what_is_behind_them(self):
        instructions, labels = loop("""
            @P0 BRA `(.L_x_1)
            FADD R1, R1, R2
            FADD R1, R1, R2
            .L_x_1:
            FADD R3, R3, R2""")
        branches = loop_clocks.forward_branches(instructions, labels, 0)
        self.assertEqual(branches, [(0, 3)])
        left = loop_clocks.without_skipped(instructions, branches, [0])
        self.assertEqual([i.opcode for i in left], ["BRA", "FADD"])
        self.assertEqual(len(loop_clocks.without_skipped(instructions, branches, [])), 4)


if __name__ == "__main__":
    unittest.main()
