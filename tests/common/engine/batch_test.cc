#include "common/engine/batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton::engine {
namespace {

using ::testing::ElementsAre;

constexpr int kBatchBlockTokens = 16;

BatchEntry Entry(const std::vector<int32_t>& tokens, int context) {
  BatchEntry entry;
  entry.tokens = tokens;
  entry.context = context;
  return entry;
}

TEST(SetBlocksTest, WithoutWindowsTheyAreTheLeasesIds) {
  kv::BlockPool pool(4);
  const kv::BlockLease lease = *pool.Acquire(3, kv::BlockUse::kActive);
  const std::vector<int32_t> tokens(4);
  BatchEntry entry = Entry(tokens, 40);
  SetBlocks(lease, &entry, kBatchBlockTokens);
  EXPECT_EQ(entry.blocks.data(), lease.ids().data());
  EXPECT_EQ(entry.blocks.size(), 3u);
}

// Also those that the lease still has: by the time the step runs they may be another sequence's.
TEST(SetBlocksTest, EntriesBeforeTheWindowNameTheFirstPageThatIsSeen) {
  kv::BlockPool pool(20, {.full_pages = 1, .window_pages = 1, .window_blocks = 2});
  kv::BlockLease lease = *pool.Acquire(6, kv::BlockUse::kActive);
  lease.DropWindows(1);
  const std::vector<int32_t> tokens(16);
  BatchEntry entry = Entry(tokens, 64);  // blocks 2 to 4 are seen
  SetBlocks(lease, &entry, kBatchBlockTokens);
  ASSERT_EQ(entry.blocks.size(), 12u);
  const std::vector<int32_t> full = lease.Tables(0, 6);
  EXPECT_THAT(std::vector(entry.blocks.begin(), entry.blocks.begin() + 6),
              ::testing::ElementsAreArray(full.begin(), full.begin() + 6));
  const int32_t seen = lease.PagesOf(2)[1];
  EXPECT_THAT(std::vector(entry.blocks.begin() + 6, entry.blocks.begin() + 11),
              ElementsAre(seen, seen, seen, lease.PagesOf(3)[1], lease.PagesOf(4)[1]));
  const BatchEntry copy = entry;
  entry = BatchEntry();
  EXPECT_EQ(copy.blocks[6], seen) << "a copy keeps what it refers to";
}

TEST(SetBlocksDeathTest, WhatIsSeenMustBeThere) {
  kv::BlockPool pool(20, {.full_pages = 1, .window_pages = 1, .window_blocks = 2});
  kv::BlockLease lease = *pool.Acquire(6, kv::BlockUse::kActive);
  lease.DropWindows(3);
  const std::vector<int32_t> tokens(16);
  BatchEntry entry = Entry(tokens, 64);
  EXPECT_DEATH(SetBlocks(lease, &entry, kBatchBlockTokens), "lack window pages");
}

// States go on from the block before the tokens, and are left where blocks have pages for them.
TEST(SetBlocksTest, StatesAreReadBeforeTheTokensAndLeftInTheirBlocks) {
  kv::BlockPool pool(40,
                     {.full_pages = 1, .window_pages = 2, .window_blocks = 1, .recurrent = true});
  kv::BlockLease lease = *pool.Acquire(6, kv::BlockUse::kActive, 0, 0);
  for (const int block : {0, 1, 3, 4}) lease.AddWindows(block, block + 1);
  const std::vector<int32_t> tokens(40);
  BatchEntry entry = Entry(tokens, 32);  // of blocks 2 to 4, the last one in part
  SetBlocks(lease, &entry, kBatchBlockTokens);
  EXPECT_THAT(entry.blocks, ::testing::ElementsAreArray(lease.FullTables(0, 6)));
  EXPECT_THAT(entry.state, ::testing::ElementsAreArray(lease.WindowPagesOf(1)));
  ASSERT_EQ(entry.state_stores.size(), 2u);
  EXPECT_EQ(entry.state_stores[0].tokens, 64);
  EXPECT_THAT(entry.state_stores[0].pages, ::testing::ElementsAreArray(lease.WindowPagesOf(3)));
  EXPECT_EQ(entry.state_stores[1].tokens, 72);
  EXPECT_THAT(entry.state_stores[1].pages, ::testing::ElementsAreArray(lease.WindowPagesOf(4)));
  const BatchEntry copy = entry;
  entry = BatchEntry();
  EXPECT_EQ(copy.state[0], lease.WindowPagesOf(1)[0]) << "a copy keeps what it refers to";

  // A token within a block goes on from the block's own state, in place.
  BatchEntry next = Entry({7}, 72);
  const std::vector<int32_t> one(1);
  next.tokens = one;
  SetBlocks(lease, &next, kBatchBlockTokens);
  EXPECT_EQ(next.state[0], lease.WindowPagesOf(4)[0]);
  EXPECT_EQ(next.state_stores.at(0).pages[0], lease.WindowPagesOf(4)[0]);

  BatchEntry first = Entry(one, 0);
  SetBlocks(lease, &first, kBatchBlockTokens);
  EXPECT_TRUE(first.state.empty());
}

TEST(SetBlocksDeathTest, AStateMustHaveAPlace) {
  kv::BlockPool pool(40,
                     {.full_pages = 1, .window_pages = 2, .window_blocks = 1, .recurrent = true});
  const kv::BlockLease lease = *pool.Acquire(6, kv::BlockUse::kActive, 1, 2);
  const std::vector<int32_t> tokens(20);
  BatchEntry entry = Entry(tokens, 32);
  EXPECT_DEATH(SetBlocks(lease, &entry, kBatchBlockTokens), "no pages for its state");
}

}  // namespace
}  // namespace baton::engine
