// Requests that are answered step by step, and by steps that are launched before the tokens of the
// step before are known.
#ifndef BATON_TESTS_COMMON_ENGINE_RUN_AHEAD_H_
#define BATON_TESTS_COMMON_ENGINE_RUN_AHEAD_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "common/engine/engine.h"

namespace baton::engine {

inline constexpr int kBlockTokens = 16;
inline constexpr int kRunAheadSeqs = 6;

inline std::unique_ptr<Engine> LoadForRunningAhead(
    decltype(EngineOptions::make_backend) make_backend, bool warm_up = false,
    const char* model = "tiny-qwen2", int experts_on_host = 0) {
  EngineOptions options;
  options.model_dir = std::string(BATON_CHECKPOINT_DIR "/") + model;
  options.experts_on_host = experts_on_host;
  options.max_num_batched_tokens = 128;
  options.max_num_seqs = kRunAheadSeqs;
  options.max_model_len = 96;
  options.num_blocks = 64;
  if (warm_up) options.warm_up = EngineOptions::WarmUp::kPromptAndDecode;
  options.make_backend = std::move(make_backend);
  auto engine = Engine::Load(options);
  EXPECT_TRUE(engine.ok()) << engine.status();
  return *std::move(engine);
}

// One request with blocks of its own.
struct Request {
  std::vector<int32_t> tokens;  // the prompt, then the answer
  int prompt_tokens = 0;
  int answer_tokens = 0;
  std::vector<kv::BlockId> blocks;
  model::SamplingParams sampling;
  std::vector<int32_t> suppressed;
};

// The next step of a request whose tokens are known but for those that are drawn now.
inline BatchEntry EntryOf(const Request& request, int computed, std::optional<int> drawn_by) {
  static const std::vector<int32_t> unknown = {0};
  const absl::Span<const int32_t> known = request.tokens;
  BatchEntry entry;
  entry.tokens =
      drawn_by ? absl::MakeConstSpan(unknown) : known.subspan(static_cast<size_t>(computed));
  entry.drawn_by = drawn_by;
  entry.context = computed;
  entry.blocks = request.blocks;
  entry.sample = true;
  entry.sampling = &request.sampling;
  entry.history = {known, request.prompt_tokens, request.suppressed};
  return entry;
}

class RunAhead {
 public:
  explicit RunAhead(uint64_t seed) : random_(seed) {}

  std::vector<Request> AnyRequests(const Engine& engine, int most_tokens) {
    std::vector<Request> requests(static_cast<size_t>(Int(1, kRunAheadSeqs)));
    kv::BlockId next = 0;
    for (Request& request : requests) {
      request.prompt_tokens = Int(1, 20);
      request.answer_tokens = Int(1, most_tokens);
      for (int i = 0; i < request.prompt_tokens; ++i) {
        request.tokens.push_back(Int(0, static_cast<int>(engine.config().token_count) - 1));
      }
      request.blocks.resize(static_cast<size_t>(
          (request.prompt_tokens + request.answer_tokens + kBlockTokens - 1) / kBlockTokens));
      std::iota(request.blocks.begin(), request.blocks.end(), next);
      next += static_cast<int>(request.blocks.size());
      model::SamplingParams& sampling = request.sampling;
      sampling.temperature = Int(0, 1) ? 0.0f : 1.5f;
      sampling.seed = random_();
      if (Int(0, 1)) sampling.repetition_penalty = 1.7f;
      if (Int(0, 2) == 0) sampling.frequency_penalty = 0.9f;
      if (Int(0, 2) == 0) request.suppressed = {Int(0, 9), Int(10, 99)};
    }
    return requests;
  }

  static std::vector<std::vector<int32_t>> OneByOne(Engine& engine, std::vector<Request> requests) {
    for (int step = 0;; ++step) {
      Batch batch;
      std::vector<Request*> in_step;
      for (Request& request : requests) {
        if (step >= request.answer_tokens) continue;
        const int computed = step == 0 ? 0 : request.prompt_tokens + step - 1;
        batch.entries.push_back(EntryOf(request, computed, std::nullopt));
        in_step.push_back(&request);
      }
      if (in_step.empty()) return Answers(requests);
      Take(engine.Step(batch), in_step);
    }
  }

  static std::vector<std::vector<int32_t>> Ahead(Engine& engine, std::vector<Request> requests) {
    std::vector<Request*> before;  // of the step that is not collected
    for (int step = 0;; ++step) {
      Batch batch;
      std::vector<Request*> in_step;
      for (Request& request : requests) {
        if (step >= request.answer_tokens) continue;
        const int computed = step == 0 ? 0 : request.prompt_tokens + step - 1;
        const auto drawn_by = std::find(before.begin(), before.end(), &request) - before.begin();
        batch.entries.push_back(
            EntryOf(request, computed,
                    step == 0 ? std::nullopt : std::optional<int>(static_cast<int>(drawn_by))));
        in_step.push_back(&request);
      }
      if (!in_step.empty()) {
        EXPECT_TRUE(engine.RunsAhead(batch));
        engine.Launch(batch);
      }
      if (!before.empty()) Take(engine.Collect(), before);
      if (in_step.empty()) return Answers(requests);
      before = in_step;
    }
  }

 private:
  int Int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  static void Take(const std::vector<StepResult>& results, const std::vector<Request*>& requests) {
    ASSERT_EQ(results.size(), requests.size());
    for (size_t i = 0; i < results.size(); ++i) {
      ASSERT_TRUE(results[i].tokens.ok()) << results[i].tokens.status();
      ASSERT_EQ(results[i].tokens->size(), 1u);
      requests[i]->tokens.push_back(results[i].tokens->front().token_id);
    }
  }
  static std::vector<std::vector<int32_t>> Answers(const std::vector<Request>& requests) {
    std::vector<std::vector<int32_t>> answers;
    for (const Request& request : requests) {
      answers.emplace_back(request.tokens.begin() + request.prompt_tokens, request.tokens.end());
    }
    return answers;
  }

  std::mt19937_64 random_;
};

}  // namespace baton::engine

#endif  // BATON_TESTS_COMMON_ENGINE_RUN_AHEAD_H_
