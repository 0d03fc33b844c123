#include "common/backend/cpu/experts.h"

#include <algorithm>
#include <cstring>

#include "common/backend/cpu/cpu_matrix.h"
#include "common/backend/cpu/rows.h"
#include "common/base/check.h"

namespace baton::backend {
namespace {

Tensor FirstRows(const Tensor& tensor, int64_t rows) {
  BATON_CHECK_LE(rows, tensor.rows);
  Tensor first = tensor;
  first.rows = rows;
  return first;
}

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
  CheckShape(args.results, args.x.rows, args.x.cols);
  CheckF32(args.logits);
  CheckShape(args.logits, args.x.rows, args.router->out_features());
  Route(args);
  ForRows(pool_, args.out.rows, args.out.cols, [&](int64_t row) {
    std::memset(RowOf(args.out, row), 0, static_cast<size_t>(args.out.cols) * sizeof(float));
  });
  for (size_t expert = 0; expert < rows_.size(); ++expert) {
    if (!rows_[expert].empty()) RunExpert(args, expert);
  }
}

void ExpertsRunner::Route(const ExpertsArgs& args) {
  const int64_t rows = args.x.rows, d = args.x.cols, experts = args.router->out_features();
  const int64_t per_token = args.routing.per_token;
  chosen_.resize(std::max(chosen_.size(), static_cast<size_t>(rows * per_token)));
  // No expert has a result yet: there is room for x in float32.
  const Tensor& exact = args.results;
  ForRows(pool_, rows, d, [&](int64_t row) {
    kernels_.to_f32(RowOf(args.x, row), ElementOf(args.x.dtype), d, At<float>(exact, row));
  });
  matmul_.Run(exact, static_cast<const CpuMatrix&>(*args.router), FloatsOf(args.router_bias),
              args.logits);
  ForRows(pool_, rows, experts * per_token, [&](int64_t row) {
    ChooseExperts({At<float>(args.logits, row), static_cast<size_t>(experts)}, args.routing,
                  {chosen_.data() + row * per_token, static_cast<size_t>(per_token)});
  });
  rows_.resize(static_cast<size_t>(experts));
  for (auto& each : rows_) each.clear();
  for (int64_t i = 0; i < rows * per_token; ++i) {
    const ChosenExpert& chosen = chosen_[static_cast<size_t>(i)];
    rows_[static_cast<size_t>(chosen.expert)].push_back({i / per_token, chosen.weight});
  }
}

void ExpertsRunner::RunExpert(const ExpertsArgs& args, size_t expert) {
  const std::vector<RoutedRow>& routed = rows_[expert];
  const auto count = static_cast<int64_t>(routed.size());
  const ExpertMatrices& matrices = args.group->experts()[expert];
  const auto& gate_up_weights = static_cast<const CpuMatrix&>(*matrices.gate_up);
  const Tensor x = FirstRows(args.inputs, count), gate_up = FirstRows(args.gate_up_rows, count);
  const Tensor gated = FirstRows(args.gated, count), results = FirstRows(args.results, count);
  const size_t row_bytes = static_cast<size_t>(x.cols) * SizeOf(x.dtype);
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(RowOf(x, i), RowOf(args.x, routed[static_cast<size_t>(i)].row), row_bytes);
  }
  const ExpertBiases& biases = args.group->biases();
  matmul_.Run(x, gate_up_weights, FloatsOf(biases.gate_up, expert, gate_up.cols), gate_up);
  ForRows(pool_, count, gated.cols, [&](int64_t i) {
    const float* gate = At<float>(gate_up, i);
    kernels_.gate(gate, gate + gated.cols, static_cast<Activation>(args.gating.activation),
                  args.gating.scale, gated.cols, ElementOf(gated.dtype), RowOf(gated, i));
  });
  matmul_.Run(gated, static_cast<const CpuMatrix&>(*matrices.down),
              FloatsOf(biases.down, expert, results.cols), results);
  ForRows(pool_, count, results.cols, [&](int64_t i) {
    const RoutedRow& to = routed[static_cast<size_t>(i)];
    const float* from = At<float>(results, i);
    float* sum = At<float>(args.out, to.row);
    for (int64_t column = 0; column < results.cols; ++column) {
      sum[column] += to.weight * from[column];
    }
  });
}

}  // namespace baton::backend
