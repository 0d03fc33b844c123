// Launches of the kernels of latent attention, counted as in counted_launches.h.
#ifndef BATON_TESTS_COMMON_BACKEND_CUDA_COUNTED_LATENT_H_
#define BATON_TESTS_COMMON_BACKEND_CUDA_COUNTED_LATENT_H_

#include <cstdint>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/backend/cuda/kernels/latent.h"
#include "tests/common/backend/cuda/counted_experts.h"

namespace baton::backend::cuda {

class CountedLatent : public CountedExperts {
 protected:
  static Counted HeadMatMul(int rows, int heads, int n, int k) {
    Memory x(int64_t{2} * rows * heads * k), w(int64_t{2} * heads * n * k),
        out(int64_t{4} * rows * heads * n);
    const HeadMatMulLaunch launch = {.x = x.As<void>(),
                                     .x_stride = int64_t{heads} * k,
                                     .w = w.As<void>(),
                                     .out = out.As<float>(),
                                     .out_stride = int64_t{heads} * n,
                                     .head_stride = n,
                                     .rows = rows,
                                     .heads = heads,
                                     .n = n,
                                     .k = k};
    return {rows <= kFewRows ? "products of heads, rows" : "products of heads, tile",
            absl::StrCat(rows, " x ", heads, " heads of ", k, " by ", n),
            HeadMatMulFloor(rows, heads, n, k),
            CountOf([&] { LaunchHeadMatMul(launch, DType::kF16, nullptr); }), ""};
  }

  static int64_t RowBytes(const LatentFloorShape& shape) {
    return KvRowBytes(shape.format, DType::kF16, shape.latent_dim + shape.rotated) +
           KvRowParameterBytes(shape.format);
  }

  // Rows of one sequence, at positions 0, 1, ...
  static Counted LatentWrite(int rows, int plain, const LatentFloorShape& shape) {
    const int head_dim = shape.latent_dim + shape.rotated, blocks = (rows + 15) / 16;
    const int64_t q_width = int64_t{shape.heads} * (plain + shape.rotated);
    Memory q(4 * rows * q_width), kv(int64_t{4} * rows * head_dim), norm(4 * shape.latent_dim),
        cosine(int64_t{2} * rows * shape.rotated), sine(int64_t{2} * rows * shape.rotated),
        q_plain(int64_t{2} * rows * shape.heads * plain),
        q_out(int64_t{4} * rows * shape.heads * head_dim), pool(blocks * 16 * RowBytes(shape));
    std::vector<int32_t> positions(static_cast<size_t>(rows)), tables(static_cast<size_t>(blocks));
    std::iota(positions.begin(), positions.end(), 0);
    std::iota(tables.begin(), tables.end(), 0);
    Memory d_positions(positions), d_tables(tables), d_rows(std::vector<int32_t>(positions.size())),
        entries(std::vector<SequenceEntry>{{0, rows, 0, 0}});
    const LatentWriteLaunch launch = {.q = q.As<float>(),
                                      .q_stride = q_width,
                                      .kv = kv.As<float>(),
                                      .kv_stride = head_dim,
                                      .norm = norm.As<float>(),
                                      .norm_eps = 1e-6F,
                                      .cosine = cosine.As<float>(),
                                      .sine = sine.As<float>(),
                                      .half = shape.rotated / 2,
                                      .q_plain = q_plain.As<void>(),
                                      .q_plain_stride = int64_t{shape.heads} * plain,
                                      .q_out = q_out.As<float>(),
                                      .q_out_stride = int64_t{shape.heads} * head_dim,
                                      .layer = pool.As<std::byte>(),
                                      .block_stride_bytes = 16 * RowBytes(shape),
                                      .block_tokens_log2 = 4,
                                      .query_heads = shape.heads,
                                      .plain = plain,
                                      .latent_dim = shape.latent_dim,
                                      .positions = d_positions.As<int32_t>(),
                                      .sequence_of_row = d_rows.As<int32_t>(),
                                      .sequences = entries.As<SequenceEntry>(),
                                      .tables = d_tables.As<int32_t>(),
                                      .kv_format = shape.format};
    return {absl::StrCat("latent write", NameOf(shape.format)),
            absl::StrCat(rows, " rows, ", shape.heads, " heads of ", plain, " + ", shape.rotated,
                         ", latents of ", shape.latent_dim),
            LatentWriteFloor(rows, rows, plain, shape),
            CountOf([&] { LaunchLatentWrite(launch, DType::kF16, rows, nullptr); }), ""};
  }

  // `sequences` of `rows` rows behind `context` tokens each.
  static Counted LatentAttention(int sequences, int rows, int context,
                                 const LatentFloorShape& shape) {
    const int tokens = context + rows, blocks = (tokens + 15) / 16;
    const int64_t head_dim = shape.latent_dim + shape.rotated, all_rows = sequences * rows;
    std::vector<SequenceEntry> entries;
    for (int i = 0; i < sequences; ++i) entries.push_back({i * rows, rows, context, i * blocks});
    const AttentionPlan plan = PlanAttention(
        entries, shape.heads, RoomFor(sequences * rows, sequences, tokens, shape.heads, 1 << 20));
    const bool splits = plan.tile_items.empty();
    EXPECT_TRUE(splits || plan.split_items.empty());
    std::vector<int32_t> tables(static_cast<size_t>(sequences * blocks));
    std::iota(tables.rbegin(), tables.rend(), 0);
    Memory pool(static_cast<int64_t>(tables.size()) * 16 * RowBytes(shape)),
        q(4 * all_rows * shape.heads * head_dim),
        out(2 * all_rows * shape.heads * shape.latent_dim),
        partials(int64_t{4} * plan.partials * kLatentPartialFloats),
        counters(int64_t{4} * plan.row_tiles),
        totals(static_cast<int64_t>(plan.tile_items.size()) * kLatentTotalFloats * 4);
    Memory d_entries(entries), d_tables(tables), items(splits ? plan.split_items : plan.tile_items);
    AttentionLaunch launch = {};
    launch.q = q.As<float>();
    launch.q_stride = shape.heads * head_dim;
    launch.out = out.As<void>();
    launch.out_stride = int64_t{shape.heads} * shape.latent_dim;
    launch.layer = pool.As<std::byte>();
    launch.block_stride_bytes = 16 * RowBytes(shape);
    launch.kv_format = shape.format;
    launch.block_tokens_log2 = 4;
    launch.kv_heads = 1;
    launch.group = shape.heads;
    launch.head_dim = static_cast<int>(head_dim);
    launch.latent_dim = shape.latent_dim;
    launch.scale = 1;
    launch.sequences = d_entries.As<SequenceEntry>();
    launch.tables = d_tables.As<int32_t>();
    launch.items = items.As<AttentionItem>();
    launch.partials = partials.As<float>();
    launch.counters = counters.As<unsigned>();
    launch.totals = totals.As<float>();
    return {absl::StrCat(splits ? "latent split" : "latent tile", NameOf(shape.format)),
            absl::StrCat(sequences, " x ", rows, " behind ", context, ", ", shape.heads,
                         " heads, latents of ", shape.latent_dim, " and ", shape.rotated),
            LatentAttentionFloor(entries, shape),
            CountOf([&] {
              if (splits) {
                LaunchLatentSplit(launch, DType::kF16, static_cast<int>(plan.split_items.size()),
                                  nullptr);
              } else {
                LaunchLatentTile(launch, DType::kF16, static_cast<int>(plan.tile_items.size()),
                                 nullptr);
              }
            }),
            "",
            LatentPartialsFloor(plan.split_items)};
  }
};

}  // namespace baton::backend::cuda

#endif  // BATON_TESTS_COMMON_BACKEND_CUDA_COUNTED_LATENT_H_
