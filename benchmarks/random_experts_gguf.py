#!/usr/bin/env python3
"""Writes a GGUF file with the proportions of Qwen3-30B-A3B and random weights, for engine_bench.

    random_experts_gguf.py FILE --layers 8 --type Q4_0

It has fewer layers and a smaller vocabulary, so that it fits: a layer and its share of decode steps
are those of the published model. Blocks have no mean, lest all tokens choose the same experts. Needs
the packages gguf and numpy; takes as much memory as the file.
"""

import argparse
import sys

import gguf
import numpy as np

HIDDEN, HEADS, KV_HEADS, HEAD_DIM = 2048, 32, 4, 128
EXPERTS, PER_TOKEN, EXPERT_FFN, FFN = 128, 8, 768, 6144
VOCABULARY = 25600
# By which a block's scale makes its values' standard deviation 1.
UNIT = {"Q4_0": 1 / 4.3, "Q8_0": 1 / 73.3}


class Blocks:
    """Random matrices of one type."""

    def __init__(self, writer, kind):
        self._writer, self._kind = writer, kind
        self._quant = gguf.GGMLQuantizationType[kind]
        self._random = np.random.default_rng(1)

    def add(self, name, *shape, deviation):
        columns, size = gguf.GGML_QUANT_SIZES[self._quant]
        count = int(np.prod(shape)) // columns
        if self._kind == "Q4_0":
            low, high = (self._random.integers(1, 16, (count, size), dtype=np.uint8) for _ in range(2))
            blocks = low | high << 4
        else:
            blocks = self._random.integers(-127, 128, (count, size), dtype=np.int8).view(np.uint8)
        scale = np.full(count, deviation * UNIT[self._kind], np.float16)
        blocks[:, :2] = scale.view(np.uint8).reshape(count, 2)
        self._writer.add_tensor(name, blocks.reshape(*shape[:-1], shape[-1] // columns * size),
                                raw_dtype=self._quant)

    def add_router(self, name):
        values = self._random.standard_normal((EXPERTS, HIDDEN)) * 2 / HIDDEN ** 0.5
        self._writer.add_tensor(name, values.astype(np.float32))


def add_config(writer, layers):
    writer.add_context_length(32768)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_expert_count(EXPERTS)
    writer.add_expert_used_count(PER_TOKEN)
    writer.add_expert_feed_forward_length(EXPERT_FFN)


def add_tokenizer(writer):
    """Bytes, one merge of two, and names that nothing is merged into."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = [chr(byte) for byte in shown] + [chr(256 + i) for i in range(256 - len(shown))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    tokens = [*letters, letters[0] + letters[1]]
    writer.add_token_list(tokens + [f"token{i}" for i in range(VOCABULARY - len(tokens))])
    writer.add_token_types([gguf.TokenType.NORMAL] * VOCABULARY)
    writer.add_token_merges([f"{letters[0]} {letters[1]}"])
    writer.add_eos_token_id(2)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--type", choices=UNIT, default="Q4_0")
    args = parser.parse_args()
    writer = gguf.GGUFWriter(args.file, "qwen3moe")
    add_config(writer, args.layers)
    add_tokenizer(writer)
    blocks, width = Blocks(writer, args.type), HEADS * HEAD_DIM
    entering = HIDDEN ** -0.5
    norms = [("output_norm", HIDDEN)]
    blocks.add("token_embd.weight", VOCABULARY, HIDDEN, deviation=1)
    blocks.add("output.weight", VOCABULARY, HIDDEN, deviation=2 * entering)
    for layer in (f"blk.{i}." for i in range(args.layers)):
        norms += [(layer + "attn_norm", HIDDEN), (layer + "ffn_norm", HIDDEN),
                  (layer + "attn_q_norm", HEAD_DIM), (layer + "attn_k_norm", HEAD_DIM)]
        blocks.add(layer + "attn_q.weight", width, HIDDEN, deviation=entering)
        for name in ("attn_k.weight", "attn_v.weight"):
            blocks.add(layer + name, KV_HEADS * HEAD_DIM, HIDDEN, deviation=entering)
        blocks.add(layer + "attn_output.weight", HIDDEN, width, deviation=width ** -0.5)
        blocks.add_router(layer + "ffn_gate_inp.weight")
        for name in ("ffn_gate_exps.weight", "ffn_up_exps.weight"):
            blocks.add(layer + name, EXPERTS, EXPERT_FFN, HIDDEN, deviation=entering)
        blocks.add(layer + "ffn_down_exps.weight", EXPERTS, HIDDEN, EXPERT_FFN,
                   deviation=EXPERT_FFN ** -0.5)
    for name, size in norms:
        writer.add_tensor(name + ".weight", np.ones(size, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
