#include <algorithm>
#include <map>

#include "tests/common/backend/cpu/test_backend.h"
#include "tests/testing/kv_rows.h"
#include "tests/testing/seed.h"

namespace baton::backend {
namespace {

struct Shape {
  int kv_heads, group, head_dim, block_tokens, window;
  DType kv;
  KvFormat format;
  float cap = 0;       // of scores
  bool sinks = false;  // kv_heads * group of them
  int turned = 3;      // pairs of a head's dimensions, by RoPE
  int query_heads() const { return kv_heads * group; }
  int row_width() const { return (query_heads() + 2 * kv_heads) * head_dim; }
};

// A pool with sequences in scattered blocks, and the rows that were written to it.
class ScatteredSequences {
 public:
  ScatteredSequences(Backend& backend, const Shape& shape, int block_count, Random& random)
      : backend_(backend), shape_(shape), free_(block_count) {
    pool_.block_count = block_count;
    pool_.kv_heads = shape.kv_heads;
    pool_.head_dim = shape.head_dim;
    pool_.block_tokens = shape.block_tokens;
    pool_.dtype = shape.kv;
    pool_.format = shape.format;
    pool_.layer_stride_bytes = 2 * shape.kv_heads * pool_.head_bytes();
    pool_.block_stride_bytes = 2 * pool_.layer_stride_bytes;  // two layers; tests use the second
    memory_ = std::move(backend.Allocate(block_count * pool_.block_stride_bytes)).value();
    pool_.base = static_cast<std::byte*>(memory_->data());
    // What earlier sequences left behind must not show.
    if (shape.format == KvFormat::kPlain) {
      const size_t elements = memory_->size_bytes() / SizeOf(shape.kv);
      const std::vector<float> rest = random.Floats(elements, 3);
      ConvertElements(rest.data(), DType::kF32, elements, shape.kv, pool_.base);
    } else {
      std::memset(pool_.base, random.Of({0xff, 0x7e, 0x51}), memory_->size_bytes());
    }
    std::iota(free_.begin(), free_.end(), 0);
    std::shuffle(free_.begin(), free_.end(), std::mt19937(testing::TestSeed(7)));
    RopeSpec spec = {.inverse_frequencies = {1.0, 0.1, 0.03}};
    spec.inverse_frequencies.resize(std::min(shape.turned, shape.head_dim / 2));
    rope_ = std::move(backend.MakeRopeTable(spec, 100000)).value();
    if (!shape.sinks) return;
    Random sink_random(99);  // the same for pools of one shape
    sinks_ = sink_random.Floats(shape.query_heads(), 3);
    sink_memory_ = BufferOf(backend, sinks_);
  }

  std::vector<int32_t> TakeBlocks(int tokens) {
    const int count = (tokens + shape_.block_tokens - 1) / shape_.block_tokens;
    std::vector<int32_t> blocks(free_.end() - count, free_.end());
    free_.resize(free_.size() - count);
    return blocks;
  }

  struct Part {
    const std::vector<int32_t>* blocks;
    const std::vector<float>* qkv;  // of the whole sequence
    int context, count;
  };

  // One step: RopeWriteKv and Attention for all parts; the result per part.
  std::vector<std::vector<float>> Step(const std::vector<Part>& parts) {
    std::vector<SequenceRows> sequences;
    std::vector<float> rows;
    int count = 0;
    const int width = shape_.row_width();
    for (const Part& part : parts) {
      sequences.push_back({count, part.count, part.context, *part.blocks});
      rows.insert(rows.end(), part.qkv->begin() + int64_t{part.context} * width,
                  part.qkv->begin() + int64_t{part.context + part.count} * width);
      count += part.count;
    }
    const std::vector<int32_t> tokens(count);
    auto batch = backend_.Upload({tokens, sequences, {}});
    Owned qkv(DType::kF32, count, width, rows);
    Owned q(DType::kF32, count, shape_.query_heads() * shape_.head_dim);
    Owned out(backend_.activation_dtype(), count, shape_.query_heads() * shape_.head_dim);
    RopeWriteArgs write;
    write.layer = 1;
    write.query_heads = shape_.query_heads();
    write.qkv = qkv;
    write.rope = rope_.get();
    write.q_out = q;
    backend_.RopeWriteKv(*batch, pool_, write);
    AttentionArgs args;
    args.layer = 1;
    args.query_heads = shape_.query_heads();
    args.scale = 1.0f / std::sqrt(static_cast<float>(shape_.head_dim));
    args.score_cap = shape_.cap;
    args.window = shape_.window;
    args.sinks = sink_memory_.get();
    args.q = q;
    args.out = out;
    backend_.Attention(*batch, pool_, args);
    last_q_ = q.Values();
    const std::vector<float> all = out.Values();
    std::vector<std::vector<float>> results;
    const int64_t out_width = out.tensor().cols;
    for (const SequenceRows& s : sequences) {
      results.emplace_back(all.begin() + s.first_row * out_width,
                           all.begin() + (s.first_row + s.row_count) * out_width);
    }
    return results;
  }

  std::vector<float> KvValues(const std::vector<int32_t>& blocks, int position, int k_or_v,
                              int head) {
    const std::byte* chunk = pool_.base +
                             blocks[position / shape_.block_tokens] * pool_.block_stride_bytes +
                             pool_.layer_stride_bytes;
    return ReadKvRow(pool_, chunk, k_or_v, head, position % shape_.block_tokens).values;
  }
  const std::vector<float>& last_q() const { return last_q_; }
  const std::vector<float>& sinks() const { return sinks_; }

 private:
  Backend& backend_;
  Shape shape_;
  KvPool pool_;
  std::unique_ptr<Buffer> memory_;
  std::unique_ptr<RopeTable> rope_;
  std::vector<int32_t> free_;
  std::vector<float> last_q_;
  std::vector<float> sinks_;
  std::unique_ptr<Buffer> sink_memory_;
};

// One row, from what the pool holds, in double.
std::vector<double> Reference(ScatteredSequences& pool, const Shape& shape,
                              const std::vector<int32_t>& blocks, const float* q, int position) {
  const int d = shape.head_dim;
  std::vector<double> out(shape.query_heads() * d);
  const int first = shape.window > 0 ? std::max(0, position - shape.window + 1) : 0;
  for (int kv = 0; kv < shape.kv_heads; ++kv) {
    std::vector<std::vector<float>> k, v;
    for (int t = first; t <= position; ++t) {
      k.push_back(pool.KvValues(blocks, t, 0, kv));
      v.push_back(pool.KvValues(blocks, t, 1, kv));
    }
    for (int head = kv * shape.group; head < (kv + 1) * shape.group; ++head) {
      std::vector<double> scores(k.size());
      double max = -1e300, sum = 0;
      for (size_t t = 0; t < k.size(); ++t) {
        for (int i = 0; i < d; ++i) scores[t] += double{q[head * d + i]} * k[t][i];
        scores[t] /= std::sqrt(static_cast<double>(d));
        if (shape.cap > 0) scores[t] = shape.cap * std::tanh(scores[t] / shape.cap);
        max = std::max(max, scores[t]);
      }
      for (double& s : scores) sum += s = std::exp(s - max);
      if (shape.sinks) sum += std::exp(pool.sinks()[head] - max);
      for (size_t t = 0; t < k.size(); ++t) {
        for (int i = 0; i < d; ++i) out[head * d + i] += scores[t] / sum * v[t][i];
      }
    }
  }
  return out;
}

class AttentionTest : public ::testing::TestWithParam<Variant> {
 protected:
  AttentionTest() : backend_(Make(GetParam())) {}

  Shape RandomShape(Random& random) {
    const int group = random.Of({1, 2, 3, 4, 5, 6, 7, 8});
    const int head_dim = random.Of({32, 64, 80, 96, 128, 256, 512, 48, 40});
    return {random.Int(1, 3),
            group,
            head_dim,
            random.Of({16, 16, 16, 32, 8}),
            random.Of({0, 0, 17, 300}),
            random.Of({DType::kF32, DType::kBF16, DType::kBF16, DType::kF16}),
            random.Of({KvFormat::kPlain, KvFormat::kPlain, KvFormat::kPlain, KvFormat::kInt8,
                       KvFormat::kInt4, KvFormat::kFp8}),
            random.Of({0.0f, 0.0f, 2.0f, 50.0f}),
            random.Of({0, 0, 1}) == 1};
  }

  std::unique_ptr<Backend> backend_;
};

TEST_P(AttentionTest, IsSoftmaxOverWhatThePoolHolds) {
  for (uint32_t seed = 1; seed <= Seeds(GetParam(), 10); ++seed) {
    Random random(seed);
    const Shape shape = RandomShape(random);
    ScatteredSequences pool(*backend_, shape, 100, random);
    const int context = random.Int(0, 500), count = random.Int(1, 30);
    const std::vector<float> qkv = random.Floats((context + count) * shape.row_width());
    const std::vector<int32_t> blocks = pool.TakeBlocks(context + count);
    if (context > 0) pool.Step({{&blocks, &qkv, 0, context}});
    const std::vector<float> got = pool.Step({{&blocks, &qkv, context, count}})[0];
    const int width = shape.query_heads() * shape.head_dim;
    const bool low = (shape.kv == DType::kBF16 && shape.format == KvFormat::kPlain) ||
                     backend_->activation_dtype() == DType::kBF16;
    for (int r = 0; r < count; ++r) {
      const std::vector<double> want =
          Reference(pool, shape, blocks, pool.last_q().data() + r * width, context + r);
      for (int i = 0; i < width; ++i) {
        ASSERT_NEAR(got[r * width + i], want[i], low ? 2e-2 : 2e-5)
            << "row " << r << " of " << count << " after " << context << ", element " << i << ", d "
            << shape.head_dim << " group " << shape.group << " window " << shape.window;
      }
    }
  }
}

// Decoded row by row, in one chunk, in random chunks, among other sequences: the same bits.
TEST_P(AttentionTest, NeitherChunkingNorNeighboursShow) {
  for (uint32_t seed = 1; seed <= Seeds(GetParam(), 8); ++seed) {
    Random random(seed);
    const Shape shape = RandomShape(random);
    ScatteredSequences pool(*backend_, shape, 1200, random);
    const int tokens = random.Int(1, 550);
    const std::vector<float> qkv = random.Floats(tokens * shape.row_width());
    const std::vector<int32_t> whole_blocks = pool.TakeBlocks(tokens);
    const std::vector<float> whole = pool.Step({{&whole_blocks, &qkv, 0, tokens}})[0];

    const std::vector<int32_t> row_blocks = pool.TakeBlocks(tokens);
    std::vector<float> by_row;
    for (int t = 0; t < tokens; ++t) {
      const std::vector<float> row = pool.Step({{&row_blocks, &qkv, t, 1}})[0];
      by_row.insert(by_row.end(), row.begin(), row.end());
    }
    ExpectSame(whole, by_row, "row by row");

    const int others = random.Int(1, 4);
    const int longest = 700;
    const std::vector<float> other_qkv = random.Floats(longest * shape.row_width());
    std::vector<std::vector<int32_t>> other_blocks;
    std::vector<int> other_context(others);
    for (int i = 0; i < others; ++i) other_blocks.push_back(pool.TakeBlocks(longest));
    const std::vector<int32_t> chunk_blocks = pool.TakeBlocks(tokens);
    std::vector<float> by_chunk;
    for (int at = 0; at < tokens;) {
      const int count = std::min(tokens - at, random.Of({1, 3, 16, 40, 200}));
      std::vector<ScatteredSequences::Part> parts;
      const int mine = random.Int(0, others);
      for (int i = 0; i <= others; ++i) {
        if (i == mine) parts.push_back({&chunk_blocks, &qkv, at, count});
        if (i == others) break;
        const int more = std::min(longest - other_context[i], random.Of({0, 1, 5, 100}));
        parts.push_back({&other_blocks[i], &other_qkv, other_context[i], more});
        other_context[i] += more;
      }
      const std::vector<float> rows = pool.Step(parts)[mine];
      by_chunk.insert(by_chunk.end(), rows.begin(), rows.end());
      at += count;
    }
    ExpectSame(whole, by_chunk, "in chunks among others");
  }
}

// As if K and V had been rounded before they were written, those of the step's own rows included.
TEST_P(AttentionTest, Bfloat16KvIsRoundedFloat32Kv) {
  if (backend_->activation_dtype() != DType::kF32) return;
  for (uint32_t seed = 1; seed <= Seeds(GetParam(), 10); ++seed) {
    Random random(seed);
    Shape shape = RandomShape(random);
    shape.format = KvFormat::kPlain;
    shape.turned = 0;  // or K would be rounded before it is turned
    const int tokens = random.Int(1, 550), width = shape.row_width();
    const std::vector<float> qkv = random.Floats(tokens * width);
    std::vector<float> rounded_qkv = qkv;
    for (int t = 0; t < tokens; ++t) {
      const auto row = rounded_qkv.begin() + t * width;
      const auto kv = row + shape.query_heads() * shape.head_dim;
      std::ranges::copy(Rounded({kv, row + width}, DType::kBF16), kv);
    }
    shape.kv = DType::kBF16;
    ScatteredSequences narrow(*backend_, shape, 80, random);
    shape.kv = DType::kF32;
    ScatteredSequences wide(*backend_, shape, 80, random);
    const std::vector<int32_t> blocks = narrow.TakeBlocks(tokens);
    ASSERT_EQ(wide.TakeBlocks(tokens), blocks);
    for (int at = 0; at < tokens;) {
      const int count = std::min(tokens - at, random.Of({1, 5, 70, 300}));
      ExpectSame(narrow.Step({{&blocks, &qkv, at, count}})[0],
                 wide.Step({{&blocks, &rounded_qkv, at, count}})[0], "rows");
      at += count;
    }
  }
}

TEST_P(AttentionTest, ThreadsDoNotShow) {
  Variant alone = GetParam();
  alone.threads = 1;
  auto other = Make(alone);
  for (uint32_t seed = 1; seed <= Seeds(GetParam(), 2); ++seed) {
    std::vector<std::vector<float>> results[2];
    for (int i = 0; i < 2; ++i) {
      Random random(seed);
      const Shape shape = RandomShape(random);
      ScatteredSequences pool(i == 0 ? *backend_ : *other, shape, 600, random);
      const std::vector<float> qkv = random.Floats(1600 * shape.row_width());
      const std::vector<int32_t> longer = pool.TakeBlocks(1600), shorter = pool.TakeBlocks(100);
      pool.Step({{&longer, &qkv, 0, 1500}, {&shorter, &qkv, 0, 90}});
      results[i] = pool.Step({{&longer, &qkv, 1500, 1}, {&shorter, &qkv, 90, 10}});
    }
    ExpectSame(results[0][0], results[1][0], "long sequence");
    ExpectSame(results[0][1], results[1][1], "short sequence");
  }
}

INSTANTIATE_TEST_SUITE_P(AllVariants, AttentionTest, ::testing::ValuesIn(AllVariants()),
                         [](const auto& info) { return NameOf(info.param); });

}  // namespace
}  // namespace baton::backend
