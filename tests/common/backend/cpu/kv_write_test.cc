// Latent attention: what the absorbed form computes against the expanded one, and that no batch
// shows.
#include <algorithm>

#include "tests/common/backend/cpu/test_backend.h"
#include "tests/testing/kv_rows.h"

namespace baton::backend {
namespace {

struct LatentShape {
  int heads, rank, rotated, plain, value_dim, block_tokens;
  DType kv;
  KvFormat format;
  int head_dim() const { return rank + rotated; }
  int q_width() const { return heads * (plain + rotated); }
};

LatentShape RandomShape(Random& random) {
  LatentShape shape = {};
  shape.heads = random.Of({1, 4, 5, 16, 20, 33});
  shape.rank = random.Of({16, 32, 64, 96, 512});
  shape.rotated = random.Of({4, 16, 32, 64});
  shape.plain = random.Int(1, 48);
  shape.value_dim = random.Int(1, 40);
  shape.block_tokens = random.Of({16, 16, 32});
  shape.kv = random.Of({DType::kF32, DType::kBF16, DType::kBF16});
  shape.format = random.Of({KvFormat::kPlain, KvFormat::kPlain, KvFormat::kPlain, KvFormat::kInt8,
                            KvFormat::kInt4, KvFormat::kFp8});
  return shape;
}

// A layer with random matrices, over a pool of two layers in which blocks are scattered.
class LatentLayer {
 public:
  LatentLayer(Backend& backend, const LatentShape& shape, int block_count, Random& random)
      : backend_(backend), shape_(shape), free_(static_cast<size_t>(block_count)) {
    pool_.block_count = block_count;
    pool_.kv_heads = 1;
    pool_.head_dim = shape.head_dim();
    pool_.latent_dim = shape.rank;
    pool_.block_tokens = shape.block_tokens;
    pool_.dtype = shape.kv;
    pool_.format = shape.format;
    pool_.layer_stride_bytes = pool_.chunk_heads() * pool_.head_bytes();
    pool_.block_stride_bytes = 2 * pool_.layer_stride_bytes;
    memory_ = std::move(backend.Allocate(static_cast<size_t>(block_count) *
                                         static_cast<size_t>(pool_.block_stride_bytes)))
                  .value();
    pool_.base = static_cast<std::byte*>(memory_->data());
    std::memset(pool_.base, shape.format == KvFormat::kPlain ? 0x42 : 0x7e, memory_->size_bytes());
    std::iota(free_.begin(), free_.end(), 0);
    std::shuffle(free_.begin(), free_.end(), std::mt19937(testing::TestSeed(7)));
    RopeSpec spec;
    for (int i = 0; i < shape.rotated / 2; ++i) {
      spec.inverse_frequencies.push_back(std::pow(100.0, -2.0 * i / shape.rotated));
    }
    rope_ = std::move(backend.MakeRopeTable(spec, 4000)).value();
    frequencies_ = spec.inverse_frequencies;
    norm_ = random.Floats(static_cast<size_t>(shape.rank));
    norm_memory_ = BufferOf(backend, norm_);
    const auto rank = static_cast<size_t>(shape.rank);
    keys_ = Rounded(random.Floats(static_cast<size_t>(shape.heads * shape.plain) * rank,
                                  1 / std::sqrt(static_cast<float>(rank))),
                    backend.activation_dtype());
    values_ = Rounded(random.Floats(static_cast<size_t>(shape.heads * shape.value_dim) * rank,
                                    1 / std::sqrt(static_cast<float>(rank))),
                      backend.activation_dtype());
    packed_keys_ = PackHeads(keys_, shape.rank, shape.plain);
    packed_values_ = PackHeads(values_, shape.value_dim, shape.rank);
  }

  std::vector<int32_t> TakeBlocks(int tokens) {
    const int count = (tokens + shape_.block_tokens - 1) / shape_.block_tokens;
    std::vector<int32_t> blocks(free_.end() - count, free_.end());
    free_.resize(free_.size() - static_cast<size_t>(count));
    return blocks;
  }

  // A sequence's rows [context, context + count) of q and kv.
  struct Part {
    const std::vector<int32_t>* blocks;
    const std::vector<float>* q;
    const std::vector<float>* kv;
    int context, count;
  };

  // One step of all parts; the heads' values per part.
  std::vector<std::vector<float>> Step(const std::vector<Part>& parts) {
    std::vector<SequenceRows> sequences;
    std::vector<float> q_rows, kv_rows;
    int count = 0;
    const auto add = [](const std::vector<float>& from, int width, const Part& part,
                        std::vector<float>& to) {
      to.insert(to.end(), from.begin() + int64_t{part.context} * width,
                from.begin() + int64_t{part.context + part.count} * width);
    };
    for (const Part& part : parts) {
      sequences.push_back({count, part.count, part.context, *part.blocks});
      add(*part.q, shape_.q_width(), part, q_rows);
      add(*part.kv, shape_.head_dim(), part, kv_rows);
      count += part.count;
    }
    const std::vector<int32_t> tokens(static_cast<size_t>(count));
    const auto batch = backend_.Upload({tokens, sequences, {}});
    const DType activation = backend_.activation_dtype();
    Owned q(DType::kF32, count, shape_.q_width(), q_rows);
    Owned kv(DType::kF32, count, shape_.head_dim(), kv_rows);
    Owned plain(activation, count, int64_t{shape_.heads} * shape_.plain);
    Owned absorbed(DType::kF32, count, int64_t{shape_.heads} * shape_.head_dim());
    Owned latents(activation, count, int64_t{shape_.heads} * shape_.rank);
    Owned values(DType::kF32, count, int64_t{shape_.heads} * shape_.value_dim);
    backend_.WriteLatentKv(*batch, pool_,
                           {.layer = 1,
                            .query_heads = shape_.heads,
                            .q = q,
                            .kv = kv,
                            .norm = norm_memory_.get(),
                            .norm_eps = kEps,
                            .rope = rope_.get(),
                            .q_plain = plain,
                            .q_out = absorbed});
    backend_.MatMulHeads({plain, packed_keys_.get(), absorbed, shape_.head_dim()});
    AttentionArgs args;
    args.layer = 1;
    args.query_heads = shape_.heads;
    args.scale = Scale();
    args.q = absorbed;
    args.out = latents;
    backend_.Attention(*batch, pool_, args);
    backend_.MatMulHeads({latents, packed_values_.get(), values, shape_.value_dim});
    const std::vector<float> all = values.Values();
    std::vector<std::vector<float>> results;
    const int64_t width = values.tensor().cols;
    for (const SequenceRows& s : sequences) {
      results.emplace_back(all.begin() + s.first_row * width,
                           all.begin() + (s.first_row + s.row_count) * width);
    }
    return results;
  }

  // In double, with keys and values expanded for each head, as a checkpoint's model is written: row
  // `position` of a sequence.
  std::vector<double> Expanded(const std::vector<float>& q, const std::vector<float>& kv,
                               int position) const {
    std::vector<std::vector<double>> latents, rotated;
    for (int t = 0; t <= position; ++t) {
      const float* row = kv.data() + int64_t{t} * shape_.head_dim();
      double square = 0;
      for (int i = 0; i < shape_.rank; ++i) square += double{row[i]} * row[i];
      const double rms = std::sqrt(square / shape_.rank + kEps);
      std::vector<double>& latent = latents.emplace_back();
      for (int i = 0; i < shape_.rank; ++i) {
        latent.push_back(row[i] / rms * norm_[static_cast<size_t>(i)]);
      }
      rotated.push_back(Rotated(row + shape_.rank, t));
    }
    std::vector<double> out;
    for (int head = 0; head < shape_.heads; ++head) {
      const float* of_head =
          q.data() + int64_t{position} * shape_.q_width() + head * (shape_.plain + shape_.rotated);
      const std::vector<double> q_rotated = Rotated(of_head + shape_.plain, position);
      std::vector<double> scores;
      for (int t = 0; t <= position; ++t) {
        double score = 0;
        for (int i = 0; i < shape_.plain; ++i) {
          score += of_head[i] * Product(keys_, head * shape_.plain + i, latents[Index(t)]);
        }
        for (size_t i = 0; i < q_rotated.size(); ++i) score += q_rotated[i] * rotated[Index(t)][i];
        scores.push_back(score * double{Scale()});
      }
      const double largest = *std::max_element(scores.begin(), scores.end());
      double sum = 0;
      for (double& score : scores) sum += score = std::exp(score - largest);
      for (int i = 0; i < shape_.value_dim; ++i) {
        double value = 0;
        for (int t = 0; t <= position; ++t) {
          value += scores[Index(t)] / sum *
                   Product(values_, head * shape_.value_dim + i, latents[Index(t)]);
        }
        out.push_back(value);
      }
    }
    return out;
  }

 private:
  static constexpr float kEps = 1e-6F;
  static size_t Index(int t) { return static_cast<size_t>(t); }
  float Scale() const { return 1 / std::sqrt(static_cast<float>(shape_.plain + shape_.rotated)); }

  // keys are transposed for each head, as the checkpoint has [plain, rank].
  std::unique_ptr<PackedMatrix> PackHeads(const std::vector<float>& matrix, int rows, int cols) {
    std::vector<std::vector<float>> heads;
    std::vector<HostMatrix> views;
    for (int head = 0; head < shape_.heads; ++head) {
      const float* from = matrix.data() + int64_t{head} * rows * cols;
      std::vector<float>& to =
          heads.emplace_back(static_cast<size_t>(rows) * static_cast<size_t>(cols));
      for (int r = 0; r < rows; ++r) {
        for (int c = 0; c < cols; ++c) {
          to[static_cast<size_t>(r * cols + c)] =
              rows == shape_.rank && &matrix == &keys_ ? from[c * rows + r] : from[r * cols + c];
        }
      }
      views.push_back({to.data(), DType::kF32, rows, cols});
    }
    return std::move(backend_.PackHeads(views)).value();
  }
  double Product(const std::vector<float>& matrix, int row,
                 const std::vector<double>& latent) const {
    double sum = 0;
    const float* from = matrix.data() + int64_t{row} * shape_.rank;
    for (size_t i = 0; i < latent.size(); ++i) sum += from[i] * latent[i];
    return sum;
  }
  std::vector<double> Rotated(const float* pairs, int position) const {
    std::vector<double> turned(static_cast<size_t>(shape_.rotated));
    for (size_t i = 0; i < frequencies_.size(); ++i) {
      const double c = std::cos(position * frequencies_[i]);
      const double s = std::sin(position * frequencies_[i]);
      turned[2 * i] = pairs[2 * i] * c - pairs[2 * i + 1] * s;
      turned[2 * i + 1] = pairs[2 * i + 1] * c + pairs[2 * i] * s;
    }
    return turned;
  }

  Backend& backend_;
  const LatentShape shape_;
  KvPool pool_;
  std::unique_ptr<Buffer> memory_, norm_memory_;
  std::unique_ptr<RopeTable> rope_;
  std::vector<double> frequencies_;
  std::vector<int32_t> free_;
  std::vector<float> norm_, keys_, values_;  // keys_: [heads * plain, rank]
  std::unique_ptr<PackedMatrix> packed_keys_, packed_values_;
};

class LatentAttentionTest : public ::testing::TestWithParam<Variant> {
 protected:
  LatentAttentionTest() : backend_(Make(GetParam())) {}
  std::unique_ptr<Backend> backend_;
};

TEST_P(LatentAttentionTest, IsWhatExpandedKeysAndValuesGive) {
  for (uint32_t seed = 1; seed <= Seeds(GetParam(), 8); ++seed) {
    Random random(seed);
    LatentShape shape = RandomShape(random);
    shape.kv = backend_->activation_dtype();
    shape.format = KvFormat::kPlain;
    LatentLayer layer(*backend_, shape, 60, random);
    const int tokens = random.Int(1, 300);
    const auto q = random.Floats(static_cast<size_t>(tokens * shape.q_width()));
    const auto kv = random.Floats(static_cast<size_t>(tokens * shape.head_dim()));
    const auto blocks = layer.TakeBlocks(tokens);
    const std::vector<float> got = layer.Step({{&blocks, &q, &kv, 0, tokens}})[0];
    const int width = shape.heads * shape.value_dim;
    const bool exact = backend_->activation_dtype() == DType::kF32;
    for (const int position : {0, tokens / 2, tokens - 1}) {
      const std::vector<double> want = layer.Expanded(q, kv, position);
      for (int i = 0; i < width; ++i) {
        ASSERT_NEAR(got[static_cast<size_t>(position * width + i)], want[static_cast<size_t>(i)],
                    exact ? 5e-5 : 6e-2)
            << "position " << position << ", element " << i << ", heads " << shape.heads
            << ", rank " << shape.rank << ", rotated " << shape.rotated << ", plain "
            << shape.plain;
      }
    }
  }
}

// Decoded row by row, in random chunks among other sequences, or in one step: the same bits.
TEST_P(LatentAttentionTest, NeitherChunkingNorNeighboursShow) {
  for (uint32_t seed = 1; seed <= Seeds(GetParam(), 8); ++seed) {
    Random random(seed);
    const LatentShape shape = RandomShape(random);
    LatentLayer layer(*backend_, shape, 300, random);
    const int tokens = random.Int(1, 400), others = random.Int(1, 300);
    const auto q = random.Floats(static_cast<size_t>(tokens * shape.q_width()));
    const auto kv = random.Floats(static_cast<size_t>(tokens * shape.head_dim()));
    const auto other_q = random.Floats(static_cast<size_t>(others * shape.q_width()));
    const auto other_kv = random.Floats(static_cast<size_t>(others * shape.head_dim()));
    const auto whole_blocks = layer.TakeBlocks(tokens), row_blocks = layer.TakeBlocks(tokens);
    const auto chunk_blocks = layer.TakeBlocks(tokens), other_blocks = layer.TakeBlocks(others);
    const std::vector<float> whole = layer.Step({{&whole_blocks, &q, &kv, 0, tokens}})[0];
    std::vector<float> by_row, by_chunk;
    for (int t = 0; t < tokens; ++t) {
      const std::vector<float> row = layer.Step({{&row_blocks, &q, &kv, t, 1}})[0];
      by_row.insert(by_row.end(), row.begin(), row.end());
    }
    ExpectSame(whole, by_row, "row by row");
    for (int at = 0, other = 0; at < tokens;) {
      const int count = std::min(tokens - at, random.Of({1, 3, 16, 40, 200}));
      const int more = std::min(others - other, random.Of({0, 1, 5, 100}));
      const bool first = random.Int(0, 1) == 0;
      const LatentLayer::Part mine = {&chunk_blocks, &q, &kv, at, count};
      const LatentLayer::Part its = {&other_blocks, &other_q, &other_kv, other, more};
      const auto results = first ? layer.Step({mine, its}) : layer.Step({its, mine});
      const std::vector<float>& rows = results[first ? 0 : 1];
      by_chunk.insert(by_chunk.end(), rows.begin(), rows.end());
      at += count;
      other += more;
    }
    ExpectSame(whole, by_chunk, "in chunks beside another sequence");
  }
}

INSTANTIATE_TEST_SUITE_P(AllVariants, LatentAttentionTest, ::testing::ValuesIn(AllVariants()),
                         [](const auto& info) { return NameOf(info.param); });

}  // namespace
}  // namespace baton::backend
