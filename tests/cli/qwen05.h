// config.json of Qwen2.5-0.5B, for tests of plans.
#ifndef BATON_TESTS_CLI_QWEN05_H_
#define BATON_TESTS_CLI_QWEN05_H_

namespace baton::cli {

inline constexpr char kQwen05[] = R"({"architectures": ["Qwen2ForCausalLM"], "hidden_size": 896,
  "num_hidden_layers": 24, "num_attention_heads": 14, "num_key_value_heads": 2,
  "intermediate_size": 4864, "vocab_size": 151936, "max_position_embeddings": 32768,
  "tie_word_embeddings": true, "torch_dtype": "bfloat16", "rms_norm_eps": 1e-06,
  "rope_theta": 1000000.0, "hidden_act": "silu", "use_sliding_window": false,
  "max_window_layers": 24, "eos_token_id": 151643})";

}  // namespace baton::cli

#endif  // BATON_TESTS_CLI_QWEN05_H_
