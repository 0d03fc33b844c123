#include "common/backend/cuda/recurrence_operations.h"

#include <algorithm>
#include <cmath>

#include "common/backend/cuda/kernels/recurrence.h"
#include "common/backend/cuda/row_operations.h"
#include "common/base/check.h"

namespace baton::backend::cuda {
namespace {

static_assert(kUnitLanes == kStateLanes);

// These kernels move elements, so that operands may be any columns of a row.
const float* FloatRows(const Tensor& tensor, int64_t rows, int64_t cols) {
  BATON_CHECK_EQ(tensor.rows, rows);
  BATON_CHECK_EQ(tensor.cols, cols);
  BATON_CHECK_GE(tensor.row_stride, cols);
  return F32(tensor);
}

void CheckOut(const Tensor& out, int64_t rows, int64_t cols) {
  BATON_CHECK_EQ(out.rows, rows);
  BATON_CHECK_EQ(out.cols, cols);
  BATON_CHECK_GE(out.row_stride, cols);
}

StatePlaces PlacesOf(const CudaBatch& batch, const KvPool& pool, StateSpots& spots, int layer,
                     int plane, int64_t lanes, int depth) {
  BATON_CHECK(batch.d_states != nullptr) << "no pages for the state of a sequence with rows";
  BATON_CHECK(layer >= 0 && layer < static_cast<int>(pool.states.size())) << "layer " << layer;
  const LayerState& state = pool.states[static_cast<size_t>(layer)];
  BATON_CHECK_LT(static_cast<size_t>(plane), state.size());
  const StatePlane& found = state[static_cast<size_t>(plane)];
  BATON_CHECK_EQ(found.lanes, lanes);
  BATON_CHECK_EQ(lanes % kStateLanes, 0);
  BATON_CHECK_EQ(found.depth, depth);
  BATON_CHECK_GE(static_cast<int64_t>(found.spots.size()) * found.spot_units, found.units());
  return {.base = pool.base,
          .page_stride_bytes = pool.block_stride_bytes,
          .spots = spots.Of(state, layer, plane),
          .spot_units = found.spot_units,
          .depth = depth,
          .state_tables = pool.state_tables,
          .sequences = batch.d_states,
          .tables = batch.d_tables};
}

void CheckHeads(int64_t depth, int64_t lanes, int heads, int keys) {
  BATON_CHECK(depth % kStateLanes == 0 && depth <= kMostStateDepth && lanes % kStateLanes == 0 &&
              keys > 0 && heads % keys == 0)
      << heads << " heads of " << lanes << ", " << keys << " keys of " << depth;
}

}  // namespace

void EnqueueShortConv(const CudaBatch& batch, const KvPool& pool, StateSpots& spots,
                      const ShortConvArgs& args, Stream stream) {
  const int64_t rows = batch.rows, channels = args.x.cols;
  BATON_CHECK(args.taps >= 2 && args.taps <= kMostConvTaps) << args.taps << " taps";
  const auto optional = [&](const Tensor& tensor) {
    return tensor.data == nullptr ? nullptr : FloatRows(tensor, rows, channels);
  };
  CheckOut(args.out, rows, channels);
  // Long sequences read few rows twice, and single rows do not wait for others.
  const int64_t rows_of_block = std::clamp<int64_t>(rows / batch.sequences, 1, kMostConvRows);
  LaunchShortConv({.state = PlacesOf(batch, pool, spots, args.layer, 0, channels, args.taps - 1),
                   .positions = batch.d_positions,
                   .sequence_of_row = batch.d_sequence_of_row,
                   .x = FloatRows(args.x, rows, channels),
                   .x_stride = args.x.row_stride,
                   .before = optional(args.before),
                   .before_stride = args.before.row_stride,
                   .after = optional(args.after),
                   .after_stride = args.after.row_stride,
                   .weight = F32(*args.weight, args.taps * channels),
                   .bias = args.bias == nullptr ? nullptr : F32(*args.bias, channels),
                   .out = args.out.data,
                   .out_stride = args.out.row_stride,
                   .channels = static_cast<int>(channels),
                   .taps = args.taps,
                   .rows = static_cast<int>(rows),
                   .rows_of_block = static_cast<int>(rows_of_block),
                   .silu = args.silu},
                  args.out.dtype, stream);
}

void EnqueueGatedDelta(const CudaBatch& batch, const KvPool& pool, StateSpots& spots,
                       const GatedDeltaArgs& args, Stream stream) {
  const int64_t heads = args.value_heads, keys = int64_t{args.key_heads} * args.key_dim;
  const int64_t lanes = heads * args.value_dim;
  CheckHeads(args.key_dim, args.value_dim, args.value_heads, args.key_heads);
  const float* qkv = FloatRows(args.qkv, batch.rows, 2 * keys + lanes);
  LaunchGatedDelta({.state = PlacesOf(batch, pool, spots, args.layer, 1, lanes, args.key_dim),
                    .queries = qkv,
                    .keys = qkv + keys,
                    .values = qkv + 2 * keys,
                    .row_stride = args.qkv.row_stride,
                    .gates = FloatRows(args.gates, batch.rows, 2 * heads),
                    .gates_stride = args.gates.row_stride,
                    .decay = F32(*args.decay, heads),
                    .step_bias = F32(*args.step_bias, heads),
                    .skip = nullptr,
                    .out = const_cast<float*>(FloatRows(args.out, batch.rows, lanes)),
                    .out_stride = args.out.row_stride,
                    .heads = args.value_heads,
                    .heads_of_key = args.keys_in_turn ? 1 : args.value_heads / args.key_heads,
                    .key_heads = args.key_heads,
                    .lanes = args.value_dim,
                    .norm_eps = kDeltaNormEps,
                    .query_factor = 1.0f / std::sqrt(static_cast<float>(args.key_dim)),
                    .least_step = 0,
                    .most_step = 0},
                   batch.sequences, stream);
}

void EnqueueStateSpace(const CudaBatch& batch, const KvPool& pool, StateSpots& spots,
                       const StateSpaceArgs& args, Stream stream) {
  const int64_t heads = args.heads, shared = int64_t{args.groups} * args.state_dim;
  const int64_t lanes = heads * args.head_dim;
  CheckHeads(args.state_dim, args.head_dim, args.heads, args.groups);
  const float* xbc = FloatRows(args.xbc, batch.rows, lanes + 2 * shared);
  LaunchStateSpace({.state = PlacesOf(batch, pool, spots, args.layer, 1, lanes, args.state_dim),
                    .queries = xbc + lanes + shared,
                    .keys = xbc + lanes,
                    .values = xbc,
                    .row_stride = args.xbc.row_stride,
                    .gates = FloatRows(args.dt, batch.rows, heads),
                    .gates_stride = args.dt.row_stride,
                    .decay = F32(*args.decay, heads),
                    .step_bias = F32(*args.step_bias, heads),
                    .skip = F32(*args.skip, heads),
                    .out = const_cast<float*>(FloatRows(args.out, batch.rows, lanes)),
                    .out_stride = args.out.row_stride,
                    .heads = args.heads,
                    .heads_of_key = args.heads / args.groups,
                    .key_heads = args.groups,
                    .lanes = args.head_dim,
                    .norm_eps = 0,
                    .query_factor = 1,
                    .least_step = args.least_step,
                    .most_step = args.most_step},
                   batch.sequences, stream);
}

void EnqueueGatedNorm(const GatedNormArgs& args, Stream stream) {
  const int64_t rows = args.x.rows, cols = args.x.cols;
  CheckOut(args.out, rows, cols);
  BATON_CHECK_EQ(cols % args.group, 0);
  BATON_CHECK(args.weight_size == cols || args.weight_size == args.group) << args.weight_size;
  LaunchGatedNorm({.x = FloatRows(args.x, rows, cols),
                   .x_stride = args.x.row_stride,
                   .gate = FloatRows(args.gate, rows, cols),
                   .gate_stride = args.gate.row_stride,
                   .weight = F32(*args.weight, args.weight_size),
                   .weight_size = static_cast<int>(args.weight_size),
                   .out = args.out.data,
                   .out_stride = args.out.row_stride,
                   .groups = static_cast<int>(cols / args.group),
                   .group = static_cast<int>(args.group),
                   .gate_first = args.gate_first,
                   .eps = args.eps},
                  args.out.dtype, static_cast<int>(rows), stream);
}

void EnqueueGateOutput(const OutputGateArgs& args, Stream stream) {
  const Tensor &x = args.x, &gate = args.gate;
  CheckRows(x, gate.rows, x.cols);
  const bool same = gate.cols == 1;
  if (!same) {
    BATON_CHECK_EQ(x.cols % args.group, 0);
    BATON_CHECK_LE((x.cols / args.group - 1) * args.gate_stride + args.group, gate.cols);
  }
  LaunchOutputGate({.x = x.data,
                    .x_stride = x.row_stride,
                    .gate = FloatRows(gate, x.rows, gate.cols),
                    .gate_stride = gate.row_stride,
                    .cols = static_cast<int>(x.cols),
                    .group = same ? 0 : static_cast<int>(args.group),
                    .group_stride = args.gate_stride},
                   x.dtype, static_cast<int>(x.rows), stream);
}

}  // namespace baton::backend::cuda
