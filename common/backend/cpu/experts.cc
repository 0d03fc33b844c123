#include "common/backend/cpu/experts.h"

#include <algorithm>
#include <cstring>

#include "common/backend/cpu/cpu_matrix.h"
#include "common/backend/cpu/rows.h"
#include "common/base/check.h"

namespace baton::backend {
namespace {

// Rows [first, first + count).
Tensor Rows(const Tensor& tensor, int64_t first, int64_t count) {
  BATON_CHECK_LE(first + count, tensor.rows);
  Tensor rows = tensor;
  rows.data = RowOf(tensor, first);
  rows.rows = count;
  return rows;
}

Tensor FirstRows(const Tensor& tensor, int64_t rows) { return Rows(tensor, 0, rows); }

// Row `row` of f32 [.., cols], null if there is no buffer.
const float* FloatsOf(const Buffer* buffer, size_t row = 0, int64_t cols = 0) {
  if (buffer == nullptr) return nullptr;
  return static_cast<const float*>(buffer->data()) + static_cast<int64_t>(row) * cols;
}

}  // namespace

void ExpertsRunner::Run(const ExpertsArgs& args) {
  BATON_CHECK_EQ(static_cast<int64_t>(args.group->experts().size()), args.router->out_features());
  BATON_CHECK_EQ(args.x.rows, args.out.rows);
  BATON_CHECK_EQ(args.x.cols, args.router->in_features());
  CheckF32(args.results);
  BATON_CHECK_GE(args.results.rows, args.x.rows);
  BATON_CHECK_EQ(args.results.cols, args.x.cols);
  CheckF32(args.logits);
  CheckShape(args.logits, args.x.rows, args.router->out_features());
  Route(args);
  if (!args.accumulates) {
    ForRows(pool_, args.out.rows, args.out.cols, [&](int64_t row) {
      std::memset(RowOf(args.out, row), 0, static_cast<size_t>(args.out.cols) * sizeof(float));
    });
  }
  turns_.clear();
  int64_t places = 0;
  for (size_t expert = 0; expert < counts_.size(); ++expert) {
    const int64_t count = counts_[expert];
    if (count == 0) continue;
    if (places + count > args.results.rows) {
      RunTurns(args, places);
      turns_.clear();
      places = 0;
    }
    turns_.push_back({expert, places, count});
    places += count;
  }
  if (places > 0) RunTurns(args, places);
}

void ExpertsRunner::Route(const ExpertsArgs& args) {
  const int64_t rows = args.x.rows, d = args.x.cols, experts = args.router->out_features();
  const int64_t per_token = args.routing.per_token;
  chosen_.resize(static_cast<size_t>(rows * per_token));
  Tensor exact = args.router_x;
  if (exact.data == nullptr) {
    // No expert has a result yet: there is room for x in float32.
    exact = FirstRows(args.results, rows);
    ForRows(pool_, rows, d, [&](int64_t row) {
      kernels_.to_f32(RowOf(args.x, row), ElementOf(args.x.dtype), d, At<float>(exact, row));
    });
  }
  CheckF32(exact);
  CheckShape(exact, rows, d);
  matmul_.Run(exact, static_cast<const CpuMatrix&>(*args.router), FloatsOf(args.router_bias),
              args.logits);
  const absl::Span<const float> choice_bias(
      FloatsOf(args.choice_bias), args.choice_bias == nullptr ? 0 : static_cast<size_t>(experts));
  ForRows(pool_, rows, experts * per_token, [&](int64_t row) {
    ChooseExperts({At<float>(args.logits, row), static_cast<size_t>(experts)}, choice_bias,
                  args.routing, {chosen_.data() + row * per_token, static_cast<size_t>(per_token)});
  });
  if (const float* const scales = FloatsOf(args.expert_scales, experts)) {
    for (ChosenExpert& chosen : chosen_) chosen.weight *= scales[chosen.expert];
  }
  counts_.assign(static_cast<size_t>(experts), 0);
  for (const ChosenExpert& chosen : chosen_) ++counts_[static_cast<size_t>(chosen.expert)];
}

void ExpertsRunner::RunTurns(const ExpertsArgs& args, int64_t places) {
  const int64_t per_token = args.routing.per_token;
  next_.assign(counts_.size(), -1);
  for (const Turn& turn : turns_) next_[turn.expert] = turn.first;
  places_.resize(chosen_.size());
  for (size_t i = 0; i < chosen_.size(); ++i) {
    int64_t& next = next_[static_cast<size_t>(chosen_[i].expert)];
    places_[i] = next < 0 ? -1 : next++;
  }
  const Tensor gated = FirstRows(args.gated, places),
               gate_up = FirstRows(args.gate_up_rows, places);
  const Tensor results = FirstRows(args.results, places);
  // All experts of a single row read it where it is.
  const bool alone = args.x.rows == 1;
  const Tensor x = alone ? args.x : FirstRows(args.inputs, places);
  if (!alone) {
    const size_t row_bytes = static_cast<size_t>(x.cols) * SizeOf(x.dtype);
    ForRows(pool_, args.x.rows, x.cols * per_token, [&](int64_t row) {
      for (int64_t i = row * per_token; i < (row + 1) * per_token; ++i) {
        const int64_t place = places_[static_cast<size_t>(i)];
        if (place >= 0) std::memcpy(RowOf(x, place), RowOf(args.x, row), row_bytes);
      }
    });
  }
  const ExpertBiases& biases = args.group->biases();
  const auto multiply = [&](const Tensor& from, const Tensor& to,
                            const PackedMatrix* ExpertMatrices::*matrix, const Buffer* bias) {
    products_.clear();
    for (const Turn& turn : turns_) {
      const PackedMatrix& weights = *(args.group->experts()[turn.expert].*matrix);
      products_.push_back({Rows(from, from.rows == 1 ? 0 : turn.first, turn.count),
                           static_cast<const CpuMatrix*>(&weights),
                           FloatsOf(bias, turn.expert, to.cols), Rows(to, turn.first, turn.count)});
    }
    matmul_.Run(products_);
  };
  multiply(x, gate_up, &ExpertMatrices::gate_up, biases.gate_up);
  const int parts = GatedParts(args.gating.activation);
  BATON_CHECK_EQ(gate_up.cols, parts * gated.cols);
  ForRows(pool_, places, gated.cols, [&](int64_t place) {
    const float* gate = At<float>(gate_up, place);
    kernels_.gate(gate, gate + (parts - 1) * gated.cols,
                  static_cast<Activation>(args.gating.activation), args.gating.scale, gated.cols,
                  ElementOf(gated.dtype), RowOf(gated, place));
  });
  multiply(gated, results, &ExpertMatrices::down, biases.down);
  ForRows(pool_, args.x.rows, results.cols * per_token, [&](int64_t row) {
    float* sum = At<float>(args.out, row);
    for (int64_t i = row * per_token; i < (row + 1) * per_token; ++i) {
      const int64_t place = places_[static_cast<size_t>(i)];
      if (place < 0) continue;
      const float weight = chosen_[static_cast<size_t>(i)].weight;
      const float* from = At<float>(results, place);
      for (int64_t column = 0; column < results.cols; ++column) {
        sum[column] += weight * from[column];
      }
    }
  });
}

}  // namespace baton::backend
