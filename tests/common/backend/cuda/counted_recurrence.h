// Launches of the kernels of recurrent layers, counted as in counted_launches.h.
#ifndef BATON_TESTS_COMMON_BACKEND_CUDA_COUNTED_RECURRENCE_H_
#define BATON_TESTS_COMMON_BACKEND_CUDA_COUNTED_RECURRENCE_H_

#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/backend/cuda/kernels/recurrence.h"
#include "tests/common/backend/cuda/counted_latent.h"

namespace baton::backend::cuda {

class CountedRecurrence : public CountedLatent {
 protected:
  // Sequences of `tokens` rows each, whose states of one plane, read and left in their place, are a
  // page each.
  struct States {
    States(int sequences, int tokens, int64_t lanes, int depth)
        : pool(sequences * lanes * depth * 4), depth(depth), lanes(lanes) {
      std::vector<StateEntry> entries;
      std::vector<int32_t> numbers, positions, rows;
      for (int s = 0; s < sequences; ++s) {
        const auto at = static_cast<int32_t>(numbers.size());
        entries.push_back({s * tokens, tokens, at, at + 1, 1});
        numbers.insert(numbers.end(), {s, tokens, s});
        for (int t = 0; t < tokens; ++t) {
          positions.push_back(16 + t);
          rows.push_back(s);
        }
      }
      d_entries = Memory(entries);
      tables = Memory(numbers);
      d_positions = Memory(positions);
      sequence_of_row = Memory(rows);
    }
    StatePlaces places() {
      return {.base = pool.As<std::byte>(),
              .page_stride_bytes = lanes * depth * 4,
              .spots = spots.As<SpotEntry>(),
              .spot_units = static_cast<int>(lanes / kUnitLanes),
              .depth = depth,
              .state_tables = 1,
              .sequences = d_entries.As<StateEntry>(),
              .tables = tables.As<int32_t>()};
    }
    Memory pool, spots = Memory(sizeof(SpotEntry)), d_entries = Memory(0), tables = Memory(0),
                 d_positions = Memory(0), sequence_of_row = Memory(0);
    int depth;
    int64_t lanes;
  };

  static Counted ShortConv(int sequences, int tokens, int channels) {
    constexpr int kTaps = 4;
    const int64_t rows = int64_t{sequences} * tokens;
    States states(sequences, tokens, channels, kTaps - 1);
    Memory x(4 * rows * channels), weight(int64_t{4} * kTaps * channels), out(4 * rows * channels);
    ShortConvLaunch launch = {};
    launch.state = states.places();
    launch.positions = states.d_positions.As<int32_t>();
    launch.sequence_of_row = states.sequence_of_row.As<int32_t>();
    launch.x = x.As<float>();
    launch.weight = weight.As<float>();
    launch.out = out.As<void>();
    launch.x_stride = launch.out_stride = launch.channels = channels;
    launch.taps = kTaps;
    launch.rows = static_cast<int>(rows);
    launch.rows_of_block = tokens < kMostConvRows ? tokens : kMostConvRows;
    launch.silu = true;
    return {"short convolution",
            absl::StrCat(sequences, " x ", tokens, " rows of ", channels, ", ", kTaps, " taps"),
            ShortConvFloor(sequences, rows, channels, kTaps, 4),
            CountOf([&] { LaunchShortConv(launch, DType::kF32, nullptr); }), ""};
  }

  // heads of [depth, depth], two of which share a key.
  static Counted Heads(int sequences, int tokens, int heads, int depth, bool delta) {
    const int64_t rows = int64_t{sequences} * tokens, lanes = int64_t{heads} * depth;
    const int64_t keys = lanes / 2, gates = int64_t{delta ? 2 : 1} * heads;
    States states(sequences, tokens, lanes, depth);
    Memory in(4 * rows * (2 * keys + lanes)), d_gates(4 * rows * gates), of_heads(4 * heads),
        out(4 * rows * lanes);
    HeadsLaunch launch = {};
    launch.state = states.places();
    launch.queries = in.As<float>();
    launch.keys = launch.queries + keys;
    launch.values = launch.keys + keys;
    launch.row_stride = 2 * keys + lanes;
    launch.gates = d_gates.As<float>();
    launch.gates_stride = gates;
    launch.decay = launch.step_bias = launch.skip = of_heads.As<float>();
    launch.out = out.As<float>();
    launch.out_stride = lanes;
    launch.heads = heads;
    launch.heads_of_key = 2;
    launch.key_heads = heads / 2;
    launch.lanes = depth;
    launch.norm_eps = 1e-6f;
    launch.query_factor = launch.most_step = 1;
    const int count = sequences;
    return {
        delta ? "gated delta rule" : "state space",
        absl::StrCat(sequences, " x ", tokens, " rows, ", heads, " heads of ", depth, " x ", depth),
        HeadsFloor(sequences, rows, lanes, depth, launch.row_stride + gates),
        CountOf([&] { (delta ? LaunchGatedDelta : LaunchStateSpace)(launch, count, nullptr); }),
        ""};
  }

  static Counted GatedNorm(int rows, int cols, int group) {
    Memory x(int64_t{4} * rows * cols), gate(int64_t{4} * rows * cols), weight(4 * group),
        out(int64_t{2} * rows * cols);
    GatedNormLaunch launch = {};
    launch.x = x.As<float>();
    launch.gate = gate.As<float>();
    launch.weight = weight.As<float>();
    launch.weight_size = launch.group = group;
    launch.out = out.As<void>();
    launch.x_stride = launch.gate_stride = launch.out_stride = cols;
    launch.groups = cols / group;
    launch.eps = 1e-6f;
    return {"norm with gates", absl::StrCat(rows, " x ", cols, " in groups of ", group),
            GatedNormFloor(rows, cols, group),
            CountOf([&] { LaunchGatedNorm(launch, DType::kF16, rows, nullptr); }), ""};
  }

  static Counted OutputGate(int rows, int cols) {
    Memory x(int64_t{2} * rows * cols), gate(int64_t{4} * rows * cols);
    OutputGateLaunch launch = {};
    launch.x = x.As<void>();
    launch.gate = gate.As<float>();
    launch.x_stride = launch.gate_stride = launch.cols = launch.group = cols;
    launch.group_stride = cols;
    return {"output gate", absl::StrCat(rows, " x ", cols), OutputGateFloor(rows, cols),
            CountOf([&] { LaunchOutputGate(launch, DType::kF16, rows, nullptr); }), ""};
  }
};

}  // namespace baton::backend::cuda

#endif  // BATON_TESTS_COMMON_BACKEND_CUDA_COUNTED_RECURRENCE_H_
