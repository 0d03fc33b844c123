#include "common/backend/cpu/experts.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/common/backend/cpu/test_backend.h"

namespace baton::backend {
namespace {

class CpuExpertsTest : public ::testing::TestWithParam<Variant> {};

// Experts of a few rows at once, and one after the other: a row has the same bits.
TEST_P(CpuExpertsTest, ARowHasTheBitsThatItHasAlone) {
  for (uint32_t stream = 0; stream < Seeds(GetParam(), 6); ++stream) {
    Random random(stream);
    const auto backend = Make(GetParam());
    const DType dtype = backend->activation_dtype();
    const int64_t d = 32 * random.Int(1, 3), f = 16 * random.Int(1, 4);
    const int experts = random.Int(2, 12), per_token = random.Int(1, std::min(experts, 4));
    std::vector<std::unique_ptr<PackedMatrix>> matrices;
    const auto pack = [&](int64_t rows, int64_t cols) {
      const std::vector<float> values = random.Floats(static_cast<size_t>(rows * cols), 0.2f);
      matrices.push_back(backend->Pack({{values.data(), DType::kF32, rows, cols}}).value());
      return matrices.back().get();
    };
    const GatedArgs gating = {.activation = random.Int(0, 1) == 1 ? GatedActivation::kSilu
                                                                  : GatedActivation::kSquaredRelu};
    const int64_t columns = GatedParts(gating.activation) * f;
    std::vector<ExpertMatrices> each;
    for (int i = 0; i < experts; ++i) {
      const PackedMatrix* const gate_up = pack(columns, d);
      each.push_back({gate_up, pack(d, f)});
    }
    const auto gate_up_bias =
                   BufferOf(*backend, random.Floats(static_cast<size_t>(experts * columns))),
               down_bias = BufferOf(*backend, random.Floats(static_cast<size_t>(experts * d)));
    const bool biased = random.Int(0, 1) == 1;
    const auto group =
        backend
            ->GroupExperts(
                each, biased ? ExpertBiases{gate_up_bias.get(), down_bias.get()} : ExpertBiases{})
            .value();
    const std::vector<float> router_values = random.Floats(static_cast<size_t>(experts * d), 0.3f);
    const auto router =
        backend->PackRouter({router_values.data(), DType::kF32, experts, d}).value();
    const bool sigmoid = random.Int(0, 1) == 1;
    const ExpertRouting routing = {.per_token = per_token,
                                   .normalized = random.Int(0, 1) == 1,
                                   .sigmoid = sigmoid,
                                   .scale = 1.25f};
    const auto choice_bias = BufferOf(*backend, random.Floats(static_cast<size_t>(experts)));
    constexpr int64_t kRows = 200;
    const Owned x(dtype, kRows, d, random.Floats(static_cast<size_t>(kRows * d)));
    const Owned shared(DType::kF32, kRows, d, random.Floats(static_cast<size_t>(kRows * d)));
    for (const bool accumulates : {false, true}) {
      const auto run = [&](int64_t first, int64_t rows) {
        const auto scratch = ExpertScratch::For(rows, per_token, false);
        const Owned logits(DType::kF32, rows, experts), inputs(dtype, scratch.inputs, d),
            gate_up(DType::kF32, scratch.gate_up, columns), gated(dtype, scratch.results, f),
            results(DType::kF32, scratch.results, d);
        std::vector<float> begin = shared.Values();
        begin.erase(begin.begin(), begin.begin() + first * d);
        begin.resize(static_cast<size_t>(rows * d));
        const Owned out(DType::kF32, rows, d, begin);
        backend->Experts({.x = x.Rows(first, rows),
                          .router = router.get(),
                          .router_bias = nullptr,
                          .choice_bias = sigmoid ? choice_bias.get() : nullptr,
                          .routing = routing,
                          .group = group.get(),
                          .gating = gating,
                          .logits = logits,
                          .inputs = inputs,
                          .gate_up_rows = gate_up,
                          .gated = gated,
                          .results = results,
                          .out = out,
                          .accumulates = accumulates});
        return out.Values();
      };
      const std::vector<float> all = run(0, kRows);
      for (const int64_t rows : {int64_t{1}, kFewExpertRows, kFewExpertRows + 1}) {
        const int64_t first = random.Int(0, static_cast<int>(kRows - rows));
        const auto begin = all.begin() + first * d;
        ExpectSame(run(first, rows), {begin, begin + rows * d},
                   absl::StrCat(rows, " rows", accumulates ? ", added" : ""));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Variants, CpuExpertsTest, ::testing::ValuesIn(AllVariants()),
                         [](const auto& info) { return NameOf(info.param); });

}  // namespace
}  // namespace baton::backend
