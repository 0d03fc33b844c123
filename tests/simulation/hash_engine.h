// An engine whose model is a hash, and the answers that are right. What a token's slots in the KV
// blocks hold follows from the slots before it, read back from the blocks, and the token; what is
// drawn follows from all slots of the sequence, or of a layer with a window from the last ones,
// read back; with states, also from one that goes on from token to token in pages of its own. So a
// block that is wrong, stale or freed too early gives another token than the
// oracle, which never saw a block.
#ifndef BATON_TESTS_SIMULATION_HASH_ENGINE_H_
#define BATON_TESTS_SIMULATION_HASH_ENGINE_H_

#include <array>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "common/engine/engine.h"
#include "tests/simulation/world.h"
#include "tests/testing/launched_steps.h"

namespace baton::simulation {

constexpr int kLayers = 2;
constexpr int kBlockTokens = 4;
constexpr int kVocab = 997;
constexpr uint64_t kModelFingerprint = 0xba70;

struct HashEngineOptions {
  int num_blocks = 16;
  int max_model_len = 256;
  int max_num_batched_tokens = 16;
  int max_num_seqs = 4;
  Micros step_time = 500;  // of a step …
  Micros token_time = 20;  // … and of each of its tokens
  // As of a process that touches its memory for the first time: the first steps take longer.
  int slow_first_steps = 0;
  Micros slow_step_time = 0;
  bool runs_ahead = false;
  bool copies_nothing = false;     // a planted bug: CopyPages returns at once
  bool stores_last_only = false;   // a planted bug: no state is left within a chunk
  bool believes_drafts = false;    // a planted bug: what is drawn behind a wrong draft counts
  bool state_over_drafts = false;  // a planted bug: the state goes on over drafts
  int draft_errors = 0;            // > 0: a draft model, one of so many draws of which is another
  int window = 0;                  // of the last layer; 0: it sees all tokens, as the others do
  bool recurrent = false;          // there is a recurrent layer, too, and no window
};

class HashEngine final : public engine::Engine {
 public:
  HashEngine(const HashEngineOptions& options, World& world);

  std::vector<engine::StepResult> Step(const engine::Batch& batch,
                                       model::LayerObserver* observer) override;
  bool RunsAhead(const engine::Batch& batch) const override {
    return hash_options_.runs_ahead && testing::LaunchedSteps::RunAhead(batch);
  }
  void Launch(const engine::Batch& batch) override { launched_.Launch(batch); }
  std::vector<engine::StepResult> Collect() override { return launched_.Collect(); }
  void CopyPages(absl::Span<const int32_t> sources, absl::Span<const int32_t> targets) override;
  void ReadPages(absl::Span<const int32_t> pages, std::byte* host) override;
  void WritePages(absl::Span<const int32_t> pages, const std::byte* host) override;
  std::string Description() const override { return "hash engine"; }

 private:
  std::vector<engine::StepResult> Compute(const engine::Batch& batch,
                                          model::LayerObserver* observer);
  uint64_t* Slot(absl::Span<const int32_t> blocks, int layer, int value, int position) const;
  void WriteSlots(const engine::BatchEntry& entry, int layer) const;
  // The token behind the first `drafted` drafts.
  model::SampledToken DrawBehind(const engine::BatchEntry& entry, int drafted,
                                 absl::Span<const uint64_t> states) const;
  // Of the first `count` tokens' slots, and the state behind them.
  uint64_t Digest(absl::Span<const int32_t> blocks, int count, uint64_t state) const;
  // The states behind each of the entry's tokens, which it reads and leaves where the entry says.
  std::vector<uint64_t> WriteStates(const engine::BatchEntry& entry) const;
  std::vector<uint64_t*> StateWords(absl::Span<const int32_t> pages) const;
  std::byte* Page(int32_t id) const { return pool_.Chunk(id, 0); }

  const HashEngineOptions hash_options_;
  World& world_;
  int steps_ = 0;
  std::vector<uint64_t> memory_;
  testing::LaunchedSteps launched_{
      [this](const engine::Batch& batch) { return Compute(batch, nullptr); }};
};

// One sequence and what may follow, by the model alone.
class HashOracle {
 public:
  // As HashEngineOptions.
  HashOracle(int window, bool recurrent) : window_(window), recurrent_(recurrent) {}

  void Append(int32_t token);
  // Tokens appended so far, and what their slots amount to.
  int size() const { return size_; }
  uint64_t digest() const;

 private:
  int window_;
  bool recurrent_;
  uint64_t state_ = 0;
  int size_ = 0;
  uint64_t digest_ = 0;                              // of what is seen for ever
  std::deque<std::array<uint64_t, 2>> seen_lately_;  // slots in the window
  std::array<std::array<uint64_t, 2>, kLayers> last_ = {};
};

// The draw of the token at `position`. Most continue a short cycle that the token before is in, so
// that texts repeat themselves.
model::SampledToken HashDraw(uint64_t digest, const model::SamplingParams& params,
                             const model::SamplingHistory& history, uint64_t position);
// The `count` tokens that are most probable, best first, with scores.
std::vector<model::SampledToken> HashBest(uint64_t digest, const model::SamplingHistory& history,
                                          int count);
model::SampledToken HashLogprobs(uint64_t digest, int32_t token, int top);

}  // namespace baton::simulation

#endif  // BATON_TESTS_SIMULATION_HASH_ENGINE_H_
