// The kernels of recurrent layers on the emulated device against references in double over random
// shapes, and the bits of sequences that are cut, or beside others.
#include "common/backend/cuda/kernels/recurrence.h"

#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <utility>

#include "common/backend/recurrence.h"
#include "tests/common/backend/cuda/kernels/kernel_test.h"

namespace baton::backend::cuda {
namespace {

using Pages = std::vector<int32_t>;

size_t Index(int64_t i) { return static_cast<size_t>(i); }
double SigmoidOf(double x) { return 1 / (1 + std::exp(-x)); }
double SoftplusOf(double x) { return x > 700 ? x : std::log1p(std::exp(x)); }

// A recurrence of random shape and weights. Its operands are columns of one array of rows.
struct Operation {
  std::string text;
  int64_t lanes = 0;  // of the state
  int depth = 0;
  int in_cols = 0, out_cols = 0;
  DType out_dtype = DType::kF32;
  struct Rows {
    const float* in = nullptr;
    int64_t in_stride = 0;
    void* out = nullptr;
    int64_t out_stride = 0;
    const int32_t* positions = nullptr;
    const int32_t* sequence_of_row = nullptr;
    int rows = 0, sequences = 0;
  };
  std::function<void(const StatePlaces&, const Rows&)> launch;
  // One token's result; the state, [lanes][depth], moves on.
  std::function<std::vector<double>(const float* in, std::vector<double>& state)> next;
};

// The sequence's tokens [context, context + count) in a step.
struct Part {
  const std::vector<float>* in = nullptr;  // of all its tokens
  int context = 0, count = 0;
  Pages state;  // or none
  std::vector<std::pair<int, Pages>> stores = {};
};

class CudaRecurrenceTest : public KernelTest {
 protected:
  template <class T>
  T Of(std::initializer_list<T> values) {
    return *(values.begin() + Int(0, static_cast<int>(values.size()) - 1));
  }
  DeviceArray<float>* Keep(int64_t count, const std::function<float()>& value) {
    kept_.push_back(std::make_unique<DeviceArray<float>>(Index(count)));
    for (int64_t i = 0; i < count; ++i) (*kept_.back())[Index(i)] = value();
    return kept_.back().get();
  }
  DeviceArray<float>* KeepNormal(int64_t count) {
    return Keep(count, [&] { return Normal(); });
  }

  // kernel: of six.
  Operation Conv(int kernel) {
    const int channels = 16 * Of({1, 2, 7, 8, 9, 17});
    const int taps = kernel % 2 == 0 ? Int(2, 4) : Int(5, 8);
    const bool before = Coin(), after = Coin(), silu = Coin(), has_bias = Coin();
    const auto* weight = KeepNormal(taps * channels);
    const auto* bias = KeepNormal(channels);
    const int before_at = Int(0, 3), after_at = before_at + channels * before + Int(0, 3);
    const int x_at = after_at + channels * after + Int(0, 3);
    Operation operation;
    operation.text = "convolution of " + std::to_string(channels) + " channels, " +
                     std::to_string(taps) + " taps";
    operation.lanes = operation.out_cols = channels;
    operation.depth = taps - 1;
    operation.in_cols = x_at + channels;
    operation.out_dtype = static_cast<DType>(kernel / 2);
    const DType dtype = operation.out_dtype;
    operation.launch = [=, this](const StatePlaces& state, const Operation::Rows& rows) {
      ShortConvLaunch launch = {};
      launch.state = state;
      launch.positions = rows.positions;
      launch.sequence_of_row = rows.sequence_of_row;
      launch.x = rows.in + x_at;
      launch.before = before ? rows.in + before_at : nullptr;
      launch.after = after ? rows.in + after_at : nullptr;
      launch.x_stride = launch.before_stride = launch.after_stride = rows.in_stride;
      launch.weight = weight->data();
      launch.bias = has_bias ? bias->data() : nullptr;
      launch.out = rows.out;
      launch.out_stride = rows.out_stride;
      launch.channels = channels;
      launch.taps = taps;
      launch.rows = rows.rows;
      launch.rows_of_block = Of({1, 2, 5, kMostConvRows});
      launch.silu = silu;
      LaunchShortConv(launch, dtype, nullptr);
    };
    operation.next = [=](const float* in, std::vector<double>& state) {
      std::vector<double> out;
      for (int c = 0; c < channels; ++c) {
        double* seen = state.data() + c * (taps - 1);
        const double u = double{in[x_at + c]} * (before ? in[before_at + c] : 1.0f);
        double y = has_bias ? (*bias)[Index(c)] : 0;
        for (int j = 0; j < taps; ++j) {
          y += (*weight)[Index(j * channels + c)] * (j < taps - 1 ? seen[j] : u);
        }
        std::copy(seen + 1, seen + taps - 1, seen);
        seen[taps - 2] = u;
        if (silu) y *= SigmoidOf(y);
        out.push_back(after ? y * in[after_at + c] : y);
      }
      return out;
    };
    return operation;
  }

  // What both recurrences with heads have; `inner` computes one head.
  struct HeadShape {
    int keys, heads, depth, lanes;
  };
  // kernel: of three.
  HeadShape Heads(int kernel) {
    HeadShape shape = {};
    shape.keys = Int(1, 2);
    shape.heads = shape.keys * Int(1, 3);
    shape.depth = kernel == 0   ? Of({16, 32, 48, 64, 128, 128})
                  : kernel == 1 ? Of({144, 208, 256})
                                : Of({272, 512});
    shape.lanes = 16 * Int(1, shape.depth > 128 ? 2 : 5);
    return shape;
  }
  Operation OfHeads(bool delta, int kernel) {
    const HeadShape s = Heads(kernel);
    const int64_t all_keys = int64_t{s.keys} * s.depth, all_lanes = int64_t{s.heads} * s.lanes;
    const auto* decay = Keep(s.heads, [&] { return -std::exp(Normal() - 1); });
    const auto* bias = KeepNormal(s.heads);
    const auto* skip = KeepNormal(s.heads);
    const float least = Of({0.0f, 0.01f});
    const float most = Of({1.5f, std::numeric_limits<float>::infinity()});
    const int heads_of_key = delta && Int(0, 2) == 0 ? 1 : s.heads / s.keys;  // 1: in turn
    const int gates_at = Int(0, 3), gates = (delta ? 2 : 1) * s.heads;
    const int64_t first = gates_at + gates + Int(0, 3);
    // Queries, keys and values, or x, B and C.
    const int64_t queries = delta ? first : first + all_lanes + all_keys;
    const int64_t keys = first + (delta ? all_keys : all_lanes);
    const int64_t values = delta ? first + 2 * all_keys : first;
    Operation operation;
    operation.text = (delta ? "delta rule of " : "state space of ") + std::to_string(s.keys) +
                     " keys of " + std::to_string(s.depth) + ", " + std::to_string(s.heads) +
                     " heads of " + std::to_string(s.lanes);
    operation.lanes = operation.out_cols = static_cast<int>(all_lanes);
    operation.depth = s.depth;
    operation.in_cols = static_cast<int>(first + 2 * all_keys + all_lanes);
    operation.launch = [=](const StatePlaces& state, const Operation::Rows& rows) {
      HeadsLaunch launch = {};
      launch.state = state;
      launch.queries = rows.in + queries;
      launch.keys = rows.in + keys;
      launch.values = rows.in + values;
      launch.gates = rows.in + gates_at;
      launch.row_stride = launch.gates_stride = rows.in_stride;
      launch.decay = decay->data();
      launch.step_bias = bias->data();
      launch.skip = delta ? nullptr : skip->data();
      launch.out = static_cast<float*>(rows.out);
      launch.out_stride = rows.out_stride;
      launch.heads = s.heads;
      launch.heads_of_key = heads_of_key;
      launch.key_heads = s.keys;
      launch.lanes = s.lanes;
      launch.norm_eps = kDeltaNormEps;
      launch.query_factor = 1 / std::sqrt(static_cast<float>(s.depth));
      launch.least_step = least;
      launch.most_step = most;
      (delta ? LaunchGatedDelta : LaunchStateSpace)(launch, rows.sequences, nullptr);
    };
    operation.next = [=](const float* in, std::vector<double>& state) {
      std::vector<double> out;
      for (int h = 0; h < s.heads; ++h) {
        const int64_t key = int64_t{h / heads_of_key % s.keys} * s.depth;
        const auto row = [&](int64_t at) {
          std::vector<double> x(in + at + key, in + at + key + s.depth);
          double squares = double{kDeltaNormEps};
          for (const double value : x) squares += value * value;
          for (double& value : x) value /= delta ? std::sqrt(squares) : 1;
          return x;
        };
        std::vector<double> q = row(queries), k = row(keys);
        if (delta) {
          for (double& value : q) value /= std::sqrt(s.depth);
        }
        double step = SoftplusOf(double{in[gates_at + (delta ? s.heads : 0) + h]} +
                                 double{(*bias)[Index(h)]});
        if (!delta) step = std::clamp<double>(step, least, most);
        const double g = std::exp(double{(*decay)[Index(h)]} * step);
        const double rate = delta ? SigmoidOf(in[gates_at + h]) : step;
        for (int lane = 0; lane < s.lanes; ++lane) {
          double* const S = state.data() + (h * s.lanes + lane) * int64_t{s.depth};
          const double v = in[values + h * s.lanes + lane];
          double product = 0, y = delta ? 0 : double{(*skip)[Index(h)]} * v;
          for (int d = 0; d < s.depth; ++d) product += k[Index(d)] * (S[d] *= g);
          const double input = rate * (delta ? v - product : v);
          for (int d = 0; d < s.depth; ++d) y += q[Index(d)] * (S[d] += k[Index(d)] * input);
          out.push_back(y);
        }
      }
      return out;
    };
    return operation;
  }
  // The first 18 rounds have every kernel: drawn alone, one may be missing.
  Operation RandomOperation(int round) {
    kept_.clear();
    return round % 3 == 0 ? Conv(round / 3 % 6) : OfHeads(round % 3 == 1, round / 3 % 3);
  }

  // A pool of `states` states, whose spots are scattered over the pages of several tables. All of
  // it is NaN until it is written.
  void MakePool(const Operation& operation, int states) {
    operation_ = &operation;
    tables_ = Int(1, 3);
    const auto units = static_cast<int>(operation.lanes / kUnitLanes);
    const int64_t unit_bytes = int64_t{operation.depth} * kUnitLanes * 4;
    spot_units_ = Of({1, 2, 3, units});
    std::vector<int64_t> ends(Index(tables_));
    std::vector<SpotEntry> spots;
    for (int unit = 0; unit < units; unit += spot_units_) {
      const int table = Int(0, tables_ - 1);
      int64_t& end = ends[Index(table)];
      end += 64 * Int(0, 2);
      spots.push_back({static_cast<uint32_t>(table), static_cast<uint32_t>(end)});
      end += std::min(spot_units_, units - unit) * unit_bytes;
    }
    page_bytes_ = *std::max_element(ends.begin(), ends.end()) + 64;
    const int pages = states * tables_;
    pool_ = std::make_unique<DeviceArray<std::byte>>(Index(pages * page_bytes_));
    memory_ = std::make_unique<BlockMemory>(pool_->data(), pages, page_bytes_, Coin());
    spots_ = std::make_unique<DeviceArray<SpotEntry>>(spots);
    free_.resize(Index(pages));
    std::iota(free_.begin(), free_.end(), 0);
    std::shuffle(free_.begin(), free_.end(), random_);
  }
  Pages Take() {
    const Pages pages(free_.end() - tables_, free_.end());
    free_.resize(free_.size() - pages.size());
    return pages;
  }
  const float* UnitAt(const Pages& pages, int64_t unit) const {
    const SpotEntry& spot = (*spots_)[Index(unit / spot_units_)];
    return reinterpret_cast<const float*>(pool_->data() + pages[spot.table] * page_bytes_ +
                                          spot.offset) +
           unit % spot_units_ * operation_->depth * kUnitLanes;
  }
  // [lanes][depth]
  std::vector<float> Read(const Pages& pages) const {
    std::vector<float> values;
    for (int64_t lane = 0; lane < operation_->lanes; ++lane) {
      const float* unit = UnitAt(pages, lane / kUnitLanes);
      for (int d = 0; d < operation_->depth; ++d) {
        values.push_back(unit[d * kUnitLanes + lane % kUnitLanes]);
      }
    }
    return values;
  }
  // Whether all memory but that of states is as it was.
  bool OnlyStatesWritten(const std::vector<Pages>& written) const {
    std::vector<std::byte> bytes = pool_->values();
    for (const Pages& pages : written) {
      for (int64_t unit = 0; unit < operation_->lanes / kUnitLanes; ++unit) {
        const auto* at = reinterpret_cast<const std::byte*>(UnitAt(pages, unit));
        std::memset(bytes.data() + (at - pool_->data()), 0xff,
                    Index(operation_->depth) * kUnitLanes * 4);
      }
    }
    return pool_->MarginsIntact() && std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) {
             return byte == std::byte{0xff};
           });
  }

  std::vector<float> Inputs(int rows) {
    std::vector<float> in(Index(rows * operation_->in_cols));
    for (float& value : in) value = Normal();
    return in;
  }

  // One step of all parts, perhaps with padding behind them; their results, in float32.
  std::vector<std::vector<float>> Step(const std::vector<Part>& parts) {
    ChangeMachine();
    const Operation& operation = *operation_;
    const int padding = Int(0, 2), sequences = static_cast<int>(parts.size()) + padding;
    std::vector<StateEntry> entries;
    std::vector<int32_t> tables(Index(Int(0, 3)), -1'000'000), positions, sequence_of_row;
    std::vector<float> in;
    const int64_t in_stride = operation.in_cols + Int(0, 3);
    const auto place = [&] { return static_cast<int32_t>(tables.size()); };
    const auto add_pages = [&](const Pages& pages) {
      const Pages numbers = memory_->Numbers(pages);
      tables.insert(tables.end(), numbers.begin(), numbers.end());
    };
    for (const Part& part : parts) {
      StateEntry entry = {static_cast<int32_t>(positions.size()), part.count, -1, 0,
                          static_cast<int32_t>(part.stores.size())};
      if (!part.state.empty()) {
        entry.state = place();
        add_pages(part.state);
      }
      entry.stores = place();
      for (const auto& [tokens, pages] : part.stores) {
        tables.push_back(tokens - part.context);
        add_pages(pages);
      }
      for (int i = 0; i < part.count; ++i) {
        positions.push_back(part.context + i);
        sequence_of_row.push_back(static_cast<int32_t>(entries.size()));
        const auto row = part.in->begin() + (part.context + i) * operation.in_cols;
        in.insert(in.end(), row, row + operation.in_cols);
        in.resize(positions.size() * Index(in_stride), std::nanf(""));
      }
      entries.push_back(entry);
    }
    for (int i = 0; i < padding; ++i) {
      entries.push_back({});
      positions.push_back(-1);
      sequence_of_row.push_back(1'000'000'000);
      in.resize(positions.size() * Index(in_stride), std::nanf(""));
    }
    const auto rows = static_cast<int64_t>(positions.size());
    const int64_t out_stride = operation.out_cols + Int(0, 3);
    const size_t element = SizeOf(operation.out_dtype);
    const DeviceArray<float> d_in(in);
    const DeviceArray<StateEntry> d_entries(entries);
    const DeviceArray<int32_t> d_tables(tables), d_positions(positions),
        d_sequence_of_row(sequence_of_row);
    DeviceArray<std::byte> out(Index(rows * out_stride) * element);
    operation.launch({.base = memory_->base(),
                      .page_stride_bytes = page_bytes_,
                      .spots = spots_->data(),
                      .spot_units = spot_units_,
                      .depth = operation.depth,
                      .state_tables = tables_,
                      .sequences = d_entries.data(),
                      .tables = d_tables.data()},
                     {.in = d_in.data(),
                      .in_stride = in_stride,
                      .out = out.data(),
                      .out_stride = out_stride,
                      .positions = d_positions.data(),
                      .sequence_of_row = d_sequence_of_row.data(),
                      .rows = static_cast<int>(rows),
                      .sequences = sequences});
    memory_->CopyBack();
    EXPECT_TRUE(out.MarginsIntact());
    std::vector<std::vector<float>> results;
    int64_t row = 0;
    for (const Part& part : parts) {
      results.emplace_back();
      for (int i = 0; i < part.count; ++i, ++row) {
        for (int64_t c = 0; c < out_stride; ++c) {
          const std::byte* at = out.data() + Index(row * out_stride + c) * element;
          if (c < operation.out_cols) {
            results.back().push_back(ToF32(at, operation.out_dtype));
          } else {
            EXPECT_EQ(at[0], std::byte{0xff}) << "written behind row " << row;
          }
        }
      }
    }
    for (; row < rows; ++row) {
      EXPECT_EQ(out[Index(row * out_stride) * element], std::byte{0xff}) << "padding is written";
    }
    return results;
  }

  static void ExpectNear(const std::vector<float>& got, const std::vector<double>& want,
                         double tolerance) {
    ASSERT_EQ(got.size(), want.size());
    double largest = 1;
    for (const double value : want) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(double{got[i]}, want[i], tolerance * largest) << "element " << i;
    }
  }
  static void ExpectSame(const std::vector<float>& got, const std::vector<float>& want,
                         const std::string& what) {
    ASSERT_EQ(got.size(), want.size()) << what;
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_EQ(FloatBits(got[i]), FloatBits(want[i])) << what << ", element " << i;
    }
  }

  const Operation* operation_ = nullptr;
  int tables_ = 0, spot_units_ = 0;
  int64_t page_bytes_ = 0;
  std::unique_ptr<DeviceArray<std::byte>> pool_;
  std::unique_ptr<BlockMemory> memory_;
  std::unique_ptr<DeviceArray<SpotEntry>> spots_;
  Pages free_;
  std::vector<std::unique_ptr<DeviceArray<float>>> kept_;
};

// Sequences of different lengths, in two steps of all of them.
TEST_F(CudaRecurrenceTest, IsWhatTheFormulaSaysAndWritesNothingElse) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < Rounds(45, 18); ++round) {
    const Operation operation = RandomOperation(round);
    SCOPED_TRACE(::testing::Message() << "round " << round << ": " << operation.text);
    MakePool(operation, 8);
    const int sequences = Int(1, 3);
    std::vector<std::vector<float>> in;
    std::vector<Part> first, second;
    std::vector<Pages> written;
    for (int s = 0; s < sequences; ++s) {
      const int tokens = Int(2, Rounds(36, 12)), cut = Int(1, tokens - 1);
      in.push_back(Inputs(tokens));
      first.push_back({nullptr, 0, cut, {}, {{cut, Take()}}});
      const Pages left = first.back().stores[0].second;
      second.push_back({nullptr, cut, tokens - cut, left, {{tokens, Coin() ? left : Take()}}});
      written.push_back(left);
      written.push_back(second.back().stores[0].second);
    }
    for (size_t s = 0; s < in.size(); ++s) first[s].in = second[s].in = &in[s];
    const auto before = Step(first), after = Step(second);
    const double rounding = operation.out_dtype == DType::kF32 ? 3e-5 : 8e-3;
    for (size_t s = 0; s < in.size(); ++s) {
      std::vector<float> got = before[s];
      got.insert(got.end(), after[s].begin(), after[s].end());
      std::vector<double> state(Index(operation.lanes * operation.depth));
      const Part& last = second[s];
      for (int t = 0; t < last.context + last.count; ++t) {
        SCOPED_TRACE(::testing::Message() << "sequence " << s << ", token " << t);
        const auto row = got.begin() + t * operation.out_cols;
        ExpectNear({row, row + operation.out_cols},
                   operation.next(in[s].data() + t * operation.in_cols, state), rounding);
        if (HasFatalFailure()) return;
      }
      ExpectNear(Read(last.stores[0].second), state, 3e-5);
      if (HasFatalFailure()) return;
    }
    EXPECT_TRUE(OnlyStatesWritten(written));
  }
}

// Row by row, in one step with states left on the way, and in random steps beside another sequence,
// each of which goes on from the state that the one before it left, there or elsewhere: the same
// bits of every result and every state.
TEST_F(CudaRecurrenceTest, NeitherCutsNorNeighboursShow) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < Rounds(24, 6); ++round) {
    const Operation operation = RandomOperation(round);
    SCOPED_TRACE(::testing::Message() << "round " << round << ": " << operation.text);
    const int tokens = Int(1, Rounds(40, 12));
    MakePool(operation, 2 * tokens + 10);
    const std::vector<float> in = Inputs(tokens);
    std::vector<float> by_row;
    std::vector<std::vector<float>> states;  // behind so many tokens, less one
    const Pages row_pages = Take();
    for (int t = 0; t < tokens; ++t) {
      const auto row = Step({{&in, t, 1, t == 0 ? Pages() : row_pages, {{t + 1, row_pages}}}})[0];
      by_row.insert(by_row.end(), row.begin(), row.end());
      states.push_back(Read(row_pages));
    }
    const auto stores_to = [&](int context, int end, const Pages& from) {
      std::vector<std::pair<int, Pages>> stores;
      for (int t = context + 1; t < end; ++t) {
        if (Int(0, 6) == 0) stores.emplace_back(t, Take());
      }
      stores.emplace_back(end, Take());
      if (!from.empty() && Coin()) stores[0].second = from;
      return stores;
    };
    const auto expect_states = [&](const std::vector<std::pair<int, Pages>>& stores) {
      for (const auto& [at, pages] : stores) {
        ExpectSame(Read(pages), states[Index(at - 1)],
                   "state behind " + std::to_string(at) + " tokens");
      }
    };
    const Part whole = {&in, 0, tokens, {}, stores_to(0, tokens, {})};
    ExpectSame(Step({whole})[0], by_row, "in one step");
    expect_states(whole.stores);

    const int others = Int(1, 60);
    const std::vector<float> other_in = Inputs(others);
    const Pages other_pages = Take();
    std::vector<float> by_step;
    Pages left;
    for (int at = 0, other = 0; at < tokens;) {
      const int count = std::min(tokens - at, Of({1, 2, 3, 15, 16, 17}));
      const int more = std::min(others - other, Of({0, 1, 5, 40}));
      const Part mine = {&in, at, count, left, stores_to(at, at + count, left)};
      const Part its = {&other_in,
                        other,
                        more,
                        other == 0 ? Pages() : other_pages,
                        {{other + more, other_pages}}};
      const bool first = Coin();
      const auto results = Step(more == 0 ? std::vector<Part>{mine}
                                : first   ? std::vector<Part>{mine, its}
                                          : std::vector<Part>{its, mine});
      const std::vector<float>& rows = results[first || more == 0 ? 0 : 1];
      by_step.insert(by_step.end(), rows.begin(), rows.end());
      expect_states(mine.stores);
      left = mine.stores.back().second;
      at += count;
      other += more;
    }
    ExpectSame(by_step, by_row, "in steps beside another sequence");
    if (HasFatalFailure()) return;
  }
}

// A NaN in what a row reads is in its result, and in none before it.
TEST_F(CudaRecurrenceTest, NaNsShowFromTheirRowOn) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < Rounds(30, 9); ++round) {
    const Operation operation = RandomOperation(round);
    SCOPED_TRACE(::testing::Message() << "round " << round << ": " << operation.text);
    MakePool(operation, 4);
    const int tokens = Int(2, 12), row = Int(0, tokens - 1);
    const std::vector<float> in = Inputs(tokens);
    const auto clean = Step({{&in, 0, tokens, {}, {{tokens, Take()}}}})[0];
    // Columns between operands are read by no row.
    std::vector<float> with_nan = in;
    const int column = Int(0, operation.in_cols - 1);
    with_nan[Index(row * operation.in_cols + column)] = std::nanf("");
    std::vector<double> state(Index(operation.lanes * operation.depth));
    bool shows = false;
    for (int t = 0; t <= row; ++t) {
      const auto want = operation.next(with_nan.data() + t * operation.in_cols, state);
      shows = std::any_of(want.begin(), want.end(), [](double y) { return std::isnan(y); });
    }
    const auto got = Step({{&with_nan, 0, tokens, {}, {{tokens, Take()}}}})[0];
    const auto split = got.begin() + row * operation.out_cols;
    ExpectSame({got.begin(), split}, {clean.begin(), clean.begin() + row * operation.out_cols},
               "before it");
    const bool found =
        std::any_of(split, split + operation.out_cols, [](float y) { return std::isnan(y); });
    ASSERT_EQ(found, shows) << "column " << column << ", row " << row;
  }
}

// Steps of state spaces, by themselves: a state of nothing, B and C that take its first row.
TEST_F(CudaRecurrenceTest, StepsAreExactAndWithinBounds) {
  constexpr int kRows = 200, kCols = 16 + 2 * 16;
  Operation operation;
  operation.lanes = operation.depth = 16;
  MakePool(operation, kRows);
  const auto* zero = Keep(1, [] { return 0.0f; });
  const auto* decay = Keep(1, [] { return -1.0f; });
  DeviceArray<float> dt(kRows), xbc(kRows * kCols), out(kRows * 16);
  const std::vector<float> odd = {-86, -30, -1e-3f, 0, 1e-3f, 19.9f, 20.1f, 90, 1e30f};
  std::vector<StateEntry> entries;
  std::vector<int32_t> tables;
  for (int row = 0; row < kRows; ++row) {
    dt[Index(row)] = Index(row) < odd.size() ? odd[Index(row)] : Normal(10);
    for (int i = 0; i < kCols; ++i) xbc[Index(row * kCols + i)] = i % 16 == 0 ? 1.0f : 0.0f;
    entries.push_back({row, 1, -1, static_cast<int32_t>(tables.size()), 1});
    tables.push_back(1);
    const Pages pages = memory_->Numbers(Take());
    tables.insert(tables.end(), pages.begin(), pages.end());
  }
  const DeviceArray<StateEntry> d_entries(entries);
  const DeviceArray<int32_t> d_tables(tables);
  for (const auto& [least, most] :
       {std::pair(0.0f, std::numeric_limits<float>::infinity()), {0.001f, 0.5f}}) {
    HeadsLaunch launch = {};
    launch.state = {memory_->base(), page_bytes_,      spots_->data(), spot_units_, 16,
                    tables_,         d_entries.data(), d_tables.data()};
    launch.queries = xbc.data() + 32;
    launch.keys = xbc.data() + 16;
    launch.values = xbc.data();
    launch.row_stride = kCols;
    launch.gates = dt.data();
    launch.gates_stride = 1;
    launch.decay = decay->data();
    launch.step_bias = launch.skip = zero->data();
    launch.out = out.data();
    launch.out_stride = launch.lanes = 16;
    launch.heads = launch.heads_of_key = launch.key_heads = 1;
    launch.query_factor = 1;
    launch.least_step = least;
    launch.most_step = most;
    LaunchStateSpace(launch, kRows, nullptr);
    for (int row = 0; row < kRows; ++row) {
      const double want = std::clamp<double>(SoftplusOf(double{dt[Index(row)]}), least, most);
      ASSERT_NEAR(double{out[Index(row * 16)]}, want, 1e-6 * want) << "dt " << dt[Index(row)];
    }
  }
}

TEST_F(CudaRecurrenceTest, GatedNorm) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < Rounds(40, 8); ++round) {
    ChangeMachine();
    const int group = Of({16, 24, 64, 128, 1000, 3000}), groups = Of({1, 2, 5}), rows = Int(1, 4);
    const int cols = group * groups, stride = cols + Int(0, 7);
    const bool gate_first = Coin(), of_group = Coin();
    const DType dtype = round % 2 == 0 ? DType::kF16 : DType::kBF16;
    DeviceArray<float> x(Index(rows * stride)), gate(Index(rows * stride));
    DeviceArray<float> weight(Index(of_group ? group : cols));
    DeviceArray<uint16_t> out(Index(rows * stride));
    for (int i = 0; i < rows * stride; ++i) x[Index(i)] = Normal(), gate[Index(i)] = Normal(3);
    for (size_t i = 0; i < weight.size(); ++i) weight[i] = Normal();
    GatedNormLaunch launch = {};
    launch.x = x.data();
    launch.gate = gate.data();
    launch.weight = weight.data();
    launch.weight_size = static_cast<int>(weight.size());
    launch.out = out.data();
    launch.x_stride = launch.gate_stride = launch.out_stride = stride;
    launch.groups = groups;
    launch.group = group;
    launch.gate_first = gate_first;
    launch.eps = 1e-3f;
    LaunchGatedNorm(launch, dtype, rows, nullptr);
    EXPECT_TRUE(out.MarginsIntact());
    for (int row = 0; row < rows; ++row) {
      for (int at = 0; at < cols; at += group) {
        std::vector<double> want, silu;
        double squares = 0;
        for (int i = 0; i < group; ++i) {
          const double g = gate[Index(row * stride + at + i)];
          silu.push_back(g * SigmoidOf(g));
          want.push_back((gate_first ? silu.back() : 1) * double{x[Index(row * stride + at + i)]});
          squares += want.back() * want.back();
        }
        const double rms = std::sqrt(squares / group + double{1e-3f});
        for (int i = 0; i < group; ++i) {
          double y = want[Index(i)] / rms * double{weight[Index(of_group ? i : at + i)]};
          if (!gate_first) y *= silu[Index(i)];
          ASSERT_NEAR(double{ToF32(&out[Index(row * stride + at + i)], dtype)}, y,
                      Precision(dtype) * std::abs(y) + 1e-6)
              << "row " << row << ", group at " << at << ", element " << i;
        }
      }
      for (int i = cols; i < stride; ++i) ASSERT_EQ(out[Index(row * stride + i)], 0xffff);
    }
  }
}

TEST_F(CudaRecurrenceTest, GatesOfOutputs) {
  SCOPED_TRACE(seed_);
  for (int round = 0; round < Rounds(40, 8); ++round) {
    ChangeMachine();
    const bool one = Int(0, 2) == 0;
    const int group = Of({16, 20, 64, 128, 256}), groups = Of({1, 2, 5}), rows = Int(1, 5);
    const int cols = one ? Of({2, 16, 62, 200}) : group * groups, stride = cols + 2 * Int(0, 2);
    const int group_stride = group + Of({0, 3, group});
    const int gate_stride = one ? Int(1, 3) : group_stride * groups;
    const DType dtype = round % 2 == 0 ? DType::kF16 : DType::kBF16;
    DeviceArray<uint16_t> x(Index(rows * stride));
    DeviceArray<float> gate(Index(rows * gate_stride));
    for (int i = 0; i < rows * cols; ++i) {
      x[Index(i / cols * stride + i % cols)] = Round16(Normal(), dtype);
    }
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = Normal(5);
    gate[0] = Of({200.0f, -200.0f, std::nanf(""), 0.0f});
    const std::vector<uint16_t> before = x.values();
    OutputGateLaunch launch = {};
    launch.x = x.data();
    launch.x_stride = stride;
    launch.gate = gate.data();
    launch.gate_stride = gate_stride;
    launch.cols = cols;
    launch.group = one ? 0 : group;
    launch.group_stride = group_stride;
    LaunchOutputGate(launch, dtype, rows, nullptr);
    EXPECT_TRUE(x.MarginsIntact());
    for (int row = 0; row < rows; ++row) {
      for (int c = 0; c < stride; ++c) {
        const size_t at = Index(row * stride + c);
        if (c >= cols) {
          ASSERT_EQ(x[at], 0xffff);
          continue;
        }
        const int of = one ? 0 : c / group * group_stride + c % group;
        const double g = gate[Index(row * gate_stride + of)];
        const double got = double{ToF32(&x[at], dtype)};
        if (std::isnan(g)) {
          ASSERT_TRUE(std::isnan(got));
          continue;
        }
        const double want = double{ToF32(&before[at], dtype)} * SigmoidOf(g);
        ASSERT_NEAR(got, want, Precision(dtype) * std::abs(want) + 1e-7) << row << ", " << c;
      }
    }
  }
}

}  // namespace
}  // namespace baton::backend::cuda
