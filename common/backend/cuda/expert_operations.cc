#include "common/backend/cuda/expert_operations.h"

#include <algorithm>
#include <cstdint>

#include "common/backend/cuda/kernels/experts.h"
#include "common/backend/cuda/matrices/gated_product.h"
#include "common/backend/cuda/row_operations.h"
#include "common/base/check.h"

namespace baton::backend::cuda {
namespace {

// Rows [first, first + count).
Tensor RowsOf(const Tensor& tensor, int64_t first, int64_t count) {
  Tensor rows = tensor;
  rows.data = static_cast<std::byte*>(tensor.data) +
              first * tensor.row_stride * static_cast<int64_t>(SizeOf(tensor.dtype));
  rows.rows = count;
  return rows;
}

// Which of a layer's experts are copied from the host's memory for a part of a step's rows.
enum class Fetched { kNone, kChosen, kAll };

// At most kExpertRowsAtOnce rows.
void EnqueuePart(const ExpertsArgs& args, const Tensor& x, const Tensor& router_x,
                 const Tensor& logits, const Tensor& out, const int32_t* positions, Fetched fetched,
                 const ExpertWorkspace& workspace, DType dtype, Stream stream) {
  const auto& group = static_cast<const CudaExpertGroup&>(*args.group);
  const int rows = static_cast<int>(x.rows), per_token = args.routing.per_token;
  const int experts = static_cast<int>(args.group->experts().size());
  const int pairs = rows * per_token;
  const int tile_rows = ExpertTileRows(pairs, experts);
  const int tile_count = ExpertTileCount(pairs, experts, tile_rows);
  LaunchRouter({.x = router_x.data,
                .x_stride = router_x.row_stride,
                .router = static_cast<const CudaRouter&>(*args.router).data(),
                .bias = args.router_bias == nullptr ? nullptr : F32(*args.router_bias, experts),
                .logits = F32(logits),
                .logit_stride = logits.row_stride,
                .counts = workspace.counts,
                .rows = rows,
                .cols = static_cast<int>(router_x.cols),
                .experts = experts},
               router_x.dtype, stream);
  LaunchChooseExperts(
      {.logits = F32(logits),
       .logit_stride = logits.row_stride,
       .chosen = workspace.chosen,
       .weights = workspace.weights,
       .counts = workspace.counts,
       .rows = rows,
       .experts = experts,
       .per_token = per_token,
       .normalized = args.routing.normalized,
       .sigmoid = args.routing.sigmoid,
       .scale = args.routing.scale,
       .choice_bias = args.choice_bias == nullptr ? nullptr : F32(*args.choice_bias, experts),
       .scales = args.expert_scales == nullptr ? nullptr : F32(*args.expert_scales, experts),
       .positions = positions},
      stream);
  LaunchPlacePairs({.chosen = workspace.chosen,
                    .counts = workspace.counts,
                    .pairs = workspace.pairs,
                    .rows = workspace.rows,
                    .tiles = workspace.tiles,
                    .pair_count = pairs,
                    .per_token = per_token,
                    .experts = experts,
                    .tile_rows = tile_rows,
                    .tile_count = tile_count},
                   stream);
  if (fetched != Fetched::kNone) {
    FetchExpertsLaunch fetch = group.fetch();
    if (fetched == Fetched::kChosen) fetch.counts = workspace.counts;
    LaunchFetchExperts(fetch, stream);
  }
  ExpertMatMulGatedLaunch gated = {.operands = group.gate_up(),
                                   .out = args.gated.data,
                                   .out_stride = args.gated.row_stride,
                                   .gating = GatingOf(args.gating)};
  ExpertMatMulLaunch down = {.operands = group.down(),
                             .out = F32(args.results),
                             .out_stride = args.results.row_stride,
                             .out_rows = workspace.pairs};
  gated.operands.x = x.data;
  gated.operands.x_stride = x.row_stride;
  gated.operands.x_rows = workspace.rows;
  down.operands.x = args.gated.data;
  down.operands.x_stride = args.gated.row_stride;
  // Without a gate, the product is stored by pair, and the activation leaves it in that order.
  const bool has_gate = GatedParts(args.gating.activation) == 2;
  if (!has_gate) down.operands.x_rows = workspace.pairs;
  for (ExpertOperands* operands : {&gated.operands, &down.operands}) {
    operands->tiles = workspace.tiles;
    operands->tile_count = tile_count;
    operands->tile_rows = tile_rows;
  }
  if (has_gate) {
    LaunchExpertMatMulGated(gated, dtype, stream);
  } else {
    LaunchExpertMatMul({.operands = gated.operands,
                        .out = F32(args.gate_up_rows),
                        .out_stride = args.gate_up_rows.row_stride,
                        .out_rows = workspace.pairs},
                       dtype, stream);
    EnqueueGate(RowsOf(args.gate_up_rows, 0, pairs), args.gating, RowsOf(args.gated, 0, pairs),
                stream);
  }
  LaunchExpertMatMul(down, dtype, stream);
  LaunchSumExperts({.results = F32(args.results),
                    .result_stride = args.results.row_stride,
                    .weights = workspace.weights,
                    .out = F32(out),
                    .out_stride = out.row_stride,
                    .cols = static_cast<int>(out.cols),
                    .per_token = per_token,
                    .accumulates = args.accumulates},
                   rows, stream);
}

}  // namespace

void EnqueueExperts(const ExpertsArgs& args, const int32_t* positions,
                    const ExpertWorkspace& workspace, DType dtype, Stream stream) {
  const int64_t rows = args.x.rows, d = args.x.cols;
  const ExpertMatrices& first = args.group->experts()[0];
  const int64_t ffn = first.down->in_features();
  const auto experts = static_cast<int64_t>(args.group->experts().size());
  const auto scratch = ExpertScratch::For(rows, args.routing.per_token, /*at_once=*/true);
  BATON_CHECK(workspace.counts != nullptr) << "StepLimits' experts";
  BATON_CHECK(args.x.dtype == dtype && args.gated.dtype == dtype);
  BATON_CHECK_EQ(first.gate_up->in_features(), d);
  BATON_CHECK_EQ(first.gate_up->out_features(), GatedParts(args.gating.activation) * ffn);
  BATON_CHECK_EQ(first.down->out_features(), d);
  BATON_CHECK_EQ(args.router->in_features(), d);
  BATON_CHECK_EQ(args.router->out_features(), experts);
  const Tensor& router_x = args.router_x.data == nullptr ? args.x : args.router_x;
  BATON_CHECK(args.router_x.data == nullptr || router_x.dtype == DType::kF32);
  CheckRows(args.x, rows, d);
  CheckRows(router_x, rows, d);
  CheckRows(args.out, rows, d);
  CheckRows(args.gated, scratch.results, ffn);
  if (GatedParts(args.gating.activation) == 1) CheckRows(args.gate_up_rows, scratch.results, ffn);
  CheckRows(args.results, scratch.results, d);
  BATON_CHECK(args.logits.rows == rows && args.logits.cols == experts);
  const bool on_host = static_cast<const CudaExpertGroup&>(*args.group).on_host();
  for (int64_t at = 0; at < rows; at += kExpertRowsAtOnce) {
    const int64_t count = std::min(kExpertRowsAtOnce, rows - at);
    // The first of several parts copies for all of them, before any part's choice is known but its
    // own. So many rows choose nearly every expert.
    const Fetched fetched = !on_host || at > 0         ? Fetched::kNone
                            : rows > kExpertRowsAtOnce ? Fetched::kAll
                                                       : Fetched::kChosen;
    EnqueuePart(args, RowsOf(args.x, at, count), RowsOf(router_x, at, count),
                RowsOf(args.logits, at, count), RowsOf(args.out, at, count),
                positions == nullptr ? nullptr : positions + at, fetched, workspace, dtype, stream);
  }
}

}  // namespace baton::backend::cuda
