"""How llama.cpp lays out the tensors of models with recurrent layers: make_gguf.py's part for Granite's
hybrids, Qwen3.5 and Qwen3-Next. Each pair of functions is one way and the other."""

import numpy as np


def granite_names(name, has_experts):
    """What the package gguf calls the parts of a matrix, or a vector, of a Granite hybrid."""
    shared = ("block_sparse_moe.shared_experts.{}_proj", "shared_mlp.output_linear") if has_experts else (
        "mlp.{}_proj", "mlp.down_proj")
    for end, parts in (("block_sparse_moe.input_linear.weight", "block_sparse_moe.experts.{}"),
                       ("shared_mlp.input_linear.weight", shared[0])):
        if name.endswith(end):
            return [name.removesuffix(end) + parts.format(part) + ".weight" for part in ("gate", "up")]
    return [name.replace("shared_mlp.output_linear", shared[1]).replace("mamba.dt_bias", "mamba.dt_proj.bias")]


def granite_parts(text, tensors):
    """The same tensors as files have them."""
    parts = {}
    for name, values in tensors.items():
        names = granite_names(name, text["num_local_experts"] > 0)
        if name.endswith("mamba.A_log"):
            values = -np.exp(values)[:, None]
        elif name.endswith("mamba.D"):
            values = values[:, None]
        elif name.endswith("mamba.norm.weight"):
            values = values.reshape(text["mamba_n_groups"], -1)
        parts.update(zip(names, np.split(values, len(names), axis=-2) if len(names) > 1 else [values]))
    return parts


def granite_wholes(text, tensors, decoded):
    """The opposite; vectors are as they were."""
    decoded = dict(decoded)
    wholes = []
    for name, values in tensors.items():
        parts = [decoded[part] for part in granite_names(name, text["num_local_experts"] > 0)]
        wholes.append((name, np.concatenate(parts, axis=-2) if len(parts) > 1 else
                       parts[0] if values.ndim == 2 or values.ndim == 3 and "conv1d" not in name else values))
    return wholes


def delta_names(name):
    """What the package gguf calls the parts of a matrix, or a vector, of Qwen3.5 or Qwen3-Next."""
    for end, parts in (("mlp.experts.gate_up_proj", ("mlp.experts.gate_proj.weight", "mlp.experts.up_proj.weight")),
                       ("mlp.experts.down_proj", ("mlp.experts.down_proj.weight",)),
                       ("in_proj_qkvz.weight", ("in_proj_qkv.weight", "in_proj_z.weight")),
                       ("linear_attn.dt_bias", ("linear_attn.dt_proj.bias",))):
        if name.endswith(end):
            return [name.removesuffix(end) + part for part in parts]
    return [name]


def value_heads_in_turn(text, name, values, back=False):
    """Value heads 0, 1, 2, 3 of key heads 0, 0, 1, 1 become 0, 2, 1, 3, whose key heads are in turn."""
    axis = 1 if "out_proj" in name else 0
    keys, heads = text["linear_num_key_heads"], text["linear_num_value_heads"]
    before = 0
    if "in_proj_qkv." in name or "conv1d" in name:
        before = 2 * keys * text["linear_key_head_dim"]
    elif not any(part in name for part in ("in_proj_z.", "in_proj_a.", "in_proj_b.", "A_log", "dt_bias", "out_proj")):
        return values
    first, rest = np.split(values, [before], axis=axis)
    shape = (heads // keys, keys) if back else (keys, heads // keys)
    split = rest.reshape(*rest.shape[:axis], *shape, -1, *rest.shape[axis + 1:]).swapaxes(axis, axis + 1)
    return np.ascontiguousarray(np.concatenate([first, split.reshape(rest.shape)], axis=axis))


def key_heads_apart(text, values):
    """in_proj_qkvz has each key head's query, key, values and gates: those of a kind behind each other."""
    keys, key = text["linear_num_key_heads"], text["linear_key_head_dim"]
    of_values = text["linear_num_value_heads"] // keys * text["linear_value_head_dim"]
    of_heads = values.reshape(keys, -1, values.shape[-1])
    kinds = np.split(of_heads, np.cumsum([key, key, of_values]), axis=1)
    query, key, value, gate = (kind.reshape(-1, values.shape[-1]) for kind in kinds)
    return [np.concatenate([query, key, value]), gate]


def key_heads_together(text, parts):
    keys = text["linear_num_key_heads"]
    width = keys * text["linear_key_head_dim"]
    kinds = [*np.split(parts[0], [width, 2 * width]), parts[1]]
    return np.concatenate([kind.reshape(keys, -1, kind.shape[-1]) for kind in kinds], axis=1).reshape(
        -1, parts[0].shape[-1])


def delta_parts(text, tensors):
    """The same tensors as files have them."""
    parts = {}
    for name, values in tensors.items():
        names = delta_names(name)
        if "linear_attn." in name and text["model_type"] != "qwen3_next":
            values = value_heads_in_turn(text, name, values)
        if name.endswith("A_log"):
            values = -np.exp(values)
        if name.endswith("in_proj_qkvz.weight"):
            kinds = key_heads_apart(text, values)
        else:
            kinds = np.split(values, len(names), axis=-2) if len(names) > 1 else [values]
        parts.update(zip(names, map(np.ascontiguousarray, kinds)))
    return parts


def delta_wholes(text, tensors, decoded):
    """The opposite; vectors are as they were."""
    decoded = dict(decoded)
    wholes = []
    for name, values in tensors.items():
        parts = [decoded[part] for part in delta_names(name)]
        if name.endswith("in_proj_qkvz.weight"):
            parts = [key_heads_together(text, parts)]
        elif "linear_attn." in name and text["model_type"] != "qwen3_next":
            parts = [value_heads_in_turn(text, name, parts[0], back=True)]
        whole = np.concatenate(parts, axis=-2) if len(parts) > 1 else parts[0]
        wholes.append((name, values if values.ndim == 1 else whole))
    return wholes
