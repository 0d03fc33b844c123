// Recurrent layers: steps of several sequences with a state each, and prompts, token by token.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmarks/gpu/kernel_cases.h"
#include "common/backend/cuda/kernels/recurrence.h"

namespace baton::gpu_bench {
namespace {

using backend::cuda::SpotEntry;
using backend::cuda::StateEntry;
using backend::cuda::StatePlaces;

// Sequences whose states are a page each, read and left in their place; of `turns` pools.
struct States {
  StatePlaces places = {};
  const int32_t* positions = nullptr;
  const int32_t* sequence_of_row = nullptr;
  int64_t pool_bytes = 0;

  // Whether the memory was there.
  bool Take(BenchDevice& device, const RecurrenceStep& step, int64_t lanes, int depth, int turns) {
    std::vector<StateEntry> entries;
    std::vector<int32_t> tables, all_positions, rows;
    for (int s = 0; s < step.sequences; ++s) {
      const auto at = static_cast<int32_t>(tables.size());
      entries.push_back({s * step.tokens, step.tokens, at, at + 1, 1});
      tables.insert(tables.end(), {s, step.tokens, s});
      for (int t = 0; t < step.tokens; ++t) {
        all_positions.push_back(kBlockTokens + t);
        rows.push_back(s);
      }
    }
    const int64_t page_bytes = lanes * depth * static_cast<int64_t>(sizeof(float));
    pool_bytes = step.sequences * page_bytes;
    places = {.base = device.Take(static_cast<size_t>(pool_bytes * turns)),
              .page_stride_bytes = page_bytes,
              .spots = device.Send(std::vector<SpotEntry>{{0, 0}}),
              .spot_units = static_cast<int>(lanes / backend::cuda::kUnitLanes),
              .depth = depth,
              .state_tables = 1,
              .sequences = device.Send(entries),
              .tables = device.Send(tables)};
    positions = device.Send(all_positions);
    sequence_of_row = device.Send(rows);
    return places.base != nullptr && sequence_of_row != nullptr;
  }
  StatePlaces At(int turn, int turns) const {
    StatePlaces at = places;
    at.base += turn % turns * pool_bytes;
    return at;
  }
};

std::string NameOf(const RecurrenceShape& shape, const RecurrenceStep& step) {
  return absl::StrCat(shape.name, " b", step.sequences, " m", step.tokens);
}

void TimeHeads(KernelBench& bench, const RecurrenceShape& shape, const RecurrenceStep& step) {
  BenchDevice& device = bench.device;
  const std::string name = NameOf(shape, step),
                    kernel = shape.delta ? "gated_delta" : "state_space";
  if (!bench.Wanted(kernel, name)) return;
  Row row = bench.Begin(kernel, name);
  const int64_t rows = int64_t{step.sequences} * step.tokens;
  const int64_t lanes = int64_t{shape.heads} * shape.lanes;
  const int64_t keys = int64_t{shape.keys} * shape.depth;
  const int64_t gates = int64_t{shape.delta ? 2 : 1} * shape.heads;
  const Work work = WorkOf(backend::cuda::HeadsFloor(step.sequences, rows, lanes, shape.depth,
                                                     2 * keys + lanes + gates));
  const int turns = device.Turns(work.bytes);
  States states;
  const bool has_states = states.Take(device, step, lanes, shape.depth, turns);
  backend::cuda::HeadsLaunch launch = {};
  launch.row_stride = 2 * keys + lanes;
  const float* const in = device.Take<float>(rows * launch.row_stride);
  launch.gates = device.Take<float>(rows * gates);
  launch.gates_stride = gates;
  launch.decay = launch.step_bias = launch.skip = device.Take<float>(shape.heads);
  launch.out = device.Take<float>(rows * lanes);
  if (!has_states || in == nullptr || launch.out == nullptr) {
    return KernelBench::Skip(std::move(row));
  }
  // Queries, keys, values; or x, B, C.
  launch.queries = shape.delta ? in : in + lanes + keys;
  launch.keys = in + (shape.delta ? keys : lanes);
  launch.values = shape.delta ? in + 2 * keys : in;
  launch.out_stride = lanes;
  launch.heads = shape.heads;
  launch.heads_of_key = shape.heads / shape.keys;
  launch.key_heads = shape.keys;
  launch.lanes = shape.lanes;
  launch.norm_eps = 1e-6f;
  launch.query_factor = 1 / std::sqrt(static_cast<float>(shape.depth));
  launch.most_step = 1;
  const double seconds = device.Seconds([&](int turn) {
    launch.state = states.At(turn, turns);
    (shape.delta ? backend::cuda::LaunchGatedDelta : backend::cuda::LaunchStateSpace)(
        launch, step.sequences, device.stream());
  });
  row.Took(seconds, work).Print();
}

void TimeShortConv(KernelBench& bench, const RecurrenceShape& shape, const RecurrenceStep& step) {
  BenchDevice& device = bench.device;
  const std::string name = NameOf(shape, step);
  if (!bench.Wanted("short_conv", name)) return;
  Row row = bench.Begin("short_conv", name);
  const int64_t rows = int64_t{step.sequences} * step.tokens, channels = shape.channels();
  const Work work = WorkOf(
      backend::cuda::ShortConvFloor(step.sequences, rows, channels, shape.taps, sizeof(float)));
  const int turns = device.Turns(work.bytes);
  States states;
  const bool has_states = states.Take(device, step, channels, shape.taps - 1, turns);
  float* const x = device.Take<float>(rows * channels * turns);
  float* const out = device.Take<float>(rows * channels * turns);
  backend::cuda::ShortConvLaunch launch = {};
  launch.weight = device.Take<float>(shape.taps * channels);
  if (!has_states || x == nullptr || out == nullptr || launch.weight == nullptr) {
    return KernelBench::Skip(std::move(row));
  }
  launch.positions = states.positions;
  launch.sequence_of_row = states.sequence_of_row;
  launch.x_stride = launch.out_stride = channels;
  launch.channels = static_cast<int>(channels);
  launch.taps = shape.taps;
  launch.rows = static_cast<int>(rows);
  launch.rows_of_block = std::min(step.tokens, backend::cuda::kMostConvRows);
  launch.silu = true;
  const double seconds = device.Seconds([&](int turn) {
    launch.state = states.At(turn, turns);
    launch.x = x + turn % turns * rows * channels;
    launch.out = out + turn % turns * rows * channels;
    backend::cuda::LaunchShortConv(launch, backend::DType::kF32, device.stream());
  });
  row.Took(seconds, work).Print();
}

}  // namespace

void TimeRecurrences(KernelBench& bench) {
  for (const RecurrenceShape& shape : bench.grid.recurrences) {
    for (const RecurrenceStep& step : bench.grid.recurrence_steps) {
      TimeHeads(bench, shape, step);
      TimeShortConv(bench, shape, step);
    }
  }
}

}  // namespace baton::gpu_bench
