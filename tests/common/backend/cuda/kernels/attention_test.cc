// The attention kernels, run lane by lane on the CPU: against a reference in double over random
// shapes, and against one another, bit by bit.
#include "common/backend/cuda/kernels/attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/backend/cpu/isa.h"
#include "common/backend/cpu/kernels.h"
#include "common/backend/cuda/kernels/index_maps.h"
#include "common/backend/cuda/steps/attention_plan.h"
#include "tests/common/backend/cuda/kernels/kernel_test.h"
#include "tests/testing/seed.h"

namespace baton::backend::cuda {
namespace {

struct AttentionShape {
  int kv_heads = 1, group = 1, head_dim = 64, block_tokens_log2 = 4, window = 0;
  DType dtype = DType::kF16;
  KvFormat format = KvFormat::kPlain;
  float score_cap = 0;
  bool sinks = false;
};

std::string Describe(const AttentionShape& shape) {
  return absl::StrCat(shape.kv_heads, " x ", shape.group, " heads of ", shape.head_dim, ", window ",
                      shape.window, ", ", Name(shape.dtype), ", format ",
                      static_cast<int>(shape.format), ", cap ", shape.score_cap,
                      shape.sinks ? ", sinks" : "");
}

float Wide(uint16_t bits, DType dtype) {
  return dtype == DType::kF16 ? Half::ToF32(bits) : BFloat16::ToF32(bits);
}
uint16_t Narrowed(float value, DType dtype) {
  return dtype == DType::kF16 ? Half::FromF32(value) : BFloat16::FromF32(value);
}

// Of a row of codes.
float Decoded(KvFormat format, const uint8_t* codes, int i) {
  if (format == KvFormat::kInt8) return codes[i];
  if (format == KvFormat::kInt4) return static_cast<float>(codes[i / 2] >> i % 2 * 4 & 0xf);
  const int exponent = codes[i] >> 3 & 0xf, mantissa = codes[i] & 7;  // E4M3
  const float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                    : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return codes[i] & 0x80 ? -value : value;
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
    far_ = random_() % 4 == 0;
    row_bytes_ = KvRowBytes(shape.format, shape.dtype, shape.head_dim);
    head_bytes_ = block_tokens * (row_bytes_ + KvRowParameterBytes(shape.format));
    chunk_ = 2 * shape.kv_heads * head_bytes_;
    pool_.resize(static_cast<size_t>((blocks + 1) * 2 * chunk_ + 15) / 16);
    std::memset(pool_.data(), 0xff, pool_.size() * 16);
    const auto quantize = KernelsOf(BestIsa()).quantize;
    std::vector<float> row(static_cast<size_t>(shape.head_dim));
    const int query_heads = shape.kv_heads * shape.group;
    std::normal_distribution<float> normal(0, 1);
    for (int head = 0; shape.sinks && head < query_heads; ++head) {
      sinks_.push_back(3 * normal(random_));
    }
    for (size_t s = 0; s < lengths.size(); ++s) {
      q_.emplace_back(static_cast<size_t>(lengths[s] * query_heads * shape.head_dim));
      for (float& value : q_.back()) value = 2 * normal(random_);
      for (int token = 0; token < lengths[s]; ++token) {
        for (int part = 0; part < 2; ++part) {
          for (int head = 0; head < shape.kv_heads; ++head) {
            for (float& value : row) value = normal(random_);
            const Slot slot = At(static_cast<int>(s), token, part, head);
            if (shape.format == KvFormat::kPlain) {
              for (int i = 0; i < shape.head_dim; ++i) {
                slot.elements()[i] = Narrowed(row[static_cast<size_t>(i)], shape.dtype);
              }
            } else {
              quantize(row.data(), static_cast<Codes>(shape.format), shape.head_dim, slot.row,
                       slot.scale_and_zero);
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
  // stages, row_tiles (of a warp): of the tile kernel, where it can have them; 0: any.
  std::vector<uint16_t> Run(const std::vector<Part>& parts, Use use, int stages = 0,
                            int row_tiles = 0) {
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
    std::vector<unsigned> counters(static_cast<size_t>(plan.row_tiles * shape_.kv_heads));
    std::vector<float> totals(plan.tile_items.size() * static_cast<size_t>(shape_.kv_heads) *
                              static_cast<size_t>(TotalFloats(dim)));
    std::vector<Vec16> out(static_cast<size_t>(rows * width) / 8 + 1);
    std::memset(out.data(), 0xff, out.size() * 16);
    AttentionLaunch launch = {};
    launch.q = q.data();
    launch.q_stride = launch.out_stride = width;
    launch.out = out.data();
    const int64_t stride = 2 * chunk_;
    BlockMemory memory(reinterpret_cast<std::byte*>(pool_.data()),
                       static_cast<int64_t>(tables_.size()) + 1, stride, far_);
    const std::vector<int32_t> tables = memory.Numbers(tables_);
    launch.layer = memory.base() + chunk_;  // layer 1 of 2
    launch.kv_format = shape_.format;
    launch.block_stride_bytes = stride;
    launch.block_tokens_log2 = shape_.block_tokens_log2;
    launch.kv_heads = shape_.kv_heads;
    launch.group = shape_.group;
    launch.head_dim = shape_.head_dim;
    launch.scale = 1 / std::sqrt(static_cast<float>(shape_.head_dim));
    launch.window = shape_.window;
    launch.score_cap = shape_.score_cap;
    launch.sinks = sinks_.empty() ? nullptr : sinks_.data();
    launch.sequences = entries.data();
    launch.tables = tables.data();
    launch.partials = reinterpret_cast<float*>(partials.data());
    launch.counters = counters.data();
    launch.totals = totals.data();
    const bool async = MultipliesBFloat16() && emulated::GetOptions().compute_capability >= 80;
    const bool deep = async && !IsWide(dim) && shape_.format == KvFormat::kPlain;
    const int any = std::uniform_int_distribution<int>(1, 2)(random_);
    launch.tile_stages = !deep ? 1 : stages > 0 ? stages : any;
    launch.tile_pairs = row_tiles > 0 ? row_tiles == 2 : random_() % 2 == 0;
    // As a recorded step: items of other heads come first, the range is in memory, and blocks take
    // several items.
    AttentionItem of_others = {};
    of_others.sequence = -1'000'000;
    std::vector<AttentionItem> items(static_cast<size_t>(random_() % 3), of_others);
    const auto first = static_cast<int>(items.size());
    items.insert(items.end(), plan.split_items.begin(), plan.split_items.end());
    const int range[] = {first, static_cast<int>(items.size())};
    const int split_blocks = range[1] - range[0];
    const bool records = random_() % 2 == 0;
    launch.items = records ? items.data() : plan.split_items.data();
    launch.item_range = records ? range : nullptr;
    LaunchAttentionSplit(launch, shape_.dtype, records ? (split_blocks + 1) / 2 : split_blocks,
                         nullptr);
    launch.item_range = nullptr;
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
        const std::vector<float>& k = Values(sequence, token, 0, head / shape_.group);
        double score = 0;
        for (int i = 0; i < d; ++i) {
          score +=
              static_cast<double>(q[head * d + i]) * static_cast<double>(k[static_cast<size_t>(i)]);
        }
        score /= std::sqrt(static_cast<double>(d));
        const auto cap = static_cast<double>(shape_.score_cap);
        scores.push_back(cap == 0 ? score : cap * std::tanh(score / cap));
      }
      double highest = *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      if (!sinks_.empty()) {
        const auto sink = static_cast<double>(sinks_[static_cast<size_t>(head)]);
        highest = std::max(highest, sink);
        sum = std::exp(sink - highest);
      }
      std::vector<double> result(static_cast<size_t>(d));
      for (int token = first; token <= position; ++token) {
        const double weight = std::exp(scores[static_cast<size_t>(token - first)] - highest);
        sum += weight;
        const std::vector<float>& v = Values(sequence, token, 1, head / shape_.group);
        for (int i = 0; i < d; ++i) {
          result[static_cast<size_t>(i)] += weight * static_cast<double>(v[static_cast<size_t>(i)]);
        }
      }
      for (double& value : result) out.push_back(value / sum);
    }
    return out;
  }

  float Value(uint16_t bits) const { return Wide(bits, shape_.dtype); }
  void BreakQuery(int sequence, int position) {
    const int width = shape_.kv_heads * shape_.group * shape_.head_dim;
    q_[static_cast<size_t>(sequence)][static_cast<size_t>(position * width)] = std::nanf("");
  }
  void SetSinks(float sink) { std::fill(sinks_.begin(), sinks_.end(), sink); }

 private:
  struct Slot {
    uint8_t* row;
    uint16_t* scale_and_zero;
    uint16_t* elements() const { return reinterpret_cast<uint16_t*>(row); }
  };
  Slot At(int sequence, int token, int part, int head) {
    const int block_tokens = 1 << shape_.block_tokens_log2;
    const int block = tables_[static_cast<size_t>(first_block_[static_cast<size_t>(sequence)] +
                                                  token / block_tokens)];
    uint8_t* of_head = reinterpret_cast<uint8_t*>(pool_.data()) + (block * 2 + 1) * chunk_ +
                       (part * shape_.kv_heads + head) * head_bytes_;
    const int slot = token % block_tokens;
    return {of_head + slot * row_bytes_,
            reinterpret_cast<uint16_t*>(of_head + block_tokens * row_bytes_) + slot * 2};
  }
  // What kernels multiply with: codes become elements of 16 bits.
  const std::vector<float>& Values(int sequence, int token, int part, int head) {
    const Slot slot = At(sequence, token, part, head);
    std::vector<float>& values = values_[slot.row];
    if (!values.empty()) return values;
    for (int i = 0; i < shape_.head_dim; ++i) {
      if (shape_.format == KvFormat::kPlain) {
        values.push_back(Value(slot.elements()[i]));
      } else {
        const float value =
            Decoded(shape_.format, slot.row, i) * Half::ToF32(slot.scale_and_zero[0]) +
            Half::ToF32(slot.scale_and_zero[1]);
        values.push_back(Value(Narrowed(value, shape_.dtype)));
      }
    }
    return values;
  }

  const AttentionShape shape_;
  const std::vector<int> lengths_;
  std::mt19937_64 random_;
  std::vector<int> first_block_;
  std::vector<int32_t> tables_;
  int64_t row_bytes_ = 0, head_bytes_ = 0, chunk_ = 0;
  bool far_ = false;  // the kernels find the blocks in a pool of 200 GB
  std::vector<Vec16> pool_;
  std::unordered_map<const uint8_t*, std::vector<float>> values_;
  std::vector<std::vector<float>> q_;
  std::vector<float> sinks_;  // [query heads], or none
};

class CudaAttentionTest : public ::testing::Test {
 protected:
  void TearDown() override { emulated::SetOptions({}); }
  int Int(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }
  bool Coin() { return Int(0, 1) == 1; }
  float Of(const std::vector<float>& values) {
    return values[static_cast<size_t>(Int(0, static_cast<int>(values.size()) - 1))];
  }
  // So many in turn have every kernel: formats, elements, sizes of heads, heads that fill their
  // size and that do not, which the variants do not tell apart; float16 first below 8.0, then from
  // there on.
  static constexpr int kShapes = 48, kVariants = kShapes / 2;
  AttentionShape RandomShape(int turn, bool variant) {
    AttentionShape shape;
    shape.format = static_cast<KvFormat>(turn % 4);
    shape.kv_heads = Int(1, 2);
    shape.group = Int(1, 8);
    const int most = turn / 8 % 3 == 0 ? 8 : turn / 8 % 3 == 1 ? 16 : 32;
    const bool fills = turn / 24 % 2 == 0;
    shape.head_dim = 8 * (fills ? most : Int(most == 8 ? 1 : most / 2 + 1, most - 1));
    shape.block_tokens_log2 = Int(4, 7);
    shape.window = Int(0, 2) == 0 ? Int(1, 400) : 0;
    if (variant) MakeVariant(shape);
    shape.dtype = turn % 8 < 4 || !MultipliesBFloat16() ? DType::kF16 : DType::kBF16;
    // bfloat16 is computed from sm_80 on.
    const bool old = shape.dtype == DType::kF16 && turn < kShapes;
    emulated::SetOptions({.compute_capability = old ? 75 : 80, .seed = random_()});
    return shape;
  }

  // A cap, sinks, or both.
  void MakeVariant(AttentionShape& shape) {
    const int kind = Int(0, 2);
    if (kind != 1) shape.score_cap = Of({0.5f, 3.0f, 50.0f});
    shape.sinks = kind != 0;
  }

  const uint64_t seed_ = testing::TestSeed();
  std::mt19937_64 random_{seed_};
};

TEST_F(CudaAttentionTest, EqualsTheReference) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < Rounds(2 * kShapes, 8); ++round) {
    const AttentionShape shape = RandomShape(round, Coin());
    SCOPED_TRACE(::testing::Message() << "round " << round << ": " << Describe(shape));
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
  for (int round = 0; round < kShapes + kVariants; ++round) {
    const AttentionShape shape = RandomShape(kShapes + round % kShapes, round >= kShapes);
    SCOPED_TRACE(::testing::Message() << "round " << round << ": " << Describe(shape));
    const int length = Int(2, Coin() ? 100 : 700), other = Int(1, 100);
    Sequences sequences(shape, {length, other}, random_());
    const int first = std::max(0, length - Int(1, 30));
    const std::vector<Sequences::Part> rows = {{0, first, length - first}};
    const std::vector<uint16_t> whole = sequences.Run(rows, Use::kTile, 1);
    ASSERT_EQ(sequences.Run(rows, Use::kTile, 2, 1), whole);
    ASSERT_EQ(sequences.Run(rows, Use::kTile, 2, 2), whole);
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
    for (int at = first; at < length; at += Int(1, 8)) {
      const std::vector<uint16_t> single = sequences.Run({{0, at, 1}}, Use::kSplit);
      const auto of_row = whole.begin() + static_cast<ptrdiff_t>(single.size()) * (at - first);
      ASSERT_TRUE(std::equal(single.begin(), single.end(), of_row)) << "position " << at;
    }
  }
}

// Contexts and windows around the ends of blocks, pieces and splits, for heads and blocks as models
// have them. Slots beyond the tokens hold NaNs, so that nothing may come from there.
TEST_F(CudaAttentionTest, EdgesOfBlocksPiecesAndSplitsAreThoseOfTheTiles) {
  SCOPED_TRACE(seed_);
  constexpr int kEdges[] = {16, 64, 128, 256, 320, 512};
  const int heads[] = {64, 80, 96, 128, 256};
  for (int round = 0; round < Rounds(80, 20); ++round) {
    AttentionShape shape;
    shape.head_dim = heads[round % 5];
    shape.format = static_cast<KvFormat>(round / 5 % 4);
    if (Coin()) MakeVariant(shape);
    shape.block_tokens_log2 = Int(4, 6);
    shape.group = Int(1, 20);
    emulated::SetOptions({.compute_capability = Coin() ? 75 : 80, .seed = random_()});
    const auto near = [&](int most) {
      int edge = 0;
      do edge = kEdges[Int(0, 5)];
      while (edge > most);
      return std::max(1, edge + Int(-2, 2));
    };
    const int length = near(512);
    shape.window = Coin() ? near(512) : 0;
    SCOPED_TRACE(::testing::Message()
                 << "round " << round << ": " << Describe(shape) << ", blocks of "
                 << (1 << shape.block_tokens_log2) << ", " << length);
    Sequences sequences(shape, {length}, random_());
    const int count = std::min(length, Int(1, std::max(1, 32 / shape.group)));
    const std::vector<Sequences::Part> rows = {{0, length - count, count}};
    ASSERT_EQ(sequences.Run(rows, Use::kSplit), sequences.Run(rows, Use::kTile));
  }
}

// Heads of 256 as Gemma has them: groups, windows around the ends of pieces and splits, and a cap,
// in every format.
TEST_F(CudaAttentionTest, HeadsOf256AreTheSameInBothKernelsAndEqualTheReference) {
  SCOPED_TRACE(seed_);
  constexpr int kGroups[] = {1, 2, 4, 8, 16};
  constexpr int kWindows[] = {0, 63, 64, 65, 255, 256, 257, 512};
  constexpr float kCaps[] = {0, 50, 2};
  for (int round = 0; round < Rounds(120, 16); ++round) {
    AttentionShape shape;
    shape.head_dim = 256;
    shape.format = static_cast<KvFormat>(round % 4);
    shape.group = kGroups[Int(0, 4)];
    shape.window = kWindows[Int(0, 7)];
    shape.score_cap = kCaps[round / 4 % 3];
    shape.sinks = Int(0, 3) == 0;
    shape.dtype = MultipliesBFloat16() && Coin() ? DType::kBF16 : DType::kF16;
    const bool old = shape.dtype == DType::kF16 && Coin();
    emulated::SetOptions({.compute_capability = old ? 75 : 80, .seed = random_()});
    const int length = Int(1, Coin() ? 80 : 560);
    SCOPED_TRACE(::testing::Message()
                 << "round " << round << ": " << Describe(shape) << ", " << length);
    Sequences sequences(shape, {length}, random_());
    const int count = std::min(length, Int(1, std::max(1, 32 / shape.group)));
    const std::vector<Sequences::Part> rows = {{0, length - count, count}};
    const std::vector<uint16_t> found = sequences.Run(rows, Use::kSplit);
    ASSERT_EQ(sequences.Run(rows, Use::kTile), found);
    const int row = Int(0, count - 1);
    const std::vector<double> expected = sequences.Reference(0, length - count + row);
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(sequences.Value(found[static_cast<size_t>(row) * expected.size() + i]),
                  expected[i], shape.dtype == DType::kF16 ? 6e-3 : 5e-2);
    }
  }
}

// Every kernel of heads of 512 dims: both uses give the same bits, and those of rows that are
// computed alone.
TEST_F(CudaAttentionTest, WideHeadsAreTheSameInBothKernelsAndAloneAndEqualTheReference) {
  SCOPED_TRACE(seed_);
  constexpr int kGroups[] = {1, 2, 4, 8, 16, 20};
  constexpr int kWindows[] = {0, 0, 31, 33, 255, 257, 300};
  for (int round = 0; round < Rounds(64, 16); ++round) {
    AttentionShape shape;
    shape.head_dim = kWidestHead;
    shape.format = static_cast<KvFormat>(round % 4);
    shape.kv_heads = Int(1, 2);
    shape.group = kGroups[Int(0, 5)];
    shape.block_tokens_log2 = Int(4, 6);
    shape.window = kWindows[Int(0, 6)];
    if (Coin()) MakeVariant(shape);
    shape.dtype = round / 4 % 2 == 1 && MultipliesBFloat16() ? DType::kBF16 : DType::kF16;
    const bool old = shape.dtype == DType::kF16 && Coin();
    emulated::SetOptions({.compute_capability = old ? 75 : 80, .seed = random_()});
    const std::vector<int> lengths = {Int(1, Coin() ? 80 : 560), Int(1, 40)};
    SCOPED_TRACE(::testing::Message() << "round " << round << ": " << Describe(shape) << ", "
                                      << lengths[0] << " and " << lengths[1]);
    Sequences sequences(shape, lengths, random_());
    const int most = std::max(1, 32 / shape.group);
    const int count = std::min(lengths[0], Int(1, most));
    const int begin = lengths[0] - count;
    const std::vector<uint16_t> found = sequences.Run({{0, begin, count}}, Use::kSplit);
    ASSERT_EQ(sequences.Run({{0, begin, count}}, Use::kTile), found);
    // With more rows before it and another sequence beside it, of which the tile kernel takes the
    // row with others.
    const int more = std::min(begin, 5), beside = std::min(lengths[1], 3);
    const std::vector<uint16_t> many = sequences.Run(
        {{1, lengths[1] - beside, beside}, {0, begin - more, count + more}}, Use::kTile);
    ASSERT_TRUE(std::equal(found.rbegin(), found.rend(), many.rbegin()));
    const int row = Int(0, count - 1);
    const auto width = static_cast<std::ptrdiff_t>(found.size()) / count;
    const std::vector<uint16_t> alone = sequences.Run({{0, begin + row, 1}}, Use::kPlan);
    ASSERT_TRUE(std::equal(alone.begin(), alone.end(), found.begin() + row * width));
    const std::vector<double> expected = sequences.Reference(0, begin + row);
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(sequences.Value(alone[i]), expected[i], shape.dtype == DType::kF16 ? 6e-3 : 5e-2);
    }
  }
}

// Sinks far below all scores are none, far above them they take everything, and none of them makes
// a result that is not finite.
TEST_F(CudaAttentionTest, SinksOfAnySizeLeaveFiniteResults) {
  for (const int length : {1, 40, 300}) {
    AttentionShape shape;
    shape.kv_heads = 2;
    shape.group = 3;
    Sequences without(shape, {length}, 7);
    shape.sinks = true;
    Sequences sequences(shape, {length}, 7);
    const std::vector<Sequences::Part> rows = {{0, length - 1, 1}};
    for (const Use use : {Use::kSplit, Use::kTile}) {
      const auto largest = [&](float sink) {
        sequences.SetSinks(sink);
        float most = 0;
        for (const uint16_t bits : sequences.Run(rows, use)) {
          EXPECT_TRUE(std::isfinite(sequences.Value(bits))) << sink;
          most = std::max(most, std::fabs(sequences.Value(bits)));
        }
        return most;
      };
      EXPECT_GT(largest(-1e4f), 0);
      EXPECT_EQ(largest(1e4f), 0);
      EXPECT_EQ(largest(3e38f), 0);
      EXPECT_GT(largest(-3e38f), 0);
    }
  }
}

TEST_F(CudaAttentionTest, QueriesAreThoseOfADivision) {
  for (int group = 1; group <= 128; ++group) {
    AttentionLaunch launch = {};
    launch.group = group;
    const uint32_t inverse = WithInverse(launch).group_inverse;
    for (int packed = 0; packed < 3000; ++packed) {
      ASSERT_EQ(QueryOf(packed, inverse), packed / group) << packed << " / " << group;
    }
    const int most = (1 << 30) / group;
    for (int packed = most - 300; packed < most; ++packed) {
      ASSERT_EQ(QueryOf(packed, inverse), packed / group) << packed << " / " << group;
    }
  }
}

TEST_F(CudaAttentionTest, WarpsHaveTwoRowTilesWhereBlocksFillTheDevice) {
  EXPECT_FALSE(TilePairs(395, 132));
  EXPECT_TRUE(TilePairs(396, 132));
}

TEST_F(CudaAttentionTest, StagesAreAsManyAsAllBlocksHaveRoomFor) {
  constexpr size_t kT4 = size_t{64} << 10, kL4 = size_t{100} << 10, kA100 = size_t{164} << 10;
  EXPECT_EQ(TileStages(128, 75, kT4), 1);
  EXPECT_EQ(TileStages(128, 75, kA100), 1) << "made for a T4, it copies through registers";
  EXPECT_EQ(TileStages(128, 89, kL4), 1);
  EXPECT_EQ(TileStages(128, 80, kA100), 2);
  EXPECT_EQ(TileStages(72, 90, size_t{228} << 10), 2);
  EXPECT_EQ(TileStages(256, 80, kA100), 1);
  EXPECT_EQ(TileStages(256, 90, size_t{228} << 10), 2);
  EXPECT_EQ(TileStages(64, 75, kT4), 1);
  EXPECT_EQ(TileStages(64, 80, kT4), 1);
  EXPECT_EQ(TileStages(64, 89, kL4), 2) << "three blocks of half the bytes";
  EXPECT_EQ(TileStages(64, 90, kA100), 2);
  EXPECT_EQ(TileStages(512, 90, size_t{228} << 10), 1) << "wide heads are not staged";
  EXPECT_LE(TileSharedBytes(256, 2), kMostSharedBytes);
}

TEST_F(CudaAttentionTest, ABrokenValueIsNotPassedOver) {
  AttentionShape shape;
  shape.head_dim = 64;
  Sequences sequences(shape, {5}, 1);
  const std::vector<uint16_t> found = sequences.Run({{0, 4, 1}}, Use::kPlan);
  for (uint16_t bits : found) ASSERT_TRUE(std::isfinite(sequences.Value(bits)));
}

TEST_F(CudaAttentionTest, ABrokenQueryShowsThroughACapAndASink) {
  AttentionShape shape;
  shape.score_cap = 50;
  shape.sinks = true;
  Sequences sequences(shape, {70, 70}, 1);
  sequences.BreakQuery(0, 69);
  for (const Use use : {Use::kSplit, Use::kTile}) {
    const std::vector<uint16_t> found = sequences.Run({{0, 69, 1}, {1, 69, 1}}, use);
    for (size_t i = 0; i < found.size(); ++i) {
      ASSERT_EQ(std::isnan(sequences.Value(found[i])), i < found.size() / 2) << i;
    }
  }
}

}  // namespace
}  // namespace baton::backend::cuda
