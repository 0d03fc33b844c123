#include "tests/simulation/hash_engine.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/engine/engine_shape.h"
#include "tests/simulation/vocabulary.h"
#include "tests/testing/dense_config.h"
#include "tests/testing/tiny_tokenizer.h"

namespace baton::simulation {
namespace {

uint64_t Mix(uint64_t state, uint64_t value) {
  state = (state ^ value) * 0x9fb21c651e98df25u;
  state ^= std::rotl(state, 29) ^ (state >> 31);
  return state * 0xd6e8feb86659fd93u + 1;
}

// Key and value of a token in a layer, from those of the token before it.
std::array<uint64_t, 2> SlotsOf(int layer, int position, int32_t token, uint64_t previous_key,
                                uint64_t previous_value) {
  uint64_t key = Mix(static_cast<uint64_t>(layer) + 1, static_cast<uint64_t>(position));
  key = Mix(key, static_cast<uint64_t>(token));
  if (position > 0) key = Mix(Mix(key, previous_key), previous_value);
  return {key, Mix(key, 77)};
}

uint64_t NextState(uint64_t state, int position, int32_t token) {
  return Mix(Mix(state, static_cast<uint64_t>(token)), static_cast<uint64_t>(position) + 1000);
}

// One plane of three units, more than a chunk holds: a state takes several pieces and pages.
constexpr kv::StateShape kStateShape = {.lanes = 48, .depth = 1};

float LogprobOf(uint64_t digest, int32_t token) {
  return -static_cast<float>(Mix(digest, static_cast<uint64_t>(token)) % 1000) / 100;
}

int32_t InputOf(const engine::BatchEntry& entry, int row) {
  const auto index = static_cast<size_t>(row);
  return index < entry.tokens.size() ? entry.tokens[index]
                                     : entry.drafts[index - entry.tokens.size()];
}

// Tokens of a cycle.
constexpr int32_t kCycle = 4;

bool Contains(absl::Span<const int32_t> tokens, int32_t token) {
  return std::find(tokens.begin(), tokens.end(), token) != tokens.end();
}

}  // namespace

HashEngine::HashEngine(const HashEngineOptions& options, World& world)
    : hash_options_(options), world_(world) {
  config_.fingerprint = kModelFingerprint;
  config_.tokenizer_fingerprint = HashTokenizer().fingerprint();
  config_.eos_token_ids = {testing::kEndToken};
  config_.vocab_size = kVocab;
  config_.token_count = kVocab;
  // A small model: its drafts pay before anything is measured.
  if (options.draft_errors > 0) {
    config_.layers = testing::DenseConfig({.layers = 1,
                                           .query_heads = 1,
                                           .kv_heads = 1,
                                           .head_dim = 32,
                                           .ffn_dim = 32,
                                           .hidden_dim = 32,
                                           .vocab_size = kVocab})
                         .layers;
    config_.hidden_dim = 32;
  }
  layout_.layers = kLayers;
  layout_.kv_heads = 1;
  layout_.head_dim = 2;
  layout_.block_tokens = kBlockTokens;
  layout_.dtype = kv::KvDtype::kF32;
  if (options.window > 0) {
    layout_.windows.assign(kLayers, 0);
    layout_.windows.back() = options.window;
  }
  if (options.recurrent) layout_.AddStates({{kStateShape}});
  if (layout_.windowed()) {
    engine::SetPlaces(layout_, &pool_);
  } else {
    for (int layer = 0; layer < kLayers; ++layer) pool_.places.push_back({0, layer});
  }
  // Garbage, as memory that others have used: reading what was never written shows.
  const int page_count = options.num_blocks * pool_.tables;
  memory_.assign(static_cast<size_t>(layout_.PageBytes()) / 8 * static_cast<size_t>(page_count),
                 0xdeadbeefdeadbeefu);
  pool_.base = reinterpret_cast<std::byte*>(memory_.data());
  pool_.block_stride_bytes = layout_.PageBytes();
  pool_.layer_stride_bytes = layout_.ChunkBytes();
  pool_.block_count = page_count;
  pool_.kv_heads = 1;
  pool_.head_dim = 2;
  pool_.block_tokens = kBlockTokens;
  max_model_len_ = options.max_model_len;
  max_num_batched_tokens_ = options.max_num_batched_tokens;
  max_num_seqs_ = options.max_num_seqs;
}

uint64_t* HashEngine::Slot(absl::Span<const int32_t> blocks, int layer, int value,
                           int position) const {
  const auto [table, slot] = pool_.PlaceOf(layer);
  const size_t stride = blocks.size() / static_cast<size_t>(pool_.block_tables());
  const size_t index =
      static_cast<size_t>(table) * stride + static_cast<size_t>(position / kBlockTokens);
  std::byte* chunk = pool_.Chunk(blocks[index], slot);
  return reinterpret_cast<uint64_t*>(chunk) + value * kBlockTokens + position % kBlockTokens;
}

void HashEngine::WriteSlots(const engine::BatchEntry& entry, int layer) const {
  for (int i = 0; i < entry.rows(); ++i) {
    const int position = entry.context + i;
    uint64_t key = 0;
    uint64_t value = 0;
    if (position > 0) {
      key = *Slot(entry.blocks, layer, 0, position - 1);
      value = *Slot(entry.blocks, layer, 1, position - 1);
    }
    const auto slots = SlotsOf(layer, position, InputOf(entry, i), key, value);
    *Slot(entry.blocks, layer, 0, position) = slots[0];
    *Slot(entry.blocks, layer, 1, position) = slots[1];
  }
}

std::vector<uint64_t*> HashEngine::StateWords(absl::Span<const int32_t> pages) const {
  const backend::StatePlane& plane = pool_.states[0][0];
  std::vector<uint64_t*> words;
  for (int64_t unit = 0; unit < plane.units(); ++unit) {
    auto* const first = reinterpret_cast<uint64_t*>(pool_.StateUnit(plane, pages, unit));
    for (int64_t i = 0; i < plane.unit_bytes() / 8; ++i) words.push_back(first + i);
  }
  return words;
}

std::vector<uint64_t> HashEngine::WriteStates(const engine::BatchEntry& entry) const {
  std::vector<uint64_t> states;
  if (!hash_options_.recurrent) return std::vector<uint64_t>(static_cast<size_t>(entry.rows()), 0);
  uint64_t state = 0;
  BATON_CHECK_EQ(entry.context > 0, !entry.state.empty());
  if (!entry.state.empty()) {
    const std::vector<uint64_t*> words = StateWords(entry.state);
    state = *words[0];
    // A part that is not the same state's makes another one.
    for (size_t i = 1; i < words.size(); ++i) {
      if (*words[i] != Mix(*words[0], i)) state = Mix(state, *words[i]);
    }
  }
  auto store = entry.state_stores.begin();
  for (int i = 0; i < entry.rows(); ++i) {
    const int position = entry.context + i;
    state = NextState(state, position, InputOf(entry, i));
    states.push_back(state);
    if (hash_options_.state_over_drafts && i >= static_cast<int>(entry.tokens.size())) {
      *StateWords(entry.state_stores.back().pages)[0] = state;
    }
    if (store == entry.state_stores.end()) continue;  // drafts
    if (store->tokens != position + 1) continue;
    const bool last = i + 1 == static_cast<int>(entry.tokens.size());
    if (!last && hash_options_.stores_last_only) {
      ++store;
      continue;
    }
    const std::vector<uint64_t*> words = StateWords(store->pages);
    for (size_t word = 0; word < words.size(); ++word) {
      *words[word] = word == 0 ? state : Mix(state, word);
    }
    ++store;
  }
  BATON_CHECK(store == entry.state_stores.end());
  return states;
}

uint64_t HashEngine::Digest(absl::Span<const int32_t> blocks, int count, uint64_t state) const {
  uint64_t digest = 0;
  const int window = hash_options_.window;
  const int of_all = window > 0 ? kLayers - 1 : kLayers;
  for (int position = 0; position < count; ++position) {
    for (int layer = 0; layer < of_all; ++layer) {
      digest = Mix(digest, *Slot(blocks, layer, 0, position));
      digest = Mix(digest, *Slot(blocks, layer, 1, position));
    }
  }
  for (int position = std::max(0, count - window); position < count && window > 0; ++position) {
    digest = Mix(digest, *Slot(blocks, kLayers - 1, 0, position));
    digest = Mix(digest, *Slot(blocks, kLayers - 1, 1, position));
  }
  return hash_options_.recurrent ? Mix(digest, state) : digest;
}

std::vector<engine::StepResult> HashEngine::Step(const engine::Batch& batch,
                                                 model::LayerObserver* observer) {
  BATON_CHECK(launched_.empty());
  return Compute(batch, observer);
}

std::vector<engine::StepResult> HashEngine::Compute(const engine::Batch& batch,
                                                    model::LayerObserver* observer) {
  BATON_CHECK_GE(batch.rows(), 1);
  BATON_CHECK_LE(batch.rows(), max_num_batched_tokens_);
  BATON_CHECK_LE(static_cast<int>(batch.entries.size()), max_num_seqs_);
  const bool slow = steps_++ < hash_options_.slow_first_steps;
  const Micros step_time = slow ? hash_options_.slow_step_time : hash_options_.step_time;
  for (int layer = 0; layer < kLayers; ++layer) {
    world_.Spend((step_time + hash_options_.token_time * batch.rows()) / kLayers);
    for (const engine::BatchEntry& entry : batch.entries) {
      const int end = entry.context + entry.rows();
      BATON_CHECK_LE(end, max_model_len_);
      BATON_CHECK_GE(static_cast<int>(entry.blocks.size()) / pool_.block_tables() * kBlockTokens,
                     end);
      WriteSlots(entry, layer);
    }
    if (observer != nullptr) observer->OnLayerWritten(layer, nullptr);
  }
  std::vector<std::vector<uint64_t>> states;
  for (const engine::BatchEntry& entry : batch.entries) {
    engine::CheckDrafts(entry);
    states.push_back(WriteStates(entry));
  }
  if (observer != nullptr && hash_options_.recurrent) observer->OnStateWritten(0, nullptr);
  std::vector<engine::StepResult> results(batch.entries.size());
  for (size_t i = 0; i < batch.entries.size(); ++i) {
    const engine::BatchEntry& entry = batch.entries[i];
    const int end = entry.context + static_cast<int>(entry.tokens.size());
    if (entry.prompt_logprobs) {
      for (size_t row = 0; row < entry.targets.size(); ++row) {
        const uint64_t digest =
            Digest(entry.blocks, entry.context + static_cast<int>(row) + 1, states[i][row]);
        results[i].prompt_logprobs->push_back(
            HashLogprobs(digest, entry.targets[row], *entry.prompt_logprobs));
      }
    }
    if (!entry.sample) continue;
    const uint64_t digest = Digest(entry.blocks, end, states[i][entry.tokens.size() - 1]);
    if (entry.beam_candidates > 0) {
      results[i].tokens = HashBest(digest, entry.history, entry.beam_candidates);
      continue;
    }
    std::vector<model::SampledToken> tokens;
    for (int draw = 0; draw < entry.draws; ++draw) {
      model::SamplingParams params = *entry.sampling;
      params.choice += static_cast<uint32_t>(draw);
      tokens.push_back(HashDraw(digest, params, entry.history, static_cast<uint64_t>(end)));
      int32_t& token = tokens.back().token_id;
      if (hash_options_.draft_errors > 0 &&
          digest % static_cast<uint64_t>(hash_options_.draft_errors) == 0) {
        token = (token + 1) % kVocab;
      }
    }
    results[i].tokens = std::move(tokens);
    for (int drafted = 1; drafted < entry.draw_rows(); ++drafted) {
      if (!engine::DraftsAreDrawn(entry, drafted, results[i].tokens) &&
          !hash_options_.believes_drafts) {
        break;
      }
      results[i].tokens->push_back(DrawBehind(entry, drafted, states[i]));
    }
  }
  return results;
}

model::SampledToken HashEngine::DrawBehind(const engine::BatchEntry& entry, int drafted,
                                           absl::Span<const uint64_t> states) const {
  const size_t row = entry.tokens.size() - 1 + static_cast<size_t>(drafted);
  const int end = entry.context + static_cast<int>(row) + 1;
  return HashDraw(Digest(entry.blocks, end, states[row]), *entry.sampling,
                  entry.HistoryBehind(drafted), static_cast<uint64_t>(end));
}

void HashEngine::CopyPages(absl::Span<const int32_t> sources, absl::Span<const int32_t> targets) {
  launched_.ComputeAll();
  if (hash_options_.copies_nothing) return;
  const size_t bytes = static_cast<size_t>(pool_.block_stride_bytes);
  for (size_t i = 0; i < sources.size(); ++i) {
    std::memcpy(Page(targets[i]), Page(sources[i]), bytes);
  }
}

void HashEngine::ReadPages(absl::Span<const int32_t> pages, std::byte* host) {
  launched_.ComputeAll();
  const size_t bytes = static_cast<size_t>(pool_.block_stride_bytes);
  for (size_t i = 0; i < pages.size(); ++i) std::memcpy(host + i * bytes, Page(pages[i]), bytes);
}

void HashEngine::WritePages(absl::Span<const int32_t> pages, const std::byte* host) {
  launched_.ComputeAll();
  const size_t bytes = static_cast<size_t>(pool_.block_stride_bytes);
  for (size_t i = 0; i < pages.size(); ++i) std::memcpy(Page(pages[i]), host + i * bytes, bytes);
}

void HashOracle::Append(int32_t token) {
  for (int layer = 0; layer < kLayers; ++layer) {
    auto& last = last_[static_cast<size_t>(layer)];
    last = SlotsOf(layer, size_, token, last[0], last[1]);
    if (window_ == 0 || layer < kLayers - 1) digest_ = Mix(Mix(digest_, last[0]), last[1]);
  }
  if (recurrent_) state_ = NextState(state_, size_, token);
  ++size_;
  if (window_ == 0) return;
  seen_lately_.push_back(last_.back());
  if (static_cast<int>(seen_lately_.size()) > window_) seen_lately_.pop_front();
}

uint64_t HashOracle::digest() const {
  uint64_t digest = digest_;
  for (const auto& slots : seen_lately_) digest = Mix(Mix(digest, slots[0]), slots[1]);
  return recurrent_ ? Mix(digest, state_) : digest;
}

model::SampledToken HashDraw(uint64_t digest, const model::SamplingParams& params,
                             const model::SamplingHistory& history, uint64_t position) {
  uint64_t state = Mix(digest, position);
  if (params.temperature > 0) state = Mix(Mix(state, params.seed), params.choice);
  if (params.repetition_penalty != 1) {
    state = Mix(state, static_cast<uint64_t>(history.prompt_tokens));
    for (const int32_t token : history.tokens) state = Mix(state, static_cast<uint64_t>(token));
    for (const int32_t token : history.drafts) state = Mix(state, static_cast<uint64_t>(token));
  }
  const int32_t last = history.drafts.empty() ? history.tokens.back() : history.drafts.back();
  int32_t token = last - last % kCycle + (last + 1) % kCycle;
  while (state % 4 == 0 || token >= kVocab || Contains(history.suppressed, token)) {
    state = Mix(state, 5);
    token = static_cast<int32_t>(state % kVocab);
    if (!Contains(history.suppressed, token)) break;
  }
  if (params.logprobs) return HashLogprobs(digest, token, *params.logprobs);
  model::SampledToken sampled;
  sampled.token_id = token;
  return sampled;
}

std::vector<model::SampledToken> HashBest(uint64_t digest, const model::SamplingHistory& history,
                                          int count) {
  std::vector<model::SampledToken> best;
  uint64_t state = Mix(digest, 6);
  while (static_cast<int>(best.size()) < count) {
    state = Mix(state, 7);
    model::SampledToken sampled;
    sampled.token_id = static_cast<int32_t>(state % kVocab);
    sampled.score = LogprobOf(digest, sampled.token_id);
    const bool known = std::any_of(best.begin(), best.end(), [&](const model::SampledToken& other) {
      return other.token_id == sampled.token_id;
    });
    if (!known && !Contains(history.suppressed, sampled.token_id)) best.push_back(sampled);
  }
  std::sort(best.begin(), best.end(), [](const auto& a, const auto& b) {
    return std::pair(-a.score, a.token_id) < std::pair(-b.score, b.token_id);
  });
  return best;
}

model::SampledToken HashLogprobs(uint64_t digest, int32_t token, int top) {
  model::SampledToken sampled;
  sampled.token_id = token;
  sampled.logprob = LogprobOf(digest, token);
  for (int i = 0; i < top; ++i) {
    const int32_t other =
        static_cast<int32_t>(Mix(digest, static_cast<uint64_t>(1000 + i)) % kVocab);
    sampled.top.push_back({other, LogprobOf(digest, other)});
  }
  return sampled;
}

}  // namespace baton::simulation
