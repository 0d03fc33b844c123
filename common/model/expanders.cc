// WeightLoader's part for latent attention.
#include <cstdint>
#include <utility>
#include <vector>

#include "common/backend/quantized.h"
#include "common/base/error.h"
#include "common/base/status_macros.h"
#include "common/model/weight_loader.h"

namespace baton::model {

using backend::DType;
using backend::HostMatrix;

absl::StatusOr<std::vector<float>> WeightLoader::MatrixFloats(const Part& part, int64_t cols) {
  // GPTQ and AWQ have other tensors in its place.
  if (checkpoint_.is_gguf() || !quantization_ || checkpoint_.Find(part.name) != nullptr) {
    return Table(part.name, part.rows, cols);
  }
  BATON_ASSIGN_OR_RETURN(const QuantizedWeights weights, TakeQuantized(part, cols));
  std::vector<float> values(static_cast<size_t>(part.rows * cols));
  for (int64_t row = 0; row < part.rows; ++row) {
    backend::DequantizeRow(weights.view(), row, values.data() + row * cols);
  }
  return values;
}

absl::StatusOr<WeightLoader::ExpanderMatrices> WeightLoader::Expanders(const ExpanderNames& names,
                                                                       const LatentSpec& spec,
                                                                       int heads) {
  const int64_t rank = spec.rank, plain = spec.plain, value_dim = spec.value_dim;
  const bool apart = checkpoint_.is_gguf() && checkpoint_.Find(names.all) == nullptr;
  std::vector<float> all;
  if (!apart) {
    BATON_ASSIGN_OR_RETURN(all, MatrixFloats({names.all, heads * (plain + value_dim)}, rank));
  }
  std::vector<std::vector<float>> values;
  std::vector<HostMatrix> keys_of, values_of;
  const auto add = [&](std::vector<float> matrix, int64_t rows, int64_t cols,
                       std::vector<HostMatrix>& to) {
    values.push_back(std::move(matrix));
    to.push_back({values.back().data(), DType::kF32, rows, cols});
    AddLoss(to.back());
  };
  for (int head = 0; head < heads; ++head) {
    if (apart) {
      BATON_ASSIGN_OR_RETURN(std::vector<float> keys,
                             MatrixFloats({names.keys(head), rank}, plain));
      add(std::move(keys), rank, plain, keys_of);
      BATON_ASSIGN_OR_RETURN(std::vector<float> of_head,
                             MatrixFloats({names.values(head), value_dim}, rank));
      add(std::move(of_head), value_dim, rank, values_of);
      continue;
    }
    const float* from = all.data() + head * (plain + value_dim) * rank;
    std::vector<float> keys(static_cast<size_t>(rank * plain));
    for (int64_t i = 0; i < plain; ++i) {
      for (int64_t j = 0; j < rank; ++j) {
        keys[static_cast<size_t>(j * plain + i)] = from[i * rank + j];
      }
    }
    add(std::move(keys), rank, plain, keys_of);
    add({from + plain * rank, from + (plain + value_dim) * rank}, value_dim, rank, values_of);
  }
  ExpanderMatrices packed;
  for (const auto& [matrices, to] :
       {std::pair(&keys_of, &packed.keys), std::pair(&values_of, &packed.values)}) {
    auto each = backend_.PackHeads(*matrices);
    if (!each.ok()) return Annotate(each.status(), names.all);
    *to = *std::move(each);
  }
  return packed;
}

}  // namespace baton::model
