// How close are the CPU backend's kernels to the machine? Memory bandwidth is measured in the same
// run, by the same threads: for one row a product's limit is the stream of its weights, for decode
// attention that of the KV blocks.
//
//   build/cpu-release/bin/kernels_bench [--threads=1] [--benchmark_filter=MatMul]
#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "common/backend/cpu/cpu_backend.h"
#include "common/backend/cpu/thread_pool.h"
#include "common/base/usable_cores.h"

namespace baton::backend {
namespace {

int thread_count = UsableCores();

Backend& TheBackend() {
  static const std::unique_ptr<Backend> backend = [] {
    BackendOptions options;
    options.thread_count = thread_count;
    return std::move(MakeCpuBackend(options)).value();
  }();
  return *backend;
}

std::vector<uint16_t> RandomBF16(size_t count) {
  std::vector<uint16_t> values(count);
  uint32_t state = 1;
  // Signs and mantissas at random, exponents so that the values lie in [1/16, 1/8).
  for (uint16_t& value : values) {
    state = state * 1664525 + 1013904223;
    value = static_cast<uint16_t>(0x3d80 | (state >> 16 & 0x807f));
  }
  return values;
}

double Giga(double per_iteration, const benchmark::State& state) {
  return per_iteration * static_cast<double>(state.iterations()) * 1e-9;
}

// Reads 512 MiB with both hands: what no kernel beats.
void BM_ReadBandwidth(benchmark::State& state) {
  constexpr size_t kBytes = size_t{512} << 20;
  static const std::unique_ptr<Buffer> buffer = [] {
    auto made = std::move(TheBackend().Allocate(kBytes)).value();
    std::memset(made->data(), 1, kBytes);
    return made;
  }();
  static ThreadPool pool(thread_count);
  const auto* words = static_cast<const uint64_t*>(buffer->data());
  constexpr size_t kTaskWords = (size_t{4} << 20) / 8;
  for (auto _ : state) {
    pool.Run(kBytes / 8 / kTaskWords, [&](int task, int thread) {
      uint64_t sums[8] = {};
      const uint64_t* at = words + task * kTaskWords;
      for (size_t i = 0; i < kTaskWords; i += 8) {
        __builtin_prefetch(at + i + 1024);
        for (int lane = 0; lane < 8; ++lane) sums[lane] += at[i + lane];
      }
      benchmark::DoNotOptimize(sums);
    });
  }
  state.counters["GB/s"] = benchmark::Counter(Giga(kBytes, state), benchmark::Counter::kIsRate);
}
BENCHMARK(BM_ReadBandwidth)->UseRealTime()->Unit(benchmark::kMillisecond);

// Copies of a matrix: as many as it takes that no cache holds them, as in a model of many layers.
std::vector<std::unique_ptr<PackedMatrix>> Copies(int64_t bits, int64_t n, int64_t k) {
  Backend& backend = TheBackend();
  const std::vector<uint16_t> values = RandomBF16(n * k);
  const std::vector<uint16_t> scales(n * k / 32, 0x2000);  // float16 2^-7
  const std::vector<uint16_t> zeros(scales.size(), static_cast<uint16_t>(1 << (bits - 1)));
  const QuantizedHostMatrix quantized = {.bits = static_cast<int>(bits),
                                         .rows = n,
                                         .cols = k,
                                         .group_size = 32,
                                         .values = reinterpret_cast<const uint8_t*>(values.data()),
                                         .scales = scales.data(),
                                         .zeros = zeros.data()};
  std::vector<std::unique_ptr<PackedMatrix>> copies;
  for (int64_t bytes = 0; bytes < int64_t{768} << 20; bytes += copies.back()->size_bytes()) {
    copies.push_back(std::move(bits == 16 ? backend.Pack({{values.data(), DType::kBF16, n, k}})
                                          : backend.PackQuantized({quantized}))
                         .value());
  }
  return copies;
}

void BM_MatMul(benchmark::State& state) {
  Backend& backend = TheBackend();
  const int64_t rows = state.range(0), n = state.range(1), k = state.range(2);
  const std::vector<std::unique_ptr<PackedMatrix>> weights = Copies(state.range(3), n, k);
  const std::vector<uint16_t> x_values = RandomBF16(rows * k * 2);
  std::vector<float> x_floats(rows * k, 0.5f), out_values(rows * n);
  const bool bf16 = backend.activation_dtype() == DType::kBF16;
  const Tensor x = {bf16 ? (void*)x_values.data() : x_floats.data(), backend.activation_dtype(),
                    rows, k, k};
  const Tensor out = {out_values.data(), DType::kF32, rows, n, n};
  size_t next = 0;
  for (auto _ : state) {
    backend.MatMul(x, *weights[next], nullptr, out);
    next = (next + 1) % weights.size();
  }
  const auto bytes = static_cast<double>(weights[0]->size_bytes());
  state.counters["GB/s"] = benchmark::Counter(Giga(bytes, state), benchmark::Counter::kIsRate);
  state.counters["GFLOP/s"] =
      benchmark::Counter(Giga(2.0 * rows * n * k, state), benchmark::Counter::kIsRate);
}
void MatMulShapes(benchmark::internal::Benchmark* bench) {
  for (auto [n, k] : {std::pair{896, 896}, {9728, 896}, {896, 4864}, {151936, 896}}) {
    for (int bits : {16, 8, 4}) {
      for (int rows : {1, 4, 8, 16, 64, 512}) bench->Args({rows, n, k, bits});
    }
  }
}
BENCHMARK(BM_MatMul)
    ->Apply(MatMulShapes)
    ->ArgNames({"M", "N", "K", "bits"})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

// 14 query heads, 2 kv heads of 64: Qwen2.5-0.5B. All of its 24 layers in turn, as in a step.
class AttentionBench {
 public:
  AttentionBench(int sequences, int context, int rows) : rows_(sequences * rows) {
    const int tokens = context + rows, blocks = (tokens + 15) / 16;
    kv_.kv_heads = 2;
    kv_.head_dim = 64;
    kv_.block_tokens = 16;
    kv_.dtype = TheBackend().activation_dtype();
    kv_.layer_stride_bytes = 2 * 2 * 16 * 64 * static_cast<int64_t>(SizeOf(kv_.dtype));
    kv_.block_stride_bytes = kLayers * kv_.layer_stride_bytes;
    kv_.block_count = sequences * blocks;
    memory_ = std::move(TheBackend().Allocate(kv_.block_count * kv_.block_stride_bytes)).value();
    kv_.base = static_cast<std::byte*>(memory_->data());
    const std::vector<uint16_t> values = RandomBF16(memory_->size_bytes() / 2);
    std::memcpy(kv_.base, values.data(), memory_->size_bytes());
    ids_.resize(kv_.block_count);
    std::iota(ids_.begin(), ids_.end(), 0);
    std::shuffle(ids_.begin(), ids_.end(), std::mt19937(1));
    std::vector<SequenceRows> parts;
    for (int s = 0; s < sequences; ++s) {
      parts.push_back({s * rows, rows, context, absl::MakeSpan(ids_).subspan(s * blocks, blocks)});
    }
    const std::vector<int32_t> ids(rows_);
    batch_ = TheBackend().Upload({ids, parts, {}});
    q_.assign(rows_ * 14 * 64, 0.25f);
    out_.resize(q_.size());
    args_.query_heads = 14;
    args_.scale = 0.125f;
    args_.q = {q_.data(), DType::kF32, rows_, 14 * 64, 14 * 64};
    args_.out = {out_.data(), kv_.dtype, rows_, 14 * 64, 14 * 64};
  }

  static constexpr int kLayers = 24;
  void AllLayers() {
    for (args_.layer = 0; args_.layer < kLayers; ++args_.layer) {
      TheBackend().Attention(*batch_, kv_, args_);
    }
  }
  double kv_bytes() const { return static_cast<double>(memory_->size_bytes()); }

 private:
  int64_t rows_;
  KvPool kv_;
  std::unique_ptr<Buffer> memory_;
  std::vector<int32_t> ids_;
  std::unique_ptr<DeviceBatch> batch_;
  std::vector<float> q_, out_;
  AttentionArgs args_;
};

void BM_DecodeAttention(benchmark::State& state) {
  AttentionBench bench(static_cast<int>(state.range(1)), static_cast<int>(state.range(0)) - 1, 1);
  for (auto _ : state) bench.AllLayers();
  state.counters["GB/s"] =
      benchmark::Counter(Giga(bench.kv_bytes(), state), benchmark::Counter::kIsRate);
}
BENCHMARK(BM_DecodeAttention)
    ->ArgsProduct({{512, 4096}, {1, 8, 16}})
    ->ArgNames({"context", "batch"})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

void BM_PrefillAttention(benchmark::State& state) {
  const double rows = static_cast<double>(state.range(0)), context = state.range(1);
  AttentionBench bench(1, static_cast<int>(context), static_cast<int>(rows));
  for (auto _ : state) bench.AllLayers();
  // Two products over what each row sees.
  const double pairs = rows * (rows + 1) / 2 + rows * context;
  state.counters["GFLOP/s"] = benchmark::Counter(
      Giga(4.0 * 14 * 64 * AttentionBench::kLayers * pairs, state), benchmark::Counter::kIsRate);
}
BENCHMARK(BM_PrefillAttention)
    ->Args({512, 0})
    ->Args({2048, 0})
    ->Args({512, 4096})
    ->ArgNames({"rows", "context"})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

// Recurrent layers of 16 value heads of [128, 128], 8 key heads: the step of `sequences`, each with
// so many tokens, in place. All layers in turn, as many as it takes that no cache holds their
// states.
class RecurrenceBench {
 public:
  RecurrenceBench(int sequences, int tokens) : rows_(sequences * tokens) {
    const int layers = static_cast<int>(std::max<int64_t>(1, 128 / rows_));
    kv_.tables = kv_.state_tables = 1;
    kv_.block_count = sequences;
    for (int layer = 0; layer < layers; ++layer) {
      LayerState& state = kv_.states.emplace_back();
      for (const auto& [lanes, depth] : {std::pair{kConvWidth, kTaps - 1}, {kWidth, kDim}}) {
        state.push_back({lanes, depth, static_cast<int>(lanes / kStateLanes), {}});
        state.back().spots = {{0, kv_.block_stride_bytes}};
        kv_.block_stride_bytes += lanes * depth * 4;
      }
    }
    memory_ = std::move(TheBackend().Allocate(sequences * kv_.block_stride_bytes)).value();
    kv_.base = static_cast<std::byte*>(memory_->data());
    pages_.resize(sequences);
    std::iota(pages_.begin(), pages_.end(), 0);
    std::vector<SequenceRows> parts;
    std::vector<StateStore> stores(sequences);
    for (int s = 0; s < sequences; ++s) {
      const auto page = absl::MakeSpan(pages_).subspan(s, 1);
      stores[s] = {1 + tokens, page};
      parts.push_back({s * tokens, tokens, 1, {}, page, absl::MakeSpan(&stores[s], 1)});
    }
    const std::vector<int32_t> ids(rows_);
    batch_ = TheBackend().Upload({ids, parts, {}});
    std::mt19937 random(1);
    std::normal_distribution<float> normal;
    const auto filled = [&](int64_t floats) {
      auto buffer = std::move(TheBackend().Allocate(floats * 4)).value();
      auto* values = static_cast<float*>(buffer->data());
      std::generate(values, values + floats, [&] { return normal(random); });
      return buffer;
    };
    in_ = filled(rows_ * kConvWidth);
    gates_ = filled(rows_ * 2 * kHeads);
    out_ = filled(rows_ * kConvWidth);
    conv_ = filled(kTaps * kConvWidth);
    step_bias_ = filled(kHeads);
    decay_ = filled(kHeads);
    std::fill_n(static_cast<float*>(decay_->data()), kHeads, -0.1f);
  }

  void Delta() {
    for (int layer = 0; layer < layers(); ++layer) {
      TheBackend().GatedDelta(*batch_, kv_,
                              {.layer = layer,
                               .key_heads = kKeyHeads,
                               .value_heads = kHeads,
                               .key_dim = kDim,
                               .value_dim = kDim,
                               .qkv = View(*in_, kConvWidth),
                               .gates = View(*gates_, 2 * kHeads),
                               .decay = decay_.get(),
                               .step_bias = step_bias_.get(),
                               .out = View(*out_, kWidth)});
    }
  }
  void Conv() {
    for (int layer = 0; layer < layers(); ++layer) {
      TheBackend().ShortConv(*batch_, kv_,
                             {.layer = layer,
                              .taps = kTaps,
                              .x = View(*in_, kConvWidth),
                              .before = {},
                              .after = {},
                              .weight = conv_.get(),
                              .silu = true,
                              .out = View(*out_, kConvWidth)});
    }
  }
  int layers() const { return static_cast<int>(kv_.states.size()); }

  static constexpr int kHeads = 16, kKeyHeads = 8, kDim = 128, kTaps = 4;
  static constexpr int kWidth = kHeads * kDim, kConvWidth = kWidth + 2 * kKeyHeads * kDim;

 private:
  Tensor View(const Buffer& buffer, int64_t cols) {
    return {buffer.data(), DType::kF32, rows_, cols, cols};
  }

  int64_t rows_;
  KvPool kv_;
  std::unique_ptr<Buffer> memory_, in_, gates_, out_, conv_, decay_, step_bias_;
  std::vector<int32_t> pages_;
  std::unique_ptr<DeviceBatch> batch_;
};

void RecurrenceSteps(benchmark::internal::Benchmark* bench) {
  bench->Args({1, 2048})->Args({64, 1})->Args({1, 1});
  bench->ArgNames({"sequences", "tokens"})->UseRealTime()->Unit(benchmark::kMicrosecond);
}

void BM_GatedDelta(benchmark::State& state) {
  const auto sequences = static_cast<int>(state.range(0)),
             tokens = static_cast<int>(state.range(1));
  RecurrenceBench bench(sequences, tokens);
  for (auto _ : state) bench.Delta();
  const double heads = static_cast<double>(bench.layers()) * sequences * RecurrenceBench::kHeads;
  state.counters["head-tokens/s"] = benchmark::Counter(
      heads * tokens * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
  // Of states that are read; as much is written.
  state.counters["GB/s"] =
      benchmark::Counter(Giga(heads * 128 * 128 * 4, state), benchmark::Counter::kIsRate);
}
BENCHMARK(BM_GatedDelta)->Apply(RecurrenceSteps);

void BM_ShortConv(benchmark::State& state) {
  const auto sequences = static_cast<int>(state.range(0)),
             tokens = static_cast<int>(state.range(1));
  RecurrenceBench bench(sequences, tokens);
  for (auto _ : state) bench.Conv();
  state.counters["rows/s"] =
      benchmark::Counter(static_cast<double>(bench.layers()) * sequences * tokens *
                             static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate);
}
BENCHMARK(BM_ShortConv)->Apply(RecurrenceSteps);

}  // namespace
}  // namespace baton::backend

int main(int argc, char** argv) {
  if (argc > 1 && std::strncmp(argv[1], "--threads=", 10) == 0) {
    baton::backend::thread_count = std::atoi(argv[1] + 10);
  }
  benchmark::Initialize(&argc, argv);
  benchmark::AddCustomContext("backend", baton::backend::TheBackend().Description());
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
