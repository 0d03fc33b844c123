#include "common/backend/cuda/steps/batch_upload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <utility>
#include <vector>

#include "tests/common/backend/cuda/delayed_runtime.h"
#include "tests/testing/seed.h"

namespace baton::backend::cuda {
namespace {

// A batch with memory of its own.
struct Step {
  std::vector<int32_t> tokens, logit_rows;
  std::vector<std::vector<int32_t>> blocks;
  std::vector<SequenceRows> sequences;
  RaggedBatch batch() const { return {tokens, sequences, logit_rows}; }
};

// What the device has of a batch, copied back by its stream.
struct Snapshot {
  std::vector<int32_t> tokens, positions, sequence_of_row, logit_rows, tables;
  std::vector<SequenceEntry> sequences;
  std::deque<std::vector<AttentionItem>> split_items, tile_items;  // by kind of heads
};

class BatchUploadTest : public ::testing::Test {
 protected:
  BatchUploadTest() : runtime_(80, 64 << 20), stream_(runtime_.MakeStream()) {}

  int Int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  void Make(StepLimits limits) {
    limits_ = limits;
    rooms_.clear();
    for (const AttentionHeads& heads : limits.heads()) {
      rooms_.push_back(RoomFor(limits.max_rows, limits.max_sequences, limits.max_positions,
                               heads.group(), 1000));
    }
    device_ = runtime_.AllocateDevice(BatchUpload::DeviceBytes(limits, rooms_)).value();
    upload_ = BatchUpload::Make(limits, rooms_, device_, runtime_, stream_).value();
  }
  const int32_t* upload_base() const { return static_cast<const int32_t*>(device_); }
  StepLimits AnyLimits() {
    StepLimits limits;
    limits.max_rows = Int(1, 60);
    limits.max_sequences = Int(1, 12);
    limits.max_positions = Int(limits.max_rows, 900);
    limits.kv_heads = Int(1, 3);
    limits.query_heads = limits.kv_heads * Int(1, 8);
    limits.head_dim = 64;
    // Layers with other heads, whose blocks of attention are others.
    for (int more = Int(0, 2); more > 0; --more) {
      const int kv_heads = Int(1, 3);
      limits.other_heads.push_back({kv_heads * Int(1, 20), kv_heads, 64 + 8 * more});
    }
    limits.block_tokens = Int(0, 1) ? 16 : 32;
    return limits;
  }
  Step AnyStep(bool largest) {
    Step step;
    int rows = 0;
    while (rows < limits_.max_rows &&
           static_cast<int>(step.sequences.size()) < limits_.max_sequences) {
      const bool last = static_cast<int>(step.sequences.size()) + 1 == limits_.max_sequences;
      const int most = limits_.max_rows - rows;
      const int count = largest ? (last ? most : 1) : Int(1, most);
      const int context =
          largest ? limits_.max_positions - count : Int(0, limits_.max_positions - count);
      const int needed = (context + count + limits_.block_tokens - 1) / limits_.block_tokens;
      // More may be reserved than the tokens need.
      step.blocks.emplace_back(static_cast<size_t>(needed + (largest ? 0 : Int(0, 3))));
      for (int32_t& block : step.blocks.back()) block = Int(3, 5000);
      step.sequences.push_back({rows, count, context, {}});
      rows += count;
      if (!largest && Int(0, 3) == 0) break;
    }
    for (size_t i = 0; i < step.sequences.size(); ++i) step.sequences[i].blocks = step.blocks[i];
    for (int row = 0; row < rows; ++row) {
      step.tokens.push_back(Int(5, 100'000));
      if (largest || Int(0, 2) == 0) step.logit_rows.push_back(row);
    }
    return step;
  }

  template <class T>
  void CopyBack(std::vector<T>& to, const T* device, size_t count) {
    to.resize(count);
    runtime_.CopyToHost(to.data(), device, count * sizeof(T), stream_);
  }
  // Enqueued: `to` has it after the next Synchronize.
  void Take(const CudaBatch& batch, const Step& step, Snapshot& to) {
    const auto rows = static_cast<size_t>(batch.rows);
    CopyBack(to.tokens, batch.d_tokens, rows);
    CopyBack(to.positions, batch.d_positions, rows);
    CopyBack(to.sequence_of_row, batch.d_sequence_of_row, rows);
    CopyBack(to.logit_rows, batch.d_logit_rows, static_cast<size_t>(batch.logit_count));
    CopyBack(to.sequences, batch.d_sequences, step.sequences.size());
    size_t blocks = 0;
    for (const SequenceRows& sequence : step.sequences) blocks += NeededBlocks(sequence);
    CopyBack(to.tables, batch.d_tables, blocks);
    for (const CudaBatch::Items& items : batch.items) {
      CopyBack(to.split_items.emplace_back(), items.d_split_items,
               static_cast<size_t>(items.split_items));
      CopyBack(to.tile_items.emplace_back(), items.d_tile_items,
               static_cast<size_t>(items.tile_items));
    }
  }
  size_t NeededBlocks(const SequenceRows& sequence) const {
    return static_cast<size_t>((sequence.context + sequence.row_count + limits_.block_tokens - 1) /
                               limits_.block_tokens);
  }

  void CheckSnapshot(const Step& step, const Snapshot& found) {
    ASSERT_EQ(found.tokens, step.tokens);
    ASSERT_EQ(found.logit_rows, step.logit_rows);
    size_t row = 0;
    for (size_t i = 0; i < step.sequences.size(); ++i) {
      const SequenceRows& sequence = step.sequences[i];
      const SequenceEntry& entry = found.sequences[i];
      ASSERT_EQ(entry.first_row, sequence.first_row);
      ASSERT_EQ(entry.row_count, sequence.row_count);
      ASSERT_EQ(entry.context, sequence.context);
      for (int j = 0; j < sequence.row_count; ++j, ++row) {
        ASSERT_EQ(found.positions[row], sequence.context + j);
        ASSERT_EQ(found.sequence_of_row[row], static_cast<int>(i));
      }
      for (size_t j = 0; j < NeededBlocks(sequence); ++j) {
        ASSERT_EQ(found.tables.at(static_cast<size_t>(entry.first_block) + j), sequence.blocks[j]);
      }
    }
    // The plan is attention_plan_test's matter: here, that it is all there.
    const std::vector<AttentionHeads> heads = limits_.heads();
    ASSERT_EQ(found.split_items.size(), heads.size());
    for (size_t kind = 0; kind < heads.size(); ++kind) {
      const AttentionPlan plan = PlanAttention(found.sequences, heads[kind].group(), rooms_[kind]);
      const auto same = [](const std::vector<AttentionItem>& a,
                           const std::vector<AttentionItem>& b) {
        return a.size() == b.size() &&
               (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0);
      };
      ASSERT_TRUE(same(found.split_items[kind], plan.split_items)) << "kind " << kind;
      ASSERT_TRUE(same(found.tile_items[kind], plan.tile_items)) << "kind " << kind;
    }
  }

  const uint64_t seed_ = testing::TestSeed();
  std::mt19937_64 random_{seed_};
  DelayedRuntime runtime_;
  const Stream stream_;
  StepLimits limits_;
  std::vector<AttentionRoom> rooms_;
  void* device_ = nullptr;
  std::unique_ptr<BatchUpload> upload_;
};

// Many steps are uploaded before the device gets to the first; each finds its own data.
TEST_F(BatchUploadTest, EveryStepFindsItsOwnDataHoweverLateTheDeviceIs) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 30; ++round) {
    Make(AnyLimits());
    std::vector<Step> steps;
    for (int i = 0; i < 20; ++i) steps.push_back(AnyStep(i % 3 == 0));
    std::vector<Snapshot> snapshots(steps.size());
    std::deque<std::unique_ptr<CudaBatch>> live;
    for (size_t i = 0; i < steps.size(); ++i) {
      if (live.size() == BatchUpload::kSlots || (!live.empty() && Int(0, 1))) live.pop_front();
      // The caller's memory is his again.
      Step given = steps[i];
      for (size_t j = 0; j < given.sequences.size(); ++j) {
        given.sequences[j].blocks = given.blocks[j];
      }
      live.push_back(upload_->Upload(given.batch()));
      const CudaBatch& batch = *live.back();
      ASSERT_EQ(batch.rows, static_cast<int>(given.tokens.size()));
      ASSERT_EQ(batch.block_tokens, limits_.block_tokens);
      ASSERT_EQ(batch.least_token, *std::min_element(given.tokens.begin(), given.tokens.end()));
      ASSERT_EQ(batch.greatest_token, *std::max_element(given.tokens.begin(), given.tokens.end()));
      int32_t least = 1 << 30, greatest = -1;
      int last = 0;
      for (const SequenceRows& sequence : given.sequences) {
        for (size_t b = 0; b < NeededBlocks(sequence); ++b) {
          least = std::min(least, sequence.blocks[b]);
          greatest = std::max(greatest, sequence.blocks[b]);
        }
        last = std::max(last, sequence.context + sequence.row_count - 1);
      }
      ASSERT_EQ(batch.least_block, least) << "of the blocks that tokens lie in";
      ASSERT_EQ(batch.greatest_block, greatest);
      ASSERT_EQ(batch.last_position, last);
      Take(batch, given, snapshots[i]);
    }
    runtime_.Synchronize(stream_);
    for (size_t i = 0; i < steps.size(); ++i) {
      CheckSnapshot(steps[i], snapshots[i]);
      ASSERT_FALSE(HasFatalFailure()) << "round " << round << ", step " << i;
    }
  }
}

// The parts that kernels load in pieces of 16 bytes, or that hold structs, are aligned.
TEST_F(BatchUploadTest, PartsAreAligned) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 30; ++round) {
    Make(AnyLimits());
    const Step step = AnyStep(false);
    const auto batch = upload_->Upload(step.batch());
    for (const void* part : std::initializer_list<const void*>{
             batch->d_tokens, batch->d_positions, batch->d_sequence_of_row, batch->d_logit_rows,
             batch->d_tables, batch->d_sequences}) {
      ASSERT_EQ(reinterpret_cast<uintptr_t>(part) % 16, 0u);
    }
    for (const CudaBatch::Items& items : batch->items) {
      ASSERT_EQ(reinterpret_cast<uintptr_t>(items.d_split_items) % 16, 0u);
      ASSERT_EQ(reinterpret_cast<uintptr_t>(items.d_tile_items) % 16, 0u);
    }
  }
}

// One place for all, however late the device is: the stream's order keeps them apart.
TEST_F(BatchUploadTest, PaddedStepsLieWhereTheLastOneDid) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 30; ++round) {
    StepLimits limits = AnyLimits();
    limits.max_logit_rows = 64;
    limits.max_sequences = Int(1, std::min(12, limits.max_rows));
    Make(limits);
    const int padded = Int(1, limits_.max_sequences);
    std::vector<Step> steps;
    std::vector<std::vector<int32_t>> drawn;
    std::deque<Snapshot> snapshots;
    std::deque<std::vector<int32_t>> drawn_back;
    std::deque<std::vector<int>> ranges, ends;
    const CudaBatch* first = nullptr;
    std::vector<std::unique_ptr<CudaBatch>> kept;
    for (int i = 0; i < 12; ++i) {
      Step step;
      const int rows = Int(1, padded);
      for (int row = 0; row < rows; ++row) {
        const int context = Int(0, limits_.max_positions - 1);
        step.blocks.emplace_back(static_cast<size_t>(context / limits_.block_tokens + 1));
        for (int32_t& block : step.blocks.back()) block = Int(3, 5000);
        step.sequences.push_back({row, 1, context, {}});
        step.tokens.push_back(Int(5, 100'000));
        step.logit_rows.push_back(row);
      }
      for (int row = 0; row < rows; ++row) step.sequences[row].blocks = step.blocks[row];
      drawn.emplace_back();
      if (Int(0, 1)) {
        for (int row = 0; row < rows; ++row) drawn.back().push_back(Int(-1, 63));
      }
      RaggedBatch given = step.batch();
      given.drawn = drawn.back();
      std::unique_ptr<CudaBatch> batch = upload_->UploadPadded(given, padded);
      ASSERT_NE(batch, nullptr) << "decode steps fit the split kernel";
      ASSERT_EQ(batch->items.size(), limits_.heads().size());
      ASSERT_EQ(batch->rows, padded);
      if (first == nullptr) first = batch.get();
      ASSERT_EQ(batch->d_tokens, first->d_tokens);
      ASSERT_EQ(batch->d_drawn, first->d_drawn);
      ASSERT_EQ(batch->d_positions, first->d_positions);
      ASSERT_EQ(batch->d_sequence_of_row, first->d_sequence_of_row);
      ASSERT_EQ(batch->d_sequences, first->d_sequences);
      for (size_t kind = 0; kind < batch->items.size(); ++kind) {
        ASSERT_EQ(batch->items[kind].d_split_items, first->items[kind].d_split_items);
        ASSERT_EQ(batch->items[kind].d_split_range, first->items[kind].d_split_range);
      }
      ASSERT_EQ(batch->d_tables, first->d_tables);
      Snapshot& snapshot = snapshots.emplace_back();
      ends.emplace_back();
      snapshot.logit_rows = step.logit_rows;
      CopyBack(snapshot.tokens, batch->d_tokens, static_cast<size_t>(padded));
      CopyBack(snapshot.positions, batch->d_positions, static_cast<size_t>(padded));
      CopyBack(snapshot.sequence_of_row, batch->d_sequence_of_row, static_cast<size_t>(padded));
      CopyBack(snapshot.sequences, batch->d_sequences, step.sequences.size());
      // The tables are at some offset in the slot.
      CopyBack(snapshot.tables, batch->d_tables,
               BatchUpload::DeviceBytes(limits_, rooms_) / sizeof(int32_t) -
                   static_cast<size_t>(batch->d_tables - upload_base()));
      int end = 0;
      for (const CudaBatch::Items& items : batch->items) {
        // Kinds lie one behind the other, where the range says.
        CopyBack(snapshot.split_items.emplace_back(), items.d_split_items + end,
                 static_cast<size_t>(items.split_items));
        snapshot.tile_items.emplace_back();
        ends.back().push_back(end);
        end += items.split_items;
        ends.back().push_back(end);
      }
      CopyBack(drawn_back.emplace_back(), batch->d_drawn, static_cast<size_t>(padded));
      CopyBack(ranges.emplace_back(), batch->items.front().d_split_range, 2 * batch->items.size());
      kept.push_back(std::move(batch));
      steps.push_back(std::move(step));
    }
    runtime_.Synchronize(stream_);
    for (size_t i = 0; i < steps.size(); ++i) {
      Snapshot& found = snapshots[i];
      const size_t rows = steps[i].tokens.size();
      drawn[i].resize(rows, kNotDrawn);
      drawn[i].resize(static_cast<size_t>(padded), kNotDrawn);
      ASSERT_EQ(drawn_back[i], drawn[i]);
      for (size_t row = rows; row < static_cast<size_t>(padded); ++row) {
        ASSERT_EQ(found.tokens[row], 0);
        ASSERT_EQ(found.positions[row], -1) << "padding writes no KV";
      }
      found.tokens.resize(rows);
      ASSERT_EQ(ranges[i], ends[i]);
      for (size_t s = 0; s < steps[i].sequences.size(); ++s) {
        steps[i].sequences[s].blocks = steps[i].blocks[s];
      }
      CheckSnapshot(steps[i], found);
      ASSERT_FALSE(HasFatalFailure()) << "round " << round << ", step " << i;
    }
  }
}

// The first row's history alone is more than a batch takes along: the draws go another way.
TEST_F(BatchUploadTest, DrawsWithALongHistoryDoNotComeAlong) {
  StepLimits limits;
  limits.max_rows = limits.max_sequences = limits.max_logit_rows = 2;
  limits.max_positions = 40'000;
  limits.query_heads = limits.kv_heads = 1;
  limits.head_dim = 64;
  limits.block_tokens = 16;
  Make(limits);
  const std::vector<int32_t> tokens = {1, 2}, logit_rows = {0, 1}, blocks = {2};
  const std::vector<SequenceRows> sequences = {{0, 1, 0, blocks}, {1, 1, 0, blocks}};
  std::vector<int32_t> history(40'000, 7);
  std::vector<SampleRow> draws(2);
  draws[1].logit_row = 1;
  RaggedBatch batch = {tokens, sequences, logit_rows};
  batch.draws = draws;
  for (SampleRow& row : draws) {
    EXPECT_NE(upload_->UploadPadded(batch, 2)->d_draws, nullptr);
    row.tokens = history;
    row.repetition_penalty = 1.1f;
    const std::unique_ptr<CudaBatch> uploaded = upload_->UploadPadded(batch, 2);
    ASSERT_NE(uploaded, nullptr);
    EXPECT_EQ(uploaded->d_draws, nullptr);
    row.tokens = {};
  }
}
TEST_F(BatchUploadTest, AStepForTheTileKernelIsNotPadded) {
  StepLimits limits;
  limits.max_rows = limits.max_sequences = 2;
  limits.max_positions = 64;
  limits.query_heads = 40;
  limits.kv_heads = 1;
  limits.head_dim = 64;
  limits.block_tokens = 16;
  Make(limits);
  const std::vector<int32_t> tokens = {1}, rows = {0}, blocks = {2};
  const std::vector<SequenceRows> sequences = {{0, 1, 0, blocks}};
  EXPECT_EQ(upload_->UploadPadded({tokens, sequences, rows}, 2), nullptr);
}

class BatchUploadDeathTest : public BatchUploadTest {
 protected:
  BatchUploadDeathTest() {
    StepLimits limits;
    limits.max_rows = 8;
    limits.max_sequences = 2;
    limits.max_positions = 64;
    limits.query_heads = limits.kv_heads = 1;
    limits.head_dim = 64;
    limits.block_tokens = 16;
    Make(limits);
  }
  // Two sequences of two rows.
  Step Good() {
    Step step;
    step.tokens = {1, 2, 3, 4};
    step.blocks = {{7, 8}, {9}};
    step.sequences = {{0, 2, 20, step.blocks[0]}, {2, 2, 0, step.blocks[1]}};
    step.logit_rows = {1, 3};
    return step;
  }
};

TEST_F(BatchUploadDeathTest, ABatchKeepsToTheLimits) {
  Step step = Good();
  upload_->Upload(step.batch());
  step.tokens.resize(9);
  EXPECT_DEATH(upload_->Upload(step.batch()), "9 rows");
  step = Good();
  step.tokens.clear();
  EXPECT_DEATH(upload_->Upload(step.batch()), "0 rows");
  step = Good();
  step.tokens.push_back(5);
  EXPECT_DEATH(upload_->Upload(step.batch()), "CHECK failed");  // a row of no sequence
  step = Good();
  step.tokens.pop_back();
  EXPECT_DEATH(upload_->Upload(step.batch()), "CHECK failed");  // a row without a token
  step = Good();
  step.sequences[1].first_row = 3;
  EXPECT_DEATH(upload_->Upload(step.batch()), "CHECK failed");
  step = Good();
  step.sequences[0].row_count = 0;
  EXPECT_DEATH(upload_->Upload(step.batch()), "0 rows behind");
  step = Good();
  step.sequences[1].blocks = {};
  EXPECT_DEATH(upload_->Upload(step.batch()), "blocks for 2 tokens");
  step = Good();
  const std::vector<int32_t> many(10);
  step.sequences[0].context = 63;
  step.sequences[0].blocks = many;
  EXPECT_DEATH(upload_->Upload(step.batch()), "2 rows behind 63 tokens");
  step = Good();
  step.sequences[1].context = -1;
  EXPECT_DEATH(upload_->Upload(step.batch()), "2 rows behind -1 tokens");
  step = Good();
  step.sequences = {{0, 2, 20, step.blocks[0]}, {2, 1, 0, step.blocks[1]}, {3, 1, 0, many}};
  EXPECT_DEATH(upload_->Upload(step.batch()), "3 against 2");
  for (const int32_t row : {-1, 4}) {
    step = Good();
    step.logit_rows = {row};
    EXPECT_DEATH(upload_->Upload(step.batch()), "logit row");
  }
}

TEST_F(BatchUploadDeathTest, SlotsAreFew) {
  const Step step = Good();
  std::vector<std::unique_ptr<CudaBatch>> live;
  for (int i = 0; i < BatchUpload::kSlots; ++i) live.push_back(upload_->Upload(step.batch()));
  EXPECT_DEATH(upload_->Upload(step.batch()), "more than 4 batches");
  live.pop_back();
  live.push_back(upload_->Upload(step.batch()));
}

}  // namespace
}  // namespace baton::backend::cuda
