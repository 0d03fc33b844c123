// The attention kernels, run lane by lane on the CPU: against a reference in double over random
// shapes, and against one another, bit by bit.
#include "common/backend/cuda/kernels/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "common/backend/cuda/kernels/index_maps.h"
#include "common/backend/cuda/steps/attention_plan.h"
#include "tests/common/backend/cuda/kernels/kernel_test.h"

namespace baton::backend::cuda {
namespace {

struct AttentionShape {
  int kv_heads = 1, group = 1, head_dim = 64, block_tokens_log2 = 4, window = 0;
  DType dtype = DType::kF16;
};

float Wide(uint16_t bits, DType dtype) {
  return dtype == DType::kF16 ? Half::ToF32(bits) : BFloat16::ToF32(bits);
}
uint16_t Narrowed(float value, DType dtype) {
  return dtype == DType::kF16 ? Half::FromF32(value) : BFloat16::FromF32(value);
}

enum class Use { kSplit, kTile, kPlan };

// Sequences in scattered blocks of a pool that holds NaNs wherever no token is.
class Sequences {
 public:
  Sequences(const AttentionShape& shape, const std::vector<int>& lengths, uint64_t seed)
      : shape_(shape), lengths_(lengths), random_(seed) {
    const int block_tokens = 1 << shape.block_tokens_log2;
    int blocks = 0;
    for (int length : lengths) {
      first_block_.push_back(blocks);
      blocks += (length + block_tokens - 1) / block_tokens;
    }
    tables_.resize(static_cast<size_t>(blocks));
    std::iota(tables_.begin(), tables_.end(), 1);  // block 0 stays all NaN
    std::shuffle(tables_.begin(), tables_.end(), random_);
    chunk_ = size_t{2} * static_cast<size_t>(shape.kv_heads * block_tokens * shape.head_dim);
    pool_.assign((static_cast<size_t>(blocks) + 1) * 2 * chunk_, 0xffff);
    const int query_heads = shape.kv_heads * shape.group;
    std::normal_distribution<float> normal(0, 1);
    for (size_t s = 0; s < lengths.size(); ++s) {
      q_.emplace_back(static_cast<size_t>(lengths[s] * query_heads * shape.head_dim));
      for (float& value : q_.back()) value = 2 * normal(random_);
      for (int token = 0; token < lengths[s]; ++token) {
        for (int part = 0; part < 2; ++part) {
          for (int head = 0; head < shape.kv_heads; ++head) {
            for (int i = 0; i < shape.head_dim; ++i) {
              At(static_cast<int>(s), token, part, head)[i] =
                  Narrowed(normal(random_), shape.dtype);
            }
          }
        }
      }
    }
  }

  struct Part {
    int sequence, context, count;
  };

  // Results of all parts' rows, one behind the other, as 16-bit patterns.
  std::vector<uint16_t> Run(const std::vector<Part>& parts, Use use) {
    const int width = shape_.kv_heads * shape_.group * shape_.head_dim;
    std::vector<SequenceEntry> entries;
    std::vector<float> q;
    int rows = 0;
    for (const Part& part : parts) {
      entries.push_back(
          {rows, part.count, part.context, first_block_[static_cast<size_t>(part.sequence)]});
      const auto& all = q_[static_cast<size_t>(part.sequence)];
      q.insert(q.end(), all.begin() + int64_t{part.context} * width,
               all.begin() + int64_t{part.context + part.count} * width);
      rows += part.count;
    }
    AttentionRoom room = RoomFor(rows, static_cast<int>(parts.size()), 1 << 20, shape_.group, 4096);
    if (use == Use::kTile) room.partials = 0;
    const AttentionPlan plan = PlanAttention(entries, shape_.group, room);
    EXPECT_TRUE(use != Use::kSplit || plan.tile_items.empty());
    EXPECT_TRUE(use != Use::kTile || plan.split_items.empty());
    const int dim = PaddedDim(shape_.head_dim);
    std::vector<Vec16> partials(static_cast<size_t>(plan.partials * shape_.kv_heads) *
                                static_cast<size_t>(PartialFloats(dim)) / 4);
    if (!partials.empty()) std::memset(partials.data(), 0xff, partials.size() * 16);
    std::vector<unsigned> counters(
        static_cast<size_t>(plan.row_tiles * shape_.kv_heads * CounterCount(dim)));
    std::vector<float> totals(plan.tile_items.size() * static_cast<size_t>(shape_.kv_heads) *
                              static_cast<size_t>(TotalFloats(dim)));
    std::vector<Vec16> out(static_cast<size_t>(rows * width) / 8 + 1);
    std::memset(out.data(), 0xff, out.size() * 16);
    AttentionLaunch launch = {};
    launch.q = q.data();
    launch.q_stride = launch.out_stride = width;
    launch.out = out.data();
    launch.layer = reinterpret_cast<const std::byte*>(pool_.data() + chunk_);  // layer 1 of 2
    launch.block_stride_bytes = static_cast<int64_t>(2 * chunk_ * 2);
    launch.block_tokens_log2 = shape_.block_tokens_log2;
    launch.kv_heads = shape_.kv_heads;
    launch.group = shape_.group;
    launch.head_dim = shape_.head_dim;
    launch.scale = 1 / std::sqrt(static_cast<float>(shape_.head_dim));
    launch.window = shape_.window;
    launch.sequences = entries.data();
    launch.tables = tables_.data();
    launch.partials = reinterpret_cast<float*>(partials.data());
    launch.counters = counters.data();
    launch.totals = totals.data();
    const bool async = MultipliesBFloat16() && emulated::GetOptions().compute_capability >= 80;
    launch.tile_stages = async && dim > 64 ? std::uniform_int_distribution<int>(1, 2)(random_) : 1;
    launch.items = plan.split_items.data();
    LaunchAttentionSplit(launch, shape_.dtype, static_cast<int>(plan.split_items.size()), nullptr);
    launch.items = plan.tile_items.data();
    LaunchAttentionTile(launch, shape_.dtype, static_cast<int>(plan.tile_items.size()), nullptr);
    for (unsigned counter : counters) EXPECT_EQ(counter, 0u) << "a counter did not reset itself";
    const auto* bits = reinterpret_cast<const uint16_t*>(out.data());
    return std::vector<uint16_t>(bits, bits + int64_t{rows} * width);
  }

  // Of one query position, in double, from what the pool holds.
  std::vector<double> Reference(int sequence, int position) {
    const int d = shape_.head_dim;
    std::vector<double> out;
    const int first = shape_.window > 0 ? std::max(0, position - shape_.window + 1) : 0;
    const size_t width = static_cast<size_t>(shape_.kv_heads * shape_.group * d);
    const float* q = &q_[static_cast<size_t>(sequence)][static_cast<size_t>(position) * width];
    for (int head = 0; head < shape_.kv_heads * shape_.group; ++head) {
      std::vector<double> scores;
      for (int token = first; token <= position; ++token) {
        const uint16_t* k = At(sequence, token, 0, head / shape_.group);
        double score = 0;
        for (int i = 0; i < d; ++i) {
          score += static_cast<double>(q[head * d + i]) * static_cast<double>(Value(k[i]));
        }
        scores.push_back(score / std::sqrt(static_cast<double>(d)));
      }
      const double highest = *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      std::vector<double> result(static_cast<size_t>(d));
      for (int token = first; token <= position; ++token) {
        const double weight = std::exp(scores[static_cast<size_t>(token - first)] - highest);
        sum += weight;
        const uint16_t* v = At(sequence, token, 1, head / shape_.group);
        for (int i = 0; i < d; ++i) {
          result[static_cast<size_t>(i)] += weight * static_cast<double>(Value(v[i]));
        }
      }
      for (double& value : result) out.push_back(value / sum);
    }
    return out;
  }

  float Value(uint16_t bits) const { return Wide(bits, shape_.dtype); }

 private:
  uint16_t* At(int sequence, int token, int part, int head) {
    const int block_tokens = 1 << shape_.block_tokens_log2;
    const int block = tables_[static_cast<size_t>(first_block_[static_cast<size_t>(sequence)] +
                                                  token / block_tokens)];
    return pool_.data() + (static_cast<size_t>(block) * 2 + 1) * chunk_ +
           static_cast<size_t>(
               ((part * shape_.kv_heads + head) * block_tokens + token % block_tokens) *
               shape_.head_dim);
  }

  const AttentionShape shape_;
  const std::vector<int> lengths_;
  std::mt19937_64 random_;
  std::vector<int> first_block_;
  std::vector<int32_t> tables_;
  size_t chunk_ = 0;  // elements
  std::vector<uint16_t> pool_;
  std::vector<std::vector<float>> q_;
};

class CudaAttentionTest : public ::testing::Test {
 protected:
  void TearDown() override { emulated::SetOptions({}); }
  int Int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  AttentionShape RandomShape() {
    AttentionShape shape;
    shape.kv_heads = Int(1, 2);
    shape.group = Int(1, 8);
    shape.head_dim = 8 * Int(1, 32);
    shape.block_tokens_log2 = Int(4, 5);
    shape.window = Int(0, 2) == 0 ? Int(1, 400) : 0;
    shape.dtype = Int(0, 1) || !MultipliesBFloat16() ? DType::kF16 : DType::kBF16;
    // bfloat16 is computed from sm_80 on.
    emulated::SetOptions({.compute_capability = shape.dtype == DType::kF16 && Int(0, 1) ? 75 : 80,
                          .seed = random_()});
    return shape;
  }

  const uint64_t seed_ = std::random_device()();
  std::mt19937_64 random_{seed_};
};

TEST_F(CudaAttentionTest, EqualsTheReference) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 40; ++round) {
    const AttentionShape shape = RandomShape();
    SCOPED_TRACE(::testing::Message() << "round " << round << ": " << shape.kv_heads << " x "
                                      << shape.group << " heads of " << shape.head_dim
                                      << ", window " << shape.window << ", " << Name(shape.dtype));
    std::vector<int> lengths;
    std::vector<Sequences::Part> parts;
    for (int s = Int(1, 3); s > 0; --s) {
      lengths.push_back(Int(1, Int(0, 3) == 0 ? 1100 : 100));
      const int count = Int(0, 1) ? 1 : Int(1, std::min(lengths.back(), 40));
      parts.push_back({static_cast<int>(lengths.size()) - 1, lengths.back() - count, count});
    }
    Sequences sequences(shape, lengths, random_());
    const std::vector<uint16_t> found = sequences.Run(parts, Use::kPlan);
    // Of Q, the weights and the result rounded to the dtype.
    const double tolerance = shape.dtype == DType::kF16 ? 6e-3 : 5e-2;
    size_t at = 0;
    for (const auto& part : parts) {
      for (int row = 0; row < part.count; ++row) {
        for (const double expected : sequences.Reference(part.sequence, part.context + row)) {
          ASSERT_NEAR(sequences.Value(found[at]), expected, tolerance)
              << "element " << at << ", position " << part.context + row << " of sequence "
              << part.sequence;
          ++at;
        }
      }
    }
    ASSERT_EQ(at, found.size());
  }
}

// The promise: a row's bits depend neither on the kernel, nor on how its prompt is cut, nor on what
// else is in the step, nor on the order in which blocks and warps run.
TEST_F(CudaAttentionTest, ARowIsTheSameHoweverItIsComputed) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 12; ++round) {
    AttentionShape shape = RandomShape();
    SCOPED_TRACE(::testing::Message()
                 << "round " << round << ": " << shape.kv_heads << " x " << shape.group
                 << " heads of " << shape.head_dim << ", window " << shape.window);
    const int length = Int(2, 700), other = Int(1, 300);
    Sequences sequences(shape, {length, other}, random_());
    const int first = std::max(0, length - Int(1, 40));
    const std::vector<uint16_t> whole = sequences.Run({{0, first, length - first}}, Use::kTile);
    // In chunks, in the same step as another sequence, by whichever kernel.
    std::vector<uint16_t> chunked;
    for (int at = first; at < length;) {
      const int count = Int(1, length - at);
      const bool with_other = Int(0, 1);
      std::vector<Sequences::Part> parts = {{0, at, count}};
      if (with_other) parts.insert(parts.begin(), {1, 0, other});
      emulated::Options options = emulated::GetOptions();
      options.seed = random_();
      emulated::SetOptions(options);
      const std::vector<uint16_t> found = sequences.Run(parts, Int(0, 1) ? Use::kPlan : Use::kTile);
      const size_t size =
          whole.size() / static_cast<size_t>(length - first) * static_cast<size_t>(count);
      chunked.insert(chunked.end(), found.end() - static_cast<ptrdiff_t>(size), found.end());
      at += count;
    }
    ASSERT_EQ(chunked, whole);
    // One token a step, by the split kernel.
    std::vector<uint16_t> single;
    for (int at = first; at < length; ++at) {
      const std::vector<uint16_t> found = sequences.Run({{0, at, 1}}, Use::kSplit);
      single.insert(single.end(), found.begin(), found.end());
    }
    ASSERT_EQ(single, whole);
  }
}

TEST_F(CudaAttentionTest, StagesAreAsManyAsTwoBlocksHaveRoomFor) {
  constexpr size_t kT4 = size_t{64} << 10, kL4 = size_t{100} << 10, kA100 = size_t{164} << 10;
  EXPECT_EQ(TileStages(128, 75, kT4), 1);
  EXPECT_EQ(TileStages(128, 75, kA100), 1) << "made for a T4, it copies through registers";
  EXPECT_EQ(TileStages(128, 89, kL4), 1);
  EXPECT_EQ(TileStages(128, 80, kA100), 2);
  EXPECT_EQ(TileStages(72, 90, size_t{228} << 10), 2);
  EXPECT_EQ(TileStages(256, 80, kA100), 2);
  EXPECT_EQ(TileStages(64, 90, kA100), 1);
  EXPECT_LE(TileSharedBytes(256, 2), kMostSharedBytes);
}

TEST_F(CudaAttentionTest, ABrokenValueIsNotPassedOver) {
  AttentionShape shape;
  shape.head_dim = 64;
  Sequences sequences(shape, {5}, 1);
  const std::vector<uint16_t> found = sequences.Run({{0, 4, 1}}, Use::kPlan);
  for (uint16_t bits : found) ASSERT_TRUE(std::isfinite(sequences.Value(bits)));
}

}  // namespace
}  // namespace baton::backend::cuda
