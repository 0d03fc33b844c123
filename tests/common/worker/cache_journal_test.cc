#include "common/worker/cache_journal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "tests/testing/seed.h"

namespace baton::worker {
namespace {

using ::testing::UnorderedElementsAre;

TEST(CacheJournalTest, SinceIsTheNetEffect) {
  CacheJournal journal;
  journal.Record({true, 1});
  const uint64_t position = journal.TakeSnapshot().position;
  journal.Record({true, 2});
  journal.Record({true, 3});
  journal.Record({false, 2});
  journal.Record({false, 1});
  auto delta = journal.Since(position);
  ASSERT_TRUE(delta);
  EXPECT_THAT(delta->added, UnorderedElementsAre(3));
  EXPECT_THAT(delta->removed, UnorderedElementsAre(1, 2));
  EXPECT_TRUE(journal.Since(delta->next_position)->added.empty());
}

TEST(CacheJournalTest, AReaderTooFarBehindMustStartAnew) {
  CacheJournal journal(4);
  for (uint64_t key = 0; key < 6; ++key) journal.Record({true, key});
  EXPECT_FALSE(journal.Since(1));
  EXPECT_TRUE(journal.Since(2));
}

TEST(CacheJournalTest, ReadersAlwaysAgreeWithTheTruth) {
  const uint32_t seed = testing::TestSeed();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  CacheJournal journal(16);
  std::set<uint64_t> truth, reader;
  uint64_t position = 0;
  for (int step = 0; step < 5000; ++step) {
    const uint64_t key = random() % 12;
    const bool present = truth.count(key) > 0;
    present ? (void)truth.erase(key) : (void)truth.insert(key);
    journal.Record({!present, key});
    if (random() % 10 != 0) continue;
    if (auto delta = journal.Since(position)) {
      for (uint64_t k : delta->added) reader.insert(k);
      for (uint64_t k : delta->removed) reader.erase(k);
      position = delta->next_position;
    } else {
      const CacheJournal::Snapshot snapshot = journal.TakeSnapshot();
      reader = {snapshot.keys.begin(), snapshot.keys.end()};
      position = snapshot.position;
    }
    ASSERT_EQ(reader, truth);
  }
}

}  // namespace
}  // namespace baton::worker
