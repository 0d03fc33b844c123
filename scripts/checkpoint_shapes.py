"""The shapes of make_checkpoint.py: what config.json says, in the words of the published models, and
what the layers of each family hold.
"""

import typing


class Norms(typing.NamedTuple):
    """Names of a layer's norms. One after a half is of its output, before that is added."""
    before_attention: str | None = None
    after_attention: str | None = None
    before_mlp: str | None = None
    after_mlp: str | None = None


LLAMA_NORMS = Norms(before_attention="input_layernorm", before_mlp="post_attention_layernorm")
GEMMA_NORMS = Norms("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                    "post_feedforward_layernorm")
OLMO_NORMS = Norms(after_attention="post_attention_layernorm",
                   after_mlp="post_feedforward_layernorm")


class Family(typing.NamedTuple):
    """In what a family differs from Llama, and what its models mean where config.json is silent."""
    norms: Norms = LLAMA_NORMS
    norm_offset: int = 0  # what the model adds to a norm's weights
    qk_norms: str | None = None  # of queries and keys: of each "head", or over "all" heads together
    qk_gain: float = 1.5  # of these norms here; more layers need less, or rounding shows in the logits
    biased: str = ""  # which of q, k, v, o have a bias
    sinks: bool = False  # a score of each head without a value
    fused: bool = False  # qkv_proj and gate_up_proj, not five matrices
    # Experts in one tensor for all, transposed, gate's and up's columns in turn; with biases.
    fused_experts: bool = False
    # Experts in one tensor for all, gate's rows before up's: what it is called, and down's.
    stacked_experts: tuple[str, str] | None = None
    choice_bias: str | None = None  # added to the experts' scores for the choice
    router: str = "gate"
    scaled_embedding: bool = False  # by sqrt(hidden_size), when a token enters
    tied: bool = False  # LM head and embedding
    # Before all tensors but the LM head's, where it is the text part of a model for texts and images.
    nested: str = "language_model.model."
    mtp: bool = False  # tensors of a head for speculation, which no model reads
    experts: tuple[str, str, str] | None = None  # modules of an expert: gate, up, down
    dense_layers: typing.Callable = lambda config: config.get("mlp_only_layers", ())  # without experts
    mlp: str = "mlp."  # before the modules of MLP, router and experts
    shared: str | None = None  # the MLP of all tokens beside experts, in a model without them the only one
    qk_names: tuple[str, str] = ("q_norm", "k_norm")
    output: str = "o_proj"
    gated: bool = False  # q has a gate behind each head's query
    final_norm: str = "norm"
    mlp_names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    head_dim: int | None = None  # None: hidden_size / num_attention_heads
    thetas: dict | None = None  # rotary base by the kind of layer; None: one for all
    local_layers: typing.Callable = lambda config, layer: False  # of sliding_attention


FAMILIES = {
    "llama": Family(),
    "mistral": Family(),
    "ministral3": Family(),
    "granite": Family(),
    "smollm3": Family(tied=True),
    "qwen2": Family(biased="qkv"),
    "seed_oss": Family(biased="qkv"),
    "qwen3": Family(qk_norms="head"),
    "qwen3_moe": Family(qk_norms="head", experts=("gate_proj", "up_proj", "down_proj")),
    "mixtral": Family(experts=("w1", "w3", "w2"), mlp="block_sparse_moe."),
    "olmoe": Family(qk_norms="all", experts=("gate_proj", "up_proj", "down_proj")),
    "gpt_oss": Family(biased="qkvo", sinks=True, fused_experts=True, head_dim=64,
                      local_layers=lambda config, layer: layer % 2 == 0),
    "deepseek_v2": Family(experts=("gate_proj", "up_proj", "down_proj"),
                          dense_layers=lambda config: range(config["first_k_dense_replace"])),
    "glm4_moe_lite": Family(experts=("gate_proj", "up_proj", "down_proj"),
                            choice_bias="gate.e_score_correction_bias",
                            dense_layers=lambda config: (0,)),
    "phi3": Family(fused=True),
    "olmo2": Family(OLMO_NORMS, qk_norms="all"),
    "olmo3": Family(OLMO_NORMS, qk_norms="all",
                    thetas={"full_attention": 500000.0, "sliding_attention": 500000.0},
                    local_layers=lambda config, layer: (layer + 1) % 4 != 0),
    "exaone4": Family(OLMO_NORMS, qk_norms="head"),
    "lfm2": Family(Norms(before_attention="operator_norm", before_mlp="ffn_norm"), qk_norms="head",
                   qk_names=("q_layernorm", "k_layernorm"), output="out_proj", tied=True,
                   final_norm="embedding_norm", mlp="feed_forward.",
                   mlp_names=("w1", "w3", "w2")),
    "lfm2_moe": Family(Norms(before_attention="operator_norm", before_mlp="ffn_norm"), qk_norms="head",
                       qk_names=("q_layernorm", "k_layernorm"), output="out_proj", tied=True,
                       final_norm="embedding_norm", mlp="feed_forward.",
                       mlp_names=("w1", "w3", "w2"), experts=("w1", "w3", "w2"),
                       choice_bias="expert_bias",
                       dense_layers=lambda config: range(config["num_dense_layers"])),
    "qwen3_5_text": Family(nested="model.language_model.", norm_offset=1, qk_norms="head", gated=True,
                           head_dim=256, mtp=True),
    "qwen3_5_moe_text": Family(nested="model.language_model.", norm_offset=1, qk_norms="head", gated=True,
                               head_dim=256, mtp=True, experts=("gate_proj", "up_proj", "down_proj"),
                               shared="mlp.shared_expert.",
                               stacked_experts=("experts.gate_up_proj", "experts.down_proj")),
    "qwen3_next": Family(mtp=True, norm_offset=1, qk_norms="head", gated=True, head_dim=256,
                         experts=("gate_proj", "up_proj", "down_proj"), shared="mlp.shared_expert."),
    "granitemoehybrid": Family(mlp="block_sparse_moe.", shared="shared_mlp.",
                               experts=("gate", "up", "down"), router="router.layer",
                               stacked_experts=("input_linear.weight", "output_linear.weight")),
    # A layer is one sublayer; MLPs and experts have no gate.
    "nemotron_h": Family(mtp=True, experts=("up_proj", "down_proj"), choice_bias="gate.e_score_correction_bias",
                         stacked_experts=("experts.up_proj", "experts.down_proj"), mlp="mixer.",
                         head_dim=128),
    "gemma2": Family(GEMMA_NORMS, norm_offset=1, scaled_embedding=True, tied=True, head_dim=256),
    "gemma3_text": Family(GEMMA_NORMS, norm_offset=1, qk_norms="head", qk_gain=1,
                          scaled_embedding=True, tied=True, head_dim=256,
                          thetas={"full_attention": 1e6, "sliding_attention": 1e4},
                          local_layers=lambda config, layer:
                          (layer + 1) % config.get("sliding_window_pattern", 6) != 0),
    # Scores are not scaled.
    "gemma4_text": Family(GEMMA_NORMS, qk_norms="head", qk_gain=0.3, scaled_embedding=True, tied=True,
                          head_dim=256, nested="model.language_model."),
}


def kinds(pattern):
    """layer_types: L is a layer with a window, G one without."""
    return [{"L": "sliding_attention", "G": "full_attention"}[letter] for letter in pattern]


LLAMA3_SCALING = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
                  "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
MINISTRAL3 = dict(
    hidden_size=80, intermediate_size=168, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, head_dim=24, vocab_size=312, max_position_embeddings=256,
    rms_norm_eps=1e-5, sliding_window=None,
    rope_parameters={"beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0,
                     "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0,
                     "original_max_position_embeddings": 16, "rope_theta": 10000.0,
                     "rope_type": "yarn", "type": "yarn"})

QWEN3_MOE = dict(
    architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", hidden_size=64,
    intermediate_size=176, moe_intermediate_size=48, num_experts=12, num_experts_per_tok=4,
    norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[1], num_hidden_layers=4,
    num_attention_heads=4, num_key_value_heads=2, head_dim=24, vocab_size=400,
    max_position_embeddings=512, rms_norm_eps=1e-6, rope_theta=1000000.0, rope_scaling=None,
    tie_word_embeddings=False, attention_bias=False, use_sliding_window=False,
    sliding_window=None, max_window_layers=4, output_router_logits=False,
    router_aux_loss_coef=0.001, eos_token_id=2, bos_token_id=1)

DEEPSEEK_V2 = dict(
    architectures=["DeepseekV2ForCausalLM"], model_type="deepseek_v2", hidden_size=96,
    intermediate_size=136, moe_intermediate_size=48, n_routed_experts=8, n_shared_experts=2,
    num_experts_per_tok=3, norm_topk_prob=False, routed_scaling_factor=1.5, scoring_func="softmax",
    topk_method="greedy", n_group=1, topk_group=1, moe_layer_freq=1, first_k_dense_replace=1,
    num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4, q_lora_rank=None,
    kv_lora_rank=32, qk_nope_head_dim=24, qk_rope_head_dim=16, v_head_dim=40, vocab_size=424,
    max_position_embeddings=512, rms_norm_eps=1e-6, rope_theta=10000,
    rope_scaling={"beta_fast": 32, "beta_slow": 1, "factor": 8, "mscale": 0.707,
                  "mscale_all_dim": 0.707, "original_max_position_embeddings": 64, "type": "yarn"},
    attention_bias=False, tie_word_embeddings=False, aux_loss_alpha=0.001, seq_aux=True,
    eos_token_id=2, bos_token_id=1)

GEMMA4 = dict(
    architectures=["Gemma4ForCausalLM"], model_type="gemma4_text", hidden_size=72,
    intermediate_size=96, num_hidden_layers=8, num_attention_heads=4, num_key_value_heads=2,
    head_dim=32, global_head_dim=64, vocab_size=320, vocab_size_per_layer_input=320,
    hidden_size_per_layer_input=24, max_position_embeddings=512, rms_norm_eps=1e-6,
    rope_parameters={
        "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0,
                           "rope_type": "proportional"},
        "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}},
    hidden_activation="gelu_pytorch_tanh", sliding_window=24, layer_types=kinds("LLGLGLLG"),
    num_kv_shared_layers=3, use_double_wide_mlp=True, attention_k_eq_v=False,
    enable_moe_block=False, num_experts=None, attention_bias=False, final_logit_softcapping=12.0,
    use_bidirectional_attention=None, eos_token_id=[1, 6], bos_token_id=2, pad_token_id=0)
GEMMA3_270M = dict(
    architectures=["Gemma3ForCausalLM"], model_type="gemma3_text", hidden_size=64,
    intermediate_size=200, num_hidden_layers=7, num_attention_heads=4, num_key_value_heads=1,
    head_dim=32, vocab_size=416, max_position_embeddings=512, rms_norm_eps=1e-6,
    rope_theta=1000000.0, rope_local_base_freq=10000.0, rope_scaling=None,
    query_pre_attn_scalar=32, hidden_activation="gelu_pytorch_tanh", sliding_window=40,
    _sliding_window_pattern=6, layer_types=kinds("LLLLLGL"), attention_bias=False,
    attn_logit_softcapping=None, final_logit_softcapping=None, use_bidirectional_attention=False,
    eos_token_id=1, bos_token_id=2, pad_token_id=0)

QWEN35 = dict(
    architectures=["Qwen3_5ForCausalLM"], model_type="qwen3_5_text", hidden_size=96,
    intermediate_size=144, num_hidden_layers=5, num_attention_heads=4, num_key_value_heads=2,
    head_dim=32, layer_types=["linear_attention", "full_attention", "linear_attention",
                              "linear_attention", "full_attention"],
    linear_conv_kernel_dim=4, linear_num_key_heads=2, linear_num_value_heads=4,
    linear_key_head_dim=32, linear_value_head_dim=16, vocab_size=360,
    max_position_embeddings=512, rms_norm_eps=1e-6, rope_theta=10000000.0,
    partial_rotary_factor=0.25, tie_word_embeddings=False, attention_bias=False,
    eos_token_id=2)
QWEN35_MOE = dict(
    architectures=["Qwen3_5MoeForCausalLM"], model_type="qwen3_5_moe_text", hidden_size=96,
    moe_intermediate_size=48, shared_expert_intermediate_size=72, num_experts=12,
    num_experts_per_tok=4, num_hidden_layers=5, num_attention_heads=4, num_key_value_heads=2,
    head_dim=32, full_attention_interval=3, linear_conv_kernel_dim=4, linear_num_key_heads=2,
    linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=32, vocab_size=408,
    max_position_embeddings=512, rms_norm_eps=1e-6, rope_theta=10000000.0,
    partial_rotary_factor=0.25, tie_word_embeddings=False, attention_bias=False,
    mlp_only_layers=[], output_router_logits=False, router_aux_loss_coef=0.001, eos_token_id=2)
QWEN3_NEXT = dict(
    architectures=["Qwen3NextForCausalLM"], model_type="qwen3_next", hidden_size=80,
    intermediate_size=136, moe_intermediate_size=40, shared_expert_intermediate_size=56,
    num_experts=10, num_experts_per_tok=3, norm_topk_prob=False, decoder_sparse_step=1,
    mlp_only_layers=[2], num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
    head_dim=32, full_attention_interval=4, linear_conv_kernel_dim=4, linear_num_key_heads=2,
    linear_num_value_heads=6, linear_key_head_dim=32, linear_value_head_dim=16, vocab_size=328,
    max_position_embeddings=512, rms_norm_eps=1e-6, rope_theta=10000000.0,
    partial_rotary_factor=0.25, rope_scaling=None, tie_word_embeddings=False,
    attention_bias=False, output_router_logits=False, router_aux_loss_coef=0.001,
    use_sliding_window=False, eos_token_id=2)
LFM2 = dict(
    architectures=["Lfm2ForCausalLM"], model_type="lfm2", hidden_size=96,
    intermediate_size=180, block_auto_adjust_ff_dim=True, block_ffn_dim_multiplier=1.1,
    block_multiple_of=8, num_hidden_layers=5, num_attention_heads=6, num_key_value_heads=2,
    layer_types=["conv", "full_attention", "conv", "full_attention", "conv"], conv_L_cache=3,
    conv_bias=True, vocab_size=352, max_position_embeddings=512, norm_eps=1e-5,
    rope_theta=1000000.0, tie_word_embeddings=True, eos_token_id=7, bos_token_id=1,
    pad_token_id=0)

LFM2_MOE = dict(
    architectures=["Lfm2MoeForCausalLM"], model_type="lfm2_moe", hidden_size=80,
    intermediate_size=136, moe_intermediate_size=48, num_dense_layers=1, num_experts=10,
    num_experts_per_tok=3, norm_topk_prob=True, routed_scaling_factor=1.3, use_expert_bias=True,
    num_hidden_layers=5, num_attention_heads=5, num_key_value_heads=1,
    layer_types=["conv", "conv", "full_attention", "conv", "full_attention"], conv_L_cache=3,
    conv_bias=False, vocab_size=376, max_position_embeddings=512, norm_eps=1e-5,
    rope_theta=1000000.0, tie_word_embeddings=True, eos_token_id=7, bos_token_id=1,
    pad_token_id=0)

GRANITE_HYBRID = dict(
    architectures=["GraniteMoeHybridForCausalLM"], model_type="granitemoehybrid", hidden_size=96,
    intermediate_size=40, shared_intermediate_size=120, num_local_experts=8,
    num_experts_per_tok=3, num_hidden_layers=5, num_attention_heads=6, num_key_value_heads=2,
    layer_types=["mamba", "attention", "mamba", "mamba", "attention"], mamba_chunk_size=256,
    mamba_conv_bias=True, mamba_d_conv=4, mamba_d_head=32, mamba_d_state=48, mamba_expand=2,
    mamba_n_groups=2, mamba_n_heads=6, mamba_proj_bias=False,
    position_embedding_type="nope", vocab_size=344, max_position_embeddings=512,
    rms_norm_eps=1e-5, rope_theta=10000, rope_scaling=None, embedding_multiplier=6.0,
    attention_multiplier=0.125, residual_multiplier=0.3, logits_scaling=4.0,
    tie_word_embeddings=True, attention_bias=False, init_method="mup",
    normalization_function="rmsnorm", output_router_logits=False, router_aux_loss_coef=0.0001,
    eos_token_id=0, bos_token_id=0, pad_token_id=0)
GRANITE_HYBRID_WIDE = dict(
    GRANITE_HYBRID, hidden_size=256, num_attention_heads=8, intermediate_size=256,
    shared_intermediate_size=256, num_local_experts=4, num_experts_per_tok=2, mamba_n_heads=8,
    mamba_d_head=64, num_hidden_layers=3, layer_types=["mamba", "attention", "mamba"])

QWEN35_TEXT = dict(
    hidden_size=80, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
    full_attention_interval=2, layer_types=["linear_attention", "full_attention"] * 2,
    linear_conv_kernel_dim=4, linear_num_key_heads=2, linear_num_value_heads=6,
    linear_key_head_dim=16, linear_value_head_dim=16, max_position_embeddings=512,
    rms_norm_eps=1e-6, attn_output_gate=True, attention_bias=False, hidden_act="silu",
    mamba_ssm_dtype="float32", mtp_use_dedicated_embeddings=False, eos_token_id=2,
    rope_parameters={"mrope_interleaved": True, "mrope_section": [2, 1, 1],
                     "partial_rotary_factor": 0.25, "rope_theta": 10000000, "rope_type": "default"})
QWEN35_VISION = dict(
    model_type="qwen3_5_vision", depth=1, hidden_size=24, intermediate_size=32, num_heads=2,
    in_channels=3, patch_size=4, spatial_merge_size=2, temporal_patch_size=2, out_hidden_size=80,
    num_position_embeddings=16, hidden_act="gelu_pytorch_tanh", deepstack_visual_indexes=[])

# layers_block_type by the letters of hybrid_override_pattern.
NEMOTRON_LAYERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}
NEMOTRON_H = dict(
    architectures=["NemotronHForCausalLM"], model_type="nemotron_h", hidden_size=80,
    intermediate_size=152, hybrid_override_pattern="M-M*-M-", num_hidden_layers=7,
    num_attention_heads=4, num_key_value_heads=2, head_dim=24, mamba_num_heads=6,
    mamba_head_dim=16, n_groups=2, ssm_state_size=48, conv_kernel=4, expand=2, chunk_size=128,
    mamba_hidden_act="silu", mamba_proj_bias=False, mlp_hidden_act="relu2", mlp_bias=False,
    use_bias=False, use_conv_bias=True, use_mamba_kernels=True, vocab_size=408,
    max_position_embeddings=512, layer_norm_epsilon=1e-5, rms_norm_eps=1e-5, hidden_dropout=0.0,
    time_step_floor=1e-4, time_step_limit=[0.0, float("inf")], time_step_max=0.1,
    time_step_min=0.02, time_step_rank=256, tie_word_embeddings=False, attention_bias=False,
    residual_in_fp32=False, rescale_prenorm_residual=True, num_logits_to_keep=1,
    sliding_window=None, eos_token_id=2, bos_token_id=1, pad_token_id=0)

NEMOTRON_H_WIDE = dict(NEMOTRON_H, hidden_size=96, intermediate_size=160, head_dim=32, time_step_min=0.001)

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
    # Four norms in a layer; one layer has no window, and another rotary base, which is scaled.
    "tiny-gemma3": dict(
        architectures=["Gemma3ForCausalLM"], model_type="gemma3_text", hidden_size=72,
        intermediate_size=136, num_hidden_layers=7, num_attention_heads=4, num_key_value_heads=2,
        head_dim=40, vocab_size=304, max_position_embeddings=512, rms_norm_eps=1e-6,
        rope_theta=1000000, rope_local_base_freq=10000,
        rope_scaling={"factor": 8.0, "rope_type": "linear"}, query_pre_attn_scalar=24,
        hidden_activation="gelu_pytorch_tanh", sliding_window=24, sliding_window_pattern=6,
        attention_bias=False, attn_logit_softcapping=None, final_logit_softcapping=None,
        cache_implementation="hybrid", eos_token_id=[1, 6], bos_token_id=2, pad_token_id=0),
    # As Gemma 3 270M: scores are scaled by the size of a head, and layer_types is there.
    "tiny-gemma3-270m": GEMMA3_270M,
    # The KV of Gemma 3 4B and little else, for benchmarks/windowed_kv.py.
    "gemma3-4b-kv": dict(
        GEMMA3_270M, intermediate_size=128, num_hidden_layers=34, num_attention_heads=8,
        num_key_value_heads=4, head_dim=256, vocab_size=1024, max_position_embeddings=131072,
        query_pre_attn_scalar=256, sliding_window=1024, layer_types=kinds("LLLLLG" * 5 + "LLLL")),
    # As Gemma 3 4B: text_config says little.
    "tiny-gemma3-mm": dict(
        architectures=["Gemma3ForConditionalGeneration"], boi_token_index=255999,
        eoi_token_index=256000, eos_token_id=[1, 6], image_token_index=262144,
        initializer_range=0.02, mm_tokens_per_image=4, model_type="gemma3",
        text_config=dict(
            hidden_size=40, intermediate_size=88, model_type="gemma3_text", num_attention_heads=2,
            num_hidden_layers=6, num_key_value_heads=1,
            rope_scaling={"factor": 8.0, "rope_type": "linear"}, sliding_window=28,
            vocab_size=336),
        vision_config=dict(
            hidden_size=24, image_size=56, intermediate_size=32, model_type="siglip_vision_model",
            num_attention_heads=2, num_hidden_layers=1, patch_size=14, vision_use_head=False)),
    # As Gemma 4 E2B: the last layers, with MLPs twice as wide, share the KV of earlier ones; each layer
    # has its own embedding.
    "tiny-gemma4": GEMMA4,
    # The same with rows of whole blocks.
    "tiny-gemma4-wide": dict(GEMMA4, hidden_size=256, intermediate_size=256, num_attention_heads=8,
                             hidden_size_per_layer_input=32),
    # As Gemma 4 31B: keys and values are one product in layers without a window.
    "tiny-gemma4-mm": dict(
        architectures=["Gemma4ForConditionalGeneration"], model_type="gemma4", audio_config=None,
        boi_token_id=255999, eoi_token_id=258882, image_token_id=258880, video_token_id=258884,
        audio_token_id=258881, eos_token_id=[1, 6], initializer_range=0.02, tie_word_embeddings=True,
        text_config=dict(
            GEMMA4, architectures=None, num_hidden_layers=5, num_attention_heads=8,
            num_key_value_heads=4, num_global_key_value_heads=1, attention_k_eq_v=True,
            num_kv_shared_layers=0, hidden_size_per_layer_input=0, use_double_wide_mlp=False,
            use_bidirectional_attention="vision", layer_types=kinds("LLGLG")),
        vision_config=dict(
            model_type="gemma4_vision", hidden_size=24, intermediate_size=32, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=2, head_dim=12, patch_size=4,
            position_embedding_size=8)),
    # As Gemma 4 26B: experts beside each MLP.
    "tiny-gemma4-moe": dict(
        GEMMA4, hidden_size=64, intermediate_size=160, num_hidden_layers=5,
        num_global_key_value_heads=1, attention_k_eq_v=True, num_kv_shared_layers=0,
        hidden_size_per_layer_input=0, use_double_wide_mlp=False, layer_types=kinds("LLGLG"),
        enable_moe_block=True, num_experts=10, top_k_experts=3, moe_intermediate_size=96),
    "tiny-gemma2": dict(
        architectures=["Gemma2ForCausalLM"], model_type="gemma2", hidden_size=88,
        intermediate_size=168, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        head_dim=24, vocab_size=328, max_position_embeddings=512, rms_norm_eps=1e-6,
        rope_theta=10000.0, query_pre_attn_scalar=24, hidden_act="gelu_pytorch_tanh",
        hidden_activation="gelu_pytorch_tanh", sliding_window=24, attn_logit_softcapping=6.0,
        final_logit_softcapping=12.0, attention_bias=False, cache_implementation="hybrid",
        eos_token_id=1, bos_token_id=2, pad_token_id=0),
    # No rotation in one layer.
    "tiny-smollm3": dict(
        architectures=["SmolLM3ForCausalLM"], model_type="smollm3", hidden_size=96,
        intermediate_size=136, num_hidden_layers=5, num_attention_heads=6, num_key_value_heads=2,
        vocab_size=360, max_position_embeddings=512, rms_norm_eps=1e-6, rope_theta=5000000.0,
        rope_scaling=None, no_rope_layer_interval=4, no_rope_layers=[1, 1, 1, 0, 1],
        layer_types=kinds("GGGGG"), attention_bias=False, mlp_bias=False, use_sliding_window=False,
        sliding_window=None, max_window_layers=28, pretraining_tp=2, eos_token_id=2,
        bos_token_id=1, pad_token_id=4),
    # YaRN, and queries that grow with their position: at every 16th here.
    "tiny-ministral3": dict(
        architectures=["Ministral3ForCausalLM"], model_type="ministral3", **MINISTRAL3,
        tie_word_embeddings=False, eos_token_id=2, bos_token_id=1),
    "tiny-ministral3-mm": dict(
        architectures=["Mistral3ForConditionalGeneration"], image_token_index=10,
        model_type="mistral3", multimodal_projector_bias=False, projector_hidden_act="gelu",
        spatial_merge_size=2, vision_feature_layer=-1, eos_token_id=2, bos_token_id=1,
        text_config=dict(model_type="ministral3", **MINISTRAL3, tie_word_embeddings=False,
                         attention_dropout=0.0, hidden_act="silu", initializer_range=0.02,
                         use_cache=True),
        vision_config=dict(
            attention_dropout=0.0, head_dim=8, hidden_act="silu", hidden_size=16, image_size=56,
            initializer_range=0.02, intermediate_size=32, model_type="pixtral",
            num_attention_heads=2, num_channels=3, num_hidden_layers=1, patch_size=14,
            rope_parameters={"rope_theta": 10000.0, "rope_type": "default"})),
    # As Phi-4-mini: fused matrices, three quarters of a head are rotated, and sequences of more than
    # 32 tokens by other factors.
    "tiny-phi3": dict(
        architectures=["Phi3ForCausalLM"], model_type="phi3", hidden_size=128,
        intermediate_size=184, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=344, max_position_embeddings=512, original_max_position_embeddings=32,
        rms_norm_eps=1e-5, rope_theta=10000.0, partial_rotary_factor=0.75,
        rope_scaling={"type": "longrope",
                      "short_factor": [1.0, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4, 1.5, 1.7, 1.9, 2.1],
                      "long_factor": [1.0, 1.1, 1.3, 1.7, 2.3, 3.1, 4.3, 6.1, 8.9, 12.7, 17.3, 24.1]},
        sliding_window=262144, tie_word_embeddings=True, attention_bias=False, mlp_bias=False,
        lm_head_bias=False, full_attn_mod=1, interpolate_factor=1, embd_pdrop=0.0,
        resid_pdrop=0.0, eos_token_id=2, bos_token_id=1, pad_token_id=2),
    # Norms of the halves' outputs only, and of all heads' queries together.
    "tiny-olmo2": dict(
        architectures=["Olmo2ForCausalLM"], model_type="olmo2", hidden_size=96,
        intermediate_size=152, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=3,
        vocab_size=296, max_position_embeddings=512, rms_norm_eps=1e-6, rope_theta=500000,
        rope_scaling=None, tie_word_embeddings=False, attention_bias=False, eos_token_id=2,
        pad_token_id=3),
    # And windows; YaRN in the layers without one.
    "tiny-olmo3": dict(
        architectures=["Olmo3ForCausalLM"], model_type="olmo3", hidden_size=64,
        intermediate_size=120, num_hidden_layers=5, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=376, max_position_embeddings=256, rms_norm_eps=1e-6, rope_theta=500000,
        rope_scaling={"attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0,
                      "factor": 8.0, "original_max_position_embeddings": 32, "rope_type": "yarn"},
        sliding_window=24, layer_types=kinds("LLLGL"), tie_word_embeddings=False,
        attention_bias=False, eos_token_id=2, pad_token_id=3),
    "tiny-granite": dict(
        architectures=["GraniteForCausalLM"], model_type="granite", hidden_size=80,
        intermediate_size=136, num_hidden_layers=4, num_attention_heads=5, num_key_value_heads=1,
        vocab_size=368, max_position_embeddings=512, rms_norm_eps=1e-5, rope_theta=10000000.0,
        rope_scaling=None, embedding_multiplier=6.0, attention_multiplier=0.125,
        residual_multiplier=0.22, logits_scaling=4.0, tie_word_embeddings=True,
        attention_bias=False, mlp_bias=False, eos_token_id=0, bos_token_id=0, pad_token_id=0),
    # As model cards say to extend them: to 4 x original tokens, whatever max_position_embeddings says.
    "tiny-qwen2-yarn": dict(
        architectures=["Qwen2ForCausalLM"], model_type="qwen2", hidden_size=64,
        intermediate_size=176, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=320, max_position_embeddings=64, rms_norm_eps=1e-6, rope_theta=1000000.0,
        rope_scaling={"factor": 4.0, "original_max_position_embeddings": 64, "type": "yarn"},
        tie_word_embeddings=False, use_sliding_window=False, sliding_window=32,
        max_window_layers=3, eos_token_id=2, bos_token_id=1),
    "tiny-qwen3-yarn": dict(
        architectures=["Qwen3ForCausalLM"], model_type="qwen3", hidden_size=80,
        intermediate_size=144, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        head_dim=32, vocab_size=352, max_position_embeddings=90, rms_norm_eps=1e-6,
        rope_theta=1000000.0,
        rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 72},
        tie_word_embeddings=True, attention_bias=False, use_sliding_window=False,
        sliding_window=None, max_window_layers=3, eos_token_id=2, bos_token_id=1),
    "tiny-seedoss": dict(
        architectures=["SeedOssForCausalLM"], model_type="seed_oss", hidden_size=72,
        intermediate_size=152, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=2,
        head_dim=32, vocab_size=392, max_position_embeddings=512, rms_norm_eps=1e-6,
        rope_theta=10000000.0, rope_scaling={"rope_type": "default"}, attention_bias=True,
        attention_out_bias=False, mlp_bias=False, attention_dropout=0.1, residual_dropout=0.1,
        tie_word_embeddings=False, eos_token_id=2, bos_token_id=0, pad_token_id=1),
    # No rotation in the layer without a window.
    "tiny-exaone4": dict(
        architectures=["Exaone4ForCausalLM"], model_type="exaone4", hidden_size=96,
        intermediate_size=144, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        head_dim=24, vocab_size=408, max_position_embeddings=512, rms_norm_eps=1e-5,
        rope_theta=1000000, rope_scaling={**LLAMA3_SCALING, "factor": 16.0}, sliding_window=24,
        sliding_window_pattern="LLLG", layer_types=kinds("LLLG"), tie_word_embeddings=False,
        eos_token_id=2, bos_token_id=1, pad_token_id=0),
    # Experts, but not in one layer; their weights add up to 1.
    "tiny-qwen3-moe": QWEN3_MOE,
    # With rows of whole blocks, as GGUF's types have them, and experts in all layers.
    "tiny-qwen3-moe-wide": dict(QWEN3_MOE, hidden_size=256, moe_intermediate_size=256,
                                num_experts=4, num_experts_per_tok=2, mlp_only_layers=[],
                                num_hidden_layers=1),
    "tiny-mixtral": dict(
        architectures=["MixtralForCausalLM"], model_type="mixtral", hidden_size=96,
        intermediate_size=112, num_local_experts=6, num_experts_per_tok=2, num_hidden_layers=3,
        num_attention_heads=6, num_key_value_heads=2, vocab_size=424, max_position_embeddings=512,
        rms_norm_eps=1e-5, rope_theta=1000000.0, sliding_window=None, tie_word_embeddings=False,
        output_router_logits=False, router_aux_loss_coef=0.02, eos_token_id=2, bos_token_id=1),
    # YaRN's borders are no whole numbers; gate and up leave the limits of 7.
    "tiny-gpt-oss": dict(
        architectures=["GptOssForCausalLM"], model_type="gpt_oss", hidden_size=96,
        intermediate_size=64, num_local_experts=6, num_experts_per_tok=3, experts_per_token=3,
        num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, head_dim=32,
        vocab_size=416, max_position_embeddings=512, initial_context_length=64, rms_norm_eps=1e-5,
        rope_theta=150000, rope_scaling={
            "rope_type": "yarn", "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "truncate": False, "original_max_position_embeddings": 64},
        sliding_window=24, layer_types=kinds("LGLG"), swiglu_limit=7.0, attention_bias=True,
        tie_word_embeddings=False, output_router_logits=False, router_aux_loss_coef=0.9,
        eos_token_id=2, pad_token_id=1),
    # Latent attention, with queries that have no latents; the first layer has no experts.
    "tiny-deepseek-v2": DEEPSEEK_V2,
    "tiny-deepseek-v2-wide": dict(DEEPSEEK_V2, hidden_size=256, moe_intermediate_size=128,
                                  intermediate_size=256, n_routed_experts=4, num_experts_per_tok=2,
                                  num_hidden_layers=2, kv_lora_rank=64),
    # With them, and a layer for speculation behind the last one.
    "tiny-glm4-moe-lite": dict(
        architectures=["Glm4MoeLiteForCausalLM"], model_type="glm4_moe_lite", hidden_size=80,
        intermediate_size=152, moe_intermediate_size=56, n_routed_experts=10, n_shared_experts=1,
        num_experts_per_tok=3, norm_topk_prob=True, routed_scaling_factor=1.8, n_group=1,
        topk_group=1, topk_method="noaux_tc", first_k_dense_replace=1, num_hidden_layers=4,
        num_nextn_predict_layers=1, num_attention_heads=5, num_key_value_heads=5, q_lora_rank=72,
        kv_lora_rank=64, qk_nope_head_dim=40, qk_rope_head_dim=32, v_head_dim=48, vocab_size=440,
        max_position_embeddings=512, partial_rotary_factor=1.0, rms_norm_eps=1e-5,
        rope_theta=1000000, rope_scaling=None, attention_bias=False, tie_word_embeddings=False,
        eos_token_id=[2, 7], pad_token_id=1),
    # The chosen experts' weights add up to less than 1.
    "tiny-olmoe": dict(
        architectures=["OlmoeForCausalLM"], model_type="olmoe", hidden_size=96,
        intermediate_size=56, num_experts=16, num_experts_per_tok=4, norm_topk_prob=False,
        num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=4, vocab_size=432,
        max_position_embeddings=512, rms_norm_eps=1e-5, rope_theta=10000.0, rope_scaling=None,
        clip_qkv=None, tie_word_embeddings=False, attention_bias=False, output_router_logits=False,
        router_aux_loss_coef=0.01, eos_token_id=2, pad_token_id=1),
    # A last layer of each kind; a feed-forward whose size is adjusted: 2/3, times 1.1, up to 8.
    "tiny-lfm2": LFM2,
    # As a GGUF file has it: without biases, with rows of whole blocks.
    "tiny-lfm2-wide": dict(LFM2, hidden_size=256, num_attention_heads=8, conv_bias=False,
                           intermediate_size=384, block_ffn_dim_multiplier=1.0,
                           num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"]),
    # Two value heads for each key head.
    "tiny-qwen3.5": QWEN35,
    "tiny-qwen3.5-wide": dict(QWEN35, hidden_size=256, intermediate_size=256, num_hidden_layers=3,
                              layer_types=["linear_attention", "full_attention", "linear_attention"],
                              num_attention_heads=8, linear_key_head_dim=64, linear_value_head_dim=64),
    # Experts, and one more that each token uses as much as its gate says. As published, in tensors of all.
    "tiny-qwen3.5-moe": QWEN35_MOE,
    # With whole heads for multi-token prediction.
    "tiny-qwen3.5-mtp": dict(QWEN35, mtp_num_hidden_layers=1),
    "tiny-qwen3.5-moe-mtp": dict(QWEN35_MOE, mtp_num_hidden_layers=1),
    "tiny-qwen3.5-moe-wide": dict(QWEN35_MOE, hidden_size=256, moe_intermediate_size=64, num_hidden_layers=3,
                                  shared_expert_intermediate_size=128, num_experts=4, num_experts_per_tok=2,
                                  num_attention_heads=8, linear_key_head_dim=32, linear_value_head_dim=32),
    # As published: the text part of a model for texts and images, whose rotation has three sections.
    "tiny-qwen3.5-mm": dict(
        architectures=["Qwen3_5ForConditionalGeneration"], model_type="qwen3_5", image_token_id=250,
        video_token_id=251, vision_start_token_id=252, vision_end_token_id=253,
        tie_word_embeddings=True, text_config=dict(
            QWEN35_TEXT, model_type="qwen3_5_text", intermediate_size=136, mtp_num_hidden_layers=1,
            tie_word_embeddings=True, vocab_size=328),
        vision_config=QWEN35_VISION),
    "tiny-qwen3.5-moe-mm": dict(
        architectures=["Qwen3_5MoeForConditionalGeneration"], model_type="qwen3_5_moe",
        image_token_id=250, video_token_id=251, vision_start_token_id=252, vision_end_token_id=253,
        tie_word_embeddings=False, text_config=dict(
            QWEN35_TEXT, model_type="qwen3_5_moe_text", moe_intermediate_size=40,
            shared_expert_intermediate_size=56, num_experts=8, num_experts_per_tok=3,
            router_aux_loss_coef=0.001, mtp_num_hidden_layers=1, tie_word_embeddings=False,
            vocab_size=392),
        vision_config=dict(QWEN35_VISION, model_type="qwen3_5_moe_vision")),
    # The delta rule's matrices in one tensor, by heads of keys; a layer without experts.
    "tiny-qwen3-next": QWEN3_NEXT,
    "tiny-qwen3-next-wide": dict(QWEN3_NEXT, hidden_size=256, moe_intermediate_size=64, num_hidden_layers=4,
                                 shared_expert_intermediate_size=128, num_experts=4, num_experts_per_tok=2,
                                 norm_topk_prob=True, mlp_only_layers=[], linear_key_head_dim=32,
                                 linear_num_value_heads=4, linear_value_head_dim=32),
    "tiny-lfm2-moe": LFM2_MOE,
    "tiny-lfm2-moe-wide": dict(LFM2_MOE, hidden_size=256, num_attention_heads=8, intermediate_size=256,
                               moe_intermediate_size=256, num_experts=4, num_experts_per_tok=2,
                               routed_scaling_factor=1.0, num_hidden_layers=3,
                               layer_types=["conv", "conv", "full_attention"]),
    # Mamba 2 with three heads in each of two groups; steps have limits; attention has no rotation.
    "tiny-granite-hybrid": dict(GRANITE_HYBRID, time_step_limit=[0.02, 0.5]),
    # The last layer is an MLP, or experts, alone.
    "tiny-nemotron-h": NEMOTRON_H,
    "tiny-nemotron-h-moe": dict(
        NEMOTRON_H, hidden_size=96, intermediate_size=144, hybrid_override_pattern="ME*EM-E",
        num_attention_heads=6, num_key_value_heads=2, head_dim=16, mamba_num_heads=6,
        mamba_head_dim=32, n_groups=3, ssm_state_size=16, conv_kernel=3, use_bias=True,
        use_conv_bias=False, vocab_size=376, time_step_min=0.001, n_routed_experts=8,
        n_shared_experts=1, moe_intermediate_size=40, moe_shared_expert_intermediate_size=56,
        num_experts_per_tok=3, norm_topk_prob=True, routed_scaling_factor=1.3, n_group=1,
        topk_group=1, moe_latent_size=None, num_nextn_predict_layers=1, rope_theta=10000,
        partial_rotary_factor=1.0),
    # As GGUF files have them: one least step, rows of whole blocks, and no MLPs beside experts.
    "tiny-nemotron-h-wide": NEMOTRON_H_WIDE,
    "tiny-nemotron-h-moe-wide": dict(
        NEMOTRON_H_WIDE, hybrid_override_pattern="ME*EME", num_hidden_layers=6, n_routed_experts=8,
        n_shared_experts=1, moe_intermediate_size=64, moe_shared_expert_intermediate_size=128,
        num_experts_per_tok=3, norm_topk_prob=True, routed_scaling_factor=1.3, n_group=1,
        topk_group=1),
    # As a GGUF file has it: without limits, with rows of whole blocks.
    "tiny-granite-hybrid-wide": GRANITE_HYBRID_WIDE,
    "tiny-granite-hybrid-wide-dense": dict(GRANITE_HYBRID_WIDE, num_local_experts=0),
    # Without experts; with rotation, and biases that no published model has.
    "tiny-granite-hybrid-dense": dict(
        architectures=["GraniteMoeHybridForCausalLM"], model_type="granitemoehybrid", hidden_size=64,
        intermediate_size=144, shared_intermediate_size=144, num_local_experts=0,
        num_experts_per_tok=0, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2,
        layer_types=["attention", "mamba", "attention", "mamba"], mamba_chunk_size=256,
        mamba_conv_bias=True, mamba_d_conv=3, mamba_d_head="auto", mamba_d_state=16, mamba_expand=3,
        mamba_n_groups=1, mamba_n_heads=4, mamba_proj_bias=True, position_embedding_type="rope",
        vocab_size=392, max_position_embeddings=512, rms_norm_eps=1e-5, rope_theta=10000.0,
        rope_scaling=None, embedding_multiplier=6.0, attention_multiplier=0.25,
        residual_multiplier=0.4, logits_scaling=3.0, tie_word_embeddings=False, attention_bias=True,
        eos_token_id=0, bos_token_id=0, pad_token_id=0),
    # Shapes of published models.
    "qwen3.5-0.8b": dict(
        architectures=["Qwen3_5ForCausalLM"], model_type="qwen3_5_text", hidden_size=1024,
        intermediate_size=3584, num_hidden_layers=24, num_attention_heads=8,
        num_key_value_heads=2, head_dim=256, full_attention_interval=4, linear_conv_kernel_dim=4,
        linear_num_key_heads=16, linear_num_value_heads=16, linear_key_head_dim=128,
        linear_value_head_dim=128, vocab_size=248320, max_position_embeddings=262144,
        rms_norm_eps=1e-6, rope_theta=10000000.0, partial_rotary_factor=0.25,
        tie_word_embeddings=True, attention_bias=False, eos_token_id=248044),
    "qwen2.5-0.5b": dict(
        architectures=["Qwen2ForCausalLM"], model_type="qwen2", hidden_size=896,
        intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
        num_key_value_heads=2, vocab_size=151936, max_position_embeddings=32768,
        rms_norm_eps=1e-6, rope_theta=1000000.0, tie_word_embeddings=True,
        use_sliding_window=False, sliding_window=32768, max_window_layers=24,
        eos_token_id=151645, bos_token_id=151643),
}
COMMON = dict(hidden_act="silu", attention_dropout=0.0, initializer_range=0.02, use_cache=True)

# Shapes of what models that also see hold beside the language model. A letter is a size: w, f: the
# tower's hidden and intermediate size, p: of a patch, n: patches of an image, d: the language model's
# hidden size, m: w of 2 x 2 patches, q: 3 w.
QWEN35_VISION_TENSORS = {
    "model.visual.patch_embed.proj.weight": "w32pp",
    "model.visual.patch_embed.proj.bias": "w",
    "model.visual.pos_embed.weight": "nw",
    **{f"model.visual.{module}.{kind}": shape
       for module, weight, bias in (
           ("blocks.0.norm1", "w", "w"), ("blocks.0.norm2", "w", "w"),
           ("blocks.0.attn.qkv", "qw", "q"), ("blocks.0.attn.proj", "ww", "w"),
           ("blocks.0.mlp.linear_fc1", "fw", "f"), ("blocks.0.mlp.linear_fc2", "wf", "w"),
           ("merger.norm", "w", "w"), ("merger.linear_fc1", "mm", "m"),
           ("merger.linear_fc2", "dm", "d"))
       for kind, shape in (("weight", weight), ("bias", bias))},
}
VISION_TENSORS = {
    "qwen3_5_vision": QWEN35_VISION_TENSORS,
    "qwen3_5_moe_vision": QWEN35_VISION_TENSORS,
    "gemma4_vision": {
        "model.vision_tower.patch_embedder.position_embedding_table": "2nw",
        "model.vision_tower.patch_embedder.input_proj.weight": "wc",
        **{f"model.vision_tower.encoder.layers.0.{module}.weight": shape
           for module, shape in (
               *((f"self_attn.{proj}_proj.linear", "ww") for proj in "qkvo"),
               ("self_attn.q_norm", "h"), ("self_attn.k_norm", "h"), ("mlp.gate_proj.linear", "fw"),
               ("mlp.up_proj.linear", "fw"), ("mlp.down_proj.linear", "wf"), ("input_layernorm", "w"),
               ("post_attention_layernorm", "w"), ("pre_feedforward_layernorm", "w"),
               ("post_feedforward_layernorm", "w"))},
        "model.embed_vision.embedding_projection.weight": "dw",
    },
    "siglip_vision_model": {
        "vision_tower.vision_model.embeddings.patch_embedding.weight": "w3pp",
        "vision_tower.vision_model.embeddings.patch_embedding.bias": "w",
        "vision_tower.vision_model.embeddings.position_embedding.weight": "nw",
        **{f"vision_tower.vision_model.encoder.layers.0.{module}.{kind}": shape
           for module, weight, bias in (
               ("layer_norm1", "w", "w"), ("layer_norm2", "w", "w"), ("mlp.fc1", "fw", "f"),
               ("mlp.fc2", "wf", "w"), ("self_attn.q_proj", "ww", "w"),
               ("self_attn.k_proj", "ww", "w"), ("self_attn.v_proj", "ww", "w"),
               ("self_attn.out_proj", "ww", "w"))
           for kind, shape in (("weight", weight), ("bias", bias))},
        "vision_tower.vision_model.post_layernorm.weight": "w",
        "vision_tower.vision_model.post_layernorm.bias": "w",
        "multi_modal_projector.mm_input_projection_weight": "wd",
        "multi_modal_projector.mm_soft_emb_norm.weight": "w",
    },
    "pixtral": {
        "vision_tower.patch_conv.weight": "w3pp",
        "vision_tower.ln_pre.weight": "w",
        **{f"vision_tower.transformer.layers.0.{module}.weight": shape
           for module, shape in (
               ("attention_norm", "w"), ("ffn_norm", "w"), ("attention.q_proj", "ww"),
               ("attention.k_proj", "ww"), ("attention.v_proj", "ww"), ("attention.o_proj", "ww"),
               ("feed_forward.gate_proj", "fw"), ("feed_forward.up_proj", "fw"),
               ("feed_forward.down_proj", "wf"))},
        "multi_modal_projector.norm.weight": "w",
        "multi_modal_projector.patch_merger.merging_layer.weight": "wm",
        "multi_modal_projector.linear_1.weight": "dw",
        "multi_modal_projector.linear_2.weight": "dd",
    },
}
