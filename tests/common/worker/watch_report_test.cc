#include "common/worker/watch_report.h"

#include <gtest/gtest.h>

#include <set>

namespace baton::worker {
namespace {

using internal::v1::WatchResponse;

class WatchReportTest : public ::testing::Test {
 protected:
  static internal::v1::WorkerCard Card() {
    internal::v1::WorkerCard card;
    card.set_worker_id("w1");
    return card;
  }
  std::vector<WatchResponse> Next() { return report_.Next(load_, absl::Seconds(10)); }

  const internal::v1::WorkerCard card_ = Card();
  CacheJournal journal_{/*max_changes=*/4};
  WorkerLoad load_;
  WatchReport report_{card_, journal_};
};

TEST_F(WatchReportTest, TheCardAndASnapshotOnceThenChangesThatAreNumbered) {
  journal_.Record({true, 5});
  std::vector<WatchResponse> report = Next();
  ASSERT_EQ(report.size(), 3u);
  EXPECT_EQ(report[0].card().worker_id(), "w1");
  ASSERT_EQ(report[1].snapshot().keys_size(), 1);
  EXPECT_TRUE(report[1].snapshot().last());
  const uint64_t sequence = report[1].snapshot().sequence();
  EXPECT_TRUE(report[2].has_load());

  report = Next();
  ASSERT_EQ(report.size(), 1u);
  EXPECT_TRUE(report[0].has_load());

  journal_.Record({true, 6});
  journal_.Record({false, 5});
  report = Next();
  ASSERT_EQ(report.size(), 2u);
  EXPECT_EQ(report[0].delta().sequence(), sequence + 1);
  ASSERT_EQ(report[0].delta().added_size(), 1);
  EXPECT_EQ(report[0].delta().added(0), 6u);
  ASSERT_EQ(report[0].delta().removed_size(), 1);
  EXPECT_EQ(report[0].delta().removed(0), 5u);
}

TEST_F(WatchReportTest, TheLoadHasTheTokensThatWereDrawnAndDrafted) {
  load_.generated_tokens = 9;
  load_.draft_tokens = 8;
  load_.accepted_draft_tokens = 5;
  const internal::v1::LoadReport load = Next().back().load();
  EXPECT_EQ(load.generated_tokens(), 9);
  EXPECT_EQ(load.draft_tokens(), 8);
  EXPECT_EQ(load.accepted_draft_tokens(), 5);
}

TEST_F(WatchReportTest, WhatTheJournalHasForgottenIsToldByAnotherSnapshot) {
  const uint64_t sequence = Next()[1].snapshot().sequence();
  for (uint64_t key = 1; key <= 5; ++key) journal_.Record({true, key});
  const std::vector<WatchResponse> report = Next();
  ASSERT_EQ(report.size(), 2u);
  EXPECT_EQ(report[0].snapshot().keys_size(), 5);
  EXPECT_EQ(report[0].snapshot().sequence(), sequence + 1);
}

TEST_F(WatchReportTest, ALargeSnapshotComesInPieces) {
  const size_t count = WatchReport::kKeysPerMessage + 1;
  for (uint64_t key = 1; key <= count; ++key) journal_.Record({true, key});
  const std::vector<WatchResponse> report = Next();
  ASSERT_EQ(report.size(), 4u);
  EXPECT_FALSE(report[1].snapshot().last());
  EXPECT_TRUE(report[2].snapshot().last());
  EXPECT_EQ(report[1].snapshot().sequence(), report[2].snapshot().sequence());
  std::set<uint64_t> keys(report[1].snapshot().keys().begin(), report[1].snapshot().keys().end());
  keys.insert(report[2].snapshot().keys().begin(), report[2].snapshot().keys().end());
  EXPECT_EQ(keys.size(), count);
}

TEST_F(WatchReportTest, TheLoadSaysHowOldItIs) {
  load_.running = 3;
  load_.last_accepted_at = absl::Seconds(7);
  load_.read_at = absl::Seconds(9);
  load_.decode_cost.emplace().set_fixed_us(7100);
  const internal::v1::LoadReport load = Next().back().load();
  EXPECT_EQ(load.running(), 3);
  EXPECT_EQ(load.age_us(), 1'000'000);
  EXPECT_EQ(load.accepted_age_us(), 3'000'000);
  EXPECT_EQ(load.decode_cost().fixed_us(), 7100);
  EXPECT_FALSE(load.has_prefill_cost());
}

TEST_F(WatchReportTest, LinksAreToldOnceUntilTheyChange) {
  EXPECT_EQ(Next().back().load().links_size(), 0);
  load_.links = std::make_shared<const std::vector<LinkRate>>(
      std::vector<LinkRate>{{"p0", 7, 1.5e9, absl::Seconds(8)}, {"p1", 8, 1e8, absl::Seconds(1)}});
  const internal::v1::LoadReport told = Next().back().load();
  ASSERT_EQ(told.links_size(), 2);
  EXPECT_EQ(told.links(0).worker_id(), "p0");
  EXPECT_EQ(told.links(0).epoch(), 7u);
  EXPECT_EQ(told.links(0).bytes_per_second(), 1.5e9);
  EXPECT_EQ(told.links(0).age_us(), 2'000'000);
  EXPECT_EQ(Next().back().load().links_size(), 0);
  EXPECT_EQ(ToProto(load_, absl::Seconds(10)).links_size(), 0);
  load_.links = std::make_shared<const std::vector<LinkRate>>(*load_.links);
  EXPECT_EQ(Next().back().load().links_size(), 2);
  // A router that comes later hears of them, too.
  WatchReport other(card_, journal_);
  EXPECT_EQ(other.Next(load_, absl::Seconds(10)).back().load().links_size(), 2);
}

}  // namespace
}  // namespace baton::worker
