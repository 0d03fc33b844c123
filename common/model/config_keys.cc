#include "common/model/config_keys.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"

namespace baton::model {
namespace {

using Names = absl::Span<const absl::string_view>;

// Keys of config.json that no forward pass of the architectures served reads: names, records of
// training, what a program returns, and how (not what) it computes.
constexpr absl::string_view kHarmless[] = {
    "model_type",
    "auto_map",
    "is_decoder",
    "tokenizer_class",
    "transformers_version",
    "use_cache",
    "cache_implementation",
    "return_dict",
    "output_attentions",
    "output_hidden_states",
    "attn_implementation",
    "pretraining_tp",
    "chunk_size_feed_forward",
    "max_window_layers",  // only for windows, whose own key is read or refused
    "id2label",
    "label2id",
    "problem_type",
    "finetuning_task",
    "task_specific_params",
    "gradient_checkpointing",
    "torchscript",
    "use_bfloat16",
};
constexpr absl::string_view kHarmlessParts[] = {
    "dropout",   "pdrop",         "drop_path",
    "layerdrop", "initializer",   "_loss",
    "loss_",     "_name_or_path", "_attn_implementation",
    "flash_att", "_token_id",     "_token_index",
};

// Parts of the names of keys that change a computation: apart from sizes, every key that the text
// models of Transformers 5 read has one of these in its name.
constexpr absl::string_view kForwardWords[] = {
    "rope",    "rotary",      "position", "alibi",    "yarn",         "attn",         "attention",
    "softcap", "soft_cap",    "_cap",     "clip",     "scal",         "multiplier",   "factor",
    "alpha",   "mup",         "window",   "sliding",  "chunk",        "sink",         "expert",
    "moe",     "router",      "gate",     "gating",   "norm",         "_eps",         "epsilon",
    "bias",    "activation",  "_act",     "hidden",   "layer",        "head",         "kv",
    "qk",      "query",       "mlp",      "ffn",      "feed_forward", "intermediate", "logit",
    "embed",   "embd",        "residual", "mamba",    "ssm",          "conv_",        "_conv",
    "lora",    "adapter",     "quant",    "compress", "spars",        "topk",         "depth",
    "recurr",  "mtp",         "nextn",    "causal",   "directional",  "prun",         "dim",
    "d_model", "n_inner",     "width",    "decoder",  "encoder",      "interleave",   "dense",
    "glu",     "scoring",     "posemb",   "_pos",     "time_step",    "altup",        "laurel",
    "loop",    "text_config",
};

// What quantisers write about themselves, or what the tensors show anyway.
constexpr absl::string_view kQuantizerHarmless[] = {
    "sym",
    "true_sequential",
    "static_groups",
    "act_group_aware",
    "lm_head",
    "modules_to_not_convert",
    "modules_in_block_to_quantize",
    "block_name_to_quantize",
    "module_name_preceding_first_block",
    "use_exllama",
    "disable_exllama",
    "exllama_config",
    "backend",
    "meta",
    "do_fuse",
    "modules_to_fuse",
    "fuse_max_seq_len",
    "batch_size",
    "max_input_length",
    "cache_block_outputs",
    "dataset",
    "tokenizer",
    "model_seqlen",
    "use_cuda_fp16",
    "mse",
    "quantizer",
    "pad_token_id",
    "model_file_base_name",
    "damp_auto_increment",
    "version",
    "zero_point",
};
constexpr absl::string_view kQuantizerHarmlessParts[] = {"damp", "_name_or_path", "calibration"};
constexpr absl::string_view kQuantizerWords[] = {
    "bit",      "group",   "format",  "method", "dtype",    "type",  "scheme", "rotat",
    "hadamard", "adapter", "scal",    "zero",   "act",      "kv",    "lora",   "order",
    "cache",    "spars",   "dynamic", "smooth", "codebook", "quant",
};

// A key of generation_config.json with which `transformers` changes every answer, or sampled ones
// only, in a way that no request of Baton can ask for.
struct AnswerKey {
  absl::string_view name;
  bool sampled_only = false;
  double neutral = 0;
};
constexpr AnswerKey kAnswerKeys[] = {
    {"num_beams", false, 1},
    {"num_beam_groups", false, 1},
    {"num_return_sequences", false, 1},
    {"guidance_scale", false, 1},
    {"encoder_repetition_penalty", false, 1},
    {"penalty_alpha"},
    {"diversity_penalty"},
    {"no_repeat_ngram_size"},
    {"encoder_no_repeat_ngram_size"},
    {"min_length"},
    {"min_new_tokens"},
    {"bad_words_ids"},
    {"force_words_ids"},
    {"constraints"},
    {"sequence_bias"},
    {"suppress_tokens"},
    {"begin_suppress_tokens"},
    {"forced_bos_token_id"},
    {"forced_eos_token_id"},
    {"exponential_decay_length_penalty"},
    {"dola_layers"},
    {"watermarking_config"},
    {"token_healing"},
    {"stop_strings"},
    {"typical_p", true, 1},
    {"top_h", true, 1},
    {"epsilon_cutoff", true},
    {"eta_cutoff", true},
};
// Other keys of generation_config.json that change no token, or none without a key above.
constexpr absl::string_view kGenerationHarmless[] = {
    "bos_token_id",
    "pad_token_id",
    "decoder_start_token_id",
    "transformers_version",
    "_from_model_config",
    "use_cache",
    "cache_implementation",
    "cache_config",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_length",
    "max_time",
    "length_penalty",
    "early_stopping",
    "renormalize_logits",
    "remove_invalid_values",
    "return_dict_in_generate",
    "low_memory",
};
constexpr absl::string_view kGenerationHarmlessParts[] = {"output_", "assistant", "compile"};

bool IsAmong(absl::string_view name, Names names, Names parts) {
  return absl::c_linear_search(names, name) || absl::c_any_of(parts, [&](absl::string_view part) {
           return absl::StrContains(name, part);
         });
}

void LogUnknown(const JsonFields& fields, const std::vector<std::string>& unknown) {
  if (unknown.empty()) return;
  BATON_LOG(Warning) << fields.Message(
      absl::StrJoin(unknown, ", ",
                    [](std::string* out, const std::string& key) {
                      absl::StrAppend(out, json::Printable(key));
                    }),
      "not read, as Baton does not know it and its name is not that of a part of the computation");
}

// True if the key is a factor, so that 1 changes nothing.
bool IsFactor(absl::string_view name) {
  return IsAmong(name, {}, {"scal", "multiplier", "factor"});
}

absl::Status CheckByWords(const JsonFields& fields, Names harmless, Names harmless_parts,
                          Names words) {
  std::vector<std::string> unknown;
  for (const std::string& key : fields.Unread()) {
    const std::string name = absl::AsciiStrToLower(key);
    if (IsAmong(name, harmless, harmless_parts)) continue;
    if (!IsAmong(name, {}, words)) {
      unknown.push_back(key);
      continue;
    }
    if (IsFactor(name) && fields.NumberOf(key) == 1) continue;
    return fields.Unsupported(
        json::Printable(key),
        absl::StrCat("found ", fields.Found(key),
                     ", expected none: its name is that of a part of the computation that Baton "
                     "does not have"));
  }
  LogUnknown(fields, unknown);
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckConfigKeys(const JsonFields& config) {
  return CheckByWords(config, kHarmless, kHarmlessParts, kForwardWords);
}

absl::Status CheckQuantizationKeys(const JsonFields& quantization) {
  return CheckByWords(quantization, kQuantizerHarmless, kQuantizerHarmlessParts, kQuantizerWords);
}

absl::Status CheckGenerationKeys(const JsonFields& generation, bool samples) {
  std::vector<std::string> unknown;
  for (const std::string& key : generation.Unread()) {
    const auto* known =
        absl::c_find_if(kAnswerKeys, [&](const AnswerKey& answer) { return answer.name == key; });
    if (known == std::end(kAnswerKeys)) {
      if (!IsAmong(key, kGenerationHarmless, kGenerationHarmlessParts)) unknown.push_back(key);
      continue;
    }
    if (known->sampled_only && !samples) continue;
    if (generation.NumberOf(key) == known->neutral) continue;
    return generation.Unsupported(
        key, absl::StrCat("found ", generation.Found(key),
                          ", expected none: it changes every answer, and Baton does not apply it"));
  }
  LogUnknown(generation, unknown);
  return absl::OkStatus();
}

}  // namespace baton::model
