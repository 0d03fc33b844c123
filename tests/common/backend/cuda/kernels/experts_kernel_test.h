// What the tests of experts' kernels share.
#ifndef BATON_TESTS_COMMON_BACKEND_CUDA_KERNELS_EXPERTS_KERNEL_TEST_H_
#define BATON_TESTS_COMMON_BACKEND_CUDA_KERNELS_EXPERTS_KERNEL_TEST_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "common/backend/cuda/kernels/experts.h"
#include "common/backend/experts.h"
#include "tests/common/backend/cuda/kernels/quantized_weights.h"

namespace baton::backend::cuda {

class CudaExpertsTest : public QuantizedKernelTest {
 protected:
  void ChangeMachineOf(DType dtype) {
    emulated::SetOptions(
        {.compute_capability = dtype == DType::kF16 && Coin() ? 75 : 80, .seed = random_()});
  }
  DeviceArray<uint16_t> Random16(size_t size, DType dtype) {
    DeviceArray<uint16_t> values(size);
    for (size_t i = 0; i < size; ++i) values[i] = Round16(Normal(), dtype);
    return values;
  }

  // What LaunchChooseExperts makes of logits [rows, stride] of `experts` experts.
  struct Choices {
    DeviceArray<int32_t> chosen;
    DeviceArray<float> weights;
    DeviceArray<unsigned> counts;
  };
  static Choices Choose(const DeviceArray<float>& logits, int rows, int64_t stride, int experts,
                        const ExpertRouting& routing, const float* choice_bias = nullptr,
                        const int32_t* positions = nullptr, const float* scales = nullptr) {
    const auto pairs = static_cast<size_t>(rows * routing.per_token);
    Choices choices = {
        DeviceArray<int32_t>(pairs), DeviceArray<float>(pairs),
        DeviceArray<unsigned>(std::vector<unsigned>(static_cast<size_t>(experts), 0))};
    LaunchChooseExperts({.logits = logits.data(),
                         .logit_stride = stride,
                         .chosen = choices.chosen.data(),
                         .weights = choices.weights.data(),
                         .counts = choices.counts.data(),
                         .rows = rows,
                         .experts = experts,
                         .per_token = routing.per_token,
                         .normalized = routing.normalized,
                         .sigmoid = routing.sigmoid,
                         .scale = routing.scale,
                         .choice_bias = choice_bias,
                         .scales = scales,
                         .positions = positions},
                        nullptr);
    EXPECT_TRUE(choices.chosen.MarginsIntact() && choices.weights.MarginsIntact() &&
                choices.counts.MarginsIntact());
    return choices;
  }

  // What LaunchPlacePairs makes.
  struct Places {
    DeviceArray<int32_t> pairs, rows;
    DeviceArray<ExpertTile> tiles;
    int tile_rows = 0;
  };
  static Places Place(const std::vector<int32_t>& chosen, int experts, int per_token,
                      int tile_rows) {
    const DeviceArray<int32_t> d_chosen(chosen);
    std::vector<unsigned> counts(static_cast<size_t>(experts));
    for (const int32_t expert : chosen) ++counts[static_cast<size_t>(expert)];
    const DeviceArray<unsigned> d_counts(counts);
    const int pairs = static_cast<int>(chosen.size());
    const int tiles = ExpertTileCount(pairs, experts, tile_rows);
    Places places = {DeviceArray<int32_t>(chosen.size()), DeviceArray<int32_t>(chosen.size()),
                     DeviceArray<ExpertTile>(static_cast<size_t>(tiles)), tile_rows};
    LaunchPlacePairs({.chosen = d_chosen.data(),
                      .counts = d_counts.data(),
                      .pairs = places.pairs.data(),
                      .rows = places.rows.data(),
                      .tiles = places.tiles.data(),
                      .pair_count = pairs,
                      .per_token = per_token,
                      .experts = experts,
                      .tile_rows = tile_rows,
                      .tile_count = tiles},
                     nullptr);
    EXPECT_TRUE(places.pairs.MarginsIntact() && places.rows.MarginsIntact() &&
                places.tiles.MarginsIntact());
    return places;
  }

  // Different experts for each row, ascending, of which a few are chosen more often.
  std::vector<int32_t> RandomChoices(int rows, int experts, int per_token) {
    std::vector<int32_t> chosen;
    for (int row = 0; row < rows; ++row) {
      std::vector<int32_t> all(static_cast<size_t>(experts));
      std::iota(all.begin(), all.end(), 0);
      std::shuffle(all.begin() + Int(0, per_token), all.end(), random_);
      std::sort(all.begin(), all.begin() + per_token);
      chosen.insert(chosen.end(), all.begin(), all.begin() + per_token);
    }
    return chosen;
  }
};

}  // namespace baton::backend::cuda

#endif  // BATON_TESTS_COMMON_BACKEND_CUDA_KERNELS_EXPERTS_KERNEL_TEST_H_
