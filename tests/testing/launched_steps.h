// Steps that an engine without a device was asked to launch, computed as late as they may be: when
// they are collected, or when something comes that is ordered behind them. So whatever was taken
// from a step before it was over is missed.
#ifndef BATON_TESTS_TESTING_LAUNCHED_STEPS_H_
#define BATON_TESTS_TESTING_LAUNCHED_STEPS_H_

#include <algorithm>
#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/engine/engine.h"

namespace baton::testing {

class LaunchedSteps {
 public:
  // compute: Engine::Step.
  explicit LaunchedSteps(
      std::function<std::vector<engine::StepResult>(const engine::Batch&)> compute)
      : compute_(std::move(compute)) {}

  static bool RunAhead(const engine::Batch& batch) {
    return std::all_of(
        batch.entries.begin(), batch.entries.end(), [](const engine::BatchEntry& entry) {
          return !entry.prompt_logprobs && entry.drafts.empty() && !entry.hidden_states &&
                 (!entry.sample ||
                  (entry.draws == 1 && entry.beam_candidates == 0 && !entry.sampling->logprobs));
        });
  }
  void Launch(const engine::Batch& batch) {
    BATON_CHECK(RunAhead(batch));
    BATON_CHECK_LT(steps_.size(), size_t{engine::Engine::kMaxLaunched});
    Step& step = steps_.emplace_back();
    for (const engine::BatchEntry& entry : batch.entries) step.entries.emplace_back(entry);
    most_ = std::max(most_, static_cast<int>(steps_.size()));
  }
  std::vector<engine::StepResult> Collect() {
    BATON_CHECK(!steps_.empty());
    if (!steps_.front().results) Compute(steps_.front());
    std::vector<engine::StepResult> results = *std::move(steps_.front().results);
    steps_.pop_front();
    return results;
  }
  void ComputeAll() {
    for (Step& step : steps_) {
      if (!step.results) Compute(step);
    }
  }
  bool empty() const { return steps_.empty(); }
  int most() const { return most_; }  // at a time

 private:
  // With memory of its own.
  struct Entry {
    explicit Entry(const engine::BatchEntry& given)
        : entry(given),
          tokens(given.tokens.begin(), given.tokens.end()),
          blocks(given.blocks.begin(), given.blocks.end()),
          history(given.history.tokens.begin(), given.history.tokens.end()),
          suppressed(given.history.suppressed.begin(), given.history.suppressed.end()) {
      if (given.sampling != nullptr) sampling = *given.sampling;
    }
    engine::BatchEntry entry;
    std::vector<int32_t> tokens;
    std::vector<kv::BlockId> blocks;
    std::vector<int32_t> history, suppressed;
    model::SamplingParams sampling;
  };
  struct Step {
    std::vector<Entry> entries;
    std::optional<std::vector<engine::StepResult>> results;
  };

  void Compute(Step& step) {
    engine::Batch batch;
    for (Entry& launched : step.entries) {
      engine::BatchEntry& entry = batch.entries.emplace_back(launched.entry);
      if (entry.drawn_by) {
        const int32_t drawn = drawn_.at(static_cast<size_t>(*entry.drawn_by));
        launched.tokens.back() = drawn;
        launched.history.push_back(drawn);
      }
      entry.tokens = launched.tokens;
      entry.blocks = launched.blocks;
      entry.history.tokens = launched.history;
      entry.history.suppressed = launched.suppressed;
      entry.sampling = &launched.sampling;
    }
    step.results = compute_(batch);
    drawn_.clear();
    for (const engine::StepResult& result : *step.results) {
      drawn_.push_back(result.tokens.ok() ? result.tokens->at(0).token_id : 0);
    }
  }

  const std::function<std::vector<engine::StepResult>(const engine::Batch&)> compute_;
  std::deque<Step> steps_;
  std::vector<int32_t> drawn_;  // by the last step that was computed
  int most_ = 0;
};

}  // namespace baton::testing

#endif  // BATON_TESTS_TESTING_LAUNCHED_STEPS_H_
