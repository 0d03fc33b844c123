#include "common/model/gated_range.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "common/backend/quantized.h"
#include "common/base/check.h"
#include "common/model/convert.h"

namespace baton::model {
namespace {

// Half of what float16 holds: the rest is for the rounding of weights and inputs.
constexpr double kLargest = 32'768;
constexpr int kMaxShift = 12;
constexpr int64_t kTaskRows = 64;

double SquaredLength(absl::Span<const float> row, absl::Span<const float> weight) {
  double sum = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    const double value = double{row[i]} * (weight.empty() ? 1 : weight[i]);
    sum += value * value;
  }
  return sum;
}

// lengths[r] of each row r, which read(r, values) gives.
template <class Read>
void SquaredLengths(int64_t rows, int64_t cols, absl::Span<const float> weight,
                    backend::ThreadPool& pool, absl::Span<double> lengths, const Read& read) {
  BATON_CHECK(weight.empty() || static_cast<int64_t>(weight.size()) == cols);
  pool.Run(static_cast<int>((rows + kTaskRows - 1) / kTaskRows), [&](int task, int) {
    std::vector<float> row(static_cast<size_t>(cols));
    const int64_t begin = task * kTaskRows, end = std::min(rows, begin + kTaskRows);
    for (int64_t r = begin; r < end; ++r) {
      read(r, row.data());
      lengths[static_cast<size_t>(r)] = SquaredLength(row, weight);
    }
  });
}

std::vector<double> SquaredLengths(const backend::HostMatrix& matrix,
                                   absl::Span<const float> weight, backend::ThreadPool& pool) {
  std::vector<double> lengths(static_cast<size_t>(matrix.rows));
  const auto cols = static_cast<size_t>(matrix.cols);
  const size_t row_bytes = cols * backend::SizeOf(matrix.dtype);
  SquaredLengths(matrix.rows, matrix.cols, weight, pool, absl::MakeSpan(lengths),
                 [&](int64_t row, float* values) {
                   const auto* bytes = static_cast<const char*>(matrix.data);
                   ToF32(bytes + static_cast<size_t>(row) * row_bytes, matrix.dtype, cols, values);
                 });
  return lengths;
}

}  // namespace

double LongestRow(const backend::HostMatrix& matrix, backend::ThreadPool& pool) {
  const std::vector<double> lengths = SquaredLengths(matrix, {}, pool);
  return std::sqrt(*std::max_element(lengths.begin(), lengths.end()));
}

void GatedRange::Add(const backend::HostMatrix& part, backend::ThreadPool& pool) {
  const std::vector<double> lengths = SquaredLengths(part, weight_, pool);
  squared_lengths_.insert(squared_lengths_.end(), lengths.begin(), lengths.end());
}

void GatedRange::Add(const backend::QuantizedHostMatrix& part, backend::ThreadPool& pool) {
  const size_t begin = squared_lengths_.size();
  squared_lengths_.resize(begin + static_cast<size_t>(part.rows));
  SquaredLengths(part.rows, part.cols, weight_, pool,
                 absl::MakeSpan(squared_lengths_).subspan(begin),
                 [&](int64_t row, float* values) { backend::DequantizeRow(part, row, values); });
}

float GatedRange::Scale(bool has_gate) const {
  BATON_CHECK(!has_gate || squared_lengths_.size() % 2 == 0);
  const size_t rows = squared_lengths_.size() / (has_gate ? 2 : 1);
  const size_t up = squared_lengths_.size() - rows;
  double largest = 0;
  for (size_t row = 0; row < rows; ++row) {
    largest = std::max(largest, squared_lengths_[row] * squared_lengths_[up + row]);
  }
  const double bound = length_ * length_ * std::sqrt(largest);
  int shift = 0;
  while (shift < kMaxShift && std::ldexp(bound, -shift) > kLargest) ++shift;
  return std::ldexp(1.0f, -shift);
}

}  // namespace baton::model
