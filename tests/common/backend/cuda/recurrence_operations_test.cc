// Recurrent layers on every device: near the CPU's float32, and steps that are recorded, padded and
// repeated have the bits of those that are not. What the kernels compute of any shape:
// kernels/recurrence_test.cc.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <numeric>

#include "common/backend/cpu/cpu_backend.h"
#include "tests/common/backend/cuda/device_test.h"

namespace baton::backend::recurrence_test {
namespace {

using Pages = std::vector<int32_t>;

constexpr int kLayers = 2, kStateTables = 2, kPageCount = 64;
constexpr int kConvWidth = 48, kTaps = 4, kHeads = 4, kKeys = 2, kDepth = 32, kLanes = 32;
constexpr int kWidth = kHeads * kLanes, kQkv = 2 * kKeys * kDepth + kWidth;

// Two layers of a convolution and a recurrence, in pages of two tables.
KvPool PoolOfStates(Backend& backend, std::unique_ptr<Buffer>* memory) {
  KvPool pool;
  pool.tables = 1 + kStateTables;
  pool.state_tables = kStateTables;
  std::vector<int64_t> ends(kStateTables);
  for (int layer = 0; layer < kLayers; ++layer) {
    LayerState& state = pool.states.emplace_back();
    state.push_back({kConvWidth, kTaps - 1, 2, {}});
    state.push_back({kWidth, kDepth, 3, {}});
    for (StatePlane& plane : state) {
      for (int64_t unit = 0; unit < plane.units(); unit += plane.spot_units) {
        const int table = static_cast<int>(unit / plane.spot_units + layer) % kStateTables;
        int64_t& end = ends[static_cast<size_t>(table)];
        plane.spots.push_back({table, end});
        end += plane.spot_units * plane.unit_bytes();
      }
    }
  }
  pool.block_stride_bytes = *std::max_element(ends.begin(), ends.end());
  pool.block_count = kPageCount;
  pool.block_tokens = 16;
  *memory = backend.Allocate(static_cast<size_t>(kPageCount * pool.block_stride_bytes)).value();
  pool.base = static_cast<std::byte*>((*memory)->data());
  return pool;
}

int64_t SpotsOf(const KvPool& pool) {
  int64_t spots = 0;
  for (const LayerState& state : pool.states) {
    for (const StatePlane& plane : state) spots += static_cast<int64_t>(plane.spots.size());
  }
  return spots;
}

Pages PagesOf(int state) { return {state * kStateTables + 1, state * kStateTables}; }

struct Part {
  int context = 0, count = 0;
  int state = -1;                                // the one that is read
  std::vector<std::pair<int, int>> stores = {};  // tokens, state
};

// The operations of two layers, one after the other, and what they need.
class Layers {
 public:
  Layers(Backend& backend, const std::vector<float>& weights)
      : backend_(backend), pool_(PoolOfStates(backend, &memory_)) {
    size_t at = 0;
    const auto take = [&](int count, const std::function<float(float)>& change) {
      std::vector<float> values(weights.begin() + static_cast<ptrdiff_t>(at),
                                weights.begin() + static_cast<ptrdiff_t>(at) + count);
      at += static_cast<size_t>(count);
      std::transform(values.begin(), values.end(), values.begin(), change);
      auto buffer = backend.Allocate(values.size() * sizeof(float)).value();
      backend.CopyToDevice(buffer->data(), values.data(), values.size() * sizeof(float));
      return buffer;
    };
    const auto same = [](float x) { return x; };
    conv_ = take(kTaps * kConvWidth, same);
    decay_ = take(kHeads, [](float x) { return -std::exp(x - 1); });
    step_bias_ = take(kHeads, same);
    skip_ = take(kHeads, same);
    norm_ = take(kLanes, same);
  }
  static constexpr int kWeights = kTaps * kConvWidth + 3 * kHeads + kLanes;
  static constexpr int kInCols = 2 * kConvWidth + kQkv + 2 * kHeads + kWidth;
  static constexpr int kOutCols = kConvWidth + 2 * kWidth;

  const KvPool& pool() const { return pool_; }
  // Sets the pages of a state.
  void Write(int state, const std::vector<std::byte>& bytes) {
    for (size_t i = 0; i < kStateTables; ++i) {
      backend_.CopyToDevice(PageAt(PagesOf(state)[i]), bytes.data() + i * page_bytes(),
                            page_bytes());
    }
  }
  std::vector<std::byte> Read(int state) {
    std::vector<std::byte> bytes(kStateTables * page_bytes());
    for (size_t i = 0; i < kStateTables; ++i) {
      backend_.CopyToHost(bytes.data() + i * page_bytes(), PageAt(PagesOf(state)[i]), page_bytes());
    }
    return bytes;
  }
  std::vector<float> ReadFloats(int state) {
    const std::vector<std::byte> bytes = Read(state);
    std::vector<float> values(bytes.size() / sizeof(float));
    std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }

  // in: [rows, kInCols]; out: [rows, kOutCols], in float32 all three results.
  void Enqueue(const DeviceBatch& batch, const Tensor& in, const Tensor& out,
               const Tensor& normed) {
    const auto columns = [](Tensor tensor, int64_t first, int64_t count) {
      tensor.data = static_cast<float*>(tensor.data) + first;
      tensor.cols = count;
      return tensor;
    };
    const int64_t qkv = 2 * kConvWidth, gates = qkv + kQkv, gate = gates + 2 * kHeads;
    for (int layer = 0; layer < kLayers; ++layer) {
      backend_.ShortConv(batch, pool_,
                         {.layer = layer,
                          .taps = kTaps,
                          .x = columns(in, 0, kConvWidth),
                          .before = columns(in, kConvWidth, kConvWidth),
                          .after = {},
                          .weight = conv_.get(),
                          .silu = layer == 0,
                          .out = columns(out, 0, kConvWidth)});
    }
    const Tensor recurred = columns(out, kConvWidth, kWidth);
    backend_.GatedDelta(batch, pool_,
                        {.layer = 0,
                         .key_heads = kKeys,
                         .value_heads = kHeads,
                         .key_dim = kDepth,
                         .value_dim = kLanes,
                         .qkv = columns(in, qkv, kQkv),
                         .gates = columns(in, gates, 2 * kHeads),
                         .decay = decay_.get(),
                         .step_bias = step_bias_.get(),
                         .out = recurred});
    backend_.StateSpace(batch, pool_,
                        {.layer = 1,
                         .heads = kHeads,
                         .head_dim = kLanes,
                         .groups = kKeys,
                         .state_dim = kDepth,
                         .xbc = columns(in, qkv, kQkv),
                         .dt = columns(in, gates, kHeads),
                         .decay = decay_.get(),
                         .step_bias = step_bias_.get(),
                         .skip = skip_.get(),
                         .least_step = 0,
                         .most_step = std::numeric_limits<float>::infinity(),
                         .out = columns(out, kConvWidth + kWidth, kWidth)});
    backend_.GatedNorm({.x = recurred,
                        .gate = columns(in, gate, kWidth),
                        .weight = norm_.get(),
                        .weight_size = kLanes,
                        .group = kLanes,
                        .eps = 1e-6f,
                        .out = normed});
    backend_.GateOutput(
        {.x = normed, .gate = columns(in, gate, kWidth), .group = kLanes, .gate_stride = kLanes});
  }

 private:
  size_t page_bytes() const { return static_cast<size_t>(pool_.block_stride_bytes); }
  std::byte* PageAt(int32_t page) const { return pool_.Chunk(page, 0); }

  Backend& backend_;
  std::unique_ptr<Buffer> memory_;
  const KvPool pool_;
  std::unique_ptr<Buffer> conv_, decay_, step_bias_, skip_, norm_;
};

struct Results {
  std::vector<float> out, normed;
};

class RecurrenceOperationsTest : public DeviceTest {
 protected:
  StepLimits LimitsOfStates(int max_rows) {
    StepLimits limits = Limits(max_rows);
    limits.kv_tables = 1 + kStateTables;
    limits.state_tables = kStateTables;
    std::unique_ptr<Buffer> memory;
    limits.state_spots = SpotsOf(PoolOfStates(*backend_, &memory));
    return limits;
  }

  // What a RaggedBatch refers to.
  struct Step {
    std::vector<int32_t> tokens, logit_rows, blocks = std::vector<int32_t>(64);
    std::vector<Pages> pages;
    std::vector<std::vector<StateStore>> stores;
    std::vector<SequenceRows> sequences;
    RaggedBatch batch() const {
      RaggedBatch batch;
      batch.tokens = tokens;
      batch.sequences = sequences;
      batch.logit_rows = logit_rows;
      return batch;
    }
  };
  static void Fill(const std::vector<Part>& parts, Step& step) {
    step.pages.reserve(64);
    for (const Part& part : parts) {
      const auto pages = [&](int state) -> absl::Span<const int32_t> {
        step.pages.push_back(PagesOf(state));
        return step.pages.back();
      };
      std::vector<StateStore>& stores = step.stores.emplace_back();
      for (const auto& [tokens, state] : part.stores) stores.push_back({tokens, pages(state)});
      SequenceRows& rows = step.sequences.emplace_back();
      rows = {static_cast<int>(step.tokens.size()), part.count, part.context, step.blocks};
      if (part.state >= 0) rows.state = pages(part.state);
      step.tokens.resize(step.tokens.size() + static_cast<size_t>(part.count));
    }
    for (size_t i = 0; i < parts.size(); ++i) step.sequences[i].state_stores = step.stores[i];
    step.logit_rows.resize(step.tokens.size());
    std::iota(step.logit_rows.begin(), step.logit_rows.end(), 0);
  }

  static Results Run(Backend& backend, Layers& layers, const std::vector<Part>& parts,
                     const std::vector<float>& in) {
    Step step;
    Fill(parts, step);
    const auto batch = backend.Upload(step.batch());
    Rows rows(backend, static_cast<int>(step.tokens.size()));
    rows.x.Set(in);
    layers.Enqueue(*batch, rows.x, rows.out, rows.normed);
    return {rows.out.Get(), rows.normed.Get()};
  }
  // The tensors of a step of so many rows.
  struct Rows {
    Rows(Backend& backend, int count)
        : x(backend, DType::kF32, count, Layers::kInCols, Layers::kInCols + 3),
          out(backend, DType::kF32, count, Layers::kOutCols, Layers::kOutCols + 8),
          normed(backend, backend.activation_dtype(), count, kWidth, kWidth + 8) {}
    DeviceTensor x, out, normed;
  };

  static void ExpectNear(const std::vector<float>& got, const std::vector<float>& want,
                         double tolerance) {
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      ASSERT_NEAR(got[i], want[i], tolerance * std::max(1.0f, std::abs(want[i])))
          << "element " << i;
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Devices, RecurrenceOperationsTest,
                         ::testing::ValuesIn(baton::testing::Devices()), NameOfDevice);

// Fresh sequences, chunks that go on, states that are left on the way, single tokens.
TEST_P(RecurrenceOperationsTest, IsNearTheCpu) {
  SCOPED_TRACE(seed_);
  const auto cpu = MakeCpuBackend({.compute = BackendOptions::Compute::kF32}).value();
  ASSERT_TRUE(backend_->Prepare(LimitsOfStates(64)).ok());
  for (int round = 0; round < Rounds(6); ++round) {
    const std::vector<float> weights = Floats(Layers::kWeights);
    Layers layers(*backend_, weights), expected(*cpu, weights);
    const std::vector<std::vector<Part>> steps = {
        {{0, 20, -1, {{16, 0}, {20, 1}}}, {0, 1, -1, {{1, 2}}}, {0, 7, -1, {{7, 3}}}},
        {{20, 1, 1, {{21, 1}}}, {1, 30, 2, {{16, 4}, {31, 2}}}, {16, 5, 0, {{21, 5}}}},
        {{31, 1, 2, {{32, 2}}}, {7, 1, 3, {{8, 6}}}, {21, 1, 5, {{22, 5}}}},
        // Rows behind the last state, which leave none.
        {{32, 5, 2, {{33, 2}}}, {8, 2, 6, {{9, 3}}}, {22, 20, 5, {{24, 0}, {30, 5}}}},
        {{33, 1, 2, {{34, 2}}}, {9, 1, 3, {{10, 3}}}, {30, 1, 5, {{31, 5}}}}};
    for (const std::vector<Part>& parts : steps) {
      int rows = 0;
      for (const Part& part : parts) rows += part.count;
      const std::vector<float> in = Floats(int64_t{rows} * Layers::kInCols);
      const Results got = Run(*backend_, layers, parts, in);
      const Results want = Run(*cpu, expected, parts, in);
      ExpectNear(got.out, want.out, 1e-4);
      ExpectNear(got.normed, want.normed, 3 * Precision(activation()) + 1e-4);
      if (HasFatalFailure()) return;
    }
    for (int state = 0; state < 7; ++state) {
      ExpectNear(layers.ReadFloats(state), expected.ReadFloats(state), 1e-4);
      if (HasFatalFailure()) return;
    }
  }
}

TEST_P(RecurrenceOperationsTest, RecordedStepsHaveTheBitsOfOthers) {
  SCOPED_TRACE(seed_);
  ASSERT_TRUE(backend_->Prepare(LimitsOfStates(8)).ok());
  Layers layers(*backend_, Floats(Layers::kWeights));
  const auto recorder = backend_->MakeStepRecorder();
  if (recorder == nullptr) GTEST_SKIP() << "no steps are recorded";
  std::map<int, Rows> rows_of;  // what was recorded has their addresses
  const int first_target = 8;
  std::vector<std::byte> state(layers.Read(0).size());
  for (int round = 0; round < 6; ++round) {  // of few kinds: enqueued, recorded, repeated
    const int count = 4 + round % 2;
    std::vector<Part> parts, apart;
    for (int i = 0; i < count; ++i) {
      const std::vector<float> values = Floats(static_cast<int64_t>(state.size() / sizeof(float)));
      std::memcpy(state.data(), values.data(), state.size());
      layers.Write(i, state);
      const int context = Int(1, 60), target = first_target + i;
      // Some in their place.
      const bool same = i % 2 == 1;
      parts.push_back({context, 1, same ? target : i, {{context + 1, target}}});
      apart.push_back({context, 1, i, {{context + 1, target}}});
      if (same) layers.Write(target, state);
    }
    const std::vector<float> in = Floats(int64_t{count} * Layers::kInCols);
    Step step;
    Fill(parts, step);
    Results recorded;
    {
      const PaddedBatch padded = recorder->Upload(step.batch());
      ASSERT_NE(padded.batch, nullptr);
      ASSERT_GE(padded.rows, count);
      Rows& rows = rows_of.try_emplace(padded.rows, *backend_, padded.rows).first->second;
      std::vector<float> values = in;
      values.resize(static_cast<size_t>(padded.rows) * Layers::kInCols);
      rows.x.Set(values);
      recorder->Run(*padded.batch,
                    [&] { layers.Enqueue(*padded.batch, rows.x, rows.out, rows.normed); });
      recorded = {rows.out.Get(), rows.normed.Get()};
    }
    std::vector<std::vector<std::byte>> states;
    for (int i = 0; i < count; ++i) states.push_back(layers.Read(first_target + i));
    const Results others = Run(*backend_, layers, apart, in);
    recorded.out.resize(others.out.size());
    recorded.normed.resize(others.normed.size());
    EXPECT_EQ(recorded.out, others.out) << "round " << round;
    EXPECT_EQ(recorded.normed, others.normed) << "round " << round;
    for (int i = 0; i < count; ++i) {
      EXPECT_EQ(states[static_cast<size_t>(i)], layers.Read(first_target + i))
          << "round " << round << ", sequence " << i;
    }
  }
}

// What a batch must say of states.
using RecurrenceOperationsDeathTest = RecurrenceOperationsTest;
INSTANTIATE_TEST_SUITE_P(Devices, RecurrenceOperationsDeathTest,
                         ::testing::ValuesIn(baton::testing::Devices()), NameOfDevice);

TEST_P(RecurrenceOperationsDeathTest, StatesAreLeftBehindRows) {
  if (on_cpu()) GTEST_SKIP() << "cpu/recurrence_test.cc has these";
  if (on_gpu()) GTEST_SKIP() << "a driver does not survive a fork";
  ASSERT_TRUE(backend_->Prepare(LimitsOfStates(8)).ok());
  Layers layers(*backend_, Floats(Layers::kWeights));
  const std::vector<float> in = Floats(3 * Layers::kInCols);
  const auto run = [&](const Part& part) { Run(*backend_, layers, {part}, in); };
  run({1, 3, 0, {{2, 0}, {4, 1}}});
  run({1, 3, 0, {{3, 0}}});
  EXPECT_DEATH(run({1, 3, 0, {}}), "no pages for the state");
  EXPECT_DEATH(run({1, 3, 0, {{5, 0}}}), "rows.context|sequence.context");
  EXPECT_DEATH(run({1, 3, 0, {{1, 0}, {4, 1}}}), "store.tokens");
  EXPECT_DEATH(run({1, 3, 0, {{4, kPageCount}}}), "page|block");
}

}  // namespace
}  // namespace baton::backend::recurrence_test
