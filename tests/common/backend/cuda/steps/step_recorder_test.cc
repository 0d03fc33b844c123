#include "common/backend/cuda/steps/step_recorder.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "common/backend/cuda/steps/attention_plan.h"
#include "tests/testing/seed.h"

namespace baton::backend::cuda {
namespace {

TEST(PaddedRowsTest, AreFewAndNeverFewerThanAskedFor) {
  for (int rows = 1; rows <= 300; ++rows) {
    const int padded = PaddedRows(rows, 300);
    ASSERT_GE(padded, rows);
    ASSERT_LE(padded, 300);
    ASSERT_EQ(PaddedRows(padded, 300), padded) << "a number of rows is its own";
    ASSERT_LE(padded - rows, rows <= 8     ? rows - 1
                             : rows <= 32  ? 7
                             : rows <= 64  ? 15
                             : rows <= 256 ? 31
                                           : 63);
  }
  std::vector<int> all;
  for (int rows = 1; rows <= 128; rows = all.back() + 1) all.push_back(PaddedRows(rows, 1024));
  EXPECT_EQ(all, (std::vector<int>{1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128}));
  EXPECT_EQ(PaddedRows(257, 1024), 320);
  EXPECT_EQ(PaddedRows(17, 20), 20) << "no more than the workspaces hold";
  EXPECT_DEATH(PaddedRows(21, 20), "21 rows of 20");
  EXPECT_DEATH(PaddedRows(0, 20), "0 rows");
}

TEST(SplitBlocksTest, AreAPowerOfTwoThatKeepsTheDeviceBusy) {
  EXPECT_EQ(SplitBlocks(1, 2, 40), 1);
  EXPECT_EQ(SplitBlocks(33, 2, 40), 64);
  EXPECT_EQ(SplitBlocks(100'000, 2, 40), 256) << "160 for each head are enough";
  EXPECT_EQ(SplitBlocks(100'000, 1024, 2), 1);
  EXPECT_EQ(SplitBlocks(0, 2, 40), 1) << "a launch needs a block";
}

// Whatever a step is, one of its kind was run.
TEST(KindsTest, AreAllThereAre) {
  const uint64_t seed = testing::TestSeed();
  SCOPED_TRACE(seed);
  std::mt19937_64 random(seed);
  const auto any = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int round = 0; round < 20; ++round) {
    const auto runtime = MakeEmulatedRuntime(80, 64 << 20);
    const Stream stream = runtime->MakeStream();
    StepLimits limits;
    limits.max_rows = 100;
    limits.max_sequences = limits.max_logit_rows = any(1, 50);
    limits.max_positions = any(100, 3000);
    limits.kv_heads = any(1, 4);
    limits.query_heads = limits.kv_heads * any(1, 20);
    limits.head_dim = 64;
    limits.block_tokens = 16;
    if (round % 2 == 1) {
      const int kv_heads = any(1, 8);
      limits.other_heads = {{kv_heads * any(1, 32), kv_heads, 128}};
    }
    std::vector<AttentionRoom> rooms;
    for (const AttentionHeads& heads : limits.heads()) {
      rooms.push_back(RoomFor(limits.max_rows, limits.max_sequences, limits.max_positions,
                              heads.group(), 100'000));
    }
    void* device = runtime->AllocateDevice(BatchUpload::DeviceBytes(limits, rooms)).value();
    const auto upload = BatchUpload::Make(limits, rooms, device, *runtime, stream).value();
    StepState state;
    CudaStepRecorder recorder(limits, *upload, state, *runtime, stream);
    // Rows and blocks of a step, which a graph is kept for.
    const auto kind_of = [&](const std::vector<int>& contexts) {
      std::vector<int32_t> tokens(contexts.size()), rows(contexts.size());
      std::iota(rows.begin(), rows.end(), 0);
      const std::vector<int32_t> blocks(200);
      std::vector<SequenceRows> sequences;
      for (const int context : contexts) {
        sequences.push_back({static_cast<int>(sequences.size()), 1, context, blocks});
      }
      RaggedBatch batch;
      batch.tokens = tokens;
      batch.sequences = sequences;
      batch.logit_rows = rows;
      const PaddedBatch padded = recorder.Upload(batch);
      const auto& cuda = static_cast<const CudaBatch&>(*padded.batch);
      std::vector<int> kind = {cuda.rows};
      for (const CudaBatch::Items& items : cuda.items) {
        EXPECT_GE(items.split_blocks, 1);
        kind.push_back(items.split_blocks);
      }
      return kind;
    };
    std::set<std::vector<int>> known;
    for (const StepRecorder::Kind& kind : recorder.Kinds()) {
      EXPECT_TRUE(known.insert(kind_of(std::vector<int>(kind.rows, kind.context))).second)
          << "a kind once";
    }
    for (int i = 0; i < 200; ++i) {
      std::vector<int> contexts(static_cast<size_t>(any(1, limits.max_sequences)));
      const int most = any(0, limits.max_positions - 1);
      for (int& context : contexts) context = any(0, most);
      ASSERT_TRUE(known.contains(kind_of(contexts)))
          << contexts.size() << " rows, contexts up to " << most;
    }
  }
}

}  // namespace
}  // namespace baton::backend::cuda
