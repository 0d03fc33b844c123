#!/usr/bin/env python3
"""Writes a Hugging Face model directory with random weights, the same bytes on every machine.

    make_checkpoint.py tiny-qwen2 DIR
    make_checkpoint.py qwen2.5-0.5b DIR --dtype bfloat16 --shards 2 --tokenizer tokenizer.json
    make_checkpoint.py tiny-llama DIR --quantize awq --group-size 32

Values come from splitmix64 of (seed, tensor name, index), not from numpy's generators, whose streams
may change with its version. Needs numpy only.

Weights are scaled so that hidden states keep a size of about 1 and depend on both the token and its
context, and logits have a standard deviation of about 2: neither all alike nor one-hot.
"""

import argparse
import json
import os
import shutil
import struct
import sys

import numpy as np

import quantized_checkpoint

LLAMA3_SCALING = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                  "high_freq_factor": 4.0, "original_max_position_embeddings": 64}

# What differs between the shapes, in config.json's words. In the tiny ones every dimension differs
# from every other, so that a mixed-up pair is a shape error, and 130 tokens cross every boundary:
# blocks of 16, the sliding window, and the original context of the rope scaling.
SHAPES = {
    "tiny-llama": dict(
        architectures=["LlamaForCausalLM"], model_type="llama", hidden_size=96,
        intermediate_size=160, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
        vocab_size=384, max_position_embeddings=512, rms_norm_eps=1e-5, rope_theta=500000.0,
        rope_scaling=LLAMA3_SCALING, tie_word_embeddings=True, attention_bias=False,
        mlp_bias=False, eos_token_id=[2, 7], bos_token_id=1),
    "tiny-qwen2": dict(
        architectures=["Qwen2ForCausalLM"], model_type="qwen2", hidden_size=64,
        intermediate_size=176, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=320, max_position_embeddings=512, rms_norm_eps=1e-6, rope_theta=1000000.0,
        tie_word_embeddings=False, use_sliding_window=False, sliding_window=32,
        max_window_layers=3, eos_token_id=2, bos_token_id=1),
    # Windows in some layers only, and linear rope scaling.
    "tiny-qwen2-sliding": dict(
        architectures=["Qwen2ForCausalLM"], model_type="qwen2", hidden_size=64,
        intermediate_size=176, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=320, max_position_embeddings=512, rms_norm_eps=1e-6, rope_theta=10000.0,
        rope_scaling={"rope_type": "linear", "factor": 2.0}, tie_word_embeddings=False,
        use_sliding_window=True, sliding_window=24, max_window_layers=1, eos_token_id=2,
        bos_token_id=1),
    "tiny-qwen3": dict(
        architectures=["Qwen3ForCausalLM"], model_type="qwen3", hidden_size=80,
        intermediate_size=144, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, vocab_size=352, max_position_embeddings=512, rms_norm_eps=1e-6,
        rope_theta=1000000.0, tie_word_embeddings=True, attention_bias=False,
        use_sliding_window=False, sliding_window=None, max_window_layers=3, eos_token_id=2,
        bos_token_id=1),
    "tiny-mistral": dict(
        architectures=["MistralForCausalLM"], model_type="mistral", hidden_size=112,
        intermediate_size=192, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=1,
        head_dim=16, vocab_size=288, max_position_embeddings=512, rms_norm_eps=1e-5,
        rope_theta=10000.0, tie_word_embeddings=False, sliding_window=40, eos_token_id=2,
        bos_token_id=1),
    "qwen2.5-0.5b": dict(
        architectures=["Qwen2ForCausalLM"], model_type="qwen2", hidden_size=896,
        intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
        num_key_value_heads=2, vocab_size=151936, max_position_embeddings=32768,
        rms_norm_eps=1e-6, rope_theta=1000000.0, tie_word_embeddings=True,
        use_sliding_window=False, sliding_window=32768, max_window_layers=24,
        eos_token_id=151645, bos_token_id=151643),
}
COMMON = dict(hidden_act="silu", attention_dropout=0.0, initializer_range=0.02, use_cache=True)
DTYPES = {"float32": "F32", "bfloat16": "BF16", "float16": "F16"}
DEFAULT_DTYPE = {"qwen2.5-0.5b": "bfloat16"}
CHUNK = 1 << 20  # hashes at a time: 8 MB, which stays in the cache


def splitmix64(state):
    """The output function of splitmix64 (Steele, Lea, Flood: OOPSLA 2014), on a uint64 array."""
    state ^= state >> np.uint64(30)
    state *= np.uint64(0xBF58476D1CE4E5B9)
    state ^= state >> np.uint64(27)
    state *= np.uint64(0x94D049BB133111EB)
    state ^= state >> np.uint64(31)
    return state


def stream_of(name, seed):
    """FNV-1a of the tensor's name, so that a tensor's values depend on no other tensor."""
    value = 0xCBF29CE484222325 ^ (seed * 0x9E3779B97F4A7C15 & (1 << 64) - 1)
    for byte in name.encode():
        value = (value ^ byte) * 0x100000001B3 & (1 << 64) - 1
    return value


def uniform_chunks(name, seed, count):
    """Float32 values uniform in (-sqrt 3, sqrt 3), so of variance 1: four from each hash."""
    stream = np.uint64(stream_of(name, seed))
    step = np.uint64(0x9E3779B97F4A7C15)
    for begin in range(0, count, 4 * CHUNK):
        size = min(count - begin, 4 * CHUNK)
        index = np.arange(begin // 4, begin // 4 + (size + 3) // 4, dtype=np.uint64)
        bits = splitmix64(index * step + stream).astype("<u8", copy=False).view("<u2")[:size]
        # Each operation is exact or rounded once: no machine can differ.
        yield (bits.astype(np.float32) - np.float32(32767.5)) * np.float32(3 ** 0.5 / 32768)


def encode(values, dtype):
    if dtype == "F32":
        return values.astype("<f4").tobytes()
    if dtype == "F16":
        return values.astype("<f2").tobytes()
    bits = values.astype("<f4").view("<u4")
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype("<u2").tobytes()  # to nearest, ties to even


def tensors_of(config):
    """(name, shape, mean, standard deviation) of every tensor, in the order of the layers."""
    d, f, v = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    h = config.get("head_dim") or d // heads
    kind = config["model_type"]
    tied = config["tie_word_embeddings"]
    # Tied, the embedding is also the head: its size follows from that of the logits.
    yield "model.embed_tokens.weight", [v, d], 0, 2 / d ** 0.5 if tied else 1
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        attention = layer + "self_attn."
        yield layer + "input_layernorm.weight", [d], 1, 0.1
        for proj, rows, gain in (("q", heads * h, 1.5), ("k", kv_heads * h, 1.5),
                                 ("v", kv_heads * h, 1)):
            yield f"{attention}{proj}_proj.weight", [rows, d], 0, gain / d ** 0.5
            if kind == "qwen2":
                yield f"{attention}{proj}_proj.bias", [rows], 0, 0.3
        if kind == "qwen3":
            yield attention + "q_norm.weight", [h], 1.5, 0.2
            yield attention + "k_norm.weight", [h], 1.5, 0.2
        # Less attention than feed-forward: the mean over a long context is alike for all tokens.
        yield attention + "o_proj.weight", [d, heads * h], 0, 0.5 / (heads * h) ** 0.5
        yield layer + "post_attention_layernorm.weight", [d], 1, 0.1
        yield layer + "mlp.gate_proj.weight", [f, d], 0, 1 / d ** 0.5
        yield layer + "mlp.up_proj.weight", [f, d], 0, 1 / d ** 0.5
        yield layer + "mlp.down_proj.weight", [d, f], 0, 1 / f ** 0.5
    yield "model.norm.weight", [d], 1, 0.1
    if not tied:
        yield "lm_head.weight", [v, d], 0, 2 / d ** 0.5


def all_uniform(seed):
    return lambda name, count: np.concatenate(list(uniform_chunks(name, seed, count)))


def float_tensor(name, shape, mean, deviation, dtype, seed):
    def chunks():
        for values in uniform_chunks(name, seed, int(np.prod(shape))):
            values *= np.float32(deviation)
            if mean:
                values += np.float32(mean)
            yield encode(values, dtype)
    return name, dtype, shape, chunks


def array_tensor(name, dtype, array):
    return name, dtype, list(array.shape), lambda: [np.ascontiguousarray(array).tobytes()]


def scales_of(scale, dtype):
    """What the file holds, and its values."""
    encoded = encode(scale, dtype)
    if dtype == "F16":
        return encoded, np.frombuffer(encoded, "<f2").astype(np.float32).reshape(scale.shape)
    bits = np.frombuffer(encoded, "<u2").astype(np.uint32) << np.uint32(16)
    return encoded, bits.view(np.float32).reshape(scale.shape)


def quantized_tensors(name, shape, deviation, quantization, dequantized, seed):
    """The tensors of one quantised matrix, or the one of the float matrix that it stands for."""
    q, zero, scale, group_of = quantization.matrix(name, shape, deviation, all_uniform(seed))
    encoded, values = scales_of(scale.T.copy(), quantization.scale_dtype)
    if dequantized:
        weights = (q - zero[:, group_of]).astype(np.float32) * values.T[:, group_of]
        yield array_tensor(name, "F32", weights.astype("<f4"))
        return
    module = name.removesuffix("weight")
    if quantization.method == "awq":
        arrays = quantized_checkpoint.awq_tensors(module, q, zero)
    else:
        arrays = quantized_checkpoint.gptq_tensors(module, quantization, q, zero, group_of)
    for tensor in arrays:
        yield array_tensor(*tensor)
    yield module + "scales", quantization.scale_dtype, list(scale.T.shape), lambda: [encoded]
    if quantization.method == "gptq" and name.endswith("o_proj.weight"):
        # AutoGPTQ wrote biases for modules that have none.
        yield array_tensor(module + "bias", "F16", np.zeros(shape[0], "<f2"))


def stored_tensors(config, dtype, seed, quantization, dequantized):
    """(name, dtype, shape, function that yields the bytes), in the order of the layers."""
    for name, shape, mean, deviation in tensors_of(config):
        if quantization and quantization.has(name):
            yield from quantized_tensors(name, shape, deviation, quantization, dequantized, seed)
        else:
            yield float_tensor(name, shape, mean, deviation, dtype, seed)


WIDTHS = {"F32": 4, "I32": 4, "BF16": 2, "F16": 2}


def write_safetensors(path, tensors):
    header, place = {"__metadata__": {"format": "pt"}}, 0
    for name, dtype, shape, _ in tensors:
        size = int(np.prod(shape)) * WIDTHS[dtype]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [place, place + size]}
        place += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, _, chunks in tensors:
            for chunk in chunks():
                file.write(chunk)
    return place


def write_weights(directory, tensors, shard_count):
    if shard_count == 1:
        write_safetensors(os.path.join(directory, "model.safetensors"), tensors)
        return
    # Round robin: neighbours in the model lie in different files.
    weight_map, total = {}, 0
    for shard in range(shard_count):
        name = f"model-{shard + 1:05d}-of-{shard_count:05d}.safetensors"
        chosen = tensors[shard::shard_count]
        total += write_safetensors(os.path.join(directory, name), chosen)
        weight_map.update({tensor[0]: name for tensor in chosen})
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(weight_map.items()))}
    write_json(os.path.join(directory, "model.safetensors.index.json"), index)


def write_json(path, value):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=2)
        file.write("\n")


def config_of(shape, dtype_name, rope_style, vocab_size, layer_count, ffn_dim):
    config = {**SHAPES[shape], **COMMON}
    if ffn_dim:
        config["intermediate_size"] = ffn_dim
    if vocab_size:
        config["vocab_size"] = vocab_size
        stops = np.atleast_1d(config["eos_token_id"]).tolist()
        config["eos_token_id"] = [stop for stop in stops if stop < vocab_size]
    if layer_count:
        config["num_hidden_layers"] = layer_count
    if rope_style == "new":  # Transformers 5
        rope = {"rope_type": "default", **(config.pop("rope_scaling", None) or {})}
        config["rope_parameters"] = {"rope_theta": config.pop("rope_theta"), **rope}
        config["dtype"] = dtype_name
    else:
        config["torch_dtype"] = dtype_name
    return config


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("shape", choices=SHAPES)
    parser.add_argument("directory")
    parser.add_argument("--dtype", choices=DTYPES, help="float32; bfloat16 for qwen2.5-0.5b")
    parser.add_argument("--shards", type=int, default=1, help="weight files (default 1)")
    parser.add_argument("--rope-style", choices=("old", "new"), default="old",
                        help="config.json's key names: before or since Transformers 5")
    parser.add_argument("--tokenizer", metavar="PATH", help="tokenizer.json to copy")
    parser.add_argument("--vocab-size", type=int, help="instead of the shape's own")
    parser.add_argument("--layers", type=int, help="instead of the shape's own")
    parser.add_argument("--intermediate-size", type=int, help="instead of the shape's own")
    parser.add_argument("--seed", type=int, default=0)
    quantized = parser.add_argument_group("matrices of few bits")
    quantized.add_argument("--quantize", choices=("gptq", "awq"), help="the _proj matrices")
    quantized.add_argument("--bits", type=int, choices=(4, 8), default=4)
    quantized.add_argument("--group-size", type=int, default=128, help="columns; -1: all")
    quantized.add_argument("--sym", action="store_true", help="one zero point for all (gptq)")
    quantized.add_argument("--desc-act", action="store_true", help="columns in another order (gptq)")
    quantized.add_argument("--gptq-version", type=int, choices=(1, 2), default=1)
    quantized.add_argument("--scale-dtype", choices=("F16", "BF16"), default="F16")
    quantized.add_argument("--float-modules", nargs="*", default=(), metavar="NAME",
                           help="stay as they are, e.g. down_proj")
    quantized.add_argument("--dequantize", action="store_true",
                           help="write the float checkpoint that the quantised one stands for")
    args = parser.parse_args()
    if args.shards < 1:
        parser.error("--shards: expected at least 1")
    dtype_name = args.dtype or DEFAULT_DTYPE.get(args.shape, "float32")
    config = config_of(args.shape, dtype_name, args.rope_style, args.vocab_size, args.layers,
                       args.intermediate_size)
    quantization = None
    if args.quantize:
        quantization = quantized_checkpoint.Quantization(
            args.quantize, args.bits, args.group_size, args.sym, args.desc_act, args.gptq_version,
            args.scale_dtype, args.float_modules)
        if not args.dequantize:
            config["quantization_config"] = quantization.config()
    os.makedirs(args.directory, exist_ok=True)
    for name in os.listdir(args.directory):  # of an earlier run with other options
        if name.endswith((".safetensors", ".safetensors.index.json")):
            os.remove(os.path.join(args.directory, name))
    write_json(os.path.join(args.directory, "config.json"), config)
    write_json(os.path.join(args.directory, "generation_config.json"),
               {"eos_token_id": config["eos_token_id"], "bos_token_id": config["bos_token_id"],
                "do_sample": False})
    if args.tokenizer:
        shutil.copyfile(args.tokenizer, os.path.join(args.directory, "tokenizer.json"))
    tensors = list(stored_tensors(config, DTYPES[dtype_name], args.seed, quantization,
                                  args.dequantize))
    write_weights(args.directory, tensors, args.shards)
    return 0


if __name__ == "__main__":
    sys.exit(main())
