// The one-answer promise with models of other families than the demo's: windows, norms and
// rotations of several kinds, caps, scales and experts, under admission, eviction and preemption.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "common/base/error.h"
#include "tests/cluster/worker_pair.h"
#include "tests/testing/seed.h"

namespace baton {
namespace {

struct FamilyCase {
  std::vector<int32_t> prompt;
  model::SamplingParams sampling;
  std::vector<int32_t> expected;
};

// Half of the prompts have a common prefix, longer than any window.
std::vector<FamilyCase> FamilyCases(uint32_t seed, int count, testing::Oracle& oracle) {
  std::mt19937 random(seed);
  const auto tokens = [&](int size) {
    std::vector<int32_t> drawn(static_cast<size_t>(size));
    for (int32_t& token : drawn) token = static_cast<int32_t>(random() % 256);
    return drawn;
  };
  const std::vector<int32_t> shared = tokens(100);
  std::vector<FamilyCase> cases;
  for (int i = 0; i < count; ++i) {
    FamilyCase one;
    if (i % 2 == 0) one.prompt = shared;
    const std::vector<int32_t> tail = tokens(1 + static_cast<int>(random() % 120));
    one.prompt.insert(one.prompt.end(), tail.begin(), tail.end());
    one.sampling = i % 3 == 0 ? Seeded(random()) : Greedy();
    one.expected = oracle.Generate(one.prompt, one.sampling, 24);
    cases.push_back(std::move(one));
  }
  return cases;
}

class ModelFamiliesTest
    : public WorkerPairTest,
      public ::testing::WithParamInterface<std::tuple<const char*, const char*>> {};

TEST_P(ModelFamiliesTest, ManyAtOnceThroughATinyPoolEqualTheOracle) {
  const auto& [shape, transport] = GetParam();
  transport_ = transport;
  worker::WorkerOptions options = Options();
  options.model_dir = std::string(BATON_CHECKPOINT_DIR "/") + shape;
  options.num_blocks = 40;
  options.max_model_len = 256;
  decode_worker::DecodeOptions decode = NothingLocal();
  if (transport_ == "shm") {  // with drafts, too
    decode.speculation.mode = decode_worker::SpeculationOptions::Mode::kSuffix;
  }
  StartPair(options, options, decode);
  engine::EngineOptions alone = testing::Oracle::OptionsFor(options.model_dir, {});
  alone.max_model_len = options.max_model_len;
  testing::Oracle oracle(alone);
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  const std::vector<FamilyCase> cases = FamilyCases(seed, 24, oracle);
  std::atomic<size_t> next{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&] {
      for (size_t at; (at = next.fetch_add(1)) < cases.size();) {
        const FamilyCase& one = cases[at];
        const DecodeResult result = Decode(channel_, Request(one.prompt, one.sampling, 24));
        EXPECT_TRUE(result.status.ok()) << result.status;
        EXPECT_EQ(result.tokens, one.expected) << "case " << at;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  ExpectIdle();
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, ModelFamiliesTest,
    ::testing::Combine(::testing::Values("tiny-gemma2", "tiny-gemma3-270m", "tiny-phi3",
                                         "tiny-olmo3", "tiny-exaone4", "tiny-smollm3",
                                         "tiny-ministral3", "tiny-granite", "tiny-qwen3-moe",
                                         "tiny-olmoe", "tiny-gpt-oss-mxfp4", "tiny-deepseek-v2",
                                         "tiny-glm4-moe-lite", "tiny-lfm2", "tiny-qwen3.5",
                                         "tiny-qwen3.5-moe", "tiny-granite-hybrid",
                                         "tiny-nemotron-h", "tiny-nemotron-h-moe", "tiny-gemma4",
                                         "tiny-gemma4-mm", "tiny-gemma4-moe"),
                       ::testing::Values("grpc", "shm")),
    [](const auto& info) {
      std::string name = std::get<0>(info.param);
      std::replace_if(
          name.begin(), name.end(), [](char c) { return c == '-' || c == '.'; }, '_');
      return name + "_" + std::get<1>(info.param);
    });

// Longrope has other factors beyond the original context: KV of both kinds must not meet.
TEST_F(WorkerPairTest, WorkersWithOtherRotationsRefuseEachOther) {
  worker::WorkerOptions small = Options();
  small.model_dir = BATON_CHECKPOINT_DIR "/tiny-phi3";
  worker::WorkerOptions large = small;
  small.max_model_len = 32;
  large.max_model_len = 512;
  StartPair(large, small);
  const DecodeResult result = Decode(channel_, Request({1, 2, 3}, Greedy(), 4));
  EXPECT_EQ(ErrorReason(result.status), "KV_LAYOUT");
}

}  // namespace
}  // namespace baton
