// Models with recurrent layers on a pair of workers: prefixes that are left at any depth, prompts
// that end anywhere in a block, and states that are kept outside the pool.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/cluster/worker_pair.h"
#include "tests/testing/seed.h"

namespace baton {
namespace {

constexpr const char* kRecurrentModels[] = {"tiny-lfm2", "tiny-qwen3.5", "tiny-granite-hybrid",
                                            "tiny-nemotron-h-moe"};

// Of the smallest of their vocabularies.
std::vector<int32_t> TokensOfAll(std::mt19937& random, int count) {
  return RandomTokens(random, count, 344);
}

class RecurrentModelsTest : public WorkerPairTest,
                            public ::testing::WithParamInterface<const char*> {
 protected:
  static worker::WorkerOptions OptionsOfModel() {
    worker::WorkerOptions options = Options();
    options.model_dir = std::string(BATON_CHECKPOINT_DIR "/") + GetParam();
    return options;
  }
  testing::Oracle oracle_{std::string(BATON_CHECKPOINT_DIR "/") + GetParam()};
};

// Of three prompts that leave a path at one place, the second leaves a snapshot there, and the
// third goes on from it.
TEST_P(RecurrentModelsTest, PromptsThatLeaveAPathAtAnyDepthEqualTheOracle) {
  worker::WorkerOptions roomy = OptionsOfModel();
  roomy.num_blocks = 32768;  // the path stays
  StartPair(roomy, OptionsOfModel());
  std::mt19937 random(testing::TestSeed());
  const std::vector<int32_t> path = TokensOfAll(random, 150);
  ASSERT_TRUE(Decode(channel_, Request(path, Greedy(), 4)).status.ok());
  for (int depth = 0; depth <= 149; depth += 1 + static_cast<int>(random() % 4)) {
    for (int time = 0; time < 2; ++time) {
      std::vector<int32_t> prompt(path.begin(), path.begin() + depth);
      const std::vector<int32_t> own = TokensOfAll(random, 17 + static_cast<int>(random() % 40));
      prompt.insert(prompt.end(), own.begin(), own.end());
      if (depth < 150)
        prompt[static_cast<size_t>(depth)] = (path[static_cast<size_t>(depth)] + 1 + time) % 300;
      const DecodeResult result = Decode(channel_, Request(prompt, Greedy(), 6));
      ASSERT_TRUE(result.status.ok()) << result.status;
      EXPECT_EQ(result.tokens, oracle_.Generate(prompt, Greedy(), 6)) << "depth " << depth;
      if (time == 1) {
        EXPECT_GE(result.usage.cached_prompt_tokens(), depth / 16 * 16) << "depth " << depth;
      }
    }
  }
  ExpectIdle();
}

// Several choices are drawn where the answer is, from the last token's logits: the state comes from
// the tokens before it.
TEST_P(RecurrentModelsTest, ChoicesBehindPromptsOfEveryLength) {
  for (const bool local : {false, true}) {
    StartPair(OptionsOfModel(), OptionsOfModel());
    std::mt19937 random(testing::TestSeed());
    for (const int length : {1, 2, 15, 16, 17, 18, 31, 32, 33, 34, 64, 65, 130}) {
      const std::vector<int32_t> prompt = TokensOfAll(random, length);
      model::SamplingParams sampling = Seeded(random());
      DecodeRequest request = Request(prompt, sampling, 20);
      request.set_n(3);
      if (length % 2 == 0) request.set_prompt_logprobs(1);
      if (local) request.clear_prefill();
      const DecodeResult result = Decode(channel_, request);
      ASSERT_TRUE(result.status.ok()) << result.status;
      ASSERT_EQ(result.choices.size(), 3u);
      for (uint32_t i = 0; i < 3; ++i) {
        sampling.choice = i;
        EXPECT_EQ(result.choices.at(static_cast<int>(i)).tokens,
                  oracle_.Generate(prompt, sampling, 20))
            << length << "/" << i;
      }
    }
    ExpectIdle();
  }
}

// Preempted answers, whose KV and state go to host memory and come back.
TEST_P(RecurrentModelsTest, PreemptedStatesComeBackFromHostMemory) {
  worker::WorkerOptions tight = OptionsOfModel();
  tight.num_blocks = 8;
  decode_worker::DecodeOptions with_host = NothingLocal();
  with_host.host_kv_bytes = int64_t{64} << 20;
  StartPair(OptionsOfModel(), tight, with_host);
  std::mt19937 random(testing::TestSeed());
  struct Case {
    std::vector<int32_t> prompt, expected;
  };
  std::vector<Case> cases;
  for (int i = 0; i < 24; ++i) {
    Case one;
    one.prompt = TokensOfAll(random, 1 + static_cast<int>(random() % 90));
    one.expected = oracle_.Generate(one.prompt, Greedy(), 60);
    cases.push_back(std::move(one));
  }
  std::atomic<size_t> next{0};
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&] {
      for (size_t at; (at = next.fetch_add(1)) < cases.size();) {
        const DecodeResult result = Decode(channel_, Request(cases[at].prompt, Greedy(), 60));
        EXPECT_TRUE(result.status.ok()) << result.status;
        EXPECT_EQ(result.tokens, cases[at].expected) << "case " << at;
      }
    });
  }
  for (std::thread& client : clients) client.join();
  ExpectIdle();
}

// There is room for two snapshots, and other prompts leave many.
TEST_P(RecurrentModelsTest, ARetainedPrefixKeepsItsSnapshot) {
  worker::WorkerOptions options = OptionsOfModel();
  options.max_snapshot_share = 0;
  options.num_blocks = 512;
  StartPair(options, options);
  std::mt19937 random(testing::TestSeed());
  const std::vector<int32_t> rubric = TokensOfAll(random, 100);
  const auto ask = [&](int priority) {
    std::vector<int32_t> prompt = rubric;
    const std::vector<int32_t> own = TokensOfAll(random, 40);
    prompt.insert(prompt.end(), own.begin(), own.end());
    DecodeRequest request = Request(prompt, Greedy(), 3);
    if (priority > 0) {
      request.mutable_retention()->set_until_token(96);
      request.mutable_retention()->set_priority(priority);
      request.mutable_retention()->set_ttl_ms(3'600'000);
    }
    const DecodeResult result = Decode(channel_, request);
    EXPECT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.tokens, oracle_.Generate(prompt, Greedy(), 3));
    return result.usage.cached_prompt_tokens();
  };
  const auto flood = [&] {
    for (int i = 0; i < 12; ++i) {
      EXPECT_TRUE(Decode(channel_, Request(TokensOfAll(random, 90), Greedy(), 2)).status.ok());
    }
  };
  EXPECT_EQ(ask(50), 0);
  for (int round = 0; round < 3; ++round) {
    flood();
    EXPECT_EQ(ask(0), 96) << "round " << round;
  }
  ExpectIdle();
}

// The next turn finds the state behind the last whole block of the answer.
TEST_P(RecurrentModelsTest, TurnsOfAConversationGoOnFromTheLastAnswer) {
  StartPair(OptionsOfModel(), OptionsOfModel(), decode_worker::DecodeOptions());
  std::mt19937 random(testing::TestSeed());
  std::vector<int32_t> conversation = TokensOfAll(random, 50);
  for (int turn = 0; turn < 8; ++turn) {
    DecodeRequest request = Request(conversation, Greedy(), 21);
    request.clear_prefill();
    const DecodeResult result = Decode(channel_, request);
    ASSERT_TRUE(result.status.ok()) << result.status;
    ASSERT_EQ(result.tokens, oracle_.Generate(conversation, Greedy(), 21)) << "turn " << turn;
    if (turn > 0) {
      // All but the question and what the answer had behind its last whole block.
      EXPECT_GE(result.usage.cached_prompt_tokens(),
                static_cast<int>(conversation.size()) - 9 - 16);
    }
    conversation.insert(conversation.end(), result.tokens.begin(), result.tokens.end());
    const std::vector<int32_t> question = TokensOfAll(random, 9);
    conversation.insert(conversation.end(), question.begin(), question.end());
  }
  ExpectIdle();
}

INSTANTIATE_TEST_SUITE_P(Models, RecurrentModelsTest, ::testing::ValuesIn(kRecurrentModels),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace_if(
                               name.begin(), name.end(),
                               [](char c) { return c == '-' || c == '.'; }, '_');
                           return name;
                         });

}  // namespace
}  // namespace baton
