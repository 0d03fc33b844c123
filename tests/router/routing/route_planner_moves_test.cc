// What a RoutePlanner makes of KV that a worker need not compute: it fetches it from another worker
// or loads it from its KV tiers.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "common/kv/fetch_rule.h"
#include "common/kv/prefix_key.h"
#include "router/routing/decision_log.h"
#include "tests/router/routing/route_planner_fixture.h"

namespace baton::router {
namespace {

class KvFetchTest : public RoutePlannerTest {
 public:
  KvFetchTest() : RoutePlannerTest(Options()) {}
  static RouteOptions Options() {
    RouteOptions options;
    options.kv_fetch = true;
    options.kv_fetch_bytes_per_second = 500e6;
    return options;
  }
};

TEST_F(KvFetchTest, ABusyWorkerThatHasThePrefixIsNamedAsItsHolder) {
  Cache(kFleetPrefill0, kPromptKeys);
  auto route = Choose(kPromptKeys, /*dispatch=*/false);
  EXPECT_EQ(route->computes.worker, kFleetPrefill0);
  EXPECT_EQ(route->kv_holder.worker, kNoWorker) << "it has the prefix itself";
  Report(kFleetPrefill0, /*remaining_s=*/100);
  route = Choose(kPromptKeys, /*dispatch=*/false);
  EXPECT_NE(route->computes.worker, kFleetPrefill0);
  EXPECT_EQ(route->kv_holder.worker, kFleetPrefill0);
  EXPECT_EQ(route->kv_holder.address, "p0:1");
  EXPECT_NE(route->kv_holder.epoch, 0u);
  EXPECT_EQ(route->kv_holder_tokens, 96);
}

TEST_F(KvFetchTest, ADecodeWorkerMayBeTheHolder) {
  Cache(kDecode1, kPromptKeys);
  Cache(kFleetPrefill0, {1, 2});
  const auto route = Choose(kPromptKeys, /*dispatch=*/false);
  EXPECT_EQ(route->kv_holder.worker, kDecode1);
  EXPECT_EQ(route->kv_holder_tokens, 96);
}

TEST_F(KvFetchTest, AFewBlocksAreNotWorthIt) {
  Cache(kDecode1, {1, 2, 3});
  EXPECT_EQ(Choose(kPromptKeys, /*dispatch=*/false)->kv_holder.worker, kNoWorker);
  Cache(kDecode1, {4});
  EXPECT_EQ(Choose(kPromptKeys, /*dispatch=*/false)->kv_holder.worker, kDecode1);
}

// 96 tokens take 106 ms to compute; 6 blocks of 128 KiB, at 500 MB/s, 1.6 ms to fetch.
TEST_F(KvFetchTest, AFetchIsPricedByItsTime) {
  Cache(kFleetPrefill0, kPromptKeys);
  Report(kFleetPrefill0, /*remaining_s=*/0.05);
  const auto route = Choose(kPromptKeys, /*dispatch=*/false);
  EXPECT_NE(route->computes.worker, kFleetPrefill0)
      << "an idle worker fetches, and has 4 to compute";
  EXPECT_EQ(route->kv_holder.worker, kFleetPrefill0);
  const double fetch_ms = 6.0 * kBlockBytes / 500e3;
  EXPECT_NEAR(absl::ToDoubleMilliseconds(route->predicted_ttft), fetch_ms + 10 + 4, 0.01);
  const auto chosen =
      std::find_if(route->why->candidates.begin(), route->why->candidates.end(),
                   [&](const DecisionCandidate& c) { return c.worker == route->computes.worker; });
  ASSERT_NE(chosen, route->why->candidates.end());
  EXPECT_NEAR(chosen->queue_seconds * 1e3, fetch_ms, 0.01);
  EXPECT_NEAR(chosen->service_seconds * 1e3, 14, 0.01);
}

TEST_F(KvFetchTest, ADecodeWorkerThatComputesFetchesToo) {
  LosePrefillWorkers();
  Cache(kDecode1, kPromptKeys);
  Report(kDecode1, /*remaining_s=*/0.05);
  const auto route = Choose(kPromptKeys, /*dispatch=*/false);
  EXPECT_EQ(route->computes.worker, kDecode0);
  EXPECT_EQ(route->kv_holder.worker, kDecode1);
  const double fetch_ms = 6.0 * kBlockBytes / 500e3;
  EXPECT_NEAR(absl::ToDoubleMilliseconds(route->predicted_ttft), fetch_ms + 10 + 4, 0.01);
}

TEST_F(RoutePlannerTest, WithoutFetchesTheHolderIsWaitedFor) {
  Cache(kFleetPrefill0, kPromptKeys);
  Report(kFleetPrefill0, /*remaining_s=*/0.05);
  EXPECT_EQ(Choose(kPromptKeys, /*dispatch=*/false)->computes.worker, kFleetPrefill0);
}

TEST_F(KvFetchTest, ABusyWorkersQueueHidesTheFetch) {
  Cache(kDecode1, kPromptKeys);
  for (const int worker : {kFleetPrefill0, kFleetPrefill1, kPrefill2}) Report(worker, 0.02);
  const auto route = Choose(kPromptKeys, /*dispatch=*/false);
  EXPECT_EQ(route->kv_holder.worker, kDecode1);
  EXPECT_NEAR(absl::ToDoubleMilliseconds(route->predicted_ttft), 20 + 10 + 4, 0.01);
}

// What was sent to a worker and not computed yet cannot be fetched from it.
TEST_F(KvFetchTest, OnlyReportedBlocksCount) {
  const auto first = Choose(kPromptKeys);
  const auto second = Choose(kPromptKeys, /*dispatch=*/false);
  EXPECT_EQ(second->kv_holder.worker, kNoWorker);
  for (const DecisionCandidate& c : second->why->candidates) {
    if (c.role != v1::WORKER_ROLE_PREFILL || c.worker == first->computes.worker) continue;
    EXPECT_NEAR(c.service_seconds, 0.110, 1e-6);
  }
}

TEST(FetchRuleTest, NeitherFewBlocksNorMostOfThePool) {
  EXPECT_EQ(kv::BlocksToFetch(10, 6, 1000), 4);
  EXPECT_EQ(kv::BlocksToFetch(10, 7, 1000), 0);
  EXPECT_EQ(kv::BlocksToFetch(6, 10, 1000), 0);
  EXPECT_EQ(kv::BlocksToFetch(250, 0, 1000), 250);
  EXPECT_EQ(kv::BlocksToFetch(251, 0, 1000), 0);
  EXPECT_EQ(kv::BlocksToFetch(251, 1, 1000), 250);
}

// The last block of a prompt of whole blocks is computed: it has the last token.
TEST_F(KvFetchTest, TheLastBlockOfAnAlignedPromptIsNotFetched) {
  Cache(kDecode1, kPromptKeys);
  RouteRequest request;
  request.model_fingerprint = 0xA0DE1;
  request.keys = kPromptKeys;
  request.prompt_tokens = 6 * 16;
  const auto route = planner_.Choose(request);
  const double fetch_ms = 5.0 * kBlockBytes / 500e3;
  EXPECT_NEAR(absl::ToDoubleMilliseconds(route->predicted_ttft), fetch_ms + 10 + 16, 0.01);
}

// Segments of two blocks: three in the prompt. All of it takes 110 ms to compute.
class TierLoadTest : public RoutePlannerTest {
 protected:
  explicit TierLoadTest(const RouteOptions& options = RouteOptions())
      : RoutePlannerTest(options, /*tier_segment=*/32) {}
  void KeepInTiers(int worker, int segments, int segment_tokens = 32) {
    std::vector<uint64_t> keys;
    for (int i = 0; i < segments; ++i) {
      keys.push_back(kv::TierKey(kPromptKeys[static_cast<size_t>(2 * i + 1)], segment_tokens));
    }
    Cache(worker, keys);
  }
  void MeasureLoads(absl::Duration each) {
    tier_load_us_ = absl::ToInt64Microseconds(each);
    for (int worker = kFleetPrefill0; worker <= kDecode1; ++worker) Report(worker);
  }
  Route MustChoose() {
    const auto route = Choose(kPromptKeys, /*dispatch=*/false);
    EXPECT_TRUE(route.ok()) << route.status();
    return *route;
  }
  static DecisionCandidate Of(const Route& route, int worker) {
    for (const DecisionCandidate& c : route.why->candidates) {
      if (c.worker == worker) return c;
    }
    ADD_FAILURE() << "no candidate " << worker;
    return {};
  }
};

TEST_F(TierLoadTest, AWorkerLoadsWhatItsTiersHave) {
  KeepInTiers(kFleetPrefill1, 3);
  EXPECT_EQ(Of(MustChoose(), kFleetPrefill1).tier_tokens, 0) << "how long it takes is not known";
  MeasureLoads(absl::Milliseconds(2));
  const Route route = MustChoose();
  EXPECT_EQ(route.computes.worker, kFleetPrefill1);
  EXPECT_EQ(route.matched_blocks, 0);
  EXPECT_EQ(Of(route, kFleetPrefill1).tier_tokens, 96);
  EXPECT_EQ(route.why->predicted_cached_tokens, 96);
  EXPECT_NEAR(absl::ToDoubleMilliseconds(route.predicted_ttft), 3 * 2 + 10 + 4, 0.01);
  EXPECT_THAT(ToText(*route.why), ::testing::HasSubstr("tiers 96"));
  // A queue hides the load.
  Report(kFleetPrefill1, /*remaining_s=*/0.02);
  EXPECT_NEAR(absl::ToDoubleMilliseconds(MustChoose().predicted_ttft), 20 + 10 + 4, 0.01);
  // A longer one sends the prompt elsewhere.
  Report(kFleetPrefill1, /*remaining_s=*/10);
  EXPECT_NE(MustChoose().computes.worker, kFleetPrefill1);
}

TEST_F(TierLoadTest, ADecodeWorkerThatComputesLoadsToo) {
  KeepInTiers(kDecode1, 3);
  MeasureLoads(absl::Milliseconds(2));
  LosePrefillWorkers();
  const Route route = MustChoose();
  EXPECT_EQ(route.decision, "decode_only");
  EXPECT_EQ(route.computes.worker, kDecode1);
  EXPECT_EQ(Of(route, kDecode1).tier_tokens, 96);
  EXPECT_EQ(Of(route, kDecode0).tier_tokens, 0);
  EXPECT_NEAR(absl::ToDoubleMilliseconds(route.predicted_ttft), 3 * 2 + 10 + 4, 0.01);
}

TEST_F(TierLoadTest, AWarmPoolIsBetterAndCountsFirst) {
  KeepInTiers(kFleetPrefill1, 3);
  MeasureLoads(absl::Milliseconds(2));
  Cache(kFleetPrefill0, kPromptKeys);
  EXPECT_EQ(MustChoose().computes.worker, kFleetPrefill0);
  // Three blocks of the prompt are in the pool: the load begins with the segment they end in.
  Cache(kFleetPrefill1, {1, 2, 3});
  const DecisionCandidate c = Of(MustChoose(), kFleetPrefill1);
  EXPECT_EQ(c.tier_tokens, 48);
  EXPECT_NEAR(c.queue_seconds, 2 * 0.002, 1e-6);
  EXPECT_NEAR(c.service_seconds, 0.014, 1e-6);
}

TEST_F(TierLoadTest, ASlowTierIsPricedAsComputing) {
  KeepInTiers(kFleetPrefill1, 3);
  MeasureLoads(absl::Milliseconds(32));  // 96 ms in all, 106 ms to compute
  EXPECT_EQ(Of(MustChoose(), kFleetPrefill1).tier_tokens, 0);
  EXPECT_NEAR(Of(MustChoose(), kFleetPrefill1).service_seconds, 0.110, 1e-6);
  MeasureLoads(absl::Milliseconds(31));
  EXPECT_EQ(Of(MustChoose(), kFleetPrefill1).tier_tokens, 96);
}

TEST_F(TierLoadTest, OtherSegmentsAndThoseOfAWorkerThatIsGoneDoNotCount) {
  KeepInTiers(kFleetPrefill1, 3, /*segment_tokens=*/16);
  MeasureLoads(absl::Milliseconds(2));
  EXPECT_EQ(Of(MustChoose(), kFleetPrefill1).tier_tokens, 0);
  KeepInTiers(kPrefill2, 3);
  EXPECT_EQ(Of(MustChoose(), kPrefill2).tier_tokens, 96);
  roster_.OnStreamLost(kPrefill2, absl::UnavailableError("killed"));
  Start(kPrefill2);
  EXPECT_EQ(Of(MustChoose(), kPrefill2).tier_tokens, 0);
}

TEST_F(TierLoadTest, NotMoreThanAShareOfThePool) {
  RouteRequest request;
  request.model_fingerprint = 0xA0DE1;
  std::vector<uint64_t> keys, tiers;
  for (uint64_t i = 1; i <= 300; ++i) {
    keys.push_back(i);
    if (i % 2 == 0 && i <= 200) tiers.push_back(kv::TierKey(i, 32));
  }
  request.keys = keys;
  request.prompt_tokens = 300 * 16 + 1;
  request.dispatch = false;
  request.explain = true;
  Cache(kFleetPrefill1, tiers);
  MeasureLoads(absl::Milliseconds(2));
  EXPECT_EQ(Of(*planner_.Choose(request), kFleetPrefill1).tier_tokens, 100 * 32);
  LosePrefillWorkers();
  pool_blocks_ = 700;  // a load of 200 blocks would take more than a quarter
  for (int i = kFleetPrefill0; i <= kPrefill2; ++i) Start(i);
  Cache(kFleetPrefill1, tiers);
  EXPECT_EQ(Of(*planner_.Choose(request), kFleetPrefill1).tier_tokens, 0);
}

// A state takes as long as two segments.
TEST_F(TierLoadTest, OfARecurrentModelAWorkerLoadsAsFarAsItHasAState) {
  state_bytes_ = 4 * kBlockBytes;
  for (int worker = kFleetPrefill0; worker <= kDecode1; ++worker) {
    roster_.OnStreamLost(worker, absl::UnavailableError("restarted"));
    Start(worker);
  }
  const auto state_behind = [](int segment) {
    return kv::TierKey(kv::SnapshotKey(kPromptKeys[static_cast<size_t>(2 * segment - 1)]), 32);
  };
  KeepInTiers(kFleetPrefill1, 3);
  MeasureLoads(absl::Milliseconds(2));
  EXPECT_EQ(Of(MustChoose(), kFleetPrefill1).tier_tokens, 0) << "KV alone";
  Cache(kFleetPrefill1, {state_behind(2)});
  Route route = MustChoose();
  EXPECT_EQ(route.computes.worker, kFleetPrefill1);
  EXPECT_EQ(Of(route, kFleetPrefill1).tier_tokens, 64);
  EXPECT_NEAR(absl::ToDoubleMilliseconds(route.predicted_ttft), (2 + 2) * 2 + 10 + 36, 0.01);
  Cache(kFleetPrefill1, {state_behind(3)});
  route = MustChoose();
  EXPECT_EQ(Of(route, kFleetPrefill1).tier_tokens, 96);
  EXPECT_NEAR(absl::ToDoubleMilliseconds(route.predicted_ttft), (3 + 2) * 2 + 10 + 4, 0.01);
  // A state of a prefix that is not there.
  KeepInTiers(kPrefill2, 1);
  Cache(kPrefill2, {state_behind(3)});
  EXPECT_EQ(Of(MustChoose(), kPrefill2).tier_tokens, 0);
}

class TierOrFetchTest : public TierLoadTest {
 protected:
  TierOrFetchTest() : TierLoadTest(KvFetchTest::Options()) {}
};

TEST_F(TierOrFetchTest, AWorkerPrefersItsTiersToAFetch) {
  Cache(kDecode1, kPromptKeys);
  KeepInTiers(kFleetPrefill1, 3);
  MeasureLoads(absl::Milliseconds(2));
  const Route route = MustChoose();
  const double fetch_s = 6.0 * kBlockBytes / 500e6;
  EXPECT_NEAR(Of(route, kFleetPrefill1).queue_seconds, 0.006, 1e-6);
  EXPECT_NEAR(Of(route, kFleetPrefill0).queue_seconds, fetch_s, 1e-6);
  EXPECT_EQ(Of(route, kFleetPrefill0).tier_tokens, 0);
}

class NamedOnlyTest : public RoutePlannerTest {
 protected:
  NamedOnlyTest() : RoutePlannerTest(Options()) {}
  static RouteOptions Options() {
    RouteOptions options;
    options.kv_fetch = true;
    return options;
  }
};

TEST_F(NamedOnlyTest, WithoutARateComputingIsPriced) {
  Cache(kDecode1, kPromptKeys);
  const auto route = Choose(kPromptKeys, /*dispatch=*/false);
  EXPECT_EQ(route->kv_holder.worker, kDecode1) << "it is named all the same";
  for (const DecisionCandidate& c : route->why->candidates) {
    if (c.role != v1::WORKER_ROLE_PREFILL) continue;
    EXPECT_NEAR(c.service_seconds, 0.110, 1e-6);
  }
}

TEST_F(RoutePlannerTest, NoHolderIsNamedUnlessItIsAskedFor) {
  Cache(kDecode1, kPromptKeys);
  EXPECT_EQ(Choose(kPromptKeys, /*dispatch=*/false)->kv_holder.worker, kNoWorker);
}

}  // namespace
}  // namespace baton::router
