#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmarks/gpu/kernel_cases.h"
#include "common/backend/cuda/kernels/attention.h"
#include "common/backend/cuda/kernels/latent.h"
#include "common/backend/cuda/steps/attention_plan.h"
#include "common/base/check.h"

namespace baton::gpu_bench {
namespace {

using backend::cuda::AttentionItem;
using backend::cuda::AttentionLaunch;
using backend::cuda::AttentionPlan;
using backend::cuda::AttentionRoom;
using backend::cuda::PaddedDim;
using backend::cuda::PartialFloats;
using backend::cuda::SequenceEntry;
using backend::cuda::TotalFloats;

struct AttentionShape {
  int sequences = 1;
  int rows = 1;  // of each sequence, behind `context` tokens
  int context = 0;
  int query_heads = 0;
  int kv_heads = 0;
  int head_dim = 0;
  int window = 0;
  int latent_dim = 0;  // not 0: attention is latent

  bool latent() const { return latent_dim > 0; }
  // The bytes of a token in one layer: K and V, or one row for both.
  int64_t token_bytes() const {
    return (latent() ? 1 : 2) * int64_t{kElementBytes} * kv_heads * head_dim;
  }
  // The bytes of all tokens that are there.
  double kv_bytes() const {
    return static_cast<double>(token_bytes()) * sequences * (context + rows);
  }
};

enum class Form {
  kPlain,
  kFused,  // also rotates, and writes the new tokens' KV, as in a recorded decode step
  kOther,  // of prompts: with one row tile a warp where an engine has two, and the reverse
};

int StagesOf(const BenchDevice& device, int head_dim) {
  return backend::cuda::TileStages(head_dim, device.properties().kernel_capability,
                                   device.properties().shared_bytes);
}

// One step's attention of one layer; the layers of the pool take turns.
void TimeOne(KernelBench& bench, const ModelShape& model, const AttentionShape& shape,
             Form form = Form::kPlain) {
  BenchDevice& device = bench.device;
  const int group = shape.query_heads / shape.kv_heads;
  std::vector<SequenceEntry> sequences;
  const int tokens = shape.context + shape.rows;
  const int blocks = (tokens + kBlockTokens - 1) / kBlockTokens;
  for (int s = 0; s < shape.sequences; ++s) {
    sequences.push_back({.first_row = s * shape.rows,
                         .row_count = shape.rows,
                         .context = shape.context,
                         .first_block = s * blocks});
  }
  const int rows = shape.sequences * shape.rows;
  const int dim = PaddedDim(shape.head_dim);
  // More than an engine has: at the largest batches it sends a sequence to the other kernel.
  const AttentionRoom room =
      backend::cuda::RoomFor(rows, shape.sequences, tokens, group, std::numeric_limits<int>::max());
  const AttentionPlan plan = backend::cuda::PlanAttention(sequences, group, room);
  BATON_CHECK(plan.split_items.empty() != plan.tile_items.empty());
  const bool split = plan.tile_items.empty();
  const bool pairs =
      (form == Form::kOther) !=
      backend::cuda::TilePairs(static_cast<int64_t>(plan.tile_items.size()) * shape.kv_heads,
                               device.properties().multiprocessors);
  const std::string kernel =
      absl::StrCat(shape.latent() ? "latent" : "attention", split ? "_split" : "_tile",
                   model.score_cap > 0 || model.sinks ? "_variant" : "",
                   form == Form::kFused   ? "_fused"
                   : form == Form::kPlain ? ""
                   : pairs                ? "_paired"
                                          : "_single");
  // Of a decode step with the token itself, as one says it.
  const int context = shape.rows == 1 ? tokens : shape.context;
  const std::string name =
      absl::StrCat(model.name, " b", shape.sequences, " c", context,
                   shape.rows > 1 ? absl::StrCat(" rows ", shape.rows) : "",
                   shape.window > 0 ? absl::StrCat(" window ", shape.window) : "");
  if (!bench.Wanted(kernel, name)) return;
  Row row = bench.Begin(kernel, name);
  row.Text("model", model.name)
      .Number("batch", shape.sequences)
      .Number("context", context)
      .Number("rows", shape.rows)
      .Number("query_heads", shape.query_heads)
      .Number("kv_heads", shape.kv_heads)
      .Number("head_dim", shape.head_dim);

  const backend::cuda::LatentFloorShape latent = {.heads = shape.query_heads,
                                                  .latent_dim = shape.latent_dim,
                                                  .rotated = shape.head_dim - shape.latent_dim};
  const Work work =
      shape.latent() ? WorkOf(backend::cuda::LatentAttentionFloor(sequences, latent),
                              backend::cuda::LatentAttentionOperations(sequences, latent))
                     : WorkOf(backend::cuda::AttentionFloor(sequences, shape.kv_heads, group,
                                                            shape.head_dim, shape.window),
                              backend::cuda::AttentionOperations(sequences, shape.kv_heads, group,
                                                                 shape.head_dim, shape.window));
  const int layers = std::min(device.Turns(shape.kv_bytes()), model.layers);
  const int64_t chunk_bytes = kBlockTokens * shape.token_bytes();
  std::vector<int32_t> tables(static_cast<size_t>(shape.sequences * blocks));
  std::iota(tables.begin(), tables.end(), 0);
  std::shuffle(tables.begin(), tables.end(), std::mt19937(1));
  const std::vector<AttentionItem>& items = split ? plan.split_items : plan.tile_items;
  const int64_t q_cols = int64_t{shape.query_heads} * shape.head_dim;
  const int64_t out_cols = shape.latent() ? int64_t{shape.query_heads} * shape.latent_dim : q_cols;
  std::byte* const pool =
      device.Take(static_cast<size_t>(chunk_bytes) * tables.size() * static_cast<size_t>(layers));
  AttentionLaunch launch = {};
  launch.q = device.Take<float>(rows * q_cols);
  launch.out = device.Take<uint16_t>(rows * out_cols);
  launch.q_stride = q_cols;
  launch.out_stride = out_cols;
  launch.block_stride_bytes = layers * chunk_bytes;
  launch.block_tokens_log2 = std::countr_zero(unsigned{kBlockTokens});
  launch.kv_heads = shape.kv_heads;
  launch.group = group;
  launch.head_dim = shape.head_dim;
  launch.latent_dim = shape.latent_dim;
  launch.scale = 0.125f;
  launch.window = shape.window;
  launch.score_cap = model.score_cap;
  if (model.sinks) launch.sinks = device.Take<float>(shape.query_heads);
  launch.sequences = device.Send(sequences);
  launch.tables = device.Send(tables);
  launch.items = device.Send(items);
  const int64_t counters = int64_t{plan.row_tiles} * shape.kv_heads;
  const int64_t partial_floats =
      shape.latent() ? int64_t{backend::cuda::kLatentPartialFloats} : PartialFloats(dim);
  const int64_t total_floats =
      shape.latent() ? backend::cuda::kLatentTotalFloats : TotalFloats(dim);
  launch.partials = device.Take<float>(plan.partials * shape.kv_heads * partial_floats);
  launch.counters = device.Take<unsigned>(counters);
  launch.totals = device.Take<float>(static_cast<int64_t>(plan.tile_items.size()) * shape.kv_heads *
                                     total_floats);
  launch.tile_stages = StagesOf(device, shape.head_dim);
  launch.tile_pairs = pairs;
  if (form == Form::kFused) {
    const int half = shape.head_dim / 2;
    launch.heads = {.qkv = device.Take<float>(int64_t{rows} * model.qkv_rows()),
                    .qkv_stride = model.qkv_rows(),
                    .q_stride = shape.head_dim,
                    .cosine = device.Take<float>(int64_t{tokens} * half),
                    .sine = device.Take<float>(int64_t{tokens} * half),
                    .half = half};
  }
  if (pool == nullptr || launch.items == nullptr || launch.totals == nullptr ||
      (form == Form::kFused && (launch.heads.qkv == nullptr || launch.heads.sine == nullptr))) {
    return KernelBench::Skip(std::move(row));
  }
  device.Zero(launch.counters, static_cast<size_t>(counters) * sizeof(unsigned));
  const auto count = static_cast<int>(items.size());
  const double seconds = device.Seconds([&](int turn) {
    launch.layer = pool + turn % layers * chunk_bytes;
    const auto enqueue =
        shape.latent() ? split ? backend::cuda::LaunchLatentSplit : backend::cuda::LaunchLatentTile
        : split        ? backend::cuda::LaunchAttentionSplit
                       : backend::cuda::LaunchAttentionTile;
    enqueue(launch, device.dtype(), count, device.stream());
  });
  const bool beyond_cache =
      shape.window == 0 && shape.kv_bytes() >= 4 * static_cast<double>(device.l2_bytes());
  row.Number("kv_beyond_4_l2", beyond_cache ? 1 : 0).Took(seconds, work).Print();
}

// Times both kernels where a warp may have one row tile or two.
void TimePrompt(KernelBench& bench, const ModelShape& model, const AttentionShape& shape) {
  TimeOne(bench, model, shape);
  if (shape.latent() || PaddedDim(shape.head_dim) != 64) return;
  if (StagesOf(bench.device, shape.head_dim) == 2) TimeOne(bench, model, shape, Form::kOther);
}

AttentionShape HeadsOf(const ModelShape& model) {
  return {.query_heads = model.query_heads,
          .kv_heads = model.kv_heads,
          .head_dim = model.head_dim,
          .latent_dim = model.latent_dim};
}

// The products of each head before latent attention (to latents) or after it (to values).
void TimeHeadProduct(KernelBench& bench, const ModelShape& model, int rows, bool after) {
  BenchDevice& device = bench.device;
  const int n = after ? model.value_dim : model.latent_dim;
  const int k = after ? model.latent_dim : model.plain;
  const std::string kernel = absl::StrCat("head_products_", after ? "after" : "before");
  const std::string name = absl::StrCat(model.name, " m", rows);
  if (!bench.Wanted(kernel, name)) return;
  Row row = bench.Begin(kernel, name);
  row.Text("model", model.name).Number("m", rows).Number("n", n).Number("k", k);
  const int64_t matrix = int64_t{model.query_heads} * n * k;
  const int turns =
      std::min(device.Turns(static_cast<double>(matrix) * kElementBytes), model.layers);
  const auto* const w = device.Take<uint16_t>(turns * matrix);
  backend::cuda::HeadMatMulLaunch launch = {
      .x = device.Take<uint16_t>(int64_t{rows} * model.query_heads * k),
      .x_stride = int64_t{model.query_heads} * k,
      .w = nullptr,
      .out = device.Take<float>(int64_t{rows} * model.query_heads * n),
      .out_stride = int64_t{model.query_heads} * n,
      .head_stride = n,
      .rows = rows,
      .heads = model.query_heads,
      .n = n,
      .k = k};
  if (w == nullptr || launch.out == nullptr) return KernelBench::Skip(std::move(row));
  const double seconds = device.Seconds([&](int turn) {
    launch.w = w + turn % turns * matrix;
    LaunchHeadMatMul(launch, device.dtype(), device.stream());
  });
  row.Took(seconds, WorkOf(backend::cuda::HeadMatMulFloor(rows, model.query_heads, n, k),
                           model.query_heads * backend::cuda::MatMulOperations(rows, n, k)))
      .Print();
}

// A decode step of each batch and a prompt, with and without a window.
void TimeOther(KernelBench& bench, const ModelShape& model) {
  AttentionShape shape = HeadsOf(model);
  std::vector<int> windows = {0};
  if (model.window > 0) windows.push_back(model.window);
  for (const int window : windows) {
    shape.window = window;
    shape.rows = 1;
    shape.context = bench.grid.kernel_context - 1;
    for (const int batch : bench.grid.kernel_batches) {
      shape.sequences = batch;
      TimeOne(bench, model, shape);
    }
    shape.sequences = 1;
    shape.rows = bench.grid.kernel_context;
    shape.context = 0;
    TimePrompt(bench, model, shape);
  }
  if (model.latent_dim == 0) return;
  for (const bool after : {false, true}) {
    for (const int batch : bench.grid.kernel_batches) TimeHeadProduct(bench, model, batch, after);
    TimeHeadProduct(bench, model, bench.grid.kernel_context, after);
  }
}

}  // namespace

void TimeAttention(KernelBench& bench) {
  for (const ModelShape& model : bench.grid.kernel_models) TimeOther(bench, model);
  for (const ModelShape& model : bench.grid.models) {
    if (model.bits > 0) continue;  // the same heads as without
    AttentionShape shape = HeadsOf(model);
    for (const int batch : bench.grid.batches) {
      for (const int context : bench.grid.contexts) {
        shape.sequences = batch;
        shape.rows = 1;
        shape.context = context - 1;
        TimeOne(bench, model, shape);
        if (backend::cuda::SplitFuses(model.query_heads / model.kv_heads, model.head_dim)) {
          TimeOne(bench, model, shape, Form::kFused);
        }
      }
    }
    shape.sequences = 1;
    for (const int prompt : bench.grid.prompts) {
      for (const int cached : {0, prompt / 2}) {
        shape.rows = prompt - cached;
        shape.context = cached;
        if (shape.rows * model.query_heads / model.kv_heads <= 2 * backend::cuda::kRowTile) {
          continue;
        }
        TimePrompt(bench, model, shape);
      }
    }
  }
}

}  // namespace baton::gpu_bench
