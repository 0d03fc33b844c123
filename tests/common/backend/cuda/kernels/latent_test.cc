// The kernels of latent attention on the emulated device: against references, and bit by bit
// against one another.
#include "common/backend/cuda/kernels/latent.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/backend/cpu/isa.h"
#include "common/backend/cpu/kernels.h"
#include "common/backend/cuda/steps/attention_plan.h"
#include "tests/common/backend/cuda/kernels/kernel_test.h"
#include "tests/testing/kv_rows.h"

namespace baton::backend::cuda {
namespace {

// Sequences whose tokens lie in scattered blocks of a pool; NaNs wherever no token is.
struct LatentShape {
  int heads = 1, latent = 8, rotated = 8, block_tokens_log2 = 4;
  DType dtype = DType::kF16;
  KvFormat format = KvFormat::kPlain;
  int head_dim() const { return latent + rotated; }
};

class LatentPool {
 public:
  static constexpr int kLayers = 2;  // of which the second is used

  LatentPool(const LatentShape& shape, const std::vector<int>& lengths, std::mt19937_64& random)
      : shape_(shape), far_(random() % 4 == 0) {
    pool_.kv_heads = 1;
    pool_.head_dim = shape.head_dim();
    pool_.latent_dim = shape.latent;
    pool_.block_tokens = 1 << shape.block_tokens_log2;
    pool_.dtype = shape.dtype;
    pool_.format = shape.format;
    int blocks = 0;
    for (const int length : lengths) {
      first_block_.push_back(blocks);
      blocks += (length + pool_.block_tokens - 1) / pool_.block_tokens;
    }
    tables_.resize(static_cast<size_t>(blocks));
    std::iota(tables_.begin(), tables_.end(), 1);  // block 0 stays all NaN
    std::shuffle(tables_.begin(), tables_.end(), random);
    pool_.layer_stride_bytes = pool_.chunk_heads() * pool_.head_bytes();
    pool_.block_stride_bytes = kLayers * pool_.layer_stride_bytes;
    memory_.resize(static_cast<size_t>((blocks + 1) * pool_.block_stride_bytes + 15) / 16);
    std::memset(memory_.data(), 0xff, memory_.size() * 16);
    pool_.base = reinterpret_cast<std::byte*>(memory_.data());
  }

  const KvPool& pool() const { return pool_; }
  int first_block(int sequence) const { return first_block_[static_cast<size_t>(sequence)]; }
  std::byte* Chunk(int sequence, int token) const {
    const int block =
        tables_[static_cast<size_t>(first_block(sequence) + token / pool_.block_tokens)];
    return pool_.Chunk(block, 1);
  }
  std::byte* Row(int sequence, int token) const {
    return Chunk(sequence, token) + token % pool_.block_tokens * pool_.row_bytes();
  }
  uint16_t* ScaleAndZero(int sequence, int token) const {
    return reinterpret_cast<uint16_t*>(Chunk(sequence, token) +
                                       pool_.block_tokens * pool_.row_bytes()) +
           token % pool_.block_tokens * 2;
  }
  void Write(int sequence, int token, const std::vector<float>& row) const {
    if (shape_.format == KvFormat::kPlain) {
      auto* to = reinterpret_cast<uint16_t*>(Row(sequence, token));
      for (size_t i = 0; i < row.size(); ++i) to[i] = Round16(row[i], shape_.dtype);
      return;
    }
    KernelsOf(BestIsa()).quantize(row.data(), static_cast<Codes>(shape_.format), pool_.head_dim,
                                  reinterpret_cast<uint8_t*>(Row(sequence, token)),
                                  ScaleAndZero(sequence, token));
  }
  // As kernels multiply with it: codes become elements of 16 bits.
  std::vector<float> Read(int sequence, int token) const {
    std::vector<float> row =
        ReadKvRow(pool_, Chunk(sequence, token), 0, 0, token % pool_.block_tokens).values;
    for (float& value : row) value = Rounded16(value, shape_.dtype);
    return row;
  }

  // body(layer's address, tables) with the blocks where they are, or far apart.
  template <class Body>
  void Use(const Body& body) {
    BlockMemory memory(pool_.base, static_cast<int64_t>(tables_.size()) + 1,
                       pool_.block_stride_bytes, far_);
    const std::vector<int32_t> tables = memory.Numbers(tables_);
    body(memory.base() + pool_.layer_stride_bytes, tables);
    memory.CopyBack();
  }
  // All bytes but those of the rows that were written.
  bool ElseUntouched(const std::vector<std::pair<int, int>>& written) {
    for (const auto& [sequence, token] : written) {
      std::memset(Row(sequence, token), 0xff, static_cast<size_t>(pool_.row_bytes()));
      if (shape_.format != KvFormat::kPlain) std::memset(ScaleAndZero(sequence, token), 0xff, 4);
    }
    const auto* bytes = reinterpret_cast<const unsigned char*>(memory_.data());
    return std::all_of(bytes, bytes + memory_.size() * 16, [](auto byte) { return byte == 0xff; });
  }

 private:
  const LatentShape shape_;
  const bool far_;  // the kernels find the blocks in a pool of 200 GB
  KvPool pool_;
  std::vector<int> first_block_;
  std::vector<int32_t> tables_;
  std::vector<Vec16> memory_;
};

class LatentTest : public KernelTest {
 protected:
  // So many in turn have every kernel: formats, and float16 below 8.0 and bfloat16 from there on.
  static constexpr int kShapes = 8;
  LatentShape RandomShape(int turn) {
    LatentShape shape;
    shape.format = static_cast<KvFormat>(turn % 4);
    shape.dtype = turn / 4 % 2 == 0 || !MultipliesBFloat16() ? DType::kF16 : DType::kBF16;
    const bool old = shape.dtype == DType::kF16 && Coin();
    emulated::SetOptions({.compute_capability = old ? 75 : 80, .seed = random_()});
    shape.heads = Int(1, turn < kShapes ? 32 : 40);
    shape.latent = Coin() ? kMostLatentDim : 8 * Int(1, kMostLatentDim / 8);
    shape.rotated = Coin() ? kMostRotatedDim : 8 * Int(1, kMostRotatedDim / 8);
    shape.block_tokens_log2 = Int(4, 7);
    return shape;
  }
  static std::string Describe(const LatentShape& shape) {
    return absl::StrCat(shape.heads, " heads, latents of ", shape.latent, " and ", shape.rotated,
                        ", ", Name(shape.dtype), ", format ", static_cast<int>(shape.format));
  }
  std::vector<float> Normals(size_t count, float deviation) {
    std::vector<float> values(count);
    for (float& value : values) value = Normal(deviation);
    return values;
  }
};

class CudaLatentWriteTest : public LatentTest {};

TEST_F(CudaLatentWriteTest, EqualsTheReferenceAndWritesNothingElse) {
  SCOPED_TRACE(seed_);
  constexpr float kEps = 1e-6F;
  for (int round = 0; round < Rounds(5 * kShapes, kShapes); ++round) {
    const LatentShape shape = RandomShape(round);
    const int plain = 8 * Int(1, 24), half = shape.rotated / 2, d = shape.head_dim();
    SCOPED_TRACE(::testing::Message()
                 << "round " << round << ": " << Describe(shape) << ", plain " << plain);
    const std::vector<int> lengths = {Int(1, 60), Int(1, 60)};
    LatentPool pool(shape, lengths, random_);
    std::vector<int32_t> positions, sequence_of_row;
    for (int row = Int(1, 6); row > 0; --row) {
      const int sequence = Int(0, 1);
      const int position = Int(0, lengths[static_cast<size_t>(sequence)] - 1);
      bool taken = false;
      for (size_t i = 0; i < positions.size(); ++i) {
        taken = taken || (positions[i] == position && sequence_of_row[i] == sequence);
      }
      positions.push_back(taken || Int(0, 5) == 0 ? -1 : position);
      sequence_of_row.push_back(positions.back() < 0 ? 1'000'000'000 : sequence);
    }
    const size_t rows = positions.size();
    const int q_width = shape.heads * (plain + shape.rotated);
    const int64_t q_stride = q_width + 8 * Int(0, 2), kv_stride = d + 8 * Int(0, 2);
    const int64_t plain_stride = shape.heads * plain + 8 * Int(0, 2);
    const int64_t out_stride = shape.heads * d + 8 * Int(0, 2);
    const DeviceArray<float> q(Normals(rows * static_cast<size_t>(q_stride), 2));
    const DeviceArray<float> kv(Normals(rows * static_cast<size_t>(kv_stride), 3));
    const DeviceArray<float> norm(Normals(static_cast<size_t>(shape.latent), 1));
    std::vector<float> cosines, sines;
    for (int i = 0; i < 60 * half; ++i) {
      const float angle = Normal(3);
      cosines.push_back(std::cos(angle));
      sines.push_back(std::sin(angle));
    }
    const DeviceArray<float> cosine(cosines), sine(sines);
    DeviceArray<uint16_t> q_plain(rows * static_cast<size_t>(plain_stride));
    DeviceArray<float> q_out(rows * static_cast<size_t>(out_stride));
    std::vector<SequenceEntry> sequences;
    for (int s = 0; s < 2; ++s) sequences.push_back({-1'000'000, -1, -1, pool.first_block(s)});
    pool.Use([&](std::byte* layer, const std::vector<int32_t>& tables) {
      LaunchLatentWrite({.q = q.data(),
                         .q_stride = q_stride,
                         .kv = kv.data(),
                         .kv_stride = kv_stride,
                         .norm = norm.data(),
                         .norm_eps = kEps,
                         .cosine = cosine.data(),
                         .sine = sine.data(),
                         .half = half,
                         .q_plain = q_plain.data(),
                         .q_plain_stride = plain_stride,
                         .q_out = q_out.data(),
                         .q_out_stride = out_stride,
                         .layer = layer,
                         .block_stride_bytes = pool.pool().block_stride_bytes,
                         .block_tokens_log2 = shape.block_tokens_log2,
                         .query_heads = shape.heads,
                         .plain = plain,
                         .latent_dim = shape.latent,
                         .positions = positions.data(),
                         .sequence_of_row = sequence_of_row.data(),
                         .sequences = sequences.data(),
                         .tables = tables.data(),
                         .kv_format = shape.format},
                        shape.dtype, static_cast<int>(rows), nullptr);
    });
    ASSERT_TRUE(q_plain.MarginsIntact() && q_out.MarginsIntact());
    const auto rotated = [&](const float* pairs, int position) {
      std::vector<double> turned(static_cast<size_t>(shape.rotated));
      for (int i = 0; i < half; ++i) {
        const double c = double{cosines[static_cast<size_t>(position * half + i)]};
        const double s = double{sines[static_cast<size_t>(position * half + i)]};
        const double a = double{pairs[2 * i]}, b = double{pairs[2 * i + 1]};
        turned[static_cast<size_t>(i)] = a * c - b * s;
        turned[static_cast<size_t>(half + i)] = b * c + a * s;
      }
      return turned;
    };
    std::vector<std::pair<int, int>> written;
    for (size_t row = 0; row < rows; ++row) {
      if (positions[row] < 0) continue;
      const int position = positions[row], sequence = sequence_of_row[row];
      for (int head = 0; head < shape.heads; ++head) {
        const float* of_head =
            q.data() + static_cast<int64_t>(row) * q_stride + head * (plain + shape.rotated);
        uint16_t* found_plain =
            q_plain.data() + static_cast<int64_t>(row) * plain_stride + head * plain;
        for (int i = 0; i < plain; ++i) {
          ASSERT_EQ(found_plain[i], Round16(of_head[i], shape.dtype));
          found_plain[i] = 0xffff;
        }
        float* found = q_out.data() + static_cast<int64_t>(row) * out_stride + head * d;
        const std::vector<double> want = rotated(of_head + plain, position);
        for (int i = 0; i < shape.rotated; ++i) {
          ASSERT_NEAR(found[shape.latent + i], want[static_cast<size_t>(i)], 1e-5);
          found[shape.latent + i] = std::nanf("");
        }
      }
      const float* from = kv.data() + static_cast<int64_t>(row) * kv_stride;
      double squares = 0;
      for (int i = 0; i < shape.latent; ++i) squares += double{from[i]} * double{from[i]};
      const double rms = std::sqrt(squares / shape.latent + double{kEps});
      std::vector<double> want;
      for (int i = 0; i < shape.latent; ++i)
        want.push_back(double{from[i]} / rms * double{norm[static_cast<size_t>(i)]});
      const std::vector<double> turned = rotated(from + shape.latent, position);
      want.insert(want.end(), turned.begin(), turned.end());
      const KvRow held = ReadKvRow(pool.pool(), pool.Chunk(sequence, position), 0, 0,
                                   position % pool.pool().block_tokens);
      for (int i = 0; i < d; ++i) {
        const double element = want[static_cast<size_t>(i)];
        const double bound = shape.format == KvFormat::kPlain
                                 ? std::abs(element) * Precision(shape.dtype) + 1e-6
                                 : KvErrorBound(shape.format, held, element) + 1e-5;
        ASSERT_NEAR(held.values[static_cast<size_t>(i)], element, bound) << "element " << i;
      }
      written.emplace_back(sequence, position);
    }
    for (size_t i = 0; i < q_plain.size(); ++i) ASSERT_EQ(q_plain[i], 0xffff) << "wrote beside";
    for (size_t i = 0; i < q_out.size(); ++i) ASSERT_TRUE(std::isnan(q_out[i])) << "wrote beside";
    ASSERT_TRUE(pool.ElseUntouched(written)) << "wrote beside the slots";
  }
}

class CudaLatentAttentionTest : public LatentTest {
 protected:
  struct Part {
    int sequence, context, count;
  };
  enum class Use { kSplit, kTile, kPlan };

  void MakeSequences(const LatentShape& shape, const std::vector<int>& lengths) {
    shape_ = shape;
    pool_.emplace(shape, lengths, random_);
    q_.clear();
    for (size_t s = 0; s < lengths.size(); ++s) {
      q_.push_back(Normals(static_cast<size_t>(lengths[s] * shape.heads * shape.head_dim()), 1));
      for (int token = 0; token < lengths[s]; ++token) {
        pool_->Write(static_cast<int>(s), token, Normals(static_cast<size_t>(shape.head_dim()), 1));
      }
    }
  }

  // Results of all parts' rows, one behind the other, as 16-bit patterns.
  std::vector<uint16_t> Run(const std::vector<Part>& parts, Use use) {
    const int64_t q_width = int64_t{shape_.heads} * shape_.head_dim();
    const int64_t width = int64_t{shape_.heads} * shape_.latent;
    std::vector<SequenceEntry> entries;
    std::vector<float> q;
    int rows = 0;
    for (const Part& part : parts) {
      entries.push_back({rows, part.count, part.context, pool_->first_block(part.sequence)});
      const auto& all = q_[static_cast<size_t>(part.sequence)];
      q.insert(q.end(), all.begin() + part.context * q_width,
               all.begin() + (part.context + part.count) * q_width);
      rows += part.count;
    }
    AttentionRoom room = RoomFor(rows, static_cast<int>(parts.size()), 1 << 20, shape_.heads, 4096);
    if (use == Use::kTile) room.partials = 0;
    const AttentionPlan plan = PlanAttention(entries, shape_.heads, room);
    EXPECT_TRUE(use != Use::kSplit || plan.tile_items.empty());
    EXPECT_TRUE(use != Use::kTile || plan.split_items.empty());
    const DeviceArray<float> queries(q);
    DeviceArray<float> partials(static_cast<size_t>(plan.partials * kLatentPartialFloats));
    std::vector<unsigned> counters(static_cast<size_t>(plan.row_tiles));
    DeviceArray<float> totals(plan.tile_items.size() * static_cast<size_t>(kLatentTotalFloats));
    DeviceArray<uint16_t> out(static_cast<size_t>(rows * width));
    pool_->Use([&](std::byte* layer, const std::vector<int32_t>& tables) {
      AttentionLaunch launch = {};
      launch.q = queries.data();
      launch.q_stride = q_width;
      launch.out = out.data();
      launch.out_stride = width;
      launch.layer = layer;
      launch.block_stride_bytes = pool_->pool().block_stride_bytes;
      launch.block_tokens_log2 = shape_.block_tokens_log2;
      launch.kv_heads = 1;
      launch.group = shape_.heads;
      launch.head_dim = shape_.head_dim();
      launch.latent_dim = shape_.latent;
      launch.scale = Scale();
      launch.sequences = entries.data();
      launch.tables = tables.data();
      launch.partials = partials.data();
      launch.counters = counters.data();
      launch.totals = totals.data();
      launch.kv_format = shape_.format;
      // As a recorded step: the number of items is in memory, and blocks take several of them.
      const int items = static_cast<int>(plan.split_items.size());
      const int blocks = Coin() ? items : (items + 1) / 2;
      launch.items = plan.split_items.data();
      const int range[] = {0, items};
      launch.item_range = blocks == items && Coin() ? nullptr : range;
      LaunchLatentSplit(launch, shape_.dtype, blocks, nullptr);
      launch.items = plan.tile_items.data();
      launch.item_range = nullptr;
      LaunchLatentTile(launch, shape_.dtype, static_cast<int>(plan.tile_items.size()), nullptr);
    });
    for (const unsigned counter : counters) EXPECT_EQ(counter, 0u) << "did not reset itself";
    EXPECT_TRUE(out.MarginsIntact() && partials.MarginsIntact() && totals.MarginsIntact());
    return out.values();
  }

  float Scale() const { return 1 / std::sqrt(static_cast<float>(shape_.head_dim())); }

  // Of one query position and head, in double, from what the pool holds.
  std::vector<double> Reference(int sequence, int position, int head) {
    const auto d = static_cast<size_t>(shape_.head_dim());
    const float* q = q_[static_cast<size_t>(sequence)].data() +
                     (int64_t{position} * shape_.heads + head) * shape_.head_dim();
    std::vector<std::vector<float>> rows;
    std::vector<double> scores;
    for (int token = 0; token <= position; ++token) {
      rows.push_back(pool_->Read(sequence, token));
      double score = 0;
      for (size_t i = 0; i < d; ++i) score += double{q[i]} * double{rows.back()[i]};
      scores.push_back(score * double{Scale()});
    }
    const double highest = *std::max_element(scores.begin(), scores.end());
    double sum = 0;
    for (double& score : scores) sum += score = std::exp(score - highest);
    std::vector<double> result(static_cast<size_t>(shape_.latent));
    for (size_t token = 0; token < rows.size(); ++token) {
      for (size_t i = 0; i < result.size(); ++i) {
        result[i] += scores[token] / sum * double{rows[token][i]};
      }
    }
    return result;
  }

  LatentShape shape_;
  std::optional<LatentPool> pool_;
  std::vector<std::vector<float>> q_;
};

TEST_F(CudaLatentAttentionTest, EqualsTheReference) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < Rounds(2 * kShapes, kShapes); ++round) {
    const LatentShape shape = RandomShape(round);
    SCOPED_TRACE(::testing::Message() << "round " << round << ": " << Describe(shape));
    // One sequence for each kernel, if the heads allow: as many rows as need tiles, and one.
    std::vector<int> lengths;
    std::vector<Part> parts;
    for (const int count : {32 / shape.heads + 1, 1}) {
      lengths.push_back(count + Int(0, Int(0, 3) == 0 ? 560 : 60));
      parts.push_back({static_cast<int>(parts.size()), lengths.back() - count, count});
    }
    MakeSequences(shape, lengths);
    const std::vector<uint16_t> found = Run(parts, Use::kPlan);
    const uint16_t* at = found.data();
    // Queries and weights have 16 bits.
    const double precision = 4 * Precision(shape.dtype);
    for (const Part& part : parts) {
      for (int row = 0; row < part.count; ++row) {
        const int checked = Int(0, shape.heads - 1);
        for (int head = 0; head < shape.heads; ++head, at += shape.latent) {
          if (head != checked) continue;
          const std::vector<double> want = Reference(part.sequence, part.context + row, head);
          for (int i = 0; i < shape.latent; ++i) {
            ASSERT_NEAR(ToF32(at + i, shape.dtype), want[static_cast<size_t>(i)],
                        precision * (1 + std::abs(want[static_cast<size_t>(i)])))
                << "sequence " << part.sequence << ", row " << row << ", head " << head
                << ", element " << i;
          }
        }
      }
    }
  }
}

// A row has the same bits in both kernels, alone, in a chunk, and beside others, in any order of
// blocks and warps.
TEST_F(CudaLatentAttentionTest, NeitherTheKernelNorNeighboursShow) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < Rounds(kShapes, 4); ++round) {
    const LatentShape shape = RandomShape(round);
    SCOPED_TRACE(::testing::Message() << "round " << round << ": " << Describe(shape));
    const std::vector<int> lengths = {Int(1, Coin() ? 700 : 60), Int(1, 40)};
    MakeSequences(shape, lengths);
    const auto machine = [&] {
      auto options = emulated::GetOptions();
      options.seed = random_();
      emulated::SetOptions(options);
    };
    const int count = std::min(lengths[0], Int(1, 5));
    const Part chunk = {0, lengths[0] - count, count};
    const std::vector<uint16_t> tiles = Run({chunk}, Use::kTile);
    const size_t width = tiles.size() / static_cast<size_t>(count);
    machine();
    const std::vector<uint16_t> beside = Run({{1, lengths[1] - 1, 1}, chunk}, Use::kPlan);
    EXPECT_TRUE(
        std::equal(tiles.begin(), tiles.end(), beside.begin() + static_cast<ptrdiff_t>(width)))
        << "beside another";
    for (int row = 0; row < count; ++row) {
      machine();
      const Part alone = {0, chunk.context + row, 1};
      const auto use = shape.heads <= 32 ? Use::kSplit : Use::kPlan;
      const std::vector<uint16_t> one = Run({alone}, use);
      EXPECT_TRUE(
          std::equal(one.begin(), one.end(), tiles.begin() + row * static_cast<ptrdiff_t>(width)))
          << "row " << row << " alone";
    }
  }
}

}  // namespace
}  // namespace baton::backend::cuda
