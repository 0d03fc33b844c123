// An engine that computes nothing but is strict: the KV of a token is the token itself, a state a
// hash of the tokens before it, and every step checks that what it reads of a sequence's context is
// there. A hidden state is one number, made of a token and its position; an engine of an MTP head
// checks those that it is given.
#ifndef BATON_TESTS_DECODE_WORKER_FAKE_ENGINE_H_
#define BATON_TESTS_DECODE_WORKER_FAKE_ENGINE_H_

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/engine/engine.h"
#include "common/engine/engine_shape.h"
#include "tests/testing/launched_steps.h"

namespace baton::testing {

class FakeEngine final : public engine::Engine {
 public:
  static constexpr int kBlockTokens = 16;
  static constexpr int kVocabulary = 1000;

  // `pages`: of its pool, where a block is one page; with a recurrent layer a state is another.
  explicit FakeEngine(int pages, int max_num_seqs = 8, int max_num_batched_tokens = 4096,
                      bool recurrent = false) {
    config_.vocab_size = config_.token_count = kVocabulary;
    config_.fingerprint = 7;
    config_.hidden_dim = 1;
    layout_.layers = layout_.kv_heads = layout_.head_dim = 1;
    layout_.block_tokens = kBlockTokens;
    layout_.dtype = kv::KvDtype::kF32;
    if (recurrent) {
      layout_.AddStates({{{.lanes = 16, .depth = 1}}});
      engine::SetPlaces(layout_, &pool_);
    }
    memory_.resize(static_cast<size_t>(pages * layout_.PageBytes()));
    pool_.base = memory_.data();
    pool_.block_stride_bytes = layout_.PageBytes();
    pool_.layer_stride_bytes = layout_.ChunkBytes();
    pool_.block_count = pages;
    pool_.kv_heads = pool_.head_dim = 1;
    pool_.block_tokens = kBlockTokens;
    max_model_len_ = 100'000;
    max_num_batched_tokens_ = max_num_batched_tokens;
    max_num_seqs_ = max_num_seqs;
  }

  // Called at the end of each step: to let time pass, to look at what was asked for.
  std::function<void(const engine::Batch&)> on_step = [](const engine::Batch&) {};
  // Of every draw, unless OK.
  absl::Status draw_error;

  // The engine is that of an MTP head.
  bool mtp = false;
  // What a token has for a hidden state, in the model or in its head.
  static float Hidden(int position, int32_t token, bool mtp) {
    const float state = static_cast<float>(1 + position * kVocabulary + token);
    return mtp ? -state : state;
  }

  // For a model that drafts: one of so many draws is another token than Next says; 0: none is.
  int wrong_in = 0;
  // Prices its steps by these layers; without any, as a model of 8 B.
  void SetLayers(const model::ModelConfig& config) { config_.layers = config.layers; }
  void SetMaxModelLen(int tokens) { max_model_len_ = tokens; }

  // What follows `tokens` in choice `choice`.
  static int32_t Next(absl::Span<const int32_t> tokens, uint32_t choice) {
    return static_cast<int32_t>(
        (static_cast<uint32_t>(tokens.back()) * 31 + tokens.size() * 7 + choice * 13 + 1) %
        kVocabulary);
  }
  // One choice, from its prompt on.
  static std::vector<int32_t> Answer(std::vector<int32_t> tokens, int count, uint32_t choice = 0) {
    const size_t prompt = tokens.size();
    for (int i = 0; i < count; ++i) tokens.push_back(Next(tokens, choice));
    return {tokens.begin() + static_cast<std::ptrdiff_t>(prompt), tokens.end()};
  }
  // The state behind the tokens.
  static uint64_t State(absl::Span<const int32_t> tokens) {
    uint64_t state = 0;
    for (const int32_t token : tokens) {
      state = (state ^ static_cast<uint32_t>(token)) * 0x9e3779b97f4a7c15u + 1;
    }
    return state;
  }
  // As a transfer does.
  void WriteKv(absl::Span<const kv::BlockId> blocks, int position, int32_t token) {
    std::memcpy(At(blocks, position), &token, sizeof(token));
  }

  // Whether steps can be launched ahead.
  bool ahead = false;
  bool nothing_under_way() const { return launched_.empty(); }
  int most_under_way() const { return launched_.most(); }

  bool RunsAhead(const engine::Batch& batch) const override {
    return ahead && LaunchedSteps::RunAhead(batch);
  }
  void Launch(const engine::Batch& batch) override { launched_.Launch(batch); }
  std::vector<engine::StepResult> Collect() override { return launched_.Collect(); }

  std::vector<engine::StepResult> Step(const engine::Batch& batch,
                                       model::LayerObserver* observer = nullptr) override {
    BATON_CHECK(launched_.empty());
    return Compute(batch);
  }
  void CopyPages(absl::Span<const int32_t> sources, absl::Span<const int32_t> targets) override {
    launched_.ComputeAll();
    for (size_t i = 0; i < sources.size(); ++i) {
      std::memcpy(Block(targets[i]), Block(sources[i]), block_bytes());
    }
  }
  void ReadPages(absl::Span<const int32_t> pages, std::byte* host) override {
    launched_.ComputeAll();
    for (const int32_t page : pages) {
      std::memcpy(host, Block(page), block_bytes());
      host += block_bytes();
    }
  }
  void WritePages(absl::Span<const int32_t> pages, const std::byte* host) override {
    launched_.ComputeAll();
    for (const int32_t page : pages) {
      std::memcpy(Block(page), host, block_bytes());
      host += block_bytes();
    }
  }
  std::string Description() const override { return "computes nothing"; }

 private:
  std::vector<engine::StepResult> Compute(const engine::Batch& batch) {
    std::vector<engine::StepResult> results;
    for (const engine::BatchEntry& entry : batch.entries) {
      engine::CheckDrafts(entry);
      for (int i = 0; i < entry.context; ++i) {
        int32_t found;
        std::memcpy(&found, At(entry.blocks, i), sizeof(found));
        const auto token = static_cast<size_t>(entry.tokens_before + i);
        BATON_CHECK_EQ(found, entry.history.tokens[token]) << "KV at " << i;
      }
      CheckHidden(entry);
      ComputeStates(entry);
      int position = entry.context;
      for (const int32_t token : entry.tokens) WriteKv(entry.blocks, position++, token);
      for (const int32_t token : entry.drafts) WriteKv(entry.blocks, position++, token);
      results.push_back(Draw(entry));
      if (!entry.hidden_states) continue;
      position = entry.tokens_before + entry.context + static_cast<int>(entry.tokens.size()) - 1;
      std::vector<float>& states = results.back().hidden_states;
      states.push_back(Hidden(position, entry.tokens.back(), mtp));
      for (const int32_t token : entry.drafts) states.push_back(Hidden(++position, token, mtp));
    }
    on_step(batch);
    return results;
  }
  // The last state may be the head's own: then it has drafted the token that follows.
  void CheckHidden(const engine::BatchEntry& entry) const {
    BATON_CHECK_EQ(mtp ? entry.tokens.size() : 0, entry.hidden_before.size());
    for (size_t i = 0; i < entry.hidden_before.size(); ++i) {
      const int before = entry.tokens_before + entry.context + static_cast<int>(i) - 1;
      const int32_t token = entry.history.tokens[static_cast<size_t>(before)];
      const float state = entry.hidden_before[i];
      BATON_CHECK(state == Hidden(before, token, false) ||
                  (i == 0 && entry.tokens.size() == 1 && state == Hidden(before, token, true)))
          << "the state of token " << before;
    }
  }
  void ComputeStates(const engine::BatchEntry& entry) {
    if (!layout_.recurrent()) return;
    std::vector<int32_t> tokens(entry.history.tokens.begin(),
                                entry.history.tokens.begin() + entry.context);
    BATON_CHECK_EQ(entry.context > 0, !entry.state.empty());
    if (entry.context > 0) {
      uint64_t found;
      std::memcpy(&found, Block(entry.state[0]), sizeof(found));
      BATON_CHECK_EQ(found, State(tokens)) << "state behind " << entry.context;
    }
    tokens.insert(tokens.end(), entry.tokens.begin(), entry.tokens.end());
    for (const backend::StateStore& store : entry.state_stores) {
      const uint64_t state =
          State(absl::MakeConstSpan(tokens).first(static_cast<size_t>(store.tokens)));
      std::memcpy(Block(store.pages[0]), &state, sizeof(state));
    }
  }
  size_t block_bytes() const { return static_cast<size_t>(layout_.PageBytes()); }
  std::byte* Block(kv::BlockId block) { return pool_.base + block * pool_.block_stride_bytes; }
  std::byte* At(absl::Span<const kv::BlockId> blocks, int position) {
    return Block(blocks[static_cast<size_t>(position / kBlockTokens)]) +
           (position % kBlockTokens) * sizeof(int32_t);
  }

  engine::StepResult Draw(const engine::BatchEntry& entry) const {
    engine::StepResult result;
    if (!entry.sample) return result;
    if (!draw_error.ok()) {
      result.tokens = draw_error;
      return result;
    }
    std::vector<model::SampledToken> tokens;
    const int count = entry.beam_candidates > 0 ? entry.beam_candidates : entry.draws;
    for (int i = 0; i < count; ++i) {
      const uint32_t choice = entry.beam_candidates > 0
                                  ? static_cast<uint32_t>(i)
                                  : entry.sampling->choice + static_cast<uint32_t>(i);
      model::SampledToken& token = tokens.emplace_back();
      token.token_id = Next(entry.history.tokens, choice);
      if (wrong_in > 0 && token.token_id % wrong_in == 0) {
        token.token_id = (token.token_id + 1) % kVocabulary;
      }
      // Of beams: no two paths have equal scores.
      token.score = -0.5f - static_cast<float>(i) - static_cast<float>(token.token_id) / 5000;
      if (entry.sampling->logprobs) token.logprob = -static_cast<float>(token.token_id) / 1000;
    }
    result.tokens = std::move(tokens);
    std::vector<int32_t> known(entry.history.tokens.begin(), entry.history.tokens.end());
    for (int drafted = 1; drafted <= static_cast<int>(entry.drafts.size()); ++drafted) {
      if (!engine::DraftsAreDrawn(entry, drafted, result.tokens)) break;
      known.push_back(entry.drafts[static_cast<size_t>(drafted - 1)]);
      model::SampledToken& token = result.tokens->emplace_back();
      token.token_id = Next(known, entry.sampling->choice);
      if (entry.sampling->logprobs) token.logprob = -static_cast<float>(token.token_id) / 1000;
    }
    return result;
  }

  std::vector<std::byte> memory_;
  LaunchedSteps launched_{[this](const engine::Batch& batch) { return Compute(batch); }};
};

}  // namespace baton::testing

#endif  // BATON_TESTS_DECODE_WORKER_FAKE_ENGINE_H_
