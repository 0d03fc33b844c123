#!/usr/bin/env python3
"""Writes the GGUF file of a Hugging Face model directory, as llama.cpp's converter would.

    make_gguf.py models/demo demo.gguf --type Q8_0
    make_gguf.py DIR FILE --type Q4_0 --dequantized DIR2     DIR2: the float values of the file
    make_gguf.py DIR FILE --type Q4_K --type-of v_proj=Q6_K  matrices of several types, as in Q4_K_M
    make_gguf.py DIR FILE --vocab-only                       the tokenizer alone
    make_gguf.py DIR m.gguf --split 12                       m-00001-of-00003.gguf and so on, of 12 tensors each

For tests and small models: all weights are in memory at once. Vectors stay F32, and so do matrices
whose rows are no whole blocks. The package gguf does not quantise to Q4_K, Q5_K and Q6_K: with these,
the values are random, of the size of the real ones.
"""

import argparse
import json
import os
import shutil
import struct
import sys

import gguf
import numpy as np

import make_checkpoint

ARCHITECTURES = {"LlamaForCausalLM": "llama", "MistralForCausalLM": "llama",
                 "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3"}
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
WITHOUT_QUANTISER = ("Q4_K", "Q5_K", "Q6_K")
NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
LAYER_NAMES = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
               "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
               "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
               "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
               "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
# Where a block has its float16 scale and, if it has one, its least value.
SCALES = {"Q8_0": [0], "Q4_0": [0], "Q5_0": [0], "Q4_1": [0, 2], "Q5_1": [0, 2], "Q4_K": [0, 2],
          "Q5_K": [0, 2], "Q6_K": [208]}


def read_json(directory, name):
    path = os.path.join(directory, name)
    if not os.path.exists(path):
        return {}
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def read_tensors(directory):
    """Name: float32 array, of all .safetensors files."""
    tensors = {}
    for name in sorted(os.listdir(directory)):
        if not name.endswith(".safetensors"):
            continue
        with open(os.path.join(directory, name), "rb") as file:
            data = file.read()
        size = struct.unpack("<Q", data[:8])[0]
        for tensor, entry in json.loads(data[8:8 + size]).items():
            if tensor == "__metadata__":
                continue
            begin, end = (8 + size + offset for offset in entry["data_offsets"])
            if entry["dtype"] == "BF16":
                values = np.frombuffer(data[begin:end], "<u2").astype(np.uint32) << np.uint32(16)
                values = values.view(np.float32)
            else:
                kind = {"F32": "<f4", "F16": "<f2"}[entry["dtype"]]
                values = np.frombuffer(data[begin:end], kind).astype(np.float32)
            tensors[tensor] = values.reshape(entry["shape"])
    return tensors


def gguf_name(name):
    module, _, kind = name.rpartition(".")
    if module in NAMES:
        return f"{NAMES[module]}.{kind}"
    _, _, layer, module = module.split(".", 3)
    return f"blk.{layer}.{LAYER_NAMES[module]}.{kind}"


def interleaved(values, heads):
    """llama.cpp rotates pairs of neighbours in Llama's queries and keys, Transformers halves."""
    split = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return split.swapaxes(1, 2).reshape(values.shape)


def in_halves(values, heads):
    split = values.reshape(heads, values.shape[0] // heads // 2, 2, *values.shape[1:])
    return split.swapaxes(1, 2).reshape(values.shape)


def random_blocks(name, kind, count, deviation):
    """Bytes of `count` blocks of a type, any bits but for the scales, which are finite."""
    size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][1]
    words = np.arange((count * size + 7) // 8, dtype=np.uint64)
    step = np.uint64(0x9E3779B97F4A7C15)
    stream = np.uint64(make_checkpoint.stream_of(name, 0))
    blocks = make_checkpoint.splitmix64(words * step + stream).view(np.uint8)[:count * size]
    blocks = blocks.reshape(count, size).copy()
    for place, part in zip(SCALES[kind], (0.005, 0.04)):
        low = blocks[:, place].astype(np.float32) / 256 + 0.5
        scale = (low * np.float32(part * deviation)).astype(np.float16)
        blocks[:, place:place + 2] = scale.view(np.uint8).reshape(count, 2)
    return blocks


def encode(name, values, kind):
    """The tensor's type, its bytes as the writer takes them, and the values that they stand for."""
    quant = gguf.GGMLQuantizationType[kind]
    block, size = gguf.GGML_QUANT_SIZES[quant]
    if values.ndim == 1 or values.shape[-1] % block:
        quant = gguf.GGMLQuantizationType.F32
    if kind in WITHOUT_QUANTISER and quant != gguf.GGMLQuantizationType.F32:
        data = random_blocks(name, kind, values.size // block, float(values.std()))
        data = data.reshape(values.shape[0], -1)
    else:
        data = gguf.quants.quantize(values, quant)
    decoded = gguf.quants.dequantize(data, quant).reshape(values.shape)
    return quant, data, decoded


def add_config(writer, config, generation):
    heads = config["num_attention_heads"]
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    rope = config.get("rope_parameters") or {}
    scaling = config.get("rope_scaling") or rope
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope.get("rope_theta") or config["rope_theta"])
    if scaling.get("rope_type") == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scaling["factor"])
    if config["model_type"] == "mistral" and config.get("sliding_window"):
        writer.add_sliding_window(config["sliding_window"])
    if scaling.get("rope_type") == "llama3":
        theta = rope.get("rope_theta") or config["rope_theta"]
        writer.add_tensor("rope_freqs.weight", llama3_factors(scaling, theta, head_dim))
    ends = generation.get("eos_token_id", config.get("eos_token_id"))
    ends = ends if isinstance(ends, list) else [ends]
    for end, add in zip(ends, (writer.add_eos_token_id, writer.add_eot_token_id)):
        add(end)


def llama3_factors(scaling, theta, head_dim):
    """By which each frequency is divided."""
    frequencies = theta ** -(np.arange(0, head_dim, 2) / head_dim)
    turns = scaling["original_max_position_embeddings"] * frequencies / (2 * np.pi)
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    blend = np.clip((turns - low) / (high - low), 0, 1)
    return (1 / ((1 - blend) / scaling["factor"] + blend)).astype(np.float32)


def first_token(processor):
    """The id of the token that the post-processor puts first; None if there is none."""
    for step in processor.get("processors", [processor]):
        piece = step.get("single", [{}])[0]
        if "SpecialToken" in piece:
            return step["special_tokens"][piece["SpecialToken"]["id"]]["ids"][0]
    return None


def add_tokenizer(writer, directory, pre, vocab_size):
    document = read_json(directory, "tokenizer.json")
    if not document:
        return
    texts = {id_: (text, gguf.TokenType.NORMAL) for text, id_ in document["model"]["vocab"].items()}
    for token in document.get("added_tokens", []):
        kind = gguf.TokenType.CONTROL if token["special"] else gguf.TokenType.USER_DEFINED
        texts[token["id"]] = (token["content"], kind)
    count = vocab_size or max(texts) + 1
    tokens = [texts.get(id_, (f"[PAD{id_}]", gguf.TokenType.UNUSED)) for id_ in range(count)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list([text for text, _ in tokens])
    writer.add_token_types([kind for _, kind in tokens])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge)
                             for merge in document["model"]["merges"]])
    bos = first_token(document.get("post_processor") or {})
    writer.add_add_bos_token(bos is not None)
    if bos is not None:
        writer.add_bos_token_id(bos)
    template = os.path.join(directory, "chat_template.jinja")
    if os.path.exists(template):
        with open(template, encoding="utf-8") as file:
            writer.add_chat_template(file.read())


def write_dequantized(source, target, tensors):
    os.makedirs(target, exist_ok=True)
    for name in ("config.json", "generation_config.json", "tokenizer.json",
                 "tokenizer_config.json", "chat_template.jinja"):
        if os.path.exists(os.path.join(source, name)):
            shutil.copyfile(os.path.join(source, name), os.path.join(target, name))
    make_checkpoint.write_weights(
        target, [make_checkpoint.array_tensor(name, "F32", values) for name, values in tensors], 1)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory")
    parser.add_argument("file")
    parser.add_argument("--type", choices=TYPES, default="F16", help="of the matrices")
    parser.add_argument("--type-of", nargs="*", default=(), metavar="MODULE=TYPE", help="of these")
    parser.add_argument("--pre", default="qwen2", help="tokenizer.ggml.pre (default qwen2)")
    parser.add_argument("--dequantized", metavar="DIR", help="also write the values, as a checkpoint")
    parser.add_argument("--float-embedding", action="store_true",
                        help="embedding and LM head stay F32")
    parser.add_argument("--vocab-only", action="store_true")
    parser.add_argument("--split", type=int, default=0, metavar="TENSORS",
                        help="several files of so many tensors each")
    args = parser.parse_args()
    types = dict(pair.split("=") for pair in args.type_of)
    config = read_json(args.directory, "config.json")
    kind = ARCHITECTURES[config["architectures"][0]] if config else "llama"
    os.makedirs(os.path.dirname(os.path.abspath(args.file)), exist_ok=True)
    writer = gguf.GGUFWriter(args.file, kind, split_max_tensors=args.split)
    decoded = []
    if not args.vocab_only:
        add_config(writer, config, read_json(args.directory, "generation_config.json"))
        for name, values in read_tensors(args.directory).items():
            heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(
                name.split(".")[-2]) if kind == "llama" else None
            if heads:
                values = interleaved(values, config[heads])
            keep = args.float_embedding and not name.startswith("model.layers.")
            of_module = types.get(name.split(".")[-2], args.type)
            quant, data, floats = encode(name, values, "F32" if keep else of_module)
            writer.add_tensor(gguf_name(name), data, raw_dtype=quant)
            decoded.append((name, in_halves(floats, config[heads]) if heads else floats))
    add_tokenizer(writer, args.directory, args.pre, config.get("vocab_size"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if args.dequantized:
        write_dequantized(args.directory, args.dequantized, decoded)
    return 0


if __name__ == "__main__":
    sys.exit(main())
