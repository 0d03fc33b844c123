// Launches of the experts' kernels, counted as in counted_launches.h.
#ifndef BATON_TESTS_COMMON_BACKEND_CUDA_COUNTED_EXPERTS_H_
#define BATON_TESTS_COMMON_BACKEND_CUDA_COUNTED_EXPERTS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/backend/cuda/kernels/experts.h"
#include "tests/common/backend/cuda/counted_launches.h"

namespace baton::backend::cuda {

class CountedExperts : public CountedLaunches {
 protected:
  static Counted Router(int rows, int experts, int cols) {
    Memory x(int64_t{2} * rows * cols), router(int64_t{4} * experts * cols),
        logits(int64_t{4} * rows * experts), counts(int64_t{4} * experts);
    const RouterLaunch launch = {.x = x.As<void>(),
                                 .x_stride = cols,
                                 .router = router.As<float>(),
                                 .bias = nullptr,
                                 .logits = logits.As<float>(),
                                 .logit_stride = experts,
                                 .counts = counts.As<unsigned>(),
                                 .rows = rows,
                                 .cols = cols,
                                 .experts = experts};
    return {"router", absl::StrCat(rows, " x ", cols, " by ", experts),
            RouterFloor(rows, experts, cols),
            CountOf([&] { LaunchRouter(launch, DType::kF16, nullptr); }), ""};
  }

  // The two products of a layer of experts: `rows` rows with per_token different experts each, of
  // which `chosen` ones occur, equally often.
  static std::vector<Counted> Experts(int rows, int per_token, int experts, int chosen, int d,
                                      int ffn, int bits) {
    const int pairs = rows * per_token, tile_rows = ExpertTileRows(pairs, experts);
    const int tile_count = ExpertTileCount(pairs, experts, tile_rows);
    std::vector<int32_t> of_pairs(static_cast<size_t>(pairs));
    std::vector<unsigned> of_experts(static_cast<size_t>(experts));
    for (int pair = 0; pair < pairs; ++pair) {
      // Spread, so that matrices that are not chosen lie between.
      const int expert = pair % chosen * (experts / chosen);
      of_pairs[static_cast<size_t>(pair)] = expert;
      ++of_experts[static_cast<size_t>(expert)];
    }
    Memory choices(of_pairs), counts(of_experts), by_place(int64_t{4} * pairs),
        row_of(int64_t{4} * pairs), tiles(int64_t{16} * tile_count);
    LaunchPlacePairs({.chosen = choices.As<int32_t>(),
                      .counts = counts.As<unsigned>(),
                      .pairs = by_place.As<int32_t>(),
                      .rows = row_of.As<int32_t>(),
                      .tiles = tiles.As<ExpertTile>(),
                      .pair_count = pairs,
                      .per_token = per_token,
                      .experts = experts,
                      .tile_rows = tile_rows,
                      .tile_count = tile_count},
                     nullptr);
    Memory x(int64_t{2} * rows * d), gated(int64_t{2} * pairs * ffn), out(int64_t{4} * pairs * d);
    const auto operands = [&](std::vector<Memory>& values, std::vector<Memory>& groups, int n,
                              int k) {
      std::vector<ExpertMatrix> table;
      ExpertOperands all = {};
      for (int expert = 0; expert < experts; ++expert) {
        // A word of MXFP4 has the scales of 128 columns, too.
        const int value_bits = bits == kFp4 ? 4 : bits;
        values.emplace_back(int64_t{n} * k * value_bits / 8);
        groups.emplace_back(bits == 16 ? 0 : int64_t{4} * n * k / 128);
        all.w = Quantized(values.back(), groups.back(), n, k, value_bits);
        table.push_back({all.w.values, all.w.groups, nullptr});
      }
      all.bits = bits;
      all.tiles = tiles.As<ExpertTile>();
      all.tile_count = tile_count;
      all.tile_rows = tile_rows;
      return std::pair(all, Memory(table));
    };
    std::vector<Memory> up_values, up_groups, down_values, down_groups;
    auto [up, up_table] = operands(up_values, up_groups, 2 * ffn, d);
    auto [down, down_table] = operands(down_values, down_groups, d, ffn);
    up.matrices = up_table.template As<ExpertMatrix>();
    down.matrices = down_table.template As<ExpertMatrix>();
    up.x = x.As<void>();
    up.x_stride = d;
    up.x_rows = row_of.As<int32_t>();
    down.x = gated.As<void>();
    down.x_stride = ffn;
    const ExpertMatMulGatedLaunch gate_launch = {
        .operands = up, .out = gated.As<void>(), .out_stride = ffn};
    const ExpertMatMulLaunch down_launch = {.operands = down,
                                            .out = out.As<float>(),
                                            .out_stride = d,
                                            .out_rows = by_place.As<int32_t>()};
    const std::string kind = bits == kFp4 ? "MXFP4" : absl::StrCat(bits, " bits");
    const std::string name = absl::StrCat("experts, ", kind, ", tiles of ", tile_rows);
    const std::string shape =
        absl::StrCat(rows, " rows, ", per_token, " experts each, ", chosen, " of ", experts, ": ");
    return {{absl::StrCat(name, ", gate"), absl::StrCat(shape, d, " by 2 x ", ffn),
             ExpertMatMulGatedFloor({pairs, rows, chosen, 2 * ffn, d, bits, 128}),
             CountOf([&] { LaunchExpertMatMulGated(gate_launch, DType::kF16, nullptr); }), ""},
            {name, absl::StrCat(shape, ffn, " by ", d),
             ExpertMatMulFloor({pairs, pairs, chosen, d, ffn, bits, 128}),
             CountOf([&] { LaunchExpertMatMul(down_launch, DType::kF16, nullptr); }), ""}};
  }

  // The matrices of `chosen` of so many experts, of so many bytes each.
  static Counted FetchExperts(int chosen, int experts, int64_t gate_up_bytes, int64_t down_bytes) {
    const int64_t all_bytes = experts * (gate_up_bytes + down_bytes);
    Memory on_host(all_bytes), on_device(all_bytes);
    std::vector<unsigned> of_experts(static_cast<size_t>(experts));
    std::vector<ExpertSource> places;
    for (int expert = 0; expert < experts; ++expert) {
      of_experts[static_cast<size_t>(expert)] = expert % (experts / chosen) == 0;
      const std::byte* const start =
          on_host.As<std::byte>() + expert * (gate_up_bytes + down_bytes);
      places.push_back({start, start + gate_up_bytes});
    }
    Memory counts(of_experts), sources(places);
    const FetchExpertsLaunch launch = {.sources = sources.As<ExpertSource>(),
                                       .to = on_device.As<std::byte>(),
                                       .gate_up_bytes = gate_up_bytes,
                                       .down_bytes = down_bytes,
                                       .down_offset = gate_up_bytes,
                                       .stride_bytes = gate_up_bytes + down_bytes,
                                       .counts = counts.As<unsigned>(),
                                       .experts = experts};
    return {"fetch of experts",
            absl::StrCat(chosen, " of ", experts, ": ", gate_up_bytes, " + ", down_bytes, " bytes"),
            CopyFloor(chosen * (gate_up_bytes + down_bytes)),
            CountOf([&] { LaunchFetchExperts(launch, nullptr); }), ""};
  }

  static Counted SumExperts(int rows, int per_token, int cols) {
    Memory results(int64_t{4} * rows * per_token * cols), weights(int64_t{4} * rows * per_token),
        out(int64_t{4} * rows * cols);
    const SumExpertsLaunch launch = {.results = results.As<float>(),
                                     .result_stride = cols,
                                     .weights = weights.As<float>(),
                                     .out = out.As<float>(),
                                     .out_stride = cols,
                                     .cols = cols,
                                     .per_token = per_token};
    return {"sum of experts", absl::StrCat(rows, " x ", per_token, " x ", cols),
            SumExpertsFloor(rows, per_token, cols),
            CountOf([&] { LaunchSumExperts(launch, rows, nullptr); }), ""};
  }
};

}  // namespace baton::backend::cuda

#endif  // BATON_TESTS_COMMON_BACKEND_CUDA_COUNTED_EXPERTS_H_
