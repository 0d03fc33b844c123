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
import copy
import json
import os
import shutil
import struct
import sys
import typing

import numpy as np

import quantized_checkpoint
from checkpoint_shapes import COMMON, FAMILIES, NEMOTRON_LAYERS, SHAPES, VISION_TENSORS, kinds

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


def text_of(config):
    """What describes the language model: all of it, or a part of a model that also sees."""
    return config.get("text_config", config)


def tied_of(config):
    text = text_of(config)
    return text.get("tie_word_embeddings", FAMILIES[text["model_type"]].tied)


def head_dim_of(text):
    return (text.get("head_dim") or FAMILIES[text["model_type"]].head_dim
            or text["hidden_size"] // text["num_attention_heads"])


def shares_kv(text, layer):
    """Whether nothing is read of the layer's k and v, which are there."""
    return layer >= text["num_hidden_layers"] - text.get("num_kv_shared_layers", 0)


def heads_of(text, layer):
    """The head_dim and num_key_value_heads of a layer."""
    heads, kv_heads = head_dim_of(text), text["num_key_value_heads"]
    if "global_head_dim" not in text or kinds_of(text)[layer] != "full_attention":
        return heads, kv_heads
    return text["global_head_dim"], text["attention_k_eq_v"] and text.get("num_global_key_value_heads") or kv_heads


def layer_input_tensors(text, layer, norm):
    d, width = text["hidden_size"], text["hidden_size_per_layer_input"]
    yield layer + "layer_scalar", [1], 0.9, 0.1
    if width:
        yield layer + "per_layer_input_gate.weight", [width, d], 0, 1 / d ** 0.5
        yield layer + "per_layer_projection.weight", [d, width], 0, 1 / width ** 0.5
        yield norm(layer + "post_per_layer_input_norm", d, 0.5)


def experts_beside_tensors(text, layer, norm):
    """Experts beside the MLP, with norms of their own, and what is behind the MLP then."""
    d, f, count = text["hidden_size"], text["moe_intermediate_size"], text["num_experts"]
    # What is multiplied by proj has a length of about 1.
    yield layer + "router.scale", [d], 1, 0.2
    yield layer + "router.proj.weight", [count, d], 0, 4
    yield layer + "router.per_expert_scale", [count], 1, 0.3
    yield layer + "experts.gate_up_proj", [count, 2 * f, d], 0, 1 / d ** 0.5
    yield layer + "experts.down_proj", [count, d, f], 0, 1 / f ** 0.5
    yield norm(layer + "pre_feedforward_layernorm_2", d, 1)
    yield norm(layer + "post_feedforward_layernorm_1", d, 0.7)
    # Less than the MLP's part: a rounding may turn a choice.
    yield norm(layer + "post_feedforward_layernorm_2", d, 0.2)


def tensors_of(config):
    """(name, shape, mean, standard deviation) of every tensor, in the order of the layers."""
    text = text_of(config)
    family = FAMILIES[text["model_type"]]
    prefix = "model." if text is config else family.nested
    d, v = text["hidden_size"], text["vocab_size"]

    def norm(name, size, gain, deviation=0.1):
        return name + ".weight", [size], gain - family.norm_offset, deviation

    embedding, last_gain, head = text_gains(text)
    if family.mtp:
        yield norm("mtp.norm", d, 1)
        yield "mtp.fc.weight", [d, 2 * d], 0, 1 / d ** 0.5
    if text.get("mtp_num_hidden_layers"):
        yield from mtp_tensors(text, family, norm)
    if text["model_type"] == "nemotron_h":
        yield from nemotron_tensors(text, norm)
        return
    yield prefix + "embed_tokens.weight", [v, d], 0, embedding
    if text.get("hidden_size_per_layer_input"):
        width = text["hidden_size_per_layer_input"]
        columns = text["num_hidden_layers"] * width
        rows = text["vocab_size_per_layer_input"]
        yield prefix + "embed_tokens_per_layer.weight", [rows, columns], 0, 1 / width ** 0.5
        yield prefix + "per_layer_model_projection.weight", [columns, d], 0, 2
        yield norm(prefix + "per_layer_projection_norm", width, 1)
    for i in range(text["num_hidden_layers"]):
        layer = f"{prefix}layers.{i}."
        norms = family.norms._asdict()
        norms = {place: name and (layer + name, d) for place, name in norms.items()}
        if norms["before_attention"]:
            yield norm(*norms["before_attention"], 1)
        yield from mixer_tensors(text, family, layer, i, norm)
        if norms["after_attention"]:
            yield norm(*norms["after_attention"], 0.5)
        if norms["before_mlp"]:
            yield norm(*norms["before_mlp"], 1)
        if family.shared and i not in family.dense_layers(text):
            yield from shared_tensors(text, layer + family.shared)
        yield from mlp_tensors(text, family, layer + family.mlp, i)
        if norms["after_mlp"]:
            yield norm(*norms["after_mlp"], 1)
        if text["model_type"] == "gemma4_text":
            yield from layer_input_tensors(text, layer, norm)
            if text["enable_moe_block"]:
                yield from experts_beside_tensors(text, layer, norm)
    for i in range(text.get("num_nextn_predict_layers", 0)):
        yield from nextn_tensors(text, family, f"{prefix}layers.", text["num_hidden_layers"] + i, norm)
    yield norm(prefix + family.final_norm, d, last_gain, 0.1 * last_gain)
    if not tied_of(config):
        yield ("language_model." if prefix == "language_model.model." else "") + "lm_head.weight", [v, d], 0, head
    yield from vision_tensors(config)


def mtp_tensors(text, family, norm):
    """The rest of a head for multi-token prediction: norms, and a layer as the model's that attend."""
    d, index = text["hidden_size"], kinds_of(text).index("full_attention")
    yield norm("mtp.pre_fc_norm_embedding", d, 1)
    yield norm("mtp.pre_fc_norm_hidden", d, 1)
    layer = "mtp.layers.0."
    yield norm(layer + family.norms.before_attention, d, 1)
    yield from attention_tensors(text, family, layer + "self_attn.", index, norm)
    yield norm(layer + family.norms.before_mlp, d, 1)
    if family.shared:
        yield from shared_tensors(text, layer + family.shared)
    yield from mlp_tensors(text, family, layer + family.mlp, index)


def nextn_tensors(text, family, layers, index, norm):
    """A head behind the last layer, as that one is; with copies of the embedding and of the LM head."""
    d, v, layer = text["hidden_size"], text["vocab_size"], f"{layers}{index}."
    embedding, last_gain, head = text_gains(text)
    yield norm(layer + "enorm", d, 1)
    yield norm(layer + "hnorm", d, 1)
    yield layer + "eh_proj.weight", [d, 2 * d], 0, 1 / d ** 0.5
    yield norm(layer + family.norms.before_attention, d, 1)
    yield from attention_tensors(text, family, layer + "self_attn.", index, norm)
    yield norm(layer + family.norms.before_mlp, d, 1)
    yield from mlp_tensors(text, family, layer + family.mlp, index)
    yield norm(layer + "shared_head.norm", d, last_gain, 0.1 * last_gain)
    yield layer + "embed_tokens.weight", [v, d], 0, embedding
    yield layer + "shared_head.head.weight", [v, d], 0, head


def copied_from(text, name):
    """The tensor of the model that this one of a head is a copy of; else itself."""
    if is_beyond_layers(text, name):
        if name.endswith(".embed_tokens.weight"):
            return "model.embed_tokens.weight"
        if name.endswith(".shared_head.head.weight"):
            return "lm_head.weight"
    return name


def nemotron_tensors(text, norm):
    """Of a model whose layers are one sublayer each, as the published checkpoints call them."""
    family, d = FAMILIES["nemotron_h"], text["hidden_size"]
    embedding, last_gain, head = text_gains(text)
    yield "backbone.embeddings.weight", [text["vocab_size"], d], 0, embedding
    types = text.get("layers_block_type") or map(NEMOTRON_LAYERS.get, text["hybrid_override_pattern"])
    for i, kind in enumerate(types):
        layer = f"backbone.layers.{i}."
        mixer = layer + family.mlp
        yield norm(layer + "norm", d, 1)
        if kind == "linear_attention":
            yield from mamba_tensors(text, mixer)
        elif kind == "full_attention":
            yield from attention_tensors(text, family, mixer, i, norm)
        elif kind == "mlp":
            yield from squared_mlp_tensors(mixer, text["intermediate_size"], d, "")
        else:
            count = text["n_routed_experts"]
            yield mixer + "gate.weight", [count, d], 0, 8 / d ** 0.5
            yield mixer + family.choice_bias, [count], 0, 0.3
            yield from squared_mlp_tensors(mixer + "experts.", text["moe_intermediate_size"], d, count)
            yield from squared_mlp_tensors(mixer + "shared_experts.",
                                           text["moe_shared_expert_intermediate_size"], d, "")
    yield norm("backbone.norm_f", d, last_gain, 0.1 * last_gain)
    yield "lm_head.weight", [text["vocab_size"], d], 0, head


def squared_mlp_tensors(mlp, f, d, count):
    """An MLP without a gate; of `count` experts, if it is a number."""
    stacked, suffix = ([count], "") if count else ([], ".weight")
    # Sigmoids are alike: all experts have little weight.
    gain = 0.25 if count else 0.6
    yield f"{mlp}up_proj{suffix}", [*stacked, f, d], 0, 1 / d ** 0.5
    yield f"{mlp}down_proj{suffix}", [*stacked, d, f], 0, gain / f ** 0.5


def text_gains(text):
    """The embedding's standard deviation, the last norm's gain, and the LM head's standard deviation."""
    family, d = FAMILIES[text["model_type"]], text["hidden_size"]
    head = 2 * text.get("logits_scaling", 1) / d ** 0.5
    entering = d ** 0.5 if family.scaled_embedding else text.get("embedding_multiplier", 1)
    if not tied_of(text):
        return 1 / entering, 1, head
    # Tied, the embedding is also the head: its size follows from that of the logits.
    if entering == 1:
        return head, 1, head
    # Multiplied, it must stay small beside what the layers add: each token's own logit would be the best.
    embedding = 0.3 * text.get("residual_multiplier", 1) / entering
    return embedding, head / embedding, embedding


def latent_tensors(text, attention, norm):
    d, heads, rank = text["hidden_size"], text["num_attention_heads"], text["kv_lora_rank"]
    plain, rotated, value = (text[f"{kind}_head_dim"] for kind in ("qk_nope", "qk_rope", "v"))
    q_rank = text["q_lora_rank"]
    if q_rank:
        yield attention + "q_a_proj.weight", [q_rank, d], 0, 1 / d ** 0.5
        yield norm(attention + "q_a_layernorm", q_rank, 1, 0.2)
    yield (f"{attention}q_{'b_' if q_rank else ''}proj.weight", [heads * (plain + rotated), q_rank or d], 0,
           1.5 / (q_rank or d) ** 0.5)
    yield attention + "kv_a_proj_with_mqa.weight", [rank + rotated, d], 0, 1.5 / d ** 0.5
    yield norm(attention + "kv_a_layernorm", rank, 1, 0.2)
    yield attention + "kv_b_proj.weight", [heads * (plain + value), rank], 0, 1 / rank ** 0.5
    yield attention + "o_proj.weight", [d, heads * value], 0, 0.5 / (heads * value) ** 0.5


def mixer_tensors(text, family, layer, index, norm):
    """What lies between the tokens: attention, or a recurrent layer."""
    kind = kinds_of(text)[index]
    if kind == "conv":
        yield from short_conv_tensors(text, layer + "conv.")
    elif kind == "linear_attention":
        yield from delta_tensors(text, layer + "linear_attn.")
    elif kind == "mamba":
        yield from mamba_tensors(text, layer + "mamba.")
    else:
        yield from attention_tensors(text, family, layer + "self_attn.", index, norm)


def kinds_of(text):
    recurrent = "linear_attention" if text["model_type"].startswith(("qwen3_5", "qwen3_next")) else "full_attention"
    interval = text.get("full_attention_interval", 4)
    return text.get("layer_types") or [
        "full_attention" if (i + 1) % interval == 0 else recurrent
        for i in range(text["num_hidden_layers"])]


def short_conv_tensors(text, conv):
    d, taps = text["hidden_size"], text["conv_L_cache"]
    yield conv + "conv.weight", [d, 1, taps], 0, 1 / taps ** 0.5
    yield conv + "in_proj.weight", [3 * d, d], 0, 1.5 / d ** 0.5
    yield conv + "out_proj.weight", [d, d], 0, 0.7 / d ** 0.5
    if text.get("conv_bias"):
        for name, rows in (("conv", d), ("in_proj", 3 * d), ("out_proj", d)):
            yield f"{conv}{name}.bias", [rows], 0, 0.2


def delta_tensors(text, delta):
    d, taps, heads = text["hidden_size"], text["linear_conv_kernel_dim"], text["linear_num_value_heads"]
    value = heads * text["linear_value_head_dim"]
    channels = 2 * text["linear_num_key_heads"] * text["linear_key_head_dim"] + value
    yield delta + "conv1d.weight", [channels, 1, taps], 0, 1 / taps ** 0.5
    projections = (("qkv", channels, 1.5), ("z", value, 1.5), ("b", heads, 1.5), ("a", heads, 1))
    if text["model_type"] == "qwen3_next":
        projections = (("qkvz", channels + value, 1.5), ("ba", 2 * heads, 1.2))
    for name, rows, gain in projections:
        yield f"{delta}in_proj_{name}.weight", [rows, d], 0, gain / d ** 0.5
    # The state keeps some tens of tokens, more or less of them by head.
    yield delta + "A_log", [heads], 0, 0.7
    yield delta + "dt_bias", [heads], -3, 1
    yield delta + "norm.weight", [text["linear_value_head_dim"]], 1, 0.2
    yield delta + "out_proj.weight", [d, value], 0, 0.7 / value ** 0.5


class MambaSizes(typing.NamedTuple):
    heads: int
    width: int
    states: int  # of all groups
    taps: int
    conv_bias: bool
    biased: bool  # the products


def mamba_sizes_of(text):
    if text["model_type"] == "nemotron_h":
        heads = text["mamba_num_heads"]
        return MambaSizes(heads, heads * text["mamba_head_dim"], text["n_groups"] * text["ssm_state_size"],
                          text["conv_kernel"], text["use_conv_bias"], text["use_bias"])
    return MambaSizes(text["mamba_n_heads"], text["mamba_expand"] * text["hidden_size"],
                      text["mamba_n_groups"] * text["mamba_d_state"], text["mamba_d_conv"],
                      text["mamba_conv_bias"], text["mamba_proj_bias"])


def mamba_tensors(text, mamba):
    d = text["hidden_size"]
    heads, width, states, taps, conv_bias, biased = mamba_sizes_of(text)
    channels = width + 2 * states
    rows = width + channels + heads
    yield mamba + "conv1d.weight", [channels, 1, taps], 0, 1.5 / taps ** 0.5
    if conv_bias:
        yield mamba + "conv1d.bias", [channels], 0, 0.3
    yield mamba + "in_proj.weight", [rows, d], 0, 1.2 / d ** 0.5
    # The state keeps some tens of tokens, more or less of them by head.
    yield mamba + "A_log", [heads], 0, 0.7
    yield mamba + "dt_bias", [heads], -3, 1
    yield mamba + "D", [heads], 1, 0.3
    yield mamba + "norm.weight", [width], 1, 0.2
    yield mamba + "out_proj.weight", [d, width], 0, 0.7 / width ** 0.5
    if biased:
        yield mamba + "in_proj.bias", [rows], 0, 0.2
        yield mamba + "out_proj.bias", [d], 0, 0.2


def attention_tensors(text, family, attention, index, norm):
    if text.get("kv_lora_rank"):
        yield from latent_tensors(text, attention, norm)
        return
    d, heads = text["hidden_size"], text["num_attention_heads"]
    h, kv_heads = heads_of(text, index)
    biased = "qkvo" if text["model_type"] == "granitemoehybrid" and text["attention_bias"] else family.biased
    projections = (("q", heads * h * (2 if family.gated else 1), 1.5), ("k", kv_heads * h, 1.5), ("v", kv_heads * h, 1))
    if family.fused:
        projections = (("qkv", (heads + 2 * kv_heads) * h, 1.5),)
    if text.get("attention_k_eq_v") and kinds_of(text)[index] == "full_attention":
        projections = projections[:2]
    for proj, rows, gain in projections:
        yield f"{attention}{proj}_proj.weight", [rows, d], 0, gain / d ** 0.5
        if proj in biased:
            yield f"{attention}{proj}_proj.bias", [rows], 0, 0.3
    if family.qk_norms:
        for name, count in zip(family.qk_names, (heads, kv_heads)):
            size = h if family.qk_norms == "head" else count * h
            yield norm(attention + name, size, family.qk_gain, 0.2)
    # Less attention than feed-forward: the mean over a long context is alike for all tokens.
    yield f"{attention}{family.output}.weight", [d, heads * h], 0, 0.5 / (heads * h) ** 0.5
    if "o" in biased:
        yield attention + "o_proj.bias", [d], 0, 0.1
    if family.sinks:
        yield attention + "sinks", [heads], 1, 1


def is_beyond_layers(text, name):
    """Whether it is a tensor of layers for speculation: behind the last one, or apart."""
    if name.startswith("mtp."):
        return True
    layer = name.partition("model.layers.")[2].partition(".")[0]
    return layer.isdigit() and int(layer) >= text["num_hidden_layers"]


def expert_count_of(text):
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        if key in text:
            return text[key]
    return 0


def shared_tensors(text, shared):
    d = text["hidden_size"]
    if text["model_type"] == "granitemoehybrid":
        f = text["shared_intermediate_size"]
        yield shared + "input_linear.weight", [2 * f, d], 0, 1 / d ** 0.5
        yield shared + "output_linear.weight", [d, f], 0, 1 / f ** 0.5
        return
    f = text["shared_expert_intermediate_size"]
    for name in ("gate", "up"):
        yield f"{shared}{name}_proj.weight", [f, d], 0, 1 / d ** 0.5
    yield shared + "down_proj.weight", [d, f], 0, 1 / f ** 0.5
    yield shared.removesuffix(".") + "_gate.weight", [1, d], 0, 2 / d ** 0.5


def ffn_dim_of(text):
    f = text["intermediate_size"]
    if not text.get("block_auto_adjust_ff_dim"):
        return f
    multiple = text["block_multiple_of"]
    return -(-int(text["block_ffn_dim_multiplier"] * (2 * f // 3)) // multiple) * multiple


def mlp_tensors(text, family, mlp, layer):
    d, f = text["hidden_size"], text.get("intermediate_size")
    if family.fused_experts:
        count = text["num_local_experts"]
        yield mlp + "router.weight", [count, d], 0, 5 / d ** 0.5
        yield mlp + "router.bias", [count], 0, 2
        for name, rows, cols, gain in (("gate_up", 2 * f, d, 3), ("down", d, f, 0.03)):
            yield f"{mlp}experts.{name}_proj", [count, cols, rows], 0, gain / cols ** 0.5
            yield f"{mlp}experts.{name}_proj_bias", [count, rows], 0, 0.3
        return
    count = expert_count_of(text)
    if count == 0 and family.shared:
        return
    if family.experts and layer not in family.dense_layers(text):
        f = text.get("moe_intermediate_size", f)
        gate, up, down = family.experts
        # Where a rounding turns the choice of the last expert, that has little weight. Sigmoids are alike:
        # all experts have little.
        gain = 0.25 if family.choice_bias else 1
        yield f"{mlp}{family.router}.weight", [count, d], 0, 8 / d ** 0.5
        if family.stacked_experts:
            gate_up, down = family.stacked_experts
            yield mlp + gate_up, [count, 2 * f, d], 0, 1 / d ** 0.5
            yield mlp + down, [count, d, f], 0, 0.5 / f ** 0.5
            return
        for expert in range(count):
            yield f"{mlp}experts.{expert}.{gate}.weight", [f, d], 0, 1 / d ** 0.5
            yield f"{mlp}experts.{expert}.{up}.weight", [f, d], 0, 1 / d ** 0.5
            yield f"{mlp}experts.{expert}.{down}.weight", [d, f], 0, gain / f ** 0.5
        if family.choice_bias:
            yield mlp + family.choice_bias, [count], 0, 0.3
        if text.get("n_shared_experts"):
            f *= text["n_shared_experts"]
            yield mlp + "shared_experts.gate_proj.weight", [f, d], 0, 1 / d ** 0.5
            yield mlp + "shared_experts.up_proj.weight", [f, d], 0, 1 / d ** 0.5
            yield mlp + "shared_experts.down_proj.weight", [d, f], 0, 1 / f ** 0.5
        return
    gate, up, down = family.mlp_names
    f = ffn_dim_of(text)
    if text.get("use_double_wide_mlp") and shares_kv(text, layer):
        f *= 2
    if family.fused:
        yield mlp + "gate_up_proj.weight", [2 * f, d], 0, 1 / d ** 0.5
    else:
        yield f"{mlp}{gate}.weight", [f, d], 0, 1 / d ** 0.5
        yield f"{mlp}{up}.weight", [f, d], 0, 1 / d ** 0.5
    yield f"{mlp}{down}.weight", [d, f], 0, 1 / f ** 0.5


def vision_tensors(config):
    vision = config.get("vision_config")
    if not vision:
        return
    w, p = vision["hidden_size"], vision["patch_size"]
    sizes = {"3": 3, "w": w, "f": vision["intermediate_size"], "p": p, "m": 4 * w,
             "n": (vision.get("num_position_embeddings") or vision.get("position_embedding_size")
                   or (vision["image_size"] // p) ** 2),
             "2": 2, "q": 3 * w, "c": 3 * p * p, "h": w // vision.get("num_attention_heads", 1),
             "d": text_of(config)["hidden_size"]}
    for name, shape in VISION_TENSORS[vision["model_type"]].items():
        yield name, [sizes[letter] for letter in shape], 0, 0.1


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


def single_experts(family, name, shape, deviation, dtype, seed):
    """The matrices of each expert of a stacked tensor, as Transformers saves them."""
    values = all_uniform(seed)(name, int(np.prod(shape))).reshape(shape) * np.float32(deviation)
    parts = family.experts[:-1] if name.endswith(family.stacked_experts[0]) else family.experts[-1:]
    mlp = name[:name.rindex(family.mlp) + len(family.mlp)]
    for expert, matrix in enumerate(values):
        for part, rows in zip(parts, np.split(matrix, len(parts))):
            yield (f"{mlp}experts.{expert}.{part}.weight", dtype, list(rows.shape),
                   lambda rows=rows: [encode(rows, dtype)])


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


def mxfp4_tensors(name, shape, deviation, dequantized, seed):
    """The tensors of all experts' matrices of a kind in MXFP4, or the float one that they stand for."""
    count, cols, rows = shape
    codes, exponents, values = quantized_checkpoint.mxfp4(name, (count, rows, cols), deviation, all_uniform(seed))
    if dequantized:
        yield array_tensor(name, "F32", values.swapaxes(1, 2).astype("<f4"))
        return
    yield array_tensor(name + "_blocks", "U8", codes)
    yield array_tensor(name + "_scales", "U8", exponents)


GATED = ("gate_proj.weight", "up_proj.weight", "gate_up_proj.weight")


def stored_tensors(config, dtype, seed, quantization, dequantized, gated_gain, experts_apart):
    """(name, dtype, shape, function that yields the bytes), in the order of the layers."""
    family = FAMILIES[text_of(config)["model_type"]]
    for name, shape, mean, deviation in tensors_of(config):
        if experts_apart and family.stacked_experts and name.endswith(family.stacked_experts):
            yield from single_experts(family, name, shape, deviation, dtype, seed)
            continue
        if name.endswith(GATED):
            deviation *= gated_gain
        if quantization and quantization.method == "mxfp4":
            if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
                yield from mxfp4_tensors(name, shape, deviation, dequantized, seed)
                continue
        elif quantization and quantization.has(name):
            yield from quantized_tensors(name, shape, deviation, quantization, dequantized, seed)
            continue
        source = copied_from(text_of(config), name)
        yield name, *float_tensor(source, shape, mean, deviation, dtype, seed)[1:]


WIDTHS = {"U8": 1, "F32": 4, "I32": 4, "BF16": 2, "F16": 2}


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
    config = copy.deepcopy(SHAPES[shape])
    text = text_of(config)
    if text is config:
        text.update((key, value) for key, value in COMMON.items()
                    if key not in text and not (key == "hidden_act" and
                                                {"hidden_activation", "mlp_hidden_act"} & set(text)))
    if ffn_dim:
        text["intermediate_size"] = ffn_dim
    if vocab_size:
        text["vocab_size"] = vocab_size
        stops = np.atleast_1d(config["eos_token_id"]).tolist()
        config["eos_token_id"] = [stop for stop in stops if stop < vocab_size]
    if layer_count:
        text["num_hidden_layers"] = layer_count
        for key in {"layer_types", "no_rope_layers"} & set(text):
            text[key] = (text[key] * layer_count)[:layer_count]
    if rope_style == "new":
        use_new_names(text)
    # Models that came after Transformers 5 have no other spelling.
    config["dtype" if "rope_parameters" in text else "torch_dtype"] = dtype_name
    return config


def use_new_names(text):
    """As Transformers 5 writes what concerns the rotation, and the kinds of layers."""
    if "rope_parameters" in text:
        return
    if text["model_type"] == "nemotron_h":
        text["layers_block_type"] = [NEMOTRON_LAYERS[letter] for letter in text.pop("hybrid_override_pattern")]
        del text["num_hidden_layers"]
        return
    family = FAMILIES[text["model_type"]]
    scaling = text.pop("rope_scaling", None) or {}
    scaling = {"rope_type": scaling.get("type", "default"), **scaling}
    for key in ("partial_rotary_factor", "original_max_position_embeddings"):
        if key in text:
            scaling[key] = text[key]
    text.pop("partial_rotary_factor", None)
    if not family.thetas:
        text["rope_parameters"] = {"rope_theta": text.pop("rope_theta"), **scaling}
        return
    theta = text.pop("rope_theta", family.thetas["full_attention"])
    local_theta = text.pop("rope_local_base_freq", family.thetas["sliding_attention"])
    text["rope_parameters"] = {
        "full_attention": {"rope_theta": theta, **scaling},
        "sliding_attention": {"rope_theta": local_theta, "rope_type": "default"}}
    if "layer_types" not in text:
        text["layer_types"] = kinds(
            "L" if family.local_layers(text, layer) else "G"
            for layer in range(text["num_hidden_layers"]))
    text.pop("sliding_window_pattern", None)


def write_pooling(directory, dimensions):
    """What sentence-transformers keeps beside the model."""
    kinds_of_modules = ("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")
    write_json(os.path.join(directory, "modules.json"),
               [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
                for i, (kind, path) in enumerate(kinds_of_modules)])
    os.makedirs(os.path.join(directory, "1_Pooling"), exist_ok=True)
    write_json(os.path.join(directory, "1_Pooling", "config.json"),
               {"word_embedding_dimension": dimensions, "pooling_mode_cls_token": False,
                "pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True, "include_prompt": True})


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
    parser.add_argument("--experts-per-token", type=int, help="instead of the shape's own")
    parser.add_argument("--gated-gain", type=float, default=1, metavar="FACTOR",
                        help="on gate and up, so that their product may leave float16's range")
    parser.add_argument("--experts-apart", action="store_true",
                        help="each expert's matrices, where the shape has one tensor for all")
    parser.add_argument("--embeddings", action="store_true",
                        help="as a model for embeddings is saved: the vector of the last token, of length 1")
    parser.add_argument("--seed", type=int, default=0)
    quantized = parser.add_argument_group("matrices of few bits")
    quantized.add_argument("--quantize", choices=("gptq", "awq", "mxfp4"),
                           help="the _proj matrices; mxfp4: of gpt-oss's experts")
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
    if args.experts_per_token:
        config["num_experts_per_tok"] = args.experts_per_token
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
               {**{key: config[key] for key in ("eos_token_id", "bos_token_id") if key in config},
                "do_sample": False})
    if args.tokenizer:
        shutil.copyfile(args.tokenizer, os.path.join(args.directory, "tokenizer.json"))
    tensors = list(stored_tensors(config, DTYPES[dtype_name], args.seed, quantization,
                                  args.dequantize, args.gated_gain, args.experts_apart))
    if "layers_block_type" in config:  # as newer versions of Transformers call them in memory
        tensors = [(name.replace("backbone.", "model."), *others) for name, *others in tensors]
    if args.embeddings:
        tensors = [(name.removeprefix("model."), *others) for name, *others in tensors
                   if not name.startswith("lm_head.")]
        write_pooling(args.directory, config["hidden_size"])
    write_weights(args.directory, tensors, args.shards)
    return 0


if __name__ == "__main__":
    sys.exit(main())
