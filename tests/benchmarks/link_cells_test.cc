#include "benchmarks/router_sim/link_cells.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "simulator/baton_router.h"
#include "simulator/load_generator.h"
#include "simulator/sim_decode_worker.h"
#include "simulator/sim_links.h"

namespace baton::simulator::sweeps {
namespace {

using ::testing::ElementsAre;

constexpr double kGbitBytes = 1e9 / 8;

TEST(SimLinksTest, RatesAreReadByWorkerPairOrRack) {
  const auto decode = ParseLinkRates("decode:1,10", 2, 3, 1);
  ASSERT_TRUE(decode.ok()) << decode.status();
  EXPECT_THAT((*decode)[1], ElementsAre(kGbitBytes, 10 * kGbitBytes, kGbitBytes));
  const auto prefill = ParseLinkRates("prefill:1,2.5", 2, 2, 1);
  EXPECT_THAT((*prefill)[1], ElementsAre(2.5 * kGbitBytes, 2.5 * kGbitBytes));
  const auto racks = ParseLinkRates("racks:25,1", 2, 2, 1);
  EXPECT_THAT((*racks)[0], ElementsAre(25 * kGbitBytes, kGbitBytes));
  EXPECT_THAT((*racks)[1], ElementsAre(kGbitBytes, 25 * kGbitBytes));
  const auto pairs = ParseLinkRates("pairs:1,10,10,10", 32, 32, 1);
  int slow = 0;
  for (const auto& of_prefill : *pairs) {
    for (double rate : of_prefill) slow += rate == kGbitBytes;
  }
  EXPECT_NEAR(slow, 256, 60);
  for (const char* bad : {"", "decode", "decode:", "decode:x", "decode:0", "decode:1,,2", "cats:1",
                          "racks:1", "racks:1,2,3", "pairs:nan", "pairs:inf", "pairs:1e9"}) {
    EXPECT_EQ(ParseLinkRates(bad, 2, 2, 1).status().code(), absl::StatusCode::kInvalidArgument)
        << bad;
  }
}

TEST(SimLinksTest, LayersCrossWhileThePromptIsComputedAndTransfersOneByOne) {
  SimLinks links(LinkMatrix(1, {1e9}), kKvLayers);
  // 100 ms on the link.
  const double bytes = 1e8;
  EXPECT_EQ(links.Move(0, 0, bytes, 0, 1'000'000), 100'000 / kKvLayers) << "the last layer";
  EXPECT_EQ(links.Move(0, 0, bytes, 2'000'000, 2'040'000), 60'000);
  EXPECT_EQ(links.Move(0, 0, bytes, 2'000'000, 2'040'000), 160'000) << "behind the other one";
}

TEST(SimLinksTest, WhatHasCrossedIsReportedOnce) {
  SimLinks links(LinkMatrix{{1e9}, {1e8}}, kKvLayers);
  internal::v1::LoadReport load;
  links.Report(0, 0, &load);
  EXPECT_EQ(load.links_size(), 0);
  links.Moved(1, 0, 1e7, 1'000'000);
  links.Report(0, 3'000'000, &load);
  ASSERT_EQ(load.links_size(), 1);
  EXPECT_EQ(load.links(0).worker_id(), "p1");
  EXPECT_NEAR(load.links(0).bytes_per_second(), 1e8, 1);
  EXPECT_EQ(load.links(0).age_us(), 2'000'000);
  load.Clear();
  links.Report(0, 4'000'000, &load);
  EXPECT_EQ(load.links_size(), 0);
}

class LinkSimulationTest : public ::testing::Test {
 protected:
  LinkSimulationTest() {
    LoadShape shape;
    shape.requests = 1000;
    shape.mean_gap_s = 0.15;
    trace_ = AgentLoad(shape);
    for (SimRequest& request : trace_.requests) request.output_tokens = 16;
    scenario_.workers = 4;
    scenario_.cache_blocks = 1024;
    scenario_.decode.workers = 4;
    scenario_.decode.shape.kv_blocks = 65'536;
  }
  CellResult Run(const std::string& rates, bool hears_links) {
    scenario_.decode.links.clear();
    if (!rates.empty()) scenario_.decode.links = *ParseLinkRates(rates, 4, 4, 1);
    return Simulate(trace_, scenario_, MakeBatonRouter(&SimPolicy, {.hears_links = hears_links}));
  }

  Trace trace_;
  Scenario scenario_;
};

TEST_F(LinkSimulationTest, RequestsKeepOffSlowLinks) {
  for (const char* rates : {"decode:1,10,10,10", "prefill:1,10,10,10", "racks:10,1"}) {
    const CellResult without = Run(rates, false), priced = Run(rates, true);
    EXPECT_EQ(without.unanswered + priced.unanswered, 0);
    EXPECT_LT(priced.p99_second_s, 0.6 * without.p99_second_s) << rates;
    EXPECT_LT(priced.p50_second_s, 1.1 * without.p50_second_s) << rates;
    EXPECT_LT(priced.mean_answer_s, without.mean_answer_s) << rates;
    EXPECT_LT(priced.p50_ttft_s, 1.2 * without.p50_ttft_s) << rates;
  }
}

TEST_F(LinkSimulationTest, EqualLinksChangeLittle) {
  const CellResult without = Run("decode:10", false), priced = Run("decode:10", true);
  EXPECT_NEAR(priced.p50_second_s / without.p50_second_s, 0.95, 0.15);
  EXPECT_NEAR(priced.p50_ttft_s / without.p50_ttft_s, 1, 0.1);
}

TEST_F(LinkSimulationTest, WithoutReportsNothingChanges) {
  const CellResult without = Run("", false), priced = Run("", true);
  EXPECT_EQ(priced.mean_ttft_s, without.mean_ttft_s);
  EXPECT_EQ(priced.p99_second_s, without.p99_second_s);
  EXPECT_EQ(priced.decode.mean_itl_s, without.decode.mean_itl_s);
}

}  // namespace
}  // namespace baton::simulator::sweeps
