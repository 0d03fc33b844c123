// Recurrent layers: what they compute against recurrence.h in double, and that neither cuts nor
// batches show.
#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/common/backend/cpu/test_backend.h"

namespace baton::backend {
namespace {

using Pages = std::vector<int32_t>;

constexpr int kLayer = 1;  // of two

size_t Index(int64_t i) { return static_cast<size_t>(i); }

struct PlaneShape {
  int64_t lanes;
  int depth;
};

// States of two layers of these planes, whose spots are scattered over the pages of several tables.
// All of it is NaN until it is written.
class StatePool {
 public:
  StatePool(Backend& backend, const std::vector<PlaneShape>& planes, int state_count,
            Random& random) {
    pool_.tables = 1 + random.Int(1, 4);
    pool_.state_tables = pool_.tables - 1;
    std::vector<int64_t> ends(Index(pool_.state_tables));
    for (int layer = 0; layer < 2; ++layer) {
      LayerState& state = pool_.states.emplace_back();
      for (const PlaneShape& shape : planes) {
        StatePlane& plane = state.emplace_back(StatePlane{shape.lanes, shape.depth, 0, {}});
        plane.spot_units = random.Of({1, 2, 3, 5, static_cast<int>(plane.units())});
        for (int64_t unit = 0; unit < plane.units(); unit += plane.spot_units) {
          const int table = random.Int(0, pool_.state_tables - 1);
          int64_t& end = ends[Index(table)];
          end += 64 * random.Int(0, 2);
          plane.spots.push_back({table, end});
          end += std::min<int64_t>(plane.spot_units, plane.units() - unit) * plane.unit_bytes();
        }
      }
    }
    pool_.block_stride_bytes = *std::max_element(ends.begin(), ends.end()) + 64;
    pool_.block_count = state_count * pool_.state_tables;
    memory_ =
        std::move(backend.Allocate(Index(pool_.block_count * pool_.block_stride_bytes))).value();
    pool_.base = static_cast<std::byte*>(memory_->data());
    std::memset(pool_.base, 0xff, memory_->size_bytes());
    free_.resize(Index(pool_.block_count));
    std::iota(free_.begin(), free_.end(), 0);
    std::shuffle(free_.begin(), free_.end(), std::mt19937(testing::TestSeed(7)));
  }

  const KvPool& kv() const { return pool_; }

  Pages Take() {
    BATON_CHECK(!free_.empty());
    const Pages pages(free_.end() - pool_.state_tables, free_.end());
    free_.resize(free_.size() - pages.size());
    return pages;
  }
  void Give(const Pages& pages) { free_.insert(free_.end(), pages.begin(), pages.end()); }

  // [lanes, depth]
  std::vector<float> Read(const Pages& pages, int plane_index) const {
    const StatePlane& plane = pool_.states[kLayer][Index(plane_index)];
    std::vector<float> values;
    for (int64_t lane = 0; lane < plane.lanes; ++lane) {
      const float* unit = UnitAt(plane, pages, lane / 16);
      for (int d = 0; d < plane.depth; ++d) values.push_back(unit[d * 16 + lane % 16]);
    }
    return values;
  }

  // Whether all is NaN but for one plane of one layer.
  bool HasOnly(int plane_index) const {
    std::vector<std::byte> bytes(pool_.base, pool_.base + memory_->size_bytes());
    for (int64_t page = 0; page < pool_.block_count; ++page) {
      const StatePlane& plane = pool_.states[kLayer][Index(plane_index)];
      for (int64_t unit = 0; unit < plane.units(); ++unit) {
        // Of any table: page by page, only those of its own are a unit's.
        const Pages pages(Index(pool_.state_tables), static_cast<int32_t>(page));
        const auto* at = reinterpret_cast<const std::byte*>(UnitAt(plane, pages, unit));
        std::memset(bytes.data() + (at - pool_.base), 0xff, Index(plane.unit_bytes()));
      }
    }
    return std::all_of(bytes.begin(), bytes.end(),
                       [](std::byte byte) { return byte == std::byte{0xff}; });
  }

 private:
  const float* UnitAt(const StatePlane& plane, const Pages& pages, int64_t unit) const {
    const StateSpot& spot = plane.spots[Index(unit / plane.spot_units)];
    return reinterpret_cast<const float*>(pool_.base +
                                          pages[Index(spot.table)] * pool_.block_stride_bytes +
                                          spot.offset + unit % plane.spot_units * plane.depth * 64);
  }

  KvPool pool_;
  std::unique_ptr<Buffer> memory_;
  Pages free_;
};

// One of the operations with states, of random shape and weights. Its inputs are columns of one
// tensor, with others between them.
class Operation {
 public:
  virtual ~Operation() = default;
  virtual std::string Text() const = 0;
  virtual std::vector<PlaneShape> Planes() const = 0;
  virtual int plane() const = 0;  // which it has
  virtual int64_t out_cols() const = 0;
  virtual DType out_dtype() const { return DType::kF32; }
  virtual void Run(Backend& backend, const DeviceBatch& batch, const KvPool& kv, const Tensor& in,
                   const Tensor& out) const = 0;
  // In double: one token's result; the state, [lanes, depth], moves on.
  virtual std::vector<double> Next(const float* in, std::vector<double>& state) const = 0;
  // Of `rows` tokens: [rows, in_cols()].
  virtual std::vector<float> Inputs(Random& random, int rows) const {
    return random.Floats(Index(rows * in_cols()));
  }

  int64_t in_cols() const { return in_cols_; }
  // First columns and counts of what is read.
  const std::vector<std::pair<int64_t, int64_t>>& read() const { return read_; }
  std::vector<double> ZeroState() const {
    const PlaneShape shape = Planes()[Index(plane())];
    return std::vector<double>(Index(shape.lanes * shape.depth));
  }

 protected:
  int64_t AddColumns(Random& random, int64_t count) {
    read_.emplace_back(in_cols_ + random.Int(0, 3), count);
    in_cols_ = read_.back().first + count + random.Int(0, 3);
    return read_.back().first;
  }
  static Tensor Slice(Tensor tensor, int64_t first, int64_t count) {
    tensor.data = static_cast<float*>(tensor.data) + first;
    tensor.cols = count;
    return tensor;
  }

 private:
  int64_t in_cols_ = 0;
  std::vector<std::pair<int64_t, int64_t>> read_;
};

double SigmoidOf(double x) { return 1 / (1 + std::exp(-x)); }
double Softplus(double x) { return x > 700 ? x : std::log1p(std::exp(x)); }

class Conv final : public Operation {
 public:
  Conv(Backend& backend, Random& random, bool small)
      : channels_(16 * (small ? random.Int(1, 2) : random.Of({1, 2, 3, 9, 70}))),
        taps_(random.Int(2, 8)),
        before_(random.Int(0, 1) == 1),
        after_(random.Int(0, 1) == 1),
        silu_(random.Int(0, 1) == 1),
        out_dtype_(random.Of({DType::kF32, backend.activation_dtype()})),
        weight_(random.Floats(Index(taps_ * channels_))),
        bias_(random.Floats(random.Int(0, 1) == 1 ? Index(channels_) : 0)),
        weight_memory_(BufferOf(backend, weight_)),
        bias_memory_(bias_.empty() ? nullptr : BufferOf(backend, bias_)) {
    if (before_) before_at_ = AddColumns(random, channels_);
    if (after_) after_at_ = AddColumns(random, channels_);
    x_at_ = AddColumns(random, channels_);
  }
  std::string Text() const override {
    return absl::StrCat("convolution of ", channels_, " channels, ", taps_, " taps, before ",
                        before_, ", after ", after_, ", silu ", silu_, ", bias ", !bias_.empty());
  }
  std::vector<PlaneShape> Planes() const override { return {{channels_, taps_ - 1}, {16, 16}}; }
  int plane() const override { return 0; }
  int64_t out_cols() const override { return channels_; }
  DType out_dtype() const override { return out_dtype_; }
  void Run(Backend& backend, const DeviceBatch& batch, const KvPool& kv, const Tensor& in,
           const Tensor& out) const override {
    backend.ShortConv(batch, kv,
                      {.layer = kLayer,
                       .taps = taps_,
                       .x = Slice(in, x_at_, channels_),
                       .before = before_ ? Slice(in, before_at_, channels_) : Tensor{},
                       .after = after_ ? Slice(in, after_at_, channels_) : Tensor{},
                       .weight = weight_memory_.get(),
                       .bias = bias_memory_.get(),
                       .silu = silu_,
                       .out = out});
  }
  std::vector<double> Next(const float* in, std::vector<double>& state) const override {
    std::vector<double> out;
    for (int64_t c = 0; c < channels_; ++c) {
      double* seen = state.data() + c * (taps_ - 1);
      const double u = double{in[x_at_ + c]} * (before_ ? in[before_at_ + c] : 1.0f);
      double y = bias_.empty() ? 0 : bias_[Index(c)];
      for (int j = 0; j < taps_; ++j) {
        y += weight_[Index(j * channels_ + c)] * (j < taps_ - 1 ? seen[j] : u);
      }
      std::copy(seen + 1, seen + taps_ - 1, seen);
      seen[taps_ - 2] = u;
      if (silu_) y *= SigmoidOf(y);
      out.push_back(after_ ? y * in[after_at_ + c] : y);
    }
    return out;
  }

 private:
  const int channels_, taps_;
  const bool before_, after_, silu_;
  const DType out_dtype_;
  const std::vector<float> weight_, bias_;
  const std::unique_ptr<Buffer> weight_memory_, bias_memory_;
  int64_t x_at_ = 0, before_at_ = 0, after_at_ = 0;
};

// What each head has: a decay and more.
struct HeadWeights {
  HeadWeights(Backend& backend, Random& random, int heads)
      : decay(random.Floats(Index(heads))),
        step_bias(random.Floats(Index(heads))),
        skip(random.Floats(Index(heads))) {
    for (float& value : decay) value = -std::exp(value - 1);
    decay_memory = BufferOf(backend, decay);
    step_bias_memory = BufferOf(backend, step_bias);
    skip_memory = BufferOf(backend, skip);
  }
  std::vector<float> decay, step_bias, skip;
  std::unique_ptr<Buffer> decay_memory, step_bias_memory, skip_memory;
};

class Delta final : public Operation {
 public:
  Delta(Backend& backend, Random& random, bool small)
      : key_heads_(random.Int(1, small ? 2 : 3)),
        heads_(key_heads_ * random.Of({1, 2, 4})),
        key_dim_(small ? 16 : random.Of({16, 32, 64, 64, 128, 512})),
        value_dim_(small ? 16 : random.Of({16, 32, 48, 64, 128})),
        keys_in_turn_(random.Int(0, 2) == 0),
        weights_(backend, random, heads_) {
    qkv_at_ = AddColumns(random, 2 * key_heads_ * key_dim_ + heads_ * value_dim_);
    gates_at_ = AddColumns(random, 2 * heads_);
  }
  std::string Text() const override {
    return absl::StrCat("delta rule of ", key_heads_, " key heads of ", key_dim_, ", ", heads_,
                        " value heads of ", value_dim_, keys_in_turn_ ? ", in turn" : "");
  }
  std::vector<PlaneShape> Planes() const override {
    return {{32, 3}, {heads_ * value_dim_, key_dim_}};
  }
  int plane() const override { return 1; }
  int64_t out_cols() const override { return heads_ * value_dim_; }
  std::vector<float> Inputs(Random& random, int rows) const override {
    std::vector<float> in = random.Floats(Index(rows * in_cols()));
    // Some gates are nearly open or shut; and no token has a key.
    for (int row = 0; row < rows; ++row) {
      float* gates = in.data() + row * in_cols() + gates_at_;
      for (int i = 0; i < 2 * heads_; ++i) gates[i] *= random.Of({1.0f, 3.0f, 30.0f});
      if (random.Int(0, 9) == 0) {
        std::fill_n(in.data() + row * in_cols() + qkv_at_ + key_heads_ * key_dim_, key_dim_, 0.0f);
      }
    }
    return in;
  }
  void Run(Backend& backend, const DeviceBatch& batch, const KvPool& kv, const Tensor& in,
           const Tensor& out) const override {
    backend.GatedDelta(batch, kv,
                       {.layer = kLayer,
                        .key_heads = key_heads_,
                        .keys_in_turn = keys_in_turn_,
                        .value_heads = heads_,
                        .key_dim = key_dim_,
                        .value_dim = value_dim_,
                        .qkv = Slice(in, qkv_at_, 2 * key_heads_ * key_dim_ + heads_ * value_dim_),
                        .gates = Slice(in, gates_at_, 2 * heads_),
                        .decay = weights_.decay_memory.get(),
                        .step_bias = weights_.step_bias_memory.get(),
                        .out = out});
  }
  std::vector<double> Next(const float* in, std::vector<double>& state) const override {
    std::vector<double> out;
    const float *b = in + gates_at_, *a = b + heads_;
    for (int h = 0; h < heads_; ++h) {
      const int key_head = keys_in_turn_ ? h % key_heads_ : h / (heads_ / key_heads_);
      std::vector<double> q = Normed(in + qkv_at_ + key_head * key_dim_);
      const std::vector<double> k = Normed(in + qkv_at_ + (key_heads_ + key_head) * key_dim_);
      for (double& value : q) value /= std::sqrt(key_dim_);
      const double g =
          std::exp(weights_.decay[Index(h)] * Softplus(a[h] + weights_.step_bias[Index(h)]));
      for (int c = 0; c < value_dim_; ++c) {
        double* s = state.data() + (h * value_dim_ + c) * int64_t{key_dim_};
        double product = 0, y = 0;
        for (int d = 0; d < key_dim_; ++d) product += k[Index(d)] * (s[d] *= g);
        const double v = in[qkv_at_ + 2 * key_heads_ * key_dim_ + h * value_dim_ + c];
        const double delta = SigmoidOf(b[h]) * (v - product);
        for (int d = 0; d < key_dim_; ++d) y += q[Index(d)] * (s[d] += k[Index(d)] * delta);
        out.push_back(y);
      }
    }
    return out;
  }

 private:
  std::vector<double> Normed(const float* x) const {
    double squares = 1e-6;
    for (int d = 0; d < key_dim_; ++d) squares += double{x[d]} * x[d];
    std::vector<double> y;
    for (int d = 0; d < key_dim_; ++d) y.push_back(x[d] / std::sqrt(squares));
    return y;
  }

  const int key_heads_, heads_, key_dim_, value_dim_;
  const bool keys_in_turn_;
  const HeadWeights weights_;
  int64_t qkv_at_ = 0, gates_at_ = 0;
};

class Space final : public Operation {
 public:
  Space(Backend& backend, Random& random, bool small)
      : groups_(random.Int(1, 2)),
        heads_(groups_ * random.Of({1, 3, 4})),
        head_dim_(small ? 16 : random.Of({16, 48, 64, 128})),
        state_dim_(small ? 16 : random.Of({16, 64, 128, 512})),
        least_step_(random.Of({0.0f, 0.01f})),
        most_step_(random.Of({1.5f, std::numeric_limits<float>::infinity()})),
        weights_(backend, random, heads_) {
    dt_at_ = AddColumns(random, heads_);
    xbc_at_ = AddColumns(random, heads_ * head_dim_ + 2 * groups_ * state_dim_);
  }
  std::string Text() const override {
    return absl::StrCat("state space of ", heads_, " heads of ", head_dim_, ", ", groups_,
                        " groups of ", state_dim_);
  }
  std::vector<PlaneShape> Planes() const override {
    return {{16, 2}, {heads_ * head_dim_, state_dim_}};
  }
  int plane() const override { return 1; }
  int64_t out_cols() const override { return heads_ * head_dim_; }
  void Run(Backend& backend, const DeviceBatch& batch, const KvPool& kv, const Tensor& in,
           const Tensor& out) const override {
    backend.StateSpace(batch, kv,
                       {.layer = kLayer,
                        .heads = heads_,
                        .head_dim = head_dim_,
                        .groups = groups_,
                        .state_dim = state_dim_,
                        .xbc = Slice(in, xbc_at_, heads_ * head_dim_ + 2 * groups_ * state_dim_),
                        .dt = Slice(in, dt_at_, heads_),
                        .decay = weights_.decay_memory.get(),
                        .step_bias = weights_.step_bias_memory.get(),
                        .skip = weights_.skip_memory.get(),
                        .least_step = least_step_,
                        .most_step = most_step_,
                        .out = out});
  }
  std::vector<double> Next(const float* in, std::vector<double>& state) const override {
    std::vector<double> out;
    for (int h = 0; h < heads_; ++h) {
      const float* b =
          in + xbc_at_ + heads_ * head_dim_ + h / (heads_ / groups_) * int64_t{state_dim_};
      const float* c = b + groups_ * state_dim_;
      const double step = std::clamp<double>(
          Softplus(double{in[dt_at_ + h]} + weights_.step_bias[Index(h)]), least_step_, most_step_);
      const double g = std::exp(step * weights_.decay[Index(h)]);
      for (int i = 0; i < head_dim_; ++i) {
        double* s = state.data() + (h * head_dim_ + i) * int64_t{state_dim_};
        const double x = in[xbc_at_ + h * head_dim_ + i];
        double y = weights_.skip[Index(h)] * x;
        for (int d = 0; d < state_dim_; ++d) {
          s[d] = g * s[d] + b[d] * step * x;
          y += c[d] * s[d];
        }
        out.push_back(y);
      }
    }
    return out;
  }

 private:
  const int groups_, heads_, head_dim_, state_dim_;
  const float least_step_, most_step_;
  const HeadWeights weights_;
  int64_t dt_at_ = 0, xbc_at_ = 0;
};

std::unique_ptr<Operation> MakeOperation(uint32_t kind, Backend& backend, Random& random,
                                         bool small = false) {
  if (kind % 3 == 0) return std::make_unique<Conv>(backend, random, small);
  if (kind % 3 == 1) return std::make_unique<Delta>(backend, random, small);
  return std::make_unique<Space>(backend, random, small);
}

// A sequence's tokens [context, context + count) in a step.
struct Part {
  const std::vector<float>* in = nullptr;  // of all its tokens
  int context = 0, count = 0;
  Pages state;  // or none
  std::vector<std::pair<int, Pages>> stores = {};
};

// One step of all parts; their results.
std::vector<std::vector<float>> Step(Backend& backend, const Operation& operation, const KvPool& kv,
                                     const std::vector<Part>& parts) {
  std::vector<std::vector<StateStore>> stores;
  std::vector<SequenceRows> sequences;
  std::vector<float> rows;
  int count = 0;
  for (const Part& part : parts) {
    std::vector<StateStore>& of_part = stores.emplace_back();
    for (const auto& [tokens, pages] : part.stores) of_part.push_back({tokens, pages});
    sequences.push_back({count, part.count, part.context, {}, part.state, {}});
    rows.insert(rows.end(), part.in->begin() + part.context * operation.in_cols(),
                part.in->begin() + (part.context + part.count) * operation.in_cols());
    count += part.count;
  }
  for (size_t i = 0; i < parts.size(); ++i) sequences[i].state_stores = stores[i];
  const std::vector<int32_t> tokens(Index(count));
  const auto batch = backend.Upload({tokens, sequences, {}});
  const Owned in(DType::kF32, count, operation.in_cols(), rows);
  const Owned out(operation.out_dtype(), count, operation.out_cols(), operation.out_cols() + 5);
  operation.Run(backend, *batch, kv, in, out);
  const std::vector<float> all = out.Values();
  std::vector<std::vector<float>> results;
  for (const SequenceRows& s : sequences) {
    results.emplace_back(all.begin() + s.first_row * operation.out_cols(),
                         all.begin() + (s.first_row + s.row_count) * operation.out_cols());
  }
  return results;
}

// All of a sequence in one step.
std::vector<float> Whole(Backend& backend, const Operation& operation, StatePool& pool,
                         const std::vector<float>& in) {
  const int tokens = static_cast<int>(static_cast<int64_t>(in.size()) / operation.in_cols());
  return Step(backend, operation, pool.kv(), {{&in, 0, tokens, {}, {{tokens, pool.Take()}}}})[0];
}

class RecurrenceTest : public ::testing::TestWithParam<Variant> {
 protected:
  RecurrenceTest() : backend_(Make(GetParam())), dtype_(backend_->activation_dtype()) {}
  std::unique_ptr<Backend> backend_;
  DType dtype_;
};

void ExpectNear(const std::vector<float>& got, const std::vector<double>& want, double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  double largest = 1;
  for (const double value : want) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < want.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], tolerance * largest) << "element " << i;
  }
}

// Sequences of different lengths, in two steps of all of them.
TEST_P(RecurrenceTest, IsWhatTheFormulaSays) {
  for (uint32_t seed = 0; seed < Seeds(GetParam(), 36); ++seed) {
    Random random(seed + 1);
    const auto operation = MakeOperation(seed, *backend_, random);
    SCOPED_TRACE(operation->Text());
    StatePool pool(*backend_, operation->Planes(), 8, random);
    const int sequences = random.Int(1, 4);
    std::vector<std::vector<float>> in;
    std::vector<Part> first, second;
    for (int s = 0; s < sequences; ++s) {
      const int tokens = random.Int(2, 50), cut = random.Int(1, tokens - 1);
      in.push_back(operation->Inputs(random, tokens));
      first.push_back({nullptr, 0, cut, {}, {{cut, pool.Take()}}});
      const Pages& left = first.back().stores[0].second;
      const Pages to = random.Int(0, 1) == 0 ? left : pool.Take();
      second.push_back({nullptr, cut, tokens - cut, left, {{tokens, to}}});
    }
    for (int s = 0; s < sequences; ++s) first[Index(s)].in = second[Index(s)].in = &in[Index(s)];
    const auto before = Step(*backend_, *operation, pool.kv(), first);
    const auto after = Step(*backend_, *operation, pool.kv(), second);
    const double rounding = operation->out_dtype() == DType::kF32 ? 3e-5 : 8e-3;
    for (int s = 0; s < sequences; ++s) {
      SCOPED_TRACE(absl::StrCat("sequence ", s, " of ", sequences));
      std::vector<float> got = before[Index(s)];
      got.insert(got.end(), after[Index(s)].begin(), after[Index(s)].end());
      std::vector<double> state = operation->ZeroState();
      const Part& last = second[Index(s)];
      for (int t = 0; t < last.context + last.count; ++t) {
        SCOPED_TRACE(absl::StrCat("token ", t));
        const auto row = got.begin() + t * operation->out_cols();
        ExpectNear({row, row + operation->out_cols()},
                   operation->Next(in[Index(s)].data() + t * operation->in_cols(), state),
                   rounding);
        if (HasFatalFailure()) return;
      }
      ExpectNear(pool.Read(last.stores[0].second, operation->plane()), state, 3e-5);
      if (HasFatalFailure()) return;
    }
    EXPECT_TRUE(pool.HasOnly(operation->plane())) << "memory of something else has changed";
  }
}

// Row by row, in one step with states left on the way, and in random steps beside another sequence,
// each of which goes on from the state that the one before it left, there or elsewhere, and perhaps
// computes more rows, which leave none: the same bits of every result and every state.
TEST_P(RecurrenceTest, NeitherCutsNorNeighboursShow) {
  for (uint32_t seed = 0; seed < Seeds(GetParam(), 24); ++seed) {
    Random random(seed + 1);
    const auto operation = MakeOperation(seed, *backend_, random);
    SCOPED_TRACE(operation->Text());
    StatePool pool(*backend_, operation->Planes(), 40, random);
    const int tokens = random.Int(1, 70), plane = operation->plane();
    const std::vector<float> in = operation->Inputs(random, tokens);

    std::vector<float> by_row;
    std::vector<std::vector<float>> states;  // behind so many tokens, less one
    const Pages row_pages = pool.Take();
    for (int t = 0; t < tokens; ++t) {
      const std::vector<float> row =
          Step(*backend_, *operation, pool.kv(),
               {{&in, t, 1, t == 0 ? Pages() : row_pages, {{t + 1, row_pages}}}})[0];
      by_row.insert(by_row.end(), row.begin(), row.end());
      states.push_back(pool.Read(row_pages, plane));
    }

    // Random stores up to `end`, the first of them perhaps to `from`.
    const auto stores_to = [&](int context, int end, const Pages& from) {
      std::vector<std::pair<int, Pages>> stores;
      for (int t = context + 1; t < end; ++t) {
        if (stores.size() < 5 && random.Int(0, 9) == 0) stores.emplace_back(t, pool.Take());
      }
      stores.emplace_back(end, pool.Take());
      if (!from.empty() && random.Int(0, 1) == 0) {
        pool.Give(stores[0].second);
        stores[0].second = from;
      }
      return stores;
    };
    const auto expect_states = [&](const std::vector<std::pair<int, Pages>>& stores) {
      for (const auto& [at, pages] : stores) {
        ExpectSame(pool.Read(pages, plane), states[Index(at - 1)],
                   absl::StrCat("state behind ", at, " tokens"));
      }
    };

    Part whole = {&in, 0, tokens, {}, stores_to(0, tokens, {})};
    ExpectSame(Step(*backend_, *operation, pool.kv(), {whole})[0], by_row, "in one step");
    expect_states(whole.stores);
    for (const auto& [at, pages] : whole.stores) pool.Give(pages);

    const int others = random.Int(1, 60);
    const std::vector<float> other_in = operation->Inputs(random, others);
    const Pages other_pages = pool.Take();
    std::vector<float> by_step;
    Pages left;
    for (int at = 0, other = 0; at < tokens;) {
      const int count = std::min(tokens - at, random.Of({1, 2, 15, 16, 17, 40}));
      const int more = std::min(others - other, random.Of({0, 1, 5, 40}));
      const int drafts = std::min(tokens - at - count, random.Of({0, 0, 1, 7, 20}));
      const Part mine = {&in, at, count + drafts, left, stores_to(at, at + count, left)};
      Part its = {&other_in, other, more, other == 0 ? Pages() : other_pages, {}};
      if (more > 0) its.stores = {{other + more, other_pages}};
      const bool first = random.Int(0, 1) == 0;
      const auto results =
          Step(*backend_, *operation, pool.kv(),
               first ? std::vector<Part>{mine, its} : std::vector<Part>{its, mine});
      const std::vector<float>& rows = results[first ? 0 : 1];
      const auto row_of = [&](int t) { return by_row.begin() + t * operation->out_cols(); };
      ExpectSame(rows, {row_of(at), row_of(at + count + drafts)},
                 absl::StrCat(drafts, " rows behind the last state of a step"));
      by_step.insert(by_step.end(), rows.begin(), rows.begin() + count * operation->out_cols());
      expect_states(mine.stores);
      for (const auto& [ignored, pages] : mine.stores) {
        if (pages != left && pages != mine.stores.back().second) pool.Give(pages);
      }
      if (!left.empty() && left != mine.stores.back().second) pool.Give(left);
      left = mine.stores.back().second;
      at += count;
      other += more;
    }
    ExpectSame(by_step, by_row, "in steps beside another sequence");
    if (HasFatalFailure()) return;
  }
}

// A NaN anywhere in what a row reads is in its result, and in no other sequence's.
TEST_P(RecurrenceTest, NaNsShowWhereTheyBelong) {
  for (uint32_t seed = 0; seed < Seeds(GetParam(), 12); ++seed) {
    Random random(seed + 1);
    const auto operation = MakeOperation(seed, *backend_, random, /*small=*/true);
    SCOPED_TRACE(operation->Text());
    StatePool pool(*backend_, operation->Planes(), 4, random);
    const std::vector<float> other = operation->Inputs(random, 3);
    const std::vector<float> in = operation->Inputs(random, 5);
    const std::vector<float> want = Whole(*backend_, *operation, pool, other);
    const Pages mine = pool.Take(), its = pool.Take();
    for (const auto& [first, count] : operation->read()) {
      for (int64_t column = first; column < first + count; ++column) {
        const int row = random.Int(0, 4);
        std::vector<float> with_nan = in;
        with_nan[Index(row * operation->in_cols() + column)] = std::nanf("");
        const auto results =
            Step(*backend_, *operation, pool.kv(),
                 {{&with_nan, 0, 5, {}, {{5, mine}}}, {&other, 0, 3, {}, {{3, its}}}});
        for (int t = 0; t <= row; ++t) {
          const auto begin = results[0].begin() + t * operation->out_cols();
          const bool shows = std::any_of(begin, begin + operation->out_cols(),
                                         [](float value) { return std::isnan(value); });
          ASSERT_EQ(shows, t == row) << "column " << column << ", row " << t << " of " << row;
        }
        ExpectSame(results[1], want, "another sequence");
        if (HasFatalFailure()) return;
      }
    }
  }
}

// Steps of state spaces, by themselves: a state of nothing, B and C that take its first row.
TEST_P(RecurrenceTest, StepsAreExactAndWithinBounds) {
  constexpr int kRows = 400, kCols = 16 + 2 * 16;
  Random random(1);
  StatePool pool(*backend_, {{16, 2}, {16, 16}}, kRows, random);
  const auto zero = BufferOf(*backend_, {0.0f}), decay = BufferOf(*backend_, {-1.0f});
  std::vector<float> dt = random.Floats(kRows, 10), xbc(kRows * kCols);
  const std::vector<float> odd = {-86, -30, -1e-3f, 0, 1e-3f, 19.9f, 20.1f, 90, 1e30f};
  std::copy(odd.begin(), odd.end(), dt.begin());
  std::vector<Pages> pages;
  std::vector<StateStore> stores(kRows);
  std::vector<SequenceRows> sequences;
  for (int row = 0; row < kRows; ++row) {
    xbc[Index(row * kCols)] = xbc[Index(row * kCols + 16)] = xbc[Index(row * kCols + 32)] = 1;
    pages.push_back(pool.Take());
  }
  for (int row = 0; row < kRows; ++row) {
    stores[Index(row)] = {1, pages[Index(row)]};
    sequences.push_back({row, 1, 0, {}, {}, absl::MakeSpan(&stores[Index(row)], 1)});
  }
  const std::vector<int32_t> tokens(kRows);
  const auto batch = backend_->Upload({tokens, sequences, {}});
  const Owned all(DType::kF32, kRows, kCols, xbc), steps(DType::kF32, kRows, 1, dt);
  const Owned out(DType::kF32, kRows, 16);
  for (const auto& [least, most] :
       {std::pair(0.0f, std::numeric_limits<float>::infinity()), {0.001f, 0.5f}}) {
    backend_->StateSpace(*batch, pool.kv(),
                         {.layer = kLayer,
                          .heads = 1,
                          .head_dim = 16,
                          .groups = 1,
                          .state_dim = 16,
                          .xbc = all,
                          .dt = steps,
                          .decay = decay.get(),
                          .step_bias = zero.get(),
                          .skip = zero.get(),
                          .least_step = least,
                          .most_step = most,
                          .out = out});
    const std::vector<float> got = out.Values();
    for (int row = 0; row < kRows; ++row) {
      const double want = std::clamp<double>(Softplus(dt[Index(row)]), least, most);
      ASSERT_NEAR(got[Index(row * 16)], want, 1e-6 * want) << "dt " << dt[Index(row)];
    }
  }
}

TEST_P(RecurrenceTest, GatedNorm) {
  for (uint32_t seed = 1; seed <= Seeds(GetParam(), 16); ++seed) {
    Random random(seed);
    const int group = random.Of({16, 24, 64, 128, 1000}), groups = random.Of({1, 2, 5});
    const int rows = random.Int(1, 30), cols = group * groups;
    const bool gate_first = random.Of({false, true}), of_group = random.Of({false, true});
    const std::vector<float> x = random.Floats(Index(rows * cols));
    const std::vector<float> gates = random.Floats(Index(rows * (cols + 7)), 3);
    const std::vector<float> w = random.Floats(Index(of_group ? group : cols));
    const auto weight = BufferOf(*backend_, w);
    const Owned in(DType::kF32, rows, cols, x), gate(DType::kF32, rows, cols + 7, gates);
    Tensor gate_columns = gate;
    gate_columns.data = static_cast<float*>(gate_columns.data) + 3;
    gate_columns.cols = cols;
    const Owned out(dtype_, rows, cols, cols + 3);
    backend_->GatedNorm({.x = in,
                         .gate = gate_columns,
                         .weight = weight.get(),
                         .weight_size = static_cast<int64_t>(w.size()),
                         .group = group,
                         .gate_first = gate_first,
                         .eps = 1e-3f,
                         .out = out});
    const std::vector<float> got = out.Values();
    for (int at = 0; at < rows * cols; at += group) {
      std::vector<double> want, silu;
      double squares = 0;
      for (int i = at; i < at + group; ++i) {
        const double g = gates[Index(i / cols * (cols + 7) + 3 + i % cols)];
        silu.push_back(g * SigmoidOf(g));
        want.push_back(gate_first ? silu.back() * x[Index(i)] : x[Index(i)]);
        squares += want.back() * want.back();
      }
      for (int i = 0; i < group; ++i) {
        double y = want[Index(i)] / std::sqrt(squares / group + double{1e-3f}) *
                   w[Index((at + i) % static_cast<int>(w.size()))];
        if (!gate_first) y *= silu[Index(i)];
        ASSERT_NEAR(got[Index(at + i)], y,
                    (dtype_ == DType::kF32 ? 3e-6 : 8e-3) * std::max(1e-3, std::abs(y)))
            << "element " << at + i << " in groups of " << group;
      }
    }
  }
}

TEST_P(RecurrenceTest, GateOutput) {
  for (uint32_t seed = 1; seed <= Seeds(GetParam(), 16); ++seed) {
    Random random(seed);
    const int group = random.Of({16, 20, 64, 128, 256}), groups = random.Of({1, 2, 5});
    const int stride = group + random.Of({0, 3, group}), rows = random.Int(1, 30);
    const int cols = group * groups, gate_cols = stride * (groups - 1) + group;
    const Owned x(dtype_, rows, cols, random.Floats(Index(rows * cols)));
    std::vector<float> gates = random.Floats(Index(rows * gate_cols), 5);
    gates[0] = 200, gates[1] = -60, gates[2] = std::nanf("");
    const Owned gate(DType::kF32, rows, gate_cols, gates);
    const std::vector<float> before = x.Values();
    backend_->GateOutput({.x = x, .gate = gate, .group = group, .gate_stride = stride});
    const std::vector<float> got = x.Values();
    EXPECT_TRUE(std::isnan(got[2]));
    for (int i = 0; i < rows * cols; ++i) {
      if (i == 2) continue;
      const int column = i % cols;
      const double g =
          gates[Index(i / cols * gate_cols + column / group * stride + column % group)];
      const double want = before[Index(i)] * SigmoidOf(g);
      ASSERT_NEAR(got[Index(i)], want, (dtype_ == DType::kF32 ? 1e-6 : 4e-3) * std::abs(want));
    }
  }
}

TEST_P(RecurrenceTest, AGateOfOneColumnCountsForAllOfARow) {
  for (uint32_t seed = 1; seed <= Seeds(GetParam(), 16); ++seed) {
    Random random(seed);
    const int rows = random.Int(1, 30), cols = random.Of({1, 16, 63, 64, 65, 200, 512});
    const Owned x(dtype_, rows, cols, random.Floats(Index(rows * cols)));
    const std::vector<float> gates = random.Floats(Index(rows), 5);
    const Owned gate(DType::kF32, rows, 1, gates);
    const std::vector<float> before = x.Values();
    backend_->GateOutput({.x = x, .gate = gate});
    const std::vector<float> got = x.Values();
    for (int i = 0; i < rows * cols; ++i) {
      const double want = before[Index(i)] * SigmoidOf(gates[Index(i / cols)]);
      ASSERT_NEAR(got[Index(i)], want, (dtype_ == DType::kF32 ? 1e-6 : 4e-3) * std::abs(want));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllVariants, RecurrenceTest, ::testing::ValuesIn(AllVariants()),
                         [](const auto& info) { return NameOf(info.param); });

// Each result of backends with the same text in Numerics, whatever their threads, has the same
// bits.
TEST(RecurrenceNumericsTest, SameTextSameBits) {
  std::vector<Variant> variants;
  for (const int threads : {1, 3}) {
    for (const Variant& variant : AllVariants(threads)) variants.push_back(variant);
  }
  std::map<std::string, std::vector<std::vector<float>>> first;  // by numerics
  for (const Variant& variant : variants) {
    SCOPED_TRACE(NameOf(variant));
    const auto backend = Make(variant);
    std::vector<std::vector<float>> results;
    for (uint32_t seed = 0; seed < 9; ++seed) {
      Random random(seed + 1);
      const auto operation = MakeOperation(seed, *backend, random);
      StatePool pool(*backend, operation->Planes(), 4, random);
      std::vector<std::vector<float>> in;
      for (const int tokens : {1, 33, 18}) in.push_back(operation->Inputs(random, tokens));
      std::vector<Part> parts;
      for (const int tokens : {1, 33, 18}) {
        parts.push_back({&in[parts.size()], 0, tokens, {}, {{tokens, pool.Take()}}});
      }
      for (auto& rows : Step(*backend, *operation, pool.kv(), parts)) {
        results.push_back(std::move(rows));
      }
      for (const Part& part : parts) {
        results.push_back(pool.Read(part.stores[0].second, operation->plane()));
      }
    }
    Random random(1);
    const Owned x(DType::kF32, 7, 120, random.Floats(7 * 120));
    const Owned gate(DType::kF32, 7, 120, random.Floats(7 * 120));
    const Owned out(backend->activation_dtype(), 7, 120);
    const auto weight = BufferOf(*backend, random.Floats(40));
    for (const bool gate_first : {false, true}) {
      backend->GatedNorm({.x = x,
                          .gate = gate,
                          .weight = weight.get(),
                          .weight_size = 40,
                          .group = 40,
                          .gate_first = gate_first,
                          .eps = 1e-6f,
                          .out = out});
      results.push_back(out.Values());
    }
    backend->GateOutput({.x = out, .gate = gate, .group = 40, .gate_stride = 40});
    results.push_back(out.Values());
    const auto [found, is_first] = first.try_emplace(backend->Numerics(), results);
    if (is_first) continue;
    for (size_t i = 0; i < results.size(); ++i) {
      ExpectSame(results[i], found->second[i],
                 absl::StrCat("result ", i, " of ", backend->Numerics()));
      if (HasFatalFailure()) return;
    }
  }
}

// What a batch must say of states.
TEST(RecurrenceDeathTest, StatesAreLeftBehindRows) {
  const auto backend = Make({&KernelsOf(BestIsa()), Compute::kF32, 1});
  Random random(1);
  const Conv conv(*backend, random, /*small=*/true);
  StatePool pool(*backend, conv.Planes(), 4, random);
  const std::vector<float> in = conv.Inputs(random, 4);
  const Pages pages = pool.Take();
  const auto step = [&](Part part) { Step(*backend, conv, pool.kv(), {std::move(part)}); };
  step({&in, 1, 3, {}, {{2, pages}, {4, pages}}});
  step({&in, 1, 3, {}, {{3, pages}}});
  EXPECT_DEATH(step({&in, 1, 3, {}, {}}), "no pages for the state");
  EXPECT_DEATH(step({&in, 1, 3, {}, {{5, pages}}}), "rows.context \\+ rows.row_count");
  EXPECT_DEATH(step({&in, 1, 3, {}, {{1, pages}, {4, pages}}}), "store.tokens");
  EXPECT_DEATH(step({&in, 1, 3, {}, {{3, pages}, {3, pages}, {4, pages}}}), "store.tokens");
  EXPECT_DEATH(step({&in, 1, 3, {}, {{4, Pages(pages.size(), pool.kv().block_count)}}}), "page ");
  EXPECT_DEATH(step({&in, 1, 3, {}, {{4, Pages(pages.size() + 1)}}}), "state_tables");
}

}  // namespace
}  // namespace baton::backend
