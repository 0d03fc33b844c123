#include "common/backend/cpu/recurrence.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "common/backend/cpu/rows.h"
#include "common/base/check.h"

namespace baton::backend {
namespace {

static_assert(kUnitLanes == kStateLanes);
static_assert(kMostTaps == kMostConvTaps);
static_assert(kMostDepth == kMostStateDepth);

// Units of a task. Of a convolution these are whole lines of many rows.
constexpr int kMostUnits = 64;
using UnitPointers = std::array<float*, kMostUnits>;

const StatePlane& PlaneOf(const KvPool& kv, int layer, size_t plane, int64_t lanes, int depth) {
  BATON_CHECK(layer >= 0 && layer < static_cast<int>(kv.states.size())) << "layer " << layer;
  const LayerState& state = kv.states[static_cast<size_t>(layer)];
  BATON_CHECK_LT(plane, state.size());
  const StatePlane& found = state[plane];
  BATON_CHECK_EQ(found.lanes, lanes);
  BATON_CHECK_EQ(lanes % kStateLanes, 0);
  BATON_CHECK_EQ(found.depth, depth);
  BATON_CHECK_GE(static_cast<int64_t>(found.spots.size()) * found.spot_units, found.units());
  return found;
}

void FindUnits(const KvPool& kv, const StatePlane& plane, absl::Span<const int32_t> pages,
               int64_t first, int count, UnitPointers& units) {
  BATON_CHECK_EQ(static_cast<int>(pages.size()), kv.state_tables);
  for (int i = 0; i < count;) {
    const int64_t unit = first + i;
    const StateSpot& spot = plane.spots[static_cast<size_t>(unit / plane.spot_units)];
    const int32_t page = pages[static_cast<size_t>(spot.table)];
    BATON_CHECK(page >= 0 && page < kv.block_count) << "page " << page;
    float* at = kv.StateUnit(plane, pages, unit);
    const int64_t end = std::min<int64_t>(count, i + plane.spot_units - unit % plane.spot_units);
    for (; i < end; ++i, at += plane.unit_bytes() / 4) units[static_cast<size_t>(i)] = at;
  }
}

FloatRows RowsFrom(const Tensor& tensor, int64_t row, int64_t column) {
  if (tensor.data == nullptr) return {};
  return {At<float>(tensor, row) + column, tensor.row_stride};
}

}  // namespace

void RecurrenceRunner::Plan(const CpuBatch& batch, const StatePlane& plane, int64_t group) {
  const auto& sequences = batch.sequences();
  order_.clear();
  for (size_t s = 0; s < sequences.size(); ++s) {
    if (sequences[s].row_count > 0) order_.push_back(static_cast<int>(s));
  }
  // The longest first: at the end of the step no thread waits long for another.
  std::sort(order_.begin(), order_.end(), [&](int a, int b) {
    return sequences[static_cast<size_t>(a)].row_count >
           sequences[static_cast<size_t>(b)].row_count;
  });
  // Several tasks a thread, but none that costs less than waking a thread.
  constexpr int64_t kFloatsPerTask = 16 << 10;
  const int64_t share = std::max(batch.rows() * plane.units() / (4 * pool_.thread_count()),
                                 kFloatsPerTask / (plane.depth * kStateLanes));
  tasks_.clear();
  for (const int s : order_) {
    const int64_t most = std::min<int64_t>(group, kMostUnits);
    int64_t units =
        std::clamp<int64_t>(share / sequences[static_cast<size_t>(s)].row_count, 1, most);
    if (units > 1) units -= units % 2;  // kernels take two at once
    for (int64_t head = 0; head < plane.units(); head += group) {
      for (int64_t unit = head; unit < head + group; unit += units) {
        tasks_.push_back({s, unit, static_cast<int>(std::min(units, head + group - unit))});
      }
    }
  }
}

void RecurrenceRunner::FindOwnUnits(int thread, const StatePlane& plane, int count, float** units) {
  constexpr size_t kAlignment = 64;
  const auto floats = static_cast<size_t>(plane.unit_bytes() / 4);
  std::vector<float>& memory = own_units_[static_cast<size_t>(thread)];
  const size_t needed = static_cast<size_t>(count) * floats + kAlignment / sizeof(float);
  if (memory.size() < needed) memory.resize(needed);
  const auto address = reinterpret_cast<uintptr_t>(memory.data());
  float* at = memory.data() + (kAlignment - address % kAlignment) % kAlignment / sizeof(float);
  for (int i = 0; i < count; ++i, at += floats) units[i] = at;
}

void RecurrenceRunner::ForRuns(const CpuBatch& batch, const KvPool& kv, const StatePlane& plane,
                               int64_t group, Body body) {
  Plan(batch, plane, group);
  own_units_.resize(static_cast<size_t>(pool_.thread_count()));
  pool_.Run(static_cast<int>(tasks_.size()), [&](int index, int thread) {
    const Task& task = tasks_[static_cast<size_t>(index)];
    const CpuBatch::Sequence& sequence = batch.sequences()[static_cast<size_t>(task.sequence)];
    BATON_CHECK(!sequence.state_stores.empty()) << "no pages for the state of a sequence with rows";
    UnitPointers from, to;
    if (!sequence.state.empty()) {
      FindUnits(kv, plane, sequence.state, task.first_unit, task.units, from);
    }
    int done = 0;
    const auto run_to = [&](int end) {
      while (done < end) {
        const int tokens = std::min(kRunTokens, end - done);
        body({tokens, task.units, from.data(), to.data()}, sequence.first_row + done,
             task.first_unit);
        done += tokens;
        from = to;
      }
    };
    for (const CpuBatch::Store& store : sequence.state_stores) {
      FindUnits(kv, plane, store.pages, task.first_unit, task.units, to);
      if (done == 0 && sequence.state.empty()) {
        for (int u = 0; u < task.units; ++u) {
          std::memset(to[static_cast<size_t>(u)], 0, static_cast<size_t>(plane.unit_bytes()));
        }
        from = to;
      }
      run_to(store.tokens - sequence.context);
    }
    if (done == sequence.row_count) return;
    FindOwnUnits(thread, plane, task.units, to.data());
    run_to(sequence.row_count);
  });
}

void RecurrenceRunner::ShortConv(const CpuBatch& batch, const KvPool& kv,
                                 const ShortConvArgs& args) {
  const int64_t rows = batch.rows(), channels = args.x.cols;
  BATON_CHECK(args.taps >= 2 && args.taps <= kMostConvTaps) << args.taps << " taps";
  for (const Tensor* tensor : {&args.x, &args.before, &args.after}) {
    if (tensor != &args.x && tensor->data == nullptr) continue;
    CheckF32(*tensor);
    CheckShape(*tensor, rows, channels);
  }
  CheckShape(args.out, rows, channels);
  const StatePlane& plane = PlaneOf(kv, args.layer, 0, channels, args.taps - 1);
  const float* weight = FloatsOf(args.weight, args.taps * channels);
  const float* bias = FloatsOf(args.bias, channels);
  ForRuns(batch, kv, plane, plane.units(),
          [&](const StateRun& run, int64_t row, int64_t first_unit) {
            const int64_t at = first_unit * kStateLanes;
            kernels_.short_conv({.run = run,
                                 .taps = args.taps,
                                 .x = RowsFrom(args.x, row, at),
                                 .before = RowsFrom(args.before, row, at),
                                 .after = RowsFrom(args.after, row, at),
                                 .weight = {weight + at, channels},
                                 .bias = bias == nullptr ? nullptr : bias + at,
                                 .silu = args.silu,
                                 .element = ElementOf(args.out.dtype),
                                 .out = static_cast<std::byte*>(RowOf(args.out, row)) +
                                        at * static_cast<int64_t>(SizeOf(args.out.dtype)),
                                 .out_stride = args.out.row_stride});
          });
}

void RecurrenceRunner::GatedDelta(const CpuBatch& batch, const KvPool& kv,
                                  const GatedDeltaArgs& args) {
  const int64_t heads = args.value_heads, keys = int64_t{args.key_heads} * args.key_dim;
  const int64_t lanes = heads * args.value_dim, units = args.value_dim / kStateLanes;
  BATON_CHECK(args.value_dim % kStateLanes == 0 && args.key_dim % 16 == 0 &&
              args.key_dim <= kMostStateDepth && heads % args.key_heads == 0);
  for (const Tensor* tensor : {&args.qkv, &args.gates, &args.out}) CheckF32(*tensor);
  CheckShape(args.qkv, batch.rows(), 2 * keys + lanes);
  CheckShape(args.gates, batch.rows(), 2 * heads);
  CheckShape(args.out, batch.rows(), lanes);
  const StatePlane& plane = PlaneOf(kv, args.layer, 1, lanes, args.key_dim);
  const float *decay = FloatsOf(args.decay, heads), *step_bias = FloatsOf(args.step_bias, heads);
  ForRuns(batch, kv, plane, units, [&](const StateRun& run, int64_t row, int64_t first_unit) {
    const int64_t head = first_unit / units, at = first_unit * kStateLanes;
    const int64_t key_head =
        args.keys_in_turn ? head % args.key_heads : head / (heads / args.key_heads);
    const int64_t key_column = key_head * args.key_dim;
    kernels_.gated_delta({.run = run,
                          .key_dim = args.key_dim,
                          .keys = RowsFrom(args.qkv, row, keys + key_column),
                          .queries = RowsFrom(args.qkv, row, key_column),
                          .values = RowsFrom(args.qkv, row, 2 * keys + at),
                          .b = RowsFrom(args.gates, row, head),
                          .a = RowsFrom(args.gates, row, heads + head),
                          .decay = decay[head],
                          .step_bias = step_bias[head],
                          .norm_eps = kDeltaNormEps,
                          .out = At<float>(args.out, row) + at,
                          .out_stride = args.out.row_stride});
  });
}

void RecurrenceRunner::StateSpace(const CpuBatch& batch, const KvPool& kv,
                                  const StateSpaceArgs& args) {
  const int64_t heads = args.heads, shared = int64_t{args.groups} * args.state_dim;
  const int64_t lanes = heads * args.head_dim, units = args.head_dim / kStateLanes;
  BATON_CHECK(args.head_dim % kStateLanes == 0 && args.state_dim % 16 == 0 &&
              args.state_dim <= kMostStateDepth && heads % args.groups == 0);
  for (const Tensor* tensor : {&args.xbc, &args.dt, &args.out}) CheckF32(*tensor);
  CheckShape(args.xbc, batch.rows(), lanes + 2 * shared);
  CheckShape(args.dt, batch.rows(), heads);
  CheckShape(args.out, batch.rows(), lanes);
  const StatePlane& plane = PlaneOf(kv, args.layer, 1, lanes, args.state_dim);
  const float *decay = FloatsOf(args.decay, heads), *step_bias = FloatsOf(args.step_bias, heads);
  const float* skip = FloatsOf(args.skip, heads);
  ForRuns(batch, kv, plane, units, [&](const StateRun& run, int64_t row, int64_t first_unit) {
    const int64_t head = first_unit / units, at = first_unit * kStateLanes;
    const int64_t b_column = lanes + head / (heads / args.groups) * args.state_dim;
    kernels_.state_space({.run = run,
                          .state_dim = args.state_dim,
                          .b = RowsFrom(args.xbc, row, b_column),
                          .c = RowsFrom(args.xbc, row, b_column + shared),
                          .x = RowsFrom(args.xbc, row, at),
                          .dt = RowsFrom(args.dt, row, head),
                          .decay = decay[head],
                          .step_bias = step_bias[head],
                          .skip = skip[head],
                          .least_step = args.least_step,
                          .most_step = args.most_step,
                          .out = At<float>(args.out, row) + at,
                          .out_stride = args.out.row_stride});
  });
}

void RecurrenceRunner::Norm(const GatedNormArgs& args) {
  const Tensor &x = args.x, &out = args.out;
  CheckF32(x);
  CheckF32(args.gate);
  CheckShape(args.gate, x.rows, x.cols);
  CheckShape(out, x.rows, x.cols);
  BATON_CHECK_EQ(x.cols % args.group, 0);
  BATON_CHECK(args.weight_size == x.cols || args.weight_size == args.group) << args.weight_size;
  const float* weight = FloatsOf(args.weight, args.weight_size);
  ForRows(pool_, x.rows, x.cols, [&](int64_t row) {
    for (int64_t at = 0; at < x.cols; at += args.group) {
      kernels_.gated_norm({.x = At<float>(x, row) + at,
                           .gate = At<float>(args.gate, row) + at,
                           .weight = weight + at % args.weight_size,
                           .gate_first = args.gate_first,
                           .eps = args.eps,
                           .n = args.group,
                           .element = ElementOf(out.dtype),
                           .y = static_cast<std::byte*>(RowOf(out, row)) +
                                at * static_cast<int64_t>(SizeOf(out.dtype))});
    }
  });
}

void RecurrenceRunner::Gate(const OutputGateArgs& args) {
  const Tensor& x = args.x;
  CheckF32(args.gate);
  BATON_CHECK_EQ(args.gate.rows, x.rows);
  const bool same = args.gate.cols == 1;
  constexpr int64_t kRepeats = 64;
  const int64_t group = same ? kRepeats : args.group, stride = same ? 0 : args.gate_stride;
  if (!same) {
    BATON_CHECK_EQ(x.cols % group, 0);
    BATON_CHECK_LE((x.cols / group - 1) * stride + group, args.gate.cols);
  }
  ForRows(pool_, x.rows, x.cols, [&](int64_t row) {
    const float* gate = At<float>(args.gate, row);
    std::array<float, kRepeats> repeated;
    if (same) {
      repeated.fill(*gate);
      gate = repeated.data();
    }
    for (int64_t at = 0; at < x.cols; at += group, gate += stride) {
      kernels_.gate_output(
          static_cast<std::byte*>(RowOf(x, row)) + at * static_cast<int64_t>(SizeOf(x.dtype)),
          ElementOf(x.dtype), gate, std::min(group, x.cols - at));
    }
  });
}

}  // namespace baton::backend
