// What the right answer is: one process, one request at a time, no cache, no cluster.
#ifndef BATON_TESTS_TESTING_ORACLE_H_
#define BATON_TESTS_TESTING_ORACLE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "common/base/check.h"
#include "common/engine/engine.h"

namespace baton::testing {

class Oracle {
 public:
  explicit Oracle(const std::string& model_dir, backend::BackendOptions backend = {})
      : Oracle(OptionsFor(model_dir, std::move(backend))) {}

  // On another device, or with a smaller workspace: what it says of sizes and blocks is overruled.
  explicit Oracle(engine::EngineOptions options) {
    options.max_num_batched_tokens = 512;
    options.max_num_seqs = 1;
    options.num_blocks = 64;
    absl::StatusOr<std::unique_ptr<engine::Engine>> engine = engine::Engine::Load(options);
    BATON_CHECK(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    // The pages of all blocks, table by table; those of a state are the last ones.
    const backend::KvPool& pool = engine_->kv_pool();
    blocks_.resize(static_cast<size_t>(pool.block_count - pool.state_tables) /
                   static_cast<size_t>(pool.block_tables()) *
                   static_cast<size_t>(pool.block_tables()));
    std::iota(blocks_.begin(), blocks_.end(), 0);
    state_.resize(static_cast<size_t>(pool.state_tables));
    std::iota(state_.begin(), state_.end(), pool.block_count - pool.state_tables);
  }

  static engine::EngineOptions OptionsFor(const std::string& model_dir,
                                          backend::BackendOptions backend) {
    engine::EngineOptions options;
    options.model_dir = model_dir;
    options.backend = std::move(backend);
    return options;
  }

  // The mask of tokens that may follow the answer so far, as in model::SamplingHistory.
  using Allowed = std::function<std::vector<uint32_t>(absl::Span<const int32_t>)>;

  // Generated tokens, a stop token included. Prompt at most 512 tokens, all of it at most 1,024.
  // No stop token is drawn before min_tokens.
  std::vector<int32_t> Generate(const std::vector<int32_t>& prompt,
                                const model::SamplingParams& sampling, int max_tokens,
                                const absl::flat_hash_set<int32_t>& stop_token_ids = {},
                                int min_tokens = 0, const Allowed& allowed = nullptr) {
    std::vector<int32_t> tokens;
    for (const model::SampledToken& token :
         GenerateTokens(prompt, sampling, max_tokens, stop_token_ids, min_tokens, allowed)) {
      tokens.push_back(token.token_id);
    }
    return tokens;
  }

  // The same with the log probabilities that sampling.logprobs asks for.
  std::vector<model::SampledToken> GenerateTokens(
      const std::vector<int32_t>& prompt, const model::SamplingParams& sampling, int max_tokens,
      const absl::flat_hash_set<int32_t>& stop_token_ids = {}, int min_tokens = 0,
      const Allowed& allowed = nullptr) {
    const std::vector<int32_t> stops(stop_token_ids.begin(), stop_token_ids.end());
    std::vector<int32_t> tokens = prompt;
    std::vector<model::SampledToken> answer;
    int computed = 0;
    while (static_cast<int>(answer.size()) < max_tokens) {
      engine::BatchEntry entry;
      entry.tokens = absl::MakeConstSpan(tokens).subspan(computed);
      entry.context = computed;
      entry.sample = true;
      entry.sampling = &sampling;
      entry.history.tokens = tokens;
      entry.history.prompt_tokens = static_cast<int>(prompt.size());
      if (static_cast<int>(answer.size()) < min_tokens) entry.history.suppressed = stops;
      std::vector<uint32_t> mask;
      if (allowed != nullptr) {
        mask = allowed(absl::MakeConstSpan(tokens).subspan(prompt.size()));
        entry.history.allowed = mask;
      }
      const model::SampledToken token = StepOne(entry).tokens.value().front();
      computed = static_cast<int>(tokens.size());
      tokens.push_back(token.token_id);
      answer.push_back(token);
      if (stop_token_ids.contains(token.token_id)) break;
    }
    return answer;
  }

  // Log probabilities of the prompt's tokens from the second on, one single-token step each.
  std::vector<model::SampledToken> PromptLogprobs(const std::vector<int32_t>& prompt, int top) {
    std::vector<model::SampledToken> logprobs;
    for (size_t i = 0; i + 1 < prompt.size(); ++i) {
      engine::BatchEntry entry;
      entry.tokens = absl::MakeConstSpan(prompt).subspan(i, 1);
      entry.context = static_cast<int>(i);
      entry.prompt_logprobs = top;
      entry.targets = absl::MakeConstSpan(prompt).subspan(i + 1, 1);
      logprobs.push_back(StepOne(entry).prompt_logprobs.value().front());
    }
    return logprobs;
  }

  // The `count` most probable tokens behind `tokens`, best first.
  std::vector<model::SampledToken> BestTokens(const std::vector<int32_t>& tokens, int count) {
    const model::SamplingParams sampling;
    engine::BatchEntry entry;
    entry.tokens = tokens;
    entry.sample = true;
    entry.sampling = &sampling;
    entry.history.tokens = tokens;
    entry.history.prompt_tokens = static_cast<int>(tokens.size());
    entry.beam_candidates = count;
    return StepOne(entry).tokens.value();
  }

  const engine::Engine& engine() const { return *engine_; }

 private:
  engine::StepResult StepOne(engine::BatchEntry entry) {
    entry.blocks = blocks_;
    const backend::StateStore store = {entry.context + static_cast<int>(entry.tokens.size()),
                                       state_};
    if (!state_.empty()) {
      if (entry.context > 0) entry.state = state_;
      entry.state_stores = absl::MakeConstSpan(&store, 1);
    }
    engine::Batch batch;
    batch.entries.push_back(entry);
    return engine_->Step(batch)[0];
  }

  std::unique_ptr<engine::Engine> engine_;
  std::vector<kv::BlockId> blocks_;
  std::vector<int32_t> state_;
};

}  // namespace baton::testing

#endif  // BATON_TESTS_TESTING_ORACLE_H_
