// Norm, rotation and the write to the pool on the emulated device, against a reference in double.
#include "common/backend/cuda/kernels/rope_write.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "common/backend/cpu/isa.h"
#include "common/backend/cpu/kernels.h"
#include "tests/common/backend/cuda/kernels/kernel_test.h"

namespace baton::backend::cuda {
namespace {

// The maps, enumerated: every dim of a head is in one place of one unit, pairs are together.
TEST(CudaRopeWriteMapsTest, UnitsCoverTheHead) {
  for (int head_dim = 8; head_dim <= 512; head_dim += 8) {
    const int lanes = HeadLanes(head_dim), units = head_dim <= 256 ? 1 : kMostUnits;
    EXPECT_TRUE(lanes * units >= head_dim / 8 && lanes < std::max(2, head_dim / 4) &&
                32 % lanes == 0);
    for (int half = 0; half <= head_dim / 2; half += 4) {
      std::vector<int> times(static_cast<size_t>(head_dim));
      for (int unit = 0; unit < head_dim / 8; ++unit) {
        const QuadPair dims = UnitDims(unit, half);
        for (int i = 0; i < 4; ++i) {
          ++times.at(static_cast<size_t>(dims.low + i));
          ++times.at(static_cast<size_t>(dims.high + i));
        }
        EXPECT_EQ(dims.high - dims.low, unit < half / 4 ? half : 4);
      }
      EXPECT_EQ(std::count(times.begin(), times.end(), 1), head_dim) << head_dim << ", " << half;
    }
  }
}

struct RopeShape {
  int query_heads, kv_heads, head_dim, half, block_tokens_log2, positions;
  bool norms_q, norms_k, scales_q;
  DType dtype;
  KvFormat format = KvFormat::kPlain;
  int gap = 0;  // columns between the queries of two heads
  bool norm_v = false, v_is_k = false, q_only = false;
  int width() const {
    return ColumnOf(query_heads + (q_only ? 0 : v_is_k ? kv_heads : 2 * kv_heads));
  }
  // Of a head of v.
  int ValueColumn(int head) const { return ColumnOf(query_heads + (v_is_k ? 0 : kv_heads) + head); }
  // The first column of a head of q, k or v.
  int ColumnOf(int head) const { return head * head_dim + std::min(head, query_heads) * gap; }
};

struct RopeRow {
  int sequence, position;  // position < 0: padding
  std::vector<float> qkv;
};

// The pool's layer 1 of 2, tables, weights; all blocks poisoned.
class CudaRopeWriteTest : public KernelTest {
 protected:
  void MakeShape() {
    shape_.kv_heads = Int(1, 3);
    shape_.query_heads = shape_.kv_heads * Int(1, 8);
    shape_.head_dim = 8 * (Int(0, 2) == 0 ? Int(33, 64) : Int(1, 32));
    shape_.norm_v = Coin();
    shape_.v_is_k = Int(0, 2) == 0;
    shape_.q_only = Int(0, 3) == 0;
    shape_.gap = Coin() ? 0 : 8 * Int(1, 8);
    shape_.half = Coin() ? shape_.head_dim / 2 : 4 * Int(0, shape_.head_dim / 8);
    shape_.block_tokens_log2 = Int(4, 5);
    shape_.positions = Int(1, 200);
    shape_.norms_q = Coin();
    shape_.norms_k = Int(0, 3) == 0 ? !shape_.norms_q : shape_.norms_q;
    shape_.scales_q = Coin();
    shape_.dtype = Any16();
    const size_t angles = static_cast<size_t>(shape_.positions * shape_.half);
    cosine_.resize(angles);
    sine_.resize(angles);
    for (size_t i = 0; i < angles; ++i) {
      const float angle = Normal(3);
      cosine_[i] = std::cos(angle);
      sine_[i] = std::sin(angle);
    }
    query_scale_.clear();
    for (int i = 0; i < shape_.positions; ++i) query_scale_.push_back(std::exp(Normal(0.3f)));
    q_norm_ = Weights();
    k_norm_ = Weights();
    const int blocks_a_sequence = (shape_.positions >> shape_.block_tokens_log2) + 1;
    tables_.resize(static_cast<size_t>(kSequences * blocks_a_sequence));
    std::iota(tables_.begin(), tables_.end(), 1);
    std::shuffle(tables_.begin(), tables_.end(), random_);
    sequences_.clear();
    // What the kernel does not read is no number that could be right.
    for (int s = 0; s < kSequences; ++s) {
      sequences_.push_back({-1'000'000, -1'000'000, -1'000'000, s * blocks_a_sequence});
    }
    chunk_ =
        static_cast<size_t>((2 * shape_.kv_heads * shape_.head_dim) << shape_.block_tokens_log2);
  }
  std::vector<float> Weights() {
    std::vector<float> weights(static_cast<size_t>(shape_.head_dim));
    for (float& weight : weights) weight = 1 + Normal(0.2f);
    return weights;
  }
  // Rows at places of their own, and padding.
  std::vector<RopeRow> RandomRows() {
    std::vector<std::pair<int, int>> places;
    for (int s = 0; s < kSequences; ++s) {
      for (int p = 0; p < shape_.positions; ++p) places.emplace_back(s, p);
    }
    std::shuffle(places.begin(), places.end(), random_);
    std::vector<RopeRow> rows;
    for (int n = std::min(Int(1, 12), static_cast<int>(places.size())); n > 0; --n) {
      rows.push_back({places.back().first, Int(0, 7) == 0 ? -1 : places.back().second, {}});
      places.pop_back();
      for (int i = 0; i < shape_.width(); ++i) rows.back().qkv.push_back(Normal(2));
      for (int head = 0; head < shape_.query_heads; ++head) {
        std::fill_n(rows.back().qkv.begin() + shape_.ColumnOf(head) + shape_.head_dim, shape_.gap,
                    std::nanf(""));
      }
    }
    return rows;
  }

  struct Result {
    std::vector<float> q;  // [rows, query_heads * head_dim]
    std::vector<uint16_t> pool;
  };
  Result Run(const std::vector<RopeRow>& rows) {
    const int64_t stride = shape_.width() + 8 * Int(0, 2);
    const int q_width = shape_.query_heads * shape_.head_dim;
    const int64_t q_stride = q_width + 8 * Int(0, 2);
    DeviceArray<float> qkv(rows.size() * static_cast<size_t>(stride));
    DeviceArray<float> q(rows.size() * static_cast<size_t>(q_stride));
    DeviceArray<uint16_t> pool((tables_.size() + 1) * 2 * chunk_);
    BlockMemory memory(reinterpret_cast<std::byte*>(pool.data()),
                       static_cast<int64_t>(tables_.size()) + 1,
                       static_cast<int64_t>(2 * chunk_ * sizeof(uint16_t)), Coin());
    const std::vector<int32_t> tables = memory.Numbers(tables_);
    std::vector<int32_t> positions, sequence_of_row;
    for (size_t row = 0; row < rows.size(); ++row) {
      positions.push_back(rows[row].position);
      sequence_of_row.push_back(rows[row].position < 0 ? 1'000'000'000 : rows[row].sequence);
      if (rows[row].position < 0) continue;  // its q, k and v stay NaNs
      std::copy(rows[row].qkv.begin(), rows[row].qkv.end(),
                qkv.data() + row * static_cast<size_t>(stride));
    }
    const DeviceArray<float> cosine(cosine_), sine(sine_), q_norm(q_norm_), k_norm(k_norm_),
        query_scale(query_scale_);
    RopeWriteLaunch launch = {};
    launch.heads.qkv = qkv.data();
    launch.heads.qkv_stride = stride;
    launch.q_out = q.data();
    launch.q_out_stride = q_stride;
    launch.heads.q_norm = shape_.norms_q ? q_norm.data() : nullptr;
    launch.heads.k_norm = shape_.norms_k ? k_norm.data() : nullptr;
    launch.heads.norm_eps = kEps;
    launch.heads.norm_v = shape_.norm_v;
    launch.heads.v_is_k = shape_.v_is_k;
    launch.heads.q_only = shape_.q_only;
    // Without a rotation there may be no tables.
    launch.heads.cosine = shape_.half > 0 ? cosine.data() : nullptr;
    launch.heads.sine = shape_.half > 0 ? sine.data() : nullptr;
    launch.heads.half = shape_.half;
    launch.heads.query_scale = shape_.scales_q ? query_scale.data() : nullptr;
    launch.layer = memory.base() + chunk_ * sizeof(uint16_t);
    launch.block_stride_bytes = static_cast<int64_t>(2 * chunk_ * sizeof(uint16_t));
    launch.block_tokens_log2 = shape_.block_tokens_log2;
    launch.query_heads = shape_.query_heads;
    launch.kv_heads = shape_.kv_heads;
    launch.head_dim = shape_.head_dim;
    launch.heads.q_stride = shape_.head_dim + shape_.gap;
    launch.positions = positions.data();
    launch.sequence_of_row = sequence_of_row.data();
    launch.sequences = sequences_.data();
    launch.tables = tables.data();
    launch.kv_format = shape_.format;
    LaunchRopeWrite(launch, shape_.dtype, static_cast<int>(rows.size()), nullptr);
    memory.CopyBack();
    EXPECT_TRUE(q.MarginsIntact() && pool.MarginsIntact());
    Result result;
    for (size_t row = 0; row < rows.size(); ++row) {
      for (int64_t i = 0; i < q_stride; ++i) {
        const float value = q[row * static_cast<size_t>(q_stride) + static_cast<size_t>(i)];
        if (i < q_width) {
          result.q.push_back(value);
        } else {
          EXPECT_TRUE(std::isnan(value)) << "wrote between rows";
        }
      }
    }
    result.pool = pool.values();
    return result;
  }

  // Element 0 of a head's slot.
  size_t SlotOf(const RopeRow& row, int part, int head) const {
    const int log2 = shape_.block_tokens_log2;
    const int32_t block = tables_[static_cast<size_t>(
        sequences_[static_cast<size_t>(row.sequence)].first_block + (row.position >> log2))];
    const int in_chunk =
        (((part * shape_.kv_heads + head) << log2) + row.position % (1 << log2)) * shape_.head_dim;
    return (static_cast<size_t>(block) * 2 + 1) * chunk_ + static_cast<size_t>(in_chunk);
  }

  // Of a head of v.
  double InverseRms(const RopeRow& row, int head) const {
    double squares = 0;
    for (int i = 0; i < shape_.head_dim; ++i) {
      const auto v =
          static_cast<double>(row.qkv[static_cast<size_t>(shape_.ValueColumn(head) + i)]);
      squares += v * v;
    }
    return 1 / std::sqrt(squares / shape_.head_dim + static_cast<double>(kEps));
  }

  std::vector<double> Turned(const RopeRow& row, int head, const std::vector<float>* norm) const {
    const int d = shape_.head_dim;
    const auto first = row.qkv.begin() + shape_.ColumnOf(head);
    std::vector<double> x(first, first + d);
    if (norm != nullptr) {
      double squares = 0;
      for (double value : x) squares += value * value;
      const double scale = 1 / std::sqrt(squares / d + static_cast<double>(kEps));
      for (size_t i = 0; i < x.size(); ++i) x[i] *= scale * static_cast<double>((*norm)[i]);
    }
    for (int i = 0; i < shape_.half; ++i) {
      const auto angle = static_cast<size_t>(row.position * shape_.half + i);
      const double c = static_cast<double>(cosine_[angle]), s = static_cast<double>(sine_[angle]);
      const auto low = static_cast<size_t>(i), high = static_cast<size_t>(i + shape_.half);
      const double a = x[low], b = x[high];
      x[low] = a * c - b * s;
      x[high] = b * c + a * s;
    }
    return x;
  }

  static constexpr int kSequences = 3;
  static constexpr float kEps = 1e-6f;
  RopeShape shape_ = {};
  std::vector<float> cosine_, sine_, query_scale_, q_norm_, k_norm_;
  std::vector<int32_t> tables_;
  std::vector<SequenceEntry> sequences_;
  size_t chunk_ = 0;  // elements
};

TEST_F(CudaRopeWriteTest, EqualsTheReferenceAndWritesNothingElse) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 80; ++round) {
    ChangeMachine();
    MakeShape();
    SCOPED_TRACE(::testing::Message()
                 << "round " << round << ": " << shape_.query_heads << " and " << shape_.kv_heads
                 << " heads of " << shape_.head_dim << ", half " << shape_.half << ", norms "
                 << shape_.norms_q << shape_.norms_k << ", " << Name(shape_.dtype));
    const std::vector<RopeRow> rows = RandomRows();
    Result found = Run(rows);
    const int d = shape_.head_dim;
    for (size_t r = 0; r < rows.size(); ++r) {
      const RopeRow& row = rows[r];
      for (int head = 0; head < shape_.query_heads; ++head) {
        const size_t at =
            (r * static_cast<size_t>(shape_.query_heads) + static_cast<size_t>(head)) *
            static_cast<size_t>(d);
        if (row.position < 0) {
          for (int i = 0; i < d; ++i) ASSERT_TRUE(std::isnan(found.q[at + static_cast<size_t>(i)]));
          continue;
        }
        const auto expected = Turned(row, head, shape_.norms_q ? &q_norm_ : nullptr);
        const double scale =
            shape_.scales_q ? static_cast<double>(query_scale_[static_cast<size_t>(row.position)])
                            : 1;
        for (int i = 0; i < d; ++i) {
          ASSERT_NEAR(static_cast<double>(found.q[at + static_cast<size_t>(i)]),
                      scale * expected[static_cast<size_t>(i)], 2e-5 * scale)
              << "row " << r << ", q head " << head << ", dim " << i;
        }
      }
      if (row.position < 0 || shape_.q_only) continue;
      for (int head = 0; head < shape_.kv_heads; ++head) {
        const auto k = Turned(row, shape_.query_heads + head, shape_.norms_k ? &k_norm_ : nullptr);
        for (int i = 0; i < d; ++i) {
          uint16_t& k_bits = found.pool[SlotOf(row, 0, head) + static_cast<size_t>(i)];
          uint16_t& v_bits = found.pool[SlotOf(row, 1, head) + static_cast<size_t>(i)];
          const double expected = k[static_cast<size_t>(i)];
          ASSERT_NEAR(static_cast<double>(ToF32(&k_bits, shape_.dtype)), expected,
                      Precision(shape_.dtype) * std::fabs(expected) + 2e-5)
              << "row " << r << ", k head " << head << ", dim " << i;
          const float v = row.qkv[static_cast<size_t>(shape_.ValueColumn(head) + i)];
          if (shape_.norm_v) {
            const double normed = static_cast<double>(v) * InverseRms(row, head);
            ASSERT_NEAR(static_cast<double>(ToF32(&v_bits, shape_.dtype)), normed,
                        Precision(shape_.dtype) * std::fabs(normed) + 2e-5)
                << "row " << r << ", v head " << head << ", dim " << i;
          } else {
            ASSERT_EQ(v_bits, Round16(v, shape_.dtype))
                << "row " << r << ", v head " << head << ", dim " << i;
          }
          k_bits = v_bits = 0xffff;
        }
      }
    }
    ASSERT_EQ(std::count(found.pool.begin(), found.pool.end(), 0xffff),
              static_cast<ptrdiff_t>(found.pool.size()))
        << "wrote beside the slots";
  }
}

// The codes, scales and zeros are the bits that the CPU's kernel writes for the same float32.
TEST_F(CudaRopeWriteTest, CodesAreThoseOfTheCpu) {
  SCOPED_TRACE(seed_);
  const auto quantize = KernelsOf(BestIsa()).quantize;
  for (int round = 0; round < 60; ++round) {
    ChangeMachine();
    MakeShape();
    shape_.half = 0;
    shape_.norms_q = shape_.norms_k = shape_.norm_v = shape_.v_is_k = shape_.q_only = false;
    shape_.format = std::vector{KvFormat::kInt8, KvFormat::kInt4, KvFormat::kFp8}[round % 3];
    const Codes codes = shape_.format == KvFormat::kInt8   ? Codes::kInt8
                        : shape_.format == KvFormat::kInt4 ? Codes::kInt4
                                                           : Codes::kFp8;
    const int d = shape_.head_dim, block_tokens = 1 << shape_.block_tokens_log2;
    const int64_t row_bytes = KvRowBytes(shape_.format, shape_.dtype, d);
    const int64_t head_bytes = block_tokens * (row_bytes + 4);
    chunk_ = static_cast<size_t>(shape_.kv_heads * head_bytes);  // times two bytes
    SCOPED_TRACE(::testing::Message()
                 << "round " << round << ", format " << static_cast<int>(shape_.format) << ", "
                 << shape_.kv_heads << " heads of " << d);
    std::vector<RopeRow> rows = RandomRows();
    for (RopeRow& row : rows) {
      const float scale = std::pow(10.0f, static_cast<float>(Int(-8, 8)));
      const float offset = Coin() ? 0 : Normal(10);
      const int kind = Int(0, 9);
      for (float& x : row.qkv) x = kind == 0 ? 3.25f : (x + offset) * scale;
      float& any = row.qkv[random_() % row.qkv.size()];
      if (kind == 1) any = std::nanf("");
      if (kind == 2) any = std::numeric_limits<float>::infinity();
      if (kind == 3) any = -std::numeric_limits<float>::max();
    }
    Result found = Run(rows);
    auto* pool = reinterpret_cast<uint8_t*>(found.pool.data());
    for (const RopeRow& row : rows) {
      if (row.position < 0) continue;
      for (int head = 0; head < 2 * shape_.kv_heads; ++head) {
        const int log2 = shape_.block_tokens_log2, slot = row.position % block_tokens;
        const int32_t block = tables_[static_cast<size_t>(
            sequences_[static_cast<size_t>(row.sequence)].first_block + (row.position >> log2))];
        uint8_t* of_head =
            pool + (static_cast<size_t>(block) * 2 + 1) * chunk_ * 2 + head * head_bytes;
        uint8_t* code = of_head + slot * row_bytes;
        uint8_t* by = of_head + block_tokens * row_bytes + slot * 4;
        std::vector<uint8_t> expected(static_cast<size_t>(row_bytes));
        uint16_t expected_by[2];
        const float* x = &row.qkv[static_cast<size_t>(shape_.ColumnOf(shape_.query_heads + head))];
        quantize(x, codes, d, expected.data(), expected_by);
        ASSERT_EQ(std::memcmp(by, expected_by, 4), 0) << "head " << head;
        if ((expected_by[0] & 0x7fff) < 0x7c00) {  // else codes mean nothing
          ASSERT_TRUE(std::equal(expected.begin(), expected.end(), code)) << "head " << head;
        }
        std::memset(code, 0xff, expected.size());
        std::memset(by, 0xff, 4);
      }
    }
    ASSERT_EQ(std::count(found.pool.begin(), found.pool.end(), 0xffff),
              static_cast<ptrdiff_t>(found.pool.size()))
        << "wrote beside the slots";
  }
}

// The promise that prefixes are reused on: a slot's bits are the row's own.
TEST_F(CudaRopeWriteTest, ARowIsTheSameAloneAndInAnyOrderOfWarps) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < 20; ++round) {
    ChangeMachine();
    MakeShape();
    const std::vector<RopeRow> rows = RandomRows();
    const Result all = Run(rows);
    const size_t r = static_cast<size_t>(Int(0, static_cast<int>(rows.size()) - 1));
    if (rows[r].position < 0) continue;
    ChangeMachine();
    const Result one = Run({rows[r]});
    const size_t q_width = one.q.size();
    ASSERT_EQ(std::memcmp(one.q.data(), all.q.data() + r * q_width, q_width * sizeof(float)), 0);
    for (int part = 0; part < 2; ++part) {
      for (int head = 0; head < shape_.kv_heads; ++head) {
        const size_t slot = SlotOf(rows[r], part, head);
        ASSERT_EQ(std::memcmp(&one.pool[slot], &all.pool[slot],
                              static_cast<size_t>(shape_.head_dim) * sizeof(uint16_t)),
                  0);
      }
    }
  }
}

// An infinite V would make NaNs of 0 x V in rows that must not see it.
TEST_F(CudaRopeWriteTest, WhatIsFiniteStaysFinite) {
  SCOPED_TRACE(seed_);
  constexpr float kMax = std::numeric_limits<float>::max();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const float nan = std::nanf("");
  const std::vector<float> values = {65504, 65519,     65520, 7e4f,  3.3895e38f, 3.39e38f,
                                     kMax,  kInfinity, nan,   1e-8f, 0};
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    ChangeMachine();
    MakeShape();
    shape_.dtype = dtype;
    shape_.half = 0;
    shape_.norms_q = shape_.norms_k = shape_.norm_v = shape_.v_is_k = shape_.q_only = false;
    const float largest = dtype == DType::kF16 ? Half::ToF32(0x7bff) : BFloat16::ToF32(0x7f7f);
    RopeRow row = {0, 0, {}};
    for (int i = 0; i < shape_.width(); ++i) {
      const float value = values[random_() % values.size()];
      row.qkv.push_back(Coin() ? value : -value);
    }
    const Result found = Run({row});
    for (int head = 0; head < 2 * shape_.kv_heads; ++head) {
      const size_t slot = SlotOf(row, head / shape_.kv_heads, head % shape_.kv_heads);
      for (int i = 0; i < shape_.head_dim; ++i) {
        const float given =
            row.qkv[static_cast<size_t>(shape_.ColumnOf(shape_.query_heads + head) + i)];
        const float held = ToF32(&found.pool[slot + static_cast<size_t>(i)], dtype);
        if (std::isnan(given)) {
          ASSERT_TRUE(std::isnan(held));
        } else if (std::isinf(given)) {
          ASSERT_EQ(held, given);
        } else if (std::fabs(given) >= largest) {
          ASSERT_EQ(held, std::copysign(largest, given)) << given;
        } else {
          ASSERT_EQ(found.pool[slot + static_cast<size_t>(i)], Round16(given, dtype)) << given;
        }
      }
    }
  }
}

}  // namespace
}  // namespace baton::backend::cuda
