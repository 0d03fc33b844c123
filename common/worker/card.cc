#include "common/worker/card.h"

#include <algorithm>
#include <filesystem>

#include "common/base/random_id.h"

namespace baton::worker {
namespace {

// The last component of the path, "." and trailing slashes resolved.
std::string ModelName(const std::string& model_dir) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::weakly_canonical(model_dir, error);
  return error ? model_dir : path.filename().string();
}

}  // namespace

internal::v1::WorkerCard MakeCard(baton::v1::WorkerRole role, const WorkerOptions& options,
                                  const engine::Engine& engine) {
  internal::v1::WorkerCard card;
  card.set_role(role);
  card.set_worker_id(options.worker_id.empty() ? RandomIdText() : options.worker_id);
  card.set_epoch(RandomId64());
  card.set_model(options.model_name.empty() ? ModelName(options.model_dir) : options.model_name);
  card.set_model_fingerprint(engine.config().fingerprint);
  card.set_tokenizer_fingerprint(engine.config().tokenizer_fingerprint);
  const kv::KvLayout& layout = engine.kv_layout();
  auto* proto = card.mutable_kv_layout();
  proto->set_layers(layout.layers);
  proto->set_kv_heads(layout.kv_heads);
  proto->set_head_dim(layout.head_dim);
  proto->set_block_tokens(layout.block_tokens);
  proto->set_dtype(layout.DtypeText());
  proto->set_format_version(layout.format_version);
  proto->set_fingerprint(layout.Fingerprint());
  proto->set_numerics(layout.numerics);
  proto->set_latent_dim(layout.latent_dim);
  card.set_kv_block_bytes(layout.BlockBytes());
  if (layout.windowed()) {
    const kv::BlockShape shape = layout.Shape();
    internal::v1::BlockShape& sent = *card.mutable_block_shape();
    sent.set_full_pages(shape.full_pages);
    sent.set_window_pages(shape.window_pages);
    sent.set_window_blocks(shape.window_blocks);
    sent.set_recurrent(shape.recurrent);
    const auto full = std::count(layout.windows.begin(), layout.windows.end(), 0);
    sent.set_window_bytes((layout.layers - full) * layout.ChunkBytes());
  }
  card.set_pool(options.pool);
  card.set_max_model_len(engine.max_model_len());
  card.set_max_num_seqs(engine.max_num_seqs());
  card.set_total_blocks(engine.kv_pool().block_count);
  card.set_max_num_batched_tokens(engine.max_num_batched_tokens());
  card.set_prefix_caching(options.enable_prefix_caching);
  card.set_device(engine.DeviceKind());
  card.set_takes_fixed_tokens(true);
  if (role == baton::v1::WORKER_ROLE_PREFILL || options.serves_prefill) {
    card.add_capabilities(v1::WORKER_CAPABILITY_COMPUTE);
    card.add_capabilities(v1::WORKER_CAPABILITY_SCORE);
  }
  if (role == baton::v1::WORKER_ROLE_DECODE) {
    card.add_capabilities(v1::WORKER_CAPABILITY_ANSWER);
    card.set_grammar_level(internal::v1::GRAMMAR_LEVEL_MESSAGES);
  }
  if (options.listed_tier_segment > 0) {
    // Stores keep a state apart from the segment's KV, and it may be the smaller value of the two.
    int chunks = options.listed_tier_segment / layout.block_tokens * layout.attention_layers();
    if (layout.recurrent()) chunks = std::min(chunks, layout.state_pieces());
    const int64_t segments =
        options.listed_tier_bytes / std::max<int64_t>(chunks * layout.ChunkBytes(), 1);
    card.set_kv_tier_max_segments(static_cast<int>(std::min(segments, kv::kMostTierKeys)));
    card.set_kv_tier_segment_tokens(segments > 0 ? options.listed_tier_segment : 0);
  }
  const model::ModelConfig& config = engine.config();
  if (config.embeddings) {
    card.mutable_embeddings()->set_dimensions(config.hidden_dim);
    card.mutable_embeddings()->set_normalized(config.embeddings->normalize);
  }
  card.mutable_eos_token_ids()->Add(config.eos_token_ids.begin(), config.eos_token_ids.end());
  auto* defaults = card.mutable_generation_defaults();
  if (config.temperature) defaults->set_temperature(*config.temperature);
  if (config.top_p) defaults->set_top_p(*config.top_p);
  if (config.top_k) defaults->set_top_k(*config.top_k);
  if (config.min_p) defaults->set_min_p(*config.min_p);
  if (config.repetition_penalty) defaults->set_repetition_penalty(*config.repetition_penalty);
  if (config.max_new_tokens) defaults->set_max_new_tokens(*config.max_new_tokens);
  return card;
}

}  // namespace baton::worker
