// The rotary frequencies of a config, in the old form or that of Transformers 5.
#ifndef BATON_COMMON_MODEL_ROPE_H_
#define BATON_COMMON_MODEL_ROPE_H_

#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/backend/backend.h"
#include "common/model/json_fields.h"

namespace baton::model {

// The kinds of layers, as configs name them.
inline constexpr absl::string_view kFullAttention = "full_attention";
inline constexpr absl::string_view kSlidingAttention = "sliding_attention";

// What the architecture, not the config, says of its rotation.
struct RopeRequest {
  int head_dim = 0;
  int max_positions = 0;  // max_position_embeddings
  double default_theta = 10000;
  absl::string_view theta_key = "rope_theta";
  // The key of rope_parameters for layers of this kind, where they have an object for each, such as
  // "full_attention".
  absl::string_view layer_type = "";
  // Whether rope_scaling counts. An object of rope_parameters for layers of this kind does anyway.
  bool scales = true;
  bool partial = false;      // partial_rotary_factor may be below 1
  double default_share = 1;  // partial_rotary_factor where there is none
  bool mrope = false;        // mrope_section is read, which changes nothing for texts
  bool longrope = false;     // type longrope and its old names, and no other
  bool query_scale = false;  // llama_4_scaling_beta of yarn: RopeSpec::query_beta
  // Type proportional, which is what a config without parameters has: all of a head is pairs, of
  // which the first partial_rotary_factor turn, by the frequencies of a head that turns as a whole.
  bool proportional = false;
};

struct Rope {
  backend::RopeSpec spec;  // with longrope: for contexts of up to original_positions
  std::vector<double> long_inverse_frequencies;
  int original_positions = 0;
  // What scores are multiplied with twice by attention that reads it: yarn's mscale_all_dim.
  double score_magnitude = 1;
  // Positions that the scaling extends the model to, where that is more than max_positions.
  int extended_positions = 0;
};

// Reads rope_scaling (old) or rope_parameters (new): "default", "linear", "llama3" or "yarn"
// (arXiv 2309.00071), longrope (arXiv 2402.13753) and proportional where they are asked for.
// UNIMPLEMENTED, naming it, for another type, and for a key that the type does not read.
// INVALID_ARGUMENT for two spellings that differ.
absl::StatusOr<Rope> ReadRope(const JsonFields& config, const RopeRequest& request);

}  // namespace baton::model

#endif  // BATON_COMMON_MODEL_ROPE_H_
