// Layers of experts through the backend, on an emulated device.
#include "common/backend/cuda/expert_operations.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "common/backend/cpu/convert.h"
#include "tests/common/backend/cuda/expert_layer_test.h"

namespace baton::backend::cuda {
namespace {

class CudaExpertOperationsTest : public ExpertLayerTest {
 protected:
  CudaExpertOperationsTest() {
    for (int i = 0; i < kExpertCount; ++i) {
      const std::vector<float> gate_up = Random(2 * kInner * kWidth),
                               down = Random(kWidth * kInner);
      for (auto [packer, experts] :
           {std::pair<MatrixPacker*, std::vector<ExpertMatrices>*>(backend_.get(), &experts_),
            {backend_->host_packer(), &host_experts_}}) {
        matrices_.push_back(Pack(*packer, gate_up, 2 * kInner));
        matrices_.push_back(Pack(*packer, down, kWidth));
        experts->push_back({matrices_[matrices_.size() - 2].get(), matrices_.back().get()});
      }
    }
    group_ = backend_->GroupExperts(experts_, {}).value();
    router_values_ = Random(kExpertCount * kWidth);
    UseRouter(router_values_);
    x_.resize(static_cast<size_t>(kStepRows) * kWidth);
    for (uint16_t& value : x_) value = static_cast<uint16_t>(0x3000 | (random_() & 0x8fff));
  }

  void UseRouter(const std::vector<float>& values) {
    router_ = backend_->PackRouter({values.data(), DType::kF32, kExpertCount, kWidth}).value();
  }

  // Experts without a gate, in place of the others, whose matrices it returns: up and down of each.
  std::vector<std::vector<float>> UseExpertsWithoutGates() {
    std::vector<std::vector<float>> values;
    experts_.clear();
    for (int i = 0; i < kExpertCount; ++i) {
      values.push_back(Random(kInner * kWidth));
      values.push_back(Random(kWidth * kInner));
      matrices_.push_back(Pack(*backend_, values[values.size() - 2], kInner));
      matrices_.push_back(Pack(*backend_, values.back(), kWidth));
      experts_.push_back({matrices_[matrices_.size() - 2].get(), matrices_.back().get()});
    }
    gating_.activation = GatedActivation::kSquaredRelu;
    group_ = backend_->GroupExperts(experts_, {}).value();
    return values;
  }

  // The results of some rows of x_, added to `shared` where it is not empty.
  std::vector<float> Run(int first, int rows, const ExpertRouting& routing,
                         const Buffer* choice_bias, const std::vector<float>& shared) {
    const bool has_gate = GatedParts(gating_.activation) == 2;
    const auto scratch = ExpertScratch::For(rows, kPerToken, true, has_gate);
    const DeviceTensor x = Empty(rows, kWidth, DType::kF16),
                       logits = Empty(rows, kExpertCount, DType::kF32),
                       up = Empty(scratch.gate_up, kInner, DType::kF32),
                       gated = Empty(scratch.results, kInner, DType::kF16),
                       results = Empty(scratch.results, kWidth, DType::kF32),
                       out = Empty(rows, kWidth, DType::kF32);
    const auto of_rows = [&](const auto& all) { return all.data() + first * kWidth; };
    const size_t count = static_cast<size_t>(rows) * kWidth;
    backend_->CopyToDevice(x.tensor.data, of_rows(x_), count * sizeof(uint16_t));
    if (!shared.empty()) {
      backend_->CopyToDevice(out.tensor.data, of_rows(shared), count * sizeof(float));
    }
    const DeviceTensor router_x = Empty(rows, kWidth, DType::kF32);
    if (!router_x_.empty()) {
      backend_->CopyToDevice(router_x.tensor.data, of_rows(router_x_), count * sizeof(float));
    }
    const DeviceTensor scales = Empty(1, kExpertCount, DType::kF32);
    if (!scales_.empty()) {
      backend_->CopyToDevice(scales.tensor.data, scales_.data(), kExpertCount * sizeof(float));
    }
    backend_->Experts({.x = x.tensor,
                       .router = router_.get(),
                       .router_bias = nullptr,
                       .choice_bias = choice_bias,
                       .routing = routing,
                       .group = group_.get(),
                       .gating = gating_,
                       .logits = logits.tensor,
                       .inputs = {},
                       .gate_up_rows = has_gate ? Tensor() : up.tensor,
                       .gated = gated.tensor,
                       .results = results.tensor,
                       .out = out.tensor,
                       .accumulates = !shared.empty(),
                       .router_x = router_x_.empty() ? Tensor() : router_x.tensor,
                       .expert_scales = scales_.empty() ? nullptr : scales.memory.get()});
    std::vector<float> host(count);
    backend_->CopyToHost(host.data(), out.tensor.data, count * sizeof(float));
    return host;
  }

  std::vector<std::unique_ptr<PackedMatrix>> matrices_;
  std::vector<ExpertMatrices> experts_, host_experts_;
  std::unique_ptr<ExpertGroup> group_;
  std::unique_ptr<PackedMatrix> router_;
  GatedArgs gating_;
  std::vector<float> router_values_;
  std::vector<uint16_t> x_;
  // Of ExpertsArgs, unless they are empty.
  std::vector<float> router_x_, scales_;
};

// What comes of the products of a part's rows is by pair, in any order of the experts.
TEST_F(CudaExpertOperationsTest, ExpertsWithoutAGateSquareWhatIsPositive) {
  const std::vector<std::vector<float>> matrices = UseExpertsWithoutGates();
  gating_.scale = 0.5f;
  // A bias of the choice that leaves experts 0 and 2, with equal weights of sigmoids near 1.
  const std::vector<float> bias = {10, 0, 10};
  const auto choice = backend_->Allocate(bias.size() * sizeof(float)).value();
  backend_->CopyToDevice(choice->data(), bias.data(), bias.size() * sizeof(float));
  UseRouter(std::vector<float>(static_cast<size_t>(kExpertCount) * kWidth));
  const ExpertRouting routing = {
      .per_token = kPerToken, .normalized = true, .sigmoid = true, .scale = 2};
  const std::vector<float> all = Run(0, kStepRows, routing, choice.get(), {});
  for (const int row : {0, 1, static_cast<int>(kExpertRowsAtOnce), kStepRows - 1}) {
    const std::vector<float> alone = Run(row, 1, routing, choice.get(), {});
    EXPECT_EQ(
        std::memcmp(alone.data(), &all[static_cast<size_t>(row) * kWidth], kWidth * sizeof(float)),
        0)
        << "row " << row;
    std::vector<float> x(kWidth);
    ConvertElements(&x_[static_cast<size_t>(row) * kWidth], DType::kF16, kWidth, DType::kF32,
                    x.data());
    std::vector<double> expected(kWidth), bounds(kWidth);
    for (const size_t expert : {size_t{0}, size_t{2}}) {
      for (size_t i = 0; i < kInner; ++i) {
        double up = 0;
        for (size_t k = 0; k < kWidth; ++k) {
          up += double{matrices[expert * 2][i * kWidth + k]} * double{x[k]};
        }
        const double positive = std::max(0.0, up);
        for (size_t column = 0; column < kWidth; ++column) {
          const double part = double{matrices[expert * 2 + 1][column * kInner + i]} * positive *
                              positive * double{gating_.scale};
          expected[column] += part;
          bounds[column] += std::fabs(part);
        }
      }
    }
    for (size_t column = 0; column < kWidth; ++column) {
      EXPECT_NEAR(alone[column], expected[column], 8e-3 * bounds[column] + 1e-5) << column;
    }
  }
}

// More rows than are computed at once: the parts share no result, and each has its rows of what is
// added to.
TEST_F(CudaExpertOperationsTest, ARowHasTheBitsThatItHasAlone) {
  const std::vector<float> shared = Random(int64_t{kStepRows} * kWidth);
  for (const bool accumulates : {false, true}) {
    SCOPED_TRACE(accumulates);
    const ExpertRouting routing = {.per_token = kPerToken, .normalized = true};
    const std::vector<float> added = accumulates ? shared : std::vector<float>();
    const std::vector<float> all = Run(0, kStepRows, routing, nullptr, added);
    for (const int row : {0, 1, static_cast<int>(kExpertRowsAtOnce) - 1,
                          static_cast<int>(kExpertRowsAtOnce), kStepRows - 1}) {
      const std::vector<float> alone = Run(row, 1, routing, nullptr, added);
      EXPECT_EQ(std::memcmp(alone.data(), &all[static_cast<size_t>(row) * kWidth],
                            kWidth * sizeof(float)),
                0)
          << "row " << row;
      EXPECT_NE(alone[0], 0);
    }
  }
}

// A step of one part copies the experts that its rows have chosen; a step of several parts and
// another of one part follow. None takes what an earlier layer has left.
TEST_F(CudaExpertOperationsTest, ExpertsInTheHostsMemoryChangeNoBit) {
  const ExpertRouting routing = {.per_token = kPerToken, .normalized = true};
  // The rows of the first part choose two experts alone.
  for (int64_t row = 1; row < kExpertRowsAtOnce; ++row) {
    std::copy_n(x_.begin(), kWidth, x_.begin() + row * kWidth);
  }
  std::vector<std::vector<float>> expected;
  const int counts[] = {1, kStepRows, 5};
  for (const int rows : counts) expected.push_back(Run(0, rows, routing, nullptr, {}));
  // Another layer, whose experts take the same place in turn.
  const std::unique_ptr<ExpertGroup> own = std::move(group_);
  std::vector<ExpertMatrices> turned = host_experts_;
  std::rotate(turned.begin(), turned.begin() + 1, turned.end());
  auto host = backend_->GroupExperts(host_experts_, {});
  ASSERT_TRUE(host.ok()) << host.status();
  for (size_t i = 0; i < expected.size(); ++i) {
    group_ = *std::move(host);
    EXPECT_EQ(Run(0, counts[i], routing, nullptr, {}), expected[i]) << counts[i] << " rows";
    host = std::move(group_);
    // Both have the places of the other's experts now.
    group_ = backend_->GroupExperts(turned, {}).value();
    EXPECT_NE(Run(0, counts[i], routing, nullptr, {}), expected[i]);
  }
}

TEST_F(CudaExpertOperationsTest, TheSumIsAddedToWhatTheSharedExpertsLeft) {
  const std::vector<float> shared = Random(int64_t{kStepRows} * kWidth);
  const ExpertRouting routing = {.per_token = kPerToken, .sigmoid = true, .scale = 1.5f};
  const std::vector<float> own = Run(0, kStepRows, routing, nullptr, {});
  const std::vector<float> sums = Run(0, kStepRows, routing, nullptr, shared);
  for (size_t i = 0; i < sums.size(); ++i) {
    ASSERT_NEAR(sums[i], double{own[i]} + double{shared[i]},
                1e-5 * (std::fabs(own[i]) + std::fabs(shared[i]) + 1))
        << i;
  }
}

// In rows beyond the first part, too. Two signs that change at once change no bit.
TEST_F(CudaExpertOperationsTest, TheRouterMayReadRowsOfItsOwn) {
  const ExpertRouting routing = {.per_token = kPerToken, .normalized = true};
  const std::vector<float> plain = Run(0, kStepRows, routing, nullptr, {});
  router_x_.resize(x_.size());
  ConvertElements(x_.data(), DType::kF16, static_cast<int64_t>(x_.size()), DType::kF32,
                  router_x_.data());
  EXPECT_EQ(Run(0, kStepRows, routing, nullptr, {}), plain);
  for (float& value : router_x_) value = -value;
  const std::vector<float> other = Run(0, kStepRows, routing, nullptr, {});
  EXPECT_NE(other, plain);
  router_x_.clear();
  for (float& value : router_values_) value = -value;
  UseRouter(router_values_);
  EXPECT_EQ(Run(0, kStepRows, routing, nullptr, {}), other);
}

TEST_F(CudaExpertOperationsTest, ScalesAreFactorsOfTheExpertsWeights) {
  const ExpertRouting routing = {.per_token = kPerToken, .normalized = true};
  std::vector<std::vector<float>> each;
  for (size_t expert = 0; expert < kExpertCount; ++expert) {
    scales_.assign(kExpertCount, 0);
    scales_[expert] = 1;
    each.push_back(Run(0, kStepRows, routing, nullptr, {}));
  }
  scales_ = {3, 0.5f, -1};
  const std::vector<float> scaled = Run(0, kStepRows, routing, nullptr, {});
  scales_.clear();
  const std::vector<float> plain = Run(0, kStepRows, routing, nullptr, {});
  for (size_t i = 0; i < plain.size(); ++i) {
    const double parts[] = {each[0][i], each[1][i], each[2][i]};
    const double size = std::fabs(parts[0]) + std::fabs(parts[1]) + std::fabs(parts[2]);
    ASSERT_NEAR(plain[i], parts[0] + parts[1] + parts[2], 1e-6 * size) << i;
    ASSERT_NEAR(scaled[i], 3 * parts[0] + 0.5 * parts[1] - parts[2], 4e-6 * size) << i;
  }
}

// Rows beyond the first part, too: a bias that decides leaves one pair of experts, whose results
// are those of a layer that has no others.
TEST_F(CudaExpertOperationsTest, TheBiasOfTheChoiceDecidesAndDoesNotWeigh) {
  const ExpertRouting routing = {.per_token = kPerToken, .sigmoid = true, .scale = 1.5f};
  const auto with_bias = [&](std::vector<float> bias) {
    const auto buffer = backend_->Allocate(bias.size() * sizeof(float)).value();
    backend_->CopyToDevice(buffer->data(), bias.data(), bias.size() * sizeof(float));
    return Run(0, kStepRows, routing, buffer.get(), {});
  };
  const std::vector<float> first = with_bias({10, 10, 0}), weaker = with_bias({3, 2, 0}),
                           other = with_bias({0, 10, 10});
  EXPECT_EQ(first, weaker);
  int differ = 0;
  for (size_t i = 0; i < first.size(); ++i) differ += first[i] != other[i];
  EXPECT_GT(differ, static_cast<int>(first.size()) * 9 / 10);
}

}  // namespace
}  // namespace baton::backend::cuda
