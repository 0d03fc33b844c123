// The metadata of a GGUF file in the words of Hugging Face's config.json, so that one reader checks
// both.
#ifndef BATON_COMMON_MODEL_GGUF_CONFIG_H_
#define BATON_COMMON_MODEL_GGUF_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/gguf/file.h"
#include "common/gguf/json_object.h"

namespace baton::model {

struct Architecture;

// config.json of the file. Ranges are checked by its reader. UNIMPLEMENTED, naming the key, for an
// architecture or a feature that Baton does not serve.
absl::StatusOr<std::string> GgufConfigJson(const gguf::File& file);

// Writes config.json: first what all architectures have, then what Architecture::add_gguf adds.
// Keys are those after "<general.architecture>.", and each method marks its key as read: one that
// stays unread is an error.
class GgufConfig {
 public:
  // `architecture` outlives it. gguf: how the file names it.
  GgufConfig(const gguf::File& file, const Architecture& architecture, std::string gguf)
      : file_(file), architecture_(architecture), gguf_(std::move(gguf)) {}

  absl::StatusOr<std::string> Write();

  int64_t layers() const { return layers_; }
  int64_t hidden_dim() const { return hidden_dim_; }
  int64_t heads() const { return heads_; }
  int64_t head_dim() const { return head_dim_; }
  int64_t ffn_dim() const { return ffn_; }
  int64_t vocab_size() const { return vocab_size_; }

  absl::StatusOr<std::optional<double>> Real(absl::string_view key) const;
  absl::StatusOr<std::optional<int64_t>> Integer(absl::string_view key) const;
  absl::StatusOr<bool> BoolOr(absl::string_view key, bool if_absent) const;
  // The value for each layer: the file has a list of them, or one number for all layers.
  absl::StatusOr<std::vector<int64_t>> ByLayer(absl::string_view key) const;
  absl::Status Missing(absl::string_view key, absl::string_view expected) const;
  absl::Status Unsupported(absl::string_view key, absl::string_view message) const;

  // In place of the architecture that the file names.
  void SetArchitecture(absl::string_view name) { name_ = std::string(name); }
  void AddReal(absl::string_view field, double value) { config_.AddReal(field, value); }
  void AddJson(absl::string_view field, absl::string_view json) { config_.AddJson(field, json); }
  // If the file has it.
  absl::Status CopyReal(absl::string_view key, absl::string_view field);
  absl::Status CopyInteger(absl::string_view key, absl::string_view field);
  absl::Status CopyBool(absl::string_view key, absl::string_view field, bool if_absent);
  // n_group and topk_group.
  absl::Status CopyExpertGroups();
  // attention.sliding_window; whether there is one.
  absl::StatusOr<bool> CopyWindow();
  // attention.sliding_window_pattern, if there is one: of each layer whether it slides, or the
  // number of layers of which the last does not.
  absl::Status CopyWindowPattern();
  // The same list, which the file must have: of each layer whether it slides. Adds layer_types.
  absl::StatusOr<std::vector<bool>> SlidingLayers();

  // expert_count and expert_feed_forward_length, if there is one, under these keys, and
  // expert_used_count. ffn_field empty: experts are as large as feed_forward_length says.
  // REQUIRES: Architecture::gguf_experts.
  absl::Status CopyExperts(absl::string_view count_field, absl::string_view ffn_field,
                           absl::string_view used_field = "num_experts_per_tok");
  // Whether the scores of experts are sigmoids: by expert_gating_func or, in files without it, the
  // bias of the choice that goes with them.
  absl::StatusOr<bool> RoutesBySigmoid() const;
  bool has_experts() const { return experts_ > 0; }
  // attention.recurrent_layers, of each layer whether it is recurrent, as layer_types where
  // `recurrent` is the name of those that are; or, without it, full_attention_interval.
  absl::Status CopyRecurrentLayers(absl::string_view recurrent);
  // rope.dimension_sections: which of several positions of a token (of text they are all the same,
  // but for the fourth) rotates which pairs. UNIMPLEMENTED if the fourth rotates any.
  absl::Status CheckRopeSections() const;
  // Whether the name of one ends so.
  bool HasTensor(absl::string_view end) const;

  // Members of rope_scaling, which gets type, factor and original length from the file.
  void AddToRope(absl::string_view field, double value) { rope_.AddReal(field, value); }
  void AddToRope(absl::string_view field, bool value) { rope_.AddBool(field, value); }
  // The scaling becomes rope_parameters, with rope_theta.
  void UseRopeParameters() { rope_parameters_ = true; }
  // rope.scaling.yarn_log_multiplier, as mscale_all_dim.
  absl::Status AddYarnMagnitude();
  // rope_parameters of layers that see everything, with heads of so many elements, and of those
  // with a window. Of the former, the pairs turn that rope_freqs.weight leaves as they are.
  absl::Status AddProportionalRopes(int64_t head_dim);
  // longrope, if the file has it; its factors are tensors. Refused where this is not called.
  absl::Status AddLongRope();

 private:
  // Notes that the key is read.
  std::string Key(absl::string_view name) const;
  absl::StatusOr<int64_t> Required(absl::string_view name) const;
  absl::Status Copy(absl::string_view name, absl::string_view field);
  absl::Status CheckSupported();
  // block_count, less the layers for speculation at its end (nextn_predict_layers).
  absl::Status AddLayers();
  absl::Status CheckNothingForeign() const;
  absl::Status AddFeedForward();
  absl::Status AddHeads();
  // The KV heads of each layer that has attention. If the file lists them by layer, adds
  // layer_types (Architecture::gguf_recurrent).
  absl::StatusOr<int64_t> AddKvHeads();
  absl::Status AddLatentHeads();
  absl::Status CheckHeads() const;
  absl::Status AddReals();
  absl::Status AddRopeScaling();
  absl::Status AddYarn();
  absl::Status AddTensors();
  void AddQuantization();
  bool HasLongRope() const;
  absl::Status FinishRope();

  const gguf::File& file_;
  const Architecture& architecture_;
  const std::string gguf_;
  std::string name_;
  int64_t blocks_ = 0, layers_ = 0, hidden_dim_ = 0, ffn_ = 0, heads_ = 0, head_dim_ = 0,
          experts_ = 0;
  int64_t vocab_size_ = 0;
  std::optional<double> theta_;
  bool rope_parameters_ = false, reads_longrope_ = false, has_ropes_ = false;
  gguf::JsonObject config_, rope_;
  mutable absl::flat_hash_set<std::string> read_;
};

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_GGUF_CONFIG_H_
