"""Writes blocks of GGUF's types, and what the package gguf dequantises them to.

    make_gguf_blocks.py OUTPUT_DIR

Per type OUTPUT_DIR/<type>.blocks, and OUTPUT_DIR/<type>.f32 with the float32 values. All bits are
random, but for scales, which are finite; the last two blocks have all bits of their elements alike.
"""

import pathlib
import sys

import gguf
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "scripts"))
import make_gguf  # noqa: E402

BLOCKS = 500


def main():
    directory = pathlib.Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for kind, scales in make_gguf.SCALES.items():
        blocks = make_gguf.random_blocks(kind, kind, BLOCKS, 1.0)
        # Scales of either sign and of every finite size, subnormal ones included.
        for place in scales:
            halves = np.arange(BLOCKS, dtype=np.uint32) * 9973 % 0x7C00 | (np.arange(BLOCKS) % 2) << 15
            blocks[:, place:place + 2] = halves.astype("<u2").view(np.uint8).reshape(BLOCKS, 2)
        rest = [i for i in range(blocks.shape[1]) if all(i not in (p, p + 1) for p in scales)]
        blocks[-2, rest] = 0
        blocks[-1, rest] = 0xFF
        values = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])
        blocks.tofile(directory / f"{kind}.blocks")
        values.astype("<f4").tofile(directory / f"{kind}.f32")
    return 0


if __name__ == "__main__":
    sys.exit(main())
