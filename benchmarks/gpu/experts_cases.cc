// Layers of experts: what chooses them, both products, and the sum. Rows choose at random, each
// turn anew, so that the matrices of another turn's experts have left the L2 cache.
#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmarks/gpu/kernel_cases.h"
#include "benchmarks/gpu/random_numbers.h"
#include "common/backend/cuda/kernels/experts.h"
#include "common/backend/cuda/plan/kernel_floors.h"
#include "common/backend/quantized.h"

namespace baton::gpu_bench {
namespace {

using backend::cuda::ExpertMatMulGatedLaunch;
using backend::cuda::ExpertMatMulLaunch;
using backend::cuda::ExpertMatrix;
using backend::cuda::ExpertOperands;
using backend::cuda::ExpertShape;
using backend::cuda::ExpertSource;
using backend::cuda::ExpertTile;
using backend::cuda::FetchExpertsLaunch;

constexpr int kTurns = 4;

// One turn's choices, on the device.
struct Choices {
  int32_t *chosen = nullptr, *pairs = nullptr, *rows = nullptr;
  unsigned* counts = nullptr;
  ExpertTile* tiles = nullptr;
};

class ExpertCase {
 public:
  ExpertCase(BenchDevice& device, const ModelShape& model, int rows)
      : device_(device),
        model_(model),
        rows_(rows),
        pairs_(rows * model.experts_per_token),
        tile_rows_(backend::cuda::ExpertTileRows(pairs_, model.experts)),
        tile_count_(backend::cuda::ExpertTileCount(pairs_, model.experts, tile_rows_)) {
    std::mt19937 random(1);
    for (int turn = 0; turn < kTurns; ++turn) Choose(random, turns_[turn]);
    distinct_ /= kTurns;
    x_ = device.Take<uint16_t>(int64_t{rows} * model.hidden);
    gated_ = device.Take<uint16_t>(int64_t{pairs_} * model.ffn);
    results_ = device.Take<float>(int64_t{pairs_} * model.hidden);
    weights_ = device.Take<float>(pairs_);
    logits_ = device.Take<float>(int64_t{rows} * model.experts);
    router_ = device.Take<float>(int64_t{model.experts} * model.hidden);
    out_ = device.Take<float>(int64_t{rows} * model.hidden);
    gate_up_ = Matrices(2 * model.ffn, model.hidden);
    down_ = Matrices(model.hidden, model.ffn);
    gate_up_.x = x_;
    gate_up_.x_stride = model.hidden;
    down_.x = gated_;
    down_.x_stride = model.ffn;
  }

  bool found() const { return found_ && out_ != nullptr && router_ != nullptr; }
  ExpertShape ShapeOf(const ExpertOperands& operands) const {
    return {.pairs = pairs_,
            .x_rows = operands.x == x_ ? rows_ : pairs_,
            .experts = static_cast<int64_t>(std::lround(distinct_)),
            .n = operands.w.n,
            .k = operands.w.k,
            .bits = operands.bits,
            .group_size = model_.group_size};
  }
  double Operations(const ExpertOperands& operands) const {
    return backend::cuda::MatMulOperations(pairs_, operands.w.n, operands.w.k);
  }
  const ExpertOperands& gate_up() const { return gate_up_; }
  const ExpertOperands& down() const { return down_; }
  double distinct() const { return distinct_; }

  void Route(int turn) {
    const Choices& of = turns_[turn % kTurns];
    backend::cuda::LaunchRouter({.x = x_,
                                 .x_stride = model_.hidden,
                                 .router = router_,
                                 .bias = nullptr,
                                 .logits = logits_,
                                 .logit_stride = model_.experts,
                                 .counts = of.counts,
                                 .rows = rows_,
                                 .cols = model_.hidden,
                                 .experts = model_.experts},
                                device_.dtype(), device_.stream());
    backend::cuda::LaunchChooseExperts({.logits = logits_,
                                        .logit_stride = model_.experts,
                                        .chosen = of.chosen,
                                        .weights = weights_,
                                        .counts = of.counts,
                                        .rows = rows_,
                                        .experts = model_.experts,
                                        .per_token = model_.experts_per_token,
                                        .normalized = true},
                                       device_.stream());
    Place(of);
  }
  // Prepares Fetch(), which copies the matrices of this turn's experts from the host's memory to
  // where they are.
  bool PlaceOnHost() {
    fetch_ = {.sources = nullptr,
              .to = nullptr,
              .gate_up_bytes = MatrixBytes(2 * model_.ffn, model_.hidden),
              .down_bytes = MatrixBytes(model_.hidden, model_.ffn),
              .down_offset = 0,
              .stride_bytes = 0,
              .counts = nullptr,
              .experts = model_.experts};
    fetch_.down_offset = fetch_.gate_up_bytes;
    fetch_.stride_bytes = fetch_.gate_up_bytes + fetch_.down_bytes;
    const int64_t all_bytes = fetch_.stride_bytes * model_.experts;
    const std::byte* const host = device_.Pinned(static_cast<size_t>(all_bytes));
    fetch_.to = device_.Take(static_cast<size_t>(all_bytes));
    auto* const table = device_.Take<ExpertSource>(model_.experts);
    if (host == nullptr || table == nullptr) return false;
    std::vector<ExpertSource> sources;
    for (int expert = 0; expert < model_.experts; ++expert) {
      const std::byte* const start = host + expert * fetch_.stride_bytes;
      sources.push_back({start, start + fetch_.gate_up_bytes});
    }
    device_.Copy(table, sources.data(), sources.size() * sizeof(sources[0]));
    fetch_.sources = table;
    return true;
  }
  double fetched_bytes() const { return distinct_ * static_cast<double>(fetch_.stride_bytes); }
  void Fetch(int turn) {
    fetch_.counts = turns_[turn % kTurns].counts;
    LaunchFetchExperts(fetch_, device_.stream());
  }
  void Gate(int turn) {
    ExpertMatMulGatedLaunch launch = {
        .operands = OfTurn(gate_up_, turn), .out = gated_, .out_stride = model_.ffn};
    launch.operands.x_rows = turns_[turn % kTurns].rows;
    LaunchExpertMatMulGated(launch, device_.dtype(), device_.stream());
  }
  void Down(int turn) {
    const ExpertMatMulLaunch launch = {.operands = OfTurn(down_, turn),
                                       .out = results_,
                                       .out_stride = model_.hidden,
                                       .out_rows = turns_[turn % kTurns].pairs};
    LaunchExpertMatMul(launch, device_.dtype(), device_.stream());
  }
  void Sum() {
    backend::cuda::LaunchSumExperts({.results = results_,
                                     .result_stride = model_.hidden,
                                     .weights = weights_,
                                     .out = out_,
                                     .out_stride = model_.hidden,
                                     .cols = model_.hidden,
                                     .per_token = model_.experts_per_token},
                                    rows_, device_.stream());
  }

 private:
  void Choose(std::mt19937& random, Choices& of) {
    std::vector<int32_t> chosen, experts(static_cast<size_t>(model_.experts));
    std::vector<unsigned> counts(experts.size());
    std::iota(experts.begin(), experts.end(), 0);
    for (int row = 0; row < rows_; ++row) {
      std::shuffle(experts.begin(), experts.end(), random);
      for (int i = 0; i < model_.experts_per_token; ++i) {
        chosen.push_back(experts[static_cast<size_t>(i)]);
        ++counts[static_cast<size_t>(chosen.back())];
      }
    }
    distinct_ += static_cast<double>(
        std::count_if(counts.begin(), counts.end(), [](unsigned count) { return count > 0; }));
    of.chosen = device_.Take<int32_t>(pairs_);
    of.pairs = device_.Take<int32_t>(pairs_);
    of.rows = device_.Take<int32_t>(pairs_);
    of.counts = device_.Take<unsigned>(model_.experts);
    of.tiles = device_.Take<ExpertTile>(tile_count_);
    if (of.tiles == nullptr || !device_.launches()) return;
    device_.Copy(of.chosen, chosen.data(), chosen.size() * sizeof(chosen[0]));
    device_.Copy(of.counts, counts.data(), counts.size() * sizeof(counts[0]));
    Place(of);
  }
  void Place(const Choices& of) {
    backend::cuda::LaunchPlacePairs({.chosen = of.chosen,
                                     .counts = of.counts,
                                     .pairs = of.pairs,
                                     .rows = of.rows,
                                     .tiles = of.tiles,
                                     .pair_count = pairs_,
                                     .per_token = model_.experts_per_token,
                                     .experts = model_.experts,
                                     .tile_rows = tile_rows_,
                                     .tile_count = tile_count_},
                                    device_.stream());
  }

  int64_t MatrixBytes(int n, int k) const {
    return model_.bits == 0
               ? int64_t{kElementBytes} * n * k
               : backend::QuantizedExtentOf(n, k, model_.bits, model_.group_size).size_bytes();
  }

  ExpertOperands OfTurn(const ExpertOperands& all, int turn) const {
    ExpertOperands operands = all;
    operands.tiles = turns_[turn % kTurns].tiles;
    operands.tile_count = tile_count_;
    operands.tile_rows = tile_rows_;
    return operands;
  }

  // Allocates the matrices of all experts and the table of them.
  ExpertOperands Matrices(int n, int k) {
    ExpertOperands operands = {};
    operands.bits = model_.bits == 0 ? 16 : model_.bits;
    operands.w.n = n;
    operands.w.k = k;
    int64_t matrix_bytes = int64_t{kElementBytes} * n * k;
    uint32_t* groups = nullptr;
    if (model_.bits > 0) {
      const auto extent = backend::QuantizedExtentOf(n, k, model_.bits, model_.group_size);
      matrix_bytes = extent.value_bytes();
      operands.w.column_tiles = static_cast<int>(extent.column_tiles);
      operands.w.group_count = static_cast<int>(extent.group_words);
      operands.w.steps_a_group_log2 =
          std::countr_zero(static_cast<unsigned>(model_.group_size / 32));
      operands.w.bf16_scales = device_.dtype() == backend::DType::kBF16;
      const int64_t words = (extent.size_bytes() - matrix_bytes) / int64_t{sizeof(uint32_t)};
      // All matrices share the scales of one, which are a few percent of the bytes.
      groups = device_.Take<uint32_t>(words);
      std::vector<uint32_t> host;
      for (const uint16_t scale : RandomHalves(static_cast<size_t>(words), device_.dtype())) {
        host.push_back(scale | 1u << (model_.bits - 1) << 16);
      }
      if (groups != nullptr) device_.Copy(groups, host.data(), host.size() * sizeof(host[0]));
    }
    std::byte* const memory = device_.Take(static_cast<size_t>(matrix_bytes * model_.experts));
    auto* const table = device_.Take<ExpertMatrix>(model_.experts);
    if (memory == nullptr || table == nullptr) {
      found_ = false;
      return operands;
    }
    std::vector<ExpertMatrix> entries;
    for (int expert = 0; expert < model_.experts; ++expert) {
      entries.push_back({memory + expert * matrix_bytes, groups, nullptr});
    }
    device_.Copy(table, entries.data(), entries.size() * sizeof(entries[0]));
    operands.matrices = table;
    return operands;
  }

  BenchDevice& device_;
  const ModelShape& model_;
  const int rows_, pairs_, tile_rows_, tile_count_;
  Choices turns_[kTurns];
  double distinct_ = 0;
  bool found_ = true;
  uint16_t *x_ = nullptr, *gated_ = nullptr;
  float *results_ = nullptr, *weights_ = nullptr, *logits_ = nullptr, *router_ = nullptr,
        *out_ = nullptr;
  ExpertOperands gate_up_ = {}, down_ = {};
  FetchExpertsLaunch fetch_ = {};
};

void TimeRows(KernelBench& bench, const ModelShape& model, int rows) {
  BenchDevice& device = bench.device;
  const std::string name = absl::StrCat(model.name, " m", rows);
  const auto time = [&](const char* kernel, auto work, auto launch) {
    if (!bench.Wanted(kernel, name)) return;
    Row row = bench.Begin(kernel, name);
    row.Text("model", model.name).Number("m", rows);
    ExpertCase one(device, model, rows);
    if (!one.found()) return KernelBench::Skip(std::move(row));
    row.Number("distinct", one.distinct());
    row.Took(device.Seconds([&](int turn) { launch(one, turn); }), work(one)).Print();
  };
  if (const std::string fetch = "experts_fetch"; bench.Wanted(fetch, name)) {
    Row row = bench.Begin(fetch, name);
    row.Text("model", model.name).Number("m", rows);
    ExpertCase one(device, model, rows);
    if (!one.found() || !one.PlaceOnHost()) {
      KernelBench::Skip(std::move(row));
    } else {
      const double seconds = device.Seconds([&](int turn) { one.Fetch(turn); });
      // The matrices cross the link and are written to the device.
      row.Number("distinct", one.distinct())
          .Number("link_bytes", one.fetched_bytes())
          .Took(seconds, {one.fetched_bytes(), 0})
          .Print();
    }
  }
  const int64_t d = model.hidden, per_token = model.experts_per_token;
  time(
      "experts_route",
      [&](const ExpertCase&) {
        return WorkOf(backend::cuda::RouterFloor(rows, model.experts, d),
                      backend::cuda::MatMulOperations(rows, model.experts, d));
      },
      [](ExpertCase& one, int turn) { one.Route(turn); });
  time(
      "experts_gate",
      [](const ExpertCase& one) {
        return WorkOf(ExpertMatMulGatedFloor(one.ShapeOf(one.gate_up())),
                      one.Operations(one.gate_up()));
      },
      [](ExpertCase& one, int turn) { one.Gate(turn); });
  time(
      "experts_down",
      [](const ExpertCase& one) {
        return WorkOf(ExpertMatMulFloor(one.ShapeOf(one.down())), one.Operations(one.down()));
      },
      [](ExpertCase& one, int turn) { one.Down(turn); });
  time(
      "experts_sum",
      [&](const ExpertCase&) {
        return WorkOf(backend::cuda::SumExpertsFloor(rows, per_token, d), 0);
      },
      [](ExpertCase& one, int) { one.Sum(); });
}

}  // namespace

void TimeExperts(KernelBench& bench) {
  for (const ModelShape& model : bench.grid.models) {
    if (model.experts == 0) continue;
    for (const int rows : bench.grid.expert_rows) TimeRows(bench, model, rows);
  }
}

}  // namespace baton::gpu_bench
