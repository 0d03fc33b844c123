#include "common/backend/cpu/experts.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/common/backend/cpu/test_backend.h"

namespace baton::backend {
namespace {

// A layer of experts of random sizes, and rows for it.
class Layer {
 public:
  static constexpr int64_t kRows = 200;

  Layer(const Variant& variant, uint32_t seed) : random_(seed), backend_(Make(variant)) {
    const DType dtype = backend_->activation_dtype();
    d_ = 32 * random_.Int(1, 3);
    f_ = 16 * random_.Int(1, 4);
    experts_ = random_.Int(2, 12);
    gating_.activation =
        random_.Int(0, 1) == 1 ? GatedActivation::kSilu : GatedActivation::kSquaredRelu;
    std::vector<ExpertMatrices> each;
    for (int64_t i = 0; i < experts_; ++i) {
      const PackedMatrix* const gate_up = Pack(columns(), d_);
      each.push_back({gate_up, Pack(d_, f_)});
    }
    gate_up_bias_ = Vector(experts_ * columns());
    down_bias_ = Vector(experts_ * d_);
    const bool biased = random_.Int(0, 1) == 1;
    group_ = backend_
                 ->GroupExperts(each, biased ? ExpertBiases{gate_up_bias_.get(), down_bias_.get()}
                                             : ExpertBiases{})
                 .value();
    router_values_ = random_.Floats(static_cast<size_t>(experts_ * d_), 0.3f);
    UseRouter(router_values_);
    const bool sigmoid = random_.Int(0, 1) == 1;
    routing_ = {.per_token = random_.Int(1, std::min(static_cast<int>(experts_), 4)),
                .normalized = random_.Int(0, 1) == 1,
                .sigmoid = sigmoid,
                .scale = 1.25f};
    if (sigmoid) choice_bias_ = Vector(experts_);
    x_ = std::make_unique<Owned>(dtype, kRows, d_, random_.Floats(static_cast<size_t>(kRows * d_)));
    shared_ = random_.Floats(static_cast<size_t>(kRows * d_));
  }

  int64_t d() const { return d_; }
  Random& random() { return random_; }
  std::vector<float> x() const { return x_->Values(); }
  int64_t experts() const { return experts_; }
  const std::vector<float>& router_values() const { return router_values_; }
  void UseRouter(const std::vector<float>& values) {
    router_ = backend_->PackRouter({values.data(), DType::kF32, experts_, d_}).value();
  }

  // The results of some rows; router_x of all rows, and scales, unless they are empty.
  std::vector<float> Run(int64_t first, int64_t rows, bool accumulates,
                         const std::vector<float>& router_x = {},
                         const std::vector<float>& scales = {}) {
    const DType dtype = backend_->activation_dtype();
    const auto scratch = ExpertScratch::For(rows, routing_.per_token, false);
    const Owned logits(DType::kF32, rows, experts_), inputs(dtype, scratch.inputs, d_),
        gate_up(DType::kF32, scratch.gate_up, columns()), gated(dtype, scratch.results, f_),
        results(DType::kF32, scratch.results, d_);
    std::vector<float> begin = shared_;
    begin.erase(begin.begin(), begin.begin() + first * d_);
    begin.resize(static_cast<size_t>(rows * d_));
    const Owned out(DType::kF32, rows, d_, begin);
    const Owned of_router(DType::kF32, kRows, d_, router_x.empty() ? shared_ : router_x);
    const auto of_experts = scales.empty() ? nullptr : BufferOf(*backend_, scales);
    backend_->Experts({.x = x_->Rows(first, rows),
                       .router = router_.get(),
                       .router_bias = nullptr,
                       .choice_bias = choice_bias_.get(),
                       .routing = routing_,
                       .group = group_.get(),
                       .gating = gating_,
                       .logits = logits,
                       .inputs = inputs,
                       .gate_up_rows = gate_up,
                       .gated = gated,
                       .results = results,
                       .out = out,
                       .accumulates = accumulates,
                       .router_x = router_x.empty() ? Tensor() : of_router.Rows(first, rows),
                       .expert_scales = of_experts.get()});
    return out.Values();
  }

 private:
  int64_t columns() const { return GatedParts(gating_.activation) * f_; }
  const PackedMatrix* Pack(int64_t rows, int64_t cols) {
    const std::vector<float> values = random_.Floats(static_cast<size_t>(rows * cols), 0.2f);
    matrices_.push_back(backend_->Pack({{values.data(), DType::kF32, rows, cols}}).value());
    return matrices_.back().get();
  }
  std::unique_ptr<Buffer> Vector(int64_t size) {
    return BufferOf(*backend_, random_.Floats(static_cast<size_t>(size)));
  }

  Random random_;
  std::unique_ptr<Backend> backend_;
  int64_t d_ = 0, f_ = 0, experts_ = 0;
  GatedArgs gating_;
  ExpertRouting routing_;
  std::vector<std::unique_ptr<PackedMatrix>> matrices_;
  std::unique_ptr<Buffer> gate_up_bias_, down_bias_, choice_bias_;
  std::unique_ptr<ExpertGroup> group_;
  std::vector<float> router_values_;
  std::unique_ptr<PackedMatrix> router_;
  std::unique_ptr<Owned> x_;
  std::vector<float> shared_;
};

class CpuExpertsTest : public ::testing::TestWithParam<Variant> {};

// Experts of a few rows at once, and one after the other: a row has the same bits.
TEST_P(CpuExpertsTest, ARowHasTheBitsThatItHasAlone) {
  for (uint32_t seed = 0; seed < Seeds(GetParam(), 6); ++seed) {
    Layer layer(GetParam(), seed);
    for (const bool accumulates : {false, true}) {
      const std::vector<float> all = layer.Run(0, Layer::kRows, accumulates);
      for (const int64_t rows : {int64_t{1}, kFewExpertRows, kFewExpertRows + 1}) {
        const int64_t first = layer.random().Int(0, static_cast<int>(Layer::kRows - rows));
        const auto begin = all.begin() + first * layer.d();
        ExpectSame(layer.Run(first, rows, accumulates), {begin, begin + rows * layer.d()},
                   absl::StrCat(rows, " rows", accumulates ? ", added" : ""));
      }
    }
  }
}

// Two signs that change at once change no bit.
TEST_P(CpuExpertsTest, TheRouterMayReadRowsOfItsOwn) {
  for (uint32_t seed = 0; seed < Seeds(GetParam(), 6); ++seed) {
    Layer layer(GetParam(), seed);
    const std::vector<float> plain = layer.Run(0, Layer::kRows, false);
    std::vector<float> x = layer.x(), router = layer.router_values();
    ExpectSame(layer.Run(0, Layer::kRows, false, x), plain, "the same rows");
    for (float& value : x) value = -value;
    const std::vector<float> other = layer.Run(0, Layer::kRows, false, x);
    EXPECT_NE(other, plain);
    for (float& value : router) value = -value;
    layer.UseRouter(router);
    ExpectSame(layer.Run(0, Layer::kRows, false), other, "other rows");
  }
}

TEST_P(CpuExpertsTest, ScalesAreFactorsOfTheExpertsWeights) {
  for (uint32_t seed = 0; seed < Seeds(GetParam(), 6); ++seed) {
    Layer layer(GetParam(), seed);
    const auto count = static_cast<size_t>(layer.experts());
    const std::vector<float> scales = layer.random().Floats(count);
    const std::vector<float> plain = layer.Run(0, Layer::kRows, false),
                             scaled = layer.Run(0, Layer::kRows, false, {}, scales);
    std::vector<double> sums(plain.size()), scaled_sums(plain.size()), sizes(plain.size());
    for (size_t expert = 0; expert < count; ++expert) {
      std::vector<float> alone(count);
      alone[expert] = 1;
      const std::vector<float> part = layer.Run(0, Layer::kRows, false, {}, alone);
      for (size_t i = 0; i < part.size(); ++i) {
        sums[i] += double{part[i]};
        scaled_sums[i] += double{part[i]} * double{scales[expert]};
        sizes[i] += std::fabs(double{part[i]}) * (1 + std::fabs(double{scales[expert]}));
      }
    }
    for (size_t i = 0; i < plain.size(); ++i) {
      ASSERT_NEAR(plain[i], sums[i], 1e-6 * sizes[i]) << i;
      ASSERT_NEAR(scaled[i], scaled_sums[i], 1e-6 * sizes[i]) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, CpuExpertsTest, ::testing::ValuesIn(AllVariants()),
                         [](const auto& info) { return NameOf(info.param); });

}  // namespace
}  // namespace baton::backend
