// What the right answer is: one process, one request at a time, no cache, no cluster.
#ifndef BATON_TESTS_TESTING_ORACLE_H_
#define BATON_TESTS_TESTING_ORACLE_H_

#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "common/base/check.h"
#include "common/engine/engine.h"

namespace baton::testing {

class Oracle {
 public:
  explicit Oracle(const std::string& model_dir, backend::BackendOptions backend = {}) {
    engine::EngineOptions options;
    options.model_dir = model_dir;
    options.backend = backend;
    options.max_num_batched_tokens = 512;
    options.max_num_seqs = 1;
    options.num_blocks = 64;
    absl::StatusOr<std::unique_ptr<engine::Engine>> engine = engine::Engine::Load(options);
    BATON_CHECK(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    blocks_.resize(options.num_blocks);
    std::iota(blocks_.begin(), blocks_.end(), 0);
  }

  // Generated tokens, a stop token included. Prompt at most 512 tokens, all of it at most 1,024.
  std::vector<int32_t> Generate(const std::vector<int32_t>& prompt,
                                const model::SamplingParams& sampling, int max_tokens,
                                const absl::flat_hash_set<int32_t>& stop_token_ids = {}) {
    std::vector<int32_t> tokens = prompt;
    int computed = 0;
    while (static_cast<int>(tokens.size() - prompt.size()) < max_tokens) {
      engine::Batch batch;
      engine::BatchEntry entry;
      entry.tokens = absl::MakeConstSpan(tokens).subspan(computed);
      entry.context = computed;
      entry.blocks = blocks_;
      entry.sample = true;
      entry.sampling = sampling;
      batch.entries.push_back(entry);
      const absl::StatusOr<int32_t> token = engine_->Step(batch)[0].token;
      BATON_CHECK(token.ok()) << token.status();
      computed = static_cast<int>(tokens.size());
      tokens.push_back(*token);
      if (stop_token_ids.contains(*token)) break;
    }
    return std::vector<int32_t>(tokens.begin() + prompt.size(), tokens.end());
  }

  const engine::Engine& engine() const { return *engine_; }

 private:
  std::unique_ptr<engine::Engine> engine_;
  std::vector<kv::BlockId> blocks_;
};

}  // namespace baton::testing

#endif  // BATON_TESTS_TESTING_ORACLE_H_
