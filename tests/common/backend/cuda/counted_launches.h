// Launches of every kernel at some shape, with what they ask of global memory on the emulated
// device and the floor of kernel_floors.h. Operands are zeros where their values do not matter.
#ifndef BATON_TESTS_COMMON_BACKEND_CUDA_COUNTED_LAUNCHES_H_
#define BATON_TESTS_COMMON_BACKEND_CUDA_COUNTED_LAUNCHES_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/backend/cuda/kernels/attention.h"
#include "common/backend/cuda/kernels/blocks.h"
#include "common/backend/cuda/kernels/elementwise.h"
#include "common/backend/cuda/kernels/matmul.h"
#include "common/backend/cuda/kernels/matmul_normed.h"
#include "common/backend/cuda/kernels/norm.h"
#include "common/backend/cuda/kernels/quantized.h"
#include "common/backend/cuda/kernels/rope_write.h"
#include "common/backend/cuda/kernels/sampling.h"
#include "common/backend/cuda/plan/kernel_floors.h"
#include "common/backend/cuda/simt/simt.h"
#include "common/backend/cuda/steps/attention_plan.h"

namespace baton::backend::cuda {

// Memory in whole sectors, as the backend's arena gives it; zeros.
class Memory {
 public:
  explicit Memory(int64_t size_bytes)
      : bytes_(static_cast<size_t>(size_bytes) + emulated::kSectorBytes) {}
  template <class T>
  explicit Memory(const std::vector<T>& values)
      : Memory(static_cast<int64_t>(values.size() * sizeof(T))) {
    std::copy(values.begin(), values.end(), As<T>());
  }
  template <class T>
  T* As() {
    const auto at = reinterpret_cast<uintptr_t>(bytes_.data());
    const uintptr_t behind = at % emulated::kSectorBytes;
    return reinterpret_cast<T*>(bytes_.data() +
                                (behind == 0 ? 0 : emulated::kSectorBytes - behind));
  }

 private:
  std::vector<std::byte> bytes_;
};

struct Counted {
  std::string kernel, shape;
  MovedBytes floor;
  emulated::Accesses accesses;
  std::string reason;    // of more than the goal
  MovedBytes kept = {};  // on top of the floor, by design
  double distinct() const {
    return static_cast<double>(accesses.read_bytes + accesses.written_bytes);
  }
  double over_floor() const { return distinct() / static_cast<double>(floor.total()); }
  double over_floor_and_kept() const {
    return distinct() / static_cast<double>(floor.total() + kept.total());
  }
  double requested_over_distinct() const {
    return static_cast<double>(accesses.requested_read_bytes + accesses.requested_written_bytes) /
           distinct();
  }
};

// Launches of every kernel, counted.
class CountedLaunches : public ::testing::Test {
 protected:
  void TearDown() override { emulated::SetOptions({}); }

  static emulated::Accesses CountOf(const std::function<void()>& launch,
                                    emulated::Accesses accesses = {}) {
    emulated::SetOptions({.accesses = &accesses});
    launch();
    emulated::SetOptions({});
    return accesses;
  }

  // A product that is added to the residual.
  static Counted AddedMatMul(int rows, int n, int k) {
    Memory x(int64_t{2} * rows * k), w(int64_t{2} * n * k), out(int64_t{4} * rows * n);
    const MatMulLaunch launch = {.x = x.As<void>(),
                                 .x_stride = k,
                                 .w = w.As<void>(),
                                 .bias = nullptr,
                                 .out = out.As<float>(),
                                 .out_stride = n,
                                 .rows = rows,
                                 .n = n,
                                 .k = k,
                                 .added_scale = 1};
    return {"matmul rows, added", absl::StrCat(rows, " x ", k, " by ", n),
            AddedMatMulFloor(rows, n, k, false),
            CountOf([&] { LaunchMatMul(launch, DType::kF16, nullptr); }), ""};
  }
  // The norm of a product's x in its kernel, of gate and up if `gated`.
  static Counted NormedMatMul(int rows, int n, int k, bool gated) {
    Memory x(int64_t{4} * rows * k), weight(4 * k), w(int64_t{2} * n * k), bias(4 * n),
        out(int64_t{4} * rows * n);
    const NormedInput input = {
        .x = x.As<float>(), .x_stride = k, .weight = weight.As<float>(), .eps = 1e-6f};
    const NormedMatMulLaunch launch = {{.x = nullptr,
                                        .x_stride = 0,
                                        .w = w.As<void>(),
                                        .bias = bias.As<float>(),
                                        .out = out.As<float>(),
                                        .out_stride = n,
                                        .rows = rows,
                                        .n = n,
                                        .k = k},
                                       input};
    const NormedMatMulGatedLaunch gated_launch = {{.x = nullptr,
                                                   .x_stride = 0,
                                                   .w = w.As<void>(),
                                                   .out = out.As<void>(),
                                                   .out_stride = n / 2,
                                                   .rows = rows,
                                                   .cols = n / 2,
                                                   .k = k},
                                                  input};
    return {gated ? "norm, matmul rows, gate" : "norm, matmul rows",
            gated ? absl::StrCat(rows, " x ", k, " by 2 x ", n / 2)
                  : absl::StrCat(rows, " x ", k, " by ", n),
            gated ? NormedMatMulGatedFloor(rows, n / 2, k) : NormedMatMulFloor(rows, n, k, true),
            CountOf([&] {
              if (gated) return LaunchNormedMatMulGated(gated_launch, DType::kF16, nullptr);
              LaunchNormedMatMul(launch, DType::kF16, nullptr);
            }),
            ""};
  }

  static Counted MatMul(int rows, int n, int k, MatMulShape shape) {
    Memory x(int64_t{2} * rows * k), w(int64_t{2} * n * k), bias(4 * n), out(int64_t{4} * rows * n);
    const MatMulLaunch launch = {.x = x.As<void>(),
                                 .x_stride = k,
                                 .w = w.As<void>(),
                                 .bias = bias.As<float>(),
                                 .out = out.As<float>(),
                                 .out_stride = n,
                                 .rows = rows,
                                 .n = n,
                                 .k = k};
    return {shape == MatMulShape::kRows        ? "matmul rows"
            : shape == MatMulShape::kSmallTile ? "matmul tile of 64"
                                               : "matmul tile of 128",
            absl::StrCat(rows, " x ", k, " by ", n), MatMulFloor(rows, n, k, true),
            CountOf([&] { LaunchMatMul(launch, DType::kF16, nullptr, shape); }), ""};
  }

  static Counted MatMulGated(int rows, int cols, int k) {
    Memory x(int64_t{2} * rows * k), w(int64_t{4} * cols * k), out(int64_t{2} * rows * cols);
    const MatMulGatedLaunch launch = {.x = x.As<void>(),
                                      .x_stride = k,
                                      .w = w.As<void>(),
                                      .out = out.As<void>(),
                                      .out_stride = cols,
                                      .rows = rows,
                                      .cols = cols,
                                      .k = k};
    return {rows <= kFewRows ? "matmul rows, gate" : "matmul tile, gate",
            absl::StrCat(rows, " x ", k, " by 2 x ", cols), MatMulGatedFloor(rows, cols, k),
            CountOf([&] { LaunchMatMulGated(launch, DType::kF16, nullptr); }), ""};
  }

  static QuantizedView Quantized(Memory& values, Memory& groups, int n, int k, int bits) {
    return {.values = values.As<void>(),
            .groups = groups.As<uint32_t>(),
            .n = n,
            .k = k,
            .column_tiles = k * bits / 512,
            .group_count = k / 128,
            .steps_a_group_log2 = 2,
            .bf16_scales = false};
  }
  // paired: with the scales of two groups of 32 columns in a word.
  static Counted QuantizedMatMul(int rows, int n, int k, int bits, bool paired = false) {
    Memory x(int64_t{2} * rows * k), values(int64_t{n} * k * bits / 8), groups(int64_t{4} * n * k),
        out(int64_t{4} * rows * n);
    QuantizedView w = Quantized(values, groups, n, k, bits);
    if (paired) {
      w.group_count = k / 64;
      w.steps_a_group_log2 = 1;
      w.paired_scales = true;
    }
    const QuantizedMatMulLaunch launch = {.x = x.As<void>(),
                                          .x_stride = k,
                                          .w = w,
                                          .bias = nullptr,
                                          .out = out.As<float>(),
                                          .out_stride = n,
                                          .rows = rows,
                                          .tile_rows = kLargeTileRows};
    const char* const shape = rows <= 16 ? "rows" : "tile";
    return {
        absl::StrCat("quantized ", shape, ", ", bits, " bits", paired ? ", symmetric in 32s" : ""),
        absl::StrCat(rows, " x ", k, " by ", n),
        QuantizedMatMulFloor(rows, n, k, bits, paired ? 64 : 128, false),
        CountOf([&] { LaunchQuantizedMatMul(launch, bits, DType::kF16, nullptr); }), ""};
  }
  static Counted QuantizedMatMulGated(int rows, int cols, int k, int bits) {
    Memory x(int64_t{2} * rows * k), values(int64_t{2} * cols * k * bits / 8),
        groups(int64_t{8} * cols * k), out(int64_t{2} * rows * cols);
    const QuantizedMatMulGatedLaunch launch = {.x = x.As<void>(),
                                               .x_stride = k,
                                               .w = Quantized(values, groups, 2 * cols, k, bits),
                                               .out = out.As<void>(),
                                               .out_stride = cols,
                                               .rows = rows,
                                               .tile_rows = kLargeTileRows};
    const char* const shape = rows <= 16 ? "rows" : "tile";
    return {absl::StrCat("quantized ", shape, ", ", bits, " bits, gate"),
            absl::StrCat(rows, " x ", k, " by 2 x ", cols),
            QuantizedMatMulGatedFloor(rows, cols, k, bits, 128),
            CountOf([&] { LaunchQuantizedMatMulGated(launch, bits, DType::kF16, nullptr); }), ""};
  }
  static Counted Dequantize(int n, int k, int bits) {
    Memory values(int64_t{n} * k * bits / 8), groups(int64_t{4} * n * k), out(int64_t{2} * n * k);
    const DequantizeLaunch launch = {.w = Quantized(values, groups, n, k, bits),
                                     .first_row = 0,
                                     .row_count = n,
                                     .out = out.As<void>()};
    return {absl::StrCat("dequantize, ", bits, " bits"), absl::StrCat(n, " x ", k),
            DequantizeFloor(n, k, bits, 128),
            CountOf([&] { LaunchDequantize(launch, bits, DType::kF16, nullptr); }), ""};
  }
  static Counted GatherColumns(int rows, int cols) {
    Memory x(int64_t{2} * rows * cols), order(4 * cols), out(int64_t{2} * rows * cols);
    for (int i = 0; i < cols; ++i) order.As<int32_t>()[i] = (i * 37 + 5) % cols;
    const GatherColumnsLaunch launch = {.x = x.As<void>(),
                                        .x_stride = cols,
                                        .order = order.As<int32_t>(),
                                        .out = out.As<void>(),
                                        .cols = cols};
    return {"gather columns", absl::StrCat(rows, " x ", cols), GatherColumnsFloor(rows, cols),
            CountOf([&] { LaunchGatherColumns(launch, rows, nullptr); }), ""};
  }

  static Counted Norm(int rows, int cols, bool has_delta, bool norms_delta = false) {
    Memory x(int64_t{4} * rows * cols), delta(int64_t{4} * rows * cols), weight(4 * cols),
        delta_weight(4 * cols), out(int64_t{2} * rows * cols);
    const NormLaunch launch = {.x = x.As<float>(),
                               .x_stride = cols,
                               .delta = has_delta ? delta.As<float>() : nullptr,
                               .delta_stride = cols,
                               .delta_weight = norms_delta ? delta_weight.As<float>() : nullptr,
                               .weight = weight.As<float>(),
                               .out = out.As<void>(),
                               .out_stride = cols,
                               .cols = cols,
                               .eps = 1e-6f};
    return {norms_delta ? "norm, add, norm"
            : has_delta ? "add, norm"
                        : "norm",
            absl::StrCat(rows, " x ", cols),
            NormFloor(rows, cols, has_delta, 2, norms_delta ? 2 : 1),
            CountOf([&] { LaunchNorm(launch, DType::kF16, rows, nullptr); }), ""};
  }
  static std::string NameOf(KvFormat format) {
    if (format == KvFormat::kPlain) return "";
    return format == KvFormat::kInt8 ? ", int8" : format == KvFormat::kInt4 ? ", int4" : ", fp8";
  }
  // K and V of a block in one layer.
  static int64_t ChunkBytes(KvFormat format, int kv_heads, int d) {
    return int64_t{2} * kv_heads * 16 *
           (KvRowBytes(format, DType::kF16, d) + KvRowParameterBytes(format));
  }
  static Counted RopeWrite(int rows, int query_heads, int kv_heads, int d, bool norms,
                           KvFormat format = KvFormat::kPlain) {
    const int width = (query_heads + 2 * kv_heads) * d, context = 100;
    Memory qkv(int64_t{4} * rows * width), q(int64_t{4} * rows * query_heads * d),
        norm(int64_t{8} * d), angles(int64_t{8} * (context + rows) * d / 2),
        pool(ChunkBytes(format, kv_heads, d) * 16);
    std::vector<int32_t> positions(static_cast<size_t>(rows)), tables(16);
    std::iota(positions.begin(), positions.end(), context);
    std::iota(tables.begin(), tables.end(), 0);
    Memory d_positions(positions), d_tables(tables), sequence_of_row(int64_t{4} * rows),
        sequences(sizeof(SequenceEntry));
    RopeWriteLaunch launch = {};
    launch.heads.qkv = qkv.As<float>();
    launch.heads.qkv_stride = width;
    launch.q_out = q.As<float>();
    launch.q_out_stride = query_heads * d;
    launch.heads.q_norm = norms ? norm.As<float>() : nullptr;
    launch.heads.k_norm = norms ? norm.As<float>() + d : nullptr;
    launch.heads.cosine = angles.As<float>();
    launch.heads.sine = angles.As<float>() + (context + rows) * d / 2;
    launch.heads.half = d / 2;
    launch.layer = pool.As<std::byte>();
    launch.block_stride_bytes = ChunkBytes(format, kv_heads, d);
    launch.kv_format = format;
    launch.block_tokens_log2 = 4;
    launch.query_heads = query_heads;
    launch.kv_heads = kv_heads;
    launch.head_dim = launch.heads.q_stride = d;
    launch.positions = d_positions.As<int32_t>();
    launch.sequence_of_row = sequence_of_row.As<int32_t>();
    launch.sequences = sequences.As<SequenceEntry>();
    launch.tables = d_tables.As<int32_t>();
    return {absl::StrCat(norms ? "norm, rope, write" : "rope, write", NameOf(format)),
            absl::StrCat(rows, " rows, ", query_heads, " and ", kv_heads, " heads of ", d),
            RopeWriteFloor(rows, query_heads, kv_heads, d, d / 2, rows, norms ? 2 : 0, format),
            CountOf([&] { LaunchRopeWrite(launch, DType::kF16, rows, nullptr); }), ""};
  }
  static Counted Gather(int rows, int cols) {
    Memory table(int64_t{2} * rows * cols), out(int64_t{4} * rows * cols);
    std::vector<int32_t> row_of(static_cast<size_t>(rows));
    std::iota(row_of.rbegin(), row_of.rend(), 0);
    Memory d_row_of(row_of);
    const GatherLaunch launch = {.table = table.As<void>(),
                                 .table_stride = cols,
                                 .row_of = d_row_of.As<int32_t>(),
                                 .out = out.As<float>(),
                                 .out_stride = cols,
                                 .cols = cols};
    return {"gather", absl::StrCat(rows, " x ", cols), GatherFloor(rows, cols, rows, 2),
            CountOf([&] { LaunchGather(launch, DType::kF16, rows, nullptr); }), ""};
  }
  static Counted Gate(int rows, int cols) {
    Memory gate_up(int64_t{8} * rows * cols), out(int64_t{2} * rows * cols);
    const GateLaunch launch = {.gate_up = gate_up.As<float>(),
                               .gate_up_stride = 2 * cols,
                               .out = out.As<void>(),
                               .out_stride = cols,
                               .cols = cols};
    return {"gate", absl::StrCat(rows, " x ", cols), GateFloor(rows, cols, 2),
            CountOf([&] { LaunchGate(launch, DType::kF16, rows, nullptr); }), ""};
  }
  static Counted ScaleLogits(int rows, int cols) {
    Memory logits(int64_t{4} * rows * cols);
    const ScaleLogitsLaunch launch = {
        .logits = logits.As<float>(), .stride = cols, .cols = cols, .scale = 1, .cap = 30};
    return {"scale logits", absl::StrCat(rows, " x ", cols), ScaleLogitsFloor(rows, cols),
            CountOf([&] { LaunchScaleLogits(launch, rows, nullptr); }), ""};
  }
  static Counted AddBias(int rows, int cols) {
    Memory x(int64_t{4} * rows * cols), bias(4 * cols);
    const AddBiasLaunch launch = {
        .x = x.As<float>(), .x_stride = cols, .bias = bias.As<float>(), .cols = cols};
    return {"bias", absl::StrCat(rows, " x ", cols), AddBiasFloor(rows, cols),
            CountOf([&] { LaunchAddBias(launch, rows, nullptr); }), ""};
  }

  static Counted Sample(int requests, int vocab, float temperature, float top_p) {
    Memory logits(int64_t{4} * requests * vocab), results(int64_t{16} * requests);
    for (int i = 0; i < requests * vocab; ++i) {
      logits.As<float>()[i] = static_cast<float>(i * 7919 % 1009) * 0.01f;
    }
    std::vector<SampleRequest> all(static_cast<size_t>(requests));
    for (int i = 0; i < requests; ++i) {
      SampleRequest& request = all[static_cast<size_t>(i)];
      request.logit_row = i;
      request.workspace_row = -1;
      request.temperature = temperature;
      request.top_p = top_p;
      request.repetition_penalty = 1;
      request.drawn_row = -1;
    }
    Memory scratch(int64_t{requests} * static_cast<int64_t>(sizeof(SampleScratch)));
    SampleLaunch launch = {};
    launch.logits = logits.As<float>();
    launch.logits_stride = vocab;
    launch.vocab = vocab;
    launch.requests = all.data();
    launch.results = results.As<SampleResult>();
    launch.scratch = scratch.As<SampleScratch>();
    const SampleShape shape = {.blocks = 2, .launches = SampleLaunches(temperature, 0, vocab)};
    return {temperature == 0 ? "sample, greedy" : "sample, top_p",
            absl::StrCat(requests, " x ", vocab), SampleFloor(requests, vocab),
            CountOf([&] { LaunchSample(launch, requests, shape, nullptr); }), ""};
  }

  static Counted CopyBlocks(int pairs, int block_bytes) {
    Memory pool(int64_t{2} * pairs * block_bytes);
    std::vector<BlockPair> all;
    for (int i = 0; i < pairs; ++i) all.push_back({2 * i, 2 * i + 1});
    Memory d_pairs(all);
    const CopyBlocksLaunch launch = {.base = pool.As<std::byte>(),
                                     .block_stride_bytes = block_bytes,
                                     .block_bytes = block_bytes,
                                     .pairs = d_pairs.As<BlockPair>()};
    return {"copy blocks", absl::StrCat(pairs, " of ", block_bytes, " bytes"),
            CopyFloor(int64_t{pairs} * block_bytes),
            CountOf([&] { LaunchCopyBlocks(launch, pairs, nullptr); }), ""};
  }
  static Counted Stage(int blocks, int chunk_bytes, bool gathers) {
    Memory pool(int64_t{2} * blocks * chunk_bytes), staging(int64_t{blocks} * chunk_bytes);
    std::vector<int32_t> all(static_cast<size_t>(blocks));
    for (int i = 0; i < blocks; ++i) all[static_cast<size_t>(i)] = 2 * i + 1;
    Memory d_blocks(all);
    const StageKvLaunch launch = {.base = pool.As<std::byte>(),
                                  .block_stride_bytes = chunk_bytes,
                                  .layer_stride_bytes = chunk_bytes,
                                  .chunk_bytes = chunk_bytes,
                                  .first_layer = 0,
                                  .blocks = d_blocks.As<int32_t>(),
                                  .staging = staging.As<std::byte>()};
    return {gathers ? "gather KV" : "scatter KV",
            absl::StrCat(blocks, " of ", chunk_bytes, " bytes"),
            CopyFloor(int64_t{blocks} * chunk_bytes), CountOf([&] {
              gathers ? LaunchGatherKv(launch, blocks, 1, nullptr)
                      : LaunchScatterKv(launch, blocks, 1, nullptr);
            }),
            ""};
  }

  struct Attended {
    Counted counted;
    int64_t kv_bytes;  // of the visible tokens
  };
  // `sequences` of `rows` rows behind `context` tokens each.
  static Attended Attention(int sequences, int rows, int context, int kv_heads, int group, int d,
                            KvFormat format = KvFormat::kPlain) {
    const int tokens = context + rows, blocks = (tokens + 15) / 16;
    const int64_t width = int64_t{kv_heads} * group * d;
    std::vector<SequenceEntry> entries;
    for (int i = 0; i < sequences; ++i) entries.push_back({i * rows, rows, context, i * blocks});
    const AttentionRoom room = RoomFor(sequences * rows, sequences, tokens, group, 1 << 20);
    const AttentionPlan plan = PlanAttention(entries, group, room);
    const bool splits = plan.tile_items.empty();
    EXPECT_TRUE(splits || plan.split_items.empty());
    std::vector<int32_t> tables(static_cast<size_t>(sequences * blocks));
    std::iota(tables.rbegin(), tables.rend(), 0);
    const int64_t chunk_bytes = ChunkBytes(format, kv_heads, d);
    const int dim = PaddedDim(d);
    Memory pool(static_cast<int64_t>(tables.size()) * chunk_bytes), q(4 * sequences * rows * width),
        out(2 * sequences * rows * width),
        partials(plan.partials * kv_heads * PartialFloats(dim) * 4),
        counters(int64_t{4} * plan.row_tiles * kv_heads),
        totals(static_cast<int64_t>(plan.tile_items.size()) * kv_heads * TotalFloats(dim) * 4);
    Memory d_entries(entries), d_tables(tables), items(splits ? plan.split_items : plan.tile_items);
    AttentionLaunch launch = {};
    launch.q = q.As<float>();
    launch.q_stride = launch.out_stride = width;
    launch.out = out.As<void>();
    launch.layer = pool.As<std::byte>();
    launch.block_stride_bytes = chunk_bytes;
    launch.kv_format = format;
    launch.block_tokens_log2 = 4;
    launch.kv_heads = kv_heads;
    launch.group = group;
    launch.head_dim = d;
    launch.scale = 1;
    launch.sequences = d_entries.As<SequenceEntry>();
    launch.tables = d_tables.As<int32_t>();
    launch.items = items.As<AttentionItem>();
    launch.partials = partials.As<float>();
    launch.counters = counters.As<unsigned>();
    launch.totals = totals.As<float>();
    emulated::Accesses watched;
    watched.watched_begin = pool.As<std::byte>();
    watched.watched_end = pool.As<std::byte>() + static_cast<int64_t>(tables.size()) * chunk_bytes;
    Attended attended;
    attended.kv_bytes = sequences * tokens * chunk_bytes / 16;
    attended.counted = {
        absl::StrCat(splits ? "attention split" : "attention tile", NameOf(format)),
        absl::StrCat(sequences, " x ", rows, " behind ", context, ", ", kv_heads, " x ", group,
                     " heads of ", d),
        AttentionFloor(entries, kv_heads, group, d, 0, format),
        CountOf(
            [&] {
              if (splits) {
                LaunchAttentionSplit(launch, DType::kF16, static_cast<int>(plan.split_items.size()),
                                     nullptr);
              } else {
                LaunchAttentionTile(launch, DType::kF16, static_cast<int>(plan.tile_items.size()),
                                    nullptr);
              }
            },
            watched),
        "",
        AttentionPartialsFloor(entries, plan.split_items, kv_heads, group, d, 0)};
    return attended;
  }
};

}  // namespace baton::backend::cuda

#endif  // BATON_TESTS_COMMON_BACKEND_CUDA_COUNTED_LAUNCHES_H_
