// backend.h on every device: what reads and writes the KV pool, over steps of several sequences,
// against float64.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "common/backend/backend.h"
#include "tests/common/backend/cuda/device_test.h"
#include "tests/testing/kv_rows.h"

namespace baton::backend {
namespace {

struct Shape {
  int kv_heads = 1, group = 1, head_dim = 64, block_tokens = 16, window = 0;
  int half = 4;  // of the rotated dims
  bool norms = false;
  float factor = 1;
  double query_beta = 0;
  float score_cap = 0;
  bool sinks = false;
  KvFormat format = KvFormat::kPlain;
  int query_heads() const { return kv_heads * group; }
  int row_width() const { return (query_heads() + 2 * kv_heads) * head_dim; }
};

constexpr int kLayers = 2, kLayer = 1, kMaxRows = 64, kPositions = 1024;
constexpr float kEps = 1e-5f;

class BackendKvTest : public DeviceTest {
 protected:
  void SetUp() override {}  // Make() makes it, for a shape

  struct Sequence {
    std::vector<float> qkv;  // of all its rows
    std::vector<int32_t> blocks;
    int length = 0, done = 0;
  };

  Shape AnyShape() {
    Shape shape;
    shape.kv_heads = Int(1, 2);
    shape.group = Of({1, 2, 3, 4, 5, 6, 7, 8, 17});
    shape.head_dim = Of({8, 64, 80, 96, 128, 256, 512, 8 * Int(1, 32)});
    shape.block_tokens = Of({16, 32});
    shape.window = Of({0, 0, 1, 20, 270});
    shape.half = 4 * Int(0, shape.head_dim / 8);
    shape.norms = Coin();
    shape.factor = Of({1.0f, 1.2f});
    shape.query_beta = Of({0.0, 0.0, 0.1});
    shape.score_cap = Of({0.0f, 0.0f, 50.0f, 2.0f});
    shape.sinks = Int(0, 2) == 0;
    shape.format = static_cast<KvFormat>(Int(0, 3));
    return shape;
  }

  // A new backend with a pool of NaNs, as it may hold what was never written.
  void Make(const Shape& shape, int block_count) {
    pool_memory_.reset();
    rope_.reset();
    sink_buffer_.reset();
    q_norm_.reset();
    k_norm_.reset();
    recorder_.reset();
    MakeBackend();
    shape_ = shape;
    StepLimits limits =
        Limits(kMaxRows, shape.query_heads(), shape.kv_heads, shape.head_dim, shape.block_tokens);
    limits.kv_format = shape.format;
    ASSERT_TRUE(backend_->Prepare(limits).ok());
    recorder_ = backend_->MakeStepRecorder();
    pool_ = {};
    pool_.dtype = activation();
    pool_.format = shape.format;
    pool_.kv_heads = shape.kv_heads;
    pool_.head_dim = shape.head_dim;
    pool_.block_tokens = shape.block_tokens;
    pool_.layer_stride_bytes = int64_t{2} * shape.kv_heads * pool_.head_bytes();
    pool_.block_stride_bytes = kLayers * pool_.layer_stride_bytes;
    pool_.block_count = block_count;
    expected_.assign(static_cast<size_t>(pool_.block_stride_bytes * block_count), std::byte{0xff});
    pool_memory_ = backend_->Allocate(expected_.size()).value();
    pool_.base = static_cast<std::byte*>(pool_memory_->data());
    backend_->CopyToDevice(pool_.base, expected_.data(), expected_.size());
    frequencies_.clear();
    for (int i = 0; i < shape.half; ++i) frequencies_.push_back(std::pow(0.3, i));
    rope_spec_ = {.inverse_frequencies = frequencies_,
                  .factor = shape.factor,
                  .query_beta = shape.query_beta,
                  .query_positions = 50};
    // Of heads that are not rotated at all, either a table of nothing or none.
    if (shape.half > 0 || shape.query_beta != 0 || Coin()) {
      rope_ = backend_->MakeRopeTable(rope_spec_, kPositions).value();
    }
    sinks_.clear();
    sink_buffer_.reset();
    if (shape.sinks) {
      sinks_ = Floats(shape.query_heads(), 3);
      sink_buffer_ = BufferOf(sinks_);
    }
    if (shape.norms) {
      q_weight_ = Floats(shape.head_dim);
      k_weight_ = Floats(shape.head_dim);
      q_norm_ = BufferOf(q_weight_);
      k_norm_ = BufferOf(k_weight_);
    }
    free_.resize(static_cast<size_t>(block_count));
    std::iota(free_.begin(), free_.end(), 0);
    std::shuffle(free_.begin(), free_.end(), random_);
  }

  Sequence NewSequence(int length) {
    Sequence sequence;
    sequence.length = length;
    sequence.qkv = Floats(int64_t{length} * shape_.row_width());
    GiveBlocks(sequence);
    return sequence;
  }
  void GiveBlocks(Sequence& sequence) {
    const int count = (sequence.length + shape_.block_tokens - 1) / shape_.block_tokens;
    sequence.blocks.assign(free_.end() - count, free_.end());
    free_.resize(free_.size() - static_cast<size_t>(count));
  }
  std::vector<std::byte> PoolBytes() {
    std::vector<std::byte> bytes(expected_.size());
    backend_->CopyToHost(bytes.data(), pool_.base, bytes.size());
    return bytes;
  }
  // Where a token's block and layer begin in the pool.
  int64_t ChunkOffset(const Sequence& sequence, int position) const {
    const auto block =
        static_cast<int64_t>(sequence.blocks[static_cast<size_t>(position / shape_.block_tokens)]);
    return block * pool_.block_stride_bytes + kLayer * pool_.layer_stride_bytes;
  }
  // Offset in the pool of a token's K (or V) of a head.
  int64_t Offset(const Sequence& sequence, int position, int k_or_v, int head) const {
    return ChunkOffset(sequence, position) +
           (int64_t{k_or_v} * shape_.kv_heads + head) * pool_.head_bytes() +
           position % shape_.block_tokens * pool_.row_bytes();
  }
  std::vector<float> KvRow(const Sequence& sequence, int position, int k_or_v, int head) const {
    return ReadKvRow(pool_, expected_.data() + ChunkOffset(sequence, position), k_or_v, head,
                     position % shape_.block_tokens)
        .values;
  }

  // A head of the product q, k, v after its norm and rotation, in double.
  std::vector<double> Turned(const Sequence& sequence, int position, int head, bool turn,
                             const std::vector<float>* weight) const {
    const auto d = static_cast<size_t>(shape_.head_dim);
    const float* from =
        &sequence.qkv[static_cast<size_t>(position) * static_cast<size_t>(shape_.row_width()) +
                      static_cast<size_t>(head) * d];
    std::vector<double> x(from, from + d);
    if (weight != nullptr) {
      double squares = 0;
      for (const double value : x) squares += value * value;
      const double scale = 1 / std::sqrt(squares / static_cast<double>(d) + 1e-5);
      for (size_t i = 0; i < d; ++i) x[i] *= scale * static_cast<double>((*weight)[i]);
    }
    for (size_t i = 0; turn && i < frequencies_.size(); ++i) {
      const double angle = position * frequencies_[i];
      const double c = std::cos(angle) * static_cast<double>(shape_.factor);
      const double s = std::sin(angle) * static_cast<double>(shape_.factor);
      const double low = x[i], high = x[i + frequencies_.size()];
      x[i] = low * c - high * s;
      x[i + frequencies_.size()] = high * c + low * s;
    }
    return x;
  }
  // Of one row, from what the pool holds.
  std::vector<double> Attended(const Sequence& sequence, int position, const float* q) const {
    const auto d = static_cast<size_t>(shape_.head_dim);
    std::vector<double> out;
    const int first = shape_.window > 0 ? std::max(0, position - shape_.window + 1) : 0;
    for (int kv = 0; kv < shape_.kv_heads; ++kv) {
      std::vector<std::vector<float>> k, v;
      for (int token = first; token <= position; ++token) {
        k.push_back(KvRow(sequence, token, 0, kv));
        v.push_back(KvRow(sequence, token, 1, kv));
      }
      for (int member = 0; member < shape_.group; ++member, q += d) {
        std::vector<double> weights(k.size()), sums(d);
        double highest = -1e300, total = 0;
        for (size_t t = 0; t < k.size(); ++t) {
          for (size_t i = 0; i < d; ++i) {
            weights[t] += static_cast<double>(q[i]) * static_cast<double>(k[t][i]);
          }
          weights[t] /= std::sqrt(static_cast<double>(d));
          if (shape_.score_cap != 0) {
            const auto cap = static_cast<double>(shape_.score_cap);
            weights[t] = cap * std::tanh(weights[t] / cap);
          }
          highest = std::max(highest, weights[t]);
        }
        if (shape_.sinks) {
          const auto sink =
              static_cast<double>(sinks_[static_cast<size_t>(kv * shape_.group + member)]);
          highest = std::max(highest, sink);
          total = std::exp(sink - highest);
        }
        for (double& weight : weights) total += weight = std::exp(weight - highest);
        for (size_t t = 0; t < k.size(); ++t) {
          for (size_t i = 0; i < d; ++i) {
            sums[i] += weights[t] / total * static_cast<double>(v[t][i]);
          }
        }
        out.insert(out.end(), sums.begin(), sums.end());
      }
    }
    return out;
  }

  struct Part {
    Sequence* sequence;
    int count;
  };
  struct Rows {
    std::vector<float> q, out;
  };
  // RopeWriteKv and Attention of the sequences' next rows; at_once: as one operation, and of one
  // row a sequence as a step that can be recorded. Then q is undefined.
  Rows Step(const std::vector<Part>& parts, bool at_once = false) {
    std::vector<SequenceRows> sequences;
    std::vector<float> values;
    int rows = 0;
    for (const Part& part : parts) {
      const Sequence& s = *part.sequence;
      sequences.push_back({rows, part.count, s.done, s.blocks});
      const auto begin = s.qkv.begin() + int64_t{s.done} * shape_.row_width();
      values.insert(values.end(), begin, begin + int64_t{part.count} * shape_.row_width());
      rows += part.count;
    }
    const std::vector<int32_t> tokens(static_cast<size_t>(rows));
    std::unique_ptr<DeviceBatch> batch;
    const int used = rows;
    if (at_once && sequences.size() == tokens.size()) {
      std::vector<int32_t> logit_rows(tokens.size());
      std::iota(logit_rows.begin(), logit_rows.end(), 0);
      if (recorder_ != nullptr) {
        PaddedBatch padded = recorder_->Upload({tokens, sequences, logit_rows});
        batch = std::move(padded.batch);
        rows = padded.rows;
      }
    }
    if (batch == nullptr) {
      batch = backend_->Upload({tokens, sequences, {}});
      rows = used;
    }
    const int width = shape_.query_heads() * shape_.head_dim;
    values.resize(static_cast<size_t>(rows) * static_cast<size_t>(shape_.row_width()));
    const DeviceTensor qkv = With(DType::kF32, rows, shape_.row_width(), values);
    const DeviceTensor q = Empty(DType::kF32, rows, width);
    const DeviceTensor out = Empty(activation(), rows, width);
    RopeWriteArgs write;
    write.layer = kLayer;
    write.query_heads = shape_.query_heads();
    write.qkv = qkv;
    write.q_norm = q_norm_.get();
    write.k_norm = k_norm_.get();
    write.norm_eps = kEps;
    write.rope = rope_.get();
    write.q_out = q;
    AttentionArgs attend;
    attend.layer = kLayer;
    attend.query_heads = shape_.query_heads();
    attend.scale = 1 / std::sqrt(static_cast<float>(shape_.head_dim));
    attend.window = shape_.window;
    attend.score_cap = shape_.score_cap;
    attend.sinks = sink_buffer_.get();
    attend.q = q;
    attend.out = out;
    if (at_once) {
      backend_->RopeWriteAttend(*batch, pool_, write, attend);
    } else {
      backend_->RopeWriteKv(*batch, pool_, write);
      backend_->Attention(*batch, pool_, attend);
    }
    backend_->RecordEvent()->Wait();
    for (const Part& part : parts) part.sequence->done += part.count;
    Rows results = {q.Get(), out.Get()};
    results.out.resize(static_cast<size_t>(used * width));
    return results;
  }

  // What the step wrote, where, and that it wrote nothing else.
  void CheckWritten(const std::vector<Part>& parts, const Rows& rows) {
    const std::vector<std::byte> bytes = PoolBytes();
    const auto d = static_cast<size_t>(shape_.head_dim);
    const std::vector<float>* q_weight = shape_.norms ? &q_weight_ : nullptr;
    const std::vector<float>* k_weight = shape_.norms ? &k_weight_ : nullptr;
    size_t at = 0;
    for (const Part& part : parts) {
      const Sequence& s = *part.sequence;
      for (int position = s.done - part.count; position < s.done; ++position) {
        for (int head = 0; head < shape_.query_heads(); ++head) {
          for (double value : Turned(s, position, head, true, q_weight)) {
            if (shape_.query_beta != 0) {
              value *= 1 + shape_.query_beta * std::log(1 + std::floor(position / 50));
            }
            ASSERT_NEAR(rows.q[at++], value, 1e-4 * (1 + std::fabs(value)))
                << "q of position " << position << ", head " << head;
          }
        }
        for (int k_or_v = 0; k_or_v < 2; ++k_or_v) {
          for (int head = 0; head < shape_.kv_heads; ++head) {
            const int source = shape_.query_heads() + k_or_v * shape_.kv_heads + head;
            const std::vector<double> values =
                Turned(s, position, source, k_or_v == 0, k_or_v == 0 ? k_weight : nullptr);
            const int64_t offset = Offset(s, position, k_or_v, head);
            const auto found = ReadKvRow(pool_, bytes.data() + ChunkOffset(s, position), k_or_v,
                                         head, position % shape_.block_tokens);
            for (size_t i = 0; i < d; ++i) {
              const double bound = pool_.format == KvFormat::kPlain
                                       ? std::fabs(values[i]) * Precision(pool_.dtype)
                                       : KvErrorBound(pool_.format, found, values[i]);
              ASSERT_NEAR(found.values[i], values[i], bound + 1e-4)
                  << (k_or_v ? "V" : "K") << " of position " << position << ", dim " << i;
            }
            std::copy_n(bytes.begin() + offset, pool_.row_bytes(), expected_.begin() + offset);
            const int64_t in_block = position % shape_.block_tokens;
            const int64_t parameters = KvRowParameterBytes(pool_.format);
            const int64_t behind = offset - in_block * pool_.row_bytes() +
                                   shape_.block_tokens * pool_.row_bytes() + in_block * parameters;
            std::copy_n(bytes.begin() + behind, parameters, expected_.begin() + behind);
          }
        }
      }
    }
    ASSERT_EQ(std::memcmp(bytes.data(), expected_.data(), bytes.size()), 0)
        << "the pool changed where no token is";
  }
  void CheckAttended(const std::vector<Part>& parts, const Rows& rows) {
    const double tolerance = activation() == DType::kF32   ? 3e-5
                             : activation() == DType::kF16 ? 6e-3
                                                           : 5e-2;
    const auto width = static_cast<size_t>(shape_.query_heads() * shape_.head_dim);
    size_t row = 0;
    for (const Part& part : parts) {
      const int last = part.sequence->done - 1;
      for (int position = last - part.count + 1; position <= last; ++position, ++row) {
        // Of long chunks some.
        if (part.count > 6 && position != last && Int(0, 5) > 0) continue;
        const std::vector<double> expected =
            Attended(*part.sequence, position, &rows.q[row * width]);
        for (size_t i = 0; i < width; ++i) {
          ASSERT_NEAR(rows.out[row * width + i], expected[i], tolerance)
              << "position " << position << ", element " << i;
        }
      }
    }
  }
  // The next rows of each sequence, in chunks of any size, or one of each.
  std::vector<Part> AnyParts(std::vector<Sequence>& sequences, bool one) {
    std::vector<Part> parts;
    int rows = 0;
    for (Sequence& sequence : sequences) {
      const int left = std::min(sequence.length - sequence.done, kMaxRows - rows);
      const int count = std::min(left, one ? 1 : Of({0, 1, 1, 3, Int(1, 40), kMaxRows}));
      if (count > 0) parts.push_back({&sequence, count});
      rows += count;
    }
    return parts;
  }

  Shape shape_;
  std::unique_ptr<StepRecorder> recorder_;  // null where there is none
  KvPool pool_;
  std::unique_ptr<Buffer> pool_memory_, q_norm_, k_norm_;
  std::unique_ptr<Buffer> sink_buffer_;
  std::unique_ptr<RopeTable> rope_;
  RopeSpec rope_spec_;
  std::vector<float> sinks_;
  std::vector<double> frequencies_;
  std::vector<float> q_weight_, k_weight_;
  std::vector<std::byte> expected_;  // of the pool
  std::vector<int32_t> free_;
};

INSTANTIATE_TEST_SUITE_P(Devices, BackendKvTest, ::testing::ValuesIn(baton::testing::Devices()),
                         NameOfDevice);

TEST_P(BackendKvTest, StepsOfSequencesEqualTheReferenceHoweverTheyAreCut) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < Rounds(8); ++round) {
    const Shape shape = AnyShape();
    SCOPED_TRACE(::testing::Message()
                 << "round " << round << ": " << shape.kv_heads << " x " << shape.group
                 << " heads of " << shape.head_dim << ", blocks of " << shape.block_tokens
                 << ", window " << shape.window << ", rotated " << 2 * shape.half << ", cap "
                 << shape.score_cap << ", sinks " << shape.sinks << ", beta " << shape.query_beta
                 << ", format " << static_cast<int>(shape.format));
    Make(shape, 110);
    std::vector<Sequence> sequences;
    // One of them reaches into a second split.
    for (const int length : {Int(1, 60), Int(1, 90), Int(257, 300)}) {
      sequences.push_back(NewSequence(length));
    }
    // The results' bits by sequence and position.
    std::map<std::pair<size_t, int>, std::vector<float>> whole;
    const auto width = static_cast<ptrdiff_t>(shape.query_heads() * shape.head_dim);
    for (int pass = 0; pass < 2; ++pass) {
      while (std::any_of(sequences.begin(), sequences.end(),
                         [](const Sequence& s) { return s.done < s.length; })) {
        // The second time as one operation, often of decode steps.
        const std::vector<Part> parts = AnyParts(sequences, pass == 1 && Coin());
        if (parts.empty()) continue;
        const Rows rows = Step(parts, pass == 1);
        if (pass == 0) {
          CheckWritten(parts, rows);
          CheckAttended(parts, rows);
          if (HasFatalFailure()) return;
        }
        auto at = rows.out.begin();
        for (const Part& part : parts) {
          const auto index = static_cast<size_t>(part.sequence - sequences.data());
          for (int position = part.sequence->done - part.count; position < part.sequence->done;
               ++position, at += width) {
            std::vector<float> row(at, at + width);
            const auto [known, is_new] = whole.try_emplace({index, position}, std::move(row));
            if (is_new) continue;
            ASSERT_TRUE(std::equal(at, at + width, known->second.begin()))
                << "another cut shows at position " << position << " of sequence " << index;
          }
        }
      }
      // Again from the start, in other blocks and other chunks.
      for (Sequence& sequence : sequences) {
        sequence.done = 0;
        if (pass == 0) GiveBlocks(sequence);
      }
    }
  }
}

// The CUDA backend fuses some of these heads, and others not.
TEST_P(BackendKvTest, RopeWriteAttendHasTheBitsOfTheTwoOperations) {
  SCOPED_TRACE(seed_);
  for (const auto& [group, head_dim] :
       {std::pair(1, 64), {3, 256}, {16, 128}, {17, 64}, {20, 96}, {2, 512}}) {
    Shape shape = AnyShape();
    shape.group = group;
    shape.head_dim = head_dim;
    shape.window = Of({0, 20, 270});
    shape.half = 4 * Int(0, head_dim / 8);
    SCOPED_TRACE(::testing::Message()
                 << shape.kv_heads << " x " << group << " heads of " << head_dim << ", window "
                 << shape.window << ", format " << static_cast<int>(shape.format));
    Make(shape, 60);
    std::vector<Sequence> sequences;
    for (const int length : {Int(1, 40), Int(257, 290), Int(1, 300)}) {
      sequences.push_back(NewSequence(length));
    }
    std::vector<Part> last;
    for (Sequence& sequence : sequences) {
      while (sequence.done < sequence.length - 1) {
        Step({{&sequence, std::min(kMaxRows, sequence.length - 1 - sequence.done)}});
      }
      last.push_back({&sequence, 1});
    }
    const std::vector<std::byte> before = PoolBytes();
    const Rows apart = Step(last);
    const std::vector<std::byte> written = PoolBytes();
    backend_->CopyToDevice(pool_.base, before.data(), before.size());
    for (Sequence& sequence : sequences) --sequence.done;
    const Rows together = Step(last, /*at_once=*/true);
    ASSERT_EQ(together.out, apart.out);
    // A fused launch keeps its queries to itself.
    const bool fuses = recorder_ != nullptr && group <= 16 && head_dim <= 256;
    ASSERT_EQ(std::equal(apart.q.begin(), apart.q.end(), together.q.begin()), !fuses);
    ASSERT_TRUE(PoolBytes() == written);
    ASSERT_FALSE(written == before);
  }
}

TEST_P(BackendKvTest, CopiesWholeBlocks) {
  SCOPED_TRACE(seed_);
  Shape shape;
  shape.head_dim = 8;
  // More than are copied at once.
  const int count = 2300;
  Make(shape, count);
  for (std::byte& byte : expected_) byte = static_cast<std::byte>(random_());
  backend_->CopyToDevice(pool_.base, expected_.data(), expected_.size());
  for (const int targets : {0, 1, 1024, 1100}) {
    std::shuffle(free_.begin(), free_.end(), random_);
    std::vector<int32_t> sources, copies(free_.begin(), free_.begin() + targets);
    for (int i = 0; i < targets; ++i) {
      sources.push_back(free_[static_cast<size_t>(Int(targets, count - 1))]);  // repeated, too
    }
    backend_->CopyBlocks(pool_, sources, copies);
    for (int i = 0; i < targets; ++i) {
      std::memcpy(&expected_[static_cast<size_t>(copies[static_cast<size_t>(i)] *
                                                 pool_.block_stride_bytes)],
                  &expected_[static_cast<size_t>(sources[static_cast<size_t>(i)] *
                                                 pool_.block_stride_bytes)],
                  static_cast<size_t>(pool_.block_stride_bytes));
    }
    ASSERT_EQ(PoolBytes(), expected_) << targets << " blocks";
  }
}

TEST_P(BackendKvTest, TheCopierMovesChunks) {
  SCOPED_TRACE(seed_);
  Shape shape;
  shape.kv_heads = 2;
  shape.head_dim = 80;
  shape.format = static_cast<KvFormat>(Int(0, 3));
  Make(shape, 30);
  const std::unique_ptr<KvCopier> copier = backend_->MakeKvCopier(pool_);
  ASSERT_EQ(copier == nullptr, on_cpu());
  if (on_cpu()) return;
  const auto chunk = static_cast<size_t>(pool_.layer_stride_bytes);
  for (int round = 0; round < 10; ++round) {
    std::shuffle(free_.begin(), free_.end(), random_);
    const std::vector<int32_t> blocks(free_.begin(), free_.begin() + Int(1, 30));
    SlotRange slots = {.first = Int(0, kLayers - 1)};
    slots.count = Int(1, kLayers - slots.first);
    // The i-th chunk of `host`: page after page and, of each, slot after slot.
    const size_t chunks = static_cast<size_t>(slots.count) * blocks.size();
    const auto place = [&](size_t i) {
      const auto of_page = static_cast<size_t>(slots.count);
      const auto slot = slots.first + static_cast<int64_t>(i % of_page);
      return expected_.begin() + blocks[i / of_page] * pool_.block_stride_bytes +
             slot * pool_.layer_stride_bytes;
    };
    std::vector<std::byte> host(chunks * chunk);
    if (Coin()) {
      for (std::byte& byte : host) byte = static_cast<std::byte>(random_());
      copier->Write(slots, blocks, host.data());
      for (size_t i = 0; i < chunks; ++i) {
        std::copy_n(host.begin() + static_cast<ptrdiff_t>(i * chunk), chunk, place(i));
      }
    } else {
      // What the compute stream copied just before.
      backend_->CopyBlocks(pool_, {free_.back()}, {blocks[0]});
      std::copy_n(expected_.begin() + free_.back() * pool_.block_stride_bytes,
                  pool_.block_stride_bytes,
                  expected_.begin() + blocks[0] * pool_.block_stride_bytes);
      const std::unique_ptr<Event> written = backend_->RecordEvent();
      copier->Read(slots, blocks, written.get(), host.data());
      EXPECT_TRUE(written->Done());
      for (size_t i = 0; i < chunks; ++i) {
        ASSERT_TRUE(std::equal(place(i), place(i) + static_cast<ptrdiff_t>(chunk),
                               host.begin() + static_cast<ptrdiff_t>(i * chunk)))
            << "round " << round << ", chunk " << i;
      }
    }
    ASSERT_EQ(PoolBytes(), expected_) << "round " << round;
  }
}

class BackendKvDeathTest : public BackendKvTest {
 protected:
  void SetUp() override {
    if (on_gpu()) GTEST_SKIP() << "a process that has a GPU does not fork";
    GTEST_FLAG_SET(death_test_style, "threadsafe");
    Make(Shape(), 8);
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, BackendKvDeathTest,
                         ::testing::ValuesIn(baton::testing::Devices()), NameOfDevice);

TEST_P(BackendKvDeathTest, BlocksAreOfThePool) {
  Sequence sequence = NewSequence(20);
  for (const int32_t block : {-1, 8}) {
    sequence.blocks[1] = block;
    EXPECT_DEATH(Step({{&sequence, 20}}), "block");
  }
  const std::vector<int32_t> good = {1}, beyond = {8}, below = {-1};
  EXPECT_DEATH(backend_->CopyBlocks(pool_, good, beyond), "block 8");
  EXPECT_DEATH(backend_->CopyBlocks(pool_, below, good), "block -1");
  EXPECT_DEATH(backend_->CopyBlocks(pool_, good, {}), "CHECK failed");
  sequence = NewSequence(20);
  sequence.blocks.pop_back();
  EXPECT_DEATH(Step({{&sequence, 20}}), "CHECK failed");
}

TEST_P(BackendKvDeathTest, PositionsAreOfTheRopeTable) {
  rope_ = backend_->MakeRopeTable(rope_spec_, 19).value();
  Sequence sequence = NewSequence(20);
  EXPECT_DEATH(Step({{&sequence, 20}}), "CHECK failed");
  Step({{&sequence, 19}});
}

TEST_P(BackendKvDeathTest, ThePoolIsTheOneThatWasPreparedFor) {
  if (on_cpu()) GTEST_SKIP() << "the CPU prepares nothing";
  Sequence sequence = NewSequence(4);
  const KvPool pool = pool_;
  pool_.kv_heads = 2;
  EXPECT_DEATH(Step({{&sequence, 4}}), "CHECK failed");
  pool_ = pool;
  pool_.head_dim = 32;
  EXPECT_DEATH(Step({{&sequence, 4}}), "CHECK failed");
  pool_ = pool;
  pool_.block_tokens = 32;
  EXPECT_DEATH(Step({{&sequence, 4}}), "CHECK failed");
  pool_ = pool;
  pool_.format = KvFormat::kInt8;
  EXPECT_DEATH(Step({{&sequence, 4}}), "CHECK failed");
  pool_ = pool;
  pool_.dtype = DType::kF32;
  EXPECT_DEATH(Step({{&sequence, 4}}), "CHECK failed");
}

}  // namespace
}  // namespace baton::backend
