// Scoring in one prefill worker: labels of one and several tokens get the log probabilities that
// the engine computes of the same tokens as a prompt's, whatever else is in the batch and cache.
#include <gtest/gtest.h>
#include <prometheus/registry.h>

#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "common/base/error.h"
#include "common/prefill/loop.h"
#include "tests/router/fake_clock.h"
#include "tests/testing/seed.h"

namespace baton::prefill {
namespace {

using Label = std::vector<int32_t>;

// What the items got, by the job's id.
struct Received {
  std::map<uint64_t, std::vector<std::vector<float>>> scores;
  std::map<uint64_t, std::vector<float>> embeddings;
  std::map<uint64_t, absl::Status> ends;
  std::map<uint64_t, std::vector<absl::Duration>> heartbeats;
};

class FakeItemSink final : public ScoreSink {
 public:
  FakeItemSink(Received& received, uint64_t id) : received_(received), id_(id) {}
  void OnHeartbeat(absl::Duration now) override { received_.heartbeats[id_].push_back(now); }
  void OnScores(std::vector<std::vector<float>> labels, int /*cached_prompt_tokens*/) override {
    received_.scores[id_] = std::move(labels);
  }
  void OnEmbedding(std::vector<float> embedding, int /*cached_prompt_tokens*/) override {
    received_.embeddings[id_] = std::move(embedding);
  }
  void Finish(const absl::Status& status) override { received_.ends.emplace(id_, status); }

 private:
  Received& received_;
  const uint64_t id_;
};

class PrefillScoringTest : public ::testing::Test {
 protected:
  static std::unique_ptr<engine::Engine> Load() {
    engine::EngineOptions options;
    options.model_dir = "models/demo";
    options.num_blocks = 128;
    options.max_num_batched_tokens = 64;
    options.max_num_seqs = 8;
    options.backend.thread_count = 1;
    auto engine = engine::Engine::Load(options);
    BATON_CHECK(engine.ok()) << engine.status();
    return *std::move(engine);
  }
  static void SetUpTestSuite() { engine_ = Load(); }
  static void TearDownTestSuite() { engine_.reset(); }

  void Make(bool caching, SchedulerOptions scheduler = {}) {
    LoopOptions options;
    options.own_thread = false;
    options.enable_prefix_caching = caching;
    scheduler.max_num_batched_tokens = 64;
    scheduler.max_num_seqs = 8;
    options.scheduler = scheduler;
    loop_ = std::make_unique<PrefillLoop>(options, *engine_, journal_, clock_, metrics_,
                                          [this](const worker::WorkerLoad& load) { load_ = load; });
  }
  void Run() {
    while (loop_->Turn(absl::ZeroDuration())) loop_->CheckIntegrity();
  }
  std::unique_ptr<PrefillJob> Item(std::vector<int32_t> tokens, int shared,
                                   std::vector<Label> labels) {
    auto job = std::make_unique<PrefillJob>();
    const uint64_t id = job->id = ++last_id_;
    job->tokens = std::move(tokens);
    job->prompt_tokens = job->size();
    job->shared_tokens = shared;
    job->scoring = std::make_unique<Scoring>();
    for (const Label& label : labels) job->scoring->first_tokens.push_back(label[0]);
    job->scoring->labels = std::move(labels);
    job->scoring->sink = std::make_shared<FakeItemSink>(received_, id);
    return job;
  }
  // By a step of the engine alone, into blocks that the loop does not use meanwhile.
  std::vector<float> Expected(const std::vector<int32_t>& prompt, const Label& label) {
    std::vector<int32_t> tokens = prompt;
    tokens.insert(tokens.end(), label.begin(), label.end() - 1);
    std::vector<int32_t> targets(tokens.begin() + 1, tokens.end());
    targets.push_back(label.back());
    std::vector<kv::BlockId> blocks(32);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::vector<float> logprobs;
    for (size_t begin = 0; begin < tokens.size(); begin += 64) {
      const size_t count = std::min<size_t>(64, tokens.size() - begin);
      engine::BatchEntry entry;
      entry.tokens = absl::MakeConstSpan(tokens).subspan(begin, count);
      entry.context = static_cast<int>(begin);
      entry.blocks = blocks;
      entry.prompt_logprobs = 0;
      entry.targets = absl::MakeConstSpan(targets).subspan(begin, count);
      auto results = oracle_->Step({.entries = {entry}});
      for (const auto& token : *results[0].prompt_logprobs) logprobs.push_back(token.logprob);
    }
    return {logprobs.end() - static_cast<std::ptrdiff_t>(label.size()), logprobs.end()};
  }

  inline static std::unique_ptr<engine::Engine> engine_;
  const std::unique_ptr<engine::Engine> oracle_ = Load();
  testing::FakeClock clock_;
  worker::CacheJournal journal_;
  prometheus::Registry registry_;
  PrefillMetrics metrics_{registry_, "model"};
  uint64_t last_id_ = 0;
  Received received_;
  worker::WorkerLoad load_;
  std::unique_ptr<PrefillLoop> loop_;  // goes first
};

TEST_F(PrefillScoringTest, LabelsAreScoredAsThoseOfAPrompt) {
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto tokens = [&random](size_t count) {
    std::vector<int32_t> ids(count);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 1000);
    return ids;
  };
  for (const bool caching : {true, false}) {
    Make(caching);
    received_.scores.clear();
    received_.ends.clear();
    const std::vector<int32_t> prefix = tokens(1 + random() % 70);
    std::map<uint64_t, std::pair<std::vector<int32_t>, std::vector<Label>>> asked;
    for (int i = 0; i < 24; ++i) {
      std::vector<int32_t> prompt = prefix;
      const std::vector<int32_t> tail = tokens(random() % 40);
      prompt.insert(prompt.end(), tail.begin(), tail.end());
      std::vector<Label> labels;
      for (size_t l = 0; l < 1 + random() % 4; ++l) {
        labels.push_back(tokens(random() % 2 == 0 ? 1 : 1 + random() % 20));
      }
      auto job = Item(prompt, static_cast<int>(prefix.size()), labels);
      asked[job->id] = {prompt, labels};
      loop_->jobs().Submit(std::move(job));
    }
    while (loop_->Turn(absl::ZeroDuration())) {
      loop_->CheckIntegrity();
      EXPECT_EQ(load_.computing_transfers, 0) << "items send no KV";
    }
    for (const auto& [id, item] : asked) {
      ASSERT_TRUE(received_.ends.contains(id));
      ASSERT_TRUE(received_.ends[id].ok()) << received_.ends[id];
      ASSERT_EQ(received_.scores[id].size(), item.second.size());
      for (size_t l = 0; l < item.second.size(); ++l) {
        EXPECT_EQ(received_.scores[id][l], Expected(item.first, item.second[l])) << "item " << id;
      }
    }
    // Only the prefix is kept, and only its whole blocks.
    const int kept = caching ? static_cast<int>(prefix.size()) / 16 : 0;
    EXPECT_EQ(load_.counts.cached, kept);
    EXPECT_EQ(load_.counts.free, load_.counts.total - kept);
    EXPECT_EQ(load_.open_transfers, 0);
    loop_->Stop();
  }
}

TEST_F(PrefillScoringTest, EmbeddingsAreTheSameBesideAnythingAndLeaveNothing) {
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto tokens = [&random](size_t count) {
    std::vector<int32_t> ids(count);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % 1000);
    return ids;
  };
  const auto alone = [this](const std::vector<int32_t>& prompt) {
    std::vector<kv::BlockId> blocks(32);
    std::iota(blocks.begin(), blocks.end(), 0);
    std::vector<float> state;
    for (size_t begin = 0; begin < prompt.size(); begin += 64) {
      const size_t count = std::min<size_t>(64, prompt.size() - begin);
      engine::BatchEntry entry;
      entry.tokens = absl::MakeConstSpan(prompt).subspan(begin, count);
      entry.context = static_cast<int>(begin);
      entry.blocks = blocks;
      entry.embed = begin + count == prompt.size();
      state = oracle_->Step({.entries = {entry}})[0].hidden_state;
    }
    return state;
  };
  Make(/*caching=*/true);
  std::map<uint64_t, std::vector<int32_t>> asked;
  for (int i = 0; i < 24; ++i) {
    const std::vector<int32_t> prompt = tokens(1 + random() % 150);
    auto embedded = Item(prompt, 0, {});
    asked[embedded->id] = prompt;
    loop_->jobs().Submit(std::move(embedded));
    loop_->jobs().Submit(Item(tokens(1 + random() % 40), 0, {tokens(2), tokens(1)}));
  }
  Run();
  for (const auto& [id, prompt] : asked) {
    ASSERT_TRUE(received_.ends.contains(id));
    ASSERT_TRUE(received_.ends[id].ok()) << received_.ends[id];
    EXPECT_EQ(received_.embeddings[id], alone(prompt)) << "item " << id;
  }
  EXPECT_EQ(received_.embeddings.size(), asked.size());
  EXPECT_EQ(load_.counts.free, load_.counts.total);
  EXPECT_EQ(load_.counts.cached, 0);
}

TEST_F(PrefillScoringTest, ThePrefixOfManyItemsIsComputedOnce) {
  Make(true);
  std::vector<int32_t> prompt(96, 7);
  std::vector<std::unique_ptr<PrefillJob>> items;
  for (int i = 0; i < 50; ++i) {
    prompt.resize(96);
    prompt.push_back(i);
    items.push_back(Item(prompt, 96, {{1}, {2}}));
  }
  loop_->jobs().Submit(std::move(items));
  Run();
  EXPECT_EQ(received_.scores.size(), 50u);
  EXPECT_EQ(load_.computed_prompt_tokens, 96 + 50);
}

TEST_F(PrefillScoringTest, ItemsOfACallCountAsOneRequestAndCanBeCancelled) {
  SchedulerOptions options;
  options.max_queued_requests = 2;
  Make(true, options);
  std::vector<std::unique_ptr<PrefillJob>> items;
  for (int i = 0; i < 40; ++i) items.push_back(Item({1, 2, i}, 2, {{1, 5, 6}, {2}}));
  loop_->jobs().Submit(std::move(items));
  for (uint64_t id = 1; id <= 10; ++id) loop_->jobs().Cancel(id);
  Run();
  int scored = 0, cancelled = 0;
  for (const auto& [id, status] : received_.ends) {
    scored += status.ok();
    cancelled += absl::IsCancelled(status);
  }
  EXPECT_EQ(scored, 30);
  EXPECT_EQ(cancelled, 10);
  EXPECT_EQ(load_.counts.free, load_.counts.total);
}

TEST_F(PrefillScoringTest, TokensOfLabelsCountInTheQueue) {
  Make(true);
  std::vector<std::unique_ptr<PrefillJob>> items;
  for (int i = 0; i < 3; ++i) {
    items.push_back(Item(std::vector<int32_t>(64, i + 1), 0, {{1}, {1, 2, 3}, {4, 5}}));
  }
  loop_->jobs().Submit(std::move(items));
  loop_->Turn(absl::ZeroDuration());
  EXPECT_EQ(received_.ends.size(), 1u);
  EXPECT_EQ(load_.queued_tokens, 2 * (64 + 2 + 1));
  Run();
  EXPECT_EQ(load_.queued_tokens, 0);
}

TEST_F(PrefillScoringTest, ItemsThatAreLeftGetAHeartbeatEachSecond) {
  Make(true);
  std::vector<std::unique_ptr<PrefillJob>> items;
  for (int i = 0; i < 5; ++i) items.push_back(Item(std::vector<int32_t>(64, i + 1), 0, {{1}}));
  loop_->jobs().Submit(std::move(items));
  loop_->Turn(absl::ZeroDuration());  // a step computes one item
  EXPECT_TRUE(received_.heartbeats.empty());
  clock_.Advance(PrefillLoop::kHeartbeat);
  const absl::Duration now = clock_.SinceStart();
  loop_->Turn(absl::ZeroDuration());
  EXPECT_EQ(received_.ends.size(), 2u);
  loop_->Turn(absl::ZeroDuration());
  ASSERT_EQ(received_.heartbeats.size(), 3u);
  for (const auto& [id, times] : received_.heartbeats) {
    EXPECT_FALSE(id <= 2) << "it has its result";
    EXPECT_EQ(times, std::vector<absl::Duration>{now});
  }
  Run();
  EXPECT_EQ(received_.ends.size(), 5u);
}

// With a pool that holds the prompt, but not the labels behind it.
TEST_F(PrefillScoringTest, LabelsThatDoNotFitAreRefused) {
  Make(true);
  std::vector<Label> labels(64, Label(40, 3));  // 3 blocks each, behind a prompt of 127 tokens
  loop_->jobs().Submit(Item(std::vector<int32_t>(127, 5), 0, labels));
  Run();
  ASSERT_TRUE(received_.ends.contains(1));
  EXPECT_EQ(ErrorReason(received_.ends[1]), "KV_POOL_TOO_SMALL") << received_.ends[1];
  EXPECT_EQ(load_.counts.free, load_.counts.total);
}

}  // namespace
}  // namespace baton::prefill
