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
import copy
import json
import os
import shutil
import struct
import sys
import typing

import gguf
import numpy as np

import gguf_recurrent
import make_checkpoint


class Architecture(typing.NamedTuple):
    name: str
    interleaved: bool = False  # queries and keys: llama.cpp rotates pairs of neighbours
    key_length: bool = False  # whether the file says how large a head is
    dimension_count: bool = False  # whether the file says how much of it is rotated


ARCHITECTURES = {
    **dict.fromkeys(("LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM"),
                    Architecture("llama", True, True, True)),
    "Qwen2ForCausalLM": Architecture("qwen2", False, True, True),
    "Qwen3ForCausalLM": Architecture("qwen3", False, True, True),
    "Qwen3MoeForCausalLM": Architecture("qwen3moe", False, True, True),
    "OlmoeForCausalLM": Architecture("olmoe", False, False, True),
    "GptOssForCausalLM": Architecture("gpt-oss", False, True, True),
    **dict.fromkeys(("DeepseekV2ForCausalLM", "Glm4MoeLiteForCausalLM"), Architecture("deepseek2")),
    **dict.fromkeys(("Ministral3ForCausalLM", "Mistral3ForConditionalGeneration"),
                    Architecture("mistral3", True, True, True)),
    "Gemma2ForCausalLM": Architecture("gemma2", False, True),
    **dict.fromkeys(("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
                    Architecture("gemma3", False, True)),
    **dict.fromkeys(("Gemma4ForCausalLM", "Gemma4ForConditionalGeneration"), Architecture("gemma4")),
    "SmolLM3ForCausalLM": Architecture("smollm3", True, False, True),
    "Phi3ForCausalLM": Architecture("phi3", False, False, True),
    **dict.fromkeys(("Olmo2ForCausalLM", "Olmo3ForCausalLM"), Architecture("olmo2")),
    "GraniteForCausalLM": Architecture("granite", True, False, True),
    "SeedOssForCausalLM": Architecture("seed_oss", False, True),
    "Exaone4ForCausalLM": Architecture("exaone4", False, True),
    "GraniteMoeHybridForCausalLM": Architecture("granitehybrid", True, False, True),
    "NemotronHForCausalLM": Architecture("nemotron_h", False, True),
    "Lfm2ForCausalLM": Architecture("lfm2"),
    "Lfm2MoeForCausalLM": Architecture("lfm2moe"),
    "Qwen3_5ForCausalLM": Architecture("qwen35", False, True, True),
    "Qwen3_5MoeForCausalLM": Architecture("qwen35moe", False, True, True),
    "Qwen3NextForCausalLM": Architecture("qwen3next", False, True, True),
}
# What a published config.json leaves out.
DEFAULTS = {"gemma3_text": {"max_position_embeddings": 131072, "rms_norm_eps": 1e-6,
                            "rope_theta": 1e6, "rope_local_base_freq": 1e4,
                            "query_pre_attn_scalar": 256, "sliding_window_pattern": 6}}
TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K", "MXFP4")
WITHOUT_QUANTISER = ("Q4_K", "Q5_K", "Q6_K")
MODEL_ARCHITECTURES = {name: key for key, name in gguf.MODEL_ARCH_NAMES.items()}
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


def interleaved(values, heads):
    """llama.cpp rotates pairs of neighbours in queries and keys of some models, Transformers halves."""
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
        data = data.reshape(*values.shape[:-1], -1)
    else:
        data = gguf.quants.quantize(values, quant)
    decoded = gguf.quants.dequantize(data, quant).reshape(values.shape)
    return quant, data, decoded


def add_config(writer, architecture, text, ends):
    heads = text["num_attention_heads"]
    head_dim = make_checkpoint.head_dim_of(text)
    rope = rope_of(text)
    writer.add_context_length(text["max_position_embeddings"])
    writer.add_embedding_length(text["hidden_size"])
    writer.add_block_count(text["num_hidden_layers"])
    pattern = text.get("hybrid_override_pattern")
    if pattern:
        experts = "n_routed_experts" in text
        size = text["moe_intermediate_size" if experts else "intermediate_size"]
        writer.add_feed_forward_length([size * (letter in "-E") for letter in pattern])
    elif text.get("use_double_wide_mlp"):
        writer.add_feed_forward_length(
            [text["intermediate_size"] * (1 + make_checkpoint.shares_kv(text, layer))
             for layer in range(text["num_hidden_layers"])])
    elif "intermediate_size" in text:
        writer.add_feed_forward_length(make_checkpoint.ffn_dim_of(text))
    writer.add_head_count(heads)
    if text.get("kv_lora_rank"):
        add_latents(writer, text)
    elif "conv_L_cache" in text or "mamba_n_heads" in text:
        writer.add_head_count_kv([text["num_key_value_heads"] * kind.endswith("attention")
                                  for kind in text["layer_types"]])
        add_recurrence(writer, text)
    elif pattern:
        writer.add_head_count_kv([text["num_key_value_heads"] * (letter == "*") for letter in pattern])
        add_recurrence(writer, text)
    elif text["model_type"] == "gemma4_text":
        add_mixed_layers(writer, text, rope)
    else:
        writer.add_head_count_kv(text["num_key_value_heads"])
    if "linear_num_key_heads" in text:
        add_delta(writer, architecture, text)
    if architecture.key_length:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if architecture.dimension_count:
        writer.add_rope_dimension_count(int(head_dim * rope.get("partial_rotary_factor", 1)))
    writer.add_layer_norm_rms_eps(text["norm_eps" if "norm_eps" in text else "rms_norm_eps"])
    if architecture.name != "gemma2" and not pattern:
        writer.add_rope_freq_base(rope["rope_theta"])
    add_rope_scaling(writer, text, rope, head_dim)
    add_windows(writer, text)
    add_scales(writer, text)
    add_experts(writer, text)
    ends = ends if isinstance(ends, list) else [ends]
    for end, add in zip(ends, (writer.add_eos_token_id, writer.add_eot_token_id)):
        add(end)


def add_mixed_layers(writer, text, rope):
    """What Gemma 4 says of layers that differ."""
    layers = range(text["num_hidden_layers"])
    writer.add_head_count_kv([make_checkpoint.heads_of(text, layer)[1] for layer in layers])
    wide, narrow = text["global_head_dim"], text["head_dim"]
    for add in (writer.add_key_length, writer.add_value_length, writer.add_rope_dimension_count):
        add(wide)
    for add in (writer.add_key_length_swa, writer.add_value_length_swa, writer.add_rope_dimension_count_swa):
        add(narrow)
    writer.add_rope_freq_base_swa(text["rope_parameters"]["sliding_attention"]["rope_theta"])
    writer.add_sliding_window(text["sliding_window"])
    writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in text["layer_types"]])
    writer.add_shared_kv_layers(text["num_kv_shared_layers"])
    writer.add_embedding_length_per_layer_input(text["hidden_size_per_layer_input"])
    # Of the pairs of a whole head the first ones turn.
    turning = int(wide * rope["partial_rotary_factor"] / 2)
    factors = [1.0] * turning + [1e30] * (wide // 2 - turning)
    writer.add_tensor("rope_freqs.weight", np.array(factors, np.float32))


def add_recurrence(writer, text):
    if "conv_L_cache" in text:
        writer.add_shortconv_l_cache(text["conv_L_cache"])
        return
    if "hybrid_override_pattern" in text:
        writer.add_ssm_conv_kernel(text["conv_kernel"])
        writer.add_ssm_state_size(text["ssm_state_size"])
        writer.add_ssm_group_count(text["n_groups"])
        writer.add_ssm_inner_size(text["mamba_num_heads"] * text["mamba_head_dim"])
        writer.add_ssm_time_step_rank(text["mamba_num_heads"])
        writer.add_rope_scaling_finetuned(False)
        return
    writer.add_ssm_conv_kernel(text["mamba_d_conv"])
    writer.add_ssm_state_size(text["mamba_d_state"])
    writer.add_ssm_group_count(text["mamba_n_groups"])
    writer.add_ssm_inner_size(text["mamba_expand"] * text["hidden_size"])
    writer.add_ssm_time_step_rank(text["mamba_n_heads"])
    writer.add_rope_scaling_finetuned(False)  # by which llama.cpp knows that there is no rotation
    writer.add_expert_shared_feed_forward_length(text["shared_intermediate_size"])


def add_delta(writer, architecture, text):
    writer.add_ssm_conv_kernel(text["linear_conv_kernel_dim"])
    writer.add_ssm_state_size(text["linear_key_head_dim"])
    writer.add_ssm_group_count(text["linear_num_key_heads"])
    writer.add_ssm_time_step_rank(text["linear_num_value_heads"])
    writer.add_ssm_inner_size(text["linear_value_head_dim"] * text["linear_num_value_heads"])
    if "layer_types" in text:
        kinds = [kind == "linear_attention" for kind in text["layer_types"]]
        writer.add_array(f"{architecture.name}.attention.recurrent_layers", kinds)
    writer.add_full_attention_interval(text.get("full_attention_interval", 4))
    if architecture.name != "qwen3next":
        writer.add_rope_dimension_sections([11, 11, 10, 0])


def add_latents(writer, text):
    rank, rotated = text["kv_lora_rank"], text["qk_rope_head_dim"]
    writer.add_head_count_kv(1)
    writer.add_kv_lora_rank(rank)
    if text["q_lora_rank"]:
        writer.add_q_lora_rank(text["q_lora_rank"])
    writer.add_key_length(rank + rotated)
    writer.add_value_length(rank)
    writer.add_key_length_mla(text["qk_nope_head_dim"] + rotated)
    writer.add_value_length_mla(text["v_head_dim"])
    writer.add_rope_dimension_count(rotated)


def rope_of(text):
    """The rotation in the layers without a window, in Transformers 5's words."""
    text = copy.deepcopy(text)
    make_checkpoint.use_new_names(text)
    rope = text.get("rope_parameters", {"rope_type": "default"})  # none: no rotation
    return rope.get("full_attention", rope)


def add_rope_scaling(writer, text, rope, head_dim):
    kind = rope["rope_type"]
    if kind == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        for key, add in (("attention_factor", writer.add_rope_scaling_yarn_attn_factor),
                         ("beta_fast", writer.add_rope_scaling_yarn_beta_fast),
                         ("beta_slow", writer.add_rope_scaling_yarn_beta_slow)):
            if key in rope:
                add(rope[key])
    if text["model_type"] == "deepseek_v2" and kind == "yarn":
        writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    if text["model_type"] == "ministral3":
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    if kind == "longrope":
        original = rope["original_max_position_embeddings"]
        factor = text["max_position_embeddings"] / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors((1 + np.log(factor) / np.log(original)) ** 0.5)
        for name in ("long", "short"):
            writer.add_tensor(f"rope_factors_{name}.weight",
                              np.array(rope[f"{name}_factor"], np.float32))
    if kind == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(rope, rope["rope_theta"], head_dim))


def add_windows(writer, text):
    kind, window = text["model_type"], text.get("sliding_window")
    if kind == "phi3":
        writer.add_sliding_window(window or 0)
    elif window and kind in ("mistral", "gemma2", "gemma3_text", "olmo3", "exaone4", "gpt_oss"):
        writer.add_sliding_window(window)
        if kind in ("olmo3", "exaone4"):
            writer.add_sliding_window_pattern(
                [layer == "sliding_attention" for layer in text["layer_types"]])


def add_scales(writer, text):
    for key, add in (("attn_logit_softcapping", writer.add_attn_logit_softcapping),
                     ("final_logit_softcapping", writer.add_final_logit_softcapping),
                     ("attention_multiplier", writer.add_attention_scale),
                     ("embedding_multiplier", writer.add_embedding_scale),
                     ("residual_multiplier", writer.add_residual_scale),
                     ("logits_scaling", writer.add_logit_scale)):
        if text.get(key):
            add(text[key])


def add_experts(writer, text):
    count = make_checkpoint.expert_count_of(text)
    if not count:
        return
    writer.add_expert_count(count)
    writer.add_expert_used_count(text["top_k_experts" if "top_k_experts" in text else "num_experts_per_tok"])
    if "moe_intermediate_size" in text:
        writer.add_expert_feed_forward_length(text["moe_intermediate_size"])
    if "shared_expert_intermediate_size" in text:
        writer.add_expert_shared_feed_forward_length(text["shared_expert_intermediate_size"])
    if "n_routed_experts" in text:
        sigmoid = text["model_type"] == "glm4_moe_lite"
        writer.add_expert_shared_count(text["n_shared_experts"])
        writer.add_expert_weights_scale(text["routed_scaling_factor"])
        writer.add_expert_weights_norm(text["norm_topk_prob"])
        writer.add_expert_group_count(text.get("n_group", 1))
        if text["model_type"] == "nemotron_h":
            writer.add_expert_shared_feed_forward_length(text["moe_shared_expert_intermediate_size"])
            return
        writer.add_leading_dense_block_count(text["first_k_dense_replace"])
        writer.add_expert_group_used_count(text.get("topk_group", 1))
        writer.add_expert_gating_func(
            gguf.ExpertGatingFuncType.SIGMOID if sigmoid else gguf.ExpertGatingFuncType.SOFTMAX)
    if text["model_type"] == "gpt_oss":
        writer.add_expert_feed_forward_length(text["intermediate_size"])
    if text["model_type"] == "lfm2_moe":
        writer.add_leading_dense_block_count(text["num_dense_layers"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)


def check_expressible(text):
    """Stops at what a file has no key for, and llama.cpp takes from the architecture."""
    kind, layers = text["model_type"], range(text["num_hidden_layers"])
    # It knows the 27B models, which scale scores by another size than a head's, by their layers.
    if len(layers) == {"gemma2": 46, "gemma3_text": 62}.get(kind):
        scalar = text["hidden_size"] // text["num_attention_heads"]
    else:
        scalar = make_checkpoint.head_dim_of(text)
    assumed = {
        "gemma2": {"query_pre_attn_scalar": scalar, "rope_theta": 1e4},
        "gemma3_text": {
            "query_pre_attn_scalar": scalar, "rope_local_base_freq": 1e4,
            "sliding_window_pattern": 6,
            "layer_types": make_checkpoint.kinds("LLLLLG"[layer % 6] for layer in layers)},
        "smollm3": {"no_rope_layer_interval": 4,
                    "no_rope_layers": [int((layer + 1) % 4 != 0) for layer in layers]},
        "qwen3_moe": {"norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 1},
        "olmoe": {"norm_topk_prob": False},
        "granitemoehybrid": {"position_embedding_type": "nope", "mamba_conv_bias": True, "mamba_proj_bias": False,
                             "attention_bias": False, "time_step_limit": None},
        "nemotron_h": {"use_bias": False, "use_conv_bias": True, "time_step_min": 0.001},
        "lfm2": {"conv_bias": False},
        "qwen3_5_moe_text": {"norm_topk_prob": True},
        "qwen3_next": {"norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 1},
        "lfm2_moe": {"conv_bias": False, "norm_topk_prob": True, "routed_scaling_factor": 1.0, "use_expert_bias": True},
        "gpt_oss": {"swiglu_limit": 7.0, "layer_types": make_checkpoint.kinds("LG"[layer % 2] for layer in layers)},
    }.get(kind, {})
    for key, value in assumed.items():
        if text.get(key, value) != value:
            sys.exit(f"{key}: a GGUF file can not say {text[key]}, llama.cpp assumes {value}")


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


def unfused(tensors):
    """The same tensors, gpt-oss's gate and up apart and matrices not transposed, as files have them."""
    plain = {}
    for name, values in tensors.items():
        module, experts, rest = name.partition(".experts.")
        if not experts or not rest.startswith(("gate_up_proj", "down_proj")):
            plain[name + ".weight" if name.endswith(".sinks") else name] = values
            continue
        kind = ".bias" if rest.endswith("_bias") else ".weight"
        rows = values if kind == ".bias" else values.swapaxes(1, 2)  # [experts, rows, cols]
        parts = {"down_proj": rows}
        if rest.startswith("gate_up_proj"):
            parts = {"gate_proj": rows[:, 0::2], "up_proj": rows[:, 1::2]}
        for part, matrix in parts.items():
            plain[f"{module}.experts.{part}{kind}"] = np.ascontiguousarray(matrix)
    return plain


def fused(tensors):
    """The opposite, of (name, values)."""
    found, gates = [], {}
    for name, values in tensors:
        module, experts, rest = name.partition(".experts.")
        part, _, kind = rest.partition(".")
        if not experts or part not in ("gate_proj", "up_proj", "down_proj"):
            found.append((name.removesuffix(".weight") if name.endswith(".sinks.weight") else name, values))
            continue
        whole = values if kind == "bias" else values.swapaxes(1, 2)
        end = "_bias" if kind == "bias" else ""
        if part == "down_proj":
            found.append((f"{module}.experts.down_proj{end}", whole))
        elif part == "gate_proj":
            gates[module, kind] = whole
        else:
            both = np.stack([gates[module, kind], whole], axis=-1)
            found.append((f"{module}.experts.gate_up_proj{end}", both.reshape(*whole.shape[:-1], -1)))
    return found


def add_nemotron_tensors(writer, architecture, text, tensors, kind_of):
    """As add_tensors."""
    names = gguf.get_tensor_name_map(MODEL_ARCHITECTURES[architecture.name], text["num_hidden_layers"])
    decoded = []
    for name, values in tensors.items():
        if name.startswith("mtp."):
            decoded.append((name, values))
            continue
        stored, known = values, name.replace("e_score_correction_bias", "e_score_correction.bias")
        if name.endswith(".A_log"):
            stored = -np.exp(values)[:, None]
        elif name.endswith(".D"):
            stored = values[:, None]
        elif name.endswith("mixer.norm.weight"):
            stored = values.reshape(text["n_groups"], -1)
        elif name.endswith("conv1d.weight"):
            stored = values.squeeze(1)
        elif ".experts." in name:  # the package has them under such a name
            known = name.replace("backbone.", "model.").replace(".mixer.", ".mlp.") + ".weight"
        known = known.replace("dt_bias", "dt_proj.bias")
        vector = stored.ndim < 2 or name.endswith((".A_log", ".D", "norm.weight", "conv1d.weight"))
        quant, data, floats = encode(known, stored, "F32" if vector else kind_of(known))
        writer.add_tensor(names.get_name(known, try_suffixes=(".weight", ".bias")), data, raw_dtype=quant)
        decoded.append((name, values if vector else floats))
    return decoded


def stacked_experts(tensors):
    """The same tensors, a layer's experts' matrices of one kind as one of three dimensions."""
    stacked = {}
    for name, values in tensors.items():
        layer, experts, rest = name.partition(".experts.")
        if not experts:
            stacked[name] = values
            continue
        index, _, module = rest.partition(".")
        if not index.isdigit():
            stacked[name] = values
            continue
        # A file may have expert 10 before expert 2.
        stacked.setdefault(f"{layer}.experts.{module}", {})[int(index)] = values
    return {name: np.stack([values[i] for i in range(len(values))]) if isinstance(values, dict) else values
            for name, values in stacked.items()}


def with_heads_apart(text, tensors):
    """The same tensors, kv_b_proj as a tensor for keys, transposed, and one for values, of three dimensions."""
    apart, heads = {}, text["num_attention_heads"]
    for name, values in tensors.items():
        module, expands, _ = name.partition("kv_b_proj.weight")
        if not expands:
            apart[name] = values
            continue
        of_heads = values.reshape(heads, -1, values.shape[1])
        plain = text["qk_nope_head_dim"]
        apart[module + "k_b_proj.weight"] = np.ascontiguousarray(of_heads[:, :plain].swapaxes(1, 2))
        apart[module + "v_b_proj.weight"] = np.ascontiguousarray(of_heads[:, plain:])
    return apart


def with_heads_together(tensors):
    """The opposite, of (name, values)."""
    found, keys = [], {}
    for name, values in tensors:
        if name.endswith("k_b_proj.weight"):
            keys[name.removesuffix("k_b_proj.weight")] = values.swapaxes(1, 2)
        elif name.endswith("v_b_proj.weight"):
            module = name.removesuffix("v_b_proj.weight")
            both = np.concatenate([keys[module], values], axis=1)
            found.append((module + "kv_b_proj.weight", both.reshape(-1, both.shape[-1])))
        else:
            found.append((name, values))
    return found


def single_experts(name, values, was_stacked):
    """The matrices that a tensor of stacked_experts stands for, under their own names."""
    layer, experts, module = name.partition(".experts.")
    if not experts or was_stacked:
        return [(name, values)]
    return [(f"{layer}.experts.{i}.{module}", each) for i, each in enumerate(values)]


def gemma4_name(name):
    """Of a tensor of Gemma 4 that the package gguf does not know by this name; None for others."""
    layer, _, own = name.removeprefix("model.layers.").partition(".")
    known = {"layer_scalar": "layer_output_scale.weight", "router.scale": "ffn_gate_inp.scale",
             "router.per_expert_scale": "ffn_down_exps.scale",
             "experts.gate_up_proj": "ffn_gate_up_exps.weight",
             "experts.down_proj": "ffn_down_exps.weight"}.get(own)
    return known and f"blk.{layer}.{known}"


def add_tensors(writer, architecture, text, tensors, kind_of):
    """Writes the language model's; returns what they stand for, under the checkpoint's names."""
    if text["model_type"] == "nemotron_h":
        return add_nemotron_tensors(writer, architecture, text, tensors, kind_of)
    names = gguf.get_tensor_name_map(MODEL_ARCHITECTURES[architecture.name],
                                     text["num_hidden_layers"])
    offset = make_checkpoint.FAMILIES[text["model_type"]].norm_offset
    decoded = []
    is_fused = make_checkpoint.FAMILIES[text["model_type"]].fused_experts
    latent = "kv_lora_rank" in text
    layouts = None  # of recurrent layers: one way, and the other
    if "mamba_n_heads" in text:
        layouts = gguf_recurrent.granite_parts, gguf_recurrent.granite_wholes
    elif "linear_num_key_heads" in text:
        layouts = gguf_recurrent.delta_parts, gguf_recurrent.delta_wholes
    stored = tensors
    tensors = layouts[0](text, tensors) if layouts else tensors
    tensors = unfused(tensors) if is_fused else with_heads_apart(text, tensors) if latent else tensors
    for name, values in stacked_experts(tensors).items():
        if make_checkpoint.is_beyond_layers(text, name):
            decoded.append((name, values))
            continue
        if name.startswith(("vision_tower.", "multi_modal_projector.", "model.vision_tower.", "model.embed_vision.")):
            decoded.append((name, values))
            continue
        own_name = name.removeprefix("language_model.").replace("model.language_model.", "model.")
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(
            own_name.split(".")[-2]) if architecture.interleaved else None
        shifts = own_name.endswith("norm.weight") and not own_name.endswith("linear_attn.norm.weight")
        shift = np.float32(offset if shifts else 0)
        if heads:
            values = interleaved(values, text[heads])
        taps = own_name.endswith(("conv.conv.weight", "conv1d.weight"))  # of [channels, 1, taps]
        if taps:
            values = values.squeeze(1)
        quant, data, floats = encode(own_name, values + shift if shift else values, kind_of(own_name))
        known = own_name.replace("e_score_correction_bias", "e_score_correction.bias")
        if known.endswith(".expert_bias"):
            known += ".bias"
        if ".feed_forward.experts." in known:  # the package has LFM2's under such a name
            known = known.removeprefix("model.")
        writer.add_tensor(gemma4_name(known) or names.get_name(known, try_suffixes=(".weight", ".bias")),
                          data, raw_dtype=quant)
        floats = floats - shift if shift else floats
        floats = in_halves(floats, text[heads]) if heads else floats
        floats = floats[:, None] if taps else floats
        decoded += single_experts(name, floats, name in tensors)
    if layouts:
        return layouts[1](text, stored, decoded)
    return fused(decoded) if is_fused else with_heads_together(decoded)


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
    architecture = ARCHITECTURES[config["architectures"][0] if config else "LlamaForCausalLM"]
    if "n_routed_experts" in config and architecture.name == "nemotron_h":
        architecture = architecture._replace(name="nemotron_h_moe")
    os.makedirs(os.path.dirname(os.path.abspath(args.file)), exist_ok=True)
    writer = gguf.GGUFWriter(args.file, architecture.name, split_max_tensors=args.split)
    decoded = []
    if not args.vocab_only:
        text = make_checkpoint.text_of(config)
        text = {**DEFAULTS.get(text["model_type"], {}), **text}
        check_expressible(text)
        ends = read_json(args.directory, "generation_config.json").get(
            "eos_token_id", config.get("eos_token_id"))
        add_config(writer, architecture, text, ends)

        def kind_of(name):
            module = name.split(".")[-2]
            keep = args.float_embedding and ".layers." not in name or module in (
                "gate", "router", "proj", "layer", "conv", "conv1d", "norm", "shared_expert_gate")
            return "F32" if keep else types.get(module, args.type)

        decoded = add_tensors(writer, architecture, text, read_tensors(args.directory), kind_of)
    add_tokenizer(writer, args.directory, args.pre, make_checkpoint.text_of(config).get("vocab_size"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    if args.dequantized:
        write_dequantized(args.directory, args.dequantized, decoded)
    return 0


if __name__ == "__main__":
    sys.exit(main())
