// What bounds a scoring call: its tenant's class, its share of the items at workers, and the
// router's limit on prompt tokens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "common/base/error.h"
#include "tests/router/score/score_harness.h"

namespace baton::testing {
namespace {

using ::testing::HasSubstr;

constexpr int kPrefix = 24;  // tokens, one for each byte

class ScoreLimitsTest : public ScoreCallTest {
 protected:
  // The class of all tenants.
  void SetClass(const std::string& fields) {
    const std::string path = ::testing::TempDir() + "/score_classes.json";
    std::ofstream(path) << R"({"classes": {"c": {)" << fields << R"(}}, "default": "c"})";
    auto classes = router::RequestClasses::Load(path, {}, clock_);
    ASSERT_TRUE(classes.ok()) << classes.status();
    classes_ = *std::move(classes);
  }
  // The worker starts again, in a pool.
  void JoinPool(int worker, const std::string& pool) {
    internal::v1::WatchResponse event;
    *event.mutable_card() =
        FakeCard(v1::WORKER_ROLE_PREFILL, score_parts_->tokenizer.fingerprint());
    event.mutable_card()->set_pool(pool);
    event.mutable_card()->set_epoch(99);
    LoseWatch(worker);
    fleet_->roster.OnStreamStarted(worker);
    ASSERT_TRUE(fleet_->roster.OnEvent(worker, event).ok());
    event.mutable_snapshot()->set_last(true);
    ASSERT_TRUE(fleet_->roster.OnEvent(worker, event).ok());
    Report(worker);
  }
  void StartFor(const std::string& tenant, int items) {
    router::ScoreCall::Settings settings = Settings(items);
    settings.request.set_tenant(tenant);
    Start(std::move(settings));
  }
  int ItemsAtWorkers(const std::string& tenant) {
    int items = 0;
    for (size_t i = 0; i < score_network_.count(); ++i) {
      if (batch(i).request.tenant() == tenant) items += batch(i).request.items_size();
    }
    return items;
  }
};

TEST_F(ScoreLimitsTest, TheClassBoundsTheContextOfEachItem) {
  SetClass(R"("max_context_tokens": 32)");
  router::ScoreCall::Settings settings = Settings(2);  // 30 tokens, and a label of 2
  settings.request.set_items(1, "item 10");
  Start(std::move(settings));
  batch(0).ScoreAll();
  EXPECT_EQ(sink().End(), absl::OkStatus());
  EXPECT_FALSE(sink().items()[0].has_error());
  EXPECT_EQ(sink().items()[1].error().reason(), "PROMPT_TOO_LONG");
  EXPECT_THAT(sink().items()[1].error().message(), HasSubstr("context of 32 tokens"));
}

TEST_F(ScoreLimitsTest, TheClassSetsAndBoundsThePriority) {
  SetClass(R"("default_priority": "low", "max_priority": "normal")");
  Start(1);
  EXPECT_EQ(batch(0).request.priority(), v1::PRIORITY_LOW);
  router::ScoreCall::Settings urgent = Settings(1);
  urgent.request.set_priority(v1::PRIORITY_HIGH);
  Start(std::move(urgent));
  EXPECT_EQ(ErrorReason(sink(1).End()), "PRIORITY_LIMIT") << sink(1).End();
}

TEST_F(ScoreLimitsTest, ItemsGoToThePoolOfTheClassAndSpill) {
  SetClass(R"("pool": "bulk")");
  Start(1);
  batch(0).ScoreAll();
  ASSERT_TRUE(sink().End().ok());
  JoinPool(1, "bulk");
  Start(96);
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(batch(i).worker, 1);
  const size_t sent = score_network_.count();
  batch(1).End(kSocketClosed);
  EXPECT_EQ(batch(sent).worker, 0) << "the only worker of the pool has lost them";
}

TEST_F(ScoreLimitsTest, AClassThatDoesNotSpillWaitsForItsPool) {
  SetClass(R"("pool": "bulk", "spill": false)");
  Start(1);
  EXPECT_EQ(ErrorReason(sink().End()), "NO_PREFILL_WORKER") << "no worker is of the pool";
  JoinPool(1, "bulk");
  Start(1);
  EXPECT_EQ(batch(0).worker, 1);
  batch(0).End(kSocketClosed);
  PassForCalls(absl::Seconds(1));
  EXPECT_EQ(batch(1).worker, 1);
  batch(1).ScoreAll();
  EXPECT_EQ(sink(1).End(), absl::OkStatus());
}

TEST_F(ScoreLimitsTest, ACallWhoseFirstResultWouldBeLateIsRefused) {
  SetClass(R"("ttft_slo_ms": 500)");
  Begin();
  for (const int worker : {0, 1}) {
    internal::v1::WatchResponse event;
    event.mutable_load()->set_free_blocks(64);
    event.mutable_load()->set_remaining_work_us(2'000'000);
    event.mutable_load()->mutable_prefill_cost()->set_token_us(100);
    event.mutable_load()->mutable_prefill_cost()->set_fitted_steps(100);
    ASSERT_TRUE(fleet_->roster.OnEvent(worker, event).ok());
  }
  Start(2);
  EXPECT_EQ(ErrorReason(sink().End()), "TTFT_SLO_UNREACHABLE") << sink().End();
  EXPECT_TRUE(ErrorRetryAfter(sink().End()).has_value());
  EXPECT_EQ(score_network_.count(), 0u);
}

// The second batch of a worker waits behind the first, which is in time.
TEST_F(ScoreLimitsTest, TheFirstBatchAloneIsHeldToTheLimit) {
  SetClass(R"("ttft_slo_ms": 500)");
  Begin();
  for (const int worker : {0, 1}) {
    internal::v1::WatchResponse event;
    event.mutable_load()->set_free_blocks(64);
    event.mutable_load()->mutable_prefill_cost()->set_token_us(1200);
    event.mutable_load()->mutable_prefill_cost()->set_fitted_steps(100);
    ASSERT_TRUE(fleet_->roster.OnEvent(worker, event).ok());
  }
  Start(96);
  batch(2);  // is sent before the first result
  for (size_t i = 0; i < 3; ++i) batch(i).ScoreAll();
  EXPECT_EQ(sink().End(), absl::OkStatus());
  EXPECT_EQ(sink().usage().failed_items(), 0);
}

TEST_F(ScoreLimitsTest, TenantsHaveEqualSharesOfTheItemsAtWorkers) {
  StartFor("a", 2000);
  batch(7);
  EXPECT_EQ(ItemsAtWorkers("a"), 256) << "128 for each of two workers";
  StartFor("b", 2000);
  batch(12);
  const size_t opened = score_network_.count();
  EXPECT_GE(ItemsAtWorkers("b"), 128);
  EXPECT_LT(ItemsAtWorkers("b"), 128 + router::kItemsPerBatch);
  // The first tenant gets no more until it has its half.
  for (size_t i = 0; i < 4; ++i) batch(i).ScoreAll();
  EXPECT_EQ(score_network_.count(), opened);
  batch(4).ScoreAll();
  EXPECT_EQ(batch(opened).request.tenant(), "a");
  // A second call of a tenant has half of the tenant's half, in smaller batches.
  const size_t before = score_network_.count();
  const int of_first = ItemsAtWorkers("a");
  StartFor("a", 2000);
  batch(before + 4);
  EXPECT_GE(ItemsAtWorkers("a") - of_first, 64);
  EXPECT_LT(ItemsAtWorkers("a") - of_first, 64 + 16);
}

TEST_F(ScoreLimitsTest, EachCallHasAnItemAtWorkersHoweverManyThereAre) {
  for (int i = 0; i < 150; ++i) {
    const size_t before = score_network_.count();
    StartFor("a", 10);
    batch(before);
  }
  const size_t last = score_network_.count() - 1;
  EXPECT_EQ(batch(last).request.items_size(), 1);
  batch(last).Score(0);
  EXPECT_EQ(batch(last + 1).request.items_size(), 1) << "one after the other";
}

TEST_F(ScoreLimitsTest, LongItemsAreSentInSmallBatches) {
  max_model_len_ = 4096;
  router::ScoreCall::Settings settings = Settings(0, {"y"});
  for (int i = 0; i < 400; ++i) settings.request.add_items(std::string(400, 'x'));
  Start(std::move(settings));
  EXPECT_EQ(batch(0).request.items_size(), 20);
  // As many as there may be, and not a batch more.
  int64_t tokens = 0;
  size_t batches = 0;
  while (tokens < 2 * router::kTokensInFlight) {
    for (const auto& item : batch(batches).request.items()) tokens += item.tokens_size();
    ++batches;
  }
  EXPECT_LT(tokens, 2 * router::kTokensInFlight + router::kTokensPerBatch);
  EXPECT_EQ(score_network_.count(), batches);
}

TEST_F(ScoreLimitsTest, ItemsAtWorkersCountForTheLimitOnPromptTokens) {
  options_.max_inflight_prompt_tokens = 360;
  Start(100);
  const int64_t first = 10 * 6 + 22 * 7;  // "item 0" to "item 31"
  batch(0);
  EXPECT_EQ(admission_->load().inside.prompt_tokens, kPrefix + first);
  EXPECT_EQ(score_network_.count(), 1u) << "a second batch would be too much";
  // Another call goes on beyond the limit with one batch, and a new one that does not fit is
  // refused.
  Start(Settings(16));
  batch(1);
  const int64_t second = 10 * 6 + 6 * 7;  // a call among two, whose workers are not counted yet
  EXPECT_EQ(admission_->load().inside.prompt_tokens, 2 * kPrefix + first + second);
  FakeSink& generate = CallHarness::Start(Request());
  EXPECT_EQ(ErrorReason(generate.End()), "TOO_MANY_PROMPT_TOKENS");
  batch(0).ScoreAll();
  EXPECT_EQ(batch(2).request.items_size(), 32) << "it has no other batch at workers";
  batch(2).End(kSocketClosed);
  EXPECT_EQ(batch(3).request.items_size(), 32) << "a retry needs no room either";
  batch(1).ScoreAll();
  EXPECT_EQ(sink(1).End(), absl::OkStatus());
}

TEST_F(ScoreLimitsTest, NothingIsLeftBehind) {
  Start(100);
  batch(3);
  batch(0).ScoreAll();
  batch(1).End(kSocketClosed);
  EXPECT_EQ(registry_.Cancel("", "judge"), 1);
  ASSERT_FALSE(sink().End().ok());
  EXPECT_EQ(admission_->load().inside.prompt_tokens, 0);
  EXPECT_EQ(admission_->load().inside.requests, 0);
  EXPECT_EQ(admission_->load().before_first_token, 0);
  EXPECT_EQ(shares_.Join("b").fraction(), 1) << "the call has left";
}

}  // namespace
}  // namespace baton::testing
