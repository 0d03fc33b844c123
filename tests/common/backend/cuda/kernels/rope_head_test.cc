// Split attention fused with the write of K and V, against the two launches that it stands for, bit
// by bit: the results, and all of the pool.
#include "common/backend/cuda/kernels/rope_head.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/backend/cuda/kernels/attention.h"
#include "common/backend/cuda/kernels/rope_write.h"
#include "common/backend/cuda/steps/attention_plan.h"
#include "tests/common/backend/cuda/kernels/kernel_test.h"

namespace baton::backend::cuda {
namespace {

// A decode step of one layer: sequences of one row each behind their contexts, and padding.
struct FusedShape {
  int kv_heads = 1, group = 1, head_dim = 64, half = 32, block_tokens_log2 = 4, window = 0;
  int gap = 0;  // columns between the queries of two heads
  int padding = 0;
  bool norms_q = false, norms_k = false, norm_v = false, v_is_k = false, q_only = false;
  bool scales_q = false, sinks = false;
  float score_cap = 0;
  DType dtype = DType::kF16;
  KvFormat format = KvFormat::kPlain;
  std::vector<int> contexts;

  int query_heads() const { return kv_heads * group; }
  int width() const { return query_heads() * head_dim; }
  int qkv_width() const {
    return query_heads() * (head_dim + gap) + (q_only ? 0 : v_is_k ? 1 : 2) * kv_heads * head_dim;
  }
  int rows() const { return static_cast<int>(contexts.size()) + padding; }
  int64_t row_bytes() const { return KvRowBytes(format, dtype, head_dim); }
  int64_t head_bytes() const {
    return (row_bytes() + KvRowParameterBytes(format)) << block_tokens_log2;
  }
  int64_t chunk_bytes() const { return 2 * kv_heads * head_bytes(); }
};

std::string Describe(const FusedShape& shape) {
  std::string contexts;
  for (const int context : shape.contexts) absl::StrAppend(&contexts, " ", context);
  return absl::StrCat(shape.kv_heads, " x ", shape.group, " heads of ", shape.head_dim, ", half ",
                      shape.half, ", window ", shape.window, ", ", Name(shape.dtype), ", format ",
                      static_cast<int>(shape.format), ", norms ", shape.norms_q, shape.norms_k,
                      shape.norm_v, ", v_is_k ", shape.v_is_k, ", q_only ", shape.q_only, ", cap ",
                      shape.score_cap, ", sinks ", shape.sinks, ", gap ", shape.gap, ", behind",
                      contexts);
}

class CudaRopeHeadTest : public KernelTest {
 protected:
  // Every kernel in turn.
  void MakeShape(int turn) {
    shape_ = {};
    shape_.format = static_cast<KvFormat>(turn % 4);
    constexpr int kDims[] = {64, 128, 256, 80, 96};
    const int kind = turn / 4 % 6;
    shape_.head_dim = kind < 5 ? kDims[kind] : 8 * Int(1, 32);
    shape_.kv_heads = Int(1, 3);
    shape_.group = Coin() ? Int(1, 8) : Int(1, 16);
    shape_.half = Coin() ? shape_.head_dim / 8 * 4 : 4 * Int(0, shape_.head_dim / 8);
    shape_.block_tokens_log2 = Int(4, 7);
    shape_.gap = Coin() ? 0 : 8 * Int(1, 8);
    shape_.padding = Int(0, 3);
    shape_.norms_q = Coin();
    shape_.norms_k = Int(0, 3) == 0 ? !shape_.norms_q : shape_.norms_q;
    shape_.norm_v = Int(0, 3) == 0;
    shape_.v_is_k = Int(0, 3) == 0;
    shape_.q_only = Int(0, 4) == 0;
    shape_.scales_q = Coin();
    if (Int(0, 2) == 0) {
      shape_.sinks = Coin();
      if (!shape_.sinks || Coin()) shape_.score_cap = Coin() ? 3.0f : 50.0f;
    }
    constexpr int kEdges[] = {0, 16, 63, 64, 128, 255, 256, 257, 320, 511, 512};
    const auto near = [&] { return std::max(0, kEdges[Int(0, 10)] + Int(-1, 1)); };
    for (int s = Int(1, 4); s > 0; --s) shape_.contexts.push_back(Coin() ? near() : Int(0, 300));
    shape_.window = Coin() ? 0 : Coin() ? near() : Int(1, 100);
    shape_.dtype = MultipliesBFloat16() && Coin() ? DType::kBF16 : DType::kF16;
    const bool old = shape_.dtype == DType::kF16 && Coin();
    emulated::SetOptions({.compute_capability = old ? 75 : 80, .seed = random_()});
  }

  std::vector<float> Values(int count, float mean, float deviation) {
    std::vector<float> values(static_cast<size_t>(count));
    for (float& value : values) value = mean + Normal(deviation);
    return values;
  }

  // Tables, and a pool that holds NaNs where no token is.
  void MakePool() {
    const int log2 = shape_.block_tokens_log2;
    entries_.clear();
    int blocks = 0;
    for (const int context : shape_.contexts) {
      entries_.push_back({static_cast<int>(entries_.size()), 1, context, blocks});
      blocks += (context >> log2) + 1;
    }
    tables_.resize(static_cast<size_t>(blocks));
    std::iota(tables_.begin(), tables_.end(), 1);
    std::shuffle(tables_.begin(), tables_.end(), random_);
    pool_.assign(static_cast<size_t>((blocks + 1) * 2 * shape_.chunk_bytes()), 0xff);
    for (const SequenceEntry& entry : entries_) {
      // With q_only another layer has written the row's own token, too.
      for (int token = 0; token < entry.context + (shape_.q_only ? 1 : 0); ++token) {
        for (int head = 0; head < 2 * shape_.kv_heads; ++head) FillSlot(entry, token, head);
      }
    }
  }
  // K's heads, then V's.
  void FillSlot(const SequenceEntry& entry, int token, int head) {
    const int log2 = shape_.block_tokens_log2, slot = token & ((1 << log2) - 1);
    const int block = tables_[static_cast<size_t>(entry.first_block + (token >> log2))];
    uint8_t* const of_head =
        pool_.data() + (block * 2 + 1) * shape_.chunk_bytes() + head * shape_.head_bytes();
    uint8_t* const row = of_head + slot * shape_.row_bytes();
    if (shape_.format == KvFormat::kPlain) {
      for (int i = 0; i < shape_.head_dim; ++i) {
        const uint16_t bits = Round16(Normal(), shape_.dtype);
        std::memcpy(row + 2 * i, &bits, 2);
      }
      return;
    }
    for (int64_t i = 0; i < shape_.row_bytes(); ++i) {
      row[i] = static_cast<uint8_t>(Int(0, 255));
      if (shape_.format == KvFormat::kFp8 && (row[i] & 0x7f) == 0x7f) row[i] = 0;  // a NaN
    }
    const uint16_t by[] = {Half::FromF32(0.01f + std::fabs(Normal(0.01f))),
                           Half::FromF32(Normal())};
    std::memcpy(of_head + (shape_.row_bytes() << log2) + slot * 4, by, 4);
  }

  struct Result {
    std::vector<uint16_t> out;  // [rows, width]
    std::vector<uint8_t> pool;
  };
  void MakeOperands() {
    const int positions = *std::max_element(shape_.contexts.begin(), shape_.contexts.end()) + 1;
    qkv_.clear();
    for (size_t row = 0; row < shape_.contexts.size(); ++row) {
      const std::vector<float> values = Values(shape_.qkv_width(), 0, 1.5f);
      qkv_.insert(qkv_.end(), values.begin(), values.end());
    }
    cosine_.clear();
    sine_.clear();
    for (int i = 0; i < positions * shape_.half; ++i) {
      const float angle = Normal(3);
      cosine_.push_back(std::cos(angle));
      sine_.push_back(std::sin(angle));
    }
    q_norm_ = Values(shape_.head_dim, 1, 0.2f);
    k_norm_ = Values(shape_.head_dim, 1, 0.2f);
    query_scale_ = Values(positions, 1, 0.1f);
    sinks_ = Values(shape_.query_heads(), 0, 3);
  }

  Result Run(bool fused) {
    const int64_t stride = shape_.qkv_width() + 8 * Int(0, 2);
    const int64_t out_stride = shape_.width() + 8 * Int(0, 2);
    const auto rows = static_cast<size_t>(shape_.rows());
    DeviceArray<float> qkv(rows * static_cast<size_t>(stride));
    for (size_t row = 0; row < shape_.contexts.size(); ++row) {  // padding stays NaN
      std::copy_n(qkv_.begin() + static_cast<ptrdiff_t>(row) * shape_.qkv_width(),
                  shape_.qkv_width(), qkv.data() + row * static_cast<size_t>(stride));
    }
    const DeviceArray<float> cosine(cosine_), sine(sine_), q_norm(q_norm_), k_norm(k_norm_),
        query_scale(query_scale_), sinks(sinks_);
    DeviceArray<float> q(rows * static_cast<size_t>(shape_.width()));
    DeviceArray<uint16_t> out(rows * static_cast<size_t>(out_stride));
    DeviceArray<uint8_t> pool(pool_);
    const int64_t block_stride = 2 * shape_.chunk_bytes();
    BlockMemory memory(reinterpret_cast<std::byte*>(pool.data()),
                       static_cast<int64_t>(tables_.size()) + 1, block_stride, Int(0, 3) == 0);
    const std::vector<int32_t> tables = memory.Numbers(tables_);
    std::vector<int32_t> positions = shape_.contexts, sequence_of_row(rows);
    positions.resize(rows, -1);
    std::iota(sequence_of_row.begin(), sequence_of_row.end(), 0);
    const AttentionRoom room = RoomFor(shape_.rows(), shape_.rows(), 1 << 20, shape_.group, 4096);
    const AttentionPlan plan = PlanAttention(entries_, shape_.group, room);
    EXPECT_TRUE(plan.tile_items.empty());
    DeviceArray<float> partials(static_cast<size_t>(plan.partials * shape_.kv_heads *
                                                    PartialFloats(PaddedDim(shape_.head_dim))));
    std::vector<unsigned> counters(static_cast<size_t>(plan.row_tiles * shape_.kv_heads));
    // Items of other heads may come first.
    AttentionItem of_others = {};
    of_others.sequence = -1'000'000;
    std::vector<AttentionItem> items(static_cast<size_t>(Int(0, 2)), of_others);
    const auto first = static_cast<int>(items.size());
    items.insert(items.end(), plan.split_items.begin(), plan.split_items.end());
    const int range[] = {first, static_cast<int>(items.size())};
    const int blocks = Int(1, range[1] - range[0]);  // they take turns

    HeadSource heads;
    heads.qkv = qkv.data();
    heads.qkv_stride = stride;
    heads.q_stride = shape_.head_dim + shape_.gap;
    heads.q_norm = shape_.norms_q ? q_norm.data() : nullptr;
    heads.k_norm = shape_.norms_k ? k_norm.data() : nullptr;
    heads.norm_v = shape_.norm_v;
    heads.v_is_k = shape_.v_is_k;
    heads.q_only = shape_.q_only;
    heads.norm_eps = 1e-6f;
    heads.cosine = shape_.half > 0 ? cosine.data() : nullptr;
    heads.sine = shape_.half > 0 ? sine.data() : nullptr;
    heads.half = shape_.half;
    heads.query_scale = shape_.scales_q ? query_scale.data() : nullptr;
    AttentionLaunch attend = {};
    attend.out = out.data();
    attend.out_stride = out_stride;
    attend.layer = memory.base() + shape_.chunk_bytes();  // layer 1 of 2
    attend.block_stride_bytes = block_stride;
    attend.block_tokens_log2 = shape_.block_tokens_log2;
    attend.kv_heads = shape_.kv_heads;
    attend.group = shape_.group;
    attend.head_dim = shape_.head_dim;
    attend.scale = 1 / std::sqrt(static_cast<float>(shape_.head_dim));
    attend.window = shape_.window;
    attend.score_cap = shape_.score_cap;
    attend.sinks = shape_.sinks ? sinks.data() : nullptr;
    attend.sequences = entries_.data();
    attend.tables = tables.data();
    attend.items = items.data();
    attend.item_range = range;
    attend.partials = partials.data();
    attend.counters = counters.data();
    attend.kv_format = shape_.format;
    if (fused) {
      attend.heads = heads;
    } else {
      attend.q = q.data();
      attend.q_stride = shape_.width();
      RopeWriteLaunch write = {};
      write.heads = heads;
      write.q_out = q.data();
      write.q_out_stride = shape_.width();
      write.layer = attend.layer;
      write.block_stride_bytes = block_stride;
      write.block_tokens_log2 = shape_.block_tokens_log2;
      write.query_heads = shape_.query_heads();
      write.kv_heads = shape_.kv_heads;
      write.head_dim = shape_.head_dim;
      write.positions = positions.data();
      write.sequence_of_row = sequence_of_row.data();
      write.sequences = entries_.data();
      write.tables = tables.data();
      write.kv_format = shape_.format;
      LaunchRopeWrite(write, shape_.dtype, shape_.rows(), nullptr);
    }
    LaunchAttentionSplit(attend, shape_.dtype, blocks, nullptr);
    memory.CopyBack();
    EXPECT_TRUE(out.MarginsIntact() && pool.MarginsIntact() && q.MarginsIntact() &&
                partials.MarginsIntact());
    for (const unsigned counter : counters) EXPECT_EQ(counter, 0u);
    Result result = {{}, pool.values()};
    for (size_t row = 0; row < rows; ++row) {
      const uint16_t* const from = out.data() + row * static_cast<size_t>(out_stride);
      result.out.insert(result.out.end(), from, from + shape_.width());
      EXPECT_TRUE(std::all_of(from + shape_.width(), from + out_stride, [](uint16_t bits) {
        return bits == 0xffff;
      })) << "wrote between rows";
    }
    return result;
  }

  FusedShape shape_;
  std::vector<SequenceEntry> entries_;
  std::vector<int32_t> tables_;
  std::vector<uint8_t> pool_;
  std::vector<float> qkv_, cosine_, sine_, q_norm_, k_norm_, query_scale_, sinks_;
};

TEST_F(CudaRopeHeadTest, OneLaunchHasTheBitsOfTwo) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < Rounds(96, 24); ++round) {
    MakeShape(round);
    SCOPED_TRACE(::testing::Message() << "round " << round << ": " << Describe(shape_));
    ASSERT_TRUE(SplitFuses(shape_.group, shape_.head_dim));
    MakePool();
    MakeOperands();
    const Result expected = Run(false), found = Run(true);
    ASSERT_EQ(found.out, expected.out);
    ASSERT_TRUE(found.pool == expected.pool);
    ASSERT_EQ(found.pool == pool_, shape_.q_only);
    const size_t used = shape_.contexts.size() * static_cast<size_t>(shape_.width());
    for (size_t i = 0; i < found.out.size(); ++i) {
      if (i < used) {
        ASSERT_TRUE(std::isfinite(ToF32(&found.out[i], shape_.dtype))) << "element " << i;
      } else {
        ASSERT_EQ(found.out[i], 0xffff) << "a padding row was written";
      }
    }
  }
}

// A number that is not finite shows in the results of its sequence alone, as it does without
// fusion.
TEST_F(CudaRopeHeadTest, WhatIsNotFiniteStaysInItsSequence) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < Rounds(24, 8); ++round) {
    MakeShape(round);
    SCOPED_TRACE(::testing::Message() << "round " << round << ": " << Describe(shape_));
    shape_.contexts.resize(2, Int(0, 100));
    MakePool();
    MakeOperands();
    qkv_[static_cast<size_t>(Int(0, shape_.head_dim - 1))] = std::nanf("");
    const Result expected = Run(false), found = Run(true);
    const auto width = static_cast<size_t>(shape_.width());
    bool shows = false;
    for (size_t i = 0; i < 2 * width; ++i) {
      const bool finite = std::isfinite(ToF32(&found.out[i], shape_.dtype));
      shows = shows || !finite;
      ASSERT_TRUE(finite || i < width) << i;
      ASSERT_EQ(finite, std::isfinite(ToF32(&expected.out[i], shape_.dtype))) << i;
      if (finite) {
        ASSERT_EQ(found.out[i], expected.out[i]) << i;
      }
    }
    ASSERT_TRUE(shows);
  }
}

TEST(CudaRopeHeadUseTest, OneRowTileOfHeadsThatTheSplitKernelServes) {
  EXPECT_TRUE(SplitFuses(1, 64));
  EXPECT_TRUE(SplitFuses(16, 256));
  EXPECT_FALSE(SplitFuses(17, 64)) << "two row tiles see the new token";
  EXPECT_FALSE(SplitFuses(1, kWidestHead));
}

// Lanes without a unit of the head add nothing: the split kernel has the lanes of its widest head.
TEST(CudaRopeHeadUseTest, AKernelOfWiderHeadsHasLanesForAllUnits) {
  for (int head_dim = 8; head_dim <= 256; head_dim += 8) {
    const int lanes = HeadLanes(PaddedDim(head_dim));
    EXPECT_GE(lanes, HeadLanes(head_dim));
    EXPECT_GE(lanes * 8, head_dim);
    EXPECT_EQ(lanes * 8, PaddedDim(head_dim));
  }
}

}  // namespace
}  // namespace baton::backend::cuda
