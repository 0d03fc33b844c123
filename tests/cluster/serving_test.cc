// Many requests at once on one pair of workers: preemption, prefix cache, choices, beams and all of
// sampling give the oracle's tokens, and leave no block behind.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "common/base/error.h"
#include "decode_worker/beam_search.h"
#include "tests/cluster/worker_pair.h"
#include "tests/testing/metrics_scrape.h"
#include "tests/testing/seed.h"

namespace baton {
namespace {

class ServingTest : public WorkerPairTest {
 protected:
  double DecodeMetric(const std::string& name) {
    return testing::MetricSum(decode_->metrics_address(), name);
  }
};

struct PairCase {
  std::vector<int32_t> prompt;
  model::SamplingParams sampling;
  int max_tokens = 0;
  std::vector<int32_t> expected;
};

std::vector<PairCase> MakePairCases(std::mt19937& random, int count, int max_prompt,
                                    int max_tokens) {
  const std::vector<int32_t> shared = RandomTokens(random, 60);
  std::vector<PairCase> cases;
  for (int i = 0; i < count; ++i) {
    PairCase c;
    if (i % 2 == 0) c.prompt = shared;
    const std::vector<int32_t> tail =
        RandomTokens(random, 1 + static_cast<int>(random() % static_cast<uint32_t>(max_prompt)));
    c.prompt.insert(c.prompt.end(), tail.begin(), tail.end());
    c.sampling = i % 3 == 0 ? Greedy() : Seeded(random());
    c.max_tokens = 1 + static_cast<int>(random() % static_cast<uint32_t>(max_tokens));
    c.expected = TheOracle().Generate(c.prompt, c.sampling, c.max_tokens);
    cases.push_back(std::move(c));
  }
  return cases;
}

// One client a thread, each taking the next case.
void RunAll(const std::vector<PairCase>& cases, int clients,
            const std::function<DecodeResult(const PairCase&)>& ask) {
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < clients; ++i) {
    threads.emplace_back([&] {
      for (size_t at; (at = next.fetch_add(1)) < cases.size();) {
        const DecodeResult result = ask(cases[at]);
        EXPECT_TRUE(result.status.ok()) << result.status;
        EXPECT_EQ(result.tokens, cases[at].expected) << "case " << at;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A pool that half of the running answers fill: preempted all the time, at first all to be computed
// again, then with copies on the host.
TEST_F(ServingTest, ConstantPreemptionChangesNoToken) {
  for (const int64_t host_kv_bytes : {int64_t{0}, int64_t{64} << 20}) {
    worker::WorkerOptions options = Options();
    options.num_blocks = 34;
    decode_worker::DecodeOptions decode = NothingLocal();
    decode.host_kv_bytes = host_kv_bytes;
    std::mt19937 random(testing::TestSeed(31));
    const bool copies = host_kv_bytes > 0;
    const auto restored = [&] { return DecodeMetric("baton_host_kv_restored_bytes_total") > 0; };
    // A worker that was held up while it copied takes copies for slow: then there is none to
    // restore, and more is asked of another one.
    for (int round = 0; round == 0 || (copies && !restored() && round < 20); ++round) {
      decode_ = nullptr;
      prefill_ = nullptr;
      StartPair(Options(), options, decode);
      RunAll(MakePairCases(random, 60, 80, 150), 12, [&](const PairCase& c) {
        return Decode(channel_, Request(c.prompt, c.sampling, c.max_tokens));
      });
      EXPECT_GT(DecodeMetric("baton_preemptions_total"), 5) << "the pool was not too small";
      ExpectIdle();
    }
    EXPECT_EQ(DecodeMetric("baton_host_kv_kept_bytes_total") > 0, copies);
    EXPECT_EQ(restored(), copies);
    ExpectIdle();
  }
}

// What a preemption lost can be more than the prefill worker takes: it is computed here then.
TEST_F(ServingTest, APreemptedAnswerMayOutgrowThePrefillWorker) {
  worker::WorkerOptions small = Options(), options = Options();
  small.num_blocks = 9;  // 144 tokens: all prompts, but not what many answers come to
  options.num_blocks = 26;
  options.enable_prefix_caching = false;  // nothing is found again
  decode_worker::DecodeOptions decode = NothingLocal();
  decode.host_kv_bytes = 0;
  StartPair(small, options, decode);
  std::mt19937 random(testing::TestSeed(34));
  RunAll(MakePairCases(random, 60, 80, 250), 12, [&](const PairCase& c) {
    return Decode(channel_, Request(c.prompt, c.sampling, c.max_tokens));
  });
  EXPECT_GT(DecodeMetric("baton_preemptions_total"), 5) << "the pool was not too small";
  EXPECT_GT(DecodeMetric("baton_local_prefill_tokens_total"), 100);
  ExpectIdle();
}

TEST_F(ServingTest, ADecodeWorkerAloneIsAServer) {
  worker::WorkerOptions options = Options();
  options.num_blocks = 60;
  StartPair(options, options);
  std::mt19937 random(testing::TestSeed(32));
  RunAll(MakePairCases(random, 60, 250, 20), 8, [&](const PairCase& c) {
    DecodeRequest request = Request(c.prompt, c.sampling, c.max_tokens);
    request.clear_prefill();
    return Decode(channel_, request);
  });
  EXPECT_GT(DecodeMetric("baton_local_prefill_tokens_total"), 1000);
  EXPECT_GT(DecodeMetric("baton_prefix_cache_hit_tokens_total"), 100);
  EXPECT_EQ(BlockCounts(prefill_->address()).cached(), 0);
  ExpectIdle();
}

TEST_F(ServingTest, ANextTurnMovesTheDifferenceOnly) {
  StartPair();
  std::mt19937 random(testing::TestSeed(33));
  std::vector<int32_t> conversation = RandomTokens(random, 100);
  const kv::KvLayout& layout = TheOracle().engine().kv_layout();
  int cached = 0;
  for (int turn = 0; turn < 4; ++turn) {
    const DecodeResult result = Decode(channel_, Request(conversation, Greedy(), 20));
    ASSERT_TRUE(result.status.ok()) << result.status;
    EXPECT_EQ(result.tokens, TheOracle().Generate(conversation, Greedy(), 20));
    const int blocks = (static_cast<int>(conversation.size()) + 15) / 16;
    EXPECT_EQ(result.usage.kv_bytes(), layout.NeededBytes(cached, blocks, blocks))
        << "turn " << turn;
    conversation.insert(conversation.end(), result.tokens.begin(), result.tokens.end());
    // All but the last token have KV.
    cached = (static_cast<int>(conversation.size()) - 1) / 16;
    const std::vector<int32_t> question = RandomTokens(random, 30);
    conversation.insert(conversation.end(), question.begin(), question.end());
  }
  ExpectIdle();
}

TEST_F(ServingTest, ChoicesAreWhatEachWouldBeAlone) {
  worker::WorkerOptions tight = Options();
  tight.num_blocks = 30;
  for (const bool local : {false, true}) {
    StartPair(Options(), tight, decode_worker::DecodeOptions());
    std::mt19937 random(testing::TestSeed(34));
    for (const int length : {5, 16, 40, 64, 130}) {
      const std::vector<int32_t> prompt = RandomTokens(random, length);
      model::SamplingParams sampling = Seeded(random());
      DecodeRequest request = Request(prompt, sampling, 40);
      request.set_n(5);
      if (local) request.clear_prefill();
      const DecodeResult result = Decode(channel_, request);
      ASSERT_TRUE(result.status.ok()) << result.status;
      ASSERT_EQ(result.choices.size(), 5u);
      for (uint32_t i = 0; i < 5; ++i) {
        sampling.choice = i;
        const testing::DecodeChoice& choice = result.choices.at(static_cast<int>(i));
        EXPECT_EQ(choice.tokens, TheOracle().Generate(prompt, sampling, 40)) << length << "/" << i;
        EXPECT_EQ(choice.finish, DecodeResponse::FINISH_LENGTH);
      }
    }
    ExpectIdle();
  }
}

TEST_F(ServingTest, AllOfSamplingEqualsTheOracle) {
  StartPair();
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  const auto uniform = [&](float low, float high) {
    return low + (high - low) * static_cast<float>(random() % 1001) / 1000;
  };
  for (int i = 0; i < 40; ++i) {
    const std::vector<int32_t> prompt = RandomTokens(random, 1 + static_cast<int>(random() % 100));
    model::SamplingParams sampling = i % 4 == 0 ? Greedy() : Seeded(random());
    if (i % 2 == 0) sampling.repetition_penalty = uniform(0.5f, 1.8f);
    if (i % 3 == 0) sampling.frequency_penalty = uniform(-1, 2);
    if (i % 3 == 1) sampling.presence_penalty = uniform(-1, 2);
    if (i % 4 == 1) sampling.logit_bias = {{3, uniform(-10, 10)}, {77, 4}};
    if (i % 5 == 0) sampling.logprobs = static_cast<int>(random() % 6);
    const int min_tokens = i % 3 == 2 ? 1 + static_cast<int>(random() % 10) : 0;
    absl::flat_hash_set<int32_t> stops;
    for (int j = 0; j < 40; ++j) stops.insert(static_cast<int32_t>(random() % 352));
    DecodeRequest request = Request(prompt, sampling, 24);
    request.set_min_tokens(min_tokens);
    for (const int32_t stop : stops) request.add_stop_token_ids(stop);
    if (i % 2 == 1) request.clear_prefill();
    const std::vector<model::SampledToken> expected =
        TheOracle().GenerateTokens(prompt, sampling, 24, stops, min_tokens);
    const DecodeResult result = Decode(channel_, request);
    ASSERT_TRUE(result.status.ok()) << result.status;
    const testing::DecodeChoice& choice = result.choices.at(0);
    ASSERT_EQ(choice.tokens.size(), expected.size()) << "case " << i;
    ASSERT_EQ(choice.logprobs.size(), sampling.logprobs ? expected.size() : 0u);
    for (size_t t = 0; t < expected.size(); ++t) {
      EXPECT_EQ(choice.tokens[t], expected[t].token_id) << "case " << i << " token " << t;
      if (!sampling.logprobs) continue;
      EXPECT_EQ(choice.logprobs[t].SerializeAsString(),
                worker::ToProto(expected[t]).SerializeAsString());
    }
  }
  ExpectIdle();
}

TEST_F(ServingTest, PromptLogprobsAreTheOraclesHereAndThere) {
  StartPair();
  std::mt19937 random(testing::TestSeed(36));
  const std::vector<int32_t> prompt = RandomTokens(random, 150);
  const std::vector<model::SampledToken> expected = TheOracle().PromptLogprobs(prompt, 3);
  for (const bool local : {false, true}) {
    for (const int n : {1, 2}) {
      DecodeRequest request = Request(prompt, Greedy(), 3);
      request.set_prompt_logprobs(3);
      request.set_n(n);
      if (local) request.clear_prefill();
      const DecodeResult result = Decode(channel_, request);
      ASSERT_TRUE(result.status.ok()) << result.status;
      ASSERT_EQ(result.prompt_logprobs.size(), expected.size()) << "local " << local;
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_EQ(result.prompt_logprobs[i].SerializeAsString(),
                  worker::ToProto(expected[i]).SerializeAsString())
            << i;
      }
    }
  }
  ExpectIdle();
}

// The same search over the oracle's engine: one beam after the other, each computed from its start.
std::vector<decode_worker::BeamSearch::Answer> SearchAlone(const std::vector<int32_t>& prompt,
                                                           int width, int n, int max_tokens) {
  decode_worker::BeamSearch::Options options;
  options.width = width;
  options.n = n;
  options.max_tokens = max_tokens;
  decode_worker::BeamSearch search(options);
  std::vector<std::vector<int32_t>> beams = {prompt};
  while (true) {
    std::vector<std::vector<model::SampledToken>> proposed;
    for (const auto& beam : beams) {
      proposed.push_back(TheOracle().BestTokens(beam, search.proposals()));
    }
    const auto steps = search.Advance(proposed);
    if (steps.empty()) return search.Best();
    std::vector<std::vector<int32_t>> longer;
    for (const auto& step : steps) {
      longer.push_back(beams[static_cast<size_t>(step.parent)]);
      longer.back().push_back(step.token_id);
    }
    beams = std::move(longer);
  }
}

// A score, from the log probabilities of single steps.
double ScoreOf(const std::vector<int32_t>& prompt, const std::vector<int32_t>& answer) {
  std::vector<int32_t> whole = prompt;
  whole.insert(whole.end(), answer.begin(), answer.end());
  const std::vector<model::SampledToken> logprobs = TheOracle().PromptLogprobs(whole, 0);
  double sum = 0;
  for (size_t i = prompt.size() - 1; i < logprobs.size(); ++i) {
    sum += static_cast<double>(logprobs[i].logprob);
  }
  return sum / static_cast<double>(answer.size());
}

TEST_F(ServingTest, BeamsFindWhatASearchAloneFinds) {
  worker::WorkerOptions tight = Options();
  tight.num_blocks = 40;
  StartPair(Options(), tight);
  std::mt19937 random(testing::TestSeed(37));
  std::vector<std::thread> clients;
  for (int i = 0; i < 6; ++i) {
    const std::vector<int32_t> prompt = RandomTokens(random, 20 + 17 * i);
    const auto expected = SearchAlone(prompt, 4, 2, 20);
    EXPECT_NEAR(expected[0].score, ScoreOf(prompt, expected[0].token_ids), 1e-3);
    EXPECT_LT(expected[0].score, -0.01);
    clients.emplace_back([this, i, prompt, expected] {
      DecodeRequest request = Request(prompt, Greedy(), 20);
      request.set_n(2);
      request.set_beam_width(4);
      request.set_length_penalty(1);
      if (i % 3 == 0) request.mutable_sampling()->set_logprobs(2);
      if (i % 2 == 0) request.clear_prefill();
      const DecodeResult result = Decode(channel_, request);
      ASSERT_TRUE(result.status.ok()) << result.status;
      ASSERT_EQ(result.choices.size(), 2u);
      for (int j = 0; j < 2; ++j) {
        EXPECT_EQ(result.choices.at(j).tokens, expected[static_cast<size_t>(j)].token_ids);
        EXPECT_NEAR(result.choices.at(j).beam_score, expected[static_cast<size_t>(j)].score, 1e-9);
        if (i % 3 != 0) continue;
        // The length penalty is 1, and nothing is biased: the score is their mean.
        const auto& logprobs = result.choices.at(j).logprobs;
        ASSERT_EQ(logprobs.size(), result.choices.at(j).tokens.size());
        double sum = 0;
        for (const v1::TokenLogprobs& token : logprobs) sum += static_cast<double>(token.logprob());
        EXPECT_NEAR(sum / static_cast<double>(logprobs.size()), result.choices.at(j).beam_score,
                    1e-5);
        EXPECT_EQ(logprobs[0].top_size(), 2);
      }
    });
  }
  for (std::thread& client : clients) client.join();
  ExpectIdle();
}

}  // namespace
}  // namespace baton
