#!/usr/bin/env python3
"""Writes a GGUF file with the proportions of Qwen3-30B-A3B, gpt-oss-20b or DeepSeek-V2-Lite and random
weights, for engine_bench.

    random_experts_gguf.py FILE --layers 8 --type Q4_0
    random_experts_gguf.py FILE --model gpt-oss-20b --layers 6
    random_experts_gguf.py FILE --model deepseek-v2-lite --layers 9

It has fewer layers and a smaller vocabulary, so that it fits: a layer and its share of decode steps
are those of the published model. Blocks have no mean, lest all tokens choose the same experts. Needs
the packages gguf and numpy; takes as much memory as the file.
"""

import argparse
import sys
import typing

import gguf
import numpy as np

VOCABULARY = 25600
# By which a block's scale makes its values' standard deviation 1.
UNIT = {"Q4_0": 1 / 4.3, "Q8_0": 1 / 73.3, "MXFP4": 1 / 2.93}


class Shape(typing.NamedTuple):
    architecture: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    experts: int
    per_token: int
    expert_ffn: int
    type: str  # of the experts
    others: str | None = None  # of the other matrices; None: the same
    gpt_oss: bool = False  # biases, sinks, windows, and no norms of queries and keys
    latent: int = 0  # of latent attention: also a dense first layer, and shared experts
    shared: int = 0  # experts


# Of latent attention: elements of a head's key without position, and with one (once for all heads).
PLAIN, ROTATED = 128, 64


SHAPES = {
    "qwen3-30b-a3b": Shape("qwen3moe", 2048, 32, 4, 128, 128, 8, 768, "Q4_0"),
    # As published: its experts in MXFP4, the rest in 8 bits.
    "gpt-oss-20b": Shape("gpt-oss", 2880, 64, 8, 64, 32, 4, 2880, "MXFP4", "Q8_0", gpt_oss=True),
    "deepseek-v2-lite": Shape("deepseek2", 2048, 16, 1, 128, 64, 6, 1408, "Q4_0", latent=512, shared=2),
}


class Blocks:
    """Random matrices."""

    def __init__(self, writer):
        self._writer = writer
        self._random = np.random.default_rng(1)

    def add(self, name, kind, *shape, deviation):
        quant = gguf.GGMLQuantizationType[kind]
        columns, size = gguf.GGML_QUANT_SIZES[quant]
        count = int(np.prod(shape)) // columns
        if kind == "Q8_0":
            blocks = self._random.integers(-127, 128, (count, size), dtype=np.int8).view(np.uint8)
        elif kind == "Q4_0":
            low, high = (self._random.integers(1, 16, (count, size), dtype=np.uint8) for _ in range(2))
            blocks = low | high << 4
        else:
            blocks = self._random.integers(0, 256, (count, size), dtype=np.uint8)
        if kind == "MXFP4":
            blocks[:, 0] = 127 + round(np.log2(deviation * UNIT[kind]))
        else:
            scale = np.full(count, deviation * UNIT[kind], np.float16)
            blocks[:, :2] = scale.view(np.uint8).reshape(count, 2)
        self._writer.add_tensor(name, blocks.reshape(*shape[:-1], shape[-1] // columns * size),
                                raw_dtype=quant)

    def add_floats(self, name, *shape, deviation):
        values = self._random.standard_normal(shape) * deviation
        self._writer.add_tensor(name, values.astype(np.float32))


def dense_ffn(shape):
    return shape.expert_ffn if shape.gpt_oss else 10944 if shape.latent else 6144


def add_config(writer, shape, layers):
    writer.add_context_length(32768)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(dense_ffn(shape))
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_key_length(shape.latent + ROTATED if shape.latent else shape.head_dim)
    writer.add_value_length(shape.latent or shape.head_dim)
    writer.add_rope_dimension_count(ROTATED if shape.latent else shape.head_dim)
    if shape.latent:
        writer.add_kv_lora_rank(shape.latent)
        writer.add_key_length_mla(PLAIN + ROTATED)
        writer.add_value_length_mla(shape.head_dim)
        writer.add_leading_dense_block_count(1)
        writer.add_expert_shared_count(shape.shared)
        writer.add_expert_weights_scale(1.0)
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SOFTMAX)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(150000 if shape.gpt_oss else 1e6)
    writer.add_expert_count(shape.experts)
    writer.add_expert_used_count(shape.per_token)
    writer.add_expert_feed_forward_length(shape.expert_ffn)
    if shape.gpt_oss:
        writer.add_sliding_window(128)
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(8.0)
        writer.add_rope_scaling_orig_ctx_len(4096)


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


def add_attention(blocks, layer, shape, kind):
    width, kv_width = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for name, rows, columns in (("attn_q", width, shape.hidden), ("attn_k", kv_width, shape.hidden),
                                ("attn_v", kv_width, shape.hidden),
                                ("attn_output", shape.hidden, width)):
        blocks.add(f"{layer}{name}.weight", kind, rows, columns, deviation=columns ** -0.5)
        if shape.gpt_oss:
            blocks.add_floats(f"{layer}{name}.bias", rows, deviation=0.1)
    if shape.gpt_oss:
        blocks.add_floats(layer + "attn_sinks.weight", shape.heads, deviation=1)


def add_latent_attention(blocks, layer, shape, kind):
    width = shape.heads * shape.head_dim
    for name, rows, columns in (("attn_q", shape.heads * (PLAIN + ROTATED), shape.hidden),
                                ("attn_kv_a_mqa", shape.latent + ROTATED, shape.hidden),
                                ("attn_output", shape.hidden, width)):
        blocks.add(f"{layer}{name}.weight", kind, rows, columns, deviation=columns ** -0.5)
    for name, rows, columns in (("attn_k_b", shape.latent, PLAIN), ("attn_v_b", shape.head_dim, shape.latent)):
        blocks.add(f"{layer}{name}.weight", "Q8_0", shape.heads, rows, columns, deviation=shape.latent ** -0.5)


def add_mlp(blocks, layer, shape, kind, ffn, end=""):
    for name, rows, columns in (("ffn_gate", ffn, shape.hidden), ("ffn_up", ffn, shape.hidden),
                                ("ffn_down", shape.hidden, ffn)):
        blocks.add(f"{layer}{name}{end}.weight", kind, rows, columns, deviation=columns ** -0.5)


def add_experts(blocks, layer, shape):
    blocks.add_floats(layer + "ffn_gate_inp.weight", shape.experts, shape.hidden,
                      deviation=2 * shape.hidden ** -0.5)
    if shape.gpt_oss:
        blocks.add_floats(layer + "ffn_gate_inp.bias", shape.experts, deviation=0.1)
    for name, rows, columns in (("ffn_gate_exps", shape.expert_ffn, shape.hidden),
                                ("ffn_up_exps", shape.expert_ffn, shape.hidden),
                                ("ffn_down_exps", shape.hidden, shape.expert_ffn)):
        blocks.add(f"{layer}{name}.weight", shape.type, shape.experts, rows, columns,
                   deviation=columns ** -0.5)
        if shape.gpt_oss:
            blocks.add_floats(f"{layer}{name}.bias", shape.experts, rows, deviation=0.1)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--model", choices=SHAPES, default="qwen3-30b-a3b")
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--type", choices=UNIT, help="of the experts; default: as published, or Q4_0")
    args = parser.parse_args()
    shape = SHAPES[args.model]
    shape = shape._replace(type=args.type or shape.type)
    others = shape.others or shape.type
    writer = gguf.GGUFWriter(args.file, shape.architecture)
    add_config(writer, shape, args.layers)
    add_tokenizer(writer)
    blocks = Blocks(writer)
    norms = [("output_norm", shape.hidden)]
    blocks.add("token_embd.weight", others, VOCABULARY, shape.hidden, deviation=1)
    blocks.add("output.weight", others, VOCABULARY, shape.hidden, deviation=2 * shape.hidden ** -0.5)
    for index, layer in enumerate(f"blk.{i}." for i in range(args.layers)):
        norms += [(layer + "attn_norm", shape.hidden),
                  (layer + ("post_attention_norm" if shape.gpt_oss else "ffn_norm"), shape.hidden)]
        if shape.latent:
            norms.append((layer + "attn_kv_a_norm", shape.latent))
            add_latent_attention(blocks, layer, shape, others)
            if index == 0:
                add_mlp(blocks, layer, shape, others, dense_ffn(shape))
                continue
            add_mlp(blocks, layer, shape, others, shape.shared * shape.expert_ffn, "_shexp")
        else:
            if not shape.gpt_oss:
                norms += [(layer + "attn_q_norm", shape.head_dim), (layer + "attn_k_norm", shape.head_dim)]
            add_attention(blocks, layer, shape, others)
        add_experts(blocks, layer, shape)
    for name, size in norms:
        writer.add_tensor(name + ".weight", np.ones(size, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
