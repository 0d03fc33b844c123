// Kernels that pass over a step's rows: norm, rotation and write, gate, gather, caps; and copies of
// blocks.
#include <bit>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmarks/gpu/kernel_cases.h"
#include "common/backend/cuda/kernels/blocks.h"
#include "common/backend/cuda/kernels/elementwise.h"
#include "common/backend/cuda/kernels/norm.h"
#include "common/backend/cuda/kernels/rope_write.h"

namespace baton::gpu_bench {
namespace {

using backend::cuda::SequenceEntry;

std::string NameOf(const ModelShape& model, int rows) {
  return absl::StrCat(model.name, " rows ", rows);
}

// Operands of `turns` turns, one behind the other.
struct Turned {
  std::byte* base = nullptr;
  size_t stride = 0;

  std::byte* At(int turn, int turns) const { return base + turn % turns * stride; }
};
Turned TakeTurned(BenchDevice& device, int64_t bytes, int turns) {
  const size_t stride = static_cast<size_t>((bytes + 255) / 256 * 256);
  return {device.Take(stride * static_cast<size_t>(turns)), stride};
}

void TimeNorm(KernelBench& bench, const ModelShape& model, int rows) {
  BenchDevice& device = bench.device;
  const std::string name = NameOf(model, rows);
  const std::string kernel = model.post_norms ? "post_norm" : "norm";
  if (!bench.Wanted(kernel, name)) return;
  Row row = bench.Begin(kernel, name);
  const Work work = WorkOf(
      backend::cuda::NormFloor(rows, model.hidden, true, kElementBytes, model.post_norms ? 2 : 1));
  const int turns = device.Turns(work.bytes);
  const int64_t elements = int64_t{rows} * model.hidden;
  const Turned x = TakeTurned(device, 4 * elements, turns);
  const Turned delta = TakeTurned(device, 4 * elements, turns);
  const Turned out = TakeTurned(device, kElementBytes * elements, turns);
  const float* const weight = device.Take<float>(model.hidden);
  if (x.base == nullptr || delta.base == nullptr || out.base == nullptr || weight == nullptr) {
    return KernelBench::Skip(std::move(row));
  }
  const double seconds = device.Seconds([&](int turn) {
    backend::cuda::LaunchNorm({.x = reinterpret_cast<float*>(x.At(turn, turns)),
                               .x_stride = model.hidden,
                               .delta = reinterpret_cast<const float*>(delta.At(turn, turns)),
                               .delta_stride = model.hidden,
                               .delta_weight = model.post_norms ? weight : nullptr,
                               .weight = weight,
                               .out = out.At(turn, turns),
                               .out_stride = model.hidden,
                               .cols = model.hidden,
                               .eps = 1e-6f},
                              device.dtype(), rows, device.stream());
  });
  row.Took(seconds, work).Print();
}

void TimeRopeWrite(KernelBench& bench, const ModelShape& model, int rows) {
  BenchDevice& device = bench.device;
  const std::string name = NameOf(model, rows);
  if (!bench.Wanted("rope_write", name)) return;
  Row row = bench.Begin("rope_write", name);
  const Work work = WorkOf(backend::cuda::RopeWriteFloor(
      rows, model.query_heads, model.kv_heads, model.head_dim, model.head_dim / 2, rows, 0));
  const int turns = device.Turns(work.bytes);
  const int blocks = (rows + kBlockTokens - 1) / kBlockTokens;
  const int64_t chunk_bytes =
      int64_t{2} * kElementBytes * model.kv_heads * kBlockTokens * model.head_dim;
  const int64_t q_cols = int64_t{model.query_heads} * model.head_dim;
  const Turned qkv = TakeTurned(device, int64_t{4} * rows * model.qkv_rows(), turns);
  const Turned q_out = TakeTurned(device, 4 * rows * q_cols, turns);
  const Turned pool = TakeTurned(device, blocks * chunk_bytes, turns);
  const int half = model.head_dim / 2;
  float* const angles = device.Take<float>(int64_t{2} * rows * half);
  int32_t* const ids = device.Take<int32_t>(2 * rows + blocks);
  auto* const sequence = device.Take<SequenceEntry>(1);
  if (qkv.base == nullptr || q_out.base == nullptr || pool.base == nullptr || angles == nullptr ||
      ids == nullptr || sequence == nullptr) {
    return KernelBench::Skip(std::move(row));
  }
  std::vector<int32_t> host(static_cast<size_t>(2 * rows + blocks));  // positions, 0, table
  std::iota(host.begin(), host.begin() + rows, 0);
  std::iota(host.begin() + 2 * rows, host.end(), 0);
  device.Copy(ids, host.data(), host.size() * sizeof(int32_t));
  const SequenceEntry entry = {.first_row = 0, .row_count = rows, .context = 0, .first_block = 0};
  device.Copy(sequence, &entry, sizeof(entry));
  const double seconds = device.Seconds([&](int turn) {
    backend::cuda::LaunchRopeWrite(
        {.heads = {.qkv = reinterpret_cast<const float*>(qkv.At(turn, turns)),
                   .qkv_stride = model.qkv_rows(),
                   .q_stride = model.head_dim,
                   .cosine = angles,
                   .sine = angles + int64_t{rows} * half,
                   .half = half},
         .q_out = reinterpret_cast<float*>(q_out.At(turn, turns)),
         .q_out_stride = q_cols,
         .layer = pool.At(turn, turns),
         .block_stride_bytes = chunk_bytes,
         .block_tokens_log2 = std::countr_zero(unsigned{kBlockTokens}),
         .query_heads = model.query_heads,
         .kv_heads = model.kv_heads,
         .head_dim = model.head_dim,
         .positions = ids,
         .sequence_of_row = ids + rows,
         .sequences = sequence,
         .tables = ids + 2 * rows},
        device.dtype(), rows, device.stream());
  });
  row.Took(seconds, work).Print();
}

void TimeGate(KernelBench& bench, const ModelShape& model, int rows) {
  BenchDevice& device = bench.device;
  const std::string name = NameOf(model, rows);
  if (!bench.Wanted("silu_mul", name)) return;
  Row row = bench.Begin("silu_mul", name);
  const Work work = WorkOf(backend::cuda::GateFloor(rows, model.ffn, kElementBytes));
  const int turns = device.Turns(work.bytes);
  const int64_t elements = int64_t{rows} * model.ffn;
  const Turned gate_up = TakeTurned(device, 8 * elements, turns);
  const Turned out = TakeTurned(device, kElementBytes * elements, turns);
  if (gate_up.base == nullptr || out.base == nullptr) return KernelBench::Skip(std::move(row));
  const double seconds = device.Seconds([&](int turn) {
    backend::cuda::LaunchGate({.gate_up = reinterpret_cast<const float*>(gate_up.At(turn, turns)),
                               .gate_up_stride = int64_t{2} * model.ffn,
                               .out = out.At(turn, turns),
                               .out_stride = model.ffn,
                               .cols = model.ffn},
                              device.dtype(), rows, device.stream());
  });
  row.Took(seconds, work).Print();
}

// The embedding of tokens that are anywhere in the table.
void TimeScaleLogits(KernelBench& bench, const ModelShape& model, int rows) {
  BenchDevice& device = bench.device;
  const std::string name = NameOf(model, rows);
  if (!bench.Wanted("scale_logits", name)) return;
  Row row = bench.Begin("scale_logits", name);
  const Work work = WorkOf(backend::cuda::ScaleLogitsFloor(rows, model.vocab));
  const int turns = device.Turns(work.bytes);
  const int64_t stride = (int64_t{model.vocab} + 7) / 8 * 8;
  const Turned logits = TakeTurned(device, 4 * rows * stride, turns);
  if (logits.base == nullptr) return KernelBench::Skip(std::move(row));
  const double seconds = device.Seconds([&](int turn) {
    backend::cuda::LaunchScaleLogits({.logits = reinterpret_cast<float*>(logits.At(turn, turns)),
                                      .stride = stride,
                                      .cols = model.vocab,
                                      .scale = 1,
                                      .cap = model.logit_cap},
                                     rows, device.stream());
  });
  row.Took(seconds, work).Print();
}

void TimeGather(KernelBench& bench, const ModelShape& model, int rows) {
  BenchDevice& device = bench.device;
  const std::string name = NameOf(model, rows);
  if (!bench.Wanted("gather", name)) return;
  Row row = bench.Begin("gather", name);
  const Work work = WorkOf(backend::cuda::GatherFloor(rows, model.hidden, rows, kElementBytes));
  const int turns = device.Turns(work.bytes);
  const std::byte* const table = device.Take(
      size_t{kElementBytes} * static_cast<size_t>(model.vocab) * static_cast<size_t>(model.hidden));
  const Turned out = TakeTurned(device, int64_t{4} * rows * model.hidden, turns);
  const Turned ids = TakeTurned(device, int64_t{4} * rows, turns);
  if (table == nullptr || out.base == nullptr || ids.base == nullptr) {
    return KernelBench::Skip(std::move(row));
  }
  std::vector<int32_t> tokens(static_cast<size_t>(rows));
  for (int turn = 0; turn < turns; ++turn) {
    for (int i = 0; i < rows; ++i) {
      const uint64_t mixed = uint64_t{2654435761u} * static_cast<uint64_t>(turn * rows + i + 1);
      tokens[static_cast<size_t>(i)] = static_cast<int32_t>(mixed % uint64_t(model.vocab));
    }
    device.Copy(ids.At(turn, turns), tokens.data(), tokens.size() * sizeof(int32_t));
  }
  const double seconds = device.Seconds([&](int turn) {
    backend::cuda::LaunchGather({.table = table,
                                 .table_stride = model.hidden,
                                 .row_of = reinterpret_cast<const int32_t*>(ids.At(turn, turns)),
                                 .out = reinterpret_cast<float*>(out.At(turn, turns)),
                                 .out_stride = model.hidden,
                                 .cols = model.hidden},
                                device.dtype(), rows, device.stream());
  });
  row.Took(seconds, work).Print();
}

}  // namespace

void TimePasses(KernelBench& bench) {
  for (const ModelShape& model : bench.grid.models) {
    if (model.bits > 0) continue;
    for (const int rows : bench.grid.pass_rows) {
      TimeNorm(bench, model, rows);
      TimeRopeWrite(bench, model, rows);
      TimeGate(bench, model, rows);
      TimeGather(bench, model, rows);
    }
  }
  for (const ModelShape& model : bench.grid.kernel_models) {
    for (const int rows : bench.grid.kernel_batches) {
      if (model.post_norms) TimeNorm(bench, model, rows);
      if (model.latent_dim == 0) TimeRopeWrite(bench, model, rows);
      if (model.logit_cap > 0) TimeScaleLogits(bench, model, rows);
    }
  }
}

// Blocks of all layers to others, and one layer's chunks of as many to the staging of a transfer.
void TimeBlockCopies(KernelBench& bench) {
  BenchDevice& device = bench.device;
  for (const ModelShape& model : bench.grid.models) {
    if (model.bits > 0) continue;
    const int64_t chunk_bytes =
        int64_t{2} * kElementBytes * model.kv_heads * kBlockTokens * model.head_dim;
    const int64_t block_bytes = model.layers * chunk_bytes;
    const int count = bench.grid.copied_blocks;
    const std::string name = absl::StrCat(model.name, " blocks ", count);
    if (bench.Wanted("copy_blocks", name)) {
      Row row = bench.Begin("copy_blocks", name);
      const Work work = WorkOf(backend::cuda::CopyFloor(count * block_bytes));
      const int turns = device.Turns(work.bytes);
      const Turned pool = TakeTurned(device, 2 * count * block_bytes, turns);
      auto* const pairs = device.Take<backend::cuda::BlockPair>(count);
      if (pool.base == nullptr || pairs == nullptr) {
        KernelBench::Skip(std::move(row));
      } else {
        std::vector<backend::cuda::BlockPair> host;
        for (int i = 0; i < count; ++i) host.push_back({i, count + i});
        device.Copy(pairs, host.data(), host.size() * sizeof(host[0]));
        const double seconds = device.Seconds([&](int turn) {
          backend::cuda::LaunchCopyBlocks({.base = pool.At(turn, turns),
                                           .block_stride_bytes = block_bytes,
                                           .block_bytes = block_bytes,
                                           .pairs = pairs},
                                          count, device.stream());
        });
        row.Took(seconds, work).Print();
      }
    }
    if (!bench.Wanted("gather_kv", name)) continue;
    Row row = bench.Begin("gather_kv", name);
    const Work work = WorkOf(backend::cuda::CopyFloor(count * chunk_bytes));
    const int turns = device.Turns(work.bytes);
    const Turned pool = TakeTurned(device, count * block_bytes, 1);
    const Turned staging = TakeTurned(device, count * chunk_bytes, turns);
    auto* const ids = device.Take<int32_t>(count);
    if (pool.base == nullptr || staging.base == nullptr || ids == nullptr) {
      KernelBench::Skip(std::move(row));
      continue;
    }
    std::vector<int32_t> host(static_cast<size_t>(count));
    std::iota(host.rbegin(), host.rend(), 0);
    device.Copy(ids, host.data(), host.size() * sizeof(int32_t));
    const double seconds = device.Seconds([&](int turn) {
      backend::cuda::LaunchGatherKv({.base = pool.base,
                                     .block_stride_bytes = block_bytes,
                                     .layer_stride_bytes = chunk_bytes,
                                     .chunk_bytes = chunk_bytes,
                                     .first_layer = turn % model.layers,
                                     .blocks = ids,
                                     .staging = staging.At(turn, turns)},
                                    count, 1, device.stream());
    });
    row.Took(seconds, work).Print();
  }
}

}  // namespace baton::gpu_bench
